/* The normal distribution's share above t >= 0: 2 to the power of a polynomial, off by 3.3e-6 of it up to 5.8, where it
   is 3e-9; from there on the power falls faster than that share does. */
FUNCTION f32 upper_tail_rough(f32 t) {
  f32 power = -1.8287300918018445e-06f;
  power = fmaf(power, t, 6.149487307993695e-05f);
  power = fmaf(power, t, -0.0009298468939960003f);
  power = fmaf(power, t, 0.008505736477673054f);
  power = fmaf(power, t, -0.05395665019750595f);
  power = fmaf(power, t, -0.45846688747406006f);
  power = fmaf(power, t, -1.1512503623962402f);
  power = fmaf(power, t, -0.9999953508377075f);
  return exp2_approximate(power);
}
/* x times the share below x. */
FUNCTION f32 gelu_rough(f32 x) {
  const f32 t = fminf(fabsf(x), 1e4f);
  return fmaf(-t, upper_tail_rough(t), maximum_rough(x, 0.0f));
}

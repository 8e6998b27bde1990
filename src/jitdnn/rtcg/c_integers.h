/* The expression language over 64-bit integers that wrap, in plain C (after kernels/gpu/prelude/plain.h). */
FUNCTION i64 add_i64(i64 a, i64 b) { return (i64)((u64)a + (u64)b); }
FUNCTION i64 subtract_i64(i64 a, i64 b) { return (i64)((u64)a - (u64)b); }
FUNCTION i64 multiply_i64(i64 a, i64 b) { return (i64)((u64)a * (u64)b); }
FUNCTION i64 negative_i64(i64 a) { return (i64)((u64)0 - (u64)a); }
FUNCTION i64 absolute_i64(i64 a) { return a < 0 ? negative_i64(a) : a; }
FUNCTION i64 minimum_i64(i64 a, i64 b) { return a < b ? a : b; }
FUNCTION i64 maximum_i64(i64 a, i64 b) { return a > b ? a : b; }
FUNCTION i64 sign_i64(i64 a) { return a > 0 ? 1 : a < 0 ? -1 : 0; }
/* cut off towards zero; 0 where b is; the smallest number by -1 wraps */
FUNCTION i64 divide_i64(i64 a, i64 b) { return b == 0 ? 0 : b == -1 ? negative_i64(a) : a / b; }
FUNCTION i64 fmod_i64(i64 a, i64 b) { return b == 0 ? 0 : subtract_i64(a, multiply_i64(divide_i64(a, b), b)); }
FUNCTION i64 remainder_i64(i64 a, i64 b) {
  i64 left = fmod_i64(a, b);
  return left != 0 && (left ^ b) < 0 ? left + b : left;
}
FUNCTION i64 floor_divide_i64(i64 a, i64 b) {
  i64 left = fmod_i64(a, b);
  return divide_i64(a, b) - (left != 0 && (left ^ b) < 0);
}
/* by way of real numbers, rounded: exact up to 2^53 or nearly so */
FUNCTION i64 power_i64(i64 a, i64 b) {
  const SCALE limit = (SCALE)4611686018427387904;
  SCALE x = pow((SCALE)a, (SCALE)b);
  x = x > limit ? limit : x < -limit ? -limit : x;
  return (i64)(x < (SCALE)0 ? x - (SCALE)0.5 : x + (SCALE)0.5);
}

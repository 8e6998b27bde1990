/* Functions of the expression language that C lacks or means otherwise, in plain C (after kernels/gpu/prelude/plain.h).
 * c_source.py puts the type of the arithmetic in place of the word in capitals. */
FUNCTION REAL minimum_REAL(REAL a, REAL b) { return a < b || a != a ? a : b; } /* NaN if either is */
FUNCTION REAL maximum_REAL(REAL a, REAL b) { return a > b || a != a ? a : b; }
FUNCTION REAL sign_REAL(REAL x) { return x > (REAL)0 ? (REAL)1 : x < (REAL)0 ? (REAL)-1 : x == x ? (REAL)0 : x; }

/* from exp(-|x|), so that nothing overflows and small results keep their digits */
FUNCTION REAL sigmoid_REAL(REAL x) {
  REAL small = exp(-fabs(x));
  return (x < (REAL)0 ? small : (REAL)1) / ((REAL)1 + small);
}
FUNCTION REAL log1pexp_REAL(REAL x) { return maximum_REAL(x, (REAL)0) + log1p(exp(-fabs(x))); }

/* exp(-a^2 / 2): what the square lost by rounding counts, as exp multiplies it */
FUNCTION REAL bell_REAL(REAL a) {
  REAL square = a * a;
  REAL near = exp(square * (REAL)-0.5);
  return fma(near, fma(a, a, -square) * (REAL)-0.5, near);
}
FUNCTION REAL normal_density_REAL(REAL x) {
  REAL a = fabs(x);
  return bell_REAL(a > (REAL)TAIL_FARTHEST ? (REAL)TAIL_FARTHEST : a) * (REAL)0.39894228040143267794;
}
/* see rtcg/normal_series.py */
FUNCTION REAL upper_tail_REAL(REAL x) {
  REAL a = x > (REAL)TAIL_FARTHEST ? (REAL)TAIL_FARTHEST : x;
  REAL w = (REAL)1 / (a + (REAL)TAIL_CENTRE);
  REAL t = fma(w, (REAL)(-2 * TAIL_CENTRE), (REAL)1);
  return bell_REAL(a) * (w * (TAIL_POLYNOMIAL));
}

/* Python's % and //, which NumPy's are; fmod is exact */
FUNCTION REAL remainder_REAL(REAL x, REAL y) {
  REAL left = fmod(x, y);
  if (left == (REAL)0) return copysign(left, y);
  return (left < (REAL)0) != (y < (REAL)0) ? left + y : left;
}
FUNCTION REAL floor_divide_REAL(REAL x, REAL y) {
  REAL left = fmod(x, y), quotient, whole;
  if (y == (REAL)0) return x / y;
  quotient = (x - left) / y; /* whole but for the rounding of the division */
  if (left != (REAL)0 && (left < (REAL)0) != (y < (REAL)0)) quotient -= (REAL)1;
  if (quotient == (REAL)0) return copysign((REAL)0, x / y);
  whole = floor(quotient);
  return quotient - whole > (REAL)0.5 ? whole + (REAL)1 : whole;
}

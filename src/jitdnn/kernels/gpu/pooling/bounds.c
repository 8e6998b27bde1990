/* The windows of a pooling problem along its three axes, and the operands of its kernels.
 *
 * Defines: MAX, COUNTS_PADDING, ADAPTIVE and FORWARD, each 1 or 0; OFFSET; INDEX, if the places of maxima are a result.
 */
#if FORWARD && defined(INDEX)
#define OPERANDS GLOBAL const X *x, GLOBAL X *y, GLOBAL INDEX *indices
#define TENSORS STEPS(x), STEPS(y), STEPS(indices)
#elif FORWARD
#define OPERANDS GLOBAL const X *x, GLOBAL X *y
#define TENSORS STEPS(x), STEPS(y)
#elif MAX
#define OPERANDS GLOBAL const X *dy, GLOBAL const X *x, GLOBAL const X *y, GLOBAL X *dx
#define TENSORS STEPS(dy), STEPS(x), STEPS(y), STEPS(dx)
#else
#define OPERANDS GLOBAL const X *dy, GLOBAL X *dx
#define TENSORS STEPS(dy), STEPS(dx)
#endif
#define AXIS(a) i64 extent_##a, i64 out_##a, i64 window_##a, i64 stride_##a, i64 before_##a, i64 after_##a, i64 dilation_##a
#define STEPS(t) i64 t##_n, i64 t##_c, i64 t##_d, i64 t##_h, i64 t##_w

typedef struct {
  OFFSET extent, out, window, stride, before, after, dilation;
} Axis;
typedef struct {
  OFFSET start, low, high, count; /* inputs from low to before high, by steps of the dilation */
} Bounds;

#define MAKE_AXIS(a)                                                                                       \
  {                                                                                                        \
    (OFFSET)extent_##a, (OFFSET)out_##a, (OFFSET)window_##a, (OFFSET)stride_##a, (OFFSET)before_##a,       \
        (OFFSET)after_##a, (OFFSET)dilation_##a                                                            \
  }

FUNCTION OFFSET least(OFFSET a, OFFSET b) { return a < b ? a : b; }
FUNCTION OFFSET most(OFFSET a, OFFSET b) { return a > b ? a : b; }
FUNCTION OFFSET parts(OFFSET length, OFFSET part) { return part == 1 ? length : (length + part - 1) / part; }

/* the window of output o along an axis */
FUNCTION Bounds bounds_of(Axis a, OFFSET o) {
  Bounds b;
#if ADAPTIVE
  b.start = o * a.extent / a.out;
  b.low = b.start;
  b.high = ((o + 1) * a.extent + a.out - 1) / a.out;
  b.count = b.high - b.low;
#else
  b.start = o * a.stride - a.before;
  b.low = b.start + (b.start < 0 ? parts(-b.start, a.dilation) * a.dilation : 0);
  b.high = least(b.start + (a.window - 1) * a.dilation + 1, a.extent);
#if COUNTS_PADDING
  b.count = most(1, least(a.window, parts(a.extent + a.after - b.start, a.dilation)));
#else
  b.count = b.high > b.low ? parts(b.high - b.low, a.dilation) : 1;
#endif
#endif
  return b;
}


/* Local response and divisive normalization: every element over a power of the squares in the window around it.
 *
 * Defines: X, the type of storage; NUMBER, that of arithmetic; OFFSET, which holds any offset within an image;
 * CHANNELS_INNER 1 where neighbouring threads have neighbouring channels, 0 for neighbouring columns; POWER_OF(s), s to the
 * power of -beta; FORWARD; MEANS 1 if there are means, and DMEANS 1 if their gradient is a result.
 *
 * A thread takes `run` channels of one position. The window of an element begins `behind` elements before it along each
 * axis it lies on, and has `size_...` elements there, 1 on the other axes.
 *
 * Backward, the first launch leaves s of every element in workspace, and behind these dy * (x) * s^(-beta - 1), both as
 * NUMBER in the order of the threads; the second adds up the latter.
 */
#define GROUP 256
#define STEPS(t) i64 t##_n, i64 t##_c, i64 t##_d, i64 t##_h, i64 t##_w
#if MEANS
#define MEANS_OPERAND GLOBAL const X *means,
#define MEANS_STEPS STEPS(means),
#else
#define MEANS_OPERAND
#define MEANS_STEPS
#endif
#if FORWARD
#define OPERANDS GLOBAL const X *x, MEANS_OPERAND GLOBAL X *y
#define TENSORS STEPS(x), MEANS_STEPS STEPS(y)
#elif DMEANS
#define OPERANDS GLOBAL const X *dy, GLOBAL const X *x, MEANS_OPERAND GLOBAL X *dx, GLOBAL X *dmeans
#define TENSORS STEPS(dy), STEPS(x), MEANS_STEPS STEPS(dx), STEPS(dmeans)
#else
#define OPERANDS GLOBAL const X *dy, GLOBAL const X *x, MEANS_OPERAND GLOBAL X *dx
#define TENSORS STEPS(dy), STEPS(x), MEANS_STEPS STEPS(dx)
#endif
#define ARGUMENTS                                                                                                     \
  OPERANDS, GLOBAL u8 *workspace, SCALE alpha, SCALE beta, i64 images, i64 channels, i64 depth, i64 height, i64 width, \
      i64 size_c, i64 size_d, i64 size_h, i64 size_w, i64 run, TENSORS, SCALE k, SCALE factor, SCALE exponent
#define AT(t, c, d, h, w) \
  ((OFFSET)t##_c * (c) + (OFFSET)t##_d * (d) + (OFFSET)t##_h * (h) + (OFFSET)t##_w * (w))
#define NUMBER_AT(t, c, d, h, w) ((NUMBER)LOAD(X, t + image * t##_n, AT(t, c, d, h, w)))

typedef struct {
  OFFSET c, d, h, w;
} Place;
typedef struct {
  OFFSET low, high; /* from low to before high */
} Range;

/* the part of a window that is in the tensor */
FUNCTION Range range_of(OFFSET i, i64 size, OFFSET behind, OFFSET extent) {
  Range range;
  const OFFSET end = i - behind + (OFFSET)size;
  range.low = i > behind ? i - behind : 0;
  range.high = end < extent ? end : extent;
  return range;
}

/* the first channel and the position of a thread, and whether there is one */
FUNCTION int unit_of(OFFSET channels, OFFSET depth, OFFSET height, OFFSET width, OFFSET run, Place *at) {
  const i64 unit = BLOCK_ID(0) * GROUP + THREAD_ID;
  const OFFSET runs = (channels + run - 1) / run, size = depth * height * width;
  if (unit >= (i64)runs * size) return 0;
  const OFFSET inner = CHANNELS_INNER ? runs : size, outer = (OFFSET)unit / inner, first = (OFFSET)unit - outer * inner;
  const OFFSET number = CHANNELS_INNER ? outer : first, row = number / width;
  at->c = (CHANNELS_INNER ? first : outer) * run;
  at->w = number - row * width, at->d = row / height, at->h = row - at->d * height;
  return 1;
}

FUNCTION void store(GLOBAL X *p, OFFSET i, NUMBER value, NUMBER alpha, NUMBER beta) {
  value *= alpha;
  if (beta != 0) value += beta * (NUMBER)LOAD(X, p, i);
  STORE(X, p, i, value);
}

#define FIND_UNIT()                                                                                               \
  Place at;                                                                                                       \
  if (!unit_of((OFFSET)channels, (OFFSET)depth, (OFFSET)height, (OFFSET)width, (OFFSET)run, &at)) return;          \
  const OFFSET last = at.c + (OFFSET)run < (OFFSET)channels ? at.c + (OFFSET)run : (OFFSET)channels;
/* how far a window reaches back, or the mirrored one */
#define BEHIND(size) ((OFFSET)(size - 1) / 2)
#define AHEAD(size) ((OFFSET)(size - 1) - (OFFSET)(size - 1) / 2)
#define RANGES(reach)                                                                        \
  const Range over_c = range_of(at.c, size_c, reach(size_c), (OFFSET)channels);               \
  const Range over_d = range_of(at.d, size_d, reach(size_d), (OFFSET)depth);                  \
  const Range over_h = range_of(at.h, size_h, reach(size_h), (OFFSET)height);                 \
  const Range over_w = range_of(at.w, size_w, reach(size_w), (OFFSET)width);
#define EACH_OF_WINDOW                                       \
  for (OFFSET c = over_c.low; c < over_c.high; ++c)          \
    for (OFFSET d = over_d.low; d < over_d.high; ++d)        \
      for (OFFSET h = over_h.low; h < over_h.high; ++h)      \
        for (OFFSET w = over_w.low; w < over_w.high; ++w)
#if MEANS
#define DEVIATION(c, d, h, w) (NUMBER_AT(x, c, d, h, w) - NUMBER_AT(means, c, d, h, w))
#else
#define DEVIATION(c, d, h, w) NUMBER_AT(x, c, d, h, w)
#endif
/* k and the squares of the window around `at`, weighted */
#define SPREAD(s)                                          \
  {                                                        \
    RANGES(BEHIND)                                         \
    NUMBER squares = 0;                                    \
    EACH_OF_WINDOW {                                       \
      const NUMBER deviation = DEVIATION(c, d, h, w);      \
      squares += deviation * deviation;                    \
    }                                                      \
    s = (NUMBER)k + (NUMBER)factor * squares;              \
  }

#if FORWARD
KERNEL(GROUP)
void lrn_forward(ARGUMENTS) {
  FIND_UNIT()
  for (i64 image = BLOCK_ID(1); image < images; image += GRID_SIZE(1)) {
    const OFFSET first = at.c;
    for (; at.c < last; ++at.c) {
      NUMBER s;
      SPREAD(s)
      const NUMBER result = NUMBER_AT(x, at.c, at.d, at.h, at.w) * POWER_OF(s);
      store(y + image * y_n, AT(y, at.c, at.d, at.h, at.w), result, (NUMBER)alpha, (NUMBER)beta);
    }
    at.c = first;
  }
}
#else

#define PLANE (depth * height * width)
#define KEPT_AT(c, d, h, w)                                                                                  \
  (CHANNELS_INNER ? (((d) * (OFFSET)height + (h)) * (OFFSET)width + (w)) * (OFFSET)channels + (c)            \
                  : (((c) * (OFFSET)depth + (d)) * (OFFSET)height + (h)) * (OFFSET)width + (w))

KERNEL(GROUP)
void lrn_spread(ARGUMENTS) {
  FIND_UNIT()
  GLOBAL NUMBER *spread = (GLOBAL NUMBER *)workspace, *part = spread + images * channels * PLANE;
  for (i64 image = BLOCK_ID(1); image < images; image += GRID_SIZE(1)) {
    const OFFSET first = at.c;
    for (; at.c < last; ++at.c) {
      NUMBER s;
      SPREAD(s)
      const NUMBER product = NUMBER_AT(dy, at.c, at.d, at.h, at.w) * NUMBER_AT(x, at.c, at.d, at.h, at.w);
      const i64 slot = image * channels * PLANE + KEPT_AT(at.c, at.d, at.h, at.w);
      spread[slot] = s;
      part[slot] = product * POWER_OF(s) / s;
    }
    at.c = first;
  }
}

KERNEL(GROUP)
void lrn_backward(ARGUMENTS) {
  FIND_UNIT()
  GLOBAL const NUMBER *spread = (GLOBAL const NUMBER *)workspace, *part = spread + images * channels * PLANE;
  const NUMBER twice = 2 * (NUMBER)factor * (NUMBER)exponent;
  for (i64 image = BLOCK_ID(1); image < images; image += GRID_SIZE(1)) {
    const OFFSET first = at.c;
    for (; at.c < last; ++at.c) {
      RANGES(AHEAD)
      NUMBER parts = 0;
      GLOBAL const NUMBER *image_part = part + image * channels * PLANE;
      EACH_OF_WINDOW parts += image_part[KEPT_AT(c, d, h, w)];
      const NUMBER s = spread[image * channels * PLANE + KEPT_AT(at.c, at.d, at.h, at.w)];
      const NUMBER through = twice * DEVIATION(at.c, at.d, at.h, at.w) * parts;
      const NUMBER gradient = NUMBER_AT(dy, at.c, at.d, at.h, at.w) * POWER_OF(s) - through;
      store(dx + image * dx_n, AT(dx, at.c, at.d, at.h, at.w), gradient, (NUMBER)alpha, (NUMBER)beta);
#if DMEANS
      store(dmeans + image * dmeans_n, AT(dmeans, at.c, at.d, at.h, at.w), through, (NUMBER)alpha, (NUMBER)beta);
#endif
    }
    at.c = first;
  }
}
#endif

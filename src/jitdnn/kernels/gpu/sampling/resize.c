/* Resizing of images, forward and backward: every thread adds up what reaches LANES channels of one position.
 *
 * Defines apart from those of pooling/access.c: LANES, and ARE_NEIGHBOURS 1 where these channels lie side by side; CHANNELS_INNER
 * 1 where neighbouring threads have neighbouring channels, 0 for neighbouring columns; TAPS_D, TAPS_H, TAPS_W, 1, 2 or 4
 * elements of x that an output looks at along each axis; PLACE, an integer wide enough for what follows; FORWARD.
 *
 * Along an axis, output o stands at (a * o + b) / q: with one tap, at the element that this is rounded down to; with two or
 * four, between elements. Positions beyond the ends are those of the ends.
 */
#define GROUP 256
#define STEPS(t) i64 t##_n, i64 t##_c, i64 t##_d, i64 t##_h, i64 t##_w
#define AXIS(s) i64 inputs_##s, i64 outputs_##s, i64 a_##s, i64 b_##s, i64 q_##s
#define AT(t, c, d, h, w) \
  ((OFFSET)t##_c * (c) + (OFFSET)t##_d * (d) + (OFFSET)t##_h * (h) + (OFFSET)t##_w * (w))
#define TAPS_MOST 4

typedef struct {
  OFFSET inputs, outputs;
  PLACE a, b, q;
  int taps;
} Axis;
#define MAKE_AXIS(s, taps) \
  { (OFFSET)inputs_##s, (OFFSET)outputs_##s, (PLACE)a_##s, (PLACE)b_##s, (PLACE)q_##s, taps }

/* the quotient rounded down, and rounded up; q is positive */
FUNCTION PLACE floor_of(PLACE p, PLACE q) { return p >= 0 ? p / q : -((q - 1 - p) / q); }
FUNCTION PLACE ceil_of(PLACE p, PLACE q) { return -floor_of(-p, q); }

/* the first of the elements that output o looks at, which may lie beyond the ends, and their weights */
FUNCTION OFFSET look(Axis axis, OFFSET o, NUMBER cubic, NUMBER *weights) {
  const PLACE p = axis.a * (PLACE)o + axis.b, whole = floor_of(p, axis.q);
  if (axis.taps == 1) {
    weights[0] = 1;
    return (OFFSET)whole;
  }
  const NUMBER t = (NUMBER)(p - whole * axis.q) / (NUMBER)axis.q;
  if (axis.taps == 2) {
    weights[0] = 1 - t;
    weights[1] = t;
    return (OFFSET)whole;
  }
  /* Keys' kernel at the distances 1 + t, t, 1 - t, 2 - t */
  const NUMBER u = 1 - t;
  weights[0] = cubic * t * u * u;
  weights[1] = ((cubic + 2) * t - (cubic + 3)) * t * t + 1;
  weights[2] = ((cubic + 2) * u - (cubic + 3)) * u * u + 1;
  weights[3] = cubic * u * t * t;
  return (OFFSET)whole - 1;
}

FUNCTION OFFSET clamped(OFFSET i, OFFSET extent) { return i < 0 ? 0 : i >= extent ? extent - 1 : i; }

#if FORWARD
#define OPERANDS GLOBAL const X *x, GLOBAL X *y
#define TENSORS STEPS(x), STEPS(y)
#define FROM x
#else
#define OPERANDS GLOBAL const X *dy, GLOBAL X *dx
#define TENSORS STEPS(dy), STEPS(dx)
#define FROM dy
#endif

#if !FORWARD
/* the outputs that may look at element i: from *low to before *high */
FUNCTION void outputs_of(Axis axis, OFFSET i, OFFSET *low, OFFSET *high) {
  *low = 0, *high = axis.outputs;
  if (axis.a == 0) return;
  const int before = axis.taps == 4 ? 1 : 0, behind = axis.taps / 2; /* taps on both sides of the place rounded down */
  if (i > 0) {
    const PLACE first = ceil_of(((PLACE)i - behind) * axis.q - axis.b, axis.a);
    *low = first <= 0 ? 0 : first < axis.outputs ? (OFFSET)first : axis.outputs;
  }
  if (i < axis.inputs - 1) {
    const PLACE end = ceil_of(((PLACE)i + before + 1) * axis.q - axis.b, axis.a);
    *high = end <= 0 ? 0 : end < axis.outputs ? (OFFSET)end : axis.outputs;
  }
}

/* the weight of element i in output o */
FUNCTION NUMBER weight_of(Axis axis, OFFSET o, OFFSET i, NUMBER cubic) {
  NUMBER weights[TAPS_MOST], sum = 0;
  const OFFSET first = look(axis, o, cubic, weights);
  for (int t = 0; t < axis.taps; ++t) sum += clamped(first + t, axis.inputs) == i ? weights[t] : 0;
  return sum;
}
#endif

/* what all taps of an output come to; whether vectors are aligned is a constant, so that many are read at once */
#define ADD_TAPS(is_aligned)                                                                                   \
  for (int i = 0; i < TAPS_D; ++i) {                                                                           \
    for (int j = 0; j < TAPS_H; ++j) {                                                                         \
      const OFFSET row = clamped(first_d + i, ad.inputs) * (OFFSET)x_d + clamped(first_h + j, ah.inputs) * (OFFSET)x_h; \
      for (int k = 0; k < TAPS_W; ++k) {                                                                       \
        const OFFSET from = (OFFSET)x_c * c + row + clamped(first_w + k, aw.inputs) * (OFFSET)x_w;                \
        const NUMBER weight = weights_d[i] * weights_h[j] * weights_w[k];                                      \
        load_lanes(x + image * x_n, from, (OFFSET)x_c, left, is_aligned, values);                              \
        for (int n = 0; n < LANES; ++n) sums[n] += weight * values[n];                                         \
      }                                                                                                        \
    }                                                                                                          \
  }

/* what all outputs that look at an element give back */
#define ADD_OUTPUTS(is_aligned)                                                                   \
  for (OFFSET i = low_d; i < high_d; ++i) {                                                       \
    const NUMBER weight_d = weight_of(ad, i, d, coefficient);                                     \
    for (OFFSET j = low_h; j < high_h; ++j) {                                                     \
      const NUMBER weight_dh = weight_d * weight_of(ah, j, h, coefficient);                       \
      for (OFFSET k = low_w; k < high_w; ++k) {                                                   \
        const NUMBER weight = weight_dh * weight_of(aw, k, w, coefficient);                       \
        if (weight == 0) continue;                                                                \
        load_lanes(dy + image * dy_n, AT(dy, c, i, j, k), (OFFSET)dy_c, left, is_aligned, values); \
        for (int n = 0; n < LANES; ++n) sums[n] += weight * values[n];                            \
      }                                                                                           \
    }                                                                                             \
  }

/* A unit is LANES channels at one position of the result. */
KERNEL(GROUP)
void resize(OPERANDS, GLOBAL u8 *workspace, SCALE alpha, SCALE beta, i64 images, i64 channels, AXIS(d), AXIS(h), AXIS(w),
            TENSORS, SCALE cubic) {
  const Axis ad = MAKE_AXIS(d, TAPS_D), ah = MAKE_AXIS(h, TAPS_H), aw = MAKE_AXIS(w, TAPS_W);
  const OFFSET depth = FORWARD ? ad.outputs : ad.inputs, height = FORWARD ? ah.outputs : ah.inputs;
  const OFFSET width = FORWARD ? aw.outputs : aw.inputs, vectors = ((OFFSET)channels + LANES - 1) / LANES;
  const OFFSET size = depth * height * width, inner = CHANNELS_INNER ? vectors : size;
  const i64 unit = BLOCK_ID(0) * GROUP + THREAD_ID;
  if (unit >= (i64)vectors * size) return;
  const OFFSET outer = (OFFSET)unit / inner, rest = (OFFSET)unit - outer * inner;
  const OFFSET number = CHANNELS_INNER ? outer : rest, row = number / width;
  const OFFSET c = (CHANNELS_INNER ? rest : outer) * LANES, left = (OFFSET)channels - c;
  const OFFSET w = number - row * width, d = row / height, h = row - d * height;
  const NUMBER coefficient = (NUMBER)cubic;
#if FORWARD
  NUMBER weights_d[TAPS_MOST], weights_h[TAPS_MOST], weights_w[TAPS_MOST];
  const OFFSET first_d = look(ad, d, coefficient, weights_d), first_h = look(ah, h, coefficient, weights_h);
  const OFFSET first_w = look(aw, w, coefficient, weights_w);
  const int is_aligned = is_multiple(x, LANES * (int)sizeof(X)) && is_multiple(y, LANES * (int)sizeof(X));
#else
  OFFSET low_d, high_d, low_h, high_h, low_w, high_w;
  outputs_of(ad, d, &low_d, &high_d);
  outputs_of(ah, h, &low_h, &high_h);
  outputs_of(aw, w, &low_w, &high_w);
  const int is_aligned = is_multiple(dy, LANES * (int)sizeof(X)) && is_multiple(dx, LANES * (int)sizeof(X));
#endif
  for (i64 image = BLOCK_ID(1); image < images; image += GRID_SIZE(1)) {
    NUMBER sums[LANES], values[LANES];
    for (int n = 0; n < LANES; ++n) sums[n] = 0;
#if FORWARD
    if (is_aligned) {
      ADD_TAPS(1)
    } else {
      ADD_TAPS(0)
    }
    store_lanes(y + image * y_n, AT(y, c, d, h, w), (OFFSET)y_c, left, is_aligned, sums, (NUMBER)alpha, (NUMBER)beta);
#else
    if (is_aligned) {
      ADD_OUTPUTS(1)
    } else {
      ADD_OUTPUTS(0)
    }
    store_lanes(dx + image * dx_n, AT(dx, c, d, h, w), (OFFSET)dx_c, left, is_aligned, sums, (NUMBER)alpha, (NUMBER)beta);
#endif
  }
}

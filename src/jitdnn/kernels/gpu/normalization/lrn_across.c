/* Local response normalization whose window lies along the channels.
 *
 * Defines: X, the type of storage; NUMBER, that of arithmetic; OFFSET, which holds any offset within an image;
 * CHANNELS_INNER 1 where neighbouring threads have neighbouring channels, 0 for neighbouring positions; SIZE of the window;
 * RUN, the channels that a thread takes; POWER_OF(s, t), s to the power of -beta, where t is 1 / sqrt(s); FORWARD; VECTOR,
 * how many neighbouring channels are moved at once where they lie side by side, and every position begins at a multiple of
 * them, 1 otherwise; RUN and the number of channels are multiples of it.
 *
 * A thread takes RUN channels of one position and reads, once each, what their windows need: SIZE - 1 channels more
 * forward, and backward twice as many, as each gradient needs the sums of its neighbours. Those it computes itself, (SIZE -
 * 1) / RUN more than there are, for a second launch and the memory between would cost more.
 */
#define GROUP 256
#define UNROLL _Pragma("unroll")
#define STEPS(t) i64 t##_n, i64 t##_c, i64 t##_d, i64 t##_h, i64 t##_w
#if FORWARD
#define OPERANDS GLOBAL const X *x, GLOBAL X *y
#define TENSORS STEPS(x), STEPS(y)
#else
#define OPERANDS GLOBAL const X *dy, GLOBAL const X *x, GLOBAL X *dx
#define TENSORS STEPS(dy), STEPS(x), STEPS(dx)
#endif
#define ARGUMENTS                                                                                                   \
  OPERANDS, GLOBAL u8 *workspace, SCALE alpha, SCALE beta, i64 images, i64 channels, i64 depth, i64 height, i64 width, \
      TENSORS, SCALE k, SCALE factor, SCALE exponent
/* a window reaches from BEHIND channels before its own to AHEAD behind it */
#define BEHIND ((SIZE - 1) / 2)
#define AHEAD (SIZE - 1 - BEHIND)
/* where a thread's position begins in an image of t */
#define PLACE(t) ((OFFSET)t##_d * at_d + (OFFSET)t##_h * at_h + (OFFSET)t##_w * at_w)
FUNCTION void store(GLOBAL X *p, OFFSET i, NUMBER value, NUMBER alpha, NUMBER beta) {
  value *= alpha;
  if (beta != 0) value += beta * (NUMBER)LOAD(X, p, i);
  STORE(X, p, i, value);
}

/* into[0 .. COUNT]: channels first - BEFORE and those behind it, 0 for those that there are not */
#define FETCH_EACH(into, t, BEFORE, COUNT)                                                                \
  UNROLL for (int i = 0; i < (COUNT); ++i) {                                                              \
    const OFFSET c = first - (BEFORE) + i;                                                                \
    into[i] = c >= 0 && c < (OFFSET)channels                                                              \
                  ? (NUMBER)LOAD(X, t + image * t##_n, place_##t + (OFFSET)t##_c * c)                     \
                  : (NUMBER)0;                                                                            \
  }
#if VECTOR > 1
#define PACKED JOIN(JOIN(pack_, X), JOIN(_, VECTOR))
#define LOAD_PACK JOIN(JOIN(load_, X), JOIN(_, VECTOR))
#define STORE_PACK JOIN(JOIN(store_, X), JOIN(_, VECTOR))
#define UP(count) (((count) + VECTOR - 1) / VECTOR * VECTOR)
/* whole packs from before the first channel to behind the last one, of which those in between are kept */
#define FETCH(into, t, BEFORE, COUNT)                                                                     \
  if (IS_ALIGNED(t, 16)) {                                                                                \
    UNROLL for (int i = -UP(BEFORE); i < UP((COUNT) - (BEFORE)); i += VECTOR) {                           \
      const OFFSET c = first + i;                                                                         \
      PACKED pack;                                                                                        \
      const int is_there = c >= 0 && c < (OFFSET)channels;                                                \
      if (is_there) pack = LOAD_PACK(t + image * t##_n + place_##t + c);                                  \
      UNROLL for (int n = 0; n < VECTOR; ++n)                                                             \
        if (i + n >= -(BEFORE) && i + n < (COUNT) - (BEFORE))                                             \
          into[i + n + (BEFORE)] = is_there ? (NUMBER)JOIN(number_, X)(pack.items[n]) : (NUMBER)0;        \
    }                                                                                                     \
  } else                                                                                                  \
    FETCH_EACH(into, t, BEFORE, COUNT)

FUNCTION void store_run(GLOBAL X *p, const NUMBER *run, OFFSET step, OFFSET left, NUMBER alpha, NUMBER beta) {
  if (IS_ALIGNED(p, 16) && beta == 0 && left >= RUN) {
    UNROLL for (int i = 0; i < RUN; i += VECTOR) {
      PACKED pack;
      UNROLL for (int n = 0; n < VECTOR; ++n) pack.items[n] = JOIN(JOIN(item_, X), JOIN(_, NUMBER))(alpha * run[i + n]);
      STORE_PACK(p + i, pack);
    }
  } else {
    UNROLL for (int i = 0; i < RUN; ++i)
      if (i < left) store(p, step * i, run[i], alpha, beta);
  }
}
#else
#define FETCH(into, t, BEFORE, COUNT) FETCH_EACH(into, t, BEFORE, COUNT)

FUNCTION void store_run(GLOBAL X *p, const NUMBER *run, OFFSET step, OFFSET left, NUMBER alpha, NUMBER beta) {
  UNROLL for (int i = 0; i < RUN; ++i)
    if (i < left) store(p, step * i, run[i], alpha, beta);
}
#endif

/* the first channel, and the position, of this thread */
#define FIND_UNIT()                                                                                              \
  const OFFSET runs = ((OFFSET)channels + RUN - 1) / RUN, positions = (OFFSET)depth * (OFFSET)height * (OFFSET)width; \
  const i64 unit = BLOCK_ID(0) * GROUP + THREAD_ID;                                                               \
  if (unit >= (i64)runs * positions) return;                                                                      \
  const OFFSET inner = CHANNELS_INNER ? runs : positions, outer = (OFFSET)unit / inner;                            \
  const OFFSET rest = (OFFSET)unit - outer * inner, position = CHANNELS_INNER ? outer : rest;                      \
  const OFFSET first = (CHANNELS_INNER ? rest : outer) * RUN, row = position / (OFFSET)width;                      \
  const OFFSET at_w = position - row * (OFFSET)width, at_d = row / (OFFSET)height, at_h = row - at_d * (OFFSET)height;

/* k and the weighted squares of the window of number i, of squares that begin BEHIND channels before number 0 */
FUNCTION NUMBER spread_of(const NUMBER *squares, int i, NUMBER k, NUMBER factor) {
  NUMBER sum = 0;
  UNROLL for (int j = 0; j < SIZE; ++j) sum += squares[i + j];
  return k + factor * sum;
}

#if FORWARD
KERNEL(GROUP)
void lrn_across_forward(ARGUMENTS) {
  FIND_UNIT()
  const OFFSET place_x = PLACE(x), place_y = PLACE(y);
  for (i64 image = BLOCK_ID(1); image < images; image += GRID_SIZE(1)) {
    NUMBER near[RUN + SIZE - 1], squares[RUN + SIZE - 1], results[RUN];
    FETCH(near, x, BEHIND, RUN + SIZE - 1)
    UNROLL for (int i = 0; i < RUN + SIZE - 1; ++i) squares[i] = near[i] * near[i];
    UNROLL for (int i = 0; i < RUN; ++i) {
      const NUMBER s = spread_of(squares, i, (NUMBER)k, (NUMBER)factor), t = rsqrt(s);
      results[i] = near[i + BEHIND] * POWER_OF(s, t);
    }
    store_run(y + image * y_n + place_y + (OFFSET)y_c * first, results, (OFFSET)y_c, (OFFSET)channels - first,
              (NUMBER)alpha, (NUMBER)beta);
  }
}
#else
/* Those whose windows hold a channel lie AHEAD before it to BEHIND behind it: `parts` and `powers` begin AHEAD before the
 * thread's first channel, `near` SIZE - 1 before it. */
KERNEL(GROUP)
void lrn_across_backward(ARGUMENTS) {
  FIND_UNIT()
  const OFFSET place_dy = PLACE(dy), place_x = PLACE(x), place_dx = PLACE(dx);
  const NUMBER twice = 2 * (NUMBER)factor * (NUMBER)exponent;
  for (i64 image = BLOCK_ID(1); image < images; image += GRID_SIZE(1)) {
    NUMBER near[RUN + 2 * (SIZE - 1)], squares[RUN + 2 * (SIZE - 1)];
    NUMBER slopes[RUN + SIZE - 1], parts[RUN + SIZE - 1], results[RUN];
    FETCH(near, x, SIZE - 1, RUN + 2 * (SIZE - 1))
    FETCH(slopes, dy, AHEAD, RUN + SIZE - 1)
    UNROLL for (int i = 0; i < RUN + 2 * (SIZE - 1); ++i) squares[i] = near[i] * near[i];
    UNROLL for (int i = 0; i < RUN + SIZE - 1; ++i) {
      const OFFSET c = first - AHEAD + i;
      const NUMBER s = spread_of(squares, i, (NUMBER)k, (NUMBER)factor), t = rsqrt(s), scaled = slopes[i] * POWER_OF(s, t);
      /* where there is no channel, k may be 0, and s with it */
      parts[i] = c >= 0 && c < (OFFSET)channels ? scaled * near[i + BEHIND] * (t * t) : (NUMBER)0;
      slopes[i] = scaled;
    }
    UNROLL for (int i = 0; i < RUN; ++i) {
      NUMBER sum = 0;
      UNROLL for (int j = 0; j < SIZE; ++j) sum += parts[i + j];
      results[i] = slopes[i + AHEAD] - twice * near[i + SIZE - 1] * sum;
    }
    store_run(dx + image * dx_n + place_dx + (OFFSET)dx_c * first, results, (OFFSET)dx_c, (OFFSET)channels - first,
              (NUMBER)alpha, (NUMBER)beta);
  }
}
#endif

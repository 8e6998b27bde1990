/* Minimal filtering in two dimensions (Lavin and Gray): tiles of a tensor and the filter, or tiles of two tensors, become
 * numbers at POINTS points; for each point there is a matrix product; its results become tiles, or a filter.
 *
 * In the workspace, in elements, the points first:
 *
 *     rows of tiles    [point][group][image, tile][channel]
 *     a filter         [point][group][row: channel of the result][column: channel that is summed]
 *     products         [point][group][row: tile, or channel of dy][column: channel]
 *
 * With IS_SCALED the operands are halves: numbers times a power of two that brings the largest near 2^11, as the sum of a
 * number of half precision and of another for what that rounds away, `between` elements behind; the transforms' rows are
 * scaled so that they make nothing larger. Numbers 2^35 times smaller than the largest are lost.
 */
#ifdef __OPENCL_VERSION__
#define UNROLL __attribute__((opencl_unroll_hint))
#else
#define UNROLL _Pragma("unroll")
#endif
#define ARGUMENTS                                                                                         \
  GLOBAL const ELEMENT *first, GLOBAL const ELEMENT *second, GLOBAL ELEMENT *result EPILOGUE_PARAMETERS,  \
      GLOBAL u8 *workspace, SCALE alpha, SCALE beta, PARAMETERS

/* The first statement of each kernel, which may begin before the launch in front of it is done (`Launch.is_early`). */
#ifdef JITDNN_INSTRUCTIONS
#define BEGIN_LAUNCH() begin_launch()
#elif defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
#define BEGIN_LAUNCH() asm volatile("griddepcontrol.wait; griddepcontrol.launch_dependents;" ::: "memory")
#else
#define BEGIN_LAUNCH()
#endif

#if IS_SCALED
/* In front of the workspace: what the operands were multiplied by, as exponents, and that nothing is infinite, which
 * halves.cuh reads; then, of each operand, the largest finite magnitude as bits, and the exponent that was guessed.
 *
 * To look at all numbers before would take a pass over them. So the largest of SAMPLES numbers is brought to 2^11, while
 * the transforms find out the largest of all. Only if that does not lie below 2^15, or all samples were zero, the transforms
 * do their work again: they are always launched twice, the second time with a grid of two along the last axis. */
#define HEADER ((GLOBAL i32 *)workspace)
#define LARGEST(side) ((GLOBAL u32 *)workspace)[4 + (side)]
#define GUESSED(side) HEADER[8 + (side)]
#define IS_AGAIN (GRID_SIZE(2) == 2)
#ifdef __OPENCL_VERSION__
#define KEEP_LARGER(to, bits) atomic_max(to, bits)
#else
#define KEEP_LARGER(to, bits) atomicMax(to, bits)
#endif

/* 2^exponent as a product of two numbers that f32 has */
typedef struct {
  float first, second;
} Power;
FUNCTION Power power_of(int exponent) {
  const int half_of_it = exponent / 2;
  Power made;
  made.first = f32_of_bits((u32)(half_of_it + 127) << 23);
  made.second = f32_of_bits((u32)(exponent - half_of_it + 127) << 23);
  return made;
}

/* The larger of two magnitudes of finite numbers, as bits; what is not finite does not count. */
FUNCTION u32 larger(u32 most, float number) {
  const u32 bits = bits_of_f32(number) & 0x7fffffffu;
  return bits < 0x7f800000u && bits > most ? bits : most;
}

/* Of subnormal numbers that of the least normal one. */
FUNCTION int exponent_of(u32 bits) { return (bits >> 23) > 1u ? (int)(bits >> 23) - 127 : -126; }

/* Whether what was guessed does not do. */
FUNCTION int is_wrong(u32 largest, int guessed) {
  const int exponent = exponent_of(largest) + guessed;
  return largest != 0 && (exponent > 14 || exponent < 11);
}

/* By what a transform multiplies; `is_first`: of one thread, which writes down what holds in the end. */
#define BEGIN_SCALED(side, is_first)                                                        \
  const u32 largest = LARGEST(side);                                                        \
  int exponent_ = GUESSED(side);                                                            \
  if (IS_AGAIN) {                                                                           \
    const int again = is_wrong(largest, exponent_);                                         \
    if (again) exponent_ = 13 - exponent_of(largest);                                       \
    if (is_first) HEADER[side] = exponent_;                                                 \
    if (!again) return;                                                                     \
  }                                                                                         \
  const Power scale = power_of(exponent_);                                                  \
  u32 most = largest;

#define END_SCALED(side) \
  if (most > LARGEST(side)) KEEP_LARGER(&LARGEST(side), most);

/* A number as its halves. */
#define PUT_HALVES(to, between, number)                                       \
  {                                                                           \
    GLOBAL u16 *const high_to = to;                                           \
    const u16 high = bits_of_f16(number);                                     \
    *high_to = high;                                                          \
    high_to[between] = bits_of_f16((number) - f32_of_f16(high));              \
  }

/* Of `count` numbers one: all of few; of many some without a pattern. */
FUNCTION i64 sample(u32 number, i64 count) {
  i64 at = number;
  if (count > SAMPLES) {
    const u64 hash = number * 2654435769u; /* of 32 bits */
    at = count >> 31 ? (i64)(hash * (u64)(count >> 16) >> 16) : (i64)(hash * (u64)count >> 32);
  }
  return at < count ? at : count - 1;
}

KERNEL(256)
void guess_scales(ARGUMENTS) {
  BEGIN_LAUNCH();
  SHARED u32 found[256];
  const int side = (int)BLOCK_ID(0);
  GLOBAL const float *const tensor = side ? second : first;
  const i64 count = side ? second_count : first_count;
  const int is_dense = (int)(side ? second_dense : first_dense);
  GLOBAL const float *const from = is_dense ? tensor + (side ? second_lowest : first_lowest) : tensor;
  u32 most = 0;
  if (is_dense) {
    /* all are asked for before the first is looked at: one behind the other they would take 20 microseconds */
    float samples[SAMPLES / 256];
    UNROLL for (int n = 0; n < SAMPLES / 256; ++n) samples[n] = from[sample((u32)(n * 256 + THREAD_ID), count)];
    UNROLL for (int n = 0; n < SAMPLES / 256; ++n) most = larger(most, samples[n]);
  } else {
    const i64 of_c = side ? second_axis_c : first_axis_c, of_h = side ? second_axis_h : first_axis_h;
    const i64 of_w = side ? second_axis_w : first_axis_w;
    for (int n = 0; n < SAMPLES / 256; ++n) {
      const i64 at = sample((u32)(n * 256 + THREAD_ID), count);
      const i64 a = at / of_w, b = a / of_h, c = b / of_c;
      const i64 place =
          side ? c * second_n + (b - c * of_c) * second_c + (a - b * of_h) * second_h + (at - a * of_w) * second_w
               : c * first_n + (b - c * of_c) * first_c + (a - b * of_h) * first_h + (at - a * of_w) * first_w;
      most = larger(most, from[place]);
    }
  }
  found[THREAD_ID] = most;
  BARRIER();
  for (int reach = 128; reach > 0; reach /= 2) {
    if (THREAD_ID < reach && found[THREAD_ID + reach] > found[THREAD_ID]) found[THREAD_ID] = found[THREAD_ID + reach];
    BARRIER();
  }
  if (THREAD_ID == 0) {
    LARGEST(side) = found[0];
    GUESSED(side) = found[0] ? 11 - exponent_of(found[0]) : 0;
    if (side == 0) HEADER[2] = 1;
  }
}
#endif

/* Numbers of LANES neighbouring channels at all points, into the place of an operand. */
#if IS_SCALED && LANES == 2
#define PUT_POINTS(points, operand, place)                                                                           \
  GLOBAL u16 *const to = (GLOBAL u16 *)(workspace + operand##_to) + (place);                                         \
  UNROLL for (int point = 0; point < POINTS; ++point) {                                                              \
    GLOBAL u16 *const point_to = to + point * operand##_to_point;                                                    \
    const u32 high = bits_of_two_f16(points[0][point], points[1][point]);                                            \
    *(GLOBAL u32 *)point_to = high;                                                                                  \
    *(GLOBAL u32 *)(point_to + operand##_between) = bits_of_two_f16(                                                 \
        points[0][point] - f32_of_f16((u16)(high & 0xffffu)), points[1][point] - f32_of_f16((u16)(high >> 16)));     \
  }
#elif IS_SCALED
#define PUT_POINTS(points, operand, place)                                                                           \
  GLOBAL u16 *const to = (GLOBAL u16 *)(workspace + operand##_to) + (place);                                         \
  UNROLL for (int point = 0; point < POINTS; ++point)                                                                \
    PUT_HALVES(to + point * operand##_to_point, operand##_between, points[0][point])
#else
#define PUT_POINTS(points, operand, place)                                                                           \
  GLOBAL REAL *const to = (GLOBAL REAL *)(workspace + operand##_to) + (place);                                       \
  UNROLL for (int point = 0; point < POINTS; ++point)                                                                \
    UNROLL for (int lane = 0; lane < LANES; ++lane) to[point * operand##_to_point + lane] = points[lane][point];
#endif

#if !IS_WGRAD
/* The filter: a thread takes one row and LANES columns of all points, a thread block 8 rows and 32 times as many columns,
 * whichever of the two are neighbours in memory. */
KERNEL(256)
void transform_filter(ARGUMENTS) {
  BEGIN_LAUNCH();
#if IS_SCALED
  BEGIN_SCALED(1, BLOCK_ID(0) == 0 && BLOCK_ID(2) == 0 && THREAD_ID == 0)
#endif
  const i64 blocks_down = (filter_rows + 7) / 8, blocks_across = (filter_columns + 32 * LANES - 1) / (32 * LANES);
  const i64 block = BLOCK_ID(2) * GRID_SIZE(0) + BLOCK_ID(0), down = block / blocks_across, group = down / blocks_down;
  const i64 row = (down - group * blocks_down) * 8 + THREAD_ID / 32;
  const i64 column = ((block - down * blocks_across) * 32 + THREAD_ID % 32) * LANES;
  if (group >= groups || row >= filter_rows || column >= filter_columns) return;
  GLOBAL const ELEMENT *const from = second + filter_first + group * filter_group + row * filter_row + column * filter_column;
  REAL points[LANES][POINTS];
  UNROLL for (int lane = 0; lane < LANES; ++lane) {
    REAL taps[R_A * R_B];
    UNROLL for (int i = 0; i < R_A; ++i)
      UNROLL for (int j = 0; j < R_B; ++j)
        taps[i * R_B + j] = (REAL)LOAD(ELEMENT, from, lane * filter_column + i * filter_h + j * filter_w);
#if IS_SCALED
    UNROLL for (int i = 0; i < R_A * R_B; ++i) {
      most = larger(most, taps[i]);
      taps[i] = taps[i] * scale.first * scale.second;
    }
#endif
    to_points_of_filter(taps, points[lane]);
  }
#if IS_SCALED
  END_SCALED(1)
#endif
  PUT_POINTS(points, second, group * second_to_group + row * second_to_row + column)
}
#else
/* The filter's gradient: a thread takes all taps of one row and one column. IS_PLAIN_FILTER: a filter's taps are neighbours
 * in memory, and filters follow each other as threads do, which then store neighbours. */
#define TAPS (R_A * R_B)
KERNEL(256)
void finish_filter(ARGUMENTS) {
  BEGIN_LAUNCH();
  const i64 unit = BLOCK_ID(0) * 256 + THREAD_ID, of_group = filter_rows * filter_columns;
#if IS_PLAIN_FILTER
  SHARED REAL stage[256 * TAPS];
#else
  if (unit >= of_group * groups) return;
#endif
  const i64 group = unit / of_group, rest = unit - group * of_group, row = rest / filter_columns;
  const i64 column = rest - row * filter_columns;
  GLOBAL const REAL *const from =
      (GLOBAL const REAL *)(workspace + products) + group * products_group + row * products_row + column;
  REAL points[POINTS], made[TAPS];
#if IS_PLAIN_FILTER
  if (unit < of_group * groups) {
    UNROLL for (int point = 0; point < POINTS; ++point) points[point] = from[point * products_point];
    to_results(points, made);
    UNROLL for (int i = 0; i < R_A; ++i)
      UNROLL for (int j = 0; j < R_B; ++j)
        stage[THREAD_ID * TAPS + (int)(filter_first + i * filter_h + j * filter_w)] = made[i * R_B + j];
  }
  BARRIER();
  const i64 first_tap = BLOCK_ID(0) * 256 * TAPS, taps_left = of_group * groups * TAPS - first_tap;
  UNROLL for (int n = 0; n < TAPS; ++n) {
    const int own = n * 256 + THREAD_ID;
    if (own < taps_left) {
      const i64 at = first_tap + own;
      REAL value = (REAL)alpha * stage[own];
      if (beta != 0) value += (REAL)beta * (REAL)LOAD(ELEMENT, result, at);
      STORE(ELEMENT, result, at, value);
    }
  }
#else
  UNROLL for (int point = 0; point < POINTS; ++point) points[point] = from[point * products_point];
  to_results(points, made);
  GLOBAL ELEMENT *const to = result + filter_first + group * filter_group + row * filter_row + column * filter_column;
  UNROLL for (int i = 0; i < R_A; ++i)
    UNROLL for (int j = 0; j < R_B; ++j) {
      const i64 at = i * filter_h + j * filter_w;
      REAL value = (REAL)alpha * made[i * R_B + j];
      if (beta != 0) value += (REAL)beta * (REAL)LOAD(ELEMENT, to, at);
      STORE(ELEMENT, to, at, value);
    }
#endif
}
#undef TAPS
#endif

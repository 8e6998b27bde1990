/* All gradients of layer and RMS normalization in one pass over memory. What a text of the user's gives before this one:
 *
 *   DATA, DY, WEIGHT, GRADIENT    types of x and dx; of dy; of weight; of dweight and dbias
 *   PARAMETERS                those of every kernel
 *   PLACE(row)                statements that make pointers dy, x, dx, mean and rstd to those of a row
 *   HAS_MEAN, HAS_WEIGHT, HAS_DWEIGHT, HAS_DBIAS
 *   THREADS_OF_ROW, VECTOR, VECTORS    a thread has VECTORS vectors of VECTOR elements of every row
 *   WORDS, DY_WORDS           words of a vector of DATA, of DY
 *   WEIGHT_IS_DATA            weights have the type of x
 *   RESIDENT_BLOCKS             thread blocks that a multiprocessor runs side by side
 *   ROWS_AHEAD                rows that are loaded before they are used: 1 or 2
 *
 * A thread block goes from row to row, and loads later ones while it works. What it adds up for dweight and dbias stays in
 * registers; a second launch adds up what the thread blocks have.
 */

#define COUNT (VECTORS * VECTOR)
#define COLUMN(k) (((k) * THREADS_OF_ROW + THREAD_ID) * VECTOR)
#define SUBGROUPS (THREADS_OF_ROW / 32)

/* the words of the thread's vectors of a row; 0 beyond its end */
#define LOAD_ROW(name, TYPE, UNSIGNED, COUNTED)                                                     \
  FUNCTION void name(u32 *words, GLOBAL const TYPE *row, i32 n) {                                  \
    const int is_aligned = (u64)row % 16 == 0;                                                     \
    UNROLL for (int k = 0; k < VECTORS; k++) {                                                     \
      if (is_aligned && COLUMN(k) + VECTOR <= n) {                                                 \
        load_words(words + k * COUNTED, (GLOBAL const u8 *)(row + COLUMN(k)), COUNTED);            \
      } else {                                                                                     \
        UNROLL for (int w = 0; w < COUNTED; w++) words[k * COUNTED + w] = 0;                       \
        UNROLL for (int v = 0; v < VECTOR; v++)                                                    \
          if (COLUMN(k) + v < n)                                                                   \
            words[k * COUNTED + v * COUNTED / VECTOR] |=                                           \
              (u32)((GLOBAL const UNSIGNED *)row)[COLUMN(k) + v] << (v * sizeof(TYPE) % 4 * 8);    \
      }                                                                                            \
    }                                                                                              \
  }
LOAD_ROW(load_row, DATA, BITS, WORDS)
#if DY_IS_DATA
#define load_dy load_row
#else
LOAD_ROW(load_dy, DY, DY_BITS, DY_WORDS)
#endif
#define ELEMENT_OF(TYPE, COUNTED, words, e)                                                     \
  JOIN(element_, TYPE)(words[(e) / VECTOR * COUNTED + (e) % VECTOR * COUNTED / VECTOR],         \
                       (e) % VECTOR * (int)sizeof(TYPE) % 4)
#define ELEMENT(words, e) ELEMENT_OF(DATA, WORDS, words, e)
#define DY_ELEMENT(words, e) ELEMENT_OF(DY, DY_WORDS, words, e)

/* the thread's part of a row, and the row's statistics */
typedef struct {
  u32 dy[VECTORS * DY_WORDS], x[VECTORS * WORDS];
  f32 mean, rstd;
} Row;

FUNCTION void load_all(Row *into, GLOBAL const DY *dy, GLOBAL const DATA *x, f32 mean, f32 rstd, i32 n) {
  into->mean = mean;
  into->rstd = rstd;
  load_dy(into->dy, dy, n);
  load_row(into->x, x, n);
}
#if HAS_MEAN
#define MEAN_NEXT mean_next[0]
#else
#define MEAN_NEXT 0
#endif
/* the row that is `ahead` turns from here */
#define PREFETCH_ROW(into, ahead)                                             \
  if (row + (ahead) * GRID_SIZE(0) < rows) {                                   \
    const i64 later = row + (ahead) * GRID_SIZE(0);                            \
    PLACE_NEXT(later)                                                       \
    load_all(&into, dy_next, x_next, MEAN_NEXT, rstd_next[0], (i32)n);      \
  }
#if WEIGHT_IS_DATA
#define WEIGHT_OF(e) ELEMENT(weights, e)
#else
#define WEIGHT_OF(e) weights[e]
#endif

/* One row: `here` is what was loaded of it; meanwhile `into` is loaded with a later one. */
#define ROW(here, into)                                                                                     \
  {                                                                                                         \
    PREFETCH_ROW(into, ROWS_AHEAD)                                                                            \
    f32 a = 0, b = 0;                                                                                       \
    UNROLL for (int e = 0; e < COUNT; e++) {                                                                \
      const f32 d = DY_ELEMENT(here.dy, e), g = d * WEIGHT_OF(e);                                              \
      const f32 xhat = (ELEMENT(here.x, e) - here.mean) * here.rstd;                                        \
      dw[e] += d * xhat; /* beyond the end d is 0 */                                                        \
      db[e] += d;                                                                                           \
      a += g;                                                                                               \
      b += g * xhat;                                                                                        \
    }                                                                                                       \
    SUM_OVER_GROUP(a, b)                                                                                    \
    a *= HAS_MEAN ? share : 0;                                                                              \
    b *= share;                                                                                             \
    PLACE(row)                                                                                              \
    UNROLL for (int k = 0; k < VECTORS; k++) {                                                              \
      f32 result[VECTOR];                                                                                   \
      UNROLL for (int v = 0; v < VECTOR; v++) {                                                             \
        const int e = k * VECTOR + v;                                                                       \
        const f32 xhat = (ELEMENT(here.x, e) - here.mean) * here.rstd;                                      \
        result[v] = alpha * (here.rstd * (DY_ELEMENT(here.dy, e) * WEIGHT_OF(e) - a - xhat * b));              \
      }                                                                                                     \
      store_result(dx, COLUMN(k), (i32)n, result, beta);                                                    \
    }                                                                                                       \
    row += GRID_SIZE(0);                                                                                       \
    turn ^= 1;                                                                                              \
  }

/* both sums over the threads of the thread block, which has two slots of shared memory by turns: one barrier is enough */
#define EXCHANGE_SUMS(end)                    \
  UNROLL for (int d = 1; d < end; d <<= 1) {  \
    f32 other_a, other_b;                     \
    EXCHANGE(f32, a, d, other_a)              \
    EXCHANGE(f32, b, d, other_b)              \
    a += other_a;                             \
    b += other_b;                             \
  }
#define SUM_OVER_GROUP(a, b)                                       \
  EXCHANGE_SUMS(32)                                                \
  if (SUBGROUPS > 1) {                                             \
    if (THREAD_ID % 32 == 0) {                                     \
      space_a[turn * SUBGROUPS + THREAD_ID / 32] = a;              \
      space_b[turn * SUBGROUPS + THREAD_ID / 32] = b;              \
    }                                                              \
    BARRIER();                                                     \
    a = space_a[turn * SUBGROUPS + THREAD_ID % SUBGROUPS];         \
    b = space_b[turn * SUBGROUPS + THREAD_ID % SUBGROUPS];         \
    EXCHANGE_SUMS(SUBGROUPS)                                       \
  }

/* a vector of dx, from its column on */
FUNCTION void store_result(GLOBAL DATA *dx, int column, i32 n, f32 *result, f32 beta) {
  if ((u64)dx % 16 == 0 && column + VECTOR <= n) {
    u32 packed[WORDS];
    GLOBAL u8 *target = (GLOBAL u8 *)(dx + column);
    if (beta != 0) {
      load_words(packed, target, WORDS);
      UNROLL for (int v = 0; v < VECTOR; v++) result[v] += beta * ELEMENT(packed, v);
    }
    UNROLL for (int w = 0; w < WORDS; w++) packed[w] = 0;
    UNROLL for (int v = 0; v < VECTOR; v++)
      packed[v * WORDS / VECTOR] |= (u32)JOIN(bits_, DATA)(result[v]) << (v * sizeof(DATA) % 4 * 8);
    store_words(target, packed, WORDS);
  } else {
    UNROLL for (int v = 0; v < VECTOR; v++) {
      if (column + v < n) {
        if (beta != 0) result[v] += beta * LOAD(DATA, dx, column + v);
        STORE(DATA, dx, column + v, result[v]);
      }
    }
  }
}

KERNEL_RESIDENT(THREADS_OF_ROW, RESIDENT_BLOCKS) void rows(PARAMETERS) {
  EXCHANGE_SPACE(THREADS_OF_ROW)
  SHARED f32 space_a[2 * SUBGROUPS], space_b[2 * SUBGROUPS];
  const f32 alpha = (f32)scale, beta = (f32)blend, share = 1.0f / (f32)n;
  f32 dw[COUNT], db[COUNT];
  UNROLL for (int e = 0; e < COUNT; e++) dw[e] = db[e] = 0;
#if WEIGHT_IS_DATA
  u32 weights[VECTORS * WORDS];
  load_row(weights, weight, (i32)n);
#else
  f32 weights[COUNT];
  UNROLL for (int e = 0; e < COUNT; e++) {
    weights[e] = 1;
#if HAS_WEIGHT
    const int column = COLUMN(e / VECTOR) + e % VECTOR;
    weights[e] = column < n ? LOAD(WEIGHT, weight, column) : 0;
#endif
  }
#endif
  Row first, second;
  int turn = 0;
  i64 row = BLOCK_ID(0);
  PREFETCH_ROW(first, 0)
#if ROWS_AHEAD == 2
  /* by turns: nothing is copied, since that would wait for what is on its way */
  Row third;
  PREFETCH_ROW(second, 1)
  while (row < rows) {
    ROW(first, third)
    if (row >= rows) break;
    ROW(second, first)
    if (row >= rows) break;
    ROW(third, second)
  }
#else
  while (row < rows) {
    second = first;
    ROW(second, first)
  }
#endif
  GLOBAL f32 *sums = (GLOBAL f32 *)workspace + BLOCK_ID(0) * 2 * n;
  UNROLL for (int e = 0; e < COUNT; e++) {
    const int column = COLUMN(e / VECTOR) + e % VECTOR;
    if (column < n) {
      if (HAS_DWEIGHT) sums[column] = dw[e];
      if (HAS_DBIAS) sums[n + column] = db[e];
    }
  }
}

FUNCTION void store_sum(GLOBAL GRADIENT *target, i64 column, f32 sum, f32 alpha, f32 beta) {
  f32 result = alpha * sum;
  if (beta != 0) result += beta * LOAD(GRADIENT, target, column);
  STORE(GRADIENT, target, column, result);
}

/* 32 columns of a thread block, with 8 threads down each */
KERNEL(256) void columns(PARAMETERS) {
  SHARED f32 space[256];
  const i64 column = BLOCK_ID(0) * 32 + THREAD_ID % 32;
  const int walker = THREAD_ID / 32, is_bias = (int)BLOCK_ID(1);
  GLOBAL const f32 *sums = (GLOBAL const f32 *)workspace + is_bias * n + column;
  f32 sum = 0;
  if (column < n && (is_bias ? HAS_DBIAS : HAS_DWEIGHT))
    for (i64 g = walker; g < groups; g += 8) sum += sums[g * 2 * n];
  space[THREAD_ID] = sum;
  BARRIER();
  if (walker == 0 && column < n) {
    UNROLL for (int w = 1; w < 8; w++) sum += space[w * 32 + THREAD_ID];
#if HAS_DWEIGHT
    if (!is_bias) store_sum(dweight, column, sum, (f32)scale, (f32)blend);
#endif
#if HAS_DBIAS
    if (is_bias) store_sum(dbias, column, sum, (f32)scale, (f32)blend);
#endif
  }
}

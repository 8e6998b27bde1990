/* All gradients of layer and RMS normalization in one pass over memory. What a text of the user's gives before this one:
 *
 *   DATA, DY, WEIGHT, GRADIENT    types of x and dx; of dy; of weight; of dweight and dbias
 *   PARAMETERS                those of every kernel
 *   PLACE(row)                statements that make pointers dy, x, dx, mean and rstd to those of a row
 *   HAS_MEAN, HAS_WEIGHT, HAS_DWEIGHT, HAS_DBIAS
 *   BLOCK_THREADS, THREADS_OF_ROW    a thread block has BLOCK_THREADS / THREADS_OF_ROW rows at a time
 *   VECTOR, VECTORS           a thread has VECTORS vectors of VECTOR elements of one of them
 *   WORDS, DY_WORDS           words of a vector of DATA, of DY
 *   WEIGHT_IS_DATA            weights have the type of x
 *   RESIDENT_BLOCKS           thread blocks that a multiprocessor runs side by side
 *   ROWS_AHEAD                turns whose rows are loaded before they are used: 1 or 2
 *   IS_ALONE                  there is one thread block, and nothing behind it
 *   WALKERS                   threads that add up what the thread blocks have of a column
 *
 * A thread block goes from rows to rows, and loads later ones while it works. What a thread adds up for dweight and dbias
 * stays in registers; at the end the thread block adds up what its rows have, and a second launch what the thread blocks
 * have.
 */

#define COUNT (VECTORS * VECTOR)
#define ROWS (BLOCK_THREADS / THREADS_OF_ROW)
#if ROWS > 1
#define LANE (THREAD_ID % THREADS_OF_ROW)
#define SLOT (THREAD_ID / THREADS_OF_ROW)
#else /* known to the compiler, which spills else */
#define LANE THREAD_ID
#define SLOT 0
#endif
#define COLUMN(k) (((k) * THREADS_OF_ROW + LANE) * VECTOR)
#define SUBGROUPS (THREADS_OF_ROW / 32)
#define LANES (THREADS_OF_ROW < 32 ? THREADS_OF_ROW : 32)

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
#if ROWS > 1
/* of the thread block's last rows there may be none for this thread: 0, so that nothing is added */
#define NO_ROW(into)                                                        \
  else {                                                                    \
    into.mean = into.rstd = 0;                                              \
    UNROLL for (int w = 0; w < VECTORS * DY_WORDS; w++) into.dy[w] = 0;     \
    UNROLL for (int w = 0; w < VECTORS * WORDS; w++) into.x[w] = 0;         \
  }
#else
#define NO_ROW(into)
#endif
/* the row that is `ahead` turns from here */
#define PREFETCH_ROW(into, ahead)                                           \
  if (row + (ahead) * GRID_SIZE(0) * ROWS < rows) {                         \
    const i64 later = row + (ahead) * GRID_SIZE(0) * ROWS;                  \
    PLACE_NEXT(later)                                                       \
    load_all(&into, dy_next, x_next, MEAN_NEXT, rstd_next[0], (i32)n);      \
  }                                                                         \
  NO_ROW(into)
/* weights: of several rows in shared memory, where they cost no registers; volatile, or the compiler keeps them in some */
#if !HAS_WEIGHT
#define WEIGHT_OF(e) 1.0f
#elif ROWS > 1
#define WEIGHT_OF(e) weights[COLUMN((e) / VECTOR) + (e) % VECTOR]
#elif WEIGHT_IS_DATA
#define WEIGHT_OF(e) ELEMENT(weights, e)
#else
#define WEIGHT_OF(e) weights[e]
#endif

/* One turn: `here` is what was loaded of the thread's row; meanwhile `into` is loaded with a later one. */
#define TURN(here, into)                                                                                    \
  {                                                                                                         \
    PREFETCH_ROW(into, ROWS_AHEAD)                                                                          \
    f32 a = 0, b = 0;                                                                                       \
    UNROLL for (int e = 0; e < COUNT; e++) {                                                                \
      const f32 d = DY_ELEMENT(here.dy, e), g = d * WEIGHT_OF(e);                                           \
      const f32 xhat = (ELEMENT(here.x, e) - here.mean) * here.rstd;                                        \
      dw[e] += d * xhat; /* beyond the end d is 0 */                                                        \
      db[e] += d;                                                                                           \
      a += g;                                                                                               \
      b += g * xhat;                                                                                        \
    }                                                                                                       \
    SUM_OVER_ROW(a, b)                                                                                      \
    a *= HAS_MEAN ? share : 0;                                                                              \
    b *= share;                                                                                             \
    if (ROWS == 1 || row < rows) {                                                                          \
      PLACE(row)                                                                                            \
      UNROLL for (int k = 0; k < VECTORS; k++) {                                                            \
        f32 result[VECTOR];                                                                                 \
        UNROLL for (int v = 0; v < VECTOR; v++) {                                                           \
          const int e = k * VECTOR + v;                                                                     \
          const f32 xhat = (ELEMENT(here.x, e) - here.mean) * here.rstd;                                    \
          result[v] = alpha * (here.rstd * (DY_ELEMENT(here.dy, e) * WEIGHT_OF(e) - a - xhat * b));         \
        }                                                                                                   \
        store_result(dx, COLUMN(k), (i32)n, result, beta);                                                  \
      }                                                                                                     \
    }                                                                                                       \
    row += GRID_SIZE(0) * ROWS;                                                                             \
    turn ^= 1;                                                                                              \
  }
/* whether the thread block has a row in this turn: all of its threads go on, or none */
#define HAS_TURN (row - SLOT < rows)

/* both sums over the threads of a row; in shared memory it has two places by turns: one barrier is enough */
#define EXCHANGE_SUMS(end)                    \
  UNROLL for (int d = 1; d < end; d <<= 1) {  \
    f32 other_a, other_b;                     \
    EXCHANGE(f32, a, d, other_a)              \
    EXCHANGE(f32, b, d, other_b)              \
    a += other_a;                             \
    b += other_b;                             \
  }
#if SUBGROUPS > 1
#define SUM_OVER_ROW(a, b)                                         \
  EXCHANGE_SUMS(32)                                                \
  const int place = (turn * ROWS + SLOT) * SUBGROUPS;              \
  if (THREAD_ID % 32 == 0) {                                       \
    space_a[place + LANE / 32] = a;                                \
    space_b[place + LANE / 32] = b;                                \
  }                                                                \
  BARRIER();                                                       \
  a = space_a[place + LANE % SUBGROUPS];                           \
  b = space_b[place + LANE % SUBGROUPS];                           \
  EXCHANGE_SUMS(SUBGROUPS)
#else
#define SUM_OVER_ROW(a, b) EXCHANGE_SUMS(LANES)
#endif

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

FUNCTION void store_sum(GLOBAL GRADIENT *target, i64 column, f32 sum, f32 alpha, f32 beta) {
  f32 result = alpha * sum;
  if (beta != 0) result += beta * LOAD(GRADIENT, target, column);
  STORE(GRADIENT, target, column, result);
}
/* a column's sum over all rows of the thread block, as a part of `sums` or as all there is */
#if IS_ALONE
#define PUT_SUM(target, offset, column, sum) store_sum(target, column, sum, alpha, beta);
#else
#define PUT_SUM(target, offset, column, sum) sums[(offset) + (column)] = sum;
#endif
#if ROWS > 1
#define PUT_SUMS(target, offset, own)                                                                           \
  UNROLL for (int e = 0; e < COUNT; e++)                                                                        \
    space[SLOT * THREADS_OF_ROW * COUNT + COLUMN(e / VECTOR) + e % VECTOR] = own[e];                            \
  BARRIER();                                                                                                    \
  for (int column = THREAD_ID; column < n; column += BLOCK_THREADS) {                                                 \
    f32 sum = space[column];                                                                                    \
    UNROLL for (int slot = 1; slot < ROWS; slot++) sum += space[slot * THREADS_OF_ROW * COUNT + column];        \
    PUT_SUM(target, offset, column, sum)                                                                        \
  }                                                                                                             \
  BARRIER();
#else
#define PUT_SUMS(target, offset, own)                      \
  UNROLL for (int e = 0; e < COUNT; e++) {                 \
    const int column = COLUMN(e / VECTOR) + e % VECTOR;    \
    if (column < n) {                                      \
      PUT_SUM(target, offset, column, own[e])              \
    }                                                      \
  }
#endif

KERNEL_RESIDENT(BLOCK_THREADS, RESIDENT_BLOCKS) void rows(PARAMETERS) {
  EXCHANGE_SPACE(BLOCK_THREADS)
#if SUBGROUPS > 1
  SHARED f32 space_a[2 * ROWS * SUBGROUPS], space_b[2 * ROWS * SUBGROUPS];
#endif
#if ROWS > 1
  SHARED f32 space[BLOCK_THREADS * COUNT];
#endif
  const f32 alpha = (f32)scale, beta = (f32)blend, share = 1.0f / (f32)n;
  f32 dw[COUNT], db[COUNT];
  UNROLL for (int e = 0; e < COUNT; e++) dw[e] = db[e] = 0;
#if HAS_WEIGHT && ROWS > 1
  SHARED volatile f32 weights[THREADS_OF_ROW * COUNT];
  for (int column = THREAD_ID; column < THREADS_OF_ROW * COUNT; column += BLOCK_THREADS)
    weights[column] = column < n ? LOAD(WEIGHT, weight, column) : 0;
  BARRIER();
#elif WEIGHT_IS_DATA
  u32 weights[VECTORS * WORDS];
  load_row(weights, weight, (i32)n);
#elif HAS_WEIGHT
  f32 weights[COUNT];
  UNROLL for (int e = 0; e < COUNT; e++) {
    const int column = COLUMN(e / VECTOR) + e % VECTOR;
    weights[e] = column < n ? LOAD(WEIGHT, weight, column) : 0;
  }
#endif
  /* by turns: nothing is copied, since that would wait for what is on its way */
  Row first, second;
  int turn = 0;
  i64 row = BLOCK_ID(0) * ROWS + SLOT;
  PREFETCH_ROW(first, 0)
#if ROWS_AHEAD == 2
  Row third;
  PREFETCH_ROW(second, 1)
  while (HAS_TURN) {
    TURN(first, third)
    if (!HAS_TURN) break;
    TURN(second, first)
    if (!HAS_TURN) break;
    TURN(third, second)
  }
#else
  while (HAS_TURN) {
    TURN(first, second)
    if (!HAS_TURN) break;
    TURN(second, first)
  }
#endif
#if !IS_ALONE
  GLOBAL f32 *sums = (GLOBAL f32 *)workspace + BLOCK_ID(0) * 2 * n;
#endif
#if HAS_DWEIGHT
  PUT_SUMS(dweight, 0, dw)
#endif
#if HAS_DBIAS
  PUT_SUMS(dbias, n, db)
#endif
}

#if !IS_ALONE
/* 32 columns of a thread block, with WALKERS threads down each */
KERNEL(32 * WALKERS) void columns(PARAMETERS) {
  SHARED f32 space[32 * WALKERS];
  const i64 column = BLOCK_ID(0) * 32 + THREAD_ID % 32;
  const int walker = THREAD_ID / 32, is_bias = (int)BLOCK_ID(1);
  GLOBAL const f32 *sums = (GLOBAL const f32 *)workspace + is_bias * n + column;
  f32 sum = 0;
  if (column < n && (is_bias ? HAS_DBIAS : HAS_DWEIGHT)) {
    i64 g = walker;
    for (; g + 3 * WALKERS < groups; g += 4 * WALKERS) { /* four loads under way */
      f32 part[4];
      UNROLL for (int i = 0; i < 4; i++) part[i] = sums[(g + i * WALKERS) * 2 * n];
      UNROLL for (int i = 0; i < 4; i++) sum += part[i];
    }
    for (; g < groups; g += WALKERS) sum += sums[g * 2 * n];
  }
  space[THREAD_ID] = sum;
  BARRIER();
  if (walker == 0 && column < n) {
    UNROLL for (int w = 1; w < WALKERS; w++) sum += space[w * 32 + THREAD_ID];
#if HAS_DWEIGHT
    if (!is_bias) store_sum(dweight, column, sum, (f32)scale, (f32)blend);
#endif
#if HAS_DBIAS
    if (is_bias) store_sum(dbias, column, sum, (f32)scale, (f32)blend);
#endif
  }
}
#endif

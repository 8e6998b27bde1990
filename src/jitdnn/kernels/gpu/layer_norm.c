/* All gradients of layer and RMS normalization in one pass over memory. What a text of one's own gives before this one:
 *
 *   DATA, WEIGHT, GRADIENT    types of dy, x and dx; of weight; of dweight and dbias
 *   PARAMETERS                those of every kernel
 *   PLACE(row)                statements that make pointers dy, x, dx, mean and rstd to those of a row
 *   HAS_MEAN, HAS_WEIGHT, HAS_DWEIGHT, HAS_DBIAS
 *   THREADS_OF_ROW, VECTOR, VECTORS    a thread has VECTORS vectors of VECTOR elements of every row
 *   WORDS                     words of a vector of DATA
 *
 * A group goes from row to row, and loads the next one while it works. What it adds up for dweight and dbias stays in
 * registers; a second launch adds up what the groups have.
 */

#define COUNT (VECTORS * VECTOR)
#define COLUMN(k) (((k) * THREADS_OF_ROW + THREAD_ID) * VECTOR)
#define SUBGROUPS (THREADS_OF_ROW / 32)

/* the words of the thread's vectors of a row; 0 beyond its end */
FUNCTION void load_row(u32 *words, GLOBAL const DATA *row, i32 n) {
  const int is_aligned = (u64)row % 16 == 0;
  UNROLL for (int k = 0; k < VECTORS; k++) {
    if (is_aligned && COLUMN(k) + VECTOR <= n) {
      load_words(words + k * WORDS, (GLOBAL const u8 *)(row + COLUMN(k)), WORDS);
    } else {
      UNROLL for (int w = 0; w < WORDS; w++) words[k * WORDS + w] = 0;
      UNROLL for (int v = 0; v < VECTOR; v++)
        if (COLUMN(k) + v < n)
          words[k * WORDS + v * WORDS / VECTOR] |= (u32)((GLOBAL const BITS *)row)[COLUMN(k) + v]
                                                   << (v * sizeof(DATA) % 4 * 8);
    }
  }
}
#define ELEMENT(words, e) \
  JOIN(element_, DATA)(words[(e) / VECTOR * WORDS + (e) % VECTOR * WORDS / VECTOR], (e) % VECTOR * (int)sizeof(DATA) % 4)

KERNEL(THREADS_OF_ROW) void rows(PARAMETERS) {
  EXCHANGE_SPACE(THREADS_OF_ROW)
  LOCAL f32 space_a[2 * SUBGROUPS], space_b[2 * SUBGROUPS];
  const f32 alpha = (f32)scale, beta = (f32)blend, share = 1.0f / (f32)n;
  f32 dw[COUNT], db[COUNT], weights[COUNT];
  UNROLL for (int e = 0; e < COUNT; e++) {
    const int column = COLUMN(e / VECTOR) + e % VECTOR;
    dw[e] = db[e] = 0;
    weights[e] = 1;
#if HAS_WEIGHT
    weights[e] = column < n ? LOAD(WEIGHT, weight, column) : 0;
#endif
  }
  u32 words_dy[VECTORS * WORDS], words_x[VECTORS * WORDS], next_dy[VECTORS * WORDS], next_x[VECTORS * WORDS];
  f32 next_rstd = 0, next_mean = 0;
  i64 row = GROUP_ID(0);
  if (row < rows) {
    PLACE(row)
    next_rstd = rstd[0];
#if HAS_MEAN
    next_mean = mean[0];
#endif
    load_row(next_dy, dy, (i32)n);
    load_row(next_x, x, (i32)n);
  }
  for (int turn = 0; row < rows; row += GROUPS(0), turn ^= 1) {
    PLACE(row)
    UNROLL for (int k = 0; k < VECTORS * WORDS; k++) {
      words_dy[k] = next_dy[k];
      words_x[k] = next_x[k];
    }
    const f32 r = next_rstd, m = next_mean;
    if (row + GROUPS(0) < rows) {
      const i64 after = row + GROUPS(0);
      PLACE_NEXT(after)
      next_rstd = rstd_next[0];
#if HAS_MEAN
      next_mean = mean_next[0];
#endif
      load_row(next_dy, dy_next, (i32)n);
      load_row(next_x, x_next, (i32)n);
    }
    f32 a = 0, b = 0;
    UNROLL for (int e = 0; e < COUNT; e++) {
      const f32 d = ELEMENT(words_dy, e), xhat = (ELEMENT(words_x, e) - m) * r, g = d * weights[e];
      dw[e] += d * xhat; /* beyond the end d is 0 */
      db[e] += d;
      a += g;
      b += g * xhat;
    }
    UNROLL for (int d = 1; d < 32; d <<= 1) {
      f32 other_a, other_b;
      EXCHANGE(f32, a, d, other_a)
      EXCHANGE(f32, b, d, other_b)
      a += other_a;
      b += other_b;
    }
    if (SUBGROUPS > 1) {
      /* two places by turns: one barrier is enough */
      if (THREAD_ID % 32 == 0) {
        space_a[turn * SUBGROUPS + THREAD_ID / 32] = a;
        space_b[turn * SUBGROUPS + THREAD_ID / 32] = b;
      }
      BARRIER();
      a = space_a[turn * SUBGROUPS + THREAD_ID % SUBGROUPS];
      b = space_b[turn * SUBGROUPS + THREAD_ID % SUBGROUPS];
      UNROLL for (int d = 1; d < SUBGROUPS; d <<= 1) {
        f32 other_a, other_b;
        EXCHANGE(f32, a, d, other_a)
        EXCHANGE(f32, b, d, other_b)
        a += other_a;
        b += other_b;
      }
    }
    a *= HAS_MEAN ? share : 0;
    b *= share;
    const int is_aligned = (u64)dx % 16 == 0;
    UNROLL for (int k = 0; k < VECTORS; k++) {
      f32 result[VECTOR];
      UNROLL for (int v = 0; v < VECTOR; v++) {
        const int e = k * VECTOR + v;
        const f32 xhat = (ELEMENT(words_x, e) - m) * r;
        result[v] = alpha * (r * (ELEMENT(words_dy, e) * weights[e] - a - xhat * b));
      }
      if (is_aligned && COLUMN(k) + VECTOR <= n) {
        u32 packed[WORDS];
        GLOBAL u8 *target = (GLOBAL u8 *)(dx + COLUMN(k));
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
          if (COLUMN(k) + v < n) {
            if (beta != 0) result[v] += beta * LOAD(DATA, dx, COLUMN(k) + v);
            STORE(DATA, dx, COLUMN(k) + v, result[v]);
          }
        }
      }
    }
  }
  GLOBAL f32 *sums = (GLOBAL f32 *)workspace + GROUP_ID(0) * 2 * n;
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

/* 32 columns of a group, with 8 threads down each */
KERNEL(256) void columns(PARAMETERS) {
  LOCAL f32 space[256];
  const i64 column = GROUP_ID(0) * 32 + THREAD_ID % 32;
  const int walker = THREAD_ID / 32, is_bias = (int)GROUP_ID(1);
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

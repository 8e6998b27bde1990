/* Attention and its gradients on ordinary units, for every type and size of heads. What algorithm.py gives before this text:
 *
 *   DTYPE, REAL                      of the tensors; of the arithmetic, lse and the workspace
 *   MASK                             0: none, 1: of bools, 2: added to the scores
 *   HAS_LENGTHS, HAS_LO, HAS_HI, HAS_LSE
 *   PARAMETERS                       of every kernel
 *
 * A thread block has ROWS rows, which are queries, or keys for dk and dv, and lets the others pass as columns, COLUMNS at a
 * time: products of rows and columns make weights in shared memory, and weights times the columns' vectors are added to the
 * sums, of which a thread block has WIDTH columns (its number along the second axis says which).
 */

/* OpenCL's compilers unroll such loops unasked; asked to, PoCL 3.1 makes code that writes beside its own memory */
#ifdef __OPENCL_VERSION__
#define UNROLL
#else
#define UNROLL _Pragma("unroll")
#endif
#define BLOCK 128
#define ROWS 16
#define COLUMNS 64
#define DEPTH 16 /* terms of the products that are in shared memory at a time */
#define WIDTH 128
#define LANE (THREAD_ID % 32)
#define OWN_ROW(r) (THREAD_ID / 32 * 4 + (r))
#define NOTHING ((REAL)-f32_of_bits(0x7f800000u))

FUNCTION i64 least(i64 a, i64 b) { return a < b ? a : b; }
FUNCTION i64 most(i64 a, i64 b) { return a > b ? a : b; }
FUNCTION i64 clipped(i64 place, i64 count) { return most(0, least(place, count)); }
#if HAS_LENGTHS
#define LENGTH_OF(n) clipped((i64)lengths[(n) * lengths_n], keys)
#else
#define LENGTH_OF(n) keys
#endif
#if HAS_LO
#define IS_BEHIND_LO(t, s) ((s) >= (i64)lo[(t) * lo_t])
#else
#define IS_BEHIND_LO(t, s) 1
#endif
#if HAS_HI
#define IS_BEFORE_HI(t, s) ((s) < (i64)hi[(t) * hi_t])
#else
#define IS_BEFORE_HI(t, s) 1
#endif
#define SEES(t, s)                                                                                              \
  ((t) < queries && (s) < length && (s) >= (t) + past - left && (s) <= (t) + past + right && IS_BEHIND_LO(t, s) && \
   IS_BEFORE_HI(t, s))
#if MASK == 1
#define MASKED(score, t, s) (mask[n * mask_n + h * mask_h + (t) * mask_t + (s) * mask_s] ? (score) : NOTHING)
#elif MASK == 2
#define MASKED(score, t, s) ((score) + LOAD(DTYPE, mask, n * mask_n + h * mask_h + (t) * mask_t + (s) * mask_s))
#else
#define MASKED(score, t, s) (score)
#endif

#define IN_SHARED                          \
  SHARED REAL left_part[ROWS][DEPTH + 1];  \
  SHARED REAL right_part[COLUMNS][DEPTH + 1]; \
  SHARED REAL weights[ROWS][COLUMNS + 1];

/* sums[r][c] = products of row OWN_ROW(r) and column LANE + 32 * c over `depth` terms; LEFT(row, term), RIGHT(column, term) */
#define PRODUCTS(sums, depth, LEFT, RIGHT)                                                \
  UNROLL for (int r = 0; r < 4; r++) sums[r][0] = sums[r][1] = 0;                         \
  for (i64 term = 0; term < depth; term += DEPTH) {                                       \
    BARRIER();                                                                            \
    for (int p = THREAD_ID; p < ROWS * DEPTH; p += BLOCK)                                 \
      left_part[p / DEPTH][p % DEPTH] = term + p % DEPTH < depth ? LEFT(p / DEPTH, term + p % DEPTH) : (REAL)0; \
    for (int p = THREAD_ID; p < COLUMNS * DEPTH; p += BLOCK)                              \
      right_part[p / DEPTH][p % DEPTH] = term + p % DEPTH < depth ? RIGHT(p / DEPTH, term + p % DEPTH) : (REAL)0; \
    BARRIER();                                                                            \
    UNROLL for (int at = 0; at < DEPTH; at++) {                                           \
      const REAL b0 = right_part[LANE][at], b1 = right_part[LANE + 32][at];               \
      UNROLL for (int r = 0; r < 4; r++) {                                                \
        const REAL a = left_part[OWN_ROW(r)][at];                                         \
        sums[r][0] += a * b0;                                                             \
        sums[r][1] += a * b1;                                                             \
      }                                                                                   \
    }                                                                                     \
  }

/* results += weights * the columns' vectors; VECTOR(column, place), of `width` elements */
#define ADD_WEIGHTED(results, count, width, VECTOR)                                             \
  BARRIER();                                                                                    \
  for (int column = 0; column < (count); column++) {                                            \
    REAL vector[4];                                                                             \
    UNROLL for (int c = 0; c < 4; c++) {                                                        \
      const i64 place = chunk + LANE + 32 * c;                                                  \
      vector[c] = place < (width) ? VECTOR(column, place) : (REAL)0;                            \
    }                                                                                           \
    UNROLL for (int r = 0; r < 4; r++) {                                                        \
      const REAL weight = weights[OWN_ROW(r)][column];                                          \
      UNROLL for (int c = 0; c < 4; c++) results[r][c] += weight * vector[c];                   \
    }                                                                                           \
  }

#define STORE_ROW(to, step, width, r, factor)                                                   \
  UNROLL for (int c = 0; c < 4; c++) {                                                          \
    const i64 place = chunk + LANE + 32 * c;                                                    \
    if (place < (width)) {                                                                      \
      REAL value = (REAL)alpha * ((factor) * results[r][c]);                                    \
      if (beta != 0) value += (REAL)beta * LOAD(DTYPE, to, place * (step));                     \
      STORE(DTYPE, to, place * (step), value);                                                  \
    }                                                                                           \
  }
#define CLEAR_RESULTS                    \
  REAL results[4][4];                    \
  UNROLL for (int r = 0; r < 4; r++)     \
    UNROLL for (int c = 0; c < 4; c++) results[r][c] = 0;

#define QUERY_AT(t, place) LOAD(DTYPE, q, n * q_n + h * q_h + (t) * q_t + (place) * q_d)
#define KEY_AT(s, place) LOAD(DTYPE, k, n * k_n + g * k_h + (s) * k_s + (place) * k_d)
#define VALUE_AT(s, place) LOAD(DTYPE, v, n * v_n + g * v_h + (s) * v_s + (place) * v_e)
#define ROW_QUERY(row, place) (first + (row) < queries ? (REAL)QUERY_AT(first + (row), place) : (REAL)0)
#define COLUMN_KEY(column, place) (passing + (column) < end ? (REAL)KEY_AT(passing + (column), place) : (REAL)0)
#define COLUMN_VALUE(column, place) (REAL)VALUE_AT(passing + (column), place)

#if !IS_BACKWARD
#define PART_OF_ROW (THREAD_ID % 8)
#define ROW_OF_PART (THREAD_ID / 8)
KERNEL(BLOCK)
void attend(PARAMETERS) {
  IN_SHARED
  SHARED REAL parts[ROWS][8];
  SHARED REAL top[ROWS];
  SHARED REAL total[ROWS];
  SHARED REAL shrink[ROWS];
  const i64 unit = BLOCK_ID(0) / blocks, first = BLOCK_ID(0) % blocks * ROWS, chunk = BLOCK_ID(1) * WIDTH;
  const i64 n = unit / heads, h = unit % heads, g = h / group;
  if (n >= batch) return;
  const i64 length = LENGTH_OF(n), last = least(first + ROWS, queries) - 1;
  const i64 begin = clipped(first + past - left, length), end = clipped(last + past + right + 1, length);
  CLEAR_RESULTS
  if (THREAD_ID < ROWS) {
    top[THREAD_ID] = NOTHING;
    total[THREAD_ID] = 0;
  }
  for (i64 passing = begin; passing < end; passing += COLUMNS) {
    REAL sums[4][2];
    PRODUCTS(sums, d, ROW_QUERY, COLUMN_KEY)
    UNROLL for (int r = 0; r < 4; r++)
      UNROLL for (int c = 0; c < 2; c++) {
        const i64 t = first + OWN_ROW(r), s = passing + LANE + 32 * c;
        const REAL score = sums[r][c] * (REAL)scale;
        weights[OWN_ROW(r)][LANE + 32 * c] = SEES(t, s) ? (REAL)MASKED(score, t, s) : NOTHING;
      }
    BARRIER();
    REAL largest = NOTHING;
    UNROLL for (int c = 0; c < COLUMNS / 8; c++) largest = fmax(largest, weights[ROW_OF_PART][PART_OF_ROW + 8 * c]);
    parts[ROW_OF_PART][PART_OF_ROW] = largest;
    BARRIER();
    largest = top[ROW_OF_PART];
    UNROLL for (int c = 0; c < 8; c++) largest = fmax(largest, parts[ROW_OF_PART][c]);
    const REAL base = largest == NOTHING ? (REAL)0 : largest;
    REAL sum = 0;
    UNROLL for (int c = 0; c < COLUMNS / 8; c++) {
      const REAL weight = exp(weights[ROW_OF_PART][PART_OF_ROW + 8 * c] - base);
      weights[ROW_OF_PART][PART_OF_ROW + 8 * c] = weight;
      sum += weight;
    }
    BARRIER();
    parts[ROW_OF_PART][PART_OF_ROW] = sum;
    BARRIER();
    if (PART_OF_ROW == 0) {
      const REAL less = exp(top[ROW_OF_PART] - base);
      sum = 0;
      for (int c = 0; c < 8; c++) sum += parts[ROW_OF_PART][c];
      shrink[ROW_OF_PART] = less;
      total[ROW_OF_PART] = total[ROW_OF_PART] * less + sum;
      top[ROW_OF_PART] = largest;
    }
    BARRIER();
    UNROLL for (int r = 0; r < 4; r++)
      UNROLL for (int c = 0; c < 4; c++) results[r][c] *= shrink[OWN_ROW(r)];
    ADD_WEIGHTED(results, (int)least(COLUMNS, end - passing), e, COLUMN_VALUE)
  }
  BARRIER();
  UNROLL for (int r = 0; r < 4; r++) {
    const i64 t = first + OWN_ROW(r);
    const REAL whole = total[OWN_ROW(r)];
    if (t < queries) {
      GLOBAL DTYPE *to = y + n * y_n + h * y_h + t * y_t;
      STORE_ROW(to, y_e, e, r, (whole == 0 ? (REAL)0 : 1 / whole))
#if HAS_LSE
      if (LANE == 0 && chunk == 0)
        lse[n * lse_n + h * lse_h + t * lse_t] = whole == 0 ? NOTHING : top[OWN_ROW(r)] + log(whole);
#endif
    }
  }
}
#else
#define SLOPE_AT(t, place) LOAD(DTYPE, dy, n * dy_n + h * dy_h + (t) * dy_t + (place) * dy_e)
#define ROW_SLOPE(row, place) (first + (row) < queries ? (REAL)SLOPE_AT(first + (row), place) : (REAL)0)
#define COLUMN_VALUE_OR_0(column, place) (passing + (column) < end ? (REAL)VALUE_AT(passing + (column), place) : (REAL)0)
#define KEY_OF_COLUMN(column, place) (REAL)KEY_AT(passing + (column), place)
#define ROW_KEY(row, place) (first + (row) < length ? (REAL)KEY_AT(first + (row), place) : (REAL)0)
#define ROW_VALUE(row, place) (first + (row) < length ? (REAL)VALUE_AT(first + (row), place) : (REAL)0)
#define COLUMN_QUERY(column, place) (passing + (column) < end ? (REAL)QUERY_AT(passing + (column), place) : (REAL)0)
#define COLUMN_SLOPE(column, place) (passing + (column) < end ? (REAL)SLOPE_AT(passing + (column), place) : (REAL)0)
#define QUERY_OF_COLUMN(column, place) (REAL)QUERY_AT(passing + (column), place)
#define SLOPE_OF_COLUMN(column, place) (REAL)SLOPE_AT(passing + (column), place)
#define DELTA_OF(t) ((GLOBAL const REAL *)workspace)[(n * heads + h) * queries + (t)]
/* lse of a query that sees nothing is -infinity, as its scores are */
FUNCTION REAL weight_of(REAL score, REAL lse) { return score == NOTHING ? (REAL)0 : exp(score - lse); }
#define WEIGHT(score, t, s) \
  weight_of((REAL)MASKED((score) * (REAL)scale, t, s), lse[n * lse_n + h * lse_h + (t) * lse_t])

/* sum(dy y) of each query, by one thread */
KERNEL(BLOCK)
void prepare(PARAMETERS) {
  const i64 row = BLOCK_ID(0) * BLOCK + THREAD_ID;
  if (row >= rows_of_all) return;
  const i64 t = row % queries, h = row / queries % heads, n = row / queries / heads;
  REAL sum = 0;
  for (i64 place = 0; place < e; place++)
    sum += (REAL)LOAD(DTYPE, y, n * y_n + h * y_h + t * y_t + place * y_e) * (REAL)SLOPE_AT(t, place);
  ((GLOBAL REAL *)workspace)[row] = sum;
}

KERNEL(BLOCK)
void gradient_of_queries(PARAMETERS) {
  IN_SHARED
  const i64 unit = BLOCK_ID(0) / blocks, first = BLOCK_ID(0) % blocks * ROWS, chunk = BLOCK_ID(1) * WIDTH;
  const i64 n = unit / heads, h = unit % heads, g = h / group;
  if (n >= batch || chunk >= d) return;
  const i64 length = LENGTH_OF(n), last = least(first + ROWS, queries) - 1;
  const i64 begin = clipped(first + past - left, length), end = clipped(last + past + right + 1, length);
  CLEAR_RESULTS
  for (i64 passing = begin; passing < end; passing += COLUMNS) {
    REAL scores[4][2], slopes[4][2];
    PRODUCTS(scores, d, ROW_QUERY, COLUMN_KEY)
    PRODUCTS(slopes, e, ROW_SLOPE, COLUMN_VALUE_OR_0)
    UNROLL for (int r = 0; r < 4; r++)
      UNROLL for (int c = 0; c < 2; c++) {
        const i64 t = first + OWN_ROW(r), s = passing + LANE + 32 * c;
        REAL weight = 0;
        if (SEES(t, s)) weight = WEIGHT(scores[r][c], t, s) * (slopes[r][c] - DELTA_OF(t));
        weights[OWN_ROW(r)][LANE + 32 * c] = weight;
      }
    ADD_WEIGHTED(results, (int)least(COLUMNS, end - passing), d, KEY_OF_COLUMN)
  }
  UNROLL for (int r = 0; r < 4; r++) {
    const i64 t = first + OWN_ROW(r);
    if (t < queries) {
      GLOBAL DTYPE *to = dq + n * dq_n + h * dq_h + t * dq_t;
      STORE_ROW(to, dq_d, d, r, (REAL)scale)
    }
  }
}

/* The loop of both kernels of keys: over the heads of a group and the queries that may see any of the rows. */
#define OVER_QUERIES(BODY)                                                                               \
  const i64 unit = BLOCK_ID(0) / key_blocks, first = BLOCK_ID(0) % key_blocks * ROWS, chunk = BLOCK_ID(1) * WIDTH; \
  const i64 key_heads = heads / group, n = unit / key_heads, g = unit % key_heads;                       \
  if (n >= batch) return;                                                                                \
  const i64 length = LENGTH_OF(n), last = least(first + ROWS, length) - 1;                               \
  const i64 begin = clipped(first - right - past, queries);                                              \
  const i64 end = first <= last ? clipped(last + left - past + 1, queries) : 0;                          \
  CLEAR_RESULTS                                                                                          \
  for (i64 h = g * group; h < (g + 1) * group; h++)                                                      \
    for (i64 passing = begin; passing < end; passing += COLUMNS) {                                       \
      REAL scores[4][2];                                                                                 \
      PRODUCTS(scores, d, ROW_KEY, COLUMN_QUERY)                                                         \
      BODY                                                                                               \
    }
#define WEIGHTS_OF_KEYS(VALUE)                                                                           \
  UNROLL for (int r = 0; r < 4; r++)                                                                     \
    UNROLL for (int c = 0; c < 2; c++) {                                                                 \
      const i64 s = first + OWN_ROW(r), t = passing + LANE + 32 * c;                                     \
      REAL weight = 0;                                                                                   \
      if (SEES(t, s)) weight = WEIGHT(scores[r][c], t, s) * VALUE;                                       \
      weights[OWN_ROW(r)][LANE + 32 * c] = weight;                                                       \
    }

KERNEL(BLOCK)
void gradient_of_keys(PARAMETERS) {
  IN_SHARED
  if (BLOCK_ID(1) * WIDTH >= d) return;
  OVER_QUERIES(REAL slopes[4][2]; PRODUCTS(slopes, e, ROW_VALUE, COLUMN_SLOPE)
               WEIGHTS_OF_KEYS((slopes[r][c] - DELTA_OF(t)))
               ADD_WEIGHTED(results, (int)least(COLUMNS, end - passing), d, QUERY_OF_COLUMN))
  UNROLL for (int r = 0; r < 4; r++) {
    const i64 s = first + OWN_ROW(r);
    if (s < keys) {
      GLOBAL DTYPE *to = dk + n * dk_n + g * dk_h + s * dk_s;
      STORE_ROW(to, dk_d, d, r, (REAL)scale)
    }
  }
}

KERNEL(BLOCK)
void gradient_of_values(PARAMETERS) {
  IN_SHARED
  if (BLOCK_ID(1) * WIDTH >= e) return;
  OVER_QUERIES(WEIGHTS_OF_KEYS(1) ADD_WEIGHTED(results, (int)least(COLUMNS, end - passing), e, SLOPE_OF_COLUMN))
  UNROLL for (int r = 0; r < 4; r++) {
    const i64 s = first + OWN_ROW(r);
    if (s < keys) {
      GLOBAL DTYPE *to = dv + n * dv_n + g * dv_h + s * dv_s;
      STORE_ROW(to, dv_e, e, r, (REAL)1)
    }
  }
}
#endif

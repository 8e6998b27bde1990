/* Results so far along an axis. What a text of the user's gives before this one:
 *
 *   REAL, NOTHING             the type of the arithmetic, the result over no element
 *   scan_fold(a, b)           two results as one, a of earlier elements
 *   PARAMETERS                those of every kernel
 *   PLACE(row)                statements that make pointers x0, x1, ... to where a row begins
 *   VALUE(i)                  what is folded for element i of the row
 *   LOAD_VECTOR(into, i)      the same for the VECTOR elements from i on, all of which there are
 *   PUT(i, value), PUT_VECTOR(i, values)
 *   IS_ALIGNED                whether vectors may be loaded and stored as such
 *   IS_EXCLUSIVE, THREADS_OF_ROW, VECTOR, STEPS
 *
 * along     a thread block has a part of a row: STEPS vectors of every thread at a time, scanned within threads, within
 *           warps by exchanges, then over warps and steps
 * across    a thread has a part of a row
 *
 * A row in parts takes three launches: the results of all parts, the results so far of these, and the rows themselves.
 */

/* `before` and `whole` of every thread of a warp: the fold of the threads before it, and of all threads */
#define SCAN_SUBGROUP(own, before, whole)                           \
  {                                                                 \
    before = NOTHING;                                               \
    whole = own;                                                    \
    UNROLL for (int d = 1; d < 32; d <<= 1) {                       \
      REAL other;                                                   \
      EXCHANGE(REAL, whole, d, other)                               \
      if (THREAD_ID & d) {                                          \
        before = scan_fold(other, before);                          \
        whole = scan_fold(other, whole);                            \
      } else {                                                      \
        whole = scan_fold(whole, other);                            \
      }                                                             \
    }                                                               \
  }

#define SUBGROUPS (THREADS_OF_ROW / 32)
#define CHUNK (THREADS_OF_ROW * VECTOR * STEPS)

/* `body` for a chunk of the row from `base` on, with the values of the thread, all of it loaded before */
#define LOAD_CHUNK                                                                       \
  REAL values[STEPS * VECTOR];                                                           \
  UNROLL for (int u = 0; u < STEPS; u++) {                                               \
    const i64 first = base + (i64)(u * THREADS_OF_ROW + THREAD_ID) * VECTOR;             \
    if (is_aligned && first + VECTOR <= end) {                                           \
      LOAD_VECTOR(values + u * VECTOR, first)                                            \
    } else {                                                                             \
      UNROLL for (int v = 0; v < VECTOR; v++)                                            \
        values[u * VECTOR + v] = first + v < end ? VALUE(first + v) : NOTHING;           \
    }                                                                                    \
  }

/* before[u]: the fold of all elements of the chunk before the thread's vector u; `total`: of the whole chunk */
#define SCAN_CHUNK                                                                       \
  REAL before[STEPS], total;                                                             \
  UNROLL for (int u = 0; u < STEPS; u++) {                                               \
    REAL own = values[u * VECTOR], whole;                                                \
    UNROLL for (int v = 1; v < VECTOR; v++) own = scan_fold(own, values[u * VECTOR + v]); \
    SCAN_SUBGROUP(own, before[u], whole)                                                 \
    if (THREAD_ID % 32 == 0) space[u * SUBGROUPS + THREAD_ID / 32] = whole;              \
  }                                                                                      \
  BARRIER();                                                                             \
  {                                                                                      \
    const int lane = THREAD_ID % 32;                                                     \
    REAL own = lane < STEPS * SUBGROUPS ? space[lane] : NOTHING, earlier;                \
    SCAN_SUBGROUP(own, earlier, total)                                                   \
    BARRIER();                                                                           \
    if (THREAD_ID < STEPS * SUBGROUPS) space[lane] = earlier;                            \
  }                                                                                      \
  BARRIER();                                                                             \
  UNROLL for (int u = 0; u < STEPS; u++)                                                 \
    before[u] = scan_fold(space[u * SUBGROUPS + THREAD_ID / 32], before[u]);             \
  BARRIER();

#if IS_ALONG

KERNEL(THREADS_OF_ROW) void totals(PARAMETERS) {
  EXCHANGE_SPACE(THREADS_OF_ROW)
  SHARED REAL space[32];
  const i64 row = BLOCK_ID(0), part = BLOCK_ID(1);
  PLACE(row)
  const int is_aligned = IS_ALIGNED;
  const i64 start = part * per_part, end = start + per_part < n ? start + per_part : n;
  REAL sofar = NOTHING;
  for (i64 base = start; base < end; base += CHUNK) {
    LOAD_CHUNK
    SCAN_CHUNK
    sofar = scan_fold(sofar, total);
  }
  if (THREAD_ID == 0) ((GLOBAL REAL *)workspace)[row * parts + part] = sofar;
}

KERNEL(THREADS_OF_ROW) void scan(PARAMETERS) {
  EXCHANGE_SPACE(THREADS_OF_ROW)
  SHARED REAL space[32];
  const i64 row = BLOCK_ID(0), part = BLOCK_ID(1);
  PLACE(row)
  const int is_aligned = IS_ALIGNED;
  const i64 start = part * per_part, end = start + per_part < n ? start + per_part : n;
  REAL sofar = parts > 1 ? ((GLOBAL REAL *)workspace)[row * parts + part] : NOTHING;
  for (i64 base = start; base < end; base += CHUNK) {
    LOAD_CHUNK
    SCAN_CHUNK
    UNROLL for (int u = 0; u < STEPS; u++) {
      const i64 first = base + (i64)(u * THREADS_OF_ROW + THREAD_ID) * VECTOR;
      REAL running = scan_fold(sofar, before[u]);
      UNROLL for (int v = 0; v < VECTOR; v++) {
        const REAL next = scan_fold(running, values[u * VECTOR + v]);
        values[u * VECTOR + v] = IS_EXCLUSIVE ? running : next;
        running = next;
      }
      if (is_aligned && first + VECTOR <= end) {
        PUT_VECTOR(first, (values + u * VECTOR))
      } else {
        UNROLL for (int v = 0; v < VECTOR; v++) {
          if (first + v < end) PUT(first + v, values[u * VECTOR + v]);
        }
      }
    }
    sofar = scan_fold(sofar, total);
  }
}

/* the totals of a row's parts become the results before each: a warp to a row, neighbouring parts to a thread */
KERNEL(32) void join(PARAMETERS) {
  EXCHANGE_SPACE(32)
  GLOBAL REAL *of_row = (GLOBAL REAL *)workspace + BLOCK_ID(0) * parts;
  const i64 share = (parts + 31) / 32, from = THREAD_ID * share;
  const i64 to = from + share < parts ? from + share : parts;
  REAL own = NOTHING, before, whole;
  for (i64 part = from; part < to; part++) own = scan_fold(own, of_row[part]);
  SCAN_SUBGROUP(own, before, whole)
  for (i64 part = from; part < to; part++) {
    const REAL here = of_row[part];
    of_row[part] = before;
    before = scan_fold(before, here);
  }
}

#else

/* rows are numbered so that neighbouring threads have neighbouring rows; the totals of a part lie together */
#define WALK(body)                                                                              \
  for (i64 base = start; base < end; base += STEPS) {                                           \
    REAL values[STEPS];                                                                         \
    UNROLL for (int u = 0; u < STEPS; u++) values[u] = base + u < end ? VALUE(base + u) : NOTHING; \
    UNROLL for (int u = 0; u < STEPS; u++) {                                                    \
      if (base + u < end) {                                                                     \
        const REAL next = scan_fold(running, values[u]);                                        \
        body;                                                                                   \
        running = next;                                                                         \
      }                                                                                         \
    }                                                                                           \
  }

KERNEL(THREADS_OF_ROW) void totals(PARAMETERS) {
  const i64 row = BLOCK_ID(0) * THREADS_OF_ROW + THREAD_ID, part = BLOCK_ID(1);
  if (row < rows) {
    PLACE(row)
    const i64 start = part * per_part, end = start + per_part < n ? start + per_part : n;
    REAL running = NOTHING;
    WALK((void)0)
    ((GLOBAL REAL *)workspace)[part * rows + row] = running;
  }
}

KERNEL(THREADS_OF_ROW) void join(PARAMETERS) {
  const i64 row = BLOCK_ID(0) * THREADS_OF_ROW + THREAD_ID;
  if (row < rows) {
    GLOBAL REAL *of_row = (GLOBAL REAL *)workspace + row;
    REAL before = NOTHING;
    for (i64 part = 0; part < parts; part++) {
      const REAL here = of_row[part * rows];
      of_row[part * rows] = before;
      before = scan_fold(before, here);
    }
  }
}

KERNEL(THREADS_OF_ROW) void scan(PARAMETERS) {
  const i64 row = BLOCK_ID(0) * THREADS_OF_ROW + THREAD_ID, part = BLOCK_ID(1);
  if (row < rows) {
    PLACE(row)
    const i64 start = part * per_part, end = start + per_part < n ? start + per_part : n;
    REAL running = parts > 1 ? ((GLOBAL REAL *)workspace)[part * rows + row] : NOTHING;
    WALK(PUT(base + u, IS_EXCLUSIVE ? running : next))
  }
}

#endif

/* Which of the indices belong to a range of the table's rows, in their order: count them, then list them.
 *
 * FIND(i) is the statements that make index_place and row_place, where index i and its row of dy are. The thread block of a
 * range goes through all indices; a thread takes LIST of them that follow each other, so that lists keep the order.
 *
 *   workspace    for each range how many belong to it, and where its list begins; the ranges with long lists; then the
 *                lists: places of dy's rows, and the rows of the table that they belong to
 */
#ifdef __OPENCL_VERSION__
#define SHARED_POINTER __local
#else
#define SHARED_POINTER
#endif
#define LIST 4
#define COUNTS ((GLOBAL i64 *)workspace)
#define STARTS (COUNTS + ranges)
#define CROWDED (STARTS + ranges)
#define PLACES (CROWDED + ranges)
#define ROWS (PLACES + count)
#define IS_WANTED(index) ((index) >= first && (index) < last && (index) != padding)

/* the sum over the thread block's threads, the same for all of them; `shared` has an element for each */
FUNCTION i64 group_total(SHARED_POINTER i64 *shared, i64 mine) {
  BARRIER();
  shared[THREAD_ID] = mine;
  BARRIER();
  for (int width = THREADS_ / 2; width > 0; width /= 2) {
    if (THREAD_ID < width) shared[THREAD_ID] += shared[THREAD_ID + width];
    BARRIER();
  }
  return shared[0];
}

/* the sum over the threads before this one of a thread block of `threads`; the sum over all goes to *total */
FUNCTION i64 group_before(SHARED_POINTER i64 *shared, i64 mine, i64 *total, int threads) {
  BARRIER();
  shared[THREAD_ID] = mine;
  BARRIER();
  for (int step = 1; step < threads; step *= 2) {
    const i64 other = THREAD_ID >= step ? shared[THREAD_ID - step] : 0;
    BARRIER();
    shared[THREAD_ID] += other;
    BARRIER();
  }
  *total = shared[threads - 1];
  return shared[THREAD_ID] - mine;
}

KERNEL(THREADS_) void count_range(SIGNATURE) {
  SHARED i64 shared[THREADS_];
  const i64 first = BLOCK_ID(0) * per_range, last = first + per_range < rows ? first + per_range : rows;
  i64 found = 0;
  indices += base0;
  for (i64 i = THREAD_ID; i < count; i += THREADS_) {
    FIND(i)
    const i64 index = indices[index_place];
    (void)row_place;
    found += IS_WANTED(index);
  }
  found = group_total(shared, found);
  if (THREAD_ID == 0) COUNTS[BLOCK_ID(0)] = found;
}

KERNEL(THREADS_) void list_range(SIGNATURE) {
  SHARED i64 shared[THREADS_];
  const i64 first = BLOCK_ID(0) * per_range, last = first + per_range < rows ? first + per_range : rows;
  i64 end = 0;
  indices += base0;
  for (i64 range = THREAD_ID; range < BLOCK_ID(0); range += THREADS_) end += COUNTS[range];
  end = group_total(shared, end);
  if (THREAD_ID == 0) STARTS[BLOCK_ID(0)] = end;
  for (i64 begin = 0; begin < count; begin += THREADS_ * LIST) {
    i64 wanted[LIST], places[LIST], found = 0, all, at;
    for (int j = 0; j < LIST; ++j) {
      const i64 i = begin + THREAD_ID * LIST + j;
      wanted[j] = -1;
      if (i < count) {
        FIND(i)
        const i64 index = indices[index_place];
        places[j] = row_place;
        if (IS_WANTED(index)) {
          wanted[j] = index;
          ++found;
        }
      }
    }
    at = end + group_before(shared, found, &all, THREADS_);
    for (int j = 0; j < LIST; ++j) {
      if (wanted[j] >= 0) {
        PLACES[at] = places[j];
        ROWS[at] = wanted[j];
        ++at;
      }
    }
    end += all;
  }
}

/* the ranges whose lists have more than `most` entries, one after the other, then -1 */
KERNEL(THREADS_) void list_crowded(SIGNATURE) {
  SHARED i64 shared[THREADS_];
  i64 end = 0;
  for (i64 begin = 0; begin < ranges; begin += THREADS_) {
    const i64 range = begin + THREAD_ID;
    const int is_crowded = range < ranges && COUNTS[range] > most;
    i64 all;
    const i64 before = group_before(shared, is_crowded, &all, THREADS_);
    if (is_crowded) CROWDED[end + before] = range;
    end += all;
  }
  for (i64 range = end + THREAD_ID; range < ranges; range += THREADS_) CROWDED[range] = -1;
}

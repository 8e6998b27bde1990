/* CTC loss and its gradient: a thread block for each sequence, a few labels for each thread, times one after the other.
 *
 * Defines: X, the type of x; NUMBER, that of arithmetic; LABEL, TIMES, COUNT, those of targets and lengths; LOGITS and PROBS, what
 * x is; CONCATENATED; ZERO_INFINITY; REDUCED, 1 for a sum and 2 for a mean; FORWARD; SIGNATURE, the parameters of all functions.
 * BLOCK threads of `ctc_recursion` have PER labels each; ROW_THREADS are those of a row of x; JOINT, labels and one more that
 * shared memory has room for, 0 where that is not enough; X_STEP and DX_STEP, between symbols in memory; LOG2_OF_E.
 *
 *   ctc_labels      the labels of a sequence, whether they are all there, and lists of those that are equal
 *   ctc_rows        for a time of a sequence the logarithms of the probabilities of its labels and of the blank
 *   ctc_recursion   states from the first time to the last, and at the same time, in other blocks, from the last to the first
 *   ctc_losses      the sum over the sequences
 *   ctc_gradient    for a time of a sequence the probability of each symbol given the labels, and dx
 *
 * States are logarithms to the base 2, relative to about the greatest one two times before, so that their precision does
 * not depend on the length of the sequence. Label i, of thread i / PER, is kept at i % PER * step + i / PER.
 */
#define LEAST ((NUMBER)f32_of_bits(0xff800000u)) /* -infinity */
#define NO_NUMBER ((NUMBER)f32_of_bits(0x7fc00000u))
#define PER_ROW (PER * step)
#define SLOT(i) ((i) % PER * step + (i) / PER)
#define TIMES_OF(n) META[(n) * 3]
#define COUNT_OF(n) META[(n) * 3 + 1]
#define IS_GOOD(n) META[(n) * 3 + 2]
#define META ((GLOBAL i64 *)(workspace + at_meta))
#define LOSSES ((GLOBAL SCALE *)(workspace + at_losses))
#define SYMBOLS ((GLOBAL i32 *)(workspace + at_symbols)) /* of the labels */
#define NEXT ((GLOBAL i32 *)(workspace + at_next))       /* the next label that is the same symbol, or -1 */
#define FIRST ((GLOBAL i32 *)(workspace + at_first))     /* the first label that is a symbol, or -1 */
#define NORMS ((GLOBAL NUMBER *)(workspace + at_norms))
#define BLANK_LOGS ((GLOBAL NUMBER *)(workspace + at_blank_logs))
#define LOGS ((GLOBAL NUMBER *)(workspace + at_logs))
#define ALPHAS ((GLOBAL NUMBER *)(workspace + at_alphas)) /* rows of labels, each with its row of blanks behind it */
#define BETAS ((GLOBAL NUMBER *)(workspace + at_betas))

/* the greatest of all threads, and the sum over them; the same for all, and the same from run to run */
#define FOLD_THREADS(type, value, other, combined)                     \
  for (int distance = 16; distance > 0; distance /= 2) {               \
    type other;                                                        \
    EXCHANGE(type, value, distance, other)                             \
    value = combined;                                                  \
  }                                                                    \
  if (ROW_THREADS > 32) {                                              \
    BARRIER();                                                         \
    if (THREAD_ID % 32 == 0) parts[THREAD_ID / 32] = value;            \
    BARRIER();                                                         \
    value = parts[0];                                                  \
    for (int part = 1; part < ROW_THREADS / 32; ++part) {              \
      const type other = parts[part];                                  \
      value = combined;                                                \
    }                                                                  \
  }

/* The greatest of integers in shared memory, in two steps: of the threads of a warp, where there are some, then of all */
#if defined(KEEP_GREATEST) /* by a target with another language */
#elif defined(__OPENCL_VERSION__)
#define WARP_GREATEST(value) (value)
#define KEEP_GREATEST(p, value) atomic_max(p, value);
#else
#define WARP_GREATEST(value) __reduce_max_sync(0xffffffffu, value)
#define KEEP_GREATEST(p, value) \
  if (THREAD_ID % 32 == 0) atomicMax(p, value);
#endif

/* integers in the order of numbers, and back */
FUNCTION i32 key_of(f32 x) {
  const i32 bits = (i32)bits_of_f32(x);
  return bits ^ (i32)((u32)(bits >> 31) & 0x7fffffffu);
}
FUNCTION f32 number_of_key(i32 key) { return f32_of_bits((u32)(key ^ (i32)((u32)(key >> 31) & 0x7fffffffu))); }

/* The logarithm of a sum of powers: of the greatest, and one or two others. A NaN among these makes it NaN. */
FUNCTION NUMBER sum_of_two(NUMBER top, NUMBER b) {
  return top == LEAST ? b : top + (NUMBER)log2(1 + exp2(b - top));
}
FUNCTION NUMBER sum_of_three(NUMBER top, NUMBER b, NUMBER c) {
  return top == LEAST ? b + c : top + (NUMBER)log2(1 + (exp2(b - top) + exp2(c - top)));
}

FUNCTION i64 held(i64 x, i64 most) { return x < 0 ? 0 : x > most ? most : x; }

FUNCTION void store(GLOBAL X *p, i64 i, NUMBER value, SCALE alpha, SCALE beta) {
  value *= (NUMBER)alpha;
  if (beta != 0) value += (NUMBER)beta * (NUMBER)LOAD(X, p, i);
  STORE(X, p, i, value);
}

#define GROUP 256
#define TOGETHER 4 /* symbols of a thread whose numbers are on their way at once */

KERNEL(GROUP) void ctc_labels(SIGNATURE) {
  SHARED i64 sums[GROUP];
  const i64 n = BLOCK_ID(0);
  if (n >= batch) return;
  const i64 count = held(target_lengths[n * target_lengths_0], longest);
  GLOBAL i32 *symbols = SYMBOLS + n * PER_ROW;
  i64 wrong = 0, start = 0;
#if CONCATENATED
  for (i64 other = THREAD_ID; other < n; other += GROUP) start += held(target_lengths[other * target_lengths_0], longest);
  sums[THREAD_ID] = start;
  BARRIER();
  for (int width = GROUP / 2; width > 0; width /= 2) {
    if (THREAD_ID < width) sums[THREAD_ID] += sums[THREAD_ID + width];
    BARRIER();
  }
  start = sums[0];
  BARRIER();
#endif
  for (i64 i = THREAD_ID; i < count; i += GROUP) {
    i64 symbol = -1;
#if CONCATENATED
    if (start + i < labels) symbol = targets[(start + i) * targets_0];
#else
    symbol = targets[n * targets_0 + i * targets_1];
#endif
    const int is_wrong = symbol < 0 || symbol >= symbols_;
    wrong += is_wrong;
    symbols[i] = is_wrong ? 0 : (i32)symbol;
#if !FORWARD
    NEXT[n * PER_ROW + i] = -1;
#endif
  }
#if !FORWARD
  for (i64 k = THREAD_ID; k < symbols_; k += GROUP) FIRST[n * symbols_ + k] = -1;
#endif
  sums[THREAD_ID] = wrong;
  BARRIER();
  for (int width = GROUP / 2; width > 0; width /= 2) {
    if (THREAD_ID < width) sums[THREAD_ID] += sums[THREAD_ID + width];
    BARRIER();
  }
  if (THREAD_ID == 0) {
    TIMES_OF(n) = held(input_lengths[n * input_lengths_0], times_most);
    COUNT_OF(n) = count;
    IS_GOOD(n) = sums[0] == 0;
  }
#if !FORWARD
  /* each label has at most one that is the next of its symbol, which says so */
  for (i64 i = THREAD_ID; i < count; i += GROUP) {
    i64 before = i - 1;
    while (before >= 0 && symbols[before] != symbols[i]) --before;
    if (before >= 0)
      NEXT[n * PER_ROW + before] = (i32)i;
    else
      FIRST[n * symbols_ + symbols[i]] = (i32)i;
  }
#endif
}

#if LOGITS
#define LOG_OF(value) (((value) - norm) * LOG2_OF_E)
#define PROBABILITY_OF(value) exp((value) - norm)
#elif PROBS
#define LOG_OF(value) (NUMBER)log2(value)
#define PROBABILITY_OF(value) ((value) >= 0 ? (value) : NO_NUMBER)
#else
#define LOG_OF(value) ((value) * LOG2_OF_E)
#define PROBABILITY_OF(value) exp(value)
#endif

KERNEL(ROW_THREADS) void ctc_rows(SIGNATURE) {
  EXCHANGE_SPACE(ROW_THREADS)
  SHARED NUMBER parts[ROW_THREADS / 32];
  if (batch == 0) return;
  const i64 t = BLOCK_ID(0) / batch, n = BLOCK_ID(0) - t * batch;
  if (t >= TIMES_OF(n)) return;
  const i64 count = COUNT_OF(n), row = n * times_most + t;
  x += t * x_0 + n * x_1;
#if LOGITS
  NUMBER top = LEAST, norm = 0;
  for (i64 k = THREAD_ID; k < symbols_; k += ROW_THREADS) top = fmax(top, (NUMBER)LOAD(X, x, k * X_STEP));
  FOLD_THREADS(NUMBER, top, other, fmax(top, other))
  for (i64 k = THREAD_ID; k < symbols_; k += ROW_THREADS) norm += exp((NUMBER)LOAD(X, x, k * X_STEP) - top);
  FOLD_THREADS(NUMBER, norm, other, norm + other)
  norm = top + (NUMBER)log(norm);
  if (THREAD_ID == 0) NORMS[row] = norm;
#endif
  GLOBAL const i32 *symbols = SYMBOLS + n * PER_ROW;
  for (i64 i = THREAD_ID; i < count; i += ROW_THREADS) {
    LOGS[row * PER_ROW + SLOT(i)] = LOG_OF((NUMBER)LOAD(X, x, symbols[i] * X_STEP));
  }
  if (THREAD_ID == 0) BLANK_LOGS[row] = LOG_OF((NUMBER)LOAD(X, x, blank * X_STEP));
}

/* logarithms of AHEAD times from `time` on; before the first and behind the last there is nothing to read */
#define LOAD_LOGS(into, into_blank, time)                                                              \
  UNROLL_FEW for (int u = 0; u < AHEAD; ++u) {                                                         \
    const i64 there = n * times_most + (is_back ? times - 1 - ((time) + u) : (time) + u);              \
    const int is_time = (time) + u < times;                                                            \
    into_blank[u] = is_time ? BLANK_LOGS[there] : 0;                                                   \
    UNROLL_FEW for (int j = 0; j < PER; ++j) {                                                         \
      into[u][j] = is_time && is_label[j] ? LOGS[there * PER_ROW + label_slot[j]] : LEAST;             \
    }                                                                                                  \
  }
#if PER <= 8
#define UNROLL_FEW _Pragma("unroll")
#else
#define UNROLL_FEW
#endif

KERNEL(BLOCK) void ctc_recursion(SIGNATURE) {
  SHARED NUMBER edges[2][BLOCK + 1]; /* the last label of each thread, of the newest row and the one before */
  SHARED NUMBER ends[2];
  SHARED i32 greatest[3];
  if (batch == 0) return;
  const int is_back = BLOCK_ID(0) >= batch; /* then labels and times count from the last one */
  const i64 n = is_back ? BLOCK_ID(0) - batch : BLOCK_ID(0), times = TIMES_OF(n), count = COUNT_OF(n);
  GLOBAL const i32 *symbols = SYMBOLS + n * PER_ROW;
  NUMBER label[PER], blanks[PER], logs[AHEAD][PER], blank_logs[AHEAD], next_logs[AHEAD][PER], next_blank_logs[AHEAD];
  int is_label[PER], may_skip[PER];
  i32 label_slot[PER];
  SCALE total = 0;
#if !FORWARD
  int is_state[PER];
  i32 blank_slot[PER];
  GLOBAL NUMBER *states = (is_back ? BETAS : ALPHAS) + n * times_most * PER_ROW * 2;
#endif
  UNROLL_FEW for (int j = 0; j < PER; ++j) {
    const i64 i = (i64)THREAD_ID * PER + j, own = is_back ? count - 1 - i : i, before = is_back ? own + 1 : own - 1;
    is_label[j] = i < count;
    may_skip[j] = i > 0 && i < count && symbols[own] != symbols[before];
    label_slot[j] = is_label[j] ? (i32)SLOT(own) : 0;
    label[j] = LEAST;
    blanks[j] = i == 0 ? 0 : LEAST;
#if !FORWARD
    is_state[j] = i <= count;
    blank_slot[j] = i <= count ? (i32)SLOT(is_back ? count - i : i) : 0;
#endif
  }
  edges[0][THREAD_ID + 1] = edges[1][THREAD_ID + 1] = LEAST;
  if (THREAD_ID == 0) {
    edges[0][0] = edges[1][0] = ends[0] = LEAST;
    greatest[0] = greatest[1] = key_of(f32_of_bits(0xff800000u));
    greatest[2] = key_of(0); /* that of the row before the first */
  }
  BARRIER();
  int newest = 0, last = 2, oldest = 1;
  i32 row_key = key_of(0);
  NUMBER shift = 0;
  LOAD_LOGS(logs, blank_logs, 0)
  for (i64 begin = 0; begin < times; begin += AHEAD) {
    LOAD_LOGS(next_logs, next_blank_logs, begin + AHEAD)
    UNROLL_FEW for (int u = 0; u < AHEAD; ++u) {
      const i64 t = begin + u;
      if (t < times) {
        /* what is subtracted in all makes the greatest state of two times before 0: so nobody waits for it */
        const f32 top = number_of_key(greatest[last]);
        shift = top == f32_of_bits(0xff800000u) ? 0 : (NUMBER)(top - (f32)shift);
        KEEP_GREATEST(&greatest[newest], row_key)
        if (THREAD_ID == 0) greatest[oldest] = key_of(f32_of_bits(0xff800000u));
        const NUMBER blank_log = blank_logs[u] - shift;
        const NUMBER edge = edges[(t + 1) & 1][THREAD_ID];
        NUMBER most = LEAST;
#if !FORWARD
        GLOBAL NUMBER *kept = states + (is_back ? times - 1 - t : t) * PER_ROW * 2;
#endif
        UNROLL_FEW for (int j = PER - 1; j >= 0; --j) {
          const NUMBER before = j > 0 ? label[j > 0 ? j - 1 : 0] : edge;
          const NUMBER own = label[j], between = blanks[j], skipped = may_skip[j] ? before : LEAST;
          const NUMBER more = between > own ? between : own, less = between > own ? own : between;
          const NUMBER most_of_three = skipped > more ? skipped : more, middle = skipped > more ? more : skipped;
          const NUMBER to_label = sum_of_three(most_of_three, middle, less);
          const NUMBER to_blank = sum_of_two(before > between ? before : between, before > between ? between : before);
          label[j] = to_label + (logs[u][j] - shift);
          blanks[j] = to_blank + blank_log;
          most = fmax(most, fmax(label[j], blanks[j]));
#if !FORWARD
          /* backward, what is kept leaves out the logarithm of its own time, which is in the other states */
          if (is_label[j]) kept[label_slot[j]] = is_back ? to_label : label[j];
          if (is_state[j]) kept[PER_ROW + blank_slot[j]] = is_back ? to_blank : blanks[j];
#endif
        }
        edges[t & 1][THREAD_ID + 1] = label[PER - 1];
        total += shift;
        row_key = WARP_GREATEST(key_of((f32)most));
        const int free_now = oldest;
        oldest = last, last = newest, newest = free_now;
      }
      BARRIER();
    }
    UNROLL_FEW for (int u = 0; u < AHEAD; ++u) {
      blank_logs[u] = next_blank_logs[u];
      UNROLL_FEW for (int j = 0; j < PER; ++j) logs[u][j] = next_logs[u][j];
    }
  }
  UNROLL_FEW for (int j = 0; j < PER; ++j) {
    const i64 i = (i64)THREAD_ID * PER + j;
    if (i == count - 1) ends[0] = label[j];
    if (i == count) ends[1] = blanks[j];
  }
  BARRIER();
  if (THREAD_ID == 0 && !is_back) {
    const NUMBER end = ends[0] > ends[1] ? sum_of_two(ends[0], ends[1]) : sum_of_two(ends[1], ends[0]);
    SCALE loss = ((SCALE)0 - ((SCALE)end + total)) / (SCALE)LOG2_OF_E;
    if (!IS_GOOD(n)) loss = NO_NUMBER;
#if FORWARD && ZERO_INFINITY
    if (loss == -(SCALE)LEAST) loss = 0;
#endif
#if FORWARD && !REDUCED
    store(loss_, n * loss_0, (NUMBER)loss, alpha, beta);
#else
    LOSSES[n] = loss;
#endif
  }
}

#if FORWARD
KERNEL(GROUP) void ctc_losses(SIGNATURE) {
  SHARED SCALE sums[GROUP];
  SCALE sum = 0;
  for (i64 n = THREAD_ID; n < batch; n += GROUP) {
    const i64 count = COUNT_OF(n) > 1 ? COUNT_OF(n) : 1;
    sum += REDUCED == 2 ? LOSSES[n] / ((SCALE)count * (SCALE)batch) : LOSSES[n];
  }
  sums[THREAD_ID] = sum;
  BARRIER();
  for (int width = GROUP / 2; width > 0; width /= 2) {
    if (THREAD_ID < width) sums[THREAD_ID] += sums[THREAD_ID + width];
    BARRIER();
  }
  if (THREAD_ID == 0) store(loss_, 0, (NUMBER)sums[0], alpha, beta);
}
#else
#if JOINT
#define JOINT_OF(i) joint[i]
#else
#define JOINT_OF(i) alphas[SLOT(i)] /* which nobody else reads */
#endif

KERNEL(ROW_THREADS) void ctc_gradient(SIGNATURE) {
  EXCHANGE_SPACE(ROW_THREADS)
  SHARED NUMBER parts[ROW_THREADS / 32];
#if JOINT
  SHARED NUMBER joint[JOINT];
#endif
  if (batch == 0) return;
  const i64 t = BLOCK_ID(0) / batch, n = BLOCK_ID(0) - t * batch;
  if (t >= times_most) return;
  const i64 count = COUNT_OF(n), row = n * times_most + t;
  const SCALE loss = LOSSES[n];
  const int is_said = t < TIMES_OF(n), is_finite = loss - loss == 0;
  NUMBER factor = (NUMBER)LOAD(X, dloss, REDUCED ? 0 : n * dloss_0);
  if (REDUCED == 2) factor *= (NUMBER)((SCALE)1 / ((SCALE)(count > 1 ? count : 1) * (SCALE)batch));
  x += t * x_0 + n * x_1;
  dx += t * dx_0 + n * dx_1;
  if (!is_said || !is_finite) {
    const int is_zero = !is_said || (ZERO_INFINITY && loss == -(SCALE)LEAST);
    const NUMBER value = is_zero ? 0 : NO_NUMBER;
    for (i64 k = THREAD_ID; k < symbols_; k += ROW_THREADS) store(dx, k * DX_STEP, value, alpha, beta);
    return;
  }
  GLOBAL NUMBER *alphas = ALPHAS + row * PER_ROW * 2;
  GLOBAL const NUMBER *betas = BETAS + row * PER_ROW * 2;
  NUMBER top = LEAST, of_blanks = 0, of_labels = 0;
  for (i64 i = THREAD_ID; i <= count; i += ROW_THREADS) {
    const i64 slot = SLOT(i);
    if (i < count) top = fmax(top, alphas[slot] + betas[slot]);
    top = fmax(top, alphas[PER_ROW + slot] + betas[PER_ROW + slot]);
  }
  FOLD_THREADS(NUMBER, top, other, fmax(top, other))
  for (i64 i = THREAD_ID; i <= count; i += ROW_THREADS) {
    const i64 slot = SLOT(i);
    if (i < count) {
      const NUMBER own = exp2(alphas[slot] + betas[slot] - top);
      JOINT_OF(i) = own;
      of_labels += own;
    }
    of_blanks += exp2(alphas[PER_ROW + slot] + betas[PER_ROW + slot] - top);
  }
  FOLD_THREADS(NUMBER, of_blanks, other, of_blanks + other)
  FOLD_THREADS(NUMBER, of_labels, other, of_labels + other)
  BARRIER();
  const NUMBER all = of_blanks + of_labels;
#if LOGITS
  const NUMBER norm = NORMS[row];
#endif
  for (i64 begin = THREAD_ID; begin < symbols_; begin += TOGETHER * ROW_THREADS) {
    NUMBER values[TOGETHER];
    i32 first[TOGETHER];
    UNROLL for (int u = 0; u < TOGETHER; ++u) {
      const i64 k = begin + u * ROW_THREADS;
      if (k < symbols_) values[u] = (NUMBER)LOAD(X, x, k * X_STEP), first[u] = FIRST[n * symbols_ + k];
    }
    UNROLL for (int u = 0; u < TOGETHER; ++u) {
      const i64 k = begin + u * ROW_THREADS;
      if (k < symbols_) {
        NUMBER said = k == blank ? of_blanks : 0;
        for (i32 i = first[u]; i >= 0; i = NEXT[n * PER_ROW + i]) said += JOINT_OF(i);
        store(dx, k * DX_STEP, factor * (PROBABILITY_OF(values[u]) - said / all), alpha, beta);
      }
    }
  }
}
#endif

/* Products of a gathered operand and a plain one, summed: what every convolution and matrix product is.
 *
 *     y[batch, row, column] = sum over k of g[batch, row, k] * p[batch, column, k]
 *
 * A row and a k are each made of one free digit and AXES spatial ones; at spatial position `row * g_mul + k * g_step + g_off`
 * g is 0 outside of its extent (padding). Forward, rows are the pixels of y, k the channels and taps, columns y's channels; the
 * data's gradient is the same with dy for x, one stride phase at a time, so that no tap is tried in vain; for the
 * filter's gradient rows are channels and taps, and k are the pixels.
 *
 *     thread block = TG rows by TP columns, RG by RP of them in each thread's registers, TK terms at a time through shared memory
 *
 * Defined from outside: G_TYPE P_TYPE Y_TYPE (element types), SUM (type of sums), INDEX, AXES, BATCH_AXES, STRIDE_PHASES (1: rows go by
 * stride phases), TG TP TK RG RP BLOCK_THREADS, G_ALONG_K P_ALONG_K (1: neighbouring threads load neighbouring k),
 * FREE_INNER (1: the free digit of k runs fastest), ROW_FREE_INNER, LANES_ALONG_P (1: neighbouring threads store neighbouring columns),
 * LIST(name) (an initialiser {name0, name1, ...} of i32), STRIDE_LIST, BATCH_LIST (of i64), NUMBER (an unsigned type that counts rows and terms), REAL,
 * PARAMETERS, EPILOGUE_PARAMETERS, EPILOGUE(sum).
 */
#define TABLE_SIZE BLOCK_THREADS
#define FAR_OUTSIDE (-(1 << 30))
#define ALIGNED __attribute__((aligned(16)))
#define UNROLL _Pragma("unroll")
/* Elements of g that a thread loads for a tile, and their rows: neighbouring threads take neighbouring k, or rows. */
#define G_LOADS (TG * TK / BLOCK_THREADS)
#define P_LOADS ((TP * TK + BLOCK_THREADS - 1) / BLOCK_THREADS)
#define OWN_ROWS (G_ALONG_K || BLOCK_THREADS % TG != 0 ? G_LOADS : 1)
#define ITEM(n) (thread + (n) * BLOCK_THREADS)
#define ROW_LOADED(n) (G_ALONG_K ? ITEM(n) / TK : ITEM(n) % TG)
#define K_LOADED(n) (G_ALONG_K ? ITEM(n) % TK : ITEM(n) / TG)
/* The rows and columns of a thread: runs of up to four neighbours, spread over the tile. */
#define ROW_RUN (RG < 4 ? RG : 4)
#define COLUMN_RUN (RP < 4 ? RP : 4)
#define ROW_OF(i) (lane_g * ROW_RUN + (i) % ROW_RUN + (i) / ROW_RUN * (TG / (RG / ROW_RUN)))
#define COLUMN_OF(j) (lane_p * COLUMN_RUN + (j) % COLUMN_RUN + (j) / COLUMN_RUN * (TP / (RP / COLUMN_RUN)))

/* Where a row is, and where its result goes. */
typedef struct {
  i32 grid[AXES], g_mul[AXES], g_off[AXES]; /* rows along an axis, and the position in g that they begin at */
  i32 taps[AXES], g_step[AXES], t_start[AXES], t_step[AXES]; /* k along an axis: steps in g, and indices in p */
  i32 y_mul[AXES], y_off[AXES];
} Axes;

#if STRIDE_PHASES
/* Result h = row * stride + stride phase of an axis gets tap r where (h + before - r * dilation) is a multiple of the stride: from
 * the first such tap on every `period`-th one. */
FUNCTION void stride_phase_axis(
    Axes *axes, i32 axis, i32 stride_phase, i32 extent, i32 stride, i32 before, i32 dilation, i32 taps, i32 period) {
  i32 first = 0;
  i32 start = stride_phase + before;
  while (first < period && (start - first * dilation) % stride != 0) first++;
  axes->grid[axis] = stride_phase < extent ? (extent - stride_phase + stride - 1) / stride : 0;
  axes->g_mul[axis] = 1;
  axes->g_off[axis] = first < period ? (start - first * dilation) / stride : 0;
  axes->taps[axis] = first < period && first < taps ? (taps - first + period - 1) / period : 0;
  axes->g_step[axis] = -(period * dilation / stride);
  axes->t_start[axis] = first;
  axes->t_step[axis] = period;
  axes->y_mul[axis] = stride;
  axes->y_off[axis] = stride_phase;
}
#endif

/* The digits of a number of rows or terms: the free one, which runs fastest or slowest, and those of space, of which the
 * last runs fastest. */
FUNCTION void digits_of(NUMBER number, NUMBER free_extent, const i32 *extents, i32 is_free_inner, i64 *free_digit, i32 *space) {
  if (is_free_inner) {
    *free_digit = number % free_extent;
    number /= free_extent;
  }
  UNROLL
  for (i32 a = AXES - 1; a >= 0; a--) {
    space[a] = (i32)(number % (NUMBER)extents[a]);
    number /= (NUMBER)extents[a];
  }
  if (!is_free_inner) *free_digit = number;
}

FUNCTION i64 product(const i32 *extents) {
  i64 result = 1;
  UNROLL
  for (i32 a = 0; a < AXES; a++) result *= extents[a];
  return result;
}

/* EPILOGUE may use what names an element of y: batch_digits, free_digit, space and column. */
#if Y_IS_WHOLE
#define STORE_RESULT(sum, place)                                                                              \
  {                                                                                                           \
    SCALE value = (SCALE)EPILOGUE((REAL)(sum));                                                               \
    if (beta != (SCALE)0)                                                                                     \
      value = blend_whole(alpha, value, beta, (SCALE)LOAD(Y_TYPE, y, place));                                 \
    else                                                                                                      \
      value *= alpha;                                                                                         \
    STORE(Y_TYPE, y, place, value);                                                                           \
  }
#else
#define STORE_RESULT(sum, place)                                                   \
  {                                                                                \
    REAL value = (REAL)alpha * EPILOGUE((REAL)(sum));                              \
    if (beta != (SCALE)0) value += (REAL)beta * (REAL)LOAD(Y_TYPE, y, place);      \
    STORE(Y_TYPE, y, place, value);                                                \
  }
#endif

KERNEL(BLOCK_THREADS)
void contract(
    GLOBAL const G_TYPE *g, GLOBAL const P_TYPE *p, GLOBAL Y_TYPE *y EPILOGUE_PARAMETERS,
    GLOBAL u8 *workspace, SCALE alpha, SCALE beta, PARAMETERS) {
  SHARED SUM tile_g[2][TK][TG + 4] ALIGNED;
  SHARED SUM tile_p[2][TK][TP + 4] ALIGNED;
  SHARED INDEX row_place[TG], k_place_g[TABLE_SIZE], k_place_p[TABLE_SIZE];
  SHARED i32 row_space[AXES][TG], k_space[AXES][TABLE_SIZE];
  const i32 thread = THREAD_ID;
  const i32 extents[AXES] = LIST(extent);
  const i64 gs[AXES] = STRIDE_LIST(g_stride), ps[AXES] = STRIDE_LIST(p_stride), ys[AXES] = STRIDE_LIST(y_stride);
  const i64 batch_extents[BATCH_AXES] = BATCH_LIST(batch_extent);
  const i64 batch_g[BATCH_AXES] = BATCH_LIST(batch_g), batch_p[BATCH_AXES] = BATCH_LIST(batch_p);
  const i64 batch_y[BATCH_AXES] = BATCH_LIST(batch_y);
  Axes axes = {LIST(grid), LIST(g_mul), LIST(g_off), LIST(taps), LIST(g_step), LIST(t_start), LIST(t_step), LIST(y_mul), LIST(y_off)};

  /* which tile: columns fastest, so that neighbours share rows */
  i64 rest = BLOCK_ID(0);
  const i64 column_tile = rest % tiles_p;
  rest /= tiles_p;
  const i64 row_tile = rest % tiles_g;
  rest /= tiles_g;
  const i64 split = rest % splits;
  rest /= splits;
#if STRIDE_PHASES
  {
    const i32 strides[AXES] = LIST(stride), befores[AXES] = LIST(before), dilations[AXES] = LIST(dilation);
    const i32 filter[AXES] = LIST(taps), results[AXES] = LIST(result), periods[AXES] = LIST(period);
    UNROLL
    for (i32 a = AXES - 1; a >= 0; a--) {
      stride_phase_axis(
          &axes, a, (i32)(rest % strides[a]), results[a], strides[a], befores[a], dilations[a], filter[a], periods[a]);
      rest /= strides[a];
    }
  }
#endif
  const i64 group = rest;
  i64 base_g = 0, base_p = p_base, base_y = y_base;
  i64 batch_digits[BATCH_AXES];
  UNROLL
  for (i32 a = BATCH_AXES - 1; a >= 0; a--) {
    batch_digits[a] = rest % batch_extents[a];
    rest /= batch_extents[a];
    base_g += batch_digits[a] * batch_g[a];
    base_p += batch_digits[a] * batch_p[a];
    base_y += batch_digits[a] * batch_y[a];
  }
  const i64 rows = rows_free * product(axes.grid);
  const i64 first_row = row_tile * TG, first_column = column_tile * TP;
  const i64 terms = k_free * product(axes.taps);
  const i64 steps = (terms + TK - 1) / TK;
  const i64 first_step = split * split_steps;
  i64 last_step = first_step + split_steps;
  if (last_step > steps) last_step = steps;

  g += base_g;
  p += base_p + first_column * column_p;
  const i32 columns_left = (i32)(columns - first_column < TP ? columns - first_column : TP);
  for (i32 i = thread; i < TG; i += BLOCK_THREADS) {
    i64 row = first_row + i, free_digit;
    i32 space[AXES];
    INDEX place = 0;
    if (row < rows) {
      digits_of((NUMBER)row, (NUMBER)rows_free, axes.grid, ROW_FREE_INNER, &free_digit, space);
      place = (INDEX)(free_digit * row_free_g);
      UNROLL
      for (i32 a = 0; a < AXES; a++) {
        row_space[a][i] = space[a] * axes.g_mul[a] + axes.g_off[a];
        place += (INDEX)(row_space[a][i] * gs[a]);
      }
    } else {
      UNROLL
      for (i32 a = 0; a < AXES; a++) row_space[a][i] = FAR_OUTSIDE;
    }
    row_place[i] = place;
  }

  BARRIER();
  /* A thread loads the same rows, or the same k, of every tile: what it needs of the table of rows stays in registers. */
  INDEX my_place[OWN_ROWS];
  i32 my_space[OWN_ROWS][AXES];
  UNROLL
  for (i32 n = 0; n < OWN_ROWS; n++) {
    const i32 row = ROW_LOADED(n);
    my_place[n] = row_place[row];
    UNROLL
    for (i32 a = 0; a < AXES; a++) my_space[n][a] = row_space[a][row];
  }
  SUM sums[RG][RP];
  UNROLL
  for (i32 i = 0; i < RG; i++)
    UNROLL
    for (i32 j = 0; j < RP; j++) sums[i][j] = 0;
  const i32 lane_p = LANES_ALONG_P ? thread % (TP / RP) : thread / (TG / RG);
  const i32 lane_g = LANES_ALONG_P ? thread / (TP / RP) : thread % (TG / RG);
  SUM next_g[G_LOADS], next_p[P_LOADS];

  /* A stride_phase with fewer rows than others has nothing to do here. It does not return: some compilers of OpenCL take no
   * return before a barrier. */
  const i32 step_count = first_row < rows && last_step > first_step ? (i32)(last_step - first_step) : 0;
  const i32 last_left = (i32)(terms - first_step * TK); /* terms from here on; of tiles before the last all are used */
  const i64 first_term = first_step * TK;
  for (i32 step = -1; step < step_count; step++) {
    const i32 coming = step + 1;
    const i32 into = coming & 1, from = step & 1;
    u32 inside_g = 0, inside_p = 0; /* a bit for each load */
    if (coming < step_count) {
      if (coming % (TABLE_SIZE / TK) == 0) {
        BARRIER(); /* nobody reads the old table any more */
        const i64 k = first_term + coming * TK + thread;
        i64 free_digit;
        i32 space[AXES];
        INDEX place_g = 0, place_p = 0;
        if (k < terms) {
          digits_of((NUMBER)k, (NUMBER)k_free, axes.taps, FREE_INNER, &free_digit, space);
          place_g = (INDEX)(free_digit * k_free_g);
          place_p = (INDEX)(free_digit * k_free_p);
          UNROLL
          for (i32 a = 0; a < AXES; a++) {
            k_space[a][thread] = space[a] * axes.g_step[a];
            place_g += (INDEX)(k_space[a][thread] * gs[a]);
            place_p += (INDEX)((axes.t_start[a] + space[a] * axes.t_step[a]) * ps[a]);
          }
        }
        k_place_g[thread] = place_g;
        k_place_p[thread] = place_p;
        BARRIER();
      }
      const i32 table = coming % (TABLE_SIZE / TK) * TK;
      const i32 left = last_left - coming * TK;
      UNROLL
      for (i32 n = 0; n < G_LOADS; n++) {
        const i32 k = K_LOADED(n), own = OWN_ROWS == 1 ? 0 : n;
        i32 is_inside = k < left;
        UNROLL
        for (i32 a = 0; a < AXES; a++)
          is_inside &= (u32)(my_space[own][a] + k_space[a][table + k]) < (u32)extents[a];
        /* what is outside reads the first element in its place, and becomes 0 when it is stored: no branch, no wait */
        next_g[n] = (SUM)LOAD(G_TYPE, g, is_inside ? my_place[own] + k_place_g[table + k] : 0);
        inside_g |= (u32)is_inside << n;
      }
      UNROLL
      for (i32 n = 0; n < P_LOADS; n++) {
        const i32 k = P_ALONG_K ? ITEM(n) % TK : ITEM(n) / TP, column = P_ALONG_K ? ITEM(n) / TK : ITEM(n) % TP;
        const i32 is_inside = (TP * TK % BLOCK_THREADS == 0 || ITEM(n) < TP * TK) && k < left && column < columns_left;
        next_p[n] = (SUM)LOAD(P_TYPE, p, is_inside ? (INDEX)column * (INDEX)column_p + k_place_p[table + k] : 0);
        inside_p |= (u32)is_inside << n;
      }
    }
    if (step >= 0) {
      UNROLL
      for (i32 k = 0; k < TK; k++) {
        SUM left_side[RG], right_side[RP];
        UNROLL
        for (i32 i = 0; i < RG; i++) left_side[i] = tile_g[from][k][ROW_OF(i)];
        UNROLL
        for (i32 j = 0; j < RP; j++) right_side[j] = tile_p[from][k][COLUMN_OF(j)];
        UNROLL
        for (i32 i = 0; i < RG; i++)
          UNROLL
          for (i32 j = 0; j < RP; j++) sums[i][j] += left_side[i] * right_side[j];
      }
    }
    if (coming < step_count) {
      UNROLL
      for (i32 n = 0; n < G_LOADS; n++)
        tile_g[into][K_LOADED(n)][ROW_LOADED(n)] = inside_g >> n & 1 ? next_g[n] : (SUM)0;
      UNROLL
      for (i32 n = 0; n < P_LOADS; n++)
        if (TP * TK % BLOCK_THREADS == 0 || ITEM(n) < TP * TK)
          tile_p[into][P_ALONG_K ? ITEM(n) % TK : ITEM(n) / TP][P_ALONG_K ? ITEM(n) / TK : ITEM(n) % TP] =
              inside_p >> n & 1 ? next_p[n] : (SUM)0;
    }
    BARRIER();
  }

  UNROLL
  for (i32 i = 0; i < RG; i++) {
    const i64 row = first_row + ROW_OF(i);
    if (row >= rows) continue;
    i64 free_digit;
    i32 space[AXES];
    digits_of((NUMBER)row, (NUMBER)rows_free, axes.grid, ROW_FREE_INNER, &free_digit, space);
    i64 place = base_y + free_digit * row_free_y;
    UNROLL
    for (i32 a = 0; a < AXES; a++) {
      space[a] = space[a] * axes.y_mul[a] + axes.y_off[a];
      place += space[a] * ys[a];
    }
    UNROLL
    for (i32 j = 0; j < RP; j++) {
      const i64 column = first_column + COLUMN_OF(j);
      if (column >= columns) continue;
      if (splits > 1) {
        ((GLOBAL SUM *)workspace)[((split * batches + group) * rows + row) * columns + column] = sums[i][j];
      } else {
        STORE_RESULT(sums[i][j], (INDEX)(place + column * column_y));
      }
    }
  }
}

/* Adds the partial sums of all splits, in their order. */
KERNEL(BLOCK_THREADS)
void finish(
    GLOBAL const G_TYPE *g, GLOBAL const P_TYPE *p, GLOBAL Y_TYPE *y EPILOGUE_PARAMETERS,
    GLOBAL u8 *workspace, SCALE alpha, SCALE beta, PARAMETERS) {
  const i64 ys[AXES] = STRIDE_LIST(y_stride), batch_extents[BATCH_AXES] = BATCH_LIST(batch_extent);
  const i64 batch_y[BATCH_AXES] = BATCH_LIST(batch_y);
  const i32 grid[AXES] = LIST(grid), y_mul[AXES] = LIST(y_mul), y_off[AXES] = LIST(y_off);
  const i64 rows = rows_free * product(grid);
  const i64 results = batches * rows * columns;
  const i64 item = BLOCK_ID(0) * BLOCK_THREADS + THREAD_ID;
  if (item >= results) return;
  GLOBAL const SUM *parts = (GLOBAL const SUM *)workspace;
  SUM sum = 0;
  for (i64 split = 0; split < splits; split++) sum += parts[split * results + item];
  const i64 column = item % columns, row = item / columns % rows;
  i64 rest = item / columns / rows, place = y_base, free_digit;
  i64 batch_digits[BATCH_AXES];
  i32 space[AXES];
  UNROLL
  for (i32 a = BATCH_AXES - 1; a >= 0; a--) {
    batch_digits[a] = rest % batch_extents[a];
    place += batch_digits[a] * batch_y[a];
    rest /= batch_extents[a];
  }
  digits_of((NUMBER)row, (NUMBER)rows_free, grid, ROW_FREE_INNER, &free_digit, space);
  place += free_digit * row_free_y + column * column_y;
  UNROLL
  for (i32 a = 0; a < AXES; a++) {
    space[a] = space[a] * y_mul[a] + y_off[a];
    place += space[a] * ys[a];
  }
  STORE_RESULT(sum, (INDEX)place);
}

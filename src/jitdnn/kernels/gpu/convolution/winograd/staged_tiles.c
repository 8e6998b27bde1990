/* The same as tiles.c where neighbours in memory are neighbours along the last axis: a thread block takes STAGED_TILES tiles
 * of STAGED_ROWS rows of tiles, of STAGED_CHANNELS channels, through shared memory. Threads that follow each other read
 * neighbours of the tensor, and write neighbouring channels. Only without dilation along the last axis.
 *
 * A thread reads the same positions of every channel that it reads, so that where these are is found once. */
#define STAGED_COLUMNS ((STAGED_TILES - 1) * M_B + WINDOW_B)
#define STAGED_POSITIONS (STAGED_ROWS * WINDOW_A * STAGED_COLUMNS)
#define STAGED_PARTS ((STAGED_POSITIONS + STAGED_CHANNELS - 1) / STAGED_CHANNELS)
KERNEL(STAGED_WARPS * STAGED_CHANNELS)
void NAME(ARGUMENTS) {
  BEGIN_LAUNCH();
#if IS_SCALED
  BEGIN_SCALED(SIDE, BLOCK_ID(0) == 0 && BLOCK_ID(1) == 0 && BLOCK_ID(2) == 0 && THREAD_ID == 0)
#endif
  SHARED REAL stage[STAGED_POSITIONS * STAGED_PITCH];
  const u32 blocks_b = ((u32)tiles_b + STAGED_TILES - 1) / STAGED_TILES, block = (u32)BLOCK_ID(0);
  const int first_channel = (int)(block / blocks_b * STAGED_CHANNELS), first_tile = (int)(block % blocks_b * STAGED_TILES);
  const int lane = THREAD_ID % STAGED_CHANNELS, warp = THREAD_ID / STAGED_CHANNELS;
  const int channel = first_channel + lane, first_b = first_tile * M_B + (int)OF(offset_b);
  const int group = channel / (int)OF(group_channels), of_group = channel - group * (int)OF(group_channels);
  const int rows = (int)(images * tiles_a), row_step = (int)(GRID_SIZE(1) * GRID_SIZE(2)) * STAGED_ROWS;
  /* of the channels that this thread reads, which there may be fewer of; others read the first again */
  const int channels_left = min((int)OF(channels) - first_channel, STAGED_CHANNELS) - warp;
  GLOBAL const ELEMENT *const of_warp = TENSOR + (channels_left > 0 ? first_channel + warp : 0) * OF(c);
  i64 steps[STAGED_TURNS];
  UNROLL for (int turn = 0; turn < STAGED_TURNS; ++turn)
    steps[turn] = turn * STAGED_WARPS < channels_left ? turn * STAGED_WARPS * OF(c) : 0;
  for (int first_row = (int)(BLOCK_ID(1) * GRID_SIZE(2) + BLOCK_ID(2)) * STAGED_ROWS; first_row < rows;
       first_row += row_step) {
    REAL values[STAGED_PARTS][STAGED_TURNS];
    UNROLL for (int n = 0; n < STAGED_PARTS; ++n) {
      const int position = n * STAGED_CHANNELS + lane, line = position / STAGED_COLUMNS;
      const int row = first_row + line / WINDOW_A, image = (int)((u32)row / (u32)tiles_a);
      const int tile_a = row - image * (int)tiles_a, residue_a = tile_a / (int)steps_a;
      const int at_a = (tile_a - residue_a * (int)steps_a) * M_A * (int)dilation_a + residue_a + (int)OF(offset_a) +
                       line % WINDOW_A * (int)dilation_a;
      const int at_b = first_b + position % STAGED_COLUMNS;
      const int is_there =
          row < rows && at_a >= 0 && at_a < (int)OF(extent_a) && at_b >= 0 && at_b < (int)OF(extent_b);
      /* no branch stands between the loads, so that all are in flight at once */
      GLOBAL const ELEMENT *const from = of_warp + (is_there ? image * OF(n) + at_a * OF(h) + at_b * OF(w) : 0);
      UNROLL for (int turn = 0; turn < STAGED_TURNS; ++turn) {
        const REAL value = (REAL)LOAD(ELEMENT, from, steps[turn]);
        values[n][turn] = is_there ? value : (REAL)0;
      }
    }
    BARRIER();
    UNROLL for (int n = 0; n < STAGED_PARTS; ++n)
      UNROLL for (int turn = 0; turn < STAGED_TURNS; ++turn)
        if (turn * STAGED_WARPS < channels_left && n * STAGED_CHANNELS + lane < STAGED_POSITIONS)
          stage[(n * STAGED_CHANNELS + lane) * STAGED_PITCH + turn * STAGED_WARPS + warp] = values[n][turn];
    BARRIER();
    for (int tile = warp; tile < STAGED_ROWS * STAGED_TILES; tile += STAGED_WARPS) {
      const int line = tile / STAGED_TILES, along = tile % STAGED_TILES, row = first_row + line;
      if (row >= rows || first_tile + along >= (int)tiles_b || channel >= (int)OF(channels)) continue;
      REAL data[WINDOW_A * WINDOW_B], points[POINTS];
      UNROLL for (int i = 0; i < WINDOW_A; ++i)
        UNROLL for (int j = 0; j < WINDOW_B; ++j)
          data[i * WINDOW_B + j] =
              stage[((line * WINDOW_A + i) * STAGED_COLUMNS + along * M_B + j) * STAGED_PITCH + lane];
#if IS_SCALED
      UNROLL for (int i = 0; i < WINDOW_A * WINDOW_B; ++i) {
        most = larger(most, data[i]);
        data[i] = data[i] * scale.first * scale.second;
      }
#endif
      TRANSFORM(data, points);
      const i64 place = group * OF(to_group) + ((i64)row * tiles_b + first_tile + along) * OF(to_row) + of_group;
#if IS_SCALED
      GLOBAL u16 *const to = (GLOBAL u16 *)(workspace + OF(to)) + place;
      UNROLL for (int point = 0; point < POINTS; ++point)
        PUT_HALVES(to + point * OF(to_point), OF(between), points[point])
#else
      GLOBAL REAL *const to = (GLOBAL REAL *)(workspace + OF(to)) + place;
      UNROLL for (int point = 0; point < POINTS; ++point) to[point * OF(to_point)] = points[point];
#endif
    }
  }
#if IS_SCALED
  END_SCALED(SIDE)
#endif
}
#undef STAGED_COLUMNS
#undef STAGED_POSITIONS
#undef STAGED_PARTS

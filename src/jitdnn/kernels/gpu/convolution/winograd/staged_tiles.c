/* The same as tiles.c where neighbours in memory are neighbours along the last axis: a thread block takes a row of
 * STAGED_TILES tiles of STAGED_CHANNELS channels through shared memory. Threads that follow each other read neighbours of
 * the tensor, and write neighbouring channels. Only without dilation along the last axis. */
#define STAGED_COLUMNS ((STAGED_TILES - 1) * M_B + WINDOW_B)
#define STAGED_ITEMS (STAGED_CHANNELS * WINDOW_A * STAGED_COLUMNS)
KERNEL(256)
void NAME(ARGUMENTS) {
  BEGIN_LAUNCH();
#if IS_SCALED
  BEGIN_SCALED(SIDE, BLOCK_ID(0) == 0 && BLOCK_ID(1) == 0 && BLOCK_ID(2) == 0 && THREAD_ID == 0)
#endif
  SHARED REAL stage[WINDOW_A * STAGED_COLUMNS * STAGED_PITCH];
  const int blocks_b = ((int)tiles_b + STAGED_TILES - 1) / STAGED_TILES, block = (int)BLOCK_ID(0);
  const int first_channel = block / blocks_b * STAGED_CHANNELS, first_tile = block % blocks_b * STAGED_TILES;
  const int own = THREAD_ID % STAGED_CHANNELS, own_tile = THREAD_ID / STAGED_CHANNELS;
  const int channel = first_channel + own, tile_b = first_tile + own_tile;
  const int is_own = channel < (int)OF(channels) && tile_b < (int)tiles_b;
  const int group = channel / (int)OF(group_channels), of_group = channel - group * (int)OF(group_channels);
  for (i64 row = BLOCK_ID(1) * GRID_SIZE(2) + BLOCK_ID(2); row < images * tiles_a; row += GRID_SIZE(1) * GRID_SIZE(2)) {
    const i64 image = row / tiles_a;
    const int tile_a = (int)(row - image * tiles_a), residue_a = tile_a / (int)steps_a;
    const int first_a = (tile_a - residue_a * (int)steps_a) * M_A * (int)dilation_a + residue_a + (int)OF(offset_a);
    const int first_b = first_tile * M_B + (int)OF(offset_b);
    GLOBAL const ELEMENT *const of_image = TENSOR + image * OF(n) + first_channel * OF(c) + first_a * OF(h) + first_b * OF(w);
    BARRIER();
    UNROLL for (int n = 0; n < (STAGED_ITEMS + 255) / 256; ++n) {
      const int item = n * 256 + THREAD_ID;
      const int column = item % STAGED_COLUMNS, rest = item / STAGED_COLUMNS, i = rest % WINDOW_A, c = rest / WINDOW_A;
      const int at_a = first_a + i * (int)dilation_a, at_b = first_b + column;
      const int is_there = at_a >= 0 && at_a < (int)OF(extent_a) && at_b >= 0 && at_b < (int)OF(extent_b) &&
                           first_channel + c < (int)OF(channels) && item < STAGED_ITEMS;
      const i64 place = c * OF(c) + i * dilation_a * OF(h) + column * OF(w);
      const REAL value = is_there ? (REAL)LOAD(ELEMENT, of_image, place) : (REAL)0;
      if (item < STAGED_ITEMS) stage[(i * STAGED_COLUMNS + column) * STAGED_PITCH + c] = value;
    }
    BARRIER();
    if (is_own) {
      REAL data[WINDOW_A * WINDOW_B], points[POINTS];
      UNROLL for (int i = 0; i < WINDOW_A; ++i)
        UNROLL for (int j = 0; j < WINDOW_B; ++j)
          data[i * WINDOW_B + j] = stage[(i * STAGED_COLUMNS + own_tile * M_B + j) * STAGED_PITCH + own];
#if IS_SCALED
      UNROLL for (int i = 0; i < WINDOW_A * WINDOW_B; ++i) {
        most = larger(most, data[i]);
        data[i] = data[i] * scale.first * scale.second;
      }
#endif
      TRANSFORM(data, points);
      const i64 place = group * OF(to_group) + (row * tiles_b + tile_b) * OF(to_row) + of_group;
#if IS_SCALED
      GLOBAL u16 *const to = (GLOBAL u16 *)(workspace + OF(to)) + place;
      UNROLL for (int point = 0; point < POINTS; ++point) PUT_HALVES(to + point * OF(to_point), OF(between), points[point])
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
#undef STAGED_ITEMS

/* The same as results.c where neighbours of the result in memory are neighbours along the last axis; see
 * staged_tiles.c. */
#define STAGED_COLUMNS (STAGED_TILES * M_B)
#define STAGED_POSITIONS (STAGED_ROWS * M_A * STAGED_COLUMNS)
KERNEL(STAGED_WARPS * STAGED_CHANNELS)
void finish_tiles(ARGUMENTS) {
  BEGIN_LAUNCH();
  SHARED REAL stage[STAGED_POSITIONS * STAGED_PITCH];
  const u32 blocks_b = ((u32)tiles_b + STAGED_TILES - 1) / STAGED_TILES, block = (u32)BLOCK_ID(0);
  const int first_channel = (int)(block / blocks_b * STAGED_CHANNELS), first_tile = (int)(block % blocks_b * STAGED_TILES);
  const int lane = THREAD_ID % STAGED_CHANNELS, warp = THREAD_ID / STAGED_CHANNELS, own_channel = first_channel + lane;
  const int group = own_channel / (int)result_group_channels, of_group = own_channel - group * (int)result_group_channels;
  const int rows = (int)(images * tiles_a), row_step = (int)GRID_SIZE(1) * STAGED_ROWS;
  for (int first_row = (int)BLOCK_ID(1) * STAGED_ROWS; first_row < rows; first_row += row_step) {
    BARRIER();
    for (int tile = warp; tile < STAGED_ROWS * STAGED_TILES; tile += STAGED_WARPS) {
      const int line = tile / STAGED_TILES, along = tile % STAGED_TILES, row = first_row + line;
      if (row >= rows || first_tile + along >= (int)tiles_b || own_channel >= (int)result_channels) continue;
      GLOBAL const REAL *const from = (GLOBAL const REAL *)(workspace + products) + group * products_group +
                                      ((i64)row * tiles_b + first_tile + along) * products_row + of_group;
      REAL points[POINTS], made[M_A * M_B];
      UNROLL for (int point = 0; point < POINTS; ++point) points[point] = from[point * products_point];
      to_results(points, made);
      UNROLL for (int i = 0; i < M_A; ++i)
        UNROLL for (int j = 0; j < M_B; ++j)
          stage[((line * M_A + i) * STAGED_COLUMNS + along * M_B + j) * STAGED_PITCH + lane] = made[i * M_B + j];
    }
    BARRIER();
    UNROLL for (int n = 0; n < (STAGED_POSITIONS + STAGED_CHANNELS - 1) / STAGED_CHANNELS; ++n) {
      const int position = n * STAGED_CHANNELS + lane, line = position / STAGED_COLUMNS;
      const int row = first_row + line / M_A;
      const i64 image = (u32)row / (u32)tiles_a;
      const int tile_a = (int)(row - image * tiles_a), residue_a = tile_a / (int)steps_a;
      const int at_a = (tile_a - residue_a * (int)steps_a) * M_A * (int)dilation_a + residue_a +
                       line % M_A * (int)dilation_a;
      const int at_b = first_tile * M_B + position % STAGED_COLUMNS;
      const int is_there = position < STAGED_POSITIONS && row < rows && at_a < (int)result_extent_a &&
                           at_b < (int)result_extent_b;
      const i64 of_position = image * result_n + at_a * result_h + at_b * result_w;
      UNROLL for (int c = 0; c < STAGED_CHANNELS; c += STAGED_WARPS) {
        const i64 channel = first_channel + c + warp;
        if (is_there && c + warp < STAGED_CHANNELS && channel < result_channels) {
          const i64 place = of_position + channel * result_c;
          const REAL sum = stage[position * STAGED_PITCH + c + warp];
          REAL value = (REAL)alpha * (REAL)(EPILOGUE(sum));
          if (beta != 0) value += (REAL)beta * (REAL)LOAD(ELEMENT, result, place);
          STORE(ELEMENT, result, place, value);
        }
      }
    }
  }
}
#undef STAGED_COLUMNS
#undef STAGED_POSITIONS

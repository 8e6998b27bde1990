/* The same as finish_tiles where neighbours of the result in memory are neighbours along the last axis; see
 * staged_tiles.c. */
#define STAGED_COLUMNS (STAGED_TILES * M_B)
#define STAGED_ITEMS (STAGED_CHANNELS * M_A * STAGED_COLUMNS)
KERNEL(256)
void finish_tiles(ARGUMENTS) {
  BEGIN_LAUNCH();
  SHARED REAL stage[M_A * STAGED_COLUMNS * STAGED_PITCH];
  const int blocks_b = ((int)tiles_b + STAGED_TILES - 1) / STAGED_TILES, block = (int)BLOCK_ID(0);
  const int first_channel = block / blocks_b * STAGED_CHANNELS, first_tile = block % blocks_b * STAGED_TILES;
  const int own = THREAD_ID % STAGED_CHANNELS, own_tile = THREAD_ID / STAGED_CHANNELS;
  const int own_channel = first_channel + own, tile_b = first_tile + own_tile;
  const int is_own = own_channel < (int)result_channels && tile_b < (int)tiles_b;
  const int group = own_channel / (int)result_group_channels, of_group = own_channel - group * (int)result_group_channels;
  for (i64 row = BLOCK_ID(1); row < images * tiles_a; row += GRID_SIZE(1)) {
    const i64 image = row / tiles_a;
    const int tile_a = (int)(row - image * tiles_a), residue_a = tile_a / (int)steps_a;
    const int first_a = (tile_a - residue_a * (int)steps_a) * M_A * (int)dilation_a + residue_a;
    BARRIER();
    if (is_own) {
      GLOBAL const REAL *const from = (GLOBAL const REAL *)(workspace + products) + group * products_group +
                                      (row * tiles_b + tile_b) * products_row + of_group;
      REAL points[POINTS], made[M_A * M_B];
      UNROLL for (int point = 0; point < POINTS; ++point) points[point] = from[point * products_point];
      to_results(points, made);
      UNROLL for (int i = 0; i < M_A; ++i)
        UNROLL for (int j = 0; j < M_B; ++j)
          stage[(i * STAGED_COLUMNS + own_tile * M_B + j) * STAGED_PITCH + own] = made[i * M_B + j];
    }
    BARRIER();
    UNROLL for (int n = 0; n < (STAGED_ITEMS + 255) / 256; ++n) {
      const int item = n * 256 + THREAD_ID;
      const int column = item % STAGED_COLUMNS, rest = item / STAGED_COLUMNS, i = rest % M_A, c = rest / M_A;
      const i64 channel = first_channel + c;
      const int at_a = first_a + i * (int)dilation_a, at_b = first_tile * M_B + column;
      if (item < STAGED_ITEMS && channel < result_channels && at_a < (int)result_extent_a && at_b < (int)result_extent_b) {
        const i64 place = image * result_n + channel * result_c + at_a * result_h + at_b * result_w;
        const REAL sum = stage[(i * STAGED_COLUMNS + column) * STAGED_PITCH + c];
        REAL value = (REAL)alpha * (REAL)(EPILOGUE(sum));
        if (beta != 0) value += (REAL)beta * (REAL)LOAD(ELEMENT, result, place);
        STORE(ELEMENT, result, place, value);
      }
    }
  }
}
#undef STAGED_COLUMNS
#undef STAGED_ITEMS

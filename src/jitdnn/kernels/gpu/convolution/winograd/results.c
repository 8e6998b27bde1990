/* The results of a tile, of one channel. */
KERNEL(256)
void finish_tiles(ARGUMENTS) {
  BEGIN_LAUNCH();
  const u32 unit = (u32)BLOCK_ID(0) * 256u + (u32)THREAD_ID;
  if (unit >= (u32)tiles_b * (u32)result_channels) return;
  const u32 tile_b = unit / (u32)result_channels, channel = unit - tile_b * (u32)result_channels;
  const u32 group = channel / (u32)result_group_channels, of_group = channel - group * (u32)result_group_channels;
  const int residue_b = (int)(tile_b / (u32)steps_b);
  const int first_b = ((int)tile_b - residue_b * (int)steps_b) * M_B * (int)dilation_b + residue_b;
  for (i64 row = BLOCK_ID(1); row < images * tiles_a; row += GRID_SIZE(1)) {
    const i64 image = (u32)row / (u32)tiles_a;
    const int tile_a = (int)(row - image * tiles_a), residue_a = tile_a / (int)steps_a;
    const int first_a = (tile_a - residue_a * (int)steps_a) * M_A * (int)dilation_a + residue_a;
    GLOBAL const REAL *const from = (GLOBAL const REAL *)(workspace + products) + group * products_group +
                                    (row * tiles_b + tile_b) * products_row + of_group;
    REAL points[POINTS], made[M_A * M_B];
    UNROLL for (int point = 0; point < POINTS; ++point) points[point] = from[point * products_point];
    to_results(points, made);
    UNROLL for (int i = 0; i < M_A; ++i) {
      const int at_a = first_a + i * (int)dilation_a;
      UNROLL for (int j = 0; j < M_B; ++j) {
        const int at_b = first_b + j * (int)dilation_b;
        if (at_a < (int)result_extent_a && at_b < (int)result_extent_b) {
          const i64 place = image * result_n + channel * result_c + at_a * result_h + at_b * result_w;
          const REAL sum = made[i * M_B + j];
          REAL value = (REAL)alpha * (REAL)(EPILOGUE(sum));
          if (beta != 0) value += (REAL)beta * (REAL)LOAD(ELEMENT, result, place);
          STORE(ELEMENT, result, place, value);
        }
      }
    }
  }
}

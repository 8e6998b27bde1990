/* Tiles of a tensor to their points: a thread takes LANES channels of a tile, neighbouring threads neighbouring channels.
 * Positions outside of the tensor are zero. Behind the macros NAME, TENSOR, SIDE (which operand), WINDOW_A, WINDOW_B,
 * TRANSFORM, OF(name) for the numbers of the tensor, and PUT. */
KERNEL(256)
void NAME(ARGUMENTS) {
  BEGIN_LAUNCH();
#if IS_SCALED
  BEGIN_SCALED(SIDE, BLOCK_ID(0) == 0 && BLOCK_ID(1) == 0 && BLOCK_ID(2) == 0 && THREAD_ID == 0)
#endif
  const u32 vectors = (u32)(OF(channels) / LANES), unit = (u32)BLOCK_ID(0) * 256u + (u32)THREAD_ID;
  if (unit >= (u32)tiles_b * vectors) return;
  const u32 tile_b = unit / vectors, channel = (unit - tile_b * vectors) * LANES;
  const u32 group = channel / (u32)OF(group_channels), of_group = channel - group * (u32)OF(group_channels);
  const int residue_b = (int)(tile_b / (u32)steps_b);
  const int first_b = ((int)tile_b - residue_b * (int)steps_b) * M_B * (int)dilation_b + residue_b + (int)OF(offset_b);
  GLOBAL const ELEMENT *const of_channel = TENSOR + channel * OF(c);
#if LANES > 1
  const int is_vector = OF(is_vector) && IS_ALIGNED(TENSOR, LANES * sizeof(ELEMENT));
#endif
  for (i64 row = BLOCK_ID(1) * GRID_SIZE(2) + BLOCK_ID(2); row < images * tiles_a; row += GRID_SIZE(1) * GRID_SIZE(2)) {
    const i64 image = (u32)row / (u32)tiles_a;
    const int tile_a = (int)(row - image * tiles_a), residue_a = tile_a / (int)steps_a;
    const int first_a = (tile_a - residue_a * (int)steps_a) * M_A * (int)dilation_a + residue_a + (int)OF(offset_a);
    REAL data[LANES][WINDOW_A * WINDOW_B], points[LANES][POINTS];
    UNROLL for (int i = 0; i < WINDOW_A; ++i) {
      const int at_a = first_a + i * (int)dilation_a;
      const int is_row = at_a >= 0 && at_a < (int)OF(extent_a);
      GLOBAL const ELEMENT *const of_row = of_channel + image * OF(n) + at_a * OF(h);
      UNROLL for (int j = 0; j < WINDOW_B; ++j) {
        const int at_b = first_b + j * (int)dilation_b;
        const int is_there = is_row && at_b >= 0 && at_b < (int)OF(extent_b);
        GLOBAL const ELEMENT *const from = of_row + at_b * OF(w);
#if LANES > 1
        if (is_vector) {
          if (is_there) {
            const VECTOR loaded = LOAD_VECTOR(from);
            UNROLL for (int lane = 0; lane < LANES; ++lane)
              data[lane][i * WINDOW_B + j] = (REAL)JOIN(NUMBER_OF_, ELEMENT)(loaded.items[lane]);
          } else {
            UNROLL for (int lane = 0; lane < LANES; ++lane) data[lane][i * WINDOW_B + j] = 0;
          }
        } else
#endif
          UNROLL for (int lane = 0; lane < LANES; ++lane)
            data[lane][i * WINDOW_B + j] = is_there ? (REAL)LOAD(ELEMENT, from, lane * OF(c)) : (REAL)0;
      }
    }
    UNROLL for (int lane = 0; lane < LANES; ++lane) {
#if IS_SCALED
      UNROLL for (int i = 0; i < WINDOW_A * WINDOW_B; ++i) {
        most = larger(most, data[lane][i]);
        data[lane][i] = data[lane][i] * scale.first * scale.second;
      }
#endif
      TRANSFORM(data[lane], points[lane]);
    }
    {
      PUT(points, group * OF(to_group) + (row * tiles_b + tile_b) * OF(to_row) + of_group)
    }
  }
#if IS_SCALED
  END_SCALED(SIDE)
#endif
}

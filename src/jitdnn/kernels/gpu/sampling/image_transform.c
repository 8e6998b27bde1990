/* Images of bytes to numbers: y = (x - mean) * scale, mirrored where the image's row of the table says so.
 *
 * A thread has all channels of a position, thread blocks share an image; neighbouring threads have neighbouring columns, so
 * that loads and stores are whole lines both where channels lie apart and where they lie side by side. A row of the table
 * is where in the mean image the image lies (row, column), and whether it is mirrored. Difference and product are rounded
 * one by one, as no compiler can fuse them: the result is NumPy's, bit by bit.
 */
KERNEL(THREADS_) void image_transform(
    GLOBAL const u8 *x, GLOBAL const i32 *table, GLOBAL const COMPUTE *mean, GLOBAL STORED *y, GLOBAL u8 *workspace,
    SCALE alpha, SCALE beta, i64 count, i64 channels, i64 height, i64 width, i64 x_image, i64 x_channel, i64 x_row,
    i64 x_column, i64 mean_channel, i64 mean_row, i64 mean_column, i64 y_image, i64 y_channel, i64 y_row, i64 y_column,
    SCALE scale) {
  const u32 position = (u32)BLOCK_ID(0) * THREADS_ + (u32)THREAD_ID;
  if (position >= (u32)(height * width)) return;
  const i64 row = position / (u32)width, column = position % (u32)width;
  for (i64 image = BLOCK_ID(1); image < count; image += GRID_SIZE(1)) {
    GLOBAL const i32 *const entry = table + 3 * image;
    const i64 from = entry[2] ? width - 1 - column : column;
    GLOBAL const u8 *const source = x + image * x_image + row * x_row + from * x_column;
    GLOBAL STORED *const target = y + image * y_image + row * y_row + column * y_column;
#if HAS_MEAN
    GLOBAL const COMPUTE *const less = mean + (entry[0] + row) * mean_row + (entry[1] + from) * mean_column;
#endif
    for (i64 channel = 0; channel < channels; ++channel) {
      COMPUTE value = (COMPUTE)source[channel * x_channel];
#if HAS_MEAN
      value = value - less[channel * mean_channel];
#endif
      STORE(Y, target, channel * y_channel, value * (COMPUTE)scale);
    }
  }
}

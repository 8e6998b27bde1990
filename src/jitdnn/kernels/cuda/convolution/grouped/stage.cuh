// Asynchronous copies of pixels of channels-last tensors into shared memory.

constexpr int CHUNK = 16 / (int)sizeof(ELEMENT);  // elements of 16 bytes

struct Strides { INDEX n, d, h, w; };

// `rows` rows of `columns` pixels from (h0, w0) on of `tile_images` images, `channels` channels of each: zeros where
// the tensor of `height` x `width` pixels has none. Rows step_h apart are neighbours, and so are columns step_w
// apart; a pixel takes `pitch` bytes, a row row_bytes, an image image_bytes. A thread copies 16 bytes of one
// column, or of every COLUMN_THREADS-th, in every ROW_THREADS-th row: at once, or COPY_BYTES at a time where f32 lies
// anywhere.
template <int channels, int tile_images, int rows, int columns, int step_h, int step_w, int pitch, int row_bytes,
          int image_bytes, int height, int width>
FUNCTION void stage_pixels(u32 shared, const ELEMENT *tensor, const Strides &strides, int image0, int h0, int w0,
                           int channel0, int all_channels, int all_images) {
    constexpr int CHUNKS = channels / CHUNK, PIXELS = BLOCK_THREADS / CHUNKS;
    constexpr int PHASE_ROWS = (rows + step_h - 1) / step_h, PHASE_COLUMNS = (columns + step_w - 1) / step_w;
    constexpr int COLUMN_PASSES = (columns + PIXELS - 1) / PIXELS,
                  COLUMN_THREADS = (columns + COLUMN_PASSES - 1) / COLUMN_PASSES, ROW_THREADS = PIXELS / COLUMN_THREADS;
    const int chunk = threadIdx.x % CHUNKS, pixel = threadIdx.x / CHUNKS, lane = pixel % COLUMN_THREADS,
              line = pixel / COLUMN_THREADS;
    const int channel = channel0 + chunk * CHUNK;
    if (line >= ROW_THREADS) return;
#pragma unroll
    for (int stage_number = 0; stage_number < COLUMN_PASSES; stage_number++) {
        const int column = lane + stage_number * COLUMN_THREADS, w = w0 + column;
        if (COLUMN_PASSES * COLUMN_THREADS > columns && column >= columns) break;
        const bool is_column = (u32)w < width && channel < all_channels;
        const u32 to = shared + (column % step_w * PHASE_COLUMNS + column / step_w) * pitch + chunk * 16;
#pragma unroll 4
        for (int i = line; i < tile_images * rows; i += ROW_THREADS) {
            const int own = tile_images > 1 ? i / rows : 0, row = tile_images > 1 ? i % rows : i;
            const int image = image0 + own, h = h0 + row;
            const bool is_inside = is_column && (u32)h < height && (tile_images == 1 || image < all_images);
            const INDEX at = (INDEX)(image / PLANES) * strides.n + (INDEX)(image % PLANES) * strides.d +
                             (INDEX)h * strides.h + (INDEX)w * strides.w;
            const u32 place = to + own * image_bytes + (row % step_h * PHASE_ROWS + row / step_h) * row_bytes;
            const ELEMENT *from = tensor + (is_inside ? at + channel : 0);
#if IS_F32 && COPY_BYTES == 4
#pragma unroll
            for (int e = 0; e < CHUNK; e++) cp_async4(place + 4 * e, from + e, is_inside);
#elif IS_F32 && COPY_BYTES == 8
            cp_async8(place, from, is_inside), cp_async8(place + 8, from + 2, is_inside);
#else
            cp_async16(place, from, is_inside);
#endif
        }
    }
}

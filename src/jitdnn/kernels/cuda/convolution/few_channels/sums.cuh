// Sums by channel of the results of fprop.cu and of their squares, in an order that sizes alone decide.
//
//     workspace    behind the fragments of the filter: [image, or one for all][block of strips][results, squares][channel]. A
//                  thread block goes through images in their order, and leaves zeros where it has no strip.
//     shared       behind what fprop has there: [warp][results, squares][channels of a warp]
//
// Macros: BY_IMAGE, SUMS_PLACE (bytes), SUMS_SHARED (bytes), SUM_BLOCKS (of strips).

constexpr int LANE_CHANNELS = 2 * TILE_N, WARP_CHANNELS = 8 * TILE_N;
typedef f32 Totals[2][LANE_CHANNELS];

// The channel of number i of a lane, relative to the first one of its warp: as results are stored.
FUNCTION int channel_of(int i, int t) {
    constexpr int full = TILE_N / 4 * 8;
    return i < full ? i / 8 * 32 + t * 8 + i % 8 : TILE_N / 4 * 32 + t * 4 + i - full;
}

FUNCTION f32 *part_of(u8 *workspace, int image, const Sizes &sizes) {
    const int row = 2 * (int)gridDim.y * BLOCK_COLUMNS;
    return (f32 *)(workspace + SUMS_PLACE) + ((i64)(BY_IMAGE ? image : 0) * SUM_BLOCKS + blockIdx.x) * row + blockIdx.y * BLOCK_COLUMNS;
}

FUNCTION void clear_parts(u8 *workspace, const Sizes &sizes) {
    const int row = (int)gridDim.y * BLOCK_COLUMNS;
#pragma unroll 1
    for (int i = threadIdx.x; i < (BY_IMAGE ? IMAGES : 1) * 2 * BLOCK_COLUMNS; i += BLOCK_THREADS)
        part_of(workspace, i / (2 * BLOCK_COLUMNS), sizes)[i / BLOCK_COLUMNS % 2 * row + i % BLOCK_COLUMNS] = 0;
}

// Write the sums of an image, and begin anew; all threads of the block do.
FUNCTION void leave_sums(Totals &totals, f32 *shared, u8 *workspace, int image, const Sizes &sizes) {
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, row = (int)gridDim.y * BLOCK_COLUMNS;
    __syncthreads();
#pragma unroll
    for (int kind = 0; kind < 2; ++kind)
#pragma unroll
        for (int i = 0; i < LANE_CHANNELS; ++i) {
            f32 total = totals[kind][i];
#pragma unroll
            for (int apart = 4; apart < 32; apart *= 2) total += shuffle_xor(total, apart);
            if (lane < 4) shared[(2 * warp + kind) * WARP_CHANNELS + channel_of(i, lane)] = total;
            totals[kind][i] = 0;
        }
    __syncthreads();
    f32 *part = part_of(workspace, image, sizes);
    for (int i = threadIdx.x; i < 2 * BLOCK_COLUMNS; i += BLOCK_THREADS) {
        const int kind = i / BLOCK_COLUMNS, column = i % BLOCK_COLUMNS;
        f32 total = 0;
        for (int other = column / WARP_CHANNELS; other < WARPS; other += COLUMN_GROUPS)
            total += shared[(2 * other + kind) * WARP_CHANNELS + column % WARP_CHANNELS];
        part[kind * row + column] = total;
    }
    __syncthreads();
}

// Adds up the parts of 32 channels, of an image or of all: 32 threads share a channel.
KERNEL2(1024, 1)
void few_channels_sums(const ELEMENT *RESTRICT x, const ELEMENT *RESTRICT w, RESULT *y EPILOGUE_PARAMETERS, u8 *workspace,
                       f64 alpha64, f64 beta64, NUMBERS) {
    begin_launch();
    const Sizes sizes = SIZES;
    __shared__ f64 of_warps[2][32][33];
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, blocks = (FILTERS + 31) / 32;
    const int group = blockIdx.x / blocks, channel = (blockIdx.x - group * blocks) * 32 + lane;
    const int row = CHANNEL_BLOCKS * BLOCK_COLUMNS;
    const f32 *parts = (const f32 *)(workspace + SUMS_PLACE) + (i64)group * SUM_BLOCKS * 2 * row + channel;
    f64 total = 0, squares = 0;
    if (channel < FILTERS)
        for (int block = warp; block < SUM_BLOCKS; block += 32)
            total += parts[(i64)block * 2 * row], squares += parts[(i64)block * 2 * row + row];
    of_warps[0][warp][lane] = total, of_warps[1][warp][lane] = squares;
    __syncthreads();
    if (warp > 1 || channel >= FILTERS) return;
    total = 0;
    for (int other = 0; other < 32; ++other) total += of_warps[warp][other][lane];
    (warp ? second_sums : first_sums)[(i64)group * FILTERS + channel] = (f32)total;
}

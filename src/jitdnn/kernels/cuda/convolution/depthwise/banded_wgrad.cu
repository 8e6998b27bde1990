// The gradient of a depthwise filter of stride 1 on the tensor cores.
//
// Of one channel and one row of taps, the product of the columns of x that tiles read and the columns of dy of the
// same tiles, summed over tiles, rows and images, has the gradients along its diagonals:
//
//     D[i][n] = sum over tiles of x[tile][i] * dy[tile][n]        dw[s] = sum of D[i][n] over i - n + SHIFT = s
//
// where i runs over the columns of the tile's blocks, n over its 8 results. A step takes STEP_ROWS rows of dy and the
// rows of x that they meet. Thread blocks go through every `splits`-th group of lines and leave partial sums in the
// workspace, [splits][taps][CHANNELS] f32, which `reduce_partials` adds in a fixed order: the results are the same in
// every run.
//
// Macros, beside those of banded_planes.cuh:
//
//     macro            unit       meaning
//     WARP_CHANNELS    channels   of a warp
//     WARP_TAP_ROWS    rows       of taps of a warp
//     TAP_WARPS        warps      of a thread block with the same channels and other rows of taps
//     SLOTS            rows       of the planes
//     PLANE, DY_PLANE  words      of a channel: of x, of dy
//     MIN_BLOCKS       blocks     that a multiprocessor shall hold at a time

constexpr int HALVES = (BLOCKS + 1) / 2, STEPS = (BLOCK_ROWS + STEP_ROWS - 1) / STEP_ROWS;
constexpr int CHANNEL_STRIPS = (CHANNELS + BLOCK_CHANNELS - 1) / BLOCK_CHANNELS;
constexpr int TAPS = H_TAPS * W_TAPS;

// `splits`: blocks that share the lines, gridDim.y
#define NUMBERS i64 splits, i64 line_count

KERNEL2(32 * WARPS, MIN_BLOCKS)
void depthwise_wgrad(const element *__restrict__ x, const element *__restrict__ dy, element *dw, u8 *workspace,
                      f64 alpha, f64 beta, NUMBERS) {
    extern __shared__ uint4 shared_memory[];
    __shared__ LineStart lines[LINES];
    u32 *shared = (u32 *)shared_memory;
    f32 *partials = (f32 *)workspace;
    bool aligned = ((u64)x | (u64)dy) % (VECTOR * sizeof(element)) == 0;
    u32 *gradients = shared + BLOCK_CHANNELS * PLANE, *zero = gradients + BLOCK_CHANNELS * DY_PLANE;
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
    int own = warp % (BLOCK_CHANNELS / WARP_CHANNELS) * WARP_CHANNELS,
        c0 = blockIdx.x % CHANNEL_STRIPS * BLOCK_CHANNELS;
    int tap_row0 = (blockIdx.x / CHANNEL_STRIPS * TAP_WARPS + warp / (BLOCK_CHANNELS / WARP_CHANNELS)) * WARP_TAP_ROWS;
    if (threadIdx.x < 4) zero[threadIdx.x] = 0;

    // the byte of the 16 that a lane gives to ldmatrix, in x (even and odd last blocks) and in dy; tiles that the
    // thread block does not have are zeros
    int item = lane % 8 + lane / 16 * 8, dy_item = lane % 16;
    bool is_item = item < LINES * SEGMENT_TILES, is_dy_item = dy_item < LINES * SEGMENT_TILES;
    int from = (own * PLANE + 4 * (item / SEGMENT_TILES * LINE_BLOCKS + item % SEGMENT_TILES)) * 4;
    int second = lane / 8 % 2 * 16;
    int dy_from = (own * DY_PLANE + 4 * dy_item) * 4;
    const u8 *bytes = (const u8 *)shared, *dy_bytes = (const u8 *)gradients, *nothing = (const u8 *)zero;

    f32 sums[WARP_CHANNELS][WARP_TAP_ROWS][HALVES][4] = {};
    using InputRows = Rows<STEP_ROWS, LINE_BLOCKS_READ, LINE_BLOCKS, SLOTS, PLANE, false>;
    InputRows rows;
    Rows<STEP_ROWS, SEGMENT_TILES, SEGMENT_TILES, 2 * STEP_ROWS, DY_PLANE, true> dy_rows;
#pragma unroll 1
    for (int line_group = blockIdx.y; line_group * (i64)LINES < line_count; line_group += gridDim.y) {
        __syncthreads();  // all warps are done with the planes and the lines
        if (threadIdx.x < LINES)
            lines[threadIdx.x] = line_start(x, (element *)dy, line_group * LINES + threadIdx.x, line_count);
        __syncthreads();
        fill<InputRows>(rows, shared, lines, c0, aligned);
        dy_rows.load(lines, c0, 0, 0, STEPS * STEP_ROWS, aligned);
#pragma unroll 1
        for (int step = 0; step < STEPS; step++) {
            int row0 = step * STEP_ROWS;
            rows.put(shared, row0 + H_TAPS - 1, ROW_FIRST, ROW_END);
            dy_rows.put(gradients, row0, 0, STEPS * STEP_ROWS);
            __syncthreads();
            if (step + 1 < STEPS) {
                rows.load(lines, c0, row0 + STEP_ROWS + H_TAPS - 1, ROW_FIRST, ROW_END, aligned);
                dy_rows.load(lines, c0, row0 + STEP_ROWS, 0, STEPS * STEP_ROWS, aligned);
            }
            if (tap_row0 >= H_TAPS) continue;
            int slot = ((row0 + tap_row0 - ROW_FIRST) % SLOTS + SLOTS) % SLOTS;
#pragma unroll
            for (int c = 0; c < WARP_CHANNELS; c++) {
                u32 b[STEP_ROWS][2];
#pragma unroll
                for (int p = 0; p < STEP_ROWS; p++) {
                    int row = (step % 2 * STEP_ROWS + p) * (LINES * SEGMENT_TILES * 16);
                    const u8 *location = dy_bytes + row + dy_from + c * (DY_PLANE * 4);
                    ldmatrix_x2_trans(b[p], is_dy_item ? location : nothing);
                }
#pragma unroll
                for (int j = 0; j < STEP_ROWS + WARP_TAP_ROWS - 1; j++) {
                    int row = row0 + tap_row0 + j;
                    if (row < ROW_FIRST || row >= ROW_END || tap_row0 + j >= STEP_ROWS + H_TAPS - 1) continue;
                    int here = slot + j % SLOTS >= SLOTS ? slot + j % SLOTS - SLOTS : slot + j % SLOTS;
                    const u8 *line = bytes + here * (LINES * LINE_BLOCKS * 16) + from + c * (PLANE * 4);
#pragma unroll
                    for (int i = 0; i < HALVES; i++) {
                        u32 a[4];
                        const u8 *location = line + 32 * i + (2 * i + 1 < BLOCKS ? second : 0);
                        ldmatrix_x4_trans(a, is_item ? location : nothing);
#pragma unroll
                        for (int p = 0; p < STEP_ROWS; p++) {
                            bool is_here = j - p >= 0 && j - p < WARP_TAP_ROWS;
                            if (is_here) multiply(sums[c][is_here ? j - p : 0][i], a, b[p]);
                        }
                    }
                }
            }
        }
    }
    // sums along the diagonals, each warp for itself
    __syncthreads();
    f32 *square = (f32 *)shared + warp * (HALVES * 128);
    f32 *part = partials + (i64)blockIdx.y * TAPS * CHANNELS;
#pragma unroll
    for (int c = 0; c < WARP_CHANNELS; c++)
#pragma unroll
        for (int r = 0; r < WARP_TAP_ROWS; r++) {
            __syncwarp();
#pragma unroll
            for (int i = 0; i < HALVES; i++)
#pragma unroll
                for (int e = 0; e < 4; e++) square[(16 * i + e / 2 * 8 + g) * 8 + 2 * t + e % 2] = sums[c][r][i][e];
            __syncwarp();
            if (tap_row0 + r >= H_TAPS || c0 + own + c >= CHANNELS) continue;
            for (int s = lane; s < W_TAPS; s += 32) {
                f32 sum = 0;
#pragma unroll
                for (int n = 0; n < 8; n++) {
                    int i = s - SHIFT + n;
                    if (i >= 0 && i < 8 * BLOCKS) sum += square[i * 8 + n];
                }
                part[(i64)((tap_row0 + r) * W_TAPS + s) * CHANNELS + c0 + own + c] = sum;
            }
        }
}

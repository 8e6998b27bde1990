// Convolution of groups of planes that lie in memory one behind the other, forward and backward to the data of stride 1.
//
// A thread block copies the planes of GROUPS groups of channels as one run of memory, whole lines in order, whatever the
// extents are. A thread then has a column of STRIP results in each of TILE_OUT channels: neighbours have neighbouring
// columns, so that shared memory is read, and the result stored, without gaps. Threads that slide down rows of their own in
// device memory would ask for as many short pieces at once as there are rows.
//
// Macros, beside those of depthwise/common.cuh:
//
//     macro            unit       meaning
//     GROUPS           groups     of channels of a thread block: of an image, and of the next one
//     OF_IMAGE         groups     of an image
//     GROUP_IN, GROUP_OUT         channels of a group, of the input and of the result
//     TILE_OUT         channels   of the result, of a thread
//     STRIP            rows       of results of a thread
//     THREAD_COUNT     threads    of a block; MIN_BLOCKS: blocks that a multiprocessor shall hold at a time
//     IS_ALIGNED       0 or 1     whether x begins at a multiple of 16 bytes, and so does the run of each block
//     W_GROUP, W_OUT, W_IN        elements of the filter from one group, channel of the result and of the input to the next
//     Y_N, Y_C, W_BASE, W_SPAN, EPILOGUE: as in depthwise/sliding.cu

constexpr int TAPS = H_TAPS * W_TAPS;
constexpr int PLANE = H_IN_EXTENT * W_IN_EXTENT;                 // elements
constexpr int STRIPS = (H_COUNT + STRIP - 1) / STRIP;
constexpr int TILES = (GROUP_OUT + TILE_OUT - 1) / TILE_OUT;
constexpr int ROWS_READ = (STRIP - 1) * H_STRIDE + H_TAPS;       // of a thread
constexpr int PIECE = 16 / (int)sizeof(element);

FUNCTION void copy_planes(element *stage, const element *from, int count) {
    const int whole = IS_ALIGNED ? count / PIECE * PIECE : 0;
    for (int i = threadIdx.x * PIECE; i < whole; i += THREAD_COUNT * PIECE) cp_async16(stage + i, from + i);
    cp_async_commit();
    for (int i = whole + threadIdx.x; i < count; i += THREAD_COUNT) stage[i] = from[i];
    cp_async_wait<0>();
}

KERNEL2(THREAD_COUNT, MIN_BLOCKS)
void convolve_planes(const element *__restrict__ x, const element *__restrict__ w, element *y EPILOGUE_KERNEL_PARAMETERS,
                     u8 *workspace, f64 alpha64, f64 beta64, i64 is_mirrored, i64 images) {
    begin_launch();
    extern __shared__ uint4 memory[];
    element *stage = (element *)memory;
    const f32 alpha = (f32)alpha64, beta = (f32)beta64;
    const i64 begin = (i64)blockIdx.x * GROUPS, end = images * OF_IMAGE;
    const int groups = end - begin < GROUPS ? (int)(end - begin) : GROUPS;
    copy_planes(stage, x + begin * (GROUP_IN * PLANE), groups * (GROUP_IN * PLANE));
    __syncthreads();
    const element *filters = w + W_BASE + (is_mirrored ? W_SPAN : 0);
    const int sign = is_mirrored ? -1 : 1;
#pragma unroll 1
    for (int item = threadIdx.x; item < groups * (TILES * STRIPS * W_COUNT); item += THREAD_COUNT) {
        const int own = item / (TILES * STRIPS * W_COUNT), first = item / (STRIPS * W_COUNT) % TILES * TILE_OUT;
        const int strip = item / W_COUNT % STRIPS, column = item % W_COUNT;
        const int n = (int)((begin + own) / OF_IMAGE), group = (int)((begin + own) % OF_IMAGE);
        const int row = H_START + strip * STRIP, w_in = (W_START + column) * W_STRIDE + W_IN_ORIGIN;
        const element *from = stage + own * (GROUP_IN * PLANE) + w_in;
        const element *filter = filters + group * (i64)W_GROUP + first * (i64)W_OUT;
        bool is_there[W_TAPS];
#pragma unroll
        for (int s = 0; s < W_TAPS; s++) is_there[s] = IN_HAS(W, w_in + s);
        f32 sums[TILE_OUT][STRIP] = {};
#pragma unroll 1
        for (int in = 0; in < GROUP_IN; in++) {
            f32 taps[TILE_OUT][TAPS];
#pragma unroll
            for (int o = 0; o < TILE_OUT; o++)
#pragma unroll
                for (int i = 0; i < TAPS; i++) {
                    const int out = TILES * TILE_OUT == GROUP_OUT || first + o < GROUP_OUT ? o : 0;
                    taps[o][i] = widen(filter[out * (i64)W_OUT + sign * (i / W_TAPS * H_TAP_STEP + i % W_TAPS * W_TAP_STEP)]);
                }
#pragma unroll
            for (int i = 0; i < ROWS_READ; i++) {
                const int h_in = row * H_STRIDE + i + H_IN_ORIGIN;
                const bool is_row = IN_HAS(H, h_in);
#pragma unroll
                for (int s = 0; s < W_TAPS; s++) {
                    const f32 value = is_row && is_there[s] ? widen(from[h_in * W_IN_EXTENT + s]) : 0.0f;
#pragma unroll
                    for (int r = i % H_STRIDE; r < H_TAPS; r += H_STRIDE) {
                        const int result = (i - r) / H_STRIDE;
                        if (i < r || result >= STRIP) continue;
#pragma unroll
                        for (int o = 0; o < TILE_OUT; o++)
                            sums[o][result] = fmaf(value, taps[o][r * W_TAPS + s], sums[o][result]);
                    }
                }
            }
            from += PLANE;
            filter += W_IN;
        }
        const int p = OUT_POSITION(W, W_START + column, 0);
        element *to = y + n * (i64)Y_N + p * (i64)W_OUT_STEP;
#pragma unroll
        for (int o = 0; o < TILE_OUT; o++) {
            if (first + o >= GROUP_OUT) break;
            const int c = group * GROUP_OUT + first + o, d = 0;
#pragma unroll
            for (int v = 0; v < STRIP; v++) {
                const int h = OUT_POSITION(H, row + v, 0);
                if (strip * STRIP + v >= H_COUNT || !OUT_HAS(H, h)) continue;
                element *location = to + c * (i64)Y_C + h * (i64)H_OUT_STEP;
                f32 value = alpha * EPILOGUE(sums[o][v], n, c, d, h, p);
                if (beta != 0) value += beta * widen(*location);
                *location = narrow(value);
            }
        }
    }
}

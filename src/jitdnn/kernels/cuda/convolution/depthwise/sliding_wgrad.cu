// The gradient of a depthwise filter on CUDA cores: rows slide through registers.
//
// A thread has THREAD_CHANNELS neighbouring channels, a sum for each of their taps, and a window of the STEPS last
// rows of dy. An item is a tile of TILE_DEPTHS x TILE_COLUMNS columns of dy over BLOCK_ROWS rows; a thread takes
// every (SPLITS * SLOTS)-th item. The threads of a block add their sums in a fixed order, and `reduce_partials` adds
// those of the blocks: the results are the same in every run. The workspace is [SPLITS][taps][CHANNELS] f32.
//
// Macros: those of sliding.cu but for the epilogue, and
//
//     UNROLLED_STEPS   steps      of the loop's body, a multiple of PREFETCH
//     SPLITS           blocks     that share the items: gridDim.y

constexpr int STRIPS = (W_COUNT + TILE_COLUMNS - 1) / TILE_COLUMNS, DEPTHS = (D_COUNT + TILE_DEPTHS - 1) / TILE_DEPTHS,
              CHUNKS = (H_COUNT + BLOCK_ROWS - 1) / BLOCK_ROWS;
constexpr int SLOTS = THREAD_COUNT / BLOCK_PACKS;
constexpr i64 ITEMS = (i64)STRIPS * DEPTHS * CHUNKS * W_PHASES * H_PHASES * D_PHASES * IMAGES;

#define NUMBERS i64 splits  // SPLITS, for the reduction

FUNCTION void add_item(const element *__restrict__ x, const element *__restrict__ dy, i64 item, int c,
                       f32 (&sums)[TAPS][THREAD_CHANNELS]) {
    i64 t = item;
    int strip = t % STRIPS;
    t /= STRIPS;
    int depth = t % DEPTHS;
    t /= DEPTHS;
    int phase_w = t % W_PHASES;
    t /= W_PHASES;
    int phase_d = t % D_PHASES;
    t /= D_PHASES;
    int n = t % IMAGES;
    t /= IMAGES;
    // what changes the number of steps is outermost, so that the threads of a warp have the same number
    int phase_h = t % H_PHASES;
    int chunk = (int)(t / H_PHASES);

    const element *source = x + n * (i64)X_N + c / MULTIPLIER * (i64)X_C;
    const element *gradient = dy + n * (i64)Y_N + c * (i64)Y_C;
    int k0 = strip * TILE_COLUMNS, e0 = depth * TILE_DEPTHS, m0 = k0 * W_STRIDE, l0 = e0 * D_STRIDE;
    int b0 = chunk * BLOCK_ROWS, b1 = min(b0 + BLOCK_ROWS, H_COUNT);

    // steps that read only padding have nothing to add
    int origin = H_IN_ORIGIN + H_IN_SLOPE * phase_h;
    int first = floor_divide(-floor_divide(origin, H_IN_PITCH), ROWS_IN);
    int last = floor_divide(floor_divide(H_IN_EXTENT - 1 - origin, H_IN_PITCH), ROWS_IN);
    int end = min(b1 - 1 + STEPS - 1, last);

    struct Step {
        InputRows x;
        Pack<THREAD_CHANNELS> dy[TILE_DEPTHS][TILE_COLUMNS];
    };
    Step prefetched[PREFETCH];
    auto load = [&](int step, Step &next) {
        bool is_step = step <= end;
        next.x.load(source, step, is_step, l0, m0, phase_d, phase_h, phase_w);
        int h = OUT_POSITION(H, step, phase_h);
#pragma unroll
        for (int e = 0; e < TILE_DEPTHS; e++) {
            int d = OUT_POSITION(D, e0 + e, phase_d);
            bool inside = is_step && step < b1 && OUT_HAS(H, h) && OUT_HAS(D, d);
            const element *row = gradient + ((OFFSET)h * (OFFSET)H_OUT_STEP + (OFFSET)d * (OFFSET)D_OUT_STEP);
#pragma unroll
            for (int q = 0; q < TILE_COLUMNS; q++) {
                int p = OUT_POSITION(W, k0 + q, phase_w);
                if (inside && OUT_HAS(W, p))
                    next.dy[e][q].template load<IS_ALIGNED>(row + (OFFSET)p * (OFFSET)W_OUT_STEP);
                else
                    next.dy[e][q].zero();
            }
        }
    };

    // slot_of(i, j): the row of the window in which step i of a round finds the row of dy that is j steps old. Rows
    // move down the window only if a round is not a multiple of its length: a move costs an instruction a number
    f32 window[STEPS][TILE_DEPTHS][TILE_COLUMNS][THREAD_CHANNELS] = {};
    auto slot_of = [](int i, int j) { return UNROLLED_STEPS % STEPS == 0 ? (i + STEPS - j) % STEPS : j; };
#pragma unroll
    for (int i = 0; i < PREFETCH; i++) load(b0 + i, prefetched[i]);
#pragma unroll 1
    for (int round = b0; round <= end; round += UNROLLED_STEPS) {
#pragma unroll
        for (int i = 0; i < UNROLLED_STEPS; i++) {
            int step = round + i;
            if (step > end) break;
            Step &here = prefetched[i % PREFETCH];
            f32 values[ROWS_IN][PLANES][COLUMNS][THREAD_CHANNELS];
            here.x.get(values);
#pragma unroll
            for (int e = 0; e < TILE_DEPTHS; e++)
#pragma unroll
                for (int q = 0; q < TILE_COLUMNS; q++) {
                    if (UNROLLED_STEPS % STEPS != 0)
#pragma unroll
                        for (int j = STEPS - 1; j > 0; j--)
#pragma unroll
                            for (int k = 0; k < THREAD_CHANNELS; k++) window[j][e][q][k] = window[j - 1][e][q][k];
                    here.dy[e][q].get(window[slot_of(i, 0)][e][q]);
                }
            // into the same registers: see `advance` of sliding.cu
            if (PREFETCH == 1 && step < end) load(step + 1, here);
            if (step >= first) {
#pragma unroll
                for (int j = 0; j < STEPS; j++)
#pragma unroll
                    for (int u = 0; u < ROWS_IN; u++) {
                        if (j * ROWS_IN + u >= H_TAPS) continue;
#pragma unroll
                        for (int z = 0; z < D_TAPS; z++)
#pragma unroll
                            for (int e = 0; e < TILE_DEPTHS; e++)
#pragma unroll
                                for (int q = 0; q < TILE_COLUMNS; q++)
#pragma unroll
                                    for (int s = 0; s < W_TAPS; s++)
#pragma unroll
                                        for (int k = 0; k < THREAD_CHANNELS; k++) {
                                            f32 &sum = sums[(z * H_TAPS + j * ROWS_IN + u) * W_TAPS + s][k];
                                            sum = fmaf(window[slot_of(i, j)][e][q][k],
                                                       values[u][e * D_STRIDE + z][q * W_STRIDE + s][k], sum);
                                        }
                    }
            }
            if (PREFETCH > 1) load(step + PREFETCH, here);
        }
    }
}

KERNEL2(THREAD_COUNT, MIN_BLOCKS)
void depthwise_wgrad(const element *__restrict__ x, const element *__restrict__ dy, element *dw, u8 *workspace,
                      f64 alpha, f64 beta, NUMBERS) {
    int slot = threadIdx.x / BLOCK_PACKS, c = (blockIdx.x * BLOCK_PACKS + threadIdx.x % BLOCK_PACKS) * THREAD_CHANNELS;
    f32 sums[TAPS][THREAD_CHANNELS] = {};
    if (slot < SLOTS) {
        i64 item = (i64)blockIdx.y * SLOTS + slot;
#pragma unroll 1
        for (; item < ITEMS; item += (i64)SPLITS * SLOTS) add_item(x, dy, item, c, sums);
    }
    // some taps at a time, so that shared memory suffices
    constexpr int WIDTH = BLOCK_PACKS * THREAD_CHANNELS,
                  TAPS_AT_ONCE = 8192 / THREAD_COUNT / THREAD_CHANNELS > 0 ? 8192 / THREAD_COUNT / THREAD_CHANNELS : 1;
    __shared__ f32 shared[TAPS_AT_ONCE * SLOTS * WIDTH];
    f32 *partials = (f32 *)workspace + (i64)blockIdx.y * TAPS * CHANNELS;
#pragma unroll
    for (int i0 = 0; i0 < TAPS; i0 += TAPS_AT_ONCE) {
        if (i0 > 0) __syncthreads();
        if (slot < SLOTS)
#pragma unroll
            for (int i = 0; i < TAPS_AT_ONCE; i++)
                if (i0 + i < TAPS)
#pragma unroll
                    for (int k = 0; k < THREAD_CHANNELS; k++)
                        shared[(i * SLOTS + slot) * WIDTH + threadIdx.x % BLOCK_PACKS * THREAD_CHANNELS + k] =
                            sums[i0 + i < TAPS ? i0 + i : 0][k];
        __syncthreads();
        for (int o = threadIdx.x; o < TAPS_AT_ONCE * WIDTH; o += THREAD_COUNT) {
            int i = o / WIDTH, k = o % WIDTH;
            if (i0 + i >= TAPS) break;
            f32 sum = 0;
            for (int j = 0; j < SLOTS; j++) sum += shared[(i * SLOTS + j) * WIDTH + k];
            partials[(i64)(i0 + i) * CHANNELS + blockIdx.x * WIDTH + k] = sum;
        }
    }
}

// Depthwise convolution, forward and backward to the data, on CUDA cores: rows slide through registers.
//
// A thread has THREAD_CHANNELS neighbouring channels of a tile of TILE_DEPTHS x TILE_COLUMNS results, and goes down
// `block_rows` blocks of rows, a chunk, of which there are `chunks` in each of `images`. A step reads ROWS_IN rows of the input and adds them to the STEPS blocks of ROWS_OUT
// rows of results that they reach. sums[j] is the block that j earlier steps have added to; from step to step sums[j
// - 1] becomes sums[j], as part of the first products, at no cost. The rows of the next PREFETCH steps are in flight
// meanwhile.
//
// Macros, beside those of sliding_rows.cuh:
//
//     macro            unit       meaning
//     PREFETCH         steps      whose rows are in flight
//     BLOCK_PACKS      packs      of THREAD_CHANNELS channels that neighbouring threads of a block have
//     THREAD_COUNT     threads    of a block; MIN_BLOCKS: blocks that a multiprocessor shall hold at a time
//     OUT_PACK         columns    of the output that are neighbours in memory and stored at once
//     CHANNELS                    of y; MULTIPLIER: channels of y of each channel of x
//     INDEX            type       of a thread's number
//     X_N, X_C, Y_N, Y_C, W_C, W_BASE  elements: strides, and the offset of the first tap
//     W_SPAN                      from the first tap in memory to the last: with `is_mirrored` they are taken from there
//     W_DENSE          0 or 1     whether the filters of all channels are contiguous
//     HAS_EPILOGUE     0 or 1     EPILOGUE(sum, n, c, d, h, w) and EPILOGUE_*PARAMETERS, _ARGUMENTS apply it

constexpr int ROWS_OUT = H_SCATTERED ? H_STRIDE : 1;
// sums[j] in step t belongs to block t + LEAD - j
constexpr int LEAD = H_SCATTERED ? STEPS - 1 : 0;

constexpr int BLOCK_START = floor_divide(H_START, ROWS_OUT);
constexpr int BLOCK_COUNT = floor_divide(H_START + H_COUNT - 1, ROWS_OUT) + 1 - BLOCK_START;
constexpr int STRIPS = (W_COUNT + TILE_COLUMNS - 1) / TILE_COLUMNS, DEPTHS = (D_COUNT + TILE_DEPTHS - 1) / TILE_DEPTHS;
constexpr int PACK_GROUPS = CHANNELS / THREAD_CHANNELS / BLOCK_PACKS;

// the tap by which row u of the input contributes to row v of block j
static constexpr __device__ int tap_of(int j, int u, int v) {
    return H_SCATTERED ? ROWS_OUT * (STEPS - 1 - j) + v : ROWS_IN * j + u;
}
// the offset of tap i in the filter of a channel
static constexpr __device__ i64 offset_of(int i) {
    return W_BASE + i / (H_TAPS * W_TAPS) * D_TAP_STEP + i / W_TAPS % H_TAPS * H_TAP_STEP + i % W_TAPS * W_TAP_STEP;
}

FUNCTION void slide(const element *__restrict__ x, const element *__restrict__ w, element *y, f32 alpha, f32 beta,
                    bool is_mirrored, INDEX images, int block_rows, INDEX chunks EPILOGUE_PARAMETERS) {
    INDEX t = (INDEX)blockIdx.x * THREAD_COUNT + threadIdx.x;
    int group = t % BLOCK_PACKS;
    t /= BLOCK_PACKS;
    int strip = t % STRIPS;
    t /= STRIPS;
    int chunk = t % chunks;
    t /= chunks;
    group += (int)(t % PACK_GROUPS) * BLOCK_PACKS;
    t /= PACK_GROUPS;
    int depth = t % DEPTHS;
    t /= DEPTHS;
    int phase_w = t % W_PHASES;
    t /= W_PHASES;
    int phase_h = t % H_PHASES;
    t /= H_PHASES;
    int phase_d = t % D_PHASES;
    t /= D_PHASES;
    if (t >= images) return;
    int n = (int)t, c = group * THREAD_CHANNELS;

    f32 taps[TAPS][THREAD_CHANNELS];
#if W_DENSE
    // the filters of a thread's channels are one run of memory, as many packs as there are taps
    f32 run[TAPS][THREAD_CHANNELS];
#pragma unroll
    for (int i = 0; i < TAPS; i++) {
        Pack<THREAD_CHANNELS> pack;
        pack.template load<IS_ALIGNED>(w + (i64)c * TAPS + i * THREAD_CHANNELS);
        pack.get(run[i]);
    }
#pragma unroll
    for (int i = 0; i < TAPS; i++)
#pragma unroll
        for (int k = 0; k < THREAD_CHANNELS; k++) {
            int one = k * TAPS + (int)offset_of(i), other = k * TAPS + (int)(W_SPAN - offset_of(i));
            taps[i][k] = is_mirrored ? run[other / THREAD_CHANNELS][other % THREAD_CHANNELS]
                                     : run[one / THREAD_CHANNELS][one % THREAD_CHANNELS];
        }
#else
    const element *from = w + (is_mirrored ? W_SPAN : 0);
    const int sign = is_mirrored ? -1 : 1;
#pragma unroll
    for (int i = 0; i < TAPS; i++)
#pragma unroll
        for (int k = 0; k < THREAD_CHANNELS; k++) taps[i][k] = widen(from[(i64)(c + k) * W_C + sign * offset_of(i)]);
#endif

    const element *source = x + n * (i64)X_N + c / MULTIPLIER * (i64)X_C;
    element *result = y + n * (i64)Y_N + c * (i64)Y_C;
    // positions of the first column and depth that the tile writes (k0, e0), and that it reads (m0, l0)
    int k0 = W_START + strip * TILE_COLUMNS, e0 = D_START + depth * TILE_DEPTHS;
    int m0 =
        (W_SCATTERED ? floor_divide(W_START, W_STRIDE) + strip * (TILE_COLUMNS / W_STRIDE) : k0 * W_STRIDE) + W_FIRST;
    int l0 =
        (D_SCATTERED ? floor_divide(D_START, D_STRIDE) + depth * (TILE_DEPTHS / D_STRIDE) : e0 * D_STRIDE) + D_FIRST;

    f32 sums[STEPS][ROWS_OUT][TILE_DEPTHS][TILE_COLUMNS][THREAD_CHANNELS] = {};
    auto store = [&](int block, const f32 (&ready)[ROWS_OUT][TILE_DEPTHS][TILE_COLUMNS][THREAD_CHANNELS]) {
#pragma unroll
        for (int v = 0; v < ROWS_OUT; v++) {
            int h = OUT_POSITION(H, block * ROWS_OUT + v, phase_h);
#pragma unroll
            for (int e = 0; e < TILE_DEPTHS; e++) {
                int d = OUT_POSITION(D, e0 + e, phase_d);
                if (!(OUT_HAS(H, h) && OUT_HAS(D, d))) continue;
                element *row = result + ((OFFSET)h * (OFFSET)H_OUT_STEP + (OFFSET)d * (OFFSET)D_OUT_STEP);
                if (OUT_PACK > 1 && IS_ALIGNED) {
#pragma unroll
                    for (int q = 0; q < TILE_COLUMNS; q += OUT_PACK) {
                        int p = OUT_POSITION(W, k0 + q, phase_w);
                        if (!OUT_HAS(W, p)) continue;
                        constexpr int WIDTH = OUT_PACK == 1 ? THREAD_CHANNELS : OUT_PACK;
                        f32 value[WIDTH];
#pragma unroll
                        for (int i = 0; i < OUT_PACK; i++) {
                            value[i] =
                                alpha * EPILOGUE(ready[v][e][q + i < TILE_COLUMNS ? q + i : 0][0], n, c, d, h, (p + i));
                            if (beta != 0) value[i] += beta * widen(row[p + i]);
                        }
                        Pack<WIDTH> pack;
                        pack.put(value);
                        pack.template store<true>(row + p);
                    }
                    continue;
                }
#pragma unroll
                for (int q = 0; q < TILE_COLUMNS; q++) {
                    int p = OUT_POSITION(W, k0 + q, phase_w);
                    if (!OUT_HAS(W, p)) continue;
                    element *location = row + (OFFSET)p * (OFFSET)W_OUT_STEP;
                    f32 value[THREAD_CHANNELS];
#pragma unroll
                    for (int k = 0; k < THREAD_CHANNELS; k++)
                        value[k] = alpha * EPILOGUE(ready[v][e][q][k], n, c + k, d, h, p);
                    if (beta != 0) {
#pragma unroll
                        for (int k = 0; k < THREAD_CHANNELS; k++) value[k] += beta * widen(location[k]);
                    }
                    Pack<THREAD_CHANNELS> pack;
                    pack.put(value);
                    pack.template store<IS_ALIGNED>(location);
                }
            }
        }
    };

    // block b is complete after step b - LEAD + STEPS - 1; steps that read only padding are left out
    int b0 = BLOCK_START + chunk * block_rows, b1 = min(b0 + block_rows, BLOCK_START + BLOCK_COUNT);
    int origin = H_IN_ORIGIN + H_IN_SLOPE * phase_h;
    int first = floor_divide(-floor_divide(origin, H_IN_PITCH), ROWS_IN);
    int last = floor_divide(floor_divide(H_IN_EXTENT - 1 - origin, H_IN_PITCH), ROWS_IN);
    int start = max(b0 - LEAD, first), end = min(b1 - 1 - LEAD + STEPS - 1, last);
    auto load = [&](int step, InputRows &rows) {
        rows.load(source, step, step <= end, l0, m0, phase_d, phase_h, phase_w);
    };
    // Adds the rows of a step to the results, and loads those of a later step into the same registers, since a copy
    // from register to register would wait for the memory. With PREFETCH > 1 the load comes behind the products:
    // before them the compiler would take other registers, and copy. With PREFETCH 1 it comes first, and behind a
    // branch, or the compiler would delay it.
    auto advance = [&](int step, InputRows &rows) {
        f32 values[ROWS_IN][PLANES][COLUMNS][THREAD_CHANNELS];
        rows.get(values);
        if (PREFETCH == 1 && step < end) load(step + 1, rows);
#pragma unroll
        for (int j = STEPS - 1; j >= 0; j--)
#pragma unroll
            for (int v = 0; v < ROWS_OUT; v++) {
#pragma unroll
                for (int e = 0; e < TILE_DEPTHS; e++)
#pragma unroll
                    for (int q = 0; q < TILE_COLUMNS; q++)
#pragma unroll
                        for (int k = 0; k < THREAD_CHANNELS; k++)
                            sums[j][v][e][q][k] = j > 0 ? sums[j > 0 ? j - 1 : 0][v][e][q][k] : 0.f;
#pragma unroll
                for (int u = 0; u < ROWS_IN; u++) {
                    if (tap_of(j, u, v) >= H_TAPS) continue;
#pragma unroll
                    for (int z = 0; z < D_TAPS; z++)
#pragma unroll
                        for (int s = 0; s < W_TAPS; s++)
#pragma unroll
                            for (int e = 0; e < TILE_DEPTHS; e++)
#pragma unroll
                                for (int q = 0; q < TILE_COLUMNS; q++) {
                                    int plane = coordinate_of(D_SCATTERED, D_STRIDE, D_STRIDE_PHASE, e, z);
                                    int column = coordinate_of(W_SCATTERED, W_STRIDE, W_STRIDE_PHASE, q, s);
                                    if (plane == NO_COORDINATE || column == NO_COORDINATE) continue;
#pragma unroll
                                    for (int k = 0; k < THREAD_CHANNELS; k++)
                                        sums[j][v][e][q][k] = fmaf(values[u][plane - D_FIRST][column - W_FIRST][k],
                                                                   taps[(z * H_TAPS + tap_of(j, u, v)) * W_TAPS + s][k],
                                                                   sums[j][v][e][q][k]);
                                }
                }
            }
        if (PREFETCH > 1) load(step + PREFETCH, rows);
        int block = step + LEAD - (STEPS - 1);
        if (block >= b0) store(block, sums[STEPS - 1]);
    };
    InputRows prefetched[PREFETCH];
#pragma unroll
    for (int i = 0; i < PREFETCH; i++) load(start + i, prefetched[i]);
#pragma unroll 1
    for (int round = start; round <= end; round += PREFETCH) {
#pragma unroll
        for (int i = 0; i < PREFETCH; i++) {
            if (round + i > end) break;
            advance(round + i, prefetched[i]);
        }
    }
    // blocks that would still need rows behind the last, and blocks that no row reaches
#pragma unroll
    for (int j = STEPS - 2; j >= 0; j--) {
        int block = end + LEAD - j;
        if (block >= b0 && block < b1) store(block, sums[j]);
    }
    int waited = end + LEAD - (STEPS - 1), begun = start + LEAD - (STEPS - 1);
    if (end + LEAD >= b1 - 1 && begun <= b0) return;
    f32 nothing[ROWS_OUT][TILE_DEPTHS][TILE_COLUMNS][THREAD_CHANNELS] = {};
#pragma unroll 1
    for (int block = b0; block < b1; block++)
        if (block > end + LEAD || (block <= waited && block < begun)) store(block, nothing);
}

KERNEL2(THREAD_COUNT, MIN_BLOCKS)
void depthwise(const element *__restrict__ x, const element *__restrict__ w, element *y EPILOGUE_KERNEL_PARAMETERS,
               u8 *workspace, f64 alpha, f64 beta, i64 is_mirrored, i64 images, i64 block_rows, i64 chunks) {
    begin_launch();
    slide(x, w, y, (f32)alpha, (f32)beta, is_mirrored, (INDEX)images, (int)block_rows,
          (INDEX)chunks EPILOGUE_ARGUMENTS);
}

// wgrad of grouped convolutions, through shared memory: for each tap, dy transposed times x.
//
// A thread block takes BLOCK_SLICES slices of SLICE_GROUPS neighbouring groups (or, of one large group, one of
// SLICE_PARTS parts of its outputs) and TILE_TAPS rows of taps. It takes one tile after the other, every WORKERS-th
// (IS_ALONE: there is one): TILE_ROWS x TILE_COLUMNS outputs of TILE_IMAGES images. STAGES tiles are in use or in flight:
//
//     stage            x: TILE_IMAGES images with 16 * IMAGE_PAD bytes behind each, of X_ROWS rows with 16 * ROW_PAD
//                      bytes behind each, of X_COLUMNS pixels; rows and columns a stride apart are neighbours
//                      dy: from Y_START on, one output after the other, with zeros up to a multiple of 16
//
// So a tap is a constant distance, and 8 outputs are in 8 different groups of four banks. A warp sums 16 channels of
// dy times 16 of x over some of the tile's steps of 16 outputs, with one fragment of dy and, for each tap, one of x.
// The warps of the same channels add their sums in shared memory, and only what is within groups is stored.

constexpr int TAPS = TAPS_R * TAPS_S, TILE_ALL = TILE_TAPS * TAPS_S;
constexpr int SLICE_IN = SLICE_GROUPS * GROUP_IN, SLICE_OUT = SLICE_GROUPS * GROUP_OUT / SLICE_PARTS;
constexpr int BLOCK_IN = BLOCK_SLICES * SLICE_IN, BLOCK_OUT = BLOCK_SLICES * SLICE_OUT;
constexpr int PARTS_IN = SLICE_IN / 16, PARTS_OUT = SLICE_OUT / 16, PARTS_TAPS = (TAPS_R + TILE_TAPS - 1) / TILE_TAPS;
constexpr int DISTINCT_WARPS = BLOCK_SLICES * PARTS_IN * PARTS_OUT, SPLITS = BLOCK_THREADS / 32 / DISTINCT_WARPS;
constexpr int ALL_IN = GROUPS_OF_CHANNELS * GROUP_IN, ALL_OUT = GROUPS_OF_CHANNELS * GROUP_OUT;
constexpr int BLOCKS =
    (GROUPS_OF_CHANNELS + BLOCK_SLICES * SLICE_GROUPS - 1) / (BLOCK_SLICES * SLICE_GROUPS) * SLICE_PARTS;
constexpr int ELEMENTS = ALL_OUT * GROUP_IN * TAPS;
constexpr int X_PITCH = 2 * BLOCK_IN + 16, Y_PITCH = 2 * BLOCK_OUT + 16;  // bytes of a pixel: an odd number of 16
constexpr int PIXELS = TILE_IMAGES * TILE_ROWS * TILE_COLUMNS, STEPS = (PIXELS + 15) / 16;
constexpr int X_ROWS = (TILE_ROWS - 1) * STRIDE_H + (TILE_TAPS - 1) * DILATION_H + 1;
constexpr int X_COLUMNS = (TILE_COLUMNS - 1) * STRIDE_W + (TAPS_S - 1) * DILATION_W + 1;
constexpr int PHASE_ROWS = (X_ROWS + STRIDE_H - 1) / STRIDE_H, PHASE_COLUMNS = (X_COLUMNS + STRIDE_W - 1) / STRIDE_W;
constexpr int ROW_BYTES = STRIDE_W * PHASE_COLUMNS * X_PITCH + 16 * ROW_PAD;
constexpr int IMAGE_BYTES = STRIDE_H * PHASE_ROWS * ROW_BYTES + 16 * IMAGE_PAD, Y_START = TILE_IMAGES * IMAGE_BYTES;
constexpr int STAGE_BYTES = Y_START + STEPS * 16 * Y_PITCH;
constexpr int ACROSS = (OUT_Q + TILE_COLUMNS - 1) / TILE_COLUMNS, DOWN = (OUT_P + TILE_ROWS - 1) / TILE_ROWS;
#define PLANES_ALL (IMAGES * PLANES)

struct Tile { int image, p, q; };

FUNCTION Tile tile_of(int unit) {
    return {unit / (DOWN * ACROSS) * TILE_IMAGES, unit / ACROSS % DOWN * TILE_ROWS, unit % ACROSS * TILE_COLUMNS};
}

FUNCTION void stage_x(u32 shared, const u16 *x, Tile tile, int first_tap, int channel, const Sizes &sizes) {
    stage_pixels<BLOCK_IN, TILE_IMAGES, X_ROWS, X_COLUMNS, STRIDE_H, STRIDE_W, X_PITCH, ROW_BYTES, IMAGE_BYTES, HEIGHT,
                 WIDTH>(
        shared, x, {X_N, X_D, X_H, X_W}, tile.image, tile.p * STRIDE_H - PAD_H + first_tap * DILATION_H,
        tile.q * STRIDE_W - PAD_W, channel, ALL_IN, PLANES_ALL);
}

FUNCTION void stage_dy(u32 shared, const u16 *dy, Tile tile, int channel, const Sizes &sizes) {
    stage_pixels<BLOCK_OUT, TILE_IMAGES, TILE_ROWS, TILE_COLUMNS, 1, 1, Y_PITCH, TILE_COLUMNS * Y_PITCH,
                 TILE_ROWS * TILE_COLUMNS * Y_PITCH, OUT_P, OUT_Q>(
        shared, dy, {Y_N, Y_D, Y_H, Y_W}, tile.image, tile.p, tile.q, channel, ALL_OUT, PLANES_ALL);
    for (int i = threadIdx.x; i < (STEPS * 16 - PIXELS) * (BLOCK_OUT / 8); i += BLOCK_THREADS)
        cp_async16(shared + (PIXELS + i / (BLOCK_OUT / 8)) * Y_PITCH + i % (BLOCK_OUT / 8) * 16, dy, false);
}

KERNEL2(BLOCK_THREADS, RESIDENT)
void grouped_wgrad(const u16 *RESTRICT x, const u16 *RESTRICT dy, u16 *dw, u8 *workspace, f64 alpha, f64 beta,
                   NUMBERS) {
    const Sizes sizes = SIZES;
    const int units = (PLANES_ALL + TILE_IMAGES - 1) / TILE_IMAGES * (DOWN * ACROSS);
    extern __shared__ uint4 shared[];
    const int block = blockIdx.x % BLOCKS, first_tap = blockIdx.x / BLOCKS % PARTS_TAPS * TILE_TAPS;
    const int worker = blockIdx.x / (BLOCKS * PARTS_TAPS);
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, kind = warp % DISTINCT_WARPS;
    const int split = warp / DISTINCT_WARPS < SPLITS ? warp / DISTINCT_WARPS : STEPS;
    const u32 stages = smem_address(shared);

    // a lane gives the address of 8 channels of one of 16 outputs: of dy channels 0 to 7 first, of x outputs 0 to 7
    const int y_pixel = lane % 8 + lane / 16 * 8, x_pixel = lane % 16;
    const int in = kind / (PARTS_IN * PARTS_OUT) * SLICE_IN + kind % PARTS_IN * 16 + lane / 16 * 8;
    const int out = kind / (PARTS_IN * PARTS_OUT) * SLICE_OUT + kind / PARTS_IN % PARTS_OUT * 16 + lane / 8 % 2 * 8;

    f32 sums[TILE_ALL][2][4] = {};
    const auto stage = [&](int unit, int stage_number) {
        if (unit < units) {
            const Tile tile = tile_of(unit);
            stage_x(stages + stage_number * STAGE_BYTES, x, tile, first_tap, block / SLICE_PARTS * BLOCK_IN,
                    sizes);
            stage_dy(stages + stage_number * STAGE_BYTES + Y_START, dy, tile, block * BLOCK_OUT, sizes);
        }
        cp_async_commit();
    };
#pragma unroll 1
    for (int stage_number = 0; stage_number < STAGES; stage_number++)
        stage(worker + stage_number * WORKERS, stage_number);
    int stage_number = 0;
#pragma unroll 1
    for (int unit = worker; unit < units; unit += WORKERS) {
        cp_async_wait<STAGES - 1>();
        __syncthreads();
        const u32 staged = stages + stage_number * STAGE_BYTES;
#pragma unroll 1
        for (int step = split; step < STEPS; step += SPLITS) {
            u32 a[4];
            ldmatrix_x4_trans(a, staged + Y_START + (step * 16 + y_pixel) * Y_PITCH + out * 2);
            const int f = step * 16 + x_pixel;
            const int inside = f < PIXELS ? f : 0, row = inside / TILE_COLUMNS;
            const u32 from = staged + row / TILE_ROWS * IMAGE_BYTES + row % TILE_ROWS * ROW_BYTES +
                             inside % TILE_COLUMNS * X_PITCH + in * 2;
#pragma unroll
            for (int tap = 0; tap < TILE_ALL; tap++) {
                const int down = tap / TAPS_S * DILATION_H, across = tap % TAPS_S * DILATION_W;
                u32 b[4];
                ldmatrix_x4_trans(b, from + (down % STRIDE_H * PHASE_ROWS + down / STRIDE_H) * ROW_BYTES +
                                         (across % STRIDE_W * PHASE_COLUMNS + across / STRIDE_W) * X_PITCH);
                const u32 low[2] = {b[0], b[1]}, high[2] = {b[2], b[3]};
                MMA(sums[tap][0], a, low);
                MMA(sums[tap][1], a, high);
            }
        }
        __syncthreads();
        stage(unit + STAGES * WORKERS, stage_number);
        stage_number = stage_number + 1 < STAGES ? stage_number + 1 : 0;
    }

    // each warp's sums: [warp][tap][channel / 8 of x][channel / 8 of dy][lane][2]
    cp_async_wait<0>();
    __syncthreads();
    float2 *own = (float2 *)shared + warp * (TILE_ALL * 128) + lane;
#pragma unroll
    for (int tap = 0; tap < TILE_ALL; tap++)
#pragma unroll
        for (int e = 0; e < 4; e++) {
            const f32 *pair = &sums[tap][e / 2][e % 2 * 2];
            own[(tap * 4 + e) * 32] = make_float2(pair[0], pair[1]);
        }
    __syncthreads();

    // [worker][tap][channel of y][channel of a group of x]; a worker that is alone finishes its sums itself
    f32 *results = (f32 *)workspace + (i64)worker * ELEMENTS;
    const f32 *all = (const f32 *)shared;
    constexpr int RUN = GROUP_IN % 4 ? 1 : 4;  // channels of x at once
#pragma unroll 2
    for (int i = threadIdx.x; i < BLOCK_OUT * (GROUP_IN / RUN) * TILE_ALL; i += BLOCK_THREADS) {
        const int c = i % (GROUP_IN / RUN) * RUN, o = i / (GROUP_IN / RUN) % BLOCK_OUT;
        const int tap = i / (GROUP_IN / RUN * BLOCK_OUT);
        const int k = block * BLOCK_OUT + o, m = o % SLICE_OUT, n = m / GROUP_OUT * GROUP_IN + c;
        const int of = (o / SLICE_OUT * PARTS_OUT + m / 16) * PARTS_IN + n / 16;
        const f32 *from = all + ((of * TILE_ALL + tap) * 4 + n % 16 / 8 * 2 + m % 16 / 8) * 64 + m % 8 * 8 + n % 8;
        f32 sum[RUN] = {};
#pragma unroll
        for (int other = 0; other < SPLITS; other++)
#pragma unroll
            for (int e = 0; e < RUN; e++) sum[e] += from[other * (DISTINCT_WARPS * TILE_ALL * 256) + e];
        if (k >= ALL_OUT || first_tap + tap / TAPS_S >= TAPS_R) continue;
        if (!IS_ALONE) {
            f32 *to = results + ((first_tap * TAPS_S + tap) * ALL_OUT + k) * GROUP_IN + c;
            if (RUN == 4)
                *(float4 *)to = make_float4(sum[0], sum[RUN / 2 - RUN / 4], sum[RUN / 2], sum[RUN - 1]);
            else
                *to = sum[0];
            continue;
        }
#pragma unroll
        for (int e = 0; e < RUN; e++) {
            u16 *to = dw + W_BASE + (INDEX)k * W_K + (INDEX)(c + e) * W_C + (INDEX)(first_tap + tap / TAPS_S) * W_R +
                      (INDEX)(tap % TAPS_S) * W_S;
            f32 value = (f32)alpha * sum[e];
            if (beta != 0.0) value += (f32)beta * FROM_HALF(*to);
            *to = TO_HALF(value);
        }
    }
}

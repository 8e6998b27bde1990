// Few channels a group, gradient of the filter, through shared memory. See convolution_grouped_filter.py.
//
// A block takes BLOCK_SLICES slices of SLICE_GROUPS neighbouring groups and TILE_TAPS rows of taps, and one tile after the
// other: TILE_ROWS x TILE_COLUMNS outputs of TILE_IMAGES images, while the pixels of the next tile arrive. Staged are dy,
// output after output, with zeros up to a multiple of 16, and the rows of x that they meet; columns of x that lie STRIDE_W
// apart are neighbours, so that a tap is a constant distance and 8 outputs are in 8 different places of the banks. A warp
// sums 16 channels of dy times 16 of x over some of the tile's steps of 16 outputs, each with one fragment of dy and one of
// x for each tap. Warps of the same channels add up in shared memory, and only what is within groups leaves the block.

constexpr int TAPS = TAPS_R * TAPS_S, TILE_ALL = TILE_TAPS * TAPS_S;
constexpr int SLICE_IN = SLICE_GROUPS * GROUP_IN, SLICE_OUT = SLICE_GROUPS * GROUP_OUT;
constexpr int BLOCK_IN = BLOCK_SLICES * SLICE_IN, BLOCK_OUT = BLOCK_SLICES * SLICE_OUT;
constexpr int PARTS_IN = SLICE_IN / 16, PARTS_OUT = SLICE_OUT / 16, PARTS_TAPS = (TAPS_R + TILE_TAPS - 1) / TILE_TAPS;
constexpr int KINDS = BLOCK_SLICES * PARTS_IN * PARTS_OUT, SPLITS = BLOCK_THREADS / 32 / KINDS;
constexpr int ALL_IN = GROUPS_OF_CHANNELS * GROUP_IN, ALL_OUT = GROUPS_OF_CHANNELS * GROUP_OUT;
constexpr int BLOCKS = (GROUPS_OF_CHANNELS + BLOCK_SLICES * SLICE_GROUPS - 1) / (BLOCK_SLICES * SLICE_GROUPS);
constexpr int ELEMENTS = ALL_OUT * GROUP_IN * TAPS;
constexpr int X_PITCH = 2 * BLOCK_IN + 16, Y_PITCH = 2 * BLOCK_OUT + 16;  // bytes of a pixel: an odd number of 16
constexpr int PIXELS = TILE_IMAGES * TILE_ROWS * TILE_COLUMNS, STEPS = (PIXELS + 15) / 16;
constexpr int X_ROWS = (TILE_ROWS - 1) * STRIDE_H + (TILE_TAPS - 1) * DILATION_H + 1;
constexpr int X_COLUMNS = (TILE_COLUMNS - 1) * STRIDE_W + (TAPS_S - 1) * DILATION_W + 1;
constexpr int PHASE = (X_COLUMNS + STRIDE_W - 1) / STRIDE_W, X_ROW = STRIDE_W * PHASE;
constexpr int X_PLACES = TILE_IMAGES * X_ROWS * X_ROW, Y_START = X_PLACES * X_PITCH;
constexpr int STAGE_BYTES = Y_START + STEPS * 16 * Y_PITCH;
constexpr int ACROSS = (OUT_Q + TILE_COLUMNS - 1) / TILE_COLUMNS, DOWN = (OUT_P + TILE_ROWS - 1) / TILE_ROWS;
constexpr int PLANES_ALL = IMAGES * PLANES;
constexpr int UNITS = (PLANES_ALL + TILE_IMAGES - 1) / TILE_IMAGES * DOWN * ACROSS;
constexpr int SUM_PITCH = 256;  // of a tap's 16 x 16 sums

struct Tile { int image, p, q; };

FUNCTION Tile tile_of(int unit) {
    return {unit / (DOWN * ACROSS) * TILE_IMAGES, unit / ACROSS % DOWN * TILE_ROWS, unit % ACROSS * TILE_COLUMNS};
}

FUNCTION void stage_x(u32 shared, const u16 *x, Tile tile, int first_tap, int channel) {
    constexpr int CHUNKS = BLOCK_IN / 8;
    const int chunk = threadIdx.x % CHUNKS, c = channel + chunk * 8;
    const int h0 = tile.p * STRIDE_H - PAD_H + first_tap * DILATION_H, w0 = tile.q * STRIDE_W - PAD_W;
#pragma unroll 2
    for (int place = threadIdx.x / CHUNKS; place < X_PLACES; place += BLOCK_THREADS / CHUNKS) {
        const int column = place % X_ROW, row = place / X_ROW;
        const int image = tile.image + row / X_ROWS, h = h0 + row % X_ROWS;
        const int w = w0 + column % PHASE * STRIDE_W + column / PHASE;
        const bool is_inside = (u32)h < HEIGHT && (u32)w < WIDTH && image < PLANES_ALL && c < ALL_IN;
        const INDEX at = (INDEX)(image / PLANES) * X_N + (INDEX)(image % PLANES) * X_D + (INDEX)h * X_H + (INDEX)w * X_W + c;
        cp_async16(shared + place * X_PITCH + chunk * 16, x + (is_inside ? at : 0), is_inside);
    }
}

FUNCTION void stage_dy(u32 shared, const u16 *dy, Tile tile, int channel) {
    constexpr int CHUNKS = BLOCK_OUT / 8;
    const int chunk = threadIdx.x % CHUNKS, k = channel + chunk * 8;
#pragma unroll 2
    for (int place = threadIdx.x / CHUNKS; place < STEPS * 16; place += BLOCK_THREADS / CHUNKS) {
        const int row = place / TILE_COLUMNS, image = tile.image + row / TILE_ROWS;
        const int p = tile.p + row % TILE_ROWS, q = tile.q + place % TILE_COLUMNS;
        const bool is_inside = place < PIXELS && p < OUT_P && q < OUT_Q && image < PLANES_ALL && k < ALL_OUT;
        const INDEX at = (INDEX)(image / PLANES) * Y_N + (INDEX)(image % PLANES) * Y_D + (INDEX)p * Y_H + (INDEX)q * Y_W + k;
        cp_async16(shared + place * Y_PITCH + chunk * 16, dy + (is_inside ? at : 0), is_inside);
    }
}

KERNEL2(BLOCK_THREADS, RESIDENT)
void grouped_filter(const u16 *RESTRICT x, const u16 *RESTRICT dy, u16 *dw, u8 *workspace, f64 alpha, f64 beta) {
    extern __shared__ uint4 shared[];
    const int block = blockIdx.x % BLOCKS, first_tap = blockIdx.x / BLOCKS % PARTS_TAPS * TILE_TAPS;
    const int worker = blockIdx.x / (BLOCKS * PARTS_TAPS);
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, kind = warp % KINDS, split = warp / KINDS;
    const u32 stages = smem_address(shared);

    // a lane gives the address of 8 channels of one of 16 outputs: of dy channels 0 to 7 first, of x outputs 0 to 7
    const int y_pixel = lane % 8 + lane / 16 * 8, x_pixel = lane % 16;
    const int in = kind / (PARTS_IN * PARTS_OUT) * SLICE_IN + kind % PARTS_IN * 16 + lane / 16 * 8;
    const int out = kind / (PARTS_IN * PARTS_OUT) * SLICE_OUT + kind / PARTS_IN % PARTS_OUT * 16 + lane / 8 % 2 * 8;

    f32 sums[TILE_ALL][2][4] = {};
    const auto stage = [&](int unit, int turn) {
        const Tile tile = tile_of(unit);
        stage_x(stages + turn * STAGE_BYTES, x, tile, first_tap, block * BLOCK_IN);
        stage_dy(stages + turn * STAGE_BYTES + Y_START, dy, tile, block * BLOCK_OUT);
    };
    stage(worker, 0);
    cp_async_commit();
    int turn = 0;
#pragma unroll 1
    for (int unit = worker; unit < UNITS; unit += WORKERS, turn ^= 1) {
        if (unit + WORKERS < UNITS) stage(unit + WORKERS, turn ^ 1);
        cp_async_commit();
        cp_async_wait<1>();
        __syncthreads();
        const u32 staged = stages + turn * STAGE_BYTES;
#pragma unroll 1
        for (int step = split; step < STEPS; step += SPLITS) {
            u32 a[4];
            ldmatrix_x4_trans(a, staged + Y_START + (step * 16 + y_pixel) * Y_PITCH + out * 2);
            const int f = step * 16 + x_pixel;
            const int inside = f < PIXELS ? f : 0, row = inside / TILE_COLUMNS;
            const int place = (row / TILE_ROWS * X_ROWS + row % TILE_ROWS * STRIDE_H) * X_ROW + inside % TILE_COLUMNS;
            const u32 from = staged + place * X_PITCH + in * 2;
#pragma unroll
            for (int tap = 0; tap < TILE_ALL; tap++) {
                const int column = tap % TAPS_S * DILATION_W;
                const int distance = tap / TAPS_S * DILATION_H * X_ROW + column % STRIDE_W * PHASE + column / STRIDE_W;
                u32 b[4];
                ldmatrix_x4_trans(b, from + distance * X_PITCH);
                const u32 low[2] = {b[0], b[1]}, high[2] = {b[2], b[3]};
                MMA(sums[tap][0], a, low);
                MMA(sums[tap][1], a, high);
            }
        }
        __syncthreads();
    }

    // the warps of the same channels, one after the other: [kind][tap][channel of dy][channel of x]
    cp_async_wait<0>();
    f32 *total = (f32 *)shared + kind * (TILE_ALL * SUM_PITCH);
#pragma unroll 1
    for (int other = 0; other < SPLITS; other++) {
        if (other == split)
#pragma unroll
            for (int tap = 0; tap < TILE_ALL; tap++)
#pragma unroll
                for (int e = 0; e < 8; e++) {
                    f32 *to = total + tap * SUM_PITCH + (lane / 4 + e / 2 % 2 * 8) * 16 +
                              e / 4 * 8 + lane % 4 * 2 + e % 2;
                    *to = (other ? *to : 0.0f) + sums[tap][e / 4][e % 4];
                }
        __syncthreads();
    }

    // [worker][tap][channel of y][channel of a group of x]
    f32 *results = (f32 *)workspace + (i64)worker * ELEMENTS;
    const f32 *all = (const f32 *)shared;
#pragma unroll 4
    for (int i = threadIdx.x; i < BLOCK_OUT * GROUP_IN * TILE_ALL; i += BLOCK_THREADS) {
        const int c = i % GROUP_IN, o = i / GROUP_IN % BLOCK_OUT, tap = i / (GROUP_IN * BLOCK_OUT);
        const int k = block * BLOCK_OUT + o, m = o % SLICE_OUT, n = m / GROUP_OUT * GROUP_IN + c;
        const int of = (o / SLICE_OUT * PARTS_OUT + m / 16) * PARTS_IN + n / 16;
        if (k < ALL_OUT && first_tap + tap / TAPS_S < TAPS_R)
            results[((first_tap * TAPS_S + tap) * ALL_OUT + k) * GROUP_IN + c] =
                all[(of * TILE_ALL + tap) * SUM_PITCH + m % 16 * 16 + n % 16];
    }
}

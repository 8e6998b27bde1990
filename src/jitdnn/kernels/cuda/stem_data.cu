// Gradient of the data for few input channels: a convolution of dy with few outputs. See convolution_stem.py.
//
// Along each axis UNIT outputs belong together: output u = UNIT * b + e - DELTA, for e below UNIT, meets position
// STEP * b + i of dy in tap e + pad - DELTA - stride * i, if there is one, for REACH values of i from LEAST on. The
// outputs of a b, (e_d, e_h, e_w, channel), are the columns of the product, the positions b its rows, and REACH_D *
// REACH_H * REACH_W * channels of dy is what is summed over. STEP is 1 but along w, where UNIT may be a multiple of the
// stride.
//
// A warp computes TILE_ROWS rows of 16 b's: each piece of dy that it reads from shared memory serves the rows of b that
// meet it, up to REACH_H of them. The positions of a row of dy are staged in STEP sequences, so that those which a warp
// reads together follow each other.

constexpr int CHUNKS = CHANNEL_STEPS * 2;        // 16-byte pieces of channels
constexpr int PITCH = (CHUNKS | 1) * 8;          // elements; odd in pieces, so that 8 rows meet no bank twice
constexpr int TILE_DOWN = TILE_ROWS * WARPS_DOWN, TILE_ACROSS = 16 * WARPS_ACROSS;
constexpr int STAGED_ROWS = TILE_DOWN + REACH_H - 1;
constexpr int POSITIONS = STEP_W * (TILE_ACROSS - 1) + REACH_W;  // of a staged row
constexpr int SEQUENCE = (POSITIONS + STEP_W - 1) / STEP_W;
constexpr int STAGE_ELEMENTS = STAGED_ROWS * STEP_W * SEQUENCE * PITCH;
constexpr int COLUMNS = UNIT_D * UNIT_H * UNIT_W * CHANNELS;
constexpr int COLUMN_TILES = (COLUMNS + 7) / 8;
constexpr int TILES = IMAGES * BLOCKS_D * ((BLOCKS_H + TILE_DOWN - 1) / TILE_DOWN) *
                      ((BLOCKS_W + TILE_ACROSS - 1) / TILE_ACROSS);

struct Tile { int n, d, h, w; };  // the first b along each axis

FUNCTION Tile tile_of(int index) {
    constexpr int across = (BLOCKS_W + TILE_ACROSS - 1) / TILE_ACROSS, down = (BLOCKS_H + TILE_DOWN - 1) / TILE_DOWN;
    Tile at;
    at.w = index % across * TILE_ACROSS;
    index /= across;
    at.h = index % down * TILE_DOWN;
    index /= down;
    at.d = index % BLOCKS_D;
    at.n = index / BLOCKS_D;
    return at;
}

FUNCTION bool gradient_place(Tile at, int row, int position, int step_d, INDEX &start) {
    int o = at.d + LEAST_D + step_d, p = at.h + LEAST_H + row, q = STEP_W * at.w + LEAST_W + position;
    start = (INDEX)at.n * Y_N + (INDEX)o * Y_D + (INDEX)p * Y_H + (INDEX)q * Y_W;
    return (u32)o < OUT_O && (u32)p < OUT_P && (u32)q < OUT_Q;
}

FUNCTION int stage_place(int row, int position) {
    return ((row * STEP_W + position % STEP_W) * SEQUENCE + position / STEP_W) * PITCH;
}

FUNCTION void fetch(u16 *stage, const u16 *dy, Tile at, int step_d, bool is_aligned) {
#if Y_VECTOR == 8
    if (is_aligned) {
#pragma unroll 2
        for (int i = threadIdx.x; i < STAGED_ROWS * POSITIONS * CHUNKS; i += BLOCK_THREADS) {
            int k = i % CHUNKS * 8, position = i / CHUNKS % POSITIONS, row = i / (CHUNKS * POSITIONS);
            INDEX start;
            bool is_inside = gradient_place(at, row, position, step_d, start) && k < FILTERS;
            cp_async16(stage + stage_place(row, position) + k, is_inside ? dy + start + k : dy, is_inside);
        }
        return;
    }
#endif
#pragma unroll 4
    for (int i = threadIdx.x; i < STAGED_ROWS * POSITIONS * CHUNKS * 8; i += BLOCK_THREADS) {
#if Y_PLANES
        int position = i % POSITIONS, k = i / POSITIONS % (CHUNKS * 8);
#else
        int k = i % (CHUNKS * 8), position = i / (CHUNKS * 8) % POSITIONS;
#endif
        int row = i / (CHUNKS * 8 * POSITIONS);
        INDEX start;
        u16 value = 0;
        if (gradient_place(at, row, position, step_d, start) && k < FILTERS) value = dy[start + (INDEX)k * Y_C];
        stage[stage_place(row, position) + k] = value;
    }
}

// The tap of the filter that output e of an axis meets at the i-th position, -1 if it is none.
FUNCTION int tap_of(int e, int i, int lead, int least, int stride, int taps) {
    int tap = e + lead - stride * (least + i);
    return tap >= 0 && tap < taps ? tap : -1;
}

KERNEL2(BLOCK_THREADS, RESIDENT)
void stem_data(const u16 *RESTRICT dy, const u16 *RESTRICT w, u16 *dx EXTRA_POINTERS, u8 *workspace, f64 alpha64,
               f64 beta64) {
    extern __shared__ uint4 memory[];
    u16 *stages = (u16 *)memory;
    uint2 *filter = (uint2 *)(memory + STAGES * STAGE_ELEMENTS / 8);  // [d][w][channel step][h][column tile][lane]
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
    const int warp_across = warp % WARPS_ACROSS, warp_down = warp / WARPS_ACROSS;
    const f32 alpha = (f32)alpha64, beta = (f32)beta64;
    const bool dy_aligned = is_aligned_to(dy, 16), dx_aligned = is_aligned_to(dx, 4);

#pragma unroll 1
    for (int i = threadIdx.x; i < REACH_D * REACH_W * CHANNEL_STEPS * REACH_H * COLUMN_TILES * 64; i += BLOCK_THREADS) {
        int e = i % 2, owner = i / 2 % 32, rest = i / 64;
        int column = rest % COLUMN_TILES * 8 + owner / 4;
        rest /= COLUMN_TILES;
        int i_h = rest % REACH_H;
        rest /= REACH_H;
        int k = rest % CHANNEL_STEPS * 16 + owner % 4 * 2 + e * 8;
        rest /= CHANNEL_STEPS;
        int i_w = rest % REACH_W, i_d = rest / REACH_W;
        int c = column % CHANNELS, e_w = column / CHANNELS % UNIT_W, e_h = column / (CHANNELS * UNIT_W) % UNIT_H;
        int e_d = column / (CHANNELS * UNIT_W * UNIT_H);
        int d = tap_of(e_d, i_d, LEAD_D, LEAST_D, STRIDE_D, TAPS_T), h = tap_of(e_h, i_h, LEAD_H, LEAST_H, STRIDE_H, TAPS_R);
        int s = tap_of(e_w, i_w, LEAD_W, LEAST_W, STRIDE_W, TAPS_S);
        u32 half[2] = {0, 0};
        if (column < COLUMNS && d >= 0 && h >= 0 && s >= 0)
            for (int j = 0; j < 2; j++)
                if (k + j < FILTERS)
                    half[j] = w[W_BASE + (INDEX)(k + j) * W_K + (INDEX)d * W_T + (INDEX)h * W_R + (INDEX)s * W_S +
                                (INDEX)c * W_C];
        ((u32 *)filter)[i] = half[0] | half[1] << 16;
    }

    // where a lane's columns go, relative to the first output of b
    int place_d[COLUMN_TILES][2], place_h[COLUMN_TILES][2], place_w[COLUMN_TILES][2], channel[COLUMN_TILES][2];
#pragma unroll
    for (int j = 0; j < COLUMN_TILES; j++)
#pragma unroll
        for (int e = 0; e < 2; e++) {
            int column = j * 8 + 2 * t + e;
            channel[j][e] = column < COLUMNS ? column % CHANNELS : -1;
            place_w[j][e] = column / CHANNELS % UNIT_W;
            place_h[j][e] = column / (CHANNELS * UNIT_W) % UNIT_H;
            place_d[j][e] = column / (CHANNELS * UNIT_W * UNIT_H);
        }

    f32 sums[TILE_ROWS][COLUMN_TILES][4] = {};
    const int stages_ahead = STAGES - 1;
    int work = 0, buffer = 0;
    const int amount = ((int)blockIdx.x < TILES ? (TILES - 1 - (int)blockIdx.x) / (int)gridDim.x + 1 : 0) * REACH_D;
    if (STAGES == 2 && amount > 0) {
        fetch(stages, dy, tile_of(blockIdx.x), 0, dy_aligned);
        cp_async_commit();
    }
    for (; work < amount; work++) {
        const Tile at = tile_of(blockIdx.x + work / REACH_D * gridDim.x);
        const int step_d = work % REACH_D, next = work + stages_ahead;
        if (next < amount) {
            fetch(stages + (STAGES == 2 ? buffer ^ 1 : 0) * STAGE_ELEMENTS, dy,
                  tile_of(blockIdx.x + next / REACH_D * gridDim.x), next % REACH_D, dy_aligned);
            cp_async_commit();
        }
        if (STAGES == 2 && next < amount)
            cp_async_wait<1>();
        else
            cp_async_wait<0>();
        __syncthreads();
        const u16 *stage = stages + buffer * STAGE_ELEMENTS;
        const uint2 *fragment = filter + step_d * (REACH_W * CHANNEL_STEPS * REACH_H * COLUMN_TILES * 32) + lane;
#pragma unroll 1
        for (int i_w = 0; i_w < REACH_W; i_w++) {
            const u16 *from = stage + stage_place(warp_down * TILE_ROWS, i_w) +
                              (warp_across * 16 + lane / 8 % 2 * 8 + lane % 8) * PITCH + lane / 16 * 8;
#pragma unroll UNROLL_STEPS
            for (int k = 0; k < CHANNEL_STEPS; k++) {
                u32 b[REACH_H][COLUMN_TILES][2];
#pragma unroll
                for (int i = 0; i < REACH_H; i++)
#pragma unroll
                    for (int j = 0; j < COLUMN_TILES; j++) {
                        const uint2 both = fragment[(i * COLUMN_TILES + j) * 32];
                        b[i][j][0] = both.x, b[i][j][1] = both.y;
                    }
                fragment += REACH_H * COLUMN_TILES * 32;
#pragma unroll
                for (int row = 0; row < TILE_ROWS + REACH_H - 1; row++) {
                    u32 a[4];
                    ldmatrix_x4(a, from + row * (STEP_W * SEQUENCE * PITCH) + k * 16);
#pragma unroll
                    for (int i = 0; i < REACH_H; i++)
                        if (row - i >= 0 && row - i < TILE_ROWS)
#pragma unroll
                            for (int j = 0; j < COLUMN_TILES; j++) MMA(sums[row - i][j], a, b[i][j]);
                }
            }
        }
        if (step_d == REACH_D - 1) {
#pragma unroll
            for (int row = 0; row < TILE_ROWS; row++)
#pragma unroll
                for (int half = 0; half < 2; half++) {
                    const int b_w = at.w + warp_across * 16 + half * 8 + g;
                    const int d0 = UNIT_D * at.d - DELTA_D, h0 = UNIT_H * (at.h + warp_down * TILE_ROWS + row) - DELTA_H;
                    const int w0 = UNIT_W * b_w - DELTA_W;
#pragma unroll
                    for (int j = 0; j < COLUMN_TILES; j++) {
                        INDEX to[2];
                        bool is_inside[2];
#pragma unroll
                        for (int e = 0; e < 2; e++) {
                            int d = d0 + place_d[j][e], h = h0 + place_h[j][e], column = w0 + place_w[j][e];
                            is_inside[e] = channel[j][e] >= 0 && (u32)d < DEPTH && (u32)h < HEIGHT && (u32)column < WIDTH;
                            to[e] = (INDEX)at.n * X_N + (INDEX)d * X_D + (INDEX)h * X_H + (INDEX)column * X_W +
                                    (INDEX)channel[j][e] * X_C;
                        }
                        f32 value[2];
#pragma unroll
                        for (int e = 0; e < 2; e++) {
                            value[e] = 0.0f;
                            if (is_inside[e])
                                value[e] = alpha * FINISH(sums[row][j][2 * half + e], at.n, channel[j][e], d0 + place_d[j][e],
                                                          h0 + place_h[j][e], w0 + place_w[j][e]);
                        }
                        if (X_PAIRS && beta == 0.0f && dx_aligned && is_inside[0] && is_inside[1]) {
                            store4(dx + to[0], PACK(value[0], value[1]));
                            continue;
                        }
#pragma unroll
                        for (int e = 0; e < 2; e++)
                            if (is_inside[e]) {
                                if (beta != 0.0f) value[e] += beta * FROM_HALF(dx[to[e]]);
                                dx[to[e]] = TO_HALF(value[e]);
                            }
                    }
                }
#pragma unroll
            for (int row = 0; row < TILE_ROWS; row++)
#pragma unroll
                for (int j = 0; j < COLUMN_TILES; j++)
#pragma unroll
                    for (int e = 0; e < 4; e++) sums[row][j][e] = 0.0f;
        }
        __syncthreads();
        if (STAGES == 2) buffer ^= 1;
    }
}

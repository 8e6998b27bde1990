// dgrad with few input channels: a convolution of dy with few outputs.
//
// Along each axis UNIT outputs are a block b, which meets REACH positions of dy: see half_precision/axis.py. The
// outputs of a b, (e_d, e_h, e_w, channel), are the columns of the product, the b's its rows, and it sums over
// REACH_D * REACH_H * REACH_W * channels of dy. STEP is 1 but along h and w, where UNIT may be a multiple of the
// stride.
//
// A warp computes TILE_PLANES planes of TILE_ROWS rows of 16 b's: what it reads of dy from shared memory serves all
// planes and rows of b that meet it, up to REACH_D * REACH_H of them. A thread block stages one plane of dy after the
// other, CHANNEL_STEPS * STEP_CHANNELS channels at a time (CHANNEL_CHUNKS of these). The positions of a row of dy are staged in
// STEP_W sequences, so that those which a warp reads together are neighbours. SPLIT_K_WARPS warps share the channels
// of a tile where there are few tiles; their sums are added in the end. The filter stays in shared memory; if
// IS_STREAMED, each stage brings the part that it needs. IS_PACKED: the fragments of the filter are made once, by a
// kernel of their own.

// IN_HALVES: f32 is divided, when a stage has arrived, by all threads into two numbers of half precision each, times a
// power of two of the stage's own; 16 channels in 64 bytes become 16 first halves and 16 second ones. Two steps of
// channels are one of halves then: the filter's fragments are of first halves in the even steps, of second ones in the odd.
// The header behind the fragments has the filter's power of two, and whether a number was met that is not finite.

#define IN_HALVES (IS_F32 && PRODUCTS == 2)
constexpr int PAIR = IN_HALVES ? 2 : 1;          // steps of channels that are multiplied together
constexpr int PIECE = 16 / sizeof(ELEMENT);      // channels that are copied at once
constexpr int STEP_CHANNELS = 2 * PIECE;         // that an mma sums over
constexpr int CHUNKS = CHANNEL_STEPS * 2;        // pieces of channels
constexpr int PITCH = (CHUNKS | 1) * PIECE;      // elements; odd in pieces, so that 8 rows meet no bank twice
constexpr int TILE_DOWN = TILE_ROWS * WARPS_DOWN, TILE_ACROSS = 16 * WARPS_ACROSS;
constexpr int STAGED_ROWS = STEP_H * (TILE_DOWN - 1) + REACH_H;
constexpr int POSITIONS = STEP_W * (TILE_ACROSS - 1) + REACH_W;  // of a staged row
constexpr int SEQUENCE = (POSITIONS + STEP_W - 1) / STEP_W;
constexpr int STAGE_ELEMENTS = STAGED_ROWS * STEP_W * SEQUENCE * PITCH;
constexpr int COLUMNS = UNIT_D * UNIT_H * UNIT_W * CHANNELS;
constexpr int COLUMN_TILES = (COLUMNS + 7) / 8;
constexpr int STAGED_PLANES = TILE_PLANES + REACH_D - 1;
constexpr int STEP_FRAGMENTS = REACH_D * REACH_H * COLUMN_TILES * 32;  // 8 bytes each
constexpr int CHUNK_FRAGMENTS = REACH_W * CHANNEL_STEPS * STEP_FRAGMENTS;
constexpr int DY_BYTES = STAGE_ELEMENTS * sizeof(ELEMENT);
constexpr int STAGE_BYTES = DY_BYTES + (IS_STREAMED ? CHUNK_FRAGMENTS * 8 : 0);
constexpr int PLANE_BLOCKS = (BLOCKS_D + TILE_PLANES - 1) / TILE_PLANES;
constexpr int IMAGE_TILES =
    PLANE_BLOCKS * ((BLOCKS_H + TILE_DOWN - 1) / TILE_DOWN) * ((BLOCKS_W + TILE_ACROSS - 1) / TILE_ACROSS);
#define FRAGMENTS (CHANNEL_CHUNKS * CHUNK_FRAGMENTS)

struct Tile { int n, d, h, w; };  // the first b along each axis

// A stage of a thread block: a tile, of which all chunks of one plane follow each other, and then those of the next.
struct Stage { int tile, plane, chunk; };

FUNCTION bool is_last(Stage stage, const Sizes &sizes) {
    return stage.chunk == CHANNEL_CHUNKS - 1 && stage.plane == STAGED_PLANES - 1;
}

FUNCTION void advance(Stage &stage, const Sizes &sizes) {
    if (++stage.chunk < CHANNEL_CHUNKS) return;
    stage.chunk = 0;
    if (++stage.plane < STAGED_PLANES) return;
    stage.plane = 0;
    stage.tile += gridDim.x;
}

FUNCTION Tile tile_of(int index) {
    constexpr int across = (BLOCKS_W + TILE_ACROSS - 1) / TILE_ACROSS, down = (BLOCKS_H + TILE_DOWN - 1) / TILE_DOWN;
    Tile at;
    at.w = index % across * TILE_ACROSS;
    index /= across;
    at.h = index % down * TILE_DOWN;
    index /= down;
    at.d = index % PLANE_BLOCKS * TILE_PLANES;
    at.n = index / PLANE_BLOCKS;
    return at;
}

FUNCTION bool gradient_offset(Tile at, int row, int position, int plane, INDEX &start, const Sizes &sizes) {
    int o = at.d + LEAST_D + plane, p = STEP_H * at.h + LEAST_H + row, q = STEP_W * at.w + LEAST_W + position;
    start = (INDEX)at.n * Y_N + (INDEX)o * Y_D + (INDEX)p * Y_H + (INDEX)q * Y_W;
    return (u32)o < OUT_O && (u32)p < OUT_P && (u32)q < OUT_Q;
}

FUNCTION int stage_offset(int row, int position) {
    return ((row * STEP_W + position % STEP_W) * SEQUENCE + position / STEP_W) * PITCH;
}

FUNCTION void fetch(u8 *memory, const ELEMENT *dy, const u8 *packed, Stage of, const Sizes &sizes) {
    const Tile at = tile_of(of.tile);
    ELEMENT *stage = (ELEMENT *)memory;
#if IS_STREAMED
    const u8 *fragments = packed + (i64)of.chunk * (CHUNK_FRAGMENTS * 8);
    for (int i = threadIdx.x; i < CHUNK_FRAGMENTS / 2; i += BLOCK_THREADS)
        cp_async16(memory + DY_BYTES + i * 16, fragments + i * 16, true);
#endif
    const int plane = of.plane, first = of.chunk * (CHUNKS * PIECE);
#if Y_VECTOR > 1
    constexpr int at_once = BLOCK_THREADS / CHUNKS;  // positions, one at least; a thread has the same channels in all
    const int mine = threadIdx.x / CHUNKS, part = threadIdx.x % CHUNKS * PIECE, k = first + part;
    const int p = STEP_H * at.h + LEAST_H, q = STEP_W * at.w + LEAST_W;
    INDEX start;
    gradient_offset(at, 0, 0, plane, start, sizes);
    const bool is_here = (u32)(at.d + LEAST_D + plane) < OUT_O && k < FILTERS;
    const ELEMENT *from = dy + start + k;
    if (mine >= at_once) return;
#pragma unroll 4
    for (int i = mine; i < STAGED_ROWS * POSITIONS; i += at_once) {
        const int row = i / POSITIONS, position = i % POSITIONS;
        const bool is_inside = is_here && (u32)(p + row) < OUT_P && (u32)(q + position) < OUT_Q;
        const INDEX away = (INDEX)row * Y_H + (INDEX)position * Y_W;
        const int offset = STEP_W == 1 ? i * PITCH : stage_offset(row, position);
        cp_async16(stage + offset + part, from + away, is_inside);
    }
#else
#pragma unroll 4
    for (int i = threadIdx.x; i < STAGED_ROWS * POSITIONS * CHUNKS * PIECE; i += BLOCK_THREADS) {
#if Y_IS_PLANAR
        int position = i % POSITIONS, part = i / POSITIONS % (CHUNKS * PIECE);
#else
        int part = i % (CHUNKS * PIECE), position = i / (CHUNKS * PIECE) % POSITIONS;
#endif
        int row = i / (CHUNKS * PIECE * POSITIONS), k = first + part;
        INDEX start;
        ELEMENT value = 0;
        if (gradient_offset(at, row, position, plane, start, sizes) && k < FILTERS) value = dy[start + (INDEX)k * Y_C];
        stage[stage_offset(row, position) + part] = value;
    }
#endif
}

// The tap of the filter that output e of an axis meets at the i-th position, -1 if it is none.
FUNCTION int tap_of(int e, int i, int lead, int least, int stride, int taps) {
    int tap = e + lead - stride * (least + i);
    return tap >= 0 && tap < taps ? tap : -1;
}

// The fragment of the filter of a lane, for STEP_CHANNELS channels and 8 columns: [chunk][w][channel step][d][h][column
// tile][lane].
FUNCTION uint2 filter_fragment(const ELEMENT *w, int i, int shift, const Sizes &sizes) {
    const int owner = i % 32;
    int rest = i / 32;
    const int column = rest % COLUMN_TILES * 8 + owner / 4;
    rest /= COLUMN_TILES;
    const int i_h = rest % REACH_H;
    rest /= REACH_H;
    const int i_d = rest % REACH_D;
    rest /= REACH_D;
    const int step = rest % CHANNEL_STEPS;
    int k = step / PAIR * (PAIR * STEP_CHANNELS) + owner % 4 * (PAIR * PER_WORD);
    rest /= CHANNEL_STEPS;
    const int i_w = rest % REACH_W;
    k += rest / REACH_W * (CHANNEL_STEPS * STEP_CHANNELS);
    const int c = column % CHANNELS, e_w = column / CHANNELS % UNIT_W, e_h = column / (CHANNELS * UNIT_W) % UNIT_H;
    const int e_d = column / (CHANNELS * UNIT_W * UNIT_H);
    const int d = tap_of(e_d, i_d, LEAD_D, LEAST_D, STRIDE_D, TAPS_T);
    const int h = tap_of(e_h, i_h, LEAD_H, LEAST_H, STRIDE_H, TAPS_R);
    const int s = tap_of(e_w, i_w, LEAD_W, LEAST_W, STRIDE_W, TAPS_S);
    const bool is_tap = column < COLUMNS && d >= 0 && h >= 0 && s >= 0;
    const ELEMENT *from = w + W_BASE + (INDEX)k * W_K + (INDEX)d * W_T + (INDEX)h * W_R + (INDEX)s * W_S + (INDEX)c * W_C;
    u32 part[2][2] = {{0, 0}, {0, 0}};  // of two words, the second half a step of channels later
#if IN_HALVES
#pragma unroll
    for (int j = 0; j < 4; j++) {
        const int later = j % 2 + j / 2 * 8;
        if (is_tap && k + later < FILTERS)
            part[j / 2][j % 2] = half_of(times_power(from[(INDEX)later * W_K], shift), step % 2);
    }
#else
#pragma unroll
    for (int j = 0; j < 2 * PER_WORD; j++) {
        const int later = j % PER_WORD + j / PER_WORD * PIECE;
        if (is_tap && k + later < FILTERS) part[j / PER_WORD][j % PER_WORD] = bits_of(from[(INDEX)later * W_K]);
    }
#endif
    return make_uint2(part[0][0] | part[0][1] << 16, part[1][0] | part[1][1] << 16);
}

// Stores two neighbours at an address that is a multiple of their size.
FUNCTION void store_pair(ELEMENT *to, f32 first, f32 second) {
#if IS_F32
    store8(to, make_uint2(__float_as_uint(first), __float_as_uint(second)));
#else
    store4(to, PACK(first, second));
#endif
}

struct Lane { int warp_across, warp_down, split_k_warp, g, t, lane; };
typedef f32 Sums[TILE_PLANES][TILE_ROWS][COLUMN_TILES][4];

// Adds what plane `plane` of the staged ones contributes to the planes of sums that meet it.
template <int plane>
FUNCTION void add_plane(Sums &sums, const ELEMENT *stage, const uint2 *filter, Lane at, f32 factor) {
    constexpr int first = plane - (TILE_PLANES - 1) > 0 ? plane - (TILE_PLANES - 1) : 0;  // positions i along d
    constexpr int last = plane < REACH_D - 1 ? plane : REACH_D - 1;
    const uint2 *fragment = filter + at.split_k_warp * (PAIR * STEP_FRAGMENTS) + at.lane;
#pragma unroll 1
    for (int i_w = 0; i_w < REACH_W; i_w++) {
        const ELEMENT *from = stage + stage_offset(at.warp_down * (STEP_H * TILE_ROWS), i_w) +
                          (at.warp_across * 16 + at.lane / 8 % 2 * 8 + at.lane % 8) * PITCH + at.lane / 16 * PIECE +
                          at.split_k_warp * (PAIR * STEP_CHANNELS);
#pragma unroll UNROLL_STEPS
        for (int k = 0; k < CHANNEL_STEPS / PAIR; k += SPLIT_K_WARPS) {
#if IN_HALVES
            uint2 b[last - first + 1][REACH_H][COLUMN_TILES][2];
#pragma unroll
            for (int i = 0; i < (last - first + 1) * REACH_H * COLUMN_TILES; i++)
#pragma unroll
                for (int half = 0; half < 2; half++)
                    b[i / (REACH_H * COLUMN_TILES)][i / COLUMN_TILES % REACH_H][i % COLUMN_TILES][half] =
                        fragment[half * STEP_FRAGMENTS + (first * REACH_H * COLUMN_TILES + i) * 32];
#else
            Factor<2> b[last - first + 1][REACH_H][COLUMN_TILES];
#pragma unroll
            for (int i = 0; i < (last - first + 1) * REACH_H * COLUMN_TILES; i++) {
                const uint2 both = fragment[(first * REACH_H * COLUMN_TILES + i) * 32];
                Factor<2> &to = b[i / (REACH_H * COLUMN_TILES)][i / COLUMN_TILES % REACH_H][i % COLUMN_TILES];
                to.bits[0] = both.x, to.bits[1] = both.y;
                prepare(to);
            }
#endif
            fragment += SPLIT_K_WARPS * (PAIR * STEP_FRAGMENTS);
#pragma unroll
            for (int row = 0; row < STEP_H * (TILE_ROWS - 1) + REACH_H; row++) {
                const ELEMENT *of_row = from + row * (STEP_W * SEQUENCE * PITCH) + k * (PAIR * STEP_CHANNELS);
#if IN_HALVES
                u32 whole[4], rest[4];
                ldmatrix_x4(whole, of_row);
                ldmatrix_x4(rest, of_row + STEP_CHANNELS);
#else
                Factor<4> a;
                ldmatrix_x4(a.bits, of_row);
                prepare(a);
#endif
#pragma unroll
                for (int i_d = first; i_d <= last; i_d++)
#pragma unroll
                    for (int i = 0; i < REACH_H; i++)
                        if (row - i >= 0 && (row - i) % STEP_H == 0 && (row - i) / STEP_H < TILE_ROWS)
#pragma unroll
                            for (int j = 0; j < COLUMN_TILES; j++) {
                                f32 (&sum)[4] = sums[plane - i_d][(row - i) / STEP_H][j];
#if IN_HALVES
                                multiply_halves(sum, whole, rest, b[i_d - first][i][j], factor);
#else
                                multiply(sum, a, b[i_d - first][i][j]);
#endif
                            }
            }
        }
    }
}

// The same for a plane that is known at run time only.
template <int plane>
FUNCTION void add(Sums &sums, const ELEMENT *stage, const uint2 *filter, Lane at, int wanted, f32 factor) {
    if (plane == wanted) {
        add_plane<plane>(sums, stage, filter, at, factor);
        return;
    }
    if constexpr (plane + 1 < STAGED_PLANES) add<plane + 1>(sums, stage, filter, at, wanted, factor);
}

#if IS_PACKED
// The fragments of the filter, once for all blocks.
KERNEL(256)
void few_channels_dgrad_pack(const ELEMENT *RESTRICT dy, const ELEMENT *RESTRICT w, ELEMENT *dx EPILOGUE_PARAMETERS,
                             u8 *workspace, f64 alpha, f64 beta, NUMBERS) {
    begin_launch();
    const Sizes sizes = SIZES;
    if (!is_wanted(workspace)) return;
    int shift = 0;
#if IN_HALVES
    u32 most = 0;
#pragma unroll 8
    for (int i = threadIdx.x; i < FILTERS * (CHANNELS * TAPS_T * TAPS_R * TAPS_S); i += 256) {
        const int s = i % TAPS_S, r = i / TAPS_S % TAPS_R, d = i / (TAPS_S * TAPS_R) % TAPS_T;
        const int c = i / (TAPS_S * TAPS_R * TAPS_T) % CHANNELS, k = i / (TAPS_S * TAPS_R * TAPS_T * CHANNELS);
        const f32 value = w[W_BASE + (INDEX)k * W_K + (INDEX)d * W_T + (INDEX)r * W_R + (INDEX)s * W_S + (INDEX)c * W_C];
        most = max(most, __float_as_uint(value) & 0x7fffffffu);
    }
    most = most_of_block<8>(most).x;
    shift = shift_for(most);
    if (blockIdx.x == 0 && threadIdx.x == 0) {
        i32 *header = (i32 *)(workspace + FRAGMENTS * 8);
        header[0] = shift, header[1] = most >= INFINITE;
    }
#endif
    const int i = (int)(blockIdx.x * 256 + threadIdx.x);
    if (i < FRAGMENTS) ((uint2 *)workspace)[i] = filter_fragment(w, i, shift, sizes);
}
#endif

#if IN_HALVES
FUNCTION int divide_gradient(f32 *stage, i32 *is_met) {
    auto place = [](int i) {
        const int at = i / CHUNKS;
        return (STEP_W == 1 ? at * PITCH : stage_offset(at / POSITIONS, at % POSITIONS)) + i % CHUNKS / 4 * 16;
    };
    constexpr int pieces = STAGED_ROWS * POSITIONS * CHUNKS;
    const u32 most = most_of_block<BLOCK_THREADS / 32>(most_of_pieces<pieces>(stage, place)).x;
    if (most >= INFINITE && threadIdx.x == 0) *is_met = 1;
    divide_pieces<pieces>(stage, place, shift_for(most));
    __syncthreads();
    return most ? shift_for(most) : NO_NUMBERS;
}
#endif

KERNEL2(BLOCK_THREADS, RESIDENT)
void few_channels_dgrad(const ELEMENT *RESTRICT dy, const ELEMENT *RESTRICT w, ELEMENT *dx EPILOGUE_PARAMETERS,
                        u8 *workspace, f64 alpha64, f64 beta64, NUMBERS) {
    begin_launch();
    const Sizes sizes = SIZES;
    extern __shared__ uint4 memory[];
    u8 *stages = (u8 *)memory;
    uint2 *filter = (uint2 *)(stages + STAGES * STAGE_BYTES);  // as filter_fragment says
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const Lane me = {warp % WARPS_ACROSS,
                     warp / WARPS_ACROSS % WARPS_DOWN,
                     warp / (WARPS_ACROSS * WARPS_DOWN),
                     lane / 4,
                     lane % 4,
                     lane};
    const f32 alpha = (f32)alpha64, beta = (f32)beta64;
    const bool has_words = X_PAIRS && beta == 0.0f;
    if (!is_wanted(workspace)) return;

    const int tiles = IMAGES * IMAGE_TILES;
    Stage now = {(int)blockIdx.x, 0, 0}, next = now;  // `next`: STAGES - 1 behind
    int buffer = 0;
    if (STAGES == 2 && next.tile < tiles) {
        fetch(stages, dy, workspace, next, sizes);
        advance(next, sizes);
        cp_async_commit();
    }
#if IS_STREAMED
#elif IS_PACKED
    for (int i = threadIdx.x; i < FRAGMENTS / 2; i += BLOCK_THREADS)
        cp_async16(filter + 2 * i, (const uint2 *)workspace + 2 * i, true);
    cp_async_commit();
#else
#pragma unroll 4
    for (int i = threadIdx.x; i < FRAGMENTS; i += BLOCK_THREADS) filter[i] = filter_fragment(w, i, 0, sizes);
#endif

    // where a lane's columns are stored, relative to the first output of b; columns behind the last have no channel
    int result_d[COLUMN_TILES][2], result_h[COLUMN_TILES][2], result_w[COLUMN_TILES][2], channel[COLUMN_TILES][2];
    INDEX relative[COLUMN_TILES][2];
#pragma unroll
    for (int j = 0; j < COLUMN_TILES; j++)
#pragma unroll
        for (int e = 0; e < 2; e++) {
            int column = j * 8 + 2 * me.t + e;
            channel[j][e] = column < COLUMNS ? column % CHANNELS : -1;
            result_w[j][e] = column / CHANNELS % UNIT_W;
            result_h[j][e] = column / (CHANNELS * UNIT_W) % UNIT_H;
            result_d[j][e] = column / (CHANNELS * UNIT_W * UNIT_H);
            relative[j][e] = (INDEX)result_d[j][e] * X_D + (INDEX)result_h[j][e] * X_H + (INDEX)result_w[j][e] * X_W +
                             (INDEX)channel[j][e] * X_C;
        }

    Sums sums = {};
    f32 factor = 1.0f;
    int scale = 0;  // IN_HALVES: the exponent of what sums are multiplied by
#if IN_HALVES
    i32 *header = (i32 *)(workspace + FRAGMENTS * 8);
    const int filter_shift = header[0];
    scale = NO_SUMS;
#endif
#pragma unroll 1
    for (; now.tile < tiles; advance(now, sizes)) {
        const Tile at = tile_of(now.tile);
        if (next.tile < tiles) {
            fetch(stages + (STAGES == 2 ? buffer ^ 1 : 0) * STAGE_BYTES, dy, workspace, next, sizes);
            advance(next, sizes);
            cp_async_commit();
            if (STAGES == 2)
                cp_async_wait<1>();
            else
                cp_async_wait<0>();
        } else {
            cp_async_wait<0>();
        }
        __syncthreads();
        const u8 *stage = stages + buffer * STAGE_BYTES;
        const uint2 *fragments = IS_STREAMED ? (const uint2 *)(stage + DY_BYTES)
                                             : filter + now.chunk * CHUNK_FRAGMENTS;
#if IN_HALVES
        const int shift = filter_shift + divide_gradient((f32 *)(stages + buffer * STAGE_BYTES), header + 1);
        if (is_larger(shift, scale)) {
#pragma unroll
            for (int i = 0; i < TILE_PLANES * TILE_ROWS * COLUMN_TILES * 4; i++) {
                f32 &sum = sums[i / (TILE_ROWS * COLUMN_TILES * 4)][i / (COLUMN_TILES * 4) % TILE_ROWS]
                               [i / 4 % COLUMN_TILES][i % 4];
                sum = times_power(sum, shift - scale);
            }
            scale = shift;
        }
        factor = factor_of(shift, scale);
#endif
        add<0>(sums, (const ELEMENT *)stage, fragments, me, now.plane, factor);
        __syncthreads();
        f32 *exchanged = (f32 *)(stages + buffer * STAGE_BYTES);  // [warp][sum][lane], until the stage is filled again
        if (STAGES == 2) buffer ^= 1;
        if (!is_last(now, sizes)) continue;
        if (SPLIT_K_WARPS > 1) {
            constexpr int many = TILE_PLANES * TILE_ROWS * COLUMN_TILES * 4, tiles = WARPS_ACROSS * WARPS_DOWN;
            f32(&flat)[many] = *(f32(*)[many])sums;
            f32 *offset = exchanged + warp % tiles * (many * 32) + lane;
            if (me.split_k_warp > 0) {
#pragma unroll
                for (int i = 0; i < many; i++) offset[((me.split_k_warp - 1) * tiles * many + i) * 32] = flat[i];
            }
            __syncthreads();
#pragma unroll
            for (int i = 0; i < many; i++) {
                if (me.split_k_warp == 0) {
#pragma unroll
                    for (int other = 0; other < SPLIT_K_WARPS - 1; other++)
                        flat[i] += offset[(other * tiles * many + i) * 32];
                } else {
                    flat[i] = 0.0f;
                }
            }
            __syncthreads();
#if IN_HALVES
            if (me.split_k_warp > 0) scale = NO_SUMS;
#endif
            if (me.split_k_warp > 0) continue;
        }
#if IN_HALVES
#pragma unroll
        for (int i = 0; i < TILE_PLANES * TILE_ROWS * COLUMN_TILES * 4; i++) {
            f32 &sum = sums[i / (TILE_ROWS * COLUMN_TILES * 4)][i / (COLUMN_TILES * 4) % TILE_ROWS]
                           [i / 4 % COLUMN_TILES][i % 4];
            sum = times_power(sum, -scale);
        }
        scale = NO_SUMS;
#endif
#pragma unroll
        for (int b_d = 0; b_d < TILE_PLANES; b_d++)
#pragma unroll
            for (int row = 0; row < TILE_ROWS; row++)
#pragma unroll
                for (int half = 0; half < 2; half++) {
                    const int d0 = UNIT_D * (at.d + b_d) - DELTA_D;
                    const int h0 = UNIT_H * (at.h + me.warp_down * TILE_ROWS + row) - DELTA_H;
                    const int w0 = UNIT_W * (at.w + me.warp_across * 16 + half * 8 + me.g) - DELTA_W;
                    const INDEX start = (INDEX)at.n * X_N + (INDEX)d0 * X_D + (INDEX)h0 * X_H + (INDEX)w0 * X_W;
                    const bool is_whole = d0 >= 0 && d0 + UNIT_D <= DEPTH && h0 >= 0 && h0 + UNIT_H <= HEIGHT &&
                                          w0 >= 0 && w0 + UNIT_W <= WIDTH;
                    if (is_whole && has_words) {  // most of an image: no column needs a test
#pragma unroll
                        for (int j = 0; j < COLUMN_TILES; j++) {
                            if (COLUMNS % 8 && channel[j][0] < 0) continue;
                            f32 value[2];
#pragma unroll
                            for (int e = 0; e < 2; e++)
                                value[e] =
                                    alpha * FINISH(sums[b_d][row][j][2 * half + e], at.n, channel[j][e],
                                                   d0 + result_d[j][e], h0 + result_h[j][e], w0 + result_w[j][e]);
                            store_pair(dx + start + relative[j][0], value[0], value[1]);
                        }
                        continue;
                    }
#pragma unroll
                    for (int j = 0; j < COLUMN_TILES; j++) {
                        f32 value[2];
                        bool is_inside[2];
#pragma unroll
                        for (int e = 0; e < 2; e++) {
                            const int d = d0 + result_d[j][e], h = h0 + result_h[j][e], column = w0 + result_w[j][e];
                            is_inside[e] = is_whole || ((u32)d < DEPTH && (u32)h < HEIGHT && (u32)column < WIDTH);
                            if (COLUMNS % 8) is_inside[e] = is_inside[e] && channel[j][e] >= 0;
                            value[e] = 0.0f;
                            if (is_inside[e])
                                value[e] =
                                    alpha * FINISH(sums[b_d][row][j][2 * half + e], at.n, channel[j][e], d, h, column);
                        }
                        if (has_words && is_inside[0] && is_inside[1]) {
                            store_pair(dx + start + relative[j][0], value[0], value[1]);
                            continue;
                        }
#pragma unroll
                        for (int e = 0; e < 2; e++)
                            if (is_inside[e]) {
                                ELEMENT *to = dx + start + relative[j][e];
                                if (beta != 0.0f) value[e] += beta * FROM_HALF(*to);
                                *to = TO_HALF(value[e]);
                            }
                    }
                }
#pragma unroll
        for (int i = 0; i < TILE_PLANES * TILE_ROWS * COLUMN_TILES * 4; i++)
            sums[i / (TILE_ROWS * COLUMN_TILES * 4)][i / (COLUMN_TILES * 4) % TILE_ROWS][i / 4 % COLUMN_TILES][i % 4] =
                0.0f;
    }
}

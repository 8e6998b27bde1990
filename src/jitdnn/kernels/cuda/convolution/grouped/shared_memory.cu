// Grouped convolution, forward and backward to the data, by block-diagonal products: through shared memory.
//
// The axes and slices are those of registers.cu; of f32, which products.cuh multiplies, 8 channels are a step in place
// of 16. A thread block takes BLOCK_SLICES slices and one tile after the
// other, every WORKERS-th: in each of TILE_IMAGES images, TILE_DOWN times TILE_ROWS rows of TILE_ACROSS blocks b.
// STAGES tiles are in use or in flight:
//
//     stage            TILE_IMAGES images, with 16 * IMAGE_PAD bytes behind each
//     of an image      ROWS rows of the source, with 16 * ROW_PAD bytes behind each; rows STEP_H apart are neighbours
//     of a row         COLUMNS pixels of PITCH bytes, all channels of the slices; columns STEP_W apart are neighbours
//
// So a tap is a constant distance, and 8 blocks b are in 8 different groups of four banks where paddings can bring it
// about. A warp keeps the fragments of the filter for 16 * CHANNEL_STEPS channels in and 8 * TILE_N out in registers,
// and takes 16 b's at a time, in any rows and images, and TILE_ROWS rows down from each.

constexpr int STEP_IN = 2 * CHUNK;  // source channels of a product
constexpr int SLICE_IN = STEP_IN * CHANNEL_STEPS, SLICE_OUT = SLICE_GROUPS * GROUP_OUT;
constexpr int PARTS = (SLICE_OUT + 8 * TILE_N - 1) / (8 * TILE_N);  // warps that share the outputs of a slice
constexpr int DISTINCT_WARPS = BLOCK_SLICES * PARTS, SPLITS = BLOCK_THREADS / 32 / DISTINCT_WARPS;
constexpr int BLOCK_GROUPS = BLOCK_SLICES * SLICE_GROUPS, BLOCK_IN = BLOCK_SLICES * SLICE_IN;
constexpr int BLOCKS = (GROUPS_OF_CHANNELS + BLOCK_GROUPS - 1) / BLOCK_GROUPS;
constexpr bool IS_FULL = GROUPS_OF_CHANNELS % BLOCK_GROUPS == 0 && SLICE_OUT % (8 * TILE_N) == 0;
constexpr int ALL_IN = GROUPS_OF_CHANNELS * GROUP_IN, ALL_OUT = GROUPS_OF_CHANNELS * GROUP_OUT;
constexpr int PITCH = (int)sizeof(ELEMENT) * BLOCK_IN + 16;  // bytes of a pixel: an odd number of 16
constexpr int POSITION_ROWS = (TILE_ROWS - 1) * STEP_H + REACH_H;
constexpr int ROWS = (TILE_DOWN * TILE_ROWS - 1) * STEP_H + REACH_H, COLUMNS = (TILE_ACROSS - 1) * STEP_W + REACH_W;
constexpr int PHASE_ROWS = (ROWS + STEP_H - 1) / STEP_H, PHASE_COLUMNS = (COLUMNS + STEP_W - 1) / STEP_W;
constexpr int ROW_BYTES = STEP_W * PHASE_COLUMNS * PITCH + 16 * ROW_PAD;
constexpr int IMAGE_BYTES = STEP_H * PHASE_ROWS * ROW_BYTES + 16 * IMAGE_PAD, STAGE_BYTES = TILE_IMAGES * IMAGE_BYTES;
constexpr int POSITIONS = TILE_IMAGES * TILE_DOWN * TILE_ACROSS, STEPS = (POSITIONS + 15) / 16;
constexpr int DOWN = (BLOCKS_H + TILE_DOWN * TILE_ROWS - 1) / (TILE_DOWN * TILE_ROWS);
constexpr int ACROSS = (BLOCKS_W + TILE_ACROSS - 1) / TILE_ACROSS;

// A data gradient without strides, of groups with as many channels in as out, is forward with a filter whose axes are
// swapped and whose taps are mirrored: IS_MIRRORED.

// The filter as it is staged: for each of its first axis TAPS times its second, FILTER_PITCH elements.
constexpr int GROUP_FIRST = IS_FORWARD ? GROUP_OUT : GROUP_IN, GROUP_SECOND = IS_FORWARD ? GROUP_IN : GROUP_OUT;
constexpr int FILTER_ROW = TAPS * GROUP_SECOND;
constexpr int FILTER_PITCH = FILTER_ROW % (2 * CHUNK) ? FILTER_ROW : FILTER_ROW + CHUNK;  // an odd number of 16 bytes
constexpr bool HAS_PAIRS = !IS_F32 && IS_FORWARD && W_C == 1 && GROUP_IN % 2 == 0 && FILTER_STAGED;

// Whether any of a position's outputs meets this row.
FUNCTION constexpr bool is_met(int row) {
    for (int b = 0; b < TILE_ROWS; b++) {
        const int i = row - b * STEP_H;
        for (int e = 0; e < UNIT_H; e++)
            if (i >= 0 && i < REACH_H && tap_h(e, i) >= 0) return true;
    }
    return false;
}

struct Tile { int image, b_h, b_w; };

FUNCTION Tile tile_of(int unit) {
    return {unit / (DOWN * ACROSS) * TILE_IMAGES, unit / ACROSS % DOWN * (TILE_DOWN * TILE_ROWS),
            unit % ACROSS * TILE_ACROSS};
}

FUNCTION void stage_source(u32 shared, const ELEMENT *source, Tile tile, int channel, const Sizes &sizes) {
    stage_pixels<BLOCK_IN, TILE_IMAGES, ROWS, COLUMNS, STEP_H, STEP_W, PITCH, ROW_BYTES, IMAGE_BYTES, SOURCE_H,
                 SOURCE_W>(
        shared, source, {S_N, S_D, S_H, S_W}, tile.image, tile.b_h * STEP_H + LEAST_H, tile.b_w * STEP_W + LEAST_W,
        channel, ALL_IN, IMAGES);
}

// All of the block's filter, which is contiguous.
FUNCTION void stage_filter(ELEMENT *shared, const ELEMENT *w, int first_group) {
    constexpr int CHUNKS_ROW = FILTER_ROW % CHUNK ? 1 : FILTER_ROW / CHUNK;
    constexpr int CHUNKS = BLOCK_GROUPS * GROUP_FIRST * FILTER_ROW / CHUNK;
    constexpr int ALL = GROUPS_OF_CHANNELS * GROUP_FIRST * FILTER_ROW / CHUNK;
    const int first = first_group * GROUP_FIRST * FILTER_ROW / CHUNK;
    for (int i = threadIdx.x; i < CHUNKS; i += BLOCK_THREADS) {
        const bool is_there = first + i < ALL;
        const int to = FILTER_PITCH == FILTER_ROW ? i * CHUNK : i / CHUNKS_ROW * FILTER_PITCH + i % CHUNKS_ROW * CHUNK;
        cp_async16(shared + to, w + (is_there ? (INDEX)(first + i) * CHUNK : 0), is_there);
    }
}

KERNEL2(BLOCK_THREADS, RESIDENT)
void grouped_shared_memory(const ELEMENT *RESTRICT source, const ELEMENT *RESTRICT w, ELEMENT *result EPILOGUE_PARAMETERS,
                           u8 *workspace, f64 alpha64, f64 beta64, NUMBERS) {
    begin_launch();
    const Sizes sizes = SIZES;
    const int units = (IMAGES + TILE_IMAGES - 1) / TILE_IMAGES * (DOWN * ACROSS);
    extern __shared__ uint4 shared[];
    const int block = blockIdx.x % BLOCKS, worker = blockIdx.x / BLOCKS;
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
    const int part = warp % PARTS, own_slice = warp / PARTS % BLOCK_SLICES;
    const int split = warp / DISTINCT_WARPS < SPLITS ? warp / DISTINCT_WARPS : STEPS;
    const int slice = block * BLOCK_SLICES + own_slice;
    const f32 alpha = (f32)alpha64, beta = (f32)beta64;
    const u32 stages = smem_address(shared);
    ELEMENT *staged_filter = (ELEMENT *)shared + STAGES * (STAGE_BYTES / (int)sizeof(ELEMENT));

    if (FILTER_STAGED) stage_filter(staged_filter, w, block * BLOCK_GROUPS);
    cp_async_commit();
#pragma unroll
    for (int stage_number = 0; stage_number < STAGES; stage_number++) {
        const int unit = worker + stage_number * WORKERS;
        if (unit < units)
            stage_source(stages + stage_number * STAGE_BYTES, source, tile_of(unit), block * BLOCK_IN, sizes);
        cp_async_commit();
    }
    if (FILTER_STAGED) {
        cp_async_wait<STAGES>();
        __syncthreads();
    }

    // columns are ordered so that a lane's sums are neighbouring channels
    Factor<2> filter[TAPS][CHANNEL_STEPS][TILE_N];
#pragma unroll
    for (int j = 0; j < TILE_N; j++) {
        const int out = part * (8 * TILE_N) + g / 2 * (2 * TILE_N) + j * 2 + g % 2;
        const int own_group = own_slice * SLICE_GROUPS + out / GROUP_OUT, group = block * BLOCK_GROUPS + own_group;
        const bool is_there = out < SLICE_OUT && group < GROUPS_OF_CHANNELS;
#pragma unroll
        for (int step = 0; step < CHANNEL_STEPS; step++)
#pragma unroll
            for (int e = 0; e < 2 * PER_WORD; e++) {
                const int in = step * STEP_IN + e / PER_WORD * CHUNK + PER_WORD * t + e % PER_WORD;
                const bool is_own = is_there && in / GROUP_IN == out / GROUP_OUT;
                const bool is_first_out = IS_FORWARD && !IS_MIRRORED;
                const int first = is_first_out ? out % GROUP_OUT : in % GROUP_IN;
                const int second = is_first_out ? in % GROUP_IN : out % GROUP_OUT;
                const ELEMENT *from = FILTER_STAGED ? staged_filter + (own_group * GROUP_FIRST + first) * FILTER_PITCH
                                                : w + (INDEX)(group * GROUP_FIRST + first) * W_K;
                from += W_BASE + second * W_C;
#pragma unroll
                for (int tap = 0; tap < TAPS; tap++) {
                    const ELEMENT *at = from + tap / TAPS_S * W_R + tap % TAPS_S * W_S;
                    u32 &word = filter[tap][step][j].bits[e / PER_WORD];
                    if (HAS_PAIRS && !IS_MIRRORED) {
                        if (e % 2 == 0) word = is_own ? *(const u32 *)at : 0;
                    } else {
                        const u32 bits = is_own ? bits_of(*at) : 0;
                        word = e % PER_WORD ? word | bits << 16 : bits;
                    }
                }
            }
    }

#pragma unroll
    for (int tap = 0; tap < TAPS; tap++)
#pragma unroll
        for (int step = 0; step < CHANNEL_STEPS; step++)
#pragma unroll
            for (int j = 0; j < TILE_N; j++) prepare(filter[tap][step][j]);

    // a lane gives the address of 16 bytes of one of 16 positions: the first channels first
    const int out_channel = slice * SLICE_OUT + part * (8 * TILE_N) + t * (2 * TILE_N);
    const int out_limit = min((slice + 1) * SLICE_OUT, ALL_OUT);
    const u32 lane_start = stages + own_slice * ((int)sizeof(ELEMENT) * SLICE_IN) + lane / 16 * 16;
    int stage_number = 0;
#pragma unroll 1
    for (int unit = worker; unit < units; unit += WORKERS) {
        const Tile tile = tile_of(unit);
        cp_async_wait<STAGES - 1>();
        __syncthreads();
#pragma unroll 1
        for (int step = split; step < STEPS; step += SPLITS) {
            const int own = min(step * 16 + lane % 16, POSITIONS - 1), line = own / TILE_ACROSS;
            const u32 from = lane_start + stage_number * STAGE_BYTES + own % TILE_ACROSS * PITCH +
                             line / TILE_DOWN * IMAGE_BYTES + line % TILE_DOWN * (TILE_ROWS * ROW_BYTES);
            f32 sums[TILE_ROWS][UNIT_H][UNIT_W][TILE_N][4] = {};
#pragma unroll
            for (int row = 0; row < POSITION_ROWS; row++) {
                if (!is_met(row)) continue;
#pragma unroll
                for (int i = 0; i < REACH_W; i++) {
                    if (!is_used(i)) continue;
#pragma unroll
                    for (int k = 0; k < CHANNEL_STEPS; k++) {
                        Factor<4> a;
                        ldmatrix_x4(a.bits, from + (row % STEP_H * PHASE_ROWS + row / STEP_H) * ROW_BYTES +
                                           (i % STEP_W * PHASE_COLUMNS + i / STEP_W) * PITCH + k * 32);
                        prepare(a);
                        add_products(sums, a, filter, row, i, k);
                    }
                }
            }
#pragma unroll
            for (int h = 0; h < 2; h++) {
                const int position = step * 16 + h * 8 + g, column = position % TILE_ACROSS,
                          above = position / TILE_ACROSS;
                const int image = tile.image + above / TILE_DOWN;
                if (position >= POSITIONS || image >= IMAGES) continue;
                const int b_h = tile.b_h + above % TILE_DOWN * TILE_ROWS, b_w = tile.b_w + column;
                const INDEX plane = (INDEX)(image / PLANES) * R_N + (INDEX)(image % PLANES) * R_D;
#pragma unroll
                for (int b = 0; b < TILE_ROWS; b++)
#pragma unroll
                    for (int e = 0; e < UNIT_H * UNIT_W; e++) {
                        const int y = UNIT_H * (b_h + b) + e / UNIT_W - DELTA_H,
                                  x = UNIT_W * b_w + e % UNIT_W - DELTA_W;
                        if ((u32)y >= RESULT_H || (u32)x >= RESULT_W) continue;
                        f32 mine[2 * TILE_N];
#pragma unroll
                        for (int i = 0; i < 2 * TILE_N; i++)
                            mine[i] = sums[b][e / UNIT_W][e % UNIT_W][i / 2][2 * h + i % 2];
                        store_channels<2 * TILE_N, IS_FULL>(result, plane + (INDEX)y * R_H + (INDEX)x * R_W,
                                                            out_channel, out_limit, mine, alpha,
                                                            beta COORDINATE_ARGUMENTS);
                    }
            }
        }
        __syncthreads();
        const int next = unit + STAGES * WORKERS;
        if (next < units)
            stage_source(stages + stage_number * STAGE_BYTES, source, tile_of(next), block * BLOCK_IN, sizes);
        cp_async_commit();
        stage_number = stage_number + 1 < STAGES ? stage_number + 1 : 0;
    }
}

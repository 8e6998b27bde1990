// Grouped convolution, forward and backward to the data, by block-diagonal products: straight from memory to
// registers.
//
// Along each axis UNIT results are a block b, which meets REACH positions of the source: see half_precision/axis.py.
// Forward UNIT is 1 and STEP the stride, backward the other way round. A slice is SLICE_GROUPS neighbouring groups,
// whose source channels fill CHANNEL_STEPS times 16; its filter is block-diagonal:
//
//                      results of group 0   group 1   ...
//                     +-------------------+---------+-----+
//     source   gr. 0  |      filter       |    0    |     |      An infinity or NaN in a group of a slice makes NaN in
//     channels gr. 1  |         0         | filter  |     |      the others.
//              ...    |                   |         | ... |
//                     +-------------------+---------+-----+
//
// A warp keeps the fragments of its slice's filter in registers and takes one work unit after the other, every
// WORKERS-th: TILE_ROWS rows of two strips of 8 b's, each of any image. Source pixels are loaded into the fragments:
// a lane reads 4 * CHANNEL_STEPS neighbouring channels of its pixel, at once where they are aligned. Rows are loaded
// PREFETCH_ROWS rows ahead of the products, since a load takes ten times as long as a row's products.

constexpr int PIECE = 4 * CHANNEL_STEPS;                   // source channels of a lane
constexpr int SLICE_IN = SLICE_GROUPS * GROUP_IN, SLICE_OUT = SLICE_GROUPS * GROUP_OUT;
constexpr int PARTS = (SLICE_OUT + 8 * TILE_N - 1) / (8 * TILE_N);  // warps that share the outputs of a slice
constexpr bool IS_FULL = GROUPS_OF_CHANNELS % SLICE_GROUPS == 0 && SLICE_IN == 16 * CHANNEL_STEPS;
constexpr int SLICES = (GROUPS_OF_CHANNELS + SLICE_GROUPS - 1) / SLICE_GROUPS;
constexpr int SOURCE_ROWS = (TILE_ROWS - 1) * STEP_H + REACH_H;
constexpr int STRIPS_ACROSS = (BLOCKS_W + 7) / 8, ROW_BLOCKS = (BLOCKS_H + TILE_ROWS - 1) / TILE_ROWS;

struct Piece { u32 words[2 * CHANNEL_STEPS]; };

FUNCTION Piece load_piece(const u16 *source, INDEX at, int channel, int limit, bool is_inside) {
    Piece piece;
#pragma unroll
    for (int i = 0; i < 2 * CHANNEL_STEPS; i++) piece.words[i] = 0;
#if SOURCE_PIECE && CHANNEL_STEPS == 1
    uint2 both = make_uint2(0, 0);
    if (is_inside && (IS_FULL || channel < limit)) both = load8(source + at + channel);
    piece.words[0] = both.x, piece.words[1] = both.y;
#elif SOURCE_PIECE
    uint4 all = make_uint4(0, 0, 0, 0);
    if (is_inside && (IS_FULL || channel < limit)) all = load16(source + at + channel);
    piece.words[0] = all.x, piece.words[1] = all.y, piece.words[2] = all.z, piece.words[3] = all.w;
#else
    if (is_inside)
#pragma unroll
        for (int i = 0; i < PIECE; i++)
            if (channel + i < limit) piece.words[i / 2] |= (u32)source[at + (INDEX)(channel + i) * S_C] << (i % 2 * 16);
#endif
    return piece;
}

KERNEL2(BLOCK_THREADS, RESIDENT)
void grouped(const u16 *RESTRICT source, const u16 *RESTRICT w, u16 *result EPILOGUE_PARAMETERS, u8 *workspace,
             f64 alpha64, f64 beta64, NUMBERS) {
    begin_launch();
    const Sizes sizes = SIZES;
    const int strips = IMAGES * STRIPS_ACROSS, units = (strips + 1) / 2 * ROW_BLOCKS;
    const int warp = (int)(blockIdx.x * (BLOCK_THREADS / 32) + threadIdx.x / 32), lane = threadIdx.x % 32;
    const int g = lane / 4, t = lane % 4;
    const int part = warp % PARTS, slice = warp / PARTS % SLICES, worker = warp / (PARTS * SLICES);
    const f32 alpha = (f32)alpha64, beta = (f32)beta64;
    if (worker >= WORKERS) return;

    // lane t has source channels PIECE * t ... of the slice: 4 of them for each step; columns are ordered so that a
    // lane's sums are neighbouring channels
    Factor<2> filter[TAPS][CHANNEL_STEPS][TILE_N];
#pragma unroll
    for (int j = 0; j < TILE_N; j++) {
        const int out = part * (8 * TILE_N) + g / 2 * (2 * TILE_N) + j * 2 + g % 2;
        const int group = slice * SLICE_GROUPS + out / GROUP_OUT;
        const bool is_there = out < SLICE_OUT && group < GROUPS_OF_CHANNELS;
        const INDEX start = W_BASE + (INDEX)group * W_GROUP + (INDEX)(out % GROUP_OUT) * W_OUT;
#pragma unroll
        for (int step = 0; step < CHANNEL_STEPS; step++)
#pragma unroll
            for (int e = 0; e < 4; e++) {
                const int in = t * PIECE + step * 4 + e;
                const bool is_own = is_there && in < SLICE_IN && in / GROUP_IN == out / GROUP_OUT;
                const u16 *from = w + start + (INDEX)(in % GROUP_IN) * W_IN;
#pragma unroll
                for (int tap = 0; tap < TAPS; tap++) {
                    u32 half = 0;
                    if (is_own) half = from[tap / TAPS_S * W_R + tap % TAPS_S * W_S];
                    if (e % 2)
                        filter[tap][step][j].bits[e / 2] |= half << 16;
                    else
                        filter[tap][step][j].bits[e / 2] = half;
                }
            }
    }

    const int channel = slice * SLICE_IN + t * PIECE;
    const int in_limit = min((slice + 1) * SLICE_IN, GROUPS_OF_CHANNELS * GROUP_IN);
    const int out_channel = slice * SLICE_OUT + part * (8 * TILE_N) + t * (2 * TILE_N);
    const int out_limit = min((slice + 1) * SLICE_OUT, GROUPS_OF_CHANNELS * GROUP_OUT);
#pragma unroll 1
    for (int unit = worker; unit < units; unit += WORKERS) {
        const int b_h = unit % ROW_BLOCKS * TILE_ROWS;
        int image[2], b_w[2];
        INDEX start[2];
#pragma unroll
        for (int h = 0; h < 2; h++) {
            const int strip = unit / ROW_BLOCKS * 2 + h;
            image[h] = strip < strips ? strip / STRIPS_ACROSS : -1;
            b_w[h] = strip % STRIPS_ACROSS * 8 + g;
            start[h] = (INDEX)max(image[h], 0) / PLANES * S_N + (INDEX)max(image[h], 0) % PLANES * S_D +
                       (INDEX)(STEP_W * b_w[h] + LEAST_W) * S_W + (INDEX)(STEP_H * b_h + LEAST_H) * S_H;
        }
        f32 sums[TILE_ROWS][UNIT_H][UNIT_W][TILE_N][4] = {};
        Piece pieces[PREFETCH_ROWS + 1][REACH_W][2];  // [row modulo PREFETCH_ROWS + 1][position][half]
#pragma unroll
        for (int row = -PREFETCH_ROWS; row < SOURCE_ROWS; row++) {
            const int next = row + PREFETCH_ROWS;
            if (next < SOURCE_ROWS) {
                const bool is_row = (u32)(STEP_H * b_h + LEAST_H + next) < SOURCE_H;
#pragma unroll
                for (int i = 0; i < REACH_W; i++)
                    if (is_used(i))
#pragma unroll
                        for (int h = 0; h < 2;
                             h++)  // & and not &&: a load that depends on a predicate, not on a branch
                            pieces[next % (PREFETCH_ROWS + 1)][i][h] = load_piece(
                                source, start[h] + (INDEX)next * S_H + (INDEX)i * S_W, channel, in_limit,
                                is_row & (image[h] >= 0) & ((u32)(STEP_W * b_w[h] + LEAST_W + i) < SOURCE_W));
            }
            if (row < 0) continue;
#pragma unroll
            for (int i = 0; i < REACH_W; i++)
#pragma unroll
                for (int step = 0; step < CHANNEL_STEPS; step++) {
                    if (!is_used(i)) continue;
                    const Piece &first = pieces[row % (PREFETCH_ROWS + 1)][i][0],
                                &second = pieces[row % (PREFETCH_ROWS + 1)][i][1];
                    const Factor<4> a = {{first.words[2 * step], second.words[2 * step], first.words[2 * step + 1],
                                          second.words[2 * step + 1]}};
                    add_products(sums, a, filter, row, i, step);
                }
        }
#pragma unroll
        for (int h = 0; h < 2; h++) {
            if (image[h] < 0) continue;
            const INDEX plane = (INDEX)image[h] / PLANES * R_N + (INDEX)image[h] % PLANES * R_D;
#pragma unroll
            for (int b = 0; b < TILE_ROWS; b++)
#pragma unroll
                for (int e = 0; e < UNIT_H * UNIT_W; e++) {
                    const int y = UNIT_H * (b_h + b) + e / UNIT_W - DELTA_H, x = UNIT_W * b_w[h] + e % UNIT_W - DELTA_W;
                    if ((u32)y >= RESULT_H || (u32)x >= RESULT_W) continue;
                    f32 mine[2 * TILE_N];
#pragma unroll
                    for (int i = 0; i < 2 * TILE_N; i++)
                        mine[i] = sums[b][e / UNIT_W][e % UNIT_W][i / 2][2 * h + i % 2];
                    store_channels<2 * TILE_N, IS_FULL && SLICE_OUT % (8 * TILE_N) == 0>(
                        result, plane + (INDEX)y * R_H + (INDEX)x * R_W, out_channel, out_limit, mine, alpha,
                        beta COORDINATE_ARGUMENTS);
                }
        }
    }
}

// wgrad of grouped convolutions, straight from memory to registers: for each tap, dy transposed times x.
//
// A slice is SLICE_GROUPS neighbouring groups. A warp computes 16 channels of dy times 16 channels of x for TILE_TAPS
// rows of taps, of which only what is within groups is stored, and sums over its work units, every WORKERS-th:
// TILE_ROWS rows of two strips of 8 outputs. An mma sums over the 16 outputs of a row. Lane (g, t) loads channels 2g,
// 2g + 1 of outputs 2t, 2t + 1 of both strips; two byte permutations make pairs of outputs of them, the even channels
// of one tile and the odd ones of another. Each worker writes partial sums to the workspace; grouped_wgrad_reduce
// adds them.

constexpr int TAPS = TAPS_R * TAPS_S;
constexpr int SLICE_IN = SLICE_GROUPS * GROUP_IN, SLICE_OUT = SLICE_GROUPS * GROUP_OUT;
constexpr int PARTS_IN = (SLICE_IN + 15) / 16, PARTS_OUT = (SLICE_OUT + 15) / 16;
constexpr int PARTS_TAPS = (TAPS_R + TILE_TAPS - 1) / TILE_TAPS;
constexpr int SLICES = (GROUPS_OF_CHANNELS + SLICE_GROUPS - 1) / SLICE_GROUPS;
constexpr int STRIPS_ACROSS = (OUT_Q + 7) / 8, ROW_BLOCKS = (OUT_P + TILE_ROWS - 1) / TILE_ROWS;
constexpr int ELEMENTS = GROUPS_OF_CHANNELS * GROUP_OUT * GROUP_IN * TAPS;
constexpr int SOURCE_ROWS = (TILE_ROWS - 1) * STRIDE_H + (TILE_TAPS - 1) * DILATION_H + 1;

// Channels `at`, of which `count` exist, and the next; `is_even`: both or none exist, at an aligned address.
template <int stride, bool is_even>
FUNCTION u32 load_pair(const u16 *tensor, INDEX at, int count, bool is_inside) {
    u32 pair = 0;
    if (is_even) {
        if (is_inside && count > 0) pair = load4(tensor + at);
    } else if (is_inside) {
        if (count > 0) pair = tensor[at];
        if (count > 1) pair |= (u32)tensor[at + stride] << 16;
    }
    return pair;
}

KERNEL2(BLOCK_THREADS, RESIDENT)
void grouped_wgrad(const u16 *RESTRICT x, const u16 *RESTRICT dy, u16 *dw, u8 *workspace, f64 alpha, f64 beta,
                   NUMBERS) {
    const Sizes sizes = SIZES;
    const int strips = IMAGES * PLANES * STRIPS_ACROSS, units = (strips + 1) / 2 * ROW_BLOCKS;
    int rest = (int)(blockIdx.x * (BLOCK_THREADS / 32) + threadIdx.x / 32);
    const int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
    const int part_in = rest % PARTS_IN, part_out = rest / PARTS_IN % PARTS_OUT;
    rest /= PARTS_IN * PARTS_OUT;
    const int first_tap = rest % PARTS_TAPS * TILE_TAPS, slice = rest / PARTS_TAPS % SLICES;
    const int worker = rest / (PARTS_TAPS * SLICES);
    if (worker >= WORKERS) return;
    const int in_channel = slice * SLICE_IN + part_in * 16 + 2 * g,
              out_channel = slice * SLICE_OUT + part_out * 16 + 2 * g;
    const int in_limit = min((slice + 1) * SLICE_IN, GROUPS_OF_CHANNELS * GROUP_IN);
    const int out_limit = min((slice + 1) * SLICE_OUT, GROUPS_OF_CHANNELS * GROUP_OUT);

    f32 sums[TILE_TAPS][TAPS_S][2][4] = {};
#pragma unroll 1
    for (int unit = worker; unit < units; unit += WORKERS) {
        const int p0 = unit % ROW_BLOCKS * TILE_ROWS, h0 = p0 * STRIDE_H - PAD_H + first_tap * DILATION_H;
        INDEX x_start[4], y_start[4];
        int column[4];  // of the first tap; far outside where there is no output
#pragma unroll
        for (int e = 0; e < 4; e++) {
            const int strip = unit / ROW_BLOCKS * 2 + e / 2, q = strip % STRIPS_ACROSS * 8 + 2 * t + e % 2;
            const int image = strip / STRIPS_ACROSS;
            const bool is_there = strip < strips && q < OUT_Q;
            column[e] = is_there ? q * STRIDE_W - PAD_W : -(1 << 29);
            x_start[e] = (INDEX)(image / PLANES) * X_N + (INDEX)(image % PLANES) * X_D +
                         (INDEX)(q * STRIDE_W - PAD_W) * X_W + (INDEX)h0 * X_H + (INDEX)in_channel * X_C;
            y_start[e] = (INDEX)(image / PLANES) * Y_N + (INDEX)(image % PLANES) * Y_D + (INDEX)q * Y_W +
                         (INDEX)p0 * Y_H + (INDEX)out_channel * Y_C;
        }
        u32 x_words[2][TAPS_S][4], y_words[TILE_ROWS][4];
#pragma unroll
        for (int row = -1; row < SOURCE_ROWS; row++) {
            const int next = row + 1;
            if (next < SOURCE_ROWS) {
                const bool is_row = (u32)(h0 + next) < HEIGHT;
#pragma unroll
                for (int s = 0; s < TAPS_S; s++)
#pragma unroll
                    for (int e = 0; e < 4; e++)
                        x_words[next & 1][s][e] = load_pair<X_C, X_IS_EVEN>(
                            x, x_start[e] + (INDEX)next * X_H + (INDEX)s * (DILATION_W * X_W), in_limit - in_channel,
                            is_row && (u32)(column[e] + s * DILATION_W) < WIDTH);
                if (next % STRIDE_H == 0 && next / STRIDE_H < TILE_ROWS) {
                    const int b = next / STRIDE_H;
                    u32 word[4];
#pragma unroll
                    for (int e = 0; e < 4; e++)
                        word[e] = load_pair<Y_C, Y_IS_EVEN>(dy, y_start[e] + (INDEX)b * Y_H, out_limit - out_channel,
                                                 p0 + b < OUT_P && column[e] > -(1 << 28));
                    y_words[b][0] = byte_permute(word[0], word[1], 0x5410);
                    y_words[b][1] = byte_permute(word[0], word[1], 0x7632);
                    y_words[b][2] = byte_permute(word[2], word[3], 0x5410);
                    y_words[b][3] = byte_permute(word[2], word[3], 0x7632);
                }
            }
            if (row < 0) continue;
#pragma unroll
            for (int s = 0; s < TAPS_S; s++) {
                const u32 *word = x_words[row & 1][s];
                const u32 even[2] = {byte_permute(word[0], word[1], 0x5410), byte_permute(word[2], word[3], 0x5410)};
                const u32 odd[2] = {byte_permute(word[0], word[1], 0x7632), byte_permute(word[2], word[3], 0x7632)};
#pragma unroll
                for (int b = 0; b < TILE_ROWS; b++) {
                    const int reach = row - b * STRIDE_H;
                    if (reach < 0 || reach % DILATION_H || reach / DILATION_H >= TILE_TAPS) continue;
                    MMA(sums[reach / DILATION_H][s][0], y_words[b], even);
                    MMA(sums[reach / DILATION_H][s][1], y_words[b], odd);
                }
            }
        }
    }

    // [worker][tap][channel of y][channel of a group of x]: a lane has four neighbouring channels of x
    f32 *total = (f32 *)workspace + (i64)worker * ELEMENTS;
#pragma unroll
    for (int r = 0; r < TILE_TAPS; r++) {
        if (first_tap + r >= TAPS_R) continue;
#pragma unroll
        for (int s = 0; s < TAPS_S; s++)
#pragma unroll
            for (int i = 0; i < 2; i++) {
                const int out = part_out * 16 + 2 * g + i, in = part_in * 16 + 4 * t, k = slice * SLICE_OUT + out;
                if (out >= SLICE_OUT || k >= out_limit) continue;
                f32 *to = total + (((first_tap + r) * TAPS_S + s) * (GROUPS_OF_CHANNELS * GROUP_OUT) + k) * GROUP_IN;
                const f32 four[4] = {sums[r][s][0][2 * i], sums[r][s][1][2 * i], sums[r][s][0][2 * i + 1],
                                     sums[r][s][1][2 * i + 1]};
                if (GROUP_IN % 4 == 0) {
                    if (in < SLICE_IN && out / GROUP_OUT == in / GROUP_IN)
                        store16(to + in % GROUP_IN, make_uint4(__float_as_uint(four[0]), __float_as_uint(four[1]),
                                                               __float_as_uint(four[2]), __float_as_uint(four[3])));
                } else {
#pragma unroll
                    for (int e = 0; e < 4; e++)
                        if (in + e < SLICE_IN && out / GROUP_OUT == (in + e) / GROUP_IN)
                            to[(in + e) % GROUP_IN] = four[e];
                }
            }
    }
}

// wgrad with few input channels: dw = sum over outputs of dy times the run of x.
//
// An mma sums over 16 outputs. A is dy transposed, 16 output channels x 16 outputs, by ldmatrix. For B a lane reads a
// word of the runs of 4 outputs; two byte permutations pair the lower halves (one tile of 8 columns: even elements of
// 8 words) and the upper halves (another tile). Each block sums its strips in registers, adds its warps' sums in a
// fixed order, and writes partial sums to the workspace in the order of registers; few_channels_wgrad_reduce adds
// those of all blocks.
//
// Macros: BLOCK_THREADS, RESIDENT, STAGES, TILE_M (mma tiles of a warp, of 16 channels), TILE_WORDS (of 8 words),
// CHANNEL_GROUPS and WORD_GROUPS (of warps with other channels, other words), CHANNEL_BLOCKS (thread blocks that
// share the channels: gridDim.y), PARTIALS (thread blocks that share the strips: gridDim.x), Y_VECTOR (channels of dy
// at a time), Y_IS_WHOLE (rows of dy follow each other).

// IN_HALVES: f32 is divided when a strip has arrived, by all threads, into two numbers of half precision each, times powers
// of two of the strip's own: 16 channels of dy in 64 bytes become 16 first halves and 16 second ones, a word of x both
// halves of its number. The header behind the partial sums has whether a number was met that is not finite: of each block,
// and in the end of all.

#define IN_HALVES (IS_F32 && PRODUCTS == 2)
constexpr int WARPS = BLOCK_THREADS / 32;
constexpr int OUTPUT_WARPS =
    WARPS / (CHANNEL_GROUPS * WORD_GROUPS * PHASES);    // warps that share the outputs of a phase
constexpr int PIECE = 16 / sizeof(ELEMENT);              // channels of dy that are copied at once
constexpr int BLOCK_CHANNELS = CHANNEL_GROUPS * TILE_M * 16;  // output channels of a block: blockIdx.y says which
constexpr int CHUNKS = BLOCK_CHANNELS / PIECE;
// Elements from one output of dy to the next. Odd in pieces, so that ldmatrix meets no bank twice with 8 of them; of
// f32, 8 or 24 banks apart, since lanes read four outputs of 8 channels.
constexpr int PITCH = IS_F32 && !IN_HALVES ? BLOCK_CHANNELS + 8 : (CHUNKS | 1) * PIECE;
constexpr int AT_ONCE = IN_HALVES ? 16 : 8 * PER_WORD;                   // outputs that an mma sums over
constexpr int OUTPUTS = BLOCK_P * BLOCK_Q;              // of a strip; one more row is zero
constexpr int DY_WORDS = (OUTPUTS + 1) * PITCH / PER_WORD;
constexpr int PHASE_GROUPS = CHANNEL_GROUPS * WORD_GROUPS, GROUPS = PHASE_GROUPS * PHASES;  // warps with other sums
constexpr int SUMS = TILE_M * TILE_WORDS * PER_WORD * 4;  // of a lane
#define PARTIAL_SUMS (CHANNEL_BLOCKS * (GROUPS * SUMS * 32))  // sums of all blocks of channels

// Runs a statement with each `sum` of a lane, and its number j.
#define FOR_EACH_SUM(statement)                                                            \
    _Pragma("unroll") for (int j = 0; j < SUMS; j++) {                                 \
        f32 &sum = sums[j / (4 * PER_WORD * TILE_WORDS)][j / (4 * PER_WORD) % TILE_WORDS][j / 4 % PER_WORD][j % 4]; \
        statement;                                                                     \
    }

FUNCTION void fetch_gradient(ELEMENT *stage, const ELEMENT *dy, Strip at, const Sizes &sizes) {
    const int first = (int)blockIdx.y * BLOCK_CHANNELS;
#if Y_VECTOR > 1
    constexpr int at_once = BLOCK_THREADS / CHUNKS;  // outputs; a thread keeps its piece
    constexpr bool is_whole = BLOCK_Q == OUT_Q && Y_IS_WHOLE;  // the outputs follow each other
    const int mine = threadIdx.x / CHUNKS, part = threadIdx.x % CHUNKS * PIECE, k = first + part;
    const ELEMENT *from = dy + (INDEX)at.n * Y_N + (INDEX)at.o * Y_D + (INDEX)at.p * Y_H + (INDEX)at.q * Y_W + k;
    const int rows = OUT_P - at.p, columns = OUT_Q - at.q;
    if (mine >= at_once) return;
#pragma unroll 4
    for (int output = mine; output < OUTPUTS; output += at_once) {
        const int row = output / BLOCK_Q, column = output % BLOCK_Q;
        const bool is_inside = (is_whole ? output < rows * BLOCK_Q : row < rows && column < columns) && k < FILTERS;
        const INDEX away = is_whole ? (INDEX)output * Y_W : (INDEX)row * Y_H + (INDEX)column * Y_W;
        cp_async16(stage + output * PITCH + part, from + away, is_inside);
    }
#else
#pragma unroll 4
    for (int i = threadIdx.x; i < OUTPUTS * BLOCK_CHANNELS; i += BLOCK_THREADS) {
#if Y_IS_PLANAR
        int output = i % OUTPUTS, part = i / OUTPUTS;
#else
        int output = i / BLOCK_CHANNELS, part = i % BLOCK_CHANNELS;
#endif
        int k = first + part, p = at.p + output / BLOCK_Q, q = at.q + output % BLOCK_Q;
        INDEX from = (INDEX)at.n * Y_N + (INDEX)at.o * Y_D + (INDEX)p * Y_H + (INDEX)q * Y_W + (INDEX)k * Y_C;
        ELEMENT value = 0;
        if (p < OUT_P && q < OUT_Q && k < FILTERS) value = dy[from];
        stage[output * PITCH + part] = value;
    }
#endif
}

#if IN_HALVES
// Whether a number was met that is not finite: by all blocks, and in each.
#define HEADER (i32 *)(workspace + (i64)PARTIALS * PARTIAL_SUMS * 4)
constexpr int FIRST_BLOCK = 16;

// Divides a strip. Returns the exponent of what its numbers were multiplied by, x and dy together.
FUNCTION int divide_strip(u32 *stage, bool &is_met) {
    constexpr int pieces = OUTPUTS * CHUNKS, used = SPAN * CHANNELS;
    f32 *gradient = (f32 *)(stage + STAGE_WORDS);
    auto place = [](int i) { return i / CHUNKS * PITCH + i % CHUNKS / 4 * 16; };
    u32 most_x = 0;
#pragma unroll 4
    for (int i = threadIdx.x; i < ROWS * used; i += BLOCK_THREADS)
        most_x = max(most_x, stage[i / used * ROW_WORDS + SHIFT + i % used] & 0x7fffffffu);
    const uint2 most = most_of_block<WARPS>(most_x, most_of_pieces<pieces>(gradient, place));
    is_met = is_met || max(most.x, most.y) >= INFINITE;
    const int of_x = shift_for(most.x), of_y = shift_for(most.y);
    divide_pieces<pieces>(gradient, place, of_y);
#pragma unroll 4
    for (int i = threadIdx.x; i < ROWS * used; i += BLOCK_THREADS) {
        u32 &word = stage[i / used * ROW_WORDS + SHIFT + i % used];
        const f32 value = times_power(__uint_as_float(word), of_x);
        word = half_of(value, 0) | half_of(value, 1) << 16;
    }
    __syncthreads();
    return (most.x ? of_x : NO_NUMBERS) + (most.y ? of_y : NO_NUMBERS);
}
#endif

KERNEL2(BLOCK_THREADS, RESIDENT)
void few_channels_wgrad(X_AND_DY, ELEMENT *dw, u8 *workspace, f64 alpha, f64 beta, NUMBERS) {
    const Sizes sizes = SIZES;
    if (!is_wanted(workspace)) return;
    extern __shared__ uint4 memory[];
    constexpr int stage_words = STAGE_WORDS + (DY_WORDS + 3) / 4 * 4;
    u32 *stages = (u32 *)memory;
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
    const int channel_group = warp % CHANNEL_GROUPS, word_group = warp / CHANNEL_GROUPS % WORD_GROUPS;
    const int phase = warp / (CHANNEL_GROUPS * WORD_GROUPS) % PHASES;
    const int output_warp = warp / (CHANNEL_GROUPS * WORD_GROUPS * PHASES);
    const int lead = phase_lead(phase), group = warp % GROUPS;

    constexpr int pitch = PITCH / PER_WORD;  // words
    for (int i = threadIdx.x; i < STAGES * pitch; i += BLOCK_THREADS)
        stages[i / pitch * stage_words + STAGE_WORDS + OUTPUTS * pitch + i % pitch] = 0;
    int offset[TILE_WORDS];
#pragma unroll
    for (int i = 0; i < TILE_WORDS; i++)
        offset[i] = (int)(word_offset((word_group * TILE_WORDS + i) * 8 + g, lead) & 0x3fffffffu);

    f32 sums[TILE_M][TILE_WORDS][PER_WORD][4] = {};
#if IN_HALVES
    int scale = NO_SUMS;  // the exponent of what sums are multiplied by
    bool is_met = false;
#endif
    int index = blockIdx.x, buffer = 0;
    if (STAGES == 2 && index < STRIPS) {
        fetch_gradient((ELEMENT *)(stages + STAGE_WORDS), dy, strip_of(index), sizes);
        fetch_rows(stages, x, strip_of(index), sizes);
        cp_async_commit();
    }
    for (; index < STRIPS; index += gridDim.x) {
        const int next = STAGES == 2 ? index + (int)gridDim.x : index;
        u32 *other = stages + (STAGES == 2 ? buffer ^ 1 : 0) * stage_words;
        if (next < STRIPS) {
            fetch_gradient((ELEMENT *)(other + STAGE_WORDS), dy, strip_of(next), sizes);
            fetch_rows(other, x, strip_of(next), sizes);
            cp_async_commit();
        }
        if (STAGES == 2 && next < STRIPS)
            cp_async_wait<1>();
        else
            cp_async_wait<0>();
        __syncthreads();
        finish_rows(stages + buffer * stage_words, x, strip_of(index));
        const u32 *stage = stages + buffer * stage_words;
        const ELEMENT *gradient = (const ELEMENT *)(stage + STAGE_WORDS);
#if IN_HALVES
        const int shift = divide_strip(stages + buffer * stage_words, is_met);
        if (is_larger(shift, scale)) {
            FOR_EACH_SUM(sum = times_power(sum, shift - scale));
            scale = shift;
        }
        const f32 factor = factor_of(shift, scale);
#endif
#pragma unroll 1
        for (int first = output_warp * AT_ONCE; first < PHASE_OUTPUTS; first += OUTPUT_WARPS * AT_ONCE) {
#if IN_HALVES
            const int mine = first + lane / 16 * 8 + lane % 8;
            const int output = PHASE_OUTPUTS % 16 == 0 || mine < PHASE_OUTPUTS ? mine : OUTPUTS;
            const f32 *row = gradient + output * PITCH + channel_group * (TILE_M * 16) + lane / 8 % 2 * 4;
            u32 whole[TILE_M][4], rest[TILE_M][4];
#pragma unroll
            for (int m = 0; m < TILE_M; m++) {
                ldmatrix_x4_trans(whole[m], row + m * 16);
                ldmatrix_x4_trans(rest[m], row + m * 16 + 8);
            }
            int base[4];
#pragma unroll
            for (int e = 0; e < 4; e++) {
                const int own = first + e / 2 * 8 + 2 * t + e % 2;
                base[e] = output_word(PHASE_OUTPUTS % 16 == 0 || own < PHASE_OUTPUTS ? own : 0, 0);
            }
#pragma unroll
            for (int i = 0; i < TILE_WORDS; i++) {
                u32 word[4];
#pragma unroll
                for (int e = 0; e < 4; e++) word[e] = stage[base[e] + offset[i]];
                const uint2 halves[2] = {
                    make_uint2(byte_permute(word[0], word[1], 0x5410), byte_permute(word[2], word[3], 0x5410)),
                    make_uint2(byte_permute(word[0], word[1], 0x7632), byte_permute(word[2], word[3], 0x7632))};
#pragma unroll
                for (int m = 0; m < TILE_M; m++) multiply_halves(sums[m][i][0], whole[m], rest[m], halves, factor);
            }
#elif IS_F32
            const f32 *rows[2];
            int base[2];
#pragma unroll
            for (int e = 0; e < 2; e++) {
                const int output = first + e * 4 + t;
                const bool is_there = PHASE_OUTPUTS % AT_ONCE == 0 || output < PHASE_OUTPUTS;
                rows[e] = gradient + (is_there ? output : OUTPUTS) * PITCH + channel_group * (TILE_M * 16) + g;
                base[e] = output_word(is_there ? output : 0, phase);
            }
            Factor<4> a[TILE_M];
#pragma unroll
            for (int m = 0; m < TILE_M; m++) {
#pragma unroll
                for (int e = 0; e < 4; e++) a[m].bits[e] = __float_as_uint(rows[e / 2][m * 16 + e % 2 * 8]);
                prepare(a[m]);
            }
#pragma unroll
            for (int i = 0; i < TILE_WORDS; i++) {
                Factor<2> b = {{stage[base[0] + offset[i]], stage[base[1] + offset[i]]}};
                prepare(b);
#pragma unroll
                for (int m = 0; m < TILE_M; m++) multiply(sums[m][i][0], a[m], b);
            }
#else
            const int mine = first + lane / 16 * 8 + lane % 8;
            const int output = PHASE_OUTPUTS % 16 == 0 || mine < PHASE_OUTPUTS ? mine * PHASES + phase : OUTPUTS;
            const u16 *row = gradient + output * PITCH + channel_group * (TILE_M * 16) + lane / 8 % 2 * 8;
            u32 a[TILE_M][4];
#pragma unroll
            for (int m = 0; m < TILE_M; m++) ldmatrix_x4_trans(a[m], row + m * 16);
            int base[4];
#pragma unroll
            for (int e = 0; e < 4; e++) {
                const int eight = first + e / 2 * 8, inside = 2 * t + e % 2;
                if (PHASE_COLUMNS % 8 == 0) {  // eight outputs never are in two rows
                    base[e] = output_word(PHASE_OUTPUTS % 16 == 0 || eight < PHASE_OUTPUTS ? eight : 0, phase) +
                              inside * COLUMN_WORDS;
                } else {
                    base[e] = output_word(eight + inside < PHASE_OUTPUTS ? eight + inside : 0, phase);
                }
            }
#pragma unroll
            for (int i = 0; i < TILE_WORDS; i++) {
                u32 word[4];
#pragma unroll
                for (int e = 0; e < 4; e++) word[e] = stage[base[e] + offset[i]];
                const u32 low[2] = {byte_permute(word[0], word[1], 0x5410), byte_permute(word[2], word[3], 0x5410)};
                const u32 high[2] = {byte_permute(word[0], word[1], 0x7632), byte_permute(word[2], word[3], 0x7632)};
#pragma unroll
                for (int m = 0; m < TILE_M; m++) {
                    MMA(sums[m][i][0], a[m], low);
                    MMA(sums[m][i][1], a[m], high);
                }
            }
#endif
        }
        __syncthreads();
        if (STAGES == 2) buffer ^= 1;
    }

#if IN_HALVES
    FOR_EACH_SUM(sum = times_power(sum, -scale));
    if (threadIdx.x == 0) (HEADER)[FIRST_BLOCK + blockIdx.y * gridDim.x + blockIdx.x] = is_met;
#endif
    // of the warps with the same sums the upper half give theirs to the lower, until one is left
    f32 *exchanged = (f32 *)memory + group * (SUMS * 32) + lane;  // [slot warp][group][sum][lane]
#pragma unroll 1
    for (int left = OUTPUT_WARPS; left > 1; left = (left + 1) / 2) {
        const int keep = (left + 1) / 2;
        if (output_warp >= keep && output_warp < left) {
            f32 *to = exchanged + (output_warp - keep) * (GROUPS * SUMS * 32);
            FOR_EACH_SUM(to[j * 32] = sum);
        }
        __syncthreads();
        if (output_warp < left - keep) {
            const f32 *from = exchanged + output_warp * (GROUPS * SUMS * 32);
            FOR_EACH_SUM(sum += from[j * 32]);
        }
        __syncthreads();
    }
    if (output_warp > 0) return;
    f32 *part =
        (f32 *)workspace + (i64)blockIdx.x * PARTIAL_SUMS + ((int)blockIdx.y * GROUPS + group) * (SUMS * 32) + lane;
    FOR_EACH_SUM(part[j * 32] = sum);
}

// The reduction of all blocks' partial sums: a thread block takes sum j of the 32 lanes of one warp, 8 threads for
// each. Where there are two phases, their sums of a tap are added here, too; their element numbers differ by the
// lead.
KERNEL(256)
void few_channels_wgrad_reduce(X_AND_DY, ELEMENT *dw, u8 *workspace, f64 alpha, f64 beta, NUMBERS) {
    const Sizes sizes = SIZES;
    if (!is_wanted(workspace)) return;
#if IN_HALVES
    u32 met = 0;
    for (int i = threadIdx.x; i < PARTIALS * CHANNEL_BLOCKS; i += 256) met |= (u32)(HEADER)[FIRST_BLOCK + i];
    met = most_of_block<8>(met).x;
    if (blockIdx.x == 0 && threadIdx.x == 0) (HEADER)[1] = met;
    if (met) return;
#endif
    __shared__ f32 some[8][32];
    const int lane = threadIdx.x % 32, slice = threadIdx.x / 32;
    const int j = (int)blockIdx.x % SUMS, group = (int)blockIdx.x / SUMS % PHASE_GROUPS;
    const int channel_block = (int)blockIdx.x / (SUMS * PHASE_GROUPS);
    const int channel_group = group % CHANNEL_GROUPS, word_group = group / CHANNEL_GROUPS;
    const int m = j / (4 * PER_WORD * TILE_WORDS), word = j / (4 * PER_WORD) % TILE_WORDS;
    const int half = j / 4 % PER_WORD, e = j % 4;
    const int k = channel_block * BLOCK_CHANNELS + (channel_group * TILE_M + m) * 16 + lane / 4 + e / 2 * 8;
    const int kk = (word_group * TILE_WORDS + word) * 8 + lane % 4 * 2 + e % 2;
    const int run = kk / RUN_WORDS, element = PER_WORD * (kk % RUN_WORDS) + half - phase_lead(0);
    const bool is_tap = k < FILTERS && kk < WORDS && element >= 0 && element < RUN;
    f32 sum = 0.0f;
    if (is_tap) {
#pragma unroll
        for (int phase = 0; phase < PHASES; phase++) {
            int at = (channel_block * GROUPS + group) * (SUMS * 32) + j * 32 + lane;
            if (phase > 0) {
                const int moved = element + phase_lead(phase), other = run * RUN_WORDS + moved / 2, tile = other / 8;
                const int owner = lane / 4 * 4 + other % 8 / 2;
                const int number = ((m * TILE_WORDS + tile % TILE_WORDS) * 2 + moved % 2) * 4 + e / 2 * 2 + other % 2;
                const int its = channel_group + CHANNEL_GROUPS * (tile / TILE_WORDS + WORD_GROUPS * phase);
                at = ((channel_block * GROUPS + its) * SUMS + number) * 32 + owner;
            }
            const f32 *part = (const f32 *)workspace + at;
#pragma unroll 16
            for (int i = slice; i < PARTIALS; i += 8) sum += part[(i64)i * PARTIAL_SUMS];
        }
    }
    some[slice][lane] = sum;
    __syncthreads();
    if (slice > 0 || !is_tap) return;
    for (int i = 1; i < 8; i++) sum += some[i][lane];
    const int s = element / CHANNELS, c = element % CHANNELS, r = run % TAPS_R, d = run / TAPS_R;
    ELEMENT *to = dw + W_BASE + (INDEX)k * W_K + (INDEX)d * W_T + (INDEX)r * W_R + (INDEX)s * W_S + (INDEX)c * W_C;
    f32 value = (f32)alpha * sum;
    if (beta != 0.0) value += (f32)beta * FROM_HALF(*to);
    *to = TO_HALF(value);
}

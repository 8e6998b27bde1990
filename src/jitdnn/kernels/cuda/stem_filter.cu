// Gradient of the filter for few input channels: dw = sum over outputs of dy times the run of x. See convolution_stem.py.
//
// An mma sums over 16 outputs. A is dy transposed, 16 output channels x 16 outputs, by ldmatrix. For B a lane reads a word
// of the runs of 4 outputs; two byte permutations pair the lower halves (one tile of 8 columns: even elements of 8 words)
// and the upper halves (another tile). Each block sums its strips in registers, then its warps' sums in a fixed order, and
// writes them to the workspace; stem_filter_sum adds up the blocks'.

constexpr int WARPS = BLOCK_THREADS / 32;
constexpr int SLOT_WARPS = WARPS / (CHANNEL_GROUPS * WORD_GROUPS * PHASES);  // warps that share the outputs of a phase
constexpr int CHUNKS = CHANNEL_GROUPS * TILE_M * 2;     // 16-byte pieces of channels of an output of dy
constexpr int PITCH = (CHUNKS | 1) * 8;                 // elements; odd in pieces, so that 8 rows meet no bank twice
constexpr int OUTPUTS = BLOCK_P * BLOCK_Q;              // of a strip; one more row is zero
constexpr int DY_WORDS = (OUTPUTS + 1) * PITCH / 2;
constexpr int COLUMNS = RUNS * RUN;                     // taps of an output channel
constexpr int SHARE = CHUNKS * 8;                       // output channels of a block: blockIdx.y says which

FUNCTION void fetch_gradient(u16 *stage, const u16 *dy, Strip at) {
    const int first = (int)blockIdx.y * SHARE;
#if Y_VECTOR == 8
#pragma unroll 2
    for (int i = threadIdx.x; i < OUTPUTS * CHUNKS; i += BLOCK_THREADS) {
        int output = i / CHUNKS, part = i % CHUNKS * 8, k = first + part;
        int p = at.p + output / BLOCK_Q, q = at.q + output % BLOCK_Q;
        bool is_inside = p < OUT_P && q < OUT_Q && k < FILTERS;
        const u16 *from = dy + (INDEX)at.n * Y_N + (INDEX)at.o * Y_D + (INDEX)p * Y_H + (INDEX)q * Y_W + k;
        cp_async16(stage + output * PITCH + part, is_inside ? from : dy, is_inside);
    }
#else
#pragma unroll 4
    for (int i = threadIdx.x; i < OUTPUTS * CHUNKS * 8; i += BLOCK_THREADS) {
#if Y_PLANES
        int output = i % OUTPUTS, part = i / OUTPUTS;
#else
        int output = i / (CHUNKS * 8), part = i % (CHUNKS * 8);
#endif
        int k = first + part, p = at.p + output / BLOCK_Q, q = at.q + output % BLOCK_Q;
        INDEX from = (INDEX)at.n * Y_N + (INDEX)at.o * Y_D + (INDEX)p * Y_H + (INDEX)q * Y_W + (INDEX)k * Y_C;
        u16 value = 0;
        if (p < OUT_P && q < OUT_Q && k < FILTERS) value = dy[from];
        stage[output * PITCH + part] = value;
    }
#endif
}

KERNEL2(BLOCK_THREADS, RESIDENT)
void stem_filter(const u16 *RESTRICT x, const u16 *RESTRICT dy, u16 *dw, u8 *workspace, f64 alpha, f64 beta) {
    extern __shared__ uint4 memory[];
    constexpr int stage_words = STAGE_WORDS + (DY_WORDS + 3) / 4 * 4;
    u32 *stages = (u32 *)memory;
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
    const int channel_group = warp % CHANNEL_GROUPS, word_group = warp / CHANNEL_GROUPS % WORD_GROUPS;
    const int phase = warp / (CHANNEL_GROUPS * WORD_GROUPS) % PHASES;
    const int slot_warp = warp / (CHANNEL_GROUPS * WORD_GROUPS * PHASES);
    const int lead = phase_lead(phase);

    for (int i = threadIdx.x; i < STAGES * PITCH / 2; i += BLOCK_THREADS)
        stages[i / (PITCH / 2) * stage_words + STAGE_WORDS + OUTPUTS * (PITCH / 2) + i % (PITCH / 2)] = 0;
    int place[TILE_WORDS];
#pragma unroll
    for (int i = 0; i < TILE_WORDS; i++)
        place[i] = (int)(word_place((word_group * TILE_WORDS + i) * 8 + g, lead) & 0x3fffffffu);

    f32 sums[TILE_M][TILE_WORDS][2][4] = {};
    int index = blockIdx.x, buffer = 0;
    if (STAGES == 2 && index < STRIPS) {
        fetch_gradient((u16 *)(stages + STAGE_WORDS), dy, strip_of(index));
        fetch_rows(stages, x, strip_of(index));
        cp_async_commit();
    }
    for (; index < STRIPS; index += gridDim.x) {
        const int next = STAGES == 2 ? index + (int)gridDim.x : index;
        u32 *other = stages + (STAGES == 2 ? buffer ^ 1 : 0) * stage_words;
        if (next < STRIPS) {
            fetch_gradient((u16 *)(other + STAGE_WORDS), dy, strip_of(next));
            fetch_rows(other, x, strip_of(next));
            cp_async_commit();
        }
        if (STAGES == 2 && next < STRIPS)
            cp_async_wait<1>();
        else
            cp_async_wait<0>();
        __syncthreads();
        const u32 *stage = stages + buffer * stage_words;
        const u16 *gradient = (const u16 *)(stage + STAGE_WORDS);
#pragma unroll 1
        for (int first = slot_warp * 16; first < SLOTS; first += SLOT_WARPS * 16) {
            const int mine = first + lane / 16 * 8 + lane % 8;
            const int output =
                mine < SLOTS ? mine / PHASE_COLUMNS * BLOCK_Q + mine % PHASE_COLUMNS * PHASES + phase : OUTPUTS;
            const u16 *row = gradient + output * PITCH + channel_group * (TILE_M * 16) + lane / 8 % 2 * 8;
            u32 a[TILE_M][4];
#pragma unroll
            for (int m = 0; m < TILE_M; m++) ldmatrix_x4_trans(a[m], row + m * 16);
            int base[4];
#pragma unroll
            for (int e = 0; e < 4; e++) {
                int slot = first + e / 2 * 8 + 2 * t + e % 2;
                base[e] = slot_word(slot < SLOTS ? slot : 0, phase);
            }
#pragma unroll
            for (int i = 0; i < TILE_WORDS; i++) {
                u32 word[4];
#pragma unroll
                for (int e = 0; e < 4; e++) word[e] = stage[base[e] + place[i]];
                const u32 low[2] = {byte_permute(word[0], word[1], 0x5410), byte_permute(word[2], word[3], 0x5410)};
                const u32 high[2] = {byte_permute(word[0], word[1], 0x7632), byte_permute(word[2], word[3], 0x7632)};
#pragma unroll
                for (int m = 0; m < TILE_M; m++) {
                    MMA(sums[m][i][0], a[m], low);
                    MMA(sums[m][i][1], a[m], high);
                }
            }
        }
        __syncthreads();
        if (STAGES == 2) buffer ^= 1;
    }

    f32 *total = (f32 *)memory;  // [channel][tap]
    const int first_channel = (int)blockIdx.y * SHARE;
    const int mine = (FILTERS - first_channel < SHARE ? FILTERS - first_channel : SHARE) * COLUMNS;
    for (int i = threadIdx.x; i < mine; i += BLOCK_THREADS) total[i] = 0.0f;
    __syncthreads();
#pragma unroll 1
    for (int turn = 0; turn < SLOT_WARPS * PHASES; turn++) {
        if (turn == slot_warp * PHASES + phase) {
            // asked for anew, so that the places of all sums are not worked out before the loop, for which there are no
            // registers
            const int row = shuffle((i32)g, lane), pair = shuffle((i32)t, lane);
#pragma unroll
            for (int m = 0; m < TILE_M; m++)
#pragma unroll
                for (int i = 0; i < TILE_WORDS; i++)
#pragma unroll
                    for (int half = 0; half < 2; half++)
#pragma unroll
                        for (int e = 0; e < 4; e++) {
                            int k = (channel_group * TILE_M + m) * 16 + row + e / 2 * 8;
                            int kk = (word_group * TILE_WORDS + i) * 8 + 2 * pair + e % 2;
                            int element = 2 * (kk % RUN_WORDS) + half - lead;
                            if (first_channel + k < FILTERS && kk < WORDS && element >= 0 && element < RUN)
                                total[k * COLUMNS + kk / RUN_WORDS * RUN + element] += sums[m][i][half][e];
                        }
        }
        __syncthreads();
    }
    f32 *part = (f32 *)workspace + (i64)blockIdx.x * (FILTERS * COLUMNS) + first_channel * COLUMNS;
    for (int i = threadIdx.x; i < mine; i += BLOCK_THREADS) part[i] = total[i];
}

// The sums of all blocks: 32 elements of dw for a block, 8 threads each.
KERNEL(256) void stem_filter_sum(const u16 *x, const u16 *dy, u16 *dw, u8 *workspace, f64 alpha, f64 beta) {
    __shared__ f32 some[8][32];
    const int column = threadIdx.x % 32, slice = threadIdx.x / 32;
    const int element = (int)blockIdx.x * 32 + column;
    const f32 *part = (const f32 *)workspace + element;
    f32 sum = 0.0f;
    if (element < FILTERS * COLUMNS) {
#pragma unroll 8
        for (int i = slice; i < PARTS; i += 8) sum += part[(i64)i * (FILTERS * COLUMNS)];
    }
    some[slice][column] = sum;
    __syncthreads();
    if (slice > 0 || element >= FILTERS * COLUMNS) return;
    for (int i = 1; i < 8; i++) sum += some[i][column];
    const int k = element / COLUMNS, tap = element % COLUMNS / CHANNELS, c = element % CHANNELS;
    const int s = tap % TAPS_S, r = tap / TAPS_S % TAPS_R, d = tap / (TAPS_S * TAPS_R);
    u16 *to = dw + W_BASE + (INDEX)k * W_K + (INDEX)d * W_T + (INDEX)r * W_R + (INDEX)s * W_S + (INDEX)c * W_C;
    f32 value = (f32)alpha * sum;
    if (beta != 0.0) value += (f32)beta * FROM_HALF(*to);
    *to = TO_HALF(value);
}

// fprop with few input channels: y = w * x.
//
// A block takes one strip after the other (common.cuh), and stages the next while it computes. The A operand of an
// mma is 16 outputs x 8 words of their runs, read from the staged rows as they are; B is the filter, kept in shared
// memory in the order of fragments. The columns of B are ordered so that a lane's sums are neighbouring channels,
// which it stores at once.
//
// Macros: BLOCK_THREADS, RESIDENT (blocks of a multiprocessor), STAGES, STEPS (of 8 words), TILE_M and TILE_N (mma
// tiles of a warp: of 16 outputs, of 8 channels), COLUMN_GROUPS (of warps with other channels), CHANNEL_BLOCKS
// (thread blocks that share the channels: gridDim.y), IS_FULL (each has BLOCK_COLUMNS of them), STAGES_RESULTS
// (results that go through shared memory: BY_ROWS where rows of a channel begin inside of sectors, so that a warp
// stores runs of a channel and not 8 neighbours of each of four; BY_CHANNELS where the channels of an output do, so
// that it stores 16 bytes at a time and not each number by itself), IS_PACKED (the fragments of the filter are made
// once by a kernel of their own).

#define BY_ROWS 1
#define BY_CHANNELS 2

constexpr int WARPS = BLOCK_THREADS / 32;
constexpr int OUTPUT_WARPS = WARPS / (COLUMN_GROUPS * PHASES);  // warps that share the outputs of a phase
constexpr int TILE = 16 * TILE_M;                             // outputs of a warp at a time
constexpr int BLOCK_COLUMNS = COLUMN_GROUPS * TILE_N * 8;     // output channels of a block
constexpr int FRAGMENTS = PHASES * STEPS * BLOCK_COLUMNS * 2;  // of a block, 16 bytes each
constexpr int RESULT_PITCH = (TILE + 31) / 32 * 32 + 8;  // numbers of a channel, where lanes of four meet no bank twice
constexpr int CHANNEL_PITCH = TILE_N * 8 + 64 / (int)sizeof(RESULT);  // of an output, which begins anywhere in 64 bytes

// The output channel of column n of tile j, relative to the first one of the warp: a lane (columns 2t, 2t + 1 of each
// tile) owns 8 neighbours of four tiles, or 4 of the last two.
FUNCTION int column_channel(int j, int n) {
    constexpr int full = TILE_N / 4 * 4;
    return j < full ? j / 4 * 32 + n / 2 * 8 + j % 4 * 2 + n % 2 : full * 8 + n / 2 * 4 + (j - full) * 2 + n % 2;
}

// The fragment of the filter of a lane, for 8 words and two tiles of output channels.
FUNCTION uint4 filter_fragment(const ELEMENT *w, int first_channel, int i, const Sizes &sizes) {
    constexpr int pairs = COLUMN_GROUPS * TILE_N / 2;
    const int owner = i % 32, pair = i / 32 % pairs, step = i / (32 * pairs), tile = pair * 2 % TILE_N;
    const int lead = phase_lead(step / STEPS), low = step % STEPS * 8 + owner % 4;
    const int group = first_channel + pair * 2 / TILE_N * (TILE_N * 8);
    const int channel[2] = {group + column_channel(tile, owner / 4), group + column_channel(tile + 1, owner / 4)};
    const int tap[2][2] = {{filter_offset(low, 0, lead, sizes), filter_offset(low, 1, lead, sizes)},
                           {filter_offset(low + 4, 0, lead, sizes), filter_offset(low + 4, 1, lead, sizes)}};
    u32 word[4];
#pragma unroll
    for (int e = 0; e < 4; e++) {
        const int k = channel[e / 2];
        u32 half[2] = {0, 0};
#pragma unroll
        for (int h = 0; h < PER_WORD; h++)
            if (tap[e % 2][h] != NO_TAP && k < FILTERS) half[h] = bits_of(w[(INDEX)k * W_K + tap[e % 2][h]]);
        word[e] = half[0] | half[1] << 16;
    }
    return make_uint4(word[0], word[1], word[2], word[3]);
}

#if IS_PACKED
// The fragments of the filter, once for all blocks: [block of channels][fragment].
KERNEL(256)
void few_channels_fprop_pack(const ELEMENT *RESTRICT x, const ELEMENT *RESTRICT w, RESULT *y EPILOGUE_PARAMETERS,
                             u8 *workspace, f64 alpha, f64 beta, NUMBERS) {
    begin_launch();
    const Sizes sizes = SIZES;
    const int i = (int)(blockIdx.x * 256 + threadIdx.x);
    if (i < CHANNEL_BLOCKS * FRAGMENTS)
        ((uint4 *)workspace)[i] = filter_fragment(w, i / FRAGMENTS * BLOCK_COLUMNS, i % FRAGMENTS, sizes);
}
#endif

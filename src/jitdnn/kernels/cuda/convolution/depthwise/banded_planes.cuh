// The input in shared memory for depthwise convolutions by banded matrices: planes, one for each channel.
//
//     tile       8 neighbouring results of a row
//     block      8 neighbouring columns of the input: 16 bytes, a row of a matrix of ldmatrix
//     segment    SEGMENT_TILES neighbouring tiles of a row, and the SEGMENT_TILES + BLOCKS - 1 blocks that they read
//     strip      BLOCK_ROWS rows of results, one below the other; an image has CHUNKS strips
//     line       the rows of a strip in one segment, of one image, depth, and dilation phase (geometry.py). A thread
//                block has LINES of the `line_count` lines, in BLOCK_CHANNELS channels
//     plane      of one channel, a ring of SLOTS rows of the input of all lines:
//
//                         line 0                      line 1
//                        +-------+-------+-- ... --+-+-------+-- ... --+-+
//         row (slot) 0   | block | block |         | |       |         | |     LINE_BLOCKS blocks from line to line: as
//                        +-------+-------+-- ... --+-+-------+-- ... --+-+     many as are read and some unused, so
//         row (slot) 1   |       |       |         | |       |         | |     that tiles of different lines are in
//                        +-------+-------+-- ... --+-+-------+-- ... --+-+     different banks
//
// The 16 * MMA_TILES tiles of all lines are the rows of a product: tile i of the thread block reads the BLOCKS blocks
// from i / SEGMENT_TILES * LINE_BLOCKS + i % SEGMENT_TILES on. So one ldmatrix reads 16 tiles of a channel.
//
// Macros, beside those of common.cuh:
//
//     macro            unit       meaning
//     BLOCK_CHANNELS   channels   of a thread block
//     VECTOR           channels   of one access of memory
//     SEGMENT_TILES    tiles      of a segment; SEGMENTS: segments of a row
//     MMA_TILES        products   of 16 tiles
//     LINES            lines      of a thread block; LINE_BLOCKS: see above
//     BLOCKS           blocks     that a tile reads
//     SHIFT            columns    from a tile's first result to the first column of its first block, 0 or less
//     BLOCK_ROWS       rows       of results of a strip; CHUNKS: strips of an image
//     ROW_SHIFT        columns    from row to row, if the rows of a line are segments of one long row; else 0
//     ROW_FIRST, ROW_END rows     of a line that are not padding only, counted from its first result
//     STEP_ROWS, H_TAPS rows      that a step adds to the planes, and rows of taps
//     WARPS            warps      of a thread block

constexpr int THREAD_COUNT = 32 * WARPS, LANES_OF_CHANNELS = BLOCK_CHANNELS / VECTOR;
constexpr int ITEMS = 16 * MMA_TILES, LINE_BLOCKS_READ = SEGMENT_TILES + BLOCKS - 1;

struct LineStart {
    const element *x;
    element *y;
    int h_in, w_in, h_out, w_out, n, d;
    bool has_input, is_there;
};

FUNCTION LineStart line_start(const element *x, element *y, int number, i64 line_count) {
    LineStart line = {x, y, 0, 0, 0, 0, 0, 0, false, number < line_count};
    if (!line.is_there) return line;
    i64 t = number;
    int segment = t % SEGMENTS;
    t /= SEGMENTS;
    int chunk = t % CHUNKS;
    t /= CHUNKS;
    int phase_w = t % W_PHASES;
    t /= W_PHASES;
    int phase_h = t % H_PHASES;
    t /= H_PHASES;
    int depth = t % D_COUNT;
    int n = (int)(t / D_COUNT);
    int d_in = IN_POSITION(D, D_START + depth, 0), d_out = OUT_POSITION(D, D_START + depth, 0);
    int h0 = H_START + (ROW_SHIFT ? 0 : chunk * BLOCK_ROWS),
        w0 = W_START + (ROW_SHIFT ? chunk * BLOCK_ROWS : segment) * SEGMENT_TILES * 8;
    line.n = n;
    line.d = d_out;
    line.has_input = IN_HAS(D, d_in);
    line.x = x + (n * (i64)X_N + (line.has_input ? d_in * (i64)D_IN_STEP : 0));
    line.y = y + (n * (i64)Y_N + d_out * (i64)D_OUT_STEP);
    line.h_in = IN_POSITION(H, h0, phase_h);
    line.h_out = OUT_POSITION(H, h0, phase_h);
    line.w_in = IN_POSITION(W, w0, phase_w);
    line.w_out = OUT_POSITION(W, w0, phase_w);
    return line;
}

// An XOR permutation of words against bank conflicts: a plane is 4 words more than a multiple of 32, and of the
// LANES_OF_CHANNELS lanes with neighbouring channels, lane l writes or reads word i ^ xor_of(l) at step i.
FUNCTION int xor_of(int lane_of_channels) {
    constexpr int APART = VECTOR > LANES_OF_CHANNELS ? VECTOR / LANES_OF_CHANNELS : 1;
    return lane_of_channels % LANES_OF_CHANNELS * APART % VECTOR;
}
FUNCTION void xor_permute(u32 (&words)[VECTOR], int by) {
#pragma unroll
    for (int bit = 1; bit < VECTOR; bit *= 2)
#pragma unroll
        for (int i = 0; i < VECTOR; i++)
            if ((i & bit) == 0) {
                u32 a = words[i], b = words[i + bit < VECTOR ? i + bit : i];
                words[i] = by & bit ? b : a;
                words[i + bit < VECTOR ? i + bit : i] = by & bit ? a : b;
            }
}

// Two neighbouring columns of VECTOR channels to and from words: words[i] has both columns of channel i.
FUNCTION void pair_up(const Pack<VECTOR> &first, const Pack<VECTOR> &second, u32 (&words)[VECTOR]) {
#if VECTOR == 1
    words[0] = first.half | (u32)second.half << 16;
#else
#pragma unroll
    for (int i = 0; i < VECTOR / 2; i++) {
        words[2 * i] = byte_permute(first.word[i], second.word[i], 0x5410);
        words[2 * i + 1] = byte_permute(first.word[i], second.word[i], 0x7632);
    }
#endif
}
FUNCTION void part(const u32 (&words)[VECTOR], Pack<VECTOR> &first, Pack<VECTOR> &second) {
#if VECTOR == 1
    first.half = (u16)words[0];
    second.half = (u16)(words[0] >> 16);
#else
#pragma unroll
    for (int i = 0; i < VECTOR / 2; i++) {
        first.word[i] = byte_permute(words[2 * i], words[2 * i + 1], 0x5410);
        second.word[i] = byte_permute(words[2 * i], words[2 * i + 1], 0x7632);
    }
#endif
}

// `rows` rows of the input (or of dy, if is_output) of all lines and channels of a thread block in registers, as
// pairs of columns: `load` reads those from `row0` on, `put` writes them to slots of the planes. Rows outside of
// first ... end - 1 are skipped.
template <int rows, int blocks, int line_blocks, int slots, int plane, bool is_output>
struct Rows {
    static constexpr int PAIRS = LINES * blocks * 4, TASKS = rows * PAIRS * LANES_OF_CHANNELS;
    static constexpr int EACH = (TASKS + THREAD_COUNT - 1) / THREAD_COUNT;
    Pack<VECTOR> values[EACH][2];

    // tensors at addresses that are no multiple of VECTOR elements are rare, and read element by element
    __device__ __forceinline__ void load(const LineStart *lines, int c0, int row0, int first, int end, bool aligned) {
        if (VECTOR == 1 || aligned)
            load_as<true>(lines, c0, row0, first, end);
        else
            load_as<false>(lines, c0, row0, first, end);
    }
    template <bool aligned>
    __device__ __forceinline__ void load_as(const LineStart *lines, int c0, int row0, int first, int end) {
#pragma unroll
        for (int k = 0; k < EACH; k++) {
            int i = k * THREAD_COUNT + threadIdx.x;
            int c = i % LANES_OF_CHANNELS * VECTOR, pair = i / LANES_OF_CHANNELS % (blocks * 4);
            int number = i / LANES_OF_CHANNELS / (blocks * 4) % LINES, row = row0 + i / (LANES_OF_CHANNELS * PAIRS);
            values[k][0].zero();
            values[k][1].zero();
            if ((TASKS % THREAD_COUNT != 0 && i >= TASKS) || row < first || row >= end || c0 + c >= CHANNELS) continue;
            const LineStart &line = lines[number];
            int h, w;
            bool there;
            i64 h_step, w_step;
            const element *p;
            if (is_output) {
                h = line.h_out + (ROW_SHIFT ? 0 : row * H_OUT_PITCH);
                w = line.w_out + W_OUT_PITCH * (2 * pair + row * ROW_SHIFT);
                there = line.is_there && OUT_HAS(H, h) && row < BLOCK_ROWS;
                p = line.y + (c0 + c + (OFFSET)h * (OFFSET)H_OUT_STEP + (OFFSET)w * (OFFSET)W_OUT_STEP);
                if (there && OUT_HAS(W, w)) values[k][0].template load<aligned>(p);
                if (there && OUT_HAS(W, w + W_OUT_PITCH))
                    values[k][1].template load<aligned>(p + (OFFSET)W_OUT_PITCH * (OFFSET)W_OUT_STEP);
            } else {
                h = line.h_in + (ROW_SHIFT ? 0 : row * H_IN_PITCH);
                w = line.w_in + W_IN_PITCH * (2 * pair + SHIFT + row * ROW_SHIFT);
                there = line.has_input && IN_HAS(H, h);
                p = line.x + (c0 + c + (OFFSET)h * (OFFSET)H_IN_STEP + (OFFSET)w * (OFFSET)W_IN_STEP);
                if (there && IN_HAS(W, w)) values[k][0].template load<aligned>(p);
                if (there && IN_HAS(W, w + W_IN_PITCH))
                    values[k][1].template load<aligned>(p + (OFFSET)W_IN_PITCH * (OFFSET)W_IN_STEP);
            }
        }
    }
    __device__ __forceinline__ void put(u32 *planes, int row0, int first, int end) const {
#pragma unroll
        for (int k = 0; k < EACH; k++) {
            int i = k * THREAD_COUNT + threadIdx.x;
            int lane = i % LANES_OF_CHANNELS, pair = i / LANES_OF_CHANNELS % (blocks * 4);
            int number = i / LANES_OF_CHANNELS / (blocks * 4) % LINES, row = row0 + i / (LANES_OF_CHANNELS * PAIRS);
            if ((TASKS % THREAD_COUNT != 0 && i >= TASKS) || row < first || row >= end) continue;
            u32 words[VECTOR];
            pair_up(values[k][0], values[k][1], words);
            int by = xor_of(lane);
            xor_permute(words, by);
            u32 *location = planes + ((row - first) % slots * LINES + number) * (line_blocks * 4) + pair;
#pragma unroll
            for (int j = 0; j < VECTOR; j++) location[(lane * VECTOR + (j ^ by)) * plane] = words[j];
        }
    }
};

// Writes the rows that the first step needs to the planes, but for those that it adds itself: these are left in `rows`.
// Loads alternate between `rows` and `other`, one in flight while the other is written.
template <typename InputRows>
FUNCTION void fill(InputRows &rows, u32 *planes, const LineStart *lines, int c0, bool aligned) {
    constexpr int BEFORE = (H_TAPS - 1 + STEP_ROWS - 1) / STEP_ROWS;
    InputRows other;
    auto load = [&](InputRows &to, int row) { to.load(lines, c0, row, ROW_FIRST, ROW_END, aligned); };
    int row = H_TAPS - 1 - BEFORE * STEP_ROWS;
    if (BEFORE % 2 == 0) {
        load(rows, row);
    } else {
        load(other, row);
        load(rows, row + STEP_ROWS);
        other.put(planes, row, ROW_FIRST, ROW_END);
        row += STEP_ROWS;
    }
#pragma unroll 1
    for (; row < H_TAPS - 1; row += 2 * STEP_ROWS) {
        load(other, row + STEP_ROWS);
        rows.put(planes, row, ROW_FIRST, ROW_END);
        load(rows, row + 2 * STEP_ROWS);
        other.put(planes, row + STEP_ROWS, ROW_FIRST, ROW_END);
    }
}

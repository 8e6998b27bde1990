// Planes of shared memory for depthwise convolutions on the matrix units: one channel's rows, 8 neighbouring columns
// in 16 bytes, so that one ldmatrix takes 16 tiles of 8 columns of a channel to the fragments of an mma.
//
// A line is what one row of one image (or of a strip, segment or phase of it) becomes: SEGMENT_TILES tiles of 8
// results, side by side. A group has LINES lines, whose tiles are the 16 * MMA_TILES rows of its products, and
// BLOCK_CHANNELS channels; a line's rows are counted from its first result. Tile i of the group reads the blocks of 8
// columns i / SEGMENT_TILES * LINE_BLOCKS + i % SEGMENT_TILES + (0 ... BLOCKS - 1).
//
// Macros beside those of common.cuh: BLOCK_CHANNELS, VECTOR (channels of an access), SEGMENT_TILES, SEGMENTS, LINES,
// LINE_BLOCKS, BLOCKS, SHIFT (the first column of a line's first block is place SHIFT of the segment), MMA_TILES,
// CHUNKS (strips of BLOCK_ROWS rows), ROW_SHIFT (columns that the next row lies further, where the rows of a line are
// segments of one long row), LINE_COUNT, WARPS, and the steps of sliding.cu.

constexpr int THREAD_COUNT = 32 * WARPS, LANES_OF_CHANNELS = BLOCK_CHANNELS / VECTOR;
constexpr int ITEMS = 16 * MMA_TILES, LINE_BLOCKS_READ = SEGMENT_TILES + BLOCKS - 1;

struct LineStart {
    const element *x;
    element *y;
    int h_in, w_in, h_out, w_out, n, d;
    bool has_input, is_there;
};

FUNCTION LineStart line_start(const element *x, element *y, int number) {
    LineStart line = {x, y, 0, 0, 0, 0, 0, 0, false, number < LINE_COUNT};
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

// Exchanges words so that lanes with neighbouring channels touch different banks: a plane is 4 words more than a
// multiple of 32, and lane l of LANES_OF_CHANNELS takes word i ^ turn(l) at step i.
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

// Two neighbouring columns of VECTOR channels on their way to or from the planes: words[i] has both of channel i.
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

// `rows` rows of the input of all lines and channels of the group, as pairs of columns in registers: `load` fetches
// those from `row0` on, `put` writes them to slots of the planes. Rows outside of first ... end - 1 are left alone.
template <int rows, int blocks, int line_blocks, int slots, int plane, bool is_output>
struct Rows {
    static constexpr int PAIRS = LINES * blocks * 4, TASKS = rows * PAIRS * LANES_OF_CHANNELS;
    static constexpr int EACH = (TASKS + THREAD_COUNT - 1) / THREAD_COUNT;
    Pack<VECTOR> values[EACH][2];

    // tensors that begin at an odd element are rare, and read by smaller accesses
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

// The rows of a line that the first step needs beside those that it adds, which are left in `rows`; the next are
// always on their way, to two places in turn: a copy from one to the other would wait for them.
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

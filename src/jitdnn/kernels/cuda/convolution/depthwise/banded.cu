// Depthwise convolution, forward and backward to the data of stride 1, on the tensor cores: by banded matrices.
//
// Of one channel and one row of taps, 8 neighbouring results are the product of the columns that they read and a
// matrix whose columns are the row of taps, each one further down than the one before:
//
//                   result n    0   1   2   3   4   5   6   7
//                             +---+---+---+---+---+---+---+---+
//           k (column of  0   | w0|   |   |   |   |   |   |   |
//           the input)    1   | w1| w0|   |   |   |   |   |   |        3 taps, SHIFT 0: B[k][n] = w[k - n + SHIFT],
//                         2   | w2| w1| w0|   |   |   |   |   |        zero where there is no such tap
//                         3   |   | w2| w1| w0|   |   |   |   |
//                         .   |   |   | . | . | . |   |   |   |        A: 16 tiles x 16 columns of their blocks
//                         9   |   |   |   |   |   |   |   | w2|        B: two of the BLOCKS blocks of a tile
//
// So a product multiplies each column of its two blocks by every tap or zero of the band: an infinity or NaN of the
// input also reaches results that it does not belong to, in the same row, up to 15 columns away.
//
// A step makes STEP_ROWS rows of results from the STEP_ROWS + H_TAPS - 1 rows that are in the planes
// (banded_planes.cuh), with two barriers. The rows that the next step adds are loaded meanwhile; results leave
// through planes of their own.
//
// Macros, beside those of banded_planes.cuh:
//
//     macro            unit       meaning
//     WARP_CHANNELS    channels   of a warp
//     SLOTS            rows       of the planes
//     PLANE, OUT_PLANE words      of a channel: of the input, of results
//     TAPS_IN_SHARED   0 or 1     0: all fragments of taps are in registers; 1: those of STEP_ROWS rows, out of a table
//     ALTERNATE        0 or 1     whether half of the warps store while the others multiply
//     MIN_BLOCKS       blocks     that a multiprocessor shall hold at a time
//
// and those of the epilogue, as in sliding.cu.

constexpr int HALVES = (BLOCKS + 1) / 2, ROW_STEPS = (BLOCK_ROWS + STEP_ROWS - 1) / STEP_ROWS;
// words of a row of taps in the table, which has two copies of it: pairs of taps from even and from odd ones on
constexpr int TABLE = 4 * BLOCKS + 4;
constexpr int OUT_TASKS = STEP_ROWS * LINES * SEGMENT_TILES * 4 * LANES_OF_CHANNELS;
constexpr int CHANNEL_STRIPS = (CHANNELS + BLOCK_CHANNELS - 1) / BLOCK_CHANNELS;

struct True {
    static constexpr bool value = true;
};
struct False {
    static constexpr bool value = false;
};

// `w`: the first tap, `sign` -1 where the taps that follow lie in front of it.
FUNCTION u32 tap_pair(const element *__restrict__ w, int sign, int c, int r, int s) {
    const element *row = w + (i64)c * W_C + sign * r * H_TAP_STEP;
    u32 low = (u32)s < W_TAPS ? row[sign * s * W_TAP_STEP] : 0;
    u32 high = (u32)(s + 1) < W_TAPS ? row[sign * (s + 1) * W_TAP_STEP] : 0;
    return low | high << 16;
}

// Adds beta times what is in memory, element by element, since beta is rarely used.
FUNCTION void blend(Pack<VECTOR> &pack, const element *location, bool is_there, f32 beta) {
    if (!is_there) return;
    f32 values[VECTOR];
    pack.get(values);
#pragma unroll
    for (int i = 0; i < VECTOR; i++) values[i] += beta * widen(location[i]);
    pack.put(values);
}

KERNEL2(32 * WARPS, MIN_BLOCKS)
void depthwise(const element *__restrict__ x, const element *__restrict__ w, element *y EPILOGUE_KERNEL_PARAMETERS,
               u8 *workspace, f64 alpha_given, f64 beta_given, i64 line_count, i64 is_mirrored) {
    begin_launch();
    const element *first_tap = w + W_BASE + (is_mirrored ? W_SPAN : 0);
    const int sign = is_mirrored ? -1 : 1;
    extern __shared__ uint4 shared_memory[];
    __shared__ LineStart lines[LINES];
    u32 *shared = (u32 *)shared_memory;
    f32 alpha = (f32)alpha_given, beta = (f32)beta_given;
    bool aligned = ((u64)x | (u64)y) % (VECTOR * sizeof(element)) == 0;
    u32 *out = shared + BLOCK_CHANNELS * PLANE, *table = out + BLOCK_CHANNELS * OUT_PLANE;
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
    int c0 = blockIdx.x % CHANNEL_STRIPS * BLOCK_CHANNELS, line0 = blockIdx.x / CHANNEL_STRIPS * LINES;
#if TAPS_IN_SHARED
    for (int i = threadIdx.x; i < BLOCK_CHANNELS * H_TAPS * 2 * TABLE; i += THREAD_COUNT) {
        int word = i % TABLE, odd = i / TABLE % 2, r = i / TABLE / 2 % H_TAPS, c = c0 + i / TABLE / 2 / H_TAPS;
        table[i] = c < CHANNELS ? tap_pair(first_tap, sign, c, r, SHIFT - 7 + 2 * word + odd) : 0;
    }
    const u32 *own = table + warp * WARP_CHANNELS * H_TAPS * 2 * TABLE + (7 - g) % 2 * TABLE + (7 - g) / 2 + t;
    u32 taps[STEP_ROWS][WARP_CHANNELS][2 * HALVES];
    auto fetch = [&](int r, u32(&to)[WARP_CHANNELS][2 * HALVES]) {
#pragma unroll
        for (int c = 0; c < WARP_CHANNELS; c++)
#pragma unroll
            for (int b = 0; b < 2 * HALVES; b++)
                to[c][b] = b < BLOCKS && (u32)r < H_TAPS ? own[(c * H_TAPS + r) * 2 * TABLE + 4 * b] : 0;
    };
#else
    u32 taps[H_TAPS][WARP_CHANNELS][2 * HALVES];
#pragma unroll
    for (int r = 0; r < H_TAPS; r++)
#pragma unroll
        for (int c = 0; c < WARP_CHANNELS; c++)
#pragma unroll
            for (int b = 0; b < 2 * HALVES; b++) {
                int channel = c0 + warp * WARP_CHANNELS + c;
                bool is_tap = b < BLOCKS && channel < CHANNELS;
                taps[r][c][b] = is_tap ? tap_pair(first_tap, sign, channel, r, 8 * b + SHIFT + 2 * t - g) : 0;
            }
#endif

    if (threadIdx.x < LINES) lines[threadIdx.x] = line_start(x, y, line0 + threadIdx.x, line_count);
    __syncthreads();

    using InputRows = Rows<STEP_ROWS, LINE_BLOCKS_READ, LINE_BLOCKS, SLOTS, PLANE, false>;
    InputRows rows;
    fill<InputRows>(rows, shared, lines, c0, aligned);

    // the byte of the 16 that a lane gives to ldmatrix: of tile lane % 16, block lane / 16
    int from[MMA_TILES];
#pragma unroll
    for (int m = 0; m < MMA_TILES; m++) {
        int item = 16 * m + lane % 16;
        int block = item < LINES * SEGMENT_TILES ? item / SEGMENT_TILES * LINE_BLOCKS + item % SEGMENT_TILES : 0;
        from[m] = (warp * WARP_CHANNELS * PLANE + 4 * (block + (BLOCKS > 1 ? lane / 16 : 0))) * 4;
    }
    const u8 *bytes = (const u8 *)shared;
    f32 sums[STEP_ROWS][WARP_CHANNELS][MMA_TILES][4];

    // the products of one row of the input, `j` rows behind the first of the step, with STEP_ROWS rows of taps;
    // `inner`: all are taps
    auto multiply_row = [&](int j, int slot, auto inner, auto tap_rows) {
        const u8 *row = bytes + slot * (LINES * LINE_BLOCKS * 16);
#pragma unroll
        for (int c = 0; c < WARP_CHANNELS; c++)
#pragma unroll
            for (int m = 0; m < MMA_TILES; m++)
#pragma unroll
                for (int i = 0; i < HALVES; i++) {
                    u32 a[4] = {0, 0, 0, 0};
                    const u8 *location = row + from[m] + c * (PLANE * 4) + 32 * i;
                    if (2 * i + 1 < BLOCKS) {
                        ldmatrix_x4(a, location);
                    } else {
                        u32 half[2];
                        ldmatrix_x2(half, row + from[m] - (BLOCKS > 1 ? lane / 16 * 16 : 0) + c * (PLANE * 4) + 32 * i);
                        a[0] = half[0];
                        a[1] = half[1];
                    }
#pragma unroll
                    for (int p = 0; p < STEP_ROWS; p++) {
                        if (!decltype(inner)::value && !((u32)(j - p) < H_TAPS)) continue;
                        u32 b[2];
                        tap_rows(p, c, i, b);
                        multiply(sums[p][c][m], a, b);
                    }
                }
    };

    // the result of a sum: of row p of a step, at column `column` of a tile
    auto finish = [&](f32 sum, int row, int c, int item, int column) {
#if HAS_EPILOGUE
        int channel = c0 + warp * WARP_CHANNELS + c;
        if (item >= LINES * SEGMENT_TILES || row >= BLOCK_ROWS || channel >= CHANNELS) return 0.f;
        const LineStart &line = lines[item / SEGMENT_TILES];
        int h = line.h_out + (ROW_SHIFT ? 0 : row * H_OUT_PITCH);
        int q = line.w_out + W_OUT_PITCH * (item % SEGMENT_TILES * 8 + column + row * ROW_SHIFT);
        if (!line.is_there || !OUT_HAS(H, h) || !OUT_HAS(W, q)) return 0.f;
        sum = EPILOGUE(sum, line.n, channel, line.d, h, q);
#endif
        return alpha * sum;
    };

    auto flush_as = [&](int step, auto is_aligned) {
        constexpr bool whole = decltype(is_aligned)::value;
#pragma unroll 1
        for (int i = threadIdx.x; i < OUT_TASKS; i += THREAD_COUNT) {
            int lane_of = i % LANES_OF_CHANNELS, c = c0 + lane_of * VECTOR,
                pair = i / LANES_OF_CHANNELS % (SEGMENT_TILES * 4);
            int number = i / LANES_OF_CHANNELS / (SEGMENT_TILES * 4) % LINES,
                p = i / (LANES_OF_CHANNELS * SEGMENT_TILES * 4 * LINES);
            int row = step * STEP_ROWS + p;
            const LineStart &line = lines[number];
            int h = line.h_out + (ROW_SHIFT ? 0 : row * H_OUT_PITCH);
            int q = line.w_out + W_OUT_PITCH * (2 * pair + row * ROW_SHIFT);
            if (!line.is_there || row >= BLOCK_ROWS || !OUT_HAS(H, h) || c >= CHANNELS) continue;
            int by = xor_of(lane_of);
            const u32 *location = out + (p * ITEMS + number * SEGMENT_TILES) * 4 + pair;
            u32 words[VECTOR];
#pragma unroll
            for (int j = 0; j < VECTOR; j++) words[j] = location[(lane_of * VECTOR + (j ^ by)) * OUT_PLANE];
            xor_permute(words, by);
            Pack<VECTOR> first, second;
            part(words, first, second);
            element *to = line.y + (c + (OFFSET)h * (OFFSET)H_OUT_STEP + (OFFSET)q * (OFFSET)W_OUT_STEP);
            if (beta != 0) {
                blend(first, to, OUT_HAS(W, q), beta);
                blend(second, to + (OFFSET)W_OUT_PITCH * (OFFSET)W_OUT_STEP, OUT_HAS(W, q + W_OUT_PITCH), beta);
            }
            if (OUT_HAS(W, q)) first.template store<whole>(to);
            if (OUT_HAS(W, q + W_OUT_PITCH))
                second.template store<whole>(to + (OFFSET)W_OUT_PITCH * (OFFSET)W_OUT_STEP);
        }
    };

    auto flush = [&](int step) {
        if (VECTOR == 1 || aligned)
            flush_as(step, True());
        else
            flush_as(step, False());
    };

#pragma unroll 1
    for (int step = 0; step < ROW_STEPS; step++) {
        int row0 = step * STEP_ROWS;
        rows.put(shared, row0 + H_TAPS - 1, ROW_FIRST, ROW_END);
        __syncthreads();
        if (step + 1 < ROW_STEPS) rows.load(lines, c0, row0 + STEP_ROWS + H_TAPS - 1, ROW_FIRST, ROW_END, aligned);
        // half of the warps of each quarter store while the others multiply
        bool stores_first = !ALTERNATE || warp / 4 % 2 == 0;
        if (step > 0 && stores_first) flush(step - 1);
#pragma unroll
        for (int p = 0; p < STEP_ROWS; p++)
#pragma unroll
            for (int c = 0; c < WARP_CHANNELS; c++)
#pragma unroll
                for (int m = 0; m < MMA_TILES; m++)
#pragma unroll
                    for (int i = 0; i < 4; i++) sums[p][c][m][i] = 0;
#if TAPS_IN_SHARED
        int begin = max(ROW_FIRST - row0, 0) / STEP_ROWS * STEP_ROWS, end = min(ROW_END - row0, STEP_ROWS + H_TAPS - 1);
#pragma unroll
        for (int p = 1; p < STEP_ROWS; p++) fetch(begin - p, taps[STEP_ROWS - p]);
#pragma unroll 1
        for (int j0 = begin; j0 < end; j0 += STEP_ROWS) {
#pragma unroll
            for (int u = 0; u < STEP_ROWS; u++) {
                int j = j0 + u, row = row0 + j;
                fetch(j, taps[u]);
                auto pick = [&](int p, int c, int i, u32(&b)[2]) {
                    b[0] = taps[(u - p + STEP_ROWS) % STEP_ROWS][c][2 * i];
                    b[1] = taps[(u - p + STEP_ROWS) % STEP_ROWS][c][2 * i + 1];
                };
                if (row < ROW_FIRST || j >= end) continue;
                if (j >= STEP_ROWS - 1 && j < H_TAPS)
                    multiply_row(j, (row - ROW_FIRST) % SLOTS, True(), pick);
                else
                    multiply_row(j, (row - ROW_FIRST) % SLOTS, False(), pick);
            }
        }
#else
        int slot = ((row0 - ROW_FIRST) % SLOTS + SLOTS) % SLOTS;
#pragma unroll
        for (int j = 0; j < STEP_ROWS + H_TAPS - 1; j++) {
            if (row0 + j >= ROW_FIRST && row0 + j < ROW_END)
                multiply_row(j, slot + j % SLOTS >= SLOTS ? slot + j % SLOTS - SLOTS : slot + j % SLOTS, False(),
                             [&](int p, int c, int i, u32(&b)[2]) {
                                 b[0] = taps[(u32)(j - p) < H_TAPS ? j - p : 0][c][2 * i];
                                 b[1] = taps[(u32)(j - p) < H_TAPS ? j - p : 0][c][2 * i + 1];
                             });
        }
#endif
        if (step > 0 && !stores_first) flush(step - 1);
        if (ROW_STEPS > 1) __syncthreads();  // the step before is out, and this one's rows are used
#pragma unroll
        for (int p = 0; p < STEP_ROWS; p++)
#pragma unroll
            for (int c = 0; c < WARP_CHANNELS; c++)
#pragma unroll
                for (int m = 0; m < MMA_TILES; m++)
#pragma unroll
                    for (int half = 0; half < 2; half++) {
                        int item = 16 * m + 8 * half + g;
                        f32 low = finish(sums[p][c][m][2 * half], row0 + p, c, item, 2 * t);
                        f32 high = finish(sums[p][c][m][2 * half + 1], row0 + p, c, item, 2 * t + 1);
                        out[(warp * WARP_CHANNELS + c) * OUT_PLANE + (p * ITEMS + item) * 4 + t] =
                            narrow_pair(low, high);
                    }
    }
    __syncthreads();
    flush(ROW_STEPS - 1);
}

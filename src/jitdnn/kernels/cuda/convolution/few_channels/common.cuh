// What fprop and wgrad with few input channels share: rows of x in shared memory, read as words of runs.
//
//     strip      BLOCK_P x BLOCK_Q outputs of one plane of one image
//     row        of x, staged as ROW_WORDS 32-bit words, channels interleaved in any layout of x, zeros for padding;
//                a strip has TAPS_T * HALO_H of them. Its first column, at.q * STRIDE_W - PAD_W, begins SHIFT elements
//                into the row, so that what is aligned in memory is aligned here
//     run        the TAPS_S * CHANNELS neighbouring elements of a row that a filter row covers, read as RUN_WORDS words
//     phase      words begin at even elements. Where the runs of neighbouring outputs begin an odd number of elements
//                apart, even and odd columns are two PHASES, each with a `lead` of 0 or 1 elements before its runs
//
//     a row, 3 channels, 3 taps, stride 1, SHIFT 0:
//
//     elements    r0 g0 | b0 r1 | g1 b1 | r2 g2 | b2 r3 | g3 b3 | ...      | between 32-bit words
//     phase 0     [---------- run of output 0 -----------]                 lead 0: 9 elements in 5 words
//     phase 1             [- run of output 1: r1 ... b3 -----]             lead 1: the word of r1 begins with b0

// PER_WORD: elements of a word, 1 of f32.

#define IS_BY_ELEMENTS (X_BYTES == 2 || IS_F32 && !X_IS_DENSE)

struct Strip { int n, o, p, q; };

constexpr int ROWS = TAPS_T * HALO_H;
constexpr int SPAN = (BLOCK_Q - 1) * STRIDE_W + TAPS_S;  // columns of a staged row
constexpr int RUN = TAPS_S * CHANNELS;
constexpr int RUNS = TAPS_T * TAPS_R;
constexpr int WORDS = RUNS * RUN_WORDS;
constexpr int PHASE_COLUMNS = BLOCK_Q / PHASES;  // columns of a phase in one row of a strip
constexpr int PHASE_OUTPUTS = BLOCK_P * PHASE_COLUMNS;   // outputs of a phase in a strip
constexpr int COLUMN_WORDS = PHASES * STRIDE_W * CHANNELS / PER_WORD;  // from one column of a phase to the next
constexpr int STAGE_WORDS = ROWS * ROW_WORDS;

FUNCTION Strip strip_of(int index) {
    constexpr int across = (OUT_Q + BLOCK_Q - 1) / BLOCK_Q, down = (OUT_P + BLOCK_P - 1) / BLOCK_P;
    Strip at;
    at.q = index % across * BLOCK_Q;
    index /= across;
    at.p = index % down * BLOCK_P;
    index /= down;
    at.o = index % OUT_O;
    at.n = index / OUT_O;
    return at;
}

FUNCTION int phase_start(int phase) { return SHIFT + phase * STRIDE_W * CHANNELS; }  // element of a phase's first run
FUNCTION int phase_lead(int phase) { return phase_start(phase) % PER_WORD; }

// The offset of word `kk`, counted through all runs of an output, from the output's first word. Bits 31 and 30 say
// whether its upper and its lower half hold taps; words behind the last have neither.
FUNCTION u32 word_offset(int kk, int lead) {
    int run = kk / RUN_WORDS, word = kk % RUN_WORDS, element = PER_WORD * word - lead;
    if (kk >= WORDS) return 0;
    u32 offset = (u32)((run / TAPS_R * HALO_H + run % TAPS_R * DILATION_H) * ROW_WORDS + word);
    if (element >= 0 && element < RUN) offset |= 1u << 30;
    const int last = element + PER_WORD - 1;
    if (last >= 0 && last < RUN) offset |= 1u << 31;
    return offset;
}
FUNCTION u32 half_mask(u32 offset) { return (offset >> 31 ? 0xffff0000u : 0u) | (offset >> 30 & 1u ? 0xffffu : 0u); }

// The first word of output `slot` of a phase.
FUNCTION int output_word(int phase_output, int phase) {
    return phase_output / PHASE_COLUMNS * (STRIDE_H * ROW_WORDS) + phase_output % PHASE_COLUMNS * COLUMN_WORDS +
           (phase_start(phase) - phase_lead(phase)) / PER_WORD;
}

// The offset of element `kk, half` of the filter for an output channel; NO_TAP if it is none of its taps.
constexpr int NO_TAP = -2147483647;
FUNCTION int filter_offset(int kk, int half, int lead, const Sizes &sizes) {
    int run = kk / RUN_WORDS, element = PER_WORD * (kk % RUN_WORDS) + half - lead;
    if (kk >= WORDS || element < 0 || element >= RUN) return NO_TAP;
    return (int)(W_BASE + run / TAPS_R * W_T + run % TAPS_R * W_R + element / CHANNELS * W_S + element % CHANNELS * W_C);
}

FUNCTION bool row_offset(Strip at, int row, INDEX &start) {
    int d = at.o * STRIDE_D - PAD_D + row / HALO_H * DILATION_D, h = at.p * STRIDE_H - PAD_H + row % HALO_H;
    start = (INDEX)at.n * X_N + (INDEX)d * X_D + (INDEX)h * X_H;
    return (u32)d < DEPTH && (u32)h < HEIGHT;
}

#if X_BYTES == 2 && X_IS_DENSE
// Rows of contiguous pixels at any address. They are copied 16 bytes at a time from the multiple of 16 bytes at or
// before their first element, and shifted into place when they have arrived.
constexpr int ROW_PIECES = (SHIFT + SPAN * CHANNELS + 7) / 8;  // when moved; one more before

// The elements between the multiple of 16 bytes from which a row is copied and its first element.
FUNCTION int row_misalignment(const u16 *x, Strip at, INDEX start) {
    const int low = (at.q * STRIDE_W - PAD_W) * CHANNELS - SHIFT;
    return (int)((u64)(x + start + low) / 2 % 8);
}

FUNCTION void fetch_elements(u16 *stage, const u16 *x, Strip at, const Sizes &sizes) {
    const int low = (at.q * STRIDE_W - PAD_W) * CHANNELS - SHIFT;
#pragma unroll 2
    for (int i = threadIdx.x; i < ROWS * (ROW_PIECES + 1); i += BLOCK_THREADS) {
        const int row = i / (ROW_PIECES + 1), piece = i % (ROW_PIECES + 1);
        INDEX start;
        const bool is_row = row_offset(at, row, start);
        const int element = low - row_misalignment(x, at, start) + piece * 8;
        const bool is_inside = is_row && element + 7 >= 0 && element < WIDTH * CHANNELS;
        u16 *to = stage + row * (2 * ROW_WORDS) + piece * 8;
        const INDEX from = start + element;
        if (!is_inside || (from >= X_LOW && from + 7 <= X_HIGH)) {
            cp_async16(to, x + from, is_inside);
        } else {  // the first or the last piece of the tensor
            for (int e = 0; e < 8; e++) to[e] = from + e >= X_LOW && from + e <= X_HIGH ? x[from + e] : (u16)0;
        }
    }
}

// Shifts the rows that have arrived, a warp one row at a time.
FUNCTION void align_rows(u32 *stage, const u16 *x, Strip at) {
    const int low = (at.q * STRIDE_W - PAD_W) * CHANNELS - SHIFT, lane = threadIdx.x % 32;
#pragma unroll 1
    for (int row = threadIdx.x / 32; row < ROWS; row += BLOCK_THREADS / 32) {
        INDEX start;
        if (!row_offset(at, row, start)) continue;
        const int misalignment = row_misalignment(x, at, start);
        uint4 *pieces = (uint4 *)(stage + row * ROW_WORDS);
#pragma unroll 1
        for (int first = 0; first < ROW_PIECES; first += 32) {
            const int piece = first + lane < ROW_PIECES ? first + lane : ROW_PIECES - 1, element = low + piece * 8;
            const uint4 a = pieces[piece], b = pieces[piece + 1];
            u32 word[8] = {a.x, a.y, a.z, a.w, b.x, b.y, b.z, b.w};
            if (misalignment & 4)
#pragma unroll
                for (int i = 0; i < 6; i++) word[i] = word[i + 2 < 8 ? i + 2 : 7];
            if (misalignment & 2)
#pragma unroll
                for (int i = 0; i < 5; i++) word[i] = word[i + 1];
            if (misalignment & 1)
#pragma unroll
                for (int i = 0; i < 4; i++) word[i] = byte_permute(word[i], word[i + 1], 0x5432);
            if (element < 0 || element + 7 >= WIDTH * CHANNELS)
#pragma unroll
                for (int i = 0; i < 4; i++) {
                    if ((u32)(element + 2 * i) >= WIDTH * CHANNELS) word[i] &= 0xffff0000u;
                    if ((u32)(element + 2 * i + 1) >= WIDTH * CHANNELS) word[i] &= 0xffffu;
                }
            __syncwarp();
            if (first + lane < ROW_PIECES) pieces[piece] = make_uint4(word[0], word[1], word[2], word[3]);
            __syncwarp();
        }
    }
}
#elif IS_BY_ELEMENTS
// Rows of any layout, an element at a time.
FUNCTION void fetch_elements(ELEMENT *stage, const ELEMENT *x, Strip at, const Sizes &) {
    const int low = at.q * STRIDE_W - PAD_W;
#pragma unroll 4
    for (int i = threadIdx.x; i < ROWS * SPAN * CHANNELS; i += BLOCK_THREADS) {
        int row = i / (SPAN * CHANNELS), inside = i % (SPAN * CHANNELS);
#if X_IS_PLANAR
        int column = inside % SPAN, channel = inside / SPAN;
#else
        int column = inside / CHANNELS, channel = inside % CHANNELS;
#endif
        INDEX start;
        bool is_inside = row_offset(at, row, start) && (u32)(low + column) < WIDTH;
        const ELEMENT *from = x + start + (INDEX)(low + column) * X_W + (INDEX)channel * X_C;
        ELEMENT *to = stage + row * (PER_WORD * ROW_WORDS) + SHIFT + column * CHANNELS + channel;
#if IS_F32
        cp_async4(to, is_inside ? from : x, is_inside);
#else
        *to = is_inside ? *from : (u16)0;
#endif
    }
}
#endif

#if !IS_BY_ELEMENTS && !X_IS_PLANAR
// Rows of contiguous pixels, X_BYTES at a time.
FUNCTION void fetch_pieces(ELEMENT *stage, const ELEMENT *x, Strip at) {
    constexpr int size = X_BYTES / sizeof(ELEMENT), pieces = (SHIFT + SPAN * CHANNELS + size - 1) / size;
    const int low = (at.q * STRIDE_W - PAD_W) * CHANNELS - SHIFT;
#pragma unroll 2
    for (int i = threadIdx.x; i < ROWS * pieces; i += BLOCK_THREADS) {
        int row = i / pieces, element = low + i % pieces * size;
        INDEX start;
        bool is_inside = row_offset(at, row, start) && (u32)element < WIDTH * CHANNELS;
        const ELEMENT *from = x + start + element;
        ELEMENT *to = stage + row * (PER_WORD * ROW_WORDS) + i % pieces * size;
#if X_BYTES == 16
        cp_async16(to, from, is_inside);
#elif X_BYTES == 8
        cp_async8(to, from, is_inside);
#else
        cp_async4(to, from, is_inside);
#endif
    }
}
#endif

#if X_BYTES == 16 && X_IS_PLANAR
// Rows of separate planes of channels, 8 columns at a time: the channels are interleaved on the way.
FUNCTION void fetch_pieces(u16 *stage, const u16 *x, Strip at) {
    constexpr int pieces = (SHIFT / CHANNELS + SPAN + 7) / 8;
    const int low = at.q * STRIDE_W - PAD_W - SHIFT / CHANNELS;  // a multiple of 8
#pragma unroll 1
    for (int i = threadIdx.x; i < ROWS * pieces; i += BLOCK_THREADS) {
        int row = i / pieces, column = low + i % pieces * 8;
        INDEX start;
        bool is_inside = row_offset(at, row, start) && (u32)column < WIDTH;
        u32 plane[CHANNELS][4];
#pragma unroll
        for (int c = 0; c < CHANNELS; c++) {
            uint4 loaded = make_uint4(0, 0, 0, 0);
            if (is_inside) loaded = load16(x + start + column + (INDEX)c * X_C);
            plane[c][0] = loaded.x, plane[c][1] = loaded.y, plane[c][2] = loaded.z, plane[c][3] = loaded.w;
        }
        u32 mixed[4 * CHANNELS];
#pragma unroll
        for (int word = 0; word < 4 * CHANNELS; word++) {
            u32 half[2];
#pragma unroll
            for (int e = 0; e < 2; e++) {
                int pixel = (2 * word + e) / CHANNELS, c = (2 * word + e) % CHANNELS;
                half[e] = plane[c][pixel / 2] >> (pixel % 2 * 16) & 0xffffu;
            }
            mixed[word] = half[0] | half[1] << 16;
        }
        uint4 *to = (uint4 *)(stage + row * (2 * ROW_WORDS) + i % pieces * 8 * CHANNELS);
#pragma unroll
        for (int c = 0; c < CHANNELS; c++)
            to[c] = make_uint4(mixed[4 * c], mixed[4 * c + 1], mixed[4 * c + 2], mixed[4 * c + 3]);
    }
}
#endif

// To be called between barriers, when rows have arrived.
FUNCTION void finish_rows(u32 *stage, const ELEMENT *x, Strip at) {
#if X_BYTES == 2 && X_IS_DENSE
    align_rows(stage, x, at);
    __syncthreads();
#endif
}

FUNCTION void fetch_rows(u32 *stage, const ELEMENT *x, Strip at, const Sizes &sizes) {
#if IS_BY_ELEMENTS
    fetch_elements((ELEMENT *)stage, x, at, sizes);
#else
    fetch_pieces((ELEMENT *)stage, x, at);
#endif
}


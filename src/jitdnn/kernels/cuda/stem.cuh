// What the kernels of convolutions with few input channels share: rows of x in shared memory.
//
// The strips of a problem are blocks of BLOCK_P x BLOCK_Q outputs of one plane of one image. A strip's input is staged as
// TAPS_T * HALO_H rows of ROW_WORDS 32-bit words, channels interleaved whatever the layout of x, zeros where x has none.
// The first staged column, at.q * STRIDE_W - PAD_W, begins SHIFT elements into its row, so that rows of x that are
// aligned in memory are aligned here.
//
// A run is what one filter row covers of a staged row: TAPS_S * CHANNELS elements that follow each other, read as
// RUN_WORDS words. Words must begin at even elements. Where the runs of neighbouring outputs begin at odd distances,
// outputs come in two PHASES, even and odd columns, each with its own `lead` of 0 or 1 elements before the run.

struct Strip { int n, o, p, q; };

constexpr int ROWS = TAPS_T * HALO_H;
constexpr int SPAN = (BLOCK_Q - 1) * STRIDE_W + TAPS_S;  // columns of a staged row
constexpr int RUN = TAPS_S * CHANNELS;
constexpr int RUNS = TAPS_T * TAPS_R;
constexpr int WORDS = RUNS * RUN_WORDS;
constexpr int PHASE_COLUMNS = BLOCK_Q / PHASES;  // columns of a phase in one row of a strip
constexpr int SLOTS = BLOCK_P * PHASE_COLUMNS;   // outputs of a phase in a strip
constexpr int COLUMN_WORDS = PHASES * STRIDE_W * CHANNELS / 2;  // from one column of a phase to the next
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
FUNCTION int phase_lead(int phase) { return phase_start(phase) & 1; }

// The place of word `kk` of a run's words relative to the first word of an output, with its halves that hold taps in
// the two upper bits. Words beyond the last have neither half.
FUNCTION u32 word_place(int kk, int lead) {
    int run = kk / RUN_WORDS, word = kk % RUN_WORDS, element = 2 * word - lead;
    if (kk >= WORDS) return 0;
    u32 place = (u32)((run / TAPS_R * HALO_H + run % TAPS_R * DILATION_H) * ROW_WORDS + word);
    if (element >= 0 && element < RUN) place |= 1u << 30;
    if (element + 1 >= 0 && element + 1 < RUN) place |= 1u << 31;
    return place;
}
FUNCTION u32 place_mask(u32 place) { return (place >> 31 ? 0xffff0000u : 0u) | (place >> 30 & 1u ? 0xffffu : 0u); }

// The first word of output `slot` of a phase.
FUNCTION int slot_word(int slot, int phase) {
    return slot / PHASE_COLUMNS * (STRIDE_H * ROW_WORDS) + slot % PHASE_COLUMNS * COLUMN_WORDS +
           (phase_start(phase) - phase_lead(phase)) / 2;
}

// The offset of element `kk, half` of the filter for an output channel; NO_TAP if it is none of its taps.
constexpr int NO_TAP = -2147483647;
FUNCTION int filter_offset(int kk, int half, int lead) {
    int run = kk / RUN_WORDS, element = 2 * (kk % RUN_WORDS) + half - lead;
    if (kk >= WORDS || element < 0 || element >= RUN) return NO_TAP;
    return W_BASE + run / TAPS_R * W_T + run % TAPS_R * W_R + element / CHANNELS * W_S + element % CHANNELS * W_C;
}

FUNCTION bool row_place(Strip at, int row, INDEX &start) {
    int d = at.o * STRIDE_D - PAD_D + row / HALO_H * DILATION_D, h = at.p * STRIDE_H - PAD_H + row % HALO_H;
    start = (INDEX)at.n * X_N + (INDEX)d * X_D + (INDEX)h * X_H;
    return (u32)d < DEPTH && (u32)h < HEIGHT;
}

#if X_BYTES == 2 && X_IS_DENSE
// Rows whose pixels follow each other from any address on, two elements at a time.
FUNCTION void fetch_elements(u16 *stage, const u16 *x, Strip at) {
    constexpr int pairs = (SHIFT + SPAN * CHANNELS + 1) / 2;
    const int low = (at.q * STRIDE_W - PAD_W) * CHANNELS - SHIFT;
#pragma unroll 4
    for (int i = threadIdx.x; i < ROWS * pairs; i += BLOCK_THREADS) {
        const int row = i / pairs, element = low + i % pairs * 2;
        INDEX start;
        u32 pair = 0;
        if (row_place(at, row, start)) {
            const u16 *from = x + start + element;
            if (element >= 0 && element + 1 < WIDTH * CHANNELS) {
                if (is_aligned_to(from, 4))
                    pair = load4(from);
                else
                    pair = from[0] | (u32)from[1] << 16;
            } else if ((u32)element < WIDTH * CHANNELS) {
                pair = from[0];
            } else if ((u32)(element + 1) < WIDTH * CHANNELS) {
                pair = (u32)from[1] << 16;
            }
        }
        ((u32 *)stage)[row * ROW_WORDS + i % pairs] = pair;
    }
}
#elif X_BYTES == 2
// Rows of any layout, an element at a time.
FUNCTION void fetch_elements(u16 *stage, const u16 *x, Strip at) {
    const int low = at.q * STRIDE_W - PAD_W;
#pragma unroll 4
    for (int i = threadIdx.x; i < ROWS * SPAN * CHANNELS; i += BLOCK_THREADS) {
        int row = i / (SPAN * CHANNELS), inside = i % (SPAN * CHANNELS);
#if X_PLANES
        int column = inside % SPAN, channel = inside / SPAN;
#else
        int column = inside / CHANNELS, channel = inside % CHANNELS;
#endif
        INDEX start;
        bool is_inside = row_place(at, row, start) && (u32)(low + column) < WIDTH;
        u16 value = 0;
        if (is_inside) value = x[start + (INDEX)(low + column) * X_W + (INDEX)channel * X_C];
        stage[row * (2 * ROW_WORDS) + SHIFT + column * CHANNELS + channel] = value;
    }
}
#endif

#if X_BYTES > 2 && !X_PLANES
// Rows whose pixels follow each other, X_BYTES at a time.
FUNCTION void fetch_pieces(u16 *stage, const u16 *x, Strip at) {
    constexpr int size = X_BYTES / 2, pieces = (SHIFT + SPAN * CHANNELS + size - 1) / size;
    const int low = (at.q * STRIDE_W - PAD_W) * CHANNELS - SHIFT;
#pragma unroll 2
    for (int i = threadIdx.x; i < ROWS * pieces; i += BLOCK_THREADS) {
        int row = i / pieces, element = low + i % pieces * size;
        INDEX start;
        bool is_inside = row_place(at, row, start) && (u32)element < WIDTH * CHANNELS;
        const u16 *from = is_inside ? x + start + element : x;
        u16 *to = stage + row * (2 * ROW_WORDS) + i % pieces * size;
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

#if X_BYTES == 16 && X_PLANES
// Rows of separate planes of channels, 8 columns at a time: the channels are interleaved on the way.
FUNCTION void fetch_pieces(u16 *stage, const u16 *x, Strip at) {
    constexpr int pieces = (SHIFT / CHANNELS + SPAN + 7) / 8;
    const int low = at.q * STRIDE_W - PAD_W - SHIFT / CHANNELS;  // a multiple of 8
#pragma unroll 1
    for (int i = threadIdx.x; i < ROWS * pieces; i += BLOCK_THREADS) {
        int row = i / pieces, column = low + i % pieces * 8;
        INDEX start;
        bool is_inside = row_place(at, row, start) && (u32)column < WIDTH;
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

FUNCTION void fetch_rows(u32 *stage, const u16 *x, Strip at) {
#if X_BYTES > 2
    fetch_pieces((u16 *)stage, x, at);
#else
    fetch_elements((u16 *)stage, x, at);
#endif
}


// Taps of the filter, and which of them each row of A meets; see fprop_dgrad.cu, which names the macros.
//
// Which taps of a pixel lie outside of the data is found once for each row of a tile. With IS_MASKED it is kept in a
// word with a bit for each tap along each axis that is masked (MASK_AXES), 30 at most; another word of each tap says
// which bits it needs. The data is there if no bit is in both:
//
//     bit       31        30        29 ...                                          ... 0
//              +---------+---------+-----------------+-----------------+-----------------+
//     row      | 1       | no row  | taps of axis 0  | taps of axis 1  | taps of axis 2  |   outside[line]
//              +---------+---------+-----------------+-----------------+-----------------+
//     tap      | no tap  | 1       | its own tap     | its own tap     | its own tap     |   tap.bits
//              +---------+---------+-----------------+-----------------+-----------------+
//
// Bit 30 (NO_ROW) is set in every tap, and in rows behind the last pixel: such a row has nothing in any tap. Bit 31
// (NO_TAP) is set in every row, and in the tap behind the last: such a tap has nothing in any row. Without IS_MASKED
// the position is compared with the extents at each copy.

struct __align__(16) Tap {
    INDEX data, filter;  // elements from the pixel's first, and from the column's first
#if IS_MASKED
    u32 bits;  // see the drawing
#else
    int moved[3];
#endif
};

constexpr int PIECE_A = COPY_A > 0 ? COPY_A / ELEMENT_BYTES : 1, PIECE_B = COPY_B > 0 ? COPY_B / ELEMENT_BYTES : 1;
constexpr u32 NO_ROW = 1u << 30, NO_TAP = 1u << 31;

FUNCTION void fill_taps(const Tables &tables, const Phase &c, Tap *taps, int count) {
    for (int t = threadIdx.x; t <= count; t += BLOCK_THREADS) {
        Tap tap = {};
        int rest = t;
#if IS_MASKED
        tap.bits = t == count ? NO_TAP : NO_ROW;
        int bit = 0;
#endif
        if (t < count) {
#pragma unroll
            for (int axis = 2; axis >= 0; --axis) {
                const int outer = quotient(rest, c[axis].taps), i = rest - outer * (int)c[axis].taps.number;
                const int moved = (int)c[axis].data_offset + i * (int)tables.dilation[axis];
                rest = outer;
                tap.data += (INDEX)moved * (INDEX)tables.data_strides[axis];
                tap.filter += (INDEX)((int)c[axis].first_tap + i * (int)tables.filter_steps[axis]) *
                              (INDEX)tables.filter_strides[axis];
#if IS_MASKED
                if (tables.is_masked[axis]) {
                    tap.bits |= 1u << (bit + i);
                    bit += (int)c[axis].taps.number;
                }
#else
                tap.moved[axis] = moved;
#endif
            }
        }
#if !IS_MASKED
        if (t == count) tap.moved[0] = 1 << 30;
#endif
        taps[t] = tap;
    }
}

constexpr int A_LINES = BM * CHUNKS_K / BLOCK_THREADS, A_STEP = BLOCK_THREADS / CHUNKS_K;
static_assert(A_LINES * A_STEP == BM, "the threads divide the rows of a tile evenly");

// The rows of A that a thread copies.
struct Rows {
    INDEX start[A_LINES];  // element of the data at the pixel, before any tap
#if IS_MASKED
    u32 outside[A_LINES];  // see the drawing
#else
    int position[A_LINES][3];
#endif

    METHOD void set(const Tables &tables, const Phase &c, INDEX first, INDEX pixels) {
#if IS_MASKED
        int position[A_LINES][3];
#endif
#pragma unroll
        for (int line = 0; line < A_LINES; ++line) {
            const INDEX m = first + threadIdx.x / CHUNKS_K + line * A_STEP;
            if constexpr (IS_DATA_LINEAR) {
                start[line] = m * (INDEX)tables.data_step;
#if IS_MASKED
                outside[line] = m < pixels ? 0 : NO_ROW;
#endif
                continue;
            }
            int at[3];
            start[line] = pixel_position(c, m, at) * (INDEX)tables.data_image;
#pragma unroll
            for (int axis = 2; axis >= 0; --axis) {
                at[axis] *= (int)tables.input_stride[axis];
                start[line] += (INDEX)at[axis] * (INDEX)tables.data_strides[axis];
#if IS_MASKED
                position[line][axis] = at[axis];
#else
                position[line][axis] = m < pixels ? at[axis] : 1 << 29;
#endif
            }
#if IS_MASKED
            outside[line] = m < pixels ? NO_TAP : NO_TAP | NO_ROW;
#endif
        }
#if IS_MASKED
        if constexpr (IS_DATA_LINEAR) return;
        u32 bit = 1;
#pragma unroll
        for (int axis = 2; axis >= 0; --axis) {
            if (!tables.is_masked[axis]) continue;
            int moved = (int)c[axis].data_offset;
#pragma unroll 1
            for (int i = 0; i < (int)c[axis].taps.number; ++i, bit <<= 1, moved += (int)tables.dilation[axis])
#pragma unroll
                for (int line = 0; line < A_LINES; ++line)
                    if ((u32)(position[line][axis] + moved) >= (u32)tables.extents[axis]) outside[line] |= bit;
        }
#endif
    }

    METHOD bool is_inside(const Tables &tables, int line, const Tap &tap) const {
#if IS_MASKED
        if constexpr (IS_DATA_LINEAR) return outside[line] == 0 && tap.bits == 0;
        return (outside[line] & tap.bits) == 0;
#else
        bool inside = true;
#pragma unroll
        for (int axis = 0; axis < 3; ++axis)
            inside = inside && (u32)(position[line][axis] + tap.moved[axis]) < (u32)tables.extents[axis];
        return inside;
#endif
    }
};

constexpr i64 NO_PLACE = 1ll << 62;  // in a tensor: strides may be negative
constexpr int NO_CHANNEL = 1 << 30;  // beyond those of every tensor

// What the host says of the problem, in the order of the `numbers` of choose.py (`Axis` too) and operands.py (`Pack`).

// An axis of space, in a stride phase. Result i is computed from positions base + i * input_stride + tap * dilation of
// the data, tap < taps, with the taps first_tap + tap * tap_step of the filter; it is number first_result + i *
// result_stride of the result.
struct Axis {
    i64 results, base, input_stride, taps, dilation, first_tap, tap_step, first_result, result_stride;
};

struct Phase {
    i64 first_tile, rows;  // of the tiles along the rows of all phases; rows of the product
    Axis axes[3];
};

// A tensor that is copied into the workspace, to byte `at`, and a second copy `between` elements behind; see pack.cu.
// Strides are in elements. `is_dense`: it has no gaps; `is_flat`: its copy has the same elements in the same order.
struct Pack {
    i64 at, between, is_dense, is_flat, images, channels, packed_channels, extents[3], image, channel, space[3];

    // Where the first channel of a pixel is, counted through all images: fewer than 2^32.
    METHOD i64 pixel(u32 number) const {
        const u32 line = number / (u32)extents[2], plane = line / (u32)extents[1], of = plane / (u32)extents[0];
        return of * image + (plane - of * extents[0]) * space[0] + (line - plane * extents[1]) * space[1] +
               (number - line * extents[2]) * space[2];
    }
    // Whether there is a position along an axis.
    METHOD bool has(int axis, int position) const { return position >= 0 && position < extents[axis]; }
};

// What the places of a wgrad are divided by, thread by thread and tile by tile: a division by what is not known is a chain of
// some 100 cycles, one behind the other where the copies of a tile begin.
struct PlaceDivisors {
    Divisor part;    // pieces of work of a part of K or, in clusters, thread blocks of a tile
    Divisor parts;   // of K; see `stage_step`
    Divisor tiles;   // of a group
    Divisor strip;   // tiles along the axis along which they are numbered first
    Divisor column;  // columns of a tap; in lines blocks of 64 channels
    Divisor tap_s;   // taps along the last axis; in lines runs of taps that share one
    Divisor tap_r;   // along the one before
    Divisor results[3];
};

// Whether places are found by multiplications: by what the kernels of small products of one phase would read for it of their
// arguments, which no cache has when a launch begins, these take 0.4 us more.
#define HAS_DIVISORS (!IS_WGRAD && (PHASES > 1 || LINE_TAPS > 1))

// The magic number and the shift of a `Divisor` in one word, whose number is among others.
struct PackedDivisor {
    i64 bits;
};

FUNCTION int quotient(int n, PackedDivisor d) {
    return (int)(((u32)((u64)(u32)n * (u32)d.bits >> 32) + (u32)n) >> (u32)(d.bits >> 32));
}

// The same of correlations.
struct CorrelationDivisors {
    PackedDivisor part;   // tiles of a split of K, of all groups, or thread blocks of a cluster
    PackedDivisor tiles;  // of a group
    PackedDivisor strip;  // those of `strip` columns of tiles
    PackedDivisor width;  // `strip`
    PackedDivisor turns;  // tiles down of a turn of all stride phases; see `turn`
    PackedDivisor turn;
    PackedDivisor results[PHASES][3];
};

// Of a data gradient whose stride phases along the last axis are halves of the columns (PAIRED): the first `both` taps in
// the order of K are those of both, some positions from `first` on; the other one, if any, at position `single`, is of the
// second half alone. Of each half the filter's tap at position 0, from one position to the next, and where it lies.
struct Pair {
    i64 both, first, single, tap[2], tap_step[2], place[2];
};

struct Tables {
    // of the phases of A, for each of its parts; of B; of the result; of the epilogue's operand that is brought
    TensorMap maps[A_MAPS + B_MAPS + IS_RESULT_BOXES + HAS_BROUGHT];
    Phase phases[PHASES];
    i64 works, splits, groups, tiles_m, tiles_n, blocks_of_split;
    i64 strip;  // tiles are numbered across as many, then down
#if HAS_DIVISORS
    CorrelationDivisors by;
#endif
    i64 rows, columns, channels, channel_blocks;  // of a group: of the product; of the data or, of wgrad, of x
    // from one group to the next in the coordinates of A, and of B: its columns, what is summed, its outermost axis
    i64 a_channel_step, a_image_step, b_column_step, b_channel_step, b_outer_step;
    i64 is_volume;                 // maps of windows have three axes of space (1) or one (2), not two
    i64 is_a_linear, is_b_linear;  // of a wgrad: pixels are copied by their number, not as windows
    i64 is_a_whole, is_b_whole;    // of what is read across: one copy brings all channels of a tile, in blocks of 64
    i64 partials, header;  // bytes of the workspace
    i64 result_image, result_group, result_row, result_column, result_space[3];
    Pack packs[2];                // of the first and the second operand
    // of the result of a wgrad the place of tap 0, and from tap to tap; else from tap to tap of the filter, counted through
    i64 tap_place, tap_space[3];
    i64 x_extents[3], x_channels;  // of the tensor that a prologue transforms, over all groups
    i64 channel_sums, sum_rows;    // of the sums by channel: a byte of the workspace, and how many rows there are
    i64 turn;                      // tiles down of a stride phase before those of the next one; 0: all of them
#if TAKES_RING
    i64 stages, keeps_b, first_b, staging;  // see Ring: how many, whether all of B is kept, where B and staging begin
    i64 asked;                              // stages: see ask_ahead
#endif
#if IS_BLOCKWISE
    i64 shifts[2];  // of the operands' blocks: bytes of the workspace
#endif
#if IS_STREAMED
    i64 in_step, sharers, signals;  // thread blocks at the same place of K, and all; a byte of the workspace: see stream_k.cuh
#endif

#if IS_WGRAD
    PlaceDivisors by;
    i64 stage_step;  // see wgrad.cuh
    i64 discards;    // partial sums that were added are not to be written to memory
#elif PAIRED
    Pair pair;
#endif

    METHOD const TensorMap &a(int phase, int part) const { return maps[phase * PARTS + part]; }
    METHOD const TensorMap &b(int part) const { return maps[A_MAPS + part]; }
    METHOD const TensorMap &result() const { return maps[A_MAPS + B_MAPS]; }
    METHOD const TensorMap &brought() const { return maps[A_MAPS + B_MAPS + IS_RESULT_BOXES]; }
};

// Windows along c, w, then h, or h and d, or neither; then the tap's offsets, and how (`ToCache`), if not to shared memory.
template <class... How>
FUNCTION void load_pixels(const Tables &tables, u32 to, const TensorMap &map, u32 barrier, int c, int w, int h, int d,
                          int n, int s, int r, int t, How... how) {
    if (tables.is_volume) {
        if (tables.is_volume == 1)
            tma_load_im2col_5d(to, map, barrier, c, w, h, d, n, s, r, t, how...);
        else
            tma_load_im2col_3d(to, map, barrier, c, w, n, s, how...);
    } else
        tma_load_im2col_4d(to, map, barrier, c, w, h, n, s, r, how...);
}

// Of numbers that are not negative. Most divisors are 1 in some layer, and a division is a chain of some 100 cycles, for
// which a thread that brings the stages of small tiles has no time.
FUNCTION int quotient(int number, int divisor) { return divisor == 1 ? number : number / divisor; }

// The position of a pixel of a phase: its image, and its number along each axis of space.
struct Position {
    int image, at[3];

    METHOD Position() {}
    METHOD explicit Position(int number) : image(number), at{number, number, number} {}
    METHOD Position(const Phase &phase, int pixel) {
        const int c = (int)phase.axes[2].results, b = (int)phase.axes[1].results, a = (int)phase.axes[0].results;
        const int line = quotient(pixel, c), plane = quotient(line, b);
        at[2] = pixel - line * c, at[1] = line - plane * b;
        image = quotient(plane, a), at[0] = plane - image * a;
    }
#if !HAS_DIVISORS
    METHOD Position(const Tables &tables, int phase, int pixel) : Position(tables.phases[phase], pixel) {}
#else
    METHOD Position(const Tables &tables, int phase, int pixel) {
        const PackedDivisor *by = tables.by.results[phase];
        const Axis *axes = tables.phases[phase].axes;
        const int line = quotient(pixel, by[2]), plane = quotient(line, by[1]);
        image = quotient(plane, by[0]);
        at[2] = pixel - line * (int)axes[2].results, at[1] = line - plane * (int)axes[1].results;
        at[0] = plane - image * (int)axes[0].results;
    }
#endif
    // As many pixels further as `step` is the position of, without a division: each digit carries at most 1.
    METHOD void add(const Phase &phase, const Position &step) {
        int carry = 0;
#pragma unroll
        for (int n = 2; n >= 0; --n) {
            const int results = (int)phase.axes[n].results;
            at[n] += step.at[n] + carry;
            carry = at[n] >= results;
            if (carry) at[n] -= results;
        }
        image += step.image + carry;
    }
};

// The gradient of a filter as an implicit matrix product
//
//     dw[k, (tap, c)] = sum over pixels of  dy[pixel, k] * x[pixel moved by tap, c]
//
// A is dy ("outer"): its rows are channels of dy. B is x ("data"): its columns are taps, with the channels of x
// inside. K runs over the pixels of dy (image, then position). Channels are innermost in memory, so both operands are
// MN-major.
//
// Grid: axis 0 tiles, columns inside, and their splits (tile_scheduler.cuh); axis 1 groups.
//
// Which columns of a pixel lie outside of x is found once for each pixel, by one thread for all. With IS_MASKED it is
// kept in a word as in taps.cuh: bits 29 ... 0 of a pixel are set for taps that lie outside, bit 30 (NO_PIXEL)
// for a pixel behind the last, bit 31 (NO_COLUMN) always; a column has the bits of its tap, bit 30 always, and bit 31
// if it is behind the last. x is there if no bit is in both words.
//
// Macros, beside those of gemm/mainloop.cuh; what depends on the shape alone is in `Tables`. The filter is compiled in,
// and what each pixel is tested for, since one thread does it for a block of K (three numbers: one for each axis of
// space):
//
//     macro                 unit        meaning
//     TAPS_0, _1, _2        taps        along the axes
//     AXES                  axes        of space, the last ones, along which dy is more than one pixel or taps lie outside
//     INPUT_STRIDE          positions   of x from pixel to pixel of dy, three numbers
//     DILATION              positions   of x from tap to tap, three numbers
//     OFFSETS               positions   of x from the pixel to the first tap: minus the padding, three numbers
//     MASK_AXES             booleans    whether taps along the axis may lie outside, three
//     IS_MASKED             0 or 1      whether the taps of these axes fit into 30 bits
//     IS_OUTER_LINEAR       0 or 1      whether pixels of dy are outer_step apart
//     IS_DATA_LINEAR        0 or 1      whether those of x are data_step apart: one tap, which every pixel meets
//     HAS_WHOLE_BLOCKS      0 or 1      whether BK divides the pixels of dy
//     COPY_A, COPY_B        bytes       of an asynchronous copy; 0: element by element
//     IS_RESULT_VECTOR      0 or 1      whether eight columns are stored at once
//     HAS_RUNS_OF_ONE_TAP   0 or 1      if not, whether they have the same tap
//     HAS_SECTORS           0 or 1      whether four runs of results are whole sectors of memory

struct __align__(64) Tables {
    Work work;
    i64 pixels, blocks;             // of dy; of K
    i64 out_channels, outer_rows;   // of dy in a group, without and with the zeros of packing
    i64 in_channels;                // of x in a group
    Divisor packed_channels;        // with the zeros of packing
    i64 columns;                    // taps by packed channels
    Divisor results[3];             // positions of dy
    i64 extents[3];                 // positions of x
    // strides of x and dy in elements
    i64 data_image, data_group, data_channel, data_strides[3], data_step;
    i64 outer_image, outer_group, outer_channel, outer_strides[3], outer_step;
    i64 result_base, result_group, result_row, result_channel, result_strides[3];  // of dw; base: of the first tap
    i64 data_at, outer_at;          // bytes into the workspace, where packed ones are; -1: they are not packed
};

constexpr int PIECE_A = COPY_A > 0 ? COPY_A / ELEMENT_BYTES : 1, PIECE_B = COPY_B > 0 ? COPY_B / ELEMENT_BYTES : 1;
constexpr int STEP_A = BLOCK_THREADS / CHUNKS_M,
              STEP_B = BLOCK_THREADS / CHUNKS_N;  // pixels of a stage from one that a thread copies to its next

constexpr u32 NO_PIXEL = 1u << 30, NO_COLUMN = 1u << 31;

// What all columns need of a pixel of dy.
struct __align__(16) Pixel {
    INDEX data;  // elements of x at the pixel, before any tap
#if IS_MASKED
    u32 outside;  // see above
#else
    int position[3];  // in x
#endif
    INDEX outer;  // elements of dy

    METHOD void set(const Tables &tables, INDEX m) {
        constexpr int input_stride[3] = {INPUT_STRIDE};
        const INDEX pixels = (INDEX)tables.pixels;
        INDEX rest = m, from = 0, from_dy = 0;
#if IS_MASKED
        constexpr int taps[3] = {TAPS_0, TAPS_1, TAPS_2}, dilation[3] = {DILATION}, offsets[3] = {OFFSETS};
        constexpr bool is_masked[3] = {MASK_AXES};
        u32 bits = m < pixels ? NO_COLUMN : NO_COLUMN | NO_PIXEL;
        int bit = 0;
#endif
#pragma unroll
        for (int axis = 2; axis >= 3 - AXES; --axis) {
            const INDEX outer = quotient(rest, tables.results[axis]);
            const int at = (int)(rest - outer * (INDEX)tables.results[axis].number);
            const int moved = at * input_stride[axis];
            rest = outer;
            from += (INDEX)moved * (INDEX)tables.data_strides[axis];
            if constexpr (!IS_OUTER_LINEAR) from_dy += (INDEX)at * (INDEX)tables.outer_strides[axis];
#if IS_MASKED
            if (is_masked[axis]) {
#pragma unroll
                for (int tap = 0; tap < taps[axis]; ++tap, ++bit)
                    if ((u32)(moved + offsets[axis] + tap * dilation[axis]) >= (u32)tables.extents[axis])
                        bits |= 1u << bit;
            }
#else
            position[axis] = m < pixels ? moved : 1 << 30;
#endif
        }
        data = from + rest * (INDEX)tables.data_image;
        if constexpr (!IS_OUTER_LINEAR) outer = from_dy + rest * (INDEX)tables.outer_image;
#if IS_MASKED
        outside = bits;
#else
#pragma unroll
        for (int axis = 0; axis < 3 - AXES; ++axis) position[axis] = m < pixels ? 0 : 1 << 30;
#endif
    }
};

// What a column adds to a pixel.
struct Column {
    INDEX from;  // elements of x
#if IS_MASKED
    u32 bits;  // see above
#else
    int moved[3];
    bool has_number;
#endif

    METHOD void set(const Tables &tables, int number) {
        constexpr int taps[3] = {TAPS_0, TAPS_1, TAPS_2}, dilation[3] = {DILATION}, offsets[3] = {OFFSETS};
        int rest = quotient(number, tables.packed_channels);
        from = (INDEX)(number - rest * (int)tables.packed_channels.number) * (INDEX)tables.data_channel;
        const bool is_one = number < (int)tables.columns;
#if IS_MASKED
        constexpr bool is_masked[3] = {MASK_AXES};
        bits = is_one ? NO_PIXEL : NO_PIXEL | NO_COLUMN;
        int bit = 0;
#else
        has_number = is_one;
#endif
#pragma unroll
        for (int axis = 2; axis >= 0; --axis) {
            const int tap = rest % taps[axis], tap_offset = offsets[axis] + tap * dilation[axis];
            rest /= taps[axis];
            from += (INDEX)tap_offset * (INDEX)tables.data_strides[axis];
#if IS_MASKED
            if (is_masked[axis]) {
                bits |= 1u << (bit + tap);
                bit += taps[axis];
            }
#else
            moved[axis] = tap_offset;
#endif
        }
    }

    METHOD bool is_there() const {
#if IS_MASKED
        return (bits & NO_COLUMN) == 0;
#else
        return has_number;
#endif
    }

    METHOD bool meets(const Tables &tables, const Pixel &pixel) const {
#if IS_MASKED
        return (pixel.outside & bits) == 0;
#else
        bool is_met = has_number;
#pragma unroll
        for (int axis = 0; axis < 3; ++axis)
            is_met = is_met && (u32)(pixel.position[axis] + moved[axis]) < (u32)tables.extents[axis];
        return is_met;
#endif
    }
};

struct Loader {
    static constexpr bool IS_PREPARED = !IS_OUTER_LINEAR || !IS_DATA_LINEAR;
    const Tables &tables;
    Column columns[COPY_B > 0 ? CHUNK / PIECE_B : 1];
    int first_column;  // of this thread's chunk
    const DTYPE *outer;  // dy at the first row of the tile
    const DTYPE *data;
    int rows;              // that the tile has of them
    Pixel *pixels;         // two tables of BK each, in turn
    int prepared, loading;  // the table of the next block of K, and that of the block that is being copied

    METHOD int blocks() const { return (int)tables.blocks; }  // of K

    METHOD void set_columns(int first) {
        first_column = first + (int)threadIdx.x % CHUNKS_N * CHUNK;
        if constexpr (COPY_B > 0) {
#pragma unroll
            for (int piece = 0; piece < CHUNK / PIECE_B; ++piece) columns[piece].set(tables, first_column + piece * PIECE_B);
        }
    }

    METHOD Column column_of(int piece) const {
        if constexpr (COPY_B > 0) return columns[piece];
        Column column;
        column.set(tables, first_column + piece);
        return column;
    }

    // Fills the table of a block's pixels, for all threads and columns.
    METHOD void prepare(int number) {
        prepared ^= BK;
        static_assert(BLOCK_THREADS >= BK, "a thread has one pixel of a block, or none");
        if (threadIdx.x < BK) {
            Pixel pixel;
            pixel.set(tables, (INDEX)number * BK + threadIdx.x);
            pixels[prepared + threadIdx.x] = pixel;
        }
    }

    template <int SLICE>
    METHOD void load(u8 *stage, int number) {
        if (SLICE == 0) loading = prepared;
        load_outer<SLICE>(stage, (INDEX)number * BK);
        load_data<SLICE>(stage + A_BYTES, (INDEX)number * BK);
    }

    template <int SLICE>
    METHOD void load_outer(u8 *stage, INDEX first) {
        constexpr int lines = (BK + STEP_A - 1) / STEP_A;
        const int chunk = threadIdx.x % CHUNKS_M, row = threadIdx.x / CHUNKS_M;
        if (BLOCK_THREADS % CHUNKS_M != 0 && row == STEP_A) return;  // what is left of the threads would copy what others do
        const u32 to = smem_address(stage);
        const INDEX channel_step = COPY_A > 0 ? 1 : (INDEX)tables.outer_channel, all = (INDEX)tables.pixels;
        const DTYPE *own = outer + (INDEX)(chunk * CHUNK) * channel_step;
        const INDEX line_step = STEP_A * (INDEX)tables.outer_step;
        const DTYPE *linear = own + (first + row) * (INDEX)tables.outer_step;
#pragma unroll
        for (int line = LINES_OF(SLICE, lines); line < LINES_OF(SLICE + 1, lines); ++line) {
            const int depth = row + line * STEP_A;
            if (BK % STEP_A != 0 && depth >= BK) break;
            const DTYPE *from = linear + (i64)line * line_step;
            if constexpr (!IS_OUTER_LINEAR) from = own + pixels[loading + depth].outer;
            const bool is_pixel = HAS_WHOLE_BLOCKS ? first < all : first + depth < all;
#pragma unroll COPY_UNROLL(COPY_A)
            for (int e = 0; e < CHUNK; e += PIECE_A) {
                const int channel = chunk * CHUNK + e;
                const int at = position_of_line<CHUNKS_M, STEP_A>(row, chunk, line) + e * ELEMENT_BYTES;
                const DTYPE *p = from + e * (i64)channel_step;
                const bool is_valid = is_pixel && channel < rows;
                if constexpr (COPY_A > 0)
                    copy_async<COPY_A>(to + at, p, is_valid);
                else
                    *(DTYPE *)(stage + at) = is_valid ? *p : (DTYPE)0;
            }
        }
    }

    template <int SLICE>
    METHOD void load_data(u8 *stage, INDEX first) {
        constexpr int lines = (BK + STEP_B - 1) / STEP_B;
        const int chunk = threadIdx.x % CHUNKS_N, row = threadIdx.x / CHUNKS_N;
        if (BLOCK_THREADS % CHUNKS_N != 0 && row == STEP_B) return;  // as in load_outer
        const u32 to = smem_address(stage);
        constexpr int begin = LINES_OF(SLICE, lines), end = LINES_OF(SLICE + 1, lines);
        Pixel near[end > begin ? end - begin : 1];  // read before the first copy is issued: reads behind it would wait
        if constexpr (!IS_DATA_LINEAR) {
#pragma unroll
            for (int line = begin; line < end; ++line)
                near[line - begin] = pixels[loading + min(row + line * STEP_B, BK - 1)];
        }
        const INDEX all = (INDEX)tables.pixels, line_step = STEP_B * (INDEX)tables.data_step;
        const DTYPE *linear = data + (first + row) * (INDEX)tables.data_step;
#pragma unroll
        for (int line = begin; line < end; ++line) {
            if (BK % STEP_B != 0 && row + line * STEP_B >= BK) break;
            const Pixel &pixel = near[line - begin];
#pragma unroll COPY_UNROLL(COPY_B)
            for (int piece = 0; piece < CHUNK / PIECE_B; ++piece) {
                const Column column = column_of(piece);
                const int at = position_of_line<CHUNKS_N, STEP_B>(row, chunk, line) + piece * PIECE_B * ELEMENT_BYTES;
                bool is_valid;
                const DTYPE *p;
                if constexpr (IS_DATA_LINEAR) {  // one tap, which every pixel of dy meets
                    is_valid = (HAS_WHOLE_BLOCKS ? first : first + row + line * STEP_B) < all && column.is_there();
                    p = linear + column.from + (i64)line * line_step;
                } else {
                    is_valid = column.meets(tables, pixel);
                    p = data + (pixel.data + column.from);
                }
                if constexpr (COPY_B > 0)
                    copy_async<COPY_B>(to + at, p, is_valid);
                else
                    *(DTYPE *)(stage + at) = is_valid ? *p : (DTYPE)0;
            }
        }
    }
};

// The first row and column of a tile, and its group.
struct Tile {
    int row, column;
    int group;
};

FUNCTION Tile tile_at(const Work &work, u32 number) {
    const u32 row = quotient(number, work.tiles_n);
    return {(int)row * BM, (int)(number - row * (u32)work.tiles_n.number) * BN, (int)blockIdx.y};
}

// Stores eight columns of a row of a tile.
FUNCTION void finish_run(const Tables &tables, const Tile &tile, int row, int column, const SUM (&sums)[RUN],
                         RESULT *result, REAL alpha, REAL beta) {
    constexpr int taps[3] = {TAPS_0, TAPS_1, TAPS_2};
    result += tables.result_base + (INDEX)(tile.group * tables.result_group + row * tables.result_row);
    const int count = IS_RESULT_VECTOR ? RUN : min(RUN, (int)tables.columns - column);
    REAL results[RUN];
#pragma unroll
    for (int e = 0; e < RUN; ++e) results[e] = (REAL)sums[e];
    if constexpr (IS_RESULT_VECTOR) {
        store_results<RUN>(result + column, 1, results, count, alpha, beta);
    } else {
        int channel = 0;
        RESULT *of_tap = result;
#pragma unroll
        for (int e = 0; e < RUN; ++e) {
            if (e >= count) break;
            if (e == 0 || !HAS_RUNS_OF_ONE_TAP) {
                int tap = quotient(column + e, tables.packed_channels);
                channel = column - tap * (int)tables.packed_channels.number;
                of_tap = result;
#pragma unroll
                for (int axis = 2; axis >= 0; --axis) {
                    of_tap += (INDEX)(tap % taps[axis]) * (INDEX)tables.result_strides[axis];
                    tap /= taps[axis];
                }
            }
            if (channel + e >= (int)tables.in_channels) continue;  // a zero of packing
            RESULT *p = of_tap + (INDEX)(channel + e) * (INDEX)tables.result_channel;
            REAL value = alpha * results[e];
            if (beta != 0) value += beta * (REAL)LOAD(RESULT, p, 0);
            STORE(RESULT, p, 0, value);
        }
    }
}

KERNEL2(BLOCK_THREADS, RESIDENT)
void implicit_gemm_wgrad(SHAPE_PARAMETER const DTYPE *first, const DTYPE *second, RESULT *result,
                         u8 *workspace, SCALE alpha, SCALE beta) {
    extern __shared__ __align__(128) u8 shared[];
    KNOWN_TABLES
    const WorkTile slice = work_tile_of_block(tables.work);
    const Tile tile = tile_at(tables.work, slice.tile);
    Loader loader = {tables};
    loader.data = in_register((tables.data_at >= 0 ? (const DTYPE *)(workspace + tables.data_at) : first) +
                              tile.group * tables.data_group);
    loader.outer = in_register((tables.outer_at >= 0 ? (const DTYPE *)(workspace + tables.outer_at) : second) +
                               tile.group * tables.outer_group + tile.row * tables.outer_channel);
    loader.rows = (int)tables.outer_rows - tile.row;
    loader.pixels = (Pixel *)(shared + STAGES * STAGE_BYTES);
    loader.prepared = loader.loading = 0;
    loader.set_columns(tile.column);

    SUM sums[MMAS_M][MMAS_N][4] = {};
    const BlocksOfSplit own(tables.work, slice, (int)tables.blocks);
    accumulate(sums, loader, shared, own.begin, own.end - own.begin);

    if (!HAS_WHOLE_TILES || (IS_SPLIT && slice.splits > 1)) {
        store_partial(sums, partial_tile(workspace, tables.work, blockIdx.y, gridDim.y, slice.tile, slice.split));
    } else {
        const int rows = (int)tables.out_channels, columns = (int)tables.columns;
        auto finish = [&](int row, int column, const SUM(&values)[RUN]) {
            if (tile.row + row >= rows || tile.column + column >= columns) return;
            finish_run(tables, tile, tile.row + row, tile.column + column, values, result, (REAL)alpha, (REAL)beta);
        };
        finish_tile<HAS_SECTORS, false>(sums, (SUM *)shared, finish);
    }
}

#if IS_SPLIT
// The reduction of split tiles. Grid: axis 0 such tiles; axis 1 groups; axis 2 pieces of a tile.
KERNEL(REDUCTION_BLOCK)
void reduce_partials(SHAPE_PARAMETER const DTYPE *, const DTYPE *, RESULT *result, u8 *workspace, SCALE alpha,
                     SCALE beta) {
    KNOWN_TABLES
    const int runs = reduction_runs(tables.work);
    const PartialRun run((int)blockIdx.z * runs + ((int)threadIdx.x & (runs - 1)));
    const u32 divided = (u32)tables.work.unsplit + blockIdx.x;
    const Tile tile = tile_at(tables.work, divided);
    const int row = tile.row + run.row, column = tile.column + run.column;
    const SUM *first = partial_tile(workspace, tables.work, blockIdx.y, gridDim.y, divided, 0);
    const SUM *second = partial_tile(workspace, tables.work, blockIdx.y, gridDim.y, divided, 1);
    SUM values[RUN] = {};
    sum_partials(values, tables.work, first + run.at, second - first, row < (int)tables.out_channels);
    if (threadIdx.x < runs && row < (int)tables.out_channels && column < (int)tables.columns)
        finish_run(tables, tile, row, column, values, result, (REAL)alpha, (REAL)beta);
}
#endif

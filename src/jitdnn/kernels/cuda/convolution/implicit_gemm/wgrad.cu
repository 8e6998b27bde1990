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
// kept in a word as in fprop_dgrad.cu: bits 29 ... 0 of a pixel are set for taps that lie outside, bit 30 (NO_PIXEL)
// for a pixel behind the last, bit 31 (NO_COLUMN) always; a column has the bits of its tap, bit 30 always, and bit 31
// if it is behind the last. x is there if no bit is in both words.
//
// Macros, beside those of gemm/mainloop.cuh (three numbers: one for each axis of space):
//
//     macro                 unit        meaning
//     INDEX                 type        of offsets into tensors
//     IMAGES                images
//     PIXELS_PER_IMAGE      pixels      of dy
//     OUT_CHANNELS          channels    of dy in a group; PACKED_OUT_CHANNELS with the zeros of packing
//     IN_CHANNELS           channels    of x in a group; PACKED_IN_CHANNELS with the zeros of packing
//     TAPS_0, _1, _2        taps        along the axes
//     RESULTS, EXTENTS      positions   of dy, and of x, three numbers
//     INPUT_STRIDE          positions   of x from pixel to pixel of dy, three numbers
//     DILATION              positions   of x from tap to tap, three numbers
//     OFFSETS               positions   of x from the pixel to the first tap: minus the padding, three numbers
//     MASK_AXES             booleans    whether taps along the axis may lie outside, three
//     IS_MASKED             0 or 1      whether the taps of these axes fit into 30 bits
//     DATA_*, OUTER_*       elements    strides of x and dy: IMAGE, GROUP, CHANNEL, STRIDES (three numbers)
//     OUTER_STEP            elements    from pixel to pixel of dy, if IS_OUTER_LINEAR
//     DATA_STEP             elements    from pixel to pixel of x, if IS_DATA_LINEAR: one tap, which every pixel meets
//     RESULT_*              elements    of dw: BASE (of the first tap), strides GROUP, ROW, CHANNEL, STRIDES
//     COPY_A, COPY_B        bytes       of an asynchronous copy; 0: element by element
//     IS_RESULT_VECTOR      0 or 1      whether eight columns are stored at once
//     IS_DATA_PACKED, IS_OUTER_PACKED 0 or 1; DATA_AT, OUTER_AT: bytes into the workspace, where the packed ones are

constexpr int COLUMNS = TAPS_0 * TAPS_1 * TAPS_2 * PACKED_IN_CHANNELS;
constexpr INDEX GRID_TILES_N = (COLUMNS + BN - 1) / BN;
constexpr int PIECE_A = COPY_A > 0 ? COPY_A / ELEMENT_BYTES : 1, PIECE_B = COPY_B > 0 ? COPY_B / ELEMENT_BYTES : 1;
constexpr int STEP_A = BLOCK_THREADS / CHUNKS_M,
              STEP_B = BLOCK_THREADS / CHUNKS_N;  // pixels of a stage from one that a thread copies to its next

constexpr INDEX PIXELS = (INDEX)IMAGES * PIXELS_PER_IMAGE;
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

    METHOD void set(INDEX m) {
        constexpr int results[3] = {RESULTS}, input_stride[3] = {INPUT_STRIDE};
        constexpr i64 data_strides[3] = {DATA_STRIDES}, outer_strides[3] = {OUTER_STRIDES};
        INDEX rest = m, from = 0, from_dy = 0;
#if IS_MASKED
        constexpr int taps[3] = {TAPS_0, TAPS_1, TAPS_2}, dilation[3] = {DILATION}, offsets[3] = {OFFSETS};
        constexpr int extents[3] = {EXTENTS};
        constexpr bool is_masked[3] = {MASK_AXES};
        u32 bits = m < PIXELS ? NO_COLUMN : NO_COLUMN | NO_PIXEL;
        int bit = 0;
#endif
#pragma unroll
        for (int axis = 2; axis >= 0; --axis) {
            const INDEX outer = rest / results[axis];
            const int at = (int)(rest - outer * results[axis]), moved = at * input_stride[axis];
            rest = outer;
            from += (INDEX)(moved * data_strides[axis]);
            from_dy += (INDEX)(at * outer_strides[axis]);
#if IS_MASKED
            if (is_masked[axis]) {
#pragma unroll
                for (int tap = 0; tap < taps[axis]; ++tap, ++bit)
                    if ((u32)(moved + offsets[axis] + tap * dilation[axis]) >= (u32)extents[axis]) bits |= 1u << bit;
            }
#else
            position[axis] = m < PIXELS ? moved : 1 << 30;
#endif
        }
        data = from + rest * (INDEX)DATA_IMAGE;
        outer = from_dy + rest * (INDEX)OUTER_IMAGE;
#if IS_MASKED
        outside = bits;
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

    METHOD void set(int number) {
        constexpr int taps[3] = {TAPS_0, TAPS_1, TAPS_2}, dilation[3] = {DILATION}, offsets[3] = {OFFSETS};
        constexpr i64 strides[3] = {DATA_STRIDES};
        int rest = number / PACKED_IN_CHANNELS;
        from = (INDEX)((number - rest * PACKED_IN_CHANNELS) * (i64)DATA_CHANNEL);
        const bool is_one = COLUMNS % BN == 0 || number < COLUMNS;
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
            from += (INDEX)(tap_offset * strides[axis]);
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

    METHOD bool meets(const Pixel &pixel) const {
#if IS_MASKED
        return (pixel.outside & bits) == 0;
#else
        constexpr int extents[3] = {EXTENTS};
        bool is_met = has_number;
#pragma unroll
        for (int axis = 0; axis < 3; ++axis)
            is_met = is_met && (u32)(pixel.position[axis] + moved[axis]) < (u32)extents[axis];
        return is_met;
#endif
    }
};

struct Loader {
    static constexpr bool IS_PREPARED = !IS_OUTER_LINEAR || !IS_DATA_LINEAR;
    static constexpr int blocks = (int)((PIXELS + BK - 1) / BK);  // of K

    Column columns[COPY_B > 0 ? CHUNK / PIECE_B : 1];
    int first_column;  // of this thread's chunk
    const DTYPE *outer;  // dy at the first row of the tile
    const DTYPE *data;
    int rows;              // that the tile has of them
    Pixel *pixels;         // two tables of BK each, in turn
    int prepared, loading;  // the table of the next block of K, and that of the block that is being copied

    METHOD void set_columns(int first) {
        first_column = first + (int)threadIdx.x % CHUNKS_N * CHUNK;
        if constexpr (COPY_B > 0) {
#pragma unroll
            for (int piece = 0; piece < CHUNK / PIECE_B; ++piece) columns[piece].set(first_column + piece * PIECE_B);
        }
    }

    METHOD Column column_of(int piece) const {
        if constexpr (COPY_B > 0) return columns[piece];
        Column column;
        column.set(first_column + piece);
        return column;
    }

    // Fills the table of a block's pixels, for all threads and columns.
    METHOD void prepare(int number) {
        prepared ^= BK;
        static_assert(BLOCK_THREADS >= BK, "a thread has one pixel of a block, or none");
        if (threadIdx.x < BK) {
            Pixel pixel;
            pixel.set((INDEX)number * BK + threadIdx.x);
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
        const u32 to = smem_address(stage);
        const DTYPE *own = outer + chunk * (CHUNK * (i64)OUTER_CHANNEL);
        const DTYPE *linear = own + (first + row) * (INDEX)OUTER_STEP;
#pragma unroll
        for (int line = LINES_OF(SLICE, lines); line < LINES_OF(SLICE + 1, lines); ++line) {
            const int depth = row + line * STEP_A;
            if (BK % STEP_A != 0 && depth >= BK) break;
            const DTYPE *from = linear + line * (STEP_A * (i64)OUTER_STEP);
            if constexpr (!IS_OUTER_LINEAR) from = own + pixels[loading + depth].outer;
            const bool is_pixel = PIXELS % BK == 0 ? first < PIXELS : first + depth < PIXELS;
#pragma unroll COPY_UNROLL(COPY_A)
            for (int e = 0; e < CHUNK; e += PIECE_A) {
                const int channel = chunk * CHUNK + e;
                const int at = position_of_line<CHUNKS_M, STEP_A>(row, chunk, line) + e * ELEMENT_BYTES;
                const DTYPE *p = from + e * (i64)OUTER_CHANNEL;
                const bool is_valid = is_pixel && (PACKED_OUT_CHANNELS % BM == 0 || channel < rows);
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
        const u32 to = smem_address(stage);
        constexpr int begin = LINES_OF(SLICE, lines), end = LINES_OF(SLICE + 1, lines);
        Pixel near[end > begin ? end - begin : 1];  // read before the first copy is issued: reads behind it would wait
        if constexpr (!IS_DATA_LINEAR) {
#pragma unroll
            for (int line = begin; line < end; ++line)
                near[line - begin] = pixels[loading + min(row + line * STEP_B, BK - 1)];
        }
        const DTYPE *linear = data + (first + row) * (INDEX)DATA_STEP;
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
                    is_valid = (PIXELS % BK == 0 ? first : first + row + line * STEP_B) < PIXELS && column.is_there();
                    p = linear + (line * (STEP_B * (i64)DATA_STEP) + column.from);
                } else {
                    is_valid = column.meets(pixel);
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

FUNCTION Tile tile_at(u32 number) {
    return {(int)(number / GRID_TILES_N) * BM, (int)(number % GRID_TILES_N) * BN, (int)blockIdx.y};
}

// Stores eight columns of a row of a tile.
FUNCTION void finish_run(const Tile &tile, int row, int column, const SUM (&sums)[RUN], RESULT *result, REAL alpha,
                         REAL beta) {
    constexpr int taps[3] = {TAPS_0, TAPS_1, TAPS_2};
    constexpr i64 strides[3] = {RESULT_STRIDES};
    result += RESULT_BASE + (INDEX)(tile.group * (i64)RESULT_GROUP + row * (i64)RESULT_ROW);
    const int count = COLUMNS % RUN == 0 ? RUN : min(RUN, COLUMNS - column);
    REAL results[RUN];
#pragma unroll
    for (int e = 0; e < RUN; ++e) results[e] = (REAL)sums[e];
    if constexpr (IS_RESULT_VECTOR) {
        store_results<RUN>(result + column, 1, results, count, alpha, beta);
    } else {
#pragma unroll
        for (int e = 0; e < RUN; ++e) {
            if (e >= count) break;
            int tap = (column + e) / PACKED_IN_CHANNELS;
            const int channel = column + e - tap * PACKED_IN_CHANNELS;
            if (channel >= IN_CHANNELS) continue;  // a zero of packing
            RESULT *p = result + (INDEX)(channel * (i64)RESULT_CHANNEL);
#pragma unroll
            for (int axis = 2; axis >= 0; --axis) {
                p += (INDEX)(tap % taps[axis] * strides[axis]);
                tap /= taps[axis];
            }
            REAL value = alpha * results[e];
            if (beta != 0) value += beta * (REAL)LOAD(RESULT, p, 0);
            STORE(RESULT, p, 0, value);
        }
    }
}

KERNEL2(BLOCK_THREADS, RESIDENT)
void implicit_gemm_wgrad(const DTYPE *first, const DTYPE *second, RESULT *result, u8 *workspace, SCALE alpha,
                          SCALE beta) {
    extern __shared__ __align__(128) u8 shared[];
    const WorkTile slice = work_tile_of_block(GRID_TILES);
    const Tile tile = tile_at(slice.tile);
    Loader loader;
    loader.data = in_register((IS_DATA_PACKED ? (const DTYPE *)(workspace + DATA_AT) : first) +
                              tile.group * (i64)DATA_GROUP);
    loader.outer = in_register((IS_OUTER_PACKED ? (const DTYPE *)(workspace + OUTER_AT) : second) +
                               tile.group * (i64)OUTER_GROUP + tile.row * (i64)OUTER_CHANNEL);
    loader.rows = PACKED_OUT_CHANNELS - tile.row;
    loader.pixels = (Pixel *)(shared + STAGES * STAGE_BYTES);
    loader.prepared = loader.loading = 0;
    loader.set_columns(tile.column);

    SUM sums[MMAS_M][MMAS_N][4] = {};
    const int begin = (int)((i64)Loader::blocks * slice.split / slice.splits);
    const int end = (int)((i64)Loader::blocks * (slice.split + 1) / slice.splits);
    accumulate<true, true>(sums, loader, shared, begin, end - begin);

    if (SPLITS > 1 && slice.splits > 1) {
        store_partial(sums, partial_tile(workspace, GRID_TILES, blockIdx.y, gridDim.y, slice.tile, slice.split));
    } else {
        auto finish = [&](int row, int column, const SUM(&values)[RUN]) {
            if (tile.row + row >= OUT_CHANNELS || tile.column + column >= COLUMNS) return;
            finish_run(tile, tile.row + row, tile.column + column, values, result, (REAL)alpha, (REAL)beta);
        };
        finish_tile<IS_RESULT_VECTOR && RESULT_ROW % 32 == 0, false>(sums, (SUM *)shared, finish);
    }
}

// The reduction of split tiles. Grid: axis 0 such tiles; axis 1 groups; axis 2 pieces of a tile.
KERNEL(REDUCTION_BLOCK)
void reduce_partials(const DTYPE *, const DTYPE *, RESULT *result, u8 *workspace, SCALE alpha, SCALE beta) {
    const PartialRun run((int)blockIdx.z * REDUCTION_RUNS + (int)threadIdx.x % REDUCTION_RUNS);
    const u32 divided = UNSPLIT + blockIdx.x;
    const Tile tile = tile_at(divided);
    const int row = tile.row + run.row, column = tile.column + run.column;
    const SUM *first = partial_tile(workspace, GRID_TILES, blockIdx.y, gridDim.y, divided, 0);
    const SUM *second = partial_tile(workspace, GRID_TILES, blockIdx.y, gridDim.y, divided, 1);
    SUM values[RUN] = {};
    sum_partials(values, first + run.at, second - first, row < OUT_CHANNELS);
    if (threadIdx.x < REDUCTION_RUNS && row < OUT_CHANNELS && column < COLUMNS)
        finish_run(tile, row, column, values, result, (REAL)alpha, (REAL)beta);
}

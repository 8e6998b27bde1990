// Convolution forward and backward to the data, and the matrix product: an implicit matrix product
//
//     result[pixel, column] = sum over (tap, channel) of data[pixel moved by tap, channel] filter[column, tap, channel]
//
// A is the data, K-major: its rows are pixels of the result (image, then position). B is the filter, K-major or
// MN-major: its columns are channels of the result. K runs over (tap, channel), channels inside. A strided dgrad is
// several of these products, one for each stride phase: the results at first_result + OUTPUT_STRIDE * position, which
// only the phase's own taps meet.
//
// Grid: axis 0 tiles, columns inside, and their splits (tile_scheduler.cuh); axis 1 groups; axis 2 stride phases.
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
//
// Macros, beside those of gemm/mainloop.cuh (three numbers: one for each axis of space):
//
//     macro                unit        meaning
//     INDEX                type        of offsets into tensors
//     IMAGES               images
//     IN_CHANNELS          channels    of the data in a group; FILTER_IN_CHANNELS of them the filter has
//     OUT_CHANNELS         channels    of the result in a group; FILTER_OUT_CHANNELS of the filter may be read
//     PHASES, PHASE_TABLE  phases      their number, and the initializers of Phase
//     SAME_RESULTS         positions   of all phases, three numbers; defined if they are the same
//     DILATION             positions   of the data from tap to tap of a phase, three numbers, of either sign
//     FILTER_STEPS         taps        of the filter from tap to tap of a phase, three numbers, of either sign
//     INPUT_STRIDE         positions   of the data from result to result of a phase, three numbers
//     OUTPUT_STRIDE        positions   of the result from result to result of a phase, three numbers
//     EXTENTS              positions   of the data, three numbers
//     MASK_AXES            booleans    whether taps along the axis may lie outside, three
//     IS_MASKED            0 or 1      whether the taps of these axes fit into 30 bits
//     DATA_*, RESULT_*     elements    strides: IMAGE, GROUP, CHANNEL (of results COLUMN), STRIDES (three numbers)
//     FILTER_*             elements    strides: GROUP, COLUMN, CHANNEL, STRIDES (three numbers)
//     RESULT_STEP          elements    from pixel to pixel, if IS_RESULT_LINEAR
//     COPY_A, COPY_B       bytes       of an asynchronous copy; 0: element by element
//     FILTER_MN_MAJOR      0 or 1      whether B is MN-major
//     GROUPS_INNER         groups      of a run; DATA_OUTER, FILTER_OUTER, RESULT_OUTER elements from run to run
//     RESULT_WIDTH         1 to 8      channels that are stored at once
//     ROWS_FIRST           0 or 1      whether neighbouring threads store neighbouring pixels
//     IS_DATA_PACKED, IS_FILTER_PACKED 0 or 1; DATA_AT, FILTER_AT: bytes into the workspace, where the packed ones are
//     HAS_EPILOGUE         0 or 1      EPILOGUE(sum, image, channel, a, b, c), EPILOGUE_PARAMETERS and _ARGUMENTS

struct Phase {
    int results[3], first_result[3], taps[3], data_offset[3], start[3];  // see PhaseAxis; start is its first_tap
};

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
constexpr INDEX GRID_TILES_N = (OUT_CHANNELS + BN - 1) / BN;

FUNCTION Phase phase_of(int number) {
#if PHASES == 1
    constexpr Phase only = PHASE_TABLE;  // so that divisions by its extents are by constants
    return only;
#else
    static CONSTANT_TABLE Phase all[PHASES] = {PHASE_TABLE};
    Phase one = all[number];
#ifdef SAME_RESULTS  // of all phases: divisions by them are by constants
    constexpr int results[3] = {SAME_RESULTS};
#pragma unroll
    for (int axis = 0; axis < 3; ++axis) one.results[axis] = results[axis];
#endif
    return one;
#endif
}

// Pixel m of a phase: its image, and its position along the axes.
FUNCTION INDEX pixel_position(const Phase &c, INDEX m, int (&position)[3]) {
    position[2] = (int)(m % c.results[2]);
    m /= c.results[2];
    position[1] = (int)(m % c.results[1]);
    m /= c.results[1];
    position[0] = (int)(m % c.results[0]);
    return m / c.results[0];
}

FUNCTION void fill_taps(const Phase &c, Tap *taps, int count) {
    constexpr int dilation[3] = {DILATION}, steps[3] = {FILTER_STEPS};
    constexpr i64 data_strides[3] = {DATA_STRIDES}, filter_strides[3] = {FILTER_STRIDES};
    constexpr bool is_masked[3] = {MASK_AXES};
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
                const int i = rest % c.taps[axis], moved = c.data_offset[axis] + i * dilation[axis];
                rest /= c.taps[axis];
                tap.data += (INDEX)(moved * data_strides[axis]);
                tap.filter += (INDEX)((c.start[axis] + i * steps[axis]) * filter_strides[axis]);
#if IS_MASKED
                if (is_masked[axis]) {
                    tap.bits |= 1u << (bit + i);
                    bit += c.taps[axis];
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

    METHOD void set(const Phase &c, INDEX first, INDEX pixels) {
        constexpr int dilation[3] = {DILATION}, input_stride[3] = {INPUT_STRIDE}, extents[3] = {EXTENTS};
        constexpr i64 data_strides[3] = {DATA_STRIDES};
        constexpr bool is_masked[3] = {MASK_AXES};
#pragma unroll
        for (int line = 0; line < A_LINES; ++line) {
            const INDEX m = first + threadIdx.x / CHUNKS_K + line * A_STEP;
            int at[3];
            start[line] = pixel_position(c, m, at) * (INDEX)DATA_IMAGE;
#if IS_MASKED
            outside[line] = m < pixels ? NO_TAP : NO_TAP | NO_ROW;
            int bit = 0;
#endif
#pragma unroll
            for (int axis = 2; axis >= 0; --axis) {
                at[axis] *= input_stride[axis];
                start[line] += (INDEX)(at[axis] * data_strides[axis]);
#if IS_MASKED
                if (is_masked[axis]) {
                    for (int i = 0; i < c.taps[axis]; ++i)
                        if ((u32)(at[axis] + c.data_offset[axis] + i * dilation[axis]) >= (u32)extents[axis])
                            outside[line] |= 1u << (bit + i);
                    bit += c.taps[axis];
                }
#else
                position[line][axis] = m < pixels ? at[axis] : 1 << 29;
#endif
            }
        }
    }

    METHOD bool is_inside(int line, const Tap &tap) const {
#if IS_MASKED
        return (outside[line] & tap.bits) == 0;
#else
        constexpr int extents[3] = {EXTENTS};
        bool inside = true;
#pragma unroll
        for (int axis = 0; axis < 3; ++axis)
            inside = inside && (u32)(position[line][axis] + tap.moved[axis]) < (u32)extents[axis];
        return inside;
#endif
    }
};

// Every chunk of a stage is one copy, and has one tap: a thread finds the tap once for all its rows.
constexpr bool IS_WIDE = COPY_A == 16 && COPY_B == 16 && (!FILTER_MN_MAJOR || IN_CHANNELS % BK == 0);

struct Loader {
    static constexpr bool IS_PREPARED = false;

    Rows rows;
    const DTYPE *data;
    const DTYPE *filter;  // at the first column of the tile
    const Tap *taps;
    int tap_count, columns;  // columns that the tile has
    int blocks;              // of K

    // Of the block that is being copied, what this thread needs, if IS_WIDE.
    Tap tap;
    INDEX moved;           // elements of the data from a row's pixel
    const DTYPE *weights;  // the filter at the thread's first row
    int first_channel;     // of that row, if FILTER_MN_MAJOR
    bool has_weights;      // if not

    // The tap and the channel of element k of K. Behind the last: the tap that no pixel has.
    METHOD Tap tap_at(int k, int &channel) const {
        const int tap = k / IN_CHANNELS;
        channel = k - tap * IN_CHANNELS;
        return taps[min(tap, tap_count)];
    }

    METHOD bool is_inside(int k, int channel) const { return k < tap_count * IN_CHANNELS && has_channel(channel); }

    METHOD bool has_channel(int channel) const {
        return FILTER_IN_CHANNELS >= IN_CHANNELS || channel < FILTER_IN_CHANNELS;
    }

    // True if the tile has this column; known to the compiler where all tiles are full.
    METHOD bool has(int column) const { return FILTER_OUT_CHANNELS % BN == 0 || column < columns; }

    template <int SLICE>
    METHOD void load(u8 *stage, int number) {
        if constexpr (IS_WIDE) {
            if (SLICE == 0) seek(number);
            copy_rows<SLICE>(smem_address(stage));
            copy_filter<SLICE>(smem_address(stage) + A_BYTES);
            return;
        }
        const int own = number * BK + (int)threadIdx.x % CHUNKS_K * CHUNK;
#pragma unroll COPY_UNROLL(COPY_A)
        for (int e = 0; e < CHUNK; e += PIECE_A) {
            int channel;
            const Tap tap = tap_at(own + e, channel);
            load_data<SLICE>(stage, e, tap, channel);
        }
        if constexpr (FILTER_MN_MAJOR) {
            load_filter_mn_major<SLICE>(stage + A_BYTES, number * BK);
        } else {
#pragma unroll COPY_UNROLL(COPY_B)
            for (int e = 0; e < CHUNK; e += PIECE_B) {
                int channel;
                const Tap tap = tap_at(own + e, channel);
                load_filter<SLICE>(stage, e, tap, channel, is_inside(own + e, channel));
            }
        }
    }

    // ---- Whole chunks ----

    // Rows of B in a stage: columns, or channels if MN-major. A thread copies those that are B_STEP apart.
    static constexpr int B_CHUNKS = FILTER_MN_MAJOR ? CHUNKS_N : CHUNKS_K, B_ROWS = FILTER_MN_MAJOR ? BK : BN;
    static constexpr int B_STEP = BLOCK_THREADS / B_CHUNKS, B_LINES = (B_ROWS + B_STEP - 1) / B_STEP;

    METHOD void seek(int number) {
        const int own = (int)threadIdx.x % CHUNKS_K * CHUNK;
        int channel;
        if constexpr (IN_CHANNELS % BK == 0) {  // all threads have the same tap
            const u32 block_number = (u32)number / (IN_CHANNELS / BK);
            tap = taps[block_number];
            channel = (number - (int)block_number * (IN_CHANNELS / BK)) * BK + own;
            has_weights = has_channel(channel);
        } else {
            tap = tap_at(number * BK + own, channel);
            has_weights = is_inside(number * BK + own, channel);
        }
        moved = tap.data + channel;
        const int line = threadIdx.x / B_CHUNKS;
        if constexpr (FILTER_MN_MAJOR) {
            first_channel = channel - own + line;
            const int column = (int)threadIdx.x % B_CHUNKS * CHUNK;
            weights = filter + (tap.filter + (INDEX)(first_channel * (i64)FILTER_CHANNEL + column));
        } else {
            weights = filter + (tap.filter + (INDEX)(channel + line * (i64)FILTER_COLUMN));
        }
    }

    template <int SLICE>
    METHOD void copy_rows(u32 to) const {
        const int chunk = threadIdx.x % CHUNKS_K, first = threadIdx.x / CHUNKS_K;
#pragma unroll
        for (int line = LINES_OF(SLICE, A_LINES); line < LINES_OF(SLICE + 1, A_LINES); ++line)
            cp_async16(to + position_of_line<CHUNKS_K, A_STEP>(first, chunk, line), data + (rows.start[line] + moved),
                       rows.is_inside(line, tap));
    }

    template <int SLICE>
    METHOD void copy_filter(u32 to) const {
        constexpr i64 step = B_STEP * (FILTER_MN_MAJOR ? FILTER_CHANNEL : FILTER_COLUMN);
        const int chunk = threadIdx.x % B_CHUNKS, first = threadIdx.x / B_CHUNKS;
#pragma unroll
        for (int line = LINES_OF(SLICE, B_LINES); line < LINES_OF(SLICE + 1, B_LINES); ++line) {
            const int row = first + line * B_STEP;
            if (B_ROWS % B_STEP != 0 && row >= B_ROWS) break;
            const bool is_valid = FILTER_MN_MAJOR ? has(chunk * CHUNK) && has_channel(first_channel + line * B_STEP)
                                                : has_weights && has(row);
            cp_async16(to + position_of_line<B_CHUNKS, B_STEP>(first, chunk, line), weights + line * step, is_valid);
        }
    }

    // ---- Parts of chunks, or elements ----

    // PIECE_A elements from element e of this thread's chunk on, in all its rows.
    template <int SLICE>
    METHOD void load_data(u8 *stage, int e, const Tap &tap, int channel) {
        const int chunk = threadIdx.x % CHUNKS_K, row = threadIdx.x / CHUNKS_K;
        const u32 to = smem_address(stage);
        const INDEX from = tap.data + (INDEX)(channel * (i64)DATA_CHANNEL);
#pragma unroll
        for (int line = LINES_OF(SLICE, A_LINES); line < LINES_OF(SLICE + 1, A_LINES); ++line) {
            const int at = position_of_line<CHUNKS_K, A_STEP>(row, chunk, line) + e * ELEMENT_BYTES;
            const DTYPE *p = data + (rows.start[line] + from);
            const bool is_valid = rows.is_inside(line, tap);
            if constexpr (COPY_A > 0)
                copy_async<COPY_A>(to + at, p, is_valid);
            else
                *(DTYPE *)(stage + at) = is_valid ? *p : (DTYPE)0;
        }
    }


    // The same of the filter if it is K-major: [column][k].
    template <int SLICE>
    METHOD void load_filter(u8 *stage, int e, const Tap &tap, int channel, bool is_tap) {
        constexpr int lines = (BN + A_STEP - 1) / A_STEP;
        const int chunk = threadIdx.x % CHUNKS_K, row = threadIdx.x / CHUNKS_K;
        const u32 to = smem_address(stage) + A_BYTES;
        const DTYPE *from = filter + tap.filter + (INDEX)(channel * (i64)FILTER_CHANNEL + row * (i64)FILTER_COLUMN);
#pragma unroll
        for (int line = LINES_OF(SLICE, lines); line < LINES_OF(SLICE + 1, lines); ++line) {
            const int column = row + line * A_STEP;
            if (BN % A_STEP != 0 && column >= BN) break;
            const bool is_valid = is_tap && has(column);
            const DTYPE *p = from + line * (A_STEP * (i64)FILTER_COLUMN);
            const int at = position<CHUNKS_K>(column, chunk) + e * ELEMENT_BYTES;
            if constexpr (COPY_B > 0)
                copy_async<COPY_B>(to + at, p, is_valid);
            else
                *(DTYPE *)(stage + A_BYTES + at) = is_valid ? *p : (DTYPE)0;
        }
    }

    // The filter if it is MN-major: [k][column].
    template <int SLICE>
    METHOD void load_filter_mn_major(u8 *stage, int k) {
        constexpr int step = BLOCK_THREADS / CHUNKS_N, lines = (BK + step - 1) / step;
        constexpr bool is_of_one_tap = IN_CHANNELS % BK == 0;  // every block of K
        const int chunk = threadIdx.x % CHUNKS_N, row = threadIdx.x / CHUNKS_N;
        const u32 to = smem_address(stage);
        const DTYPE *own = filter + (INDEX)(chunk * CHUNK * (i64)FILTER_COLUMN);
        int first;
        const Tap only = tap_at(k, first);
        const DTYPE *linear = own + (only.filter + (INDEX)((first + row) * (i64)FILTER_CHANNEL));
#pragma unroll
        for (int line = LINES_OF(SLICE, lines); line < LINES_OF(SLICE + 1, lines); ++line) {
            const int depth = row + line * step;
            if (BK % step != 0 && depth >= BK) break;
            int channel = first + depth;
            const DTYPE *from = linear + line * (step * (i64)FILTER_CHANNEL);
            if constexpr (!is_of_one_tap) {
                const Tap tap = tap_at(k + depth, channel);
                from = own + (tap.filter + (INDEX)(channel * (i64)FILTER_CHANNEL));
            }
            const bool is_tap = is_inside(k + depth, channel);
#pragma unroll COPY_UNROLL(COPY_B)
            for (int e = 0; e < CHUNK; e += PIECE_B) {
                const int column = chunk * CHUNK + e, at = position<CHUNKS_N>(depth, chunk) + e * ELEMENT_BYTES;
                const bool is_valid = is_tap && has(column);
                const DTYPE *p = from + e * (i64)FILTER_COLUMN;
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
    INDEX row, column;
    int group;
};

FUNCTION Tile tile_at(u32 number) {
    return {(INDEX)(number / GRID_TILES_N) * BM, (INDEX)(number % GRID_TILES_N) * BN, (int)blockIdx.y};
}

// Where a group begins: STEP elements behind the one before, in runs of which the next begins OUTER behind the last.
template <i64 STEP, i64 OUTER>
FUNCTION i64 place_of_group(int group) {
    if constexpr (OUTER == 0) return group * STEP;
    return group % GROUPS_INNER * STEP + group / GROUPS_INNER * OUTER;
}

// Applies the epilogue to eight columns of a row of a tile, and stores them.
FUNCTION void finish_run(const Phase &c, const Tile &tile, INDEX m, int column, const SUM (&sums)[RUN],
                         RESULT *result EPILOGUE_PARAMETERS, REAL alpha, REAL beta) {
    constexpr int output_stride[3] = {OUTPUT_STRIDE};
    constexpr i64 strides[3] = {RESULT_STRIDES};
    int at[3];
    const INDEX image = pixel_position(c, m, at);
    INDEX start = image * (INDEX)RESULT_IMAGE;
#pragma unroll
    for (int axis = 0; axis < 3; ++axis) {
        at[axis] = at[axis] * output_stride[axis] + c.first_result[axis];
        start += (INDEX)(at[axis] * strides[axis]);
    }
    if constexpr (IS_RESULT_LINEAR) start = m * (INDEX)RESULT_STEP;
    const int count = OUT_CHANNELS % RUN == 0 ? RUN : min(RUN, (int)(OUT_CHANNELS - column));
    const INDEX channel = (INDEX)tile.group * OUT_CHANNELS + column;
    start += (INDEX)(place_of_group<RESULT_GROUP, RESULT_OUTER>(tile.group) + column * (i64)RESULT_COLUMN);
    REAL results[RUN];
#pragma unroll
    for (int e = 0; e < RUN; ++e) {
        results[e] = (REAL)sums[e];
        if (HAS_EPILOGUE && e < count)
            results[e] = EPILOGUE(results[e], image, channel + e, at[0], at[1], at[2]);
    }
    store_results<RESULT_WIDTH>(result + start, (INDEX)RESULT_COLUMN, results, count, alpha, beta);
}

KERNEL2(BLOCK_THREADS, RESIDENT)
void implicit_gemm(const DTYPE *first, const DTYPE *second, RESULT *result EPILOGUE_PARAMETERS, u8 *workspace,
                   SCALE alpha, SCALE beta) {
    begin_launch();
    extern __shared__ __align__(128) u8 shared[];
    const Phase c = phase_of(blockIdx.z);
    const INDEX pixels = (INDEX)IMAGES * c.results[0] * c.results[1] * c.results[2];
    const WorkTile slice = work_tile_of_block(GRID_TILES);
    const Tile tile = tile_at(slice.tile);
    if (tile.row >= pixels) return;

    Tap *taps = (Tap *)(shared + STAGES * STAGE_BYTES);
    Loader loader;
    loader.tap_count = c.taps[0] * c.taps[1] * c.taps[2];
    loader.taps = taps;
    fill_taps(c, taps, loader.tap_count);
    loader.rows.set(c, tile.row, pixels);
    loader.data = in_register((IS_DATA_PACKED ? (const DTYPE *)(workspace + DATA_AT) : first) +
                              place_of_group<DATA_GROUP, DATA_OUTER>(tile.group));
    loader.filter = in_register((IS_FILTER_PACKED ? (const DTYPE *)(workspace + FILTER_AT) : second) +
                                place_of_group<FILTER_GROUP, FILTER_OUTER>(tile.group) +
                                tile.column * (i64)FILTER_COLUMN);
    loader.columns = (int)(FILTER_OUT_CHANNELS - tile.column);
    __syncthreads();

    SUM sums[MMAS_M][MMAS_N][4] = {};
    loader.blocks = (loader.tap_count * IN_CHANNELS + BK - 1) / BK;
    const int begin = (int)((i64)loader.blocks * slice.split / slice.splits);
    const int end = (int)((i64)loader.blocks * (slice.split + 1) / slice.splits);
    accumulate<false, FILTER_MN_MAJOR>(sums, loader, shared, begin, end - begin);

    if (SPLITS > 1 && slice.splits > 1) {
        const int plane = blockIdx.z * gridDim.y + blockIdx.y;
        store_partial(sums, partial_tile(workspace, GRID_TILES, plane, gridDim.y * PHASES, slice.tile, slice.split));
    } else {
        auto finish = [&](int row, int column, const SUM(&values)[RUN]) {
            if (tile.row + row >= pixels || tile.column + column >= OUT_CHANNELS) return;
            finish_run(c, tile, tile.row + row, (int)tile.column + column, values, result EPILOGUE_ARGUMENTS,
                       (REAL)alpha, (REAL)beta);
        };
        constexpr i64 strides[3] = {RESULT_STRIDES};
        constexpr bool is_in_sectors = RESULT_WIDTH == RUN && RESULT_IMAGE % 32 == 0 && RESULT_GROUP % 32 == 0 && RESULT_OUTER % 32 == 0 &&
                                       strides[0] % 32 == 0 && strides[1] % 32 == 0 && strides[2] % 32 == 0;
        finish_tile<is_in_sectors, ROWS_FIRST>(sums, (SUM *)shared, finish);
    }
}

// The reduction of split tiles. Grid: axis 0 such tiles; axis 1 groups; axis 2 pieces of a tile, in stride phases.
KERNEL(REDUCTION_BLOCK)
void reduce_partials(const DTYPE *, const DTYPE *, RESULT *result EPILOGUE_PARAMETERS, u8 *workspace, SCALE alpha,
               SCALE beta) {
    begin_launch();
    constexpr int pieces = BM * RUNS / REDUCTION_RUNS;
    const int number = blockIdx.z / pieces;
    const PartialRun run((int)(blockIdx.z % pieces) * REDUCTION_RUNS + (int)threadIdx.x % REDUCTION_RUNS);
    const Phase c = phase_of(number);
    const INDEX pixels = (INDEX)IMAGES * c.results[0] * c.results[1] * c.results[2];
    const u32 divided = UNSPLIT + blockIdx.x;
    const Tile tile = tile_at(divided);
    const INDEX row = tile.row + run.row, column = tile.column + run.column;
    const int plane = number * gridDim.y + blockIdx.y, planes = gridDim.y * PHASES;
    const SUM *first = partial_tile(workspace, GRID_TILES, plane, planes, divided, 0);
    const SUM *second = partial_tile(workspace, GRID_TILES, plane, planes, divided, 1);
    SUM values[RUN] = {};
    sum_partials(values, first + run.at, second - first, row < pixels);
    if (threadIdx.x < REDUCTION_RUNS && row < pixels && column < OUT_CHANNELS)
        finish_run(c, tile, row, (int)column, values, result EPILOGUE_ARGUMENTS, (REAL)alpha, (REAL)beta);
}

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
// Which taps of a pixel lie outside of the data is found once for each row of a tile (taps.cuh).
//
// Macros, beside those of gemm/mainloop.cuh; what depends on the shape alone is in `Tables` (phases.cuh):
//
//     macro                unit        meaning
//     IS_STRIDED           0 or 1      whether there are several stride phases
//     AXIS_PHASES          axes        of stride phases for which the tables have room: 3, or more if IS_STRIDED
//     AXIS_PHASE_TABLE     text        the initializers of more than these, or of a known shape; then AXIS_PHASES is 0
//     SAME_RESULTS         positions   of all stride phases of a known shape, three numbers, if they are the same
//     IS_MASKED            0 or 1      whether the taps of masked axes fit into 30 bits
//     IS_OF_ONE_TAP        0 or 1      whether BK divides the channels, so that every block of K has one tap
//     HAS_FULL_COLUMNS     0 or 1      whether BN divides the columns of the filter that may be read
//     HAS_ALL_CHANNELS     0 or 1      whether the filter has all channels of the data
//     COPY_A, COPY_B       bytes       of an asynchronous copy; 0: element by element
//     RESULT_WIDTH         1 to 8      channels that are stored at once
//     HAS_SECTORS          0 or 1      whether four runs of results are whole sectors of memory
//     RESULT_FORM          0 to 2      pixels of the result are result_step apart: 2, all; 1, those of an image; 0, or not
//     HAS_WHOLE_RUNS       0 or 1      whether 8 divides the channels of the result
//     IS_DATA_LINEAR       0 or 1      whether pixels of the data are data_step apart: one tap, which every pixel meets
//     ROWS_FIRST           0 or 1      whether neighbouring threads store neighbouring pixels
//     HAS_EPILOGUE         0 or 1      EPILOGUE(sum, image, channel, a, b, c), EPILOGUE_PARAMETERS and _ARGUMENTS

// Every chunk of a stage is one copy, and has one tap: a thread finds the tap once for all its rows.
constexpr bool IS_WIDE = COPY_A == 16 && COPY_B == 16 && (!B_MN_MAJOR || IS_OF_ONE_TAP);

struct Loader {
    static constexpr bool IS_PREPARED = false;

    const Tables &tables;
    Rows rows;
    const DTYPE *data;
    const DTYPE *filter;  // at the first column that this thread copies
    const Tap *taps;
    int tap_count, columns;  // columns that the tile has
    int block_count;         // of K

    // The tap and the first channel of the next block, if IS_WIDE and IS_OF_ONE_TAP.
    int next_tap, next_channel;

    // Of the block that is being copied, what this thread needs, if IS_WIDE.
    Tap tap;
    INDEX moved;           // elements of the data from a row's pixel
    const DTYPE *weights;  // the filter at the thread's first row
    int first_channel;     // of that row, if B_MN_MAJOR
    bool has_weights;      // if not

    METHOD int blocks() const { return block_count; }

    // The tap and the channel of element k of K, and whether the filter has them. Behind the last: the tap that no pixel
    // has.
    METHOD Tap tap_at(int k, int &channel, bool &is_inside) const {
        if constexpr (IS_DATA_LINEAR) {
            channel = k;
            is_inside = k < (int)tables.in_channels.number && has_channel(k);
            Tap only = {};
#if IS_MASKED
            only.bits = k < (int)tables.in_channels.number ? 0 : NO_TAP;
#endif
            return only;
        }
        const int tap = quotient(k, tables.in_channels);
        channel = k - tap * (int)tables.in_channels.number;
        is_inside = tap < tap_count && has_channel(channel);
        return taps[min(tap, tap_count)];
    }

    METHOD bool has_channel(int channel) const { return HAS_ALL_CHANNELS || channel < (int)tables.filter_in_channels; }

    // True if the tile has this column; known to the compiler where all tiles are full.
    METHOD bool has(int column) const { return HAS_FULL_COLUMNS || column < columns; }

    // Elements from neighbour to neighbour: 1 where asynchronous copies take several.
    METHOD INDEX data_channel() const { return COPY_A > 0 ? 1 : (INDEX)tables.data_channel; }
    METHOD INDEX filter_column() const { return COPY_B > 0 && B_MN_MAJOR ? 1 : (INDEX)tables.filter_column; }
    METHOD INDEX filter_channel() const { return COPY_B > 0 && !B_MN_MAJOR ? 1 : (INDEX)tables.filter_channel; }

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
            bool is_tap;
            const Tap tap = tap_at(own + e, channel, is_tap);
            load_data<SLICE>(stage, e, tap, channel);
        }
        if constexpr (B_MN_MAJOR) {
            load_filter_mn_major<SLICE>(stage + A_BYTES, number * BK);
        } else {
#pragma unroll COPY_UNROLL(COPY_B)
            for (int e = 0; e < CHUNK; e += PIECE_B) {
                int channel;
                bool is_tap;
                const Tap tap = tap_at(own + e, channel, is_tap);
                load_filter<SLICE>(stage, e, tap, channel, is_tap);
            }
        }
    }

    // ---- Whole chunks ----

    // Rows of B in a stage: columns, or channels if MN-major. A thread copies those that are B_STEP apart.
    static constexpr int B_CHUNKS = B_MN_MAJOR ? CHUNKS_N : CHUNKS_K, B_ROWS = B_MN_MAJOR ? BK : BN;
    static constexpr int B_STEP = BLOCK_THREADS / B_CHUNKS, B_LINES = (B_ROWS + B_STEP - 1) / B_STEP;

    METHOD void seek(int number) {
        const int own = (int)threadIdx.x % CHUNKS_K * CHUNK;
        int channel;
        if constexpr (IS_OF_ONE_TAP && !IS_DATA_LINEAR) {  // all threads have the same
            tap = taps[min(next_tap, tap_count)];
            channel = next_channel + own;
            has_weights = has_channel(channel);
            next_channel += BK;  // blocks come one after the other
            if (next_channel == (int)tables.in_channels.number) next_channel = 0, ++next_tap;
        } else {
            tap = tap_at(number * BK + own, channel, has_weights);
        }
        moved = tap.data + channel;
        if constexpr (B_MN_MAJOR) {
            first_channel = channel - own + (int)threadIdx.x / B_CHUNKS;
            weights = filter + (tap.filter + (INDEX)first_channel * (INDEX)tables.filter_channel);
        } else {
            weights = filter + (tap.filter + channel);
        }
    }

    template <int SLICE>
    METHOD void copy_rows(u32 to) const {
        const int chunk = threadIdx.x % CHUNKS_K, first = threadIdx.x / CHUNKS_K;
#pragma unroll
        for (int line = LINES_OF(SLICE, A_LINES); line < LINES_OF(SLICE + 1, A_LINES); ++line)
            cp_async16(to + position_of_line<CHUNKS_K, A_STEP>(first, chunk, line), data + (rows.start[line] + moved),
                       rows.is_inside(tables, line, tap));
    }

    template <int SLICE>
    METHOD void copy_filter(u32 to) {
        const int chunk = threadIdx.x % B_CHUNKS, first = threadIdx.x / B_CHUNKS;
        if (BLOCK_THREADS % B_CHUNKS != 0 && first == B_STEP) return;  // what is left of the threads would copy what others do
#pragma unroll
        for (int line = LINES_OF(SLICE, B_LINES); line < LINES_OF(SLICE + 1, B_LINES); ++line) {
            const int row = first + line * B_STEP;
            if (B_ROWS % B_STEP != 0 && row >= B_ROWS) break;
            const bool is_valid = B_MN_MAJOR ? (!IS_DATA_LINEAR || has_weights) && has(chunk * CHUNK) &&
                                                    has_channel(first_channel + line * B_STEP)
                                                : has_weights && has(row);
            cp_async16(to + position_of_line<B_CHUNKS, B_STEP>(first, chunk, line), weights, is_valid);
            weights = (const DTYPE *)((const u8 *)weights + tables.filter_line);
        }
    }

    // ---- Parts of chunks, or elements ----

    // PIECE_A elements from element e of this thread's chunk on, in all its rows.
    template <int SLICE>
    METHOD void load_data(u8 *stage, int e, const Tap &tap, int channel) {
        const int chunk = threadIdx.x % CHUNKS_K, row = threadIdx.x / CHUNKS_K;
        const u32 to = smem_address(stage);
        const INDEX from = tap.data + (INDEX)channel * data_channel();
#pragma unroll
        for (int line = LINES_OF(SLICE, A_LINES); line < LINES_OF(SLICE + 1, A_LINES); ++line) {
            const int at = position_of_line<CHUNKS_K, A_STEP>(row, chunk, line) + e * ELEMENT_BYTES;
            const DTYPE *p = data + (rows.start[line] + from);
            const bool is_valid = rows.is_inside(tables, line, tap);
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
        const INDEX from = tap.filter + (INDEX)channel * filter_channel();
        const INDEX step = A_STEP * filter_column();
#pragma unroll
        for (int line = LINES_OF(SLICE, lines); line < LINES_OF(SLICE + 1, lines); ++line) {
            const int column = row + line * A_STEP;
            if (BN % A_STEP != 0 && column >= BN) break;
            const bool is_valid = is_tap && has(column);
            const DTYPE *p = filter + (from + line * step);
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
        const int chunk = threadIdx.x % CHUNKS_N, row = threadIdx.x / CHUNKS_N;
        if (BLOCK_THREADS % CHUNKS_N != 0 && row == step) return;  // as in copy_filter
        const u32 to = smem_address(stage);
        int first;
        bool is_first;
        const Tap only = tap_at(k, first, is_first);
        const DTYPE *linear = filter + (only.filter + (INDEX)(first + row) * filter_channel());
        const INDEX line_step = step * filter_channel();
#pragma unroll
        for (int line = LINES_OF(SLICE, lines); line < LINES_OF(SLICE + 1, lines); ++line) {
            const int depth = row + line * step;
            if (BK % step != 0 && depth >= BK) break;
            int channel = first + depth;
            const DTYPE *from = linear + (i64)line * line_step;
            bool is_tap = is_first && has_channel(channel);
            if constexpr (!IS_OF_ONE_TAP) {
                const Tap tap = tap_at(k + depth, channel, is_tap);
                from = filter + (tap.filter + (INDEX)channel * filter_channel());
            }
#pragma unroll COPY_UNROLL(COPY_B)
            for (int e = 0; e < CHUNK; e += PIECE_B) {
                const int column = chunk * CHUNK + e, at = position<CHUNKS_N>(depth, chunk) + e * ELEMENT_BYTES;
                const bool is_valid = is_tap && has(column);
                const DTYPE *p = from + e * (i64)filter_column();
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

FUNCTION Tile tile_at(const Work &work, u32 number) {
    const u32 row = quotient(number, work.tiles_n);
    return {(INDEX)row * BM, (INDEX)(number - row * (u32)work.tiles_n.number) * BN, (int)blockIdx.y};
}

// Where a group begins: `step` elements behind the one before, in runs of which the next begins `outer` behind the last.
FUNCTION i64 place_of_group(const Tables &tables, int group, i64 step, i64 outer) {
    const int run = quotient(group, tables.groups_inner);
    return (group - run * tables.groups_inner.number) * step + run * outer;
}

// Applies the epilogue to eight columns of a row of a tile, and stores them. `result` is the group's.
FUNCTION void finish_run(const Tables &tables, const Phase &c, const Tile &tile, INDEX m, int column,
                         const SUM (&sums)[RUN], RESULT *result EPILOGUE_PARAMETERS, REAL alpha, REAL beta) {
    int at[3] = {};
    INDEX image = 0, start;
    if constexpr (RESULT_FORM == 2) {
        start = m * (INDEX)tables.result_step;
    } else if constexpr (RESULT_FORM == 1) {
        image = quotient(m, tables.plane);
        start = image * (INDEX)tables.result_image +
                (m - image * (INDEX)tables.plane.number) * (INDEX)tables.result_step;
    } else {
        image = pixel_position(c, m, at);
        start = image * (INDEX)tables.result_image;
#pragma unroll
        for (int axis = 0; axis < 3; ++axis) {
            at[axis] = at[axis] * (int)tables.output_stride[axis] + (int)c[axis].first_result;
            start += (INDEX)at[axis] * (INDEX)tables.result_strides[axis];
        }
    }
    const INDEX step = RESULT_WIDTH > 1 ? 1 : (INDEX)tables.result_column;
    const int count = HAS_WHOLE_RUNS ? RUN : min(RUN, (int)tables.out_channels - column);
    start += (INDEX)column * step;
    REAL results[RUN];
#pragma unroll
    for (int e = 0; e < RUN; ++e) {
        results[e] = (REAL)sums[e];
        if (HAS_EPILOGUE && e < count) {
            const INDEX channel = (INDEX)tile.group * (INDEX)tables.out_channels + column + e;
            results[e] = EPILOGUE(results[e], image, channel, at[0], at[1], at[2]);
        }
    }
    store_results<RESULT_WIDTH>(result + start, step, results, count, alpha, beta);
}

KERNEL2(BLOCK_THREADS, RESIDENT)
void implicit_gemm(SHAPE_PARAMETER const DTYPE *first, const DTYPE *second, RESULT *result EPILOGUE_PARAMETERS,
                   u8 *workspace, SCALE alpha, SCALE beta) {
    begin_launch();
    extern __shared__ __align__(128) u8 shared[];
    KNOWN_TABLES
    const Phase c(tables, blockIdx.z);
    const INDEX pixels = pixels_of(tables, c);
    const WorkTile slice = work_tile_of_block(tables.work);
    const Tile tile = tile_at(tables.work, slice.tile);
    if (tile.row >= pixels) return;

    Tap *taps = (Tap *)(shared + STAGES * STAGE_BYTES);
    Loader loader = {tables};
    loader.tap_count = (int)(c[0].taps.number * c[1].taps.number * c[2].taps.number);
    loader.taps = taps;
    if constexpr (!IS_DATA_LINEAR) fill_taps(tables, c, taps, loader.tap_count);
    loader.rows.set(tables, c, tile.row, pixels);
    const int first_column = B_MN_MAJOR ? (int)threadIdx.x % CHUNKS_N * CHUNK : (int)threadIdx.x / CHUNKS_K;
    loader.data = in_register((tables.data_at >= 0 ? (const DTYPE *)(workspace + tables.data_at) : first) +
                              place_of_group(tables, tile.group, tables.data_group, tables.data_outer));
    loader.filter = in_register((tables.filter_at >= 0 ? (const DTYPE *)(workspace + tables.filter_at) : second) +
                                place_of_group(tables, tile.group, tables.filter_group, tables.filter_outer) +
                                (tile.column + first_column) * (i64)loader.filter_column());
    loader.columns = (int)(tables.filter_out_channels - tile.column);
    if constexpr (!IS_DATA_LINEAR) __syncthreads();

    SUM sums[MMAS_M][MMAS_N][4] = {};
    loader.block_count = (loader.tap_count * (int)tables.in_channels.number + BK - 1) / BK;
    const BlocksOfSplit own(tables.work, slice, loader.block_count);
    if constexpr (IS_OF_ONE_TAP && !IS_DATA_LINEAR) {
        loader.next_tap = quotient(own.begin, tables.blocks_of_tap);
        loader.next_channel = (own.begin - loader.next_tap * (int)tables.blocks_of_tap.number) * BK;
    }
    accumulate(sums, loader, shared, own.begin, own.end - own.begin);

    if (!HAS_WHOLE_TILES || (IS_SPLIT && slice.splits > 1)) {
        const int plane = blockIdx.z * gridDim.y + blockIdx.y, planes = gridDim.y * (int)tables.phase_count;
        store_partial(sums, partial_tile(workspace, tables.work, plane, planes, slice.tile, slice.split));
    } else {
        result += place_of_group(tables, tile.group, tables.result_group, tables.result_outer);
        const int columns = (int)tables.out_channels;
        const Phase again(tables, (int)blockIdx.z);  // not kept in registers behind the loop
        auto finish = [&](int row, int column, const SUM(&values)[RUN]) {
            if (tile.row + row >= pixels || tile.column + column >= columns) return;
            finish_run(tables, again, tile, tile.row + row, (int)tile.column + column, values,
                       result EPILOGUE_ARGUMENTS, (REAL)alpha, (REAL)beta);
        };
        finish_tile<HAS_SECTORS, ROWS_FIRST>(sums, (SUM *)shared, finish);
    }
}

#if IS_SPLIT
// The reduction of split tiles. Grid: axis 0 such tiles; axis 1 groups; axis 2 pieces of a tile, in stride phases.
KERNEL(REDUCTION_BLOCK)
void reduce_partials(SHAPE_PARAMETER const DTYPE *, const DTYPE *, RESULT *result EPILOGUE_PARAMETERS,
                     u8 *workspace, SCALE alpha, SCALE beta) {
    begin_launch();
    KNOWN_TABLES
    const int runs = reduction_runs(tables.work), pieces = BM * RUNS / runs;
    const int number = IS_STRIDED ? blockIdx.z / pieces : 0;
    const PartialRun run((int)(blockIdx.z - number * pieces) * runs + ((int)threadIdx.x & (runs - 1)));
    const Phase c(tables, number);
    const INDEX pixels = pixels_of(tables, c);
    const u32 divided = (u32)tables.work.unsplit + blockIdx.x;
    const Tile tile = tile_at(tables.work, divided);
    const INDEX row = tile.row + run.row, column = tile.column + run.column;
    const int plane = number * gridDim.y + blockIdx.y, planes = gridDim.y * (int)tables.phase_count;
    const SUM *first = partial_tile(workspace, tables.work, plane, planes, divided, 0);
    const SUM *second = partial_tile(workspace, tables.work, plane, planes, divided, 1);
    SUM values[RUN] = {};
    sum_partials(values, tables.work, first + run.at, second - first, row < pixels);
    result += place_of_group(tables, tile.group, tables.result_group, tables.result_outer);
    if (threadIdx.x < runs && row < pixels && column < tables.out_channels)
        finish_run(tables, c, tile, row, (int)column, values, result EPILOGUE_ARGUMENTS, (REAL)alpha, (REAL)beta);
}
#endif

// Convolution forward and backward to the data, and the matrix product: an implicit matrix product
//
//     result[pixel, column] = sum over (tap, channel) of data[pixel moved by tap, channel] * filter[column, tap, channel]
//
// with rows = pixels (image, place), columns = channels of the result, and the reduction over (tap, channel), channels
// inside. A strided backward data is several of these, one for each residue of the place modulo the stride ("class"):
// results of a class are at residue + stride * place, and only its own taps meet them.
//
// Blocks: axis 0 tiles, columns inside, and their parts; axis 1 groups; axis 2 classes. TILES of the largest class.
//
// Macros beside those of gemm/mainloop.cuh: DEPTH (channels of a group; FILTER_DEPTH of them the filter has), WIDTH
// (columns of a group; FILTER_COLUMNS may be read), IMAGES, CLASSES, CLASS_TABLE (see Class), SAME_RESULTS (those of all
// classes, if they are the same), SHIFTS, FILTER_STEPS (of a tap along the three axes), MOVES (of the data from result to
// result), SPREAD (results of a class lie so far apart), EXTENTS (of the data), MASK_AXES (taps may lie outside),
// IS_MASKED (their bits fit), DATA_*, FILTER_*, RESULT_* (strides; RESULT_STEP from pixel to pixel if
// IS_RESULT_LINEAR), COPY_A, COPY_B (bytes of an asynchronous copy; 0: element by element), FILTER_ACROSS, INDEX.

struct Class {
    int results[3], residue[3], taps[3], offset[3], start[3];  // start: the first tap's place in the filter
};

struct __align__(16) Tap {
    INDEX data, filter;  // elements from the pixel's, and from the column's
#if IS_MASKED
    u32 bits;  // those of a row that say it is outside
#else
    int moved[3];
#endif
};

constexpr int PIECE_A = COPY_A > 0 ? COPY_A / ELEMENT_BYTES : 1, PIECE_B = COPY_B > 0 ? COPY_B / ELEMENT_BYTES : 1;
constexpr u32 NO_ROW = 1u << 30, NO_TAP = 1u << 31;
constexpr INDEX TILES_WIDE = (WIDTH + BN - 1) / BN;

FUNCTION Class class_of(int number) {
#if CLASSES == 1
    constexpr Class only = CLASS_TABLE;  // so that divisions by its extents are by constants
    return only;
#else
    static CONSTANT_TABLE Class all[CLASSES] = {CLASS_TABLE};
    Class one = all[number];
#ifdef SAME_RESULTS  // of all classes: divisions by them are by constants
    constexpr int results[3] = {SAME_RESULTS};
#pragma unroll
    for (int axis = 0; axis < 3; ++axis) one.results[axis] = results[axis];
#endif
    return one;
#endif
}

// Pixel m of a class: its image, and its place along the axes.
FUNCTION INDEX pixel_place(const Class &c, INDEX m, int (&place)[3]) {
    place[2] = (int)(m % c.results[2]);
    m /= c.results[2];
    place[1] = (int)(m % c.results[1]);
    m /= c.results[1];
    place[0] = (int)(m % c.results[0]);
    return m / c.results[0];
}

FUNCTION void fill_taps(const Class &c, Tap *taps, int count) {
    constexpr int shifts[3] = {SHIFTS}, steps[3] = {FILTER_STEPS};
    constexpr i64 data_strides[3] = {DATA_STRIDES}, filter_strides[3] = {FILTER_STRIDES};
    constexpr bool is_masked[3] = {MASK_AXES};
    for (int t = threadIdx.x; t <= count; t += BLOCK) {
        Tap tap = {};
        int rest = t;
#if IS_MASKED
        tap.bits = t == count ? NO_TAP : NO_ROW;
        int bit = 0;
#endif
        if (t < count) {
#pragma unroll
            for (int axis = 2; axis >= 0; --axis) {
                const int i = rest % c.taps[axis], moved = c.offset[axis] + i * shifts[axis];
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

constexpr int A_LINES = BM * CHUNKS_K / BLOCK, A_STEP = BLOCK / CHUNKS_K;
static_assert(A_LINES * A_STEP == BM, "the threads divide the rows of a tile evenly");

// The rows that a thread copies.
struct Rows {
    INDEX start[A_LINES];  // element of the data at the pixel, before any tap
#if IS_MASKED
    u32 outside[A_LINES];  // a bit for each tap of an axis that lies outside, and for a row that is not there
#else
    int place[A_LINES][3];
#endif

    METHOD void set(const Class &c, INDEX first, INDEX pixels) {
        constexpr int shifts[3] = {SHIFTS}, moves[3] = {MOVES}, extents[3] = {EXTENTS};
        constexpr i64 data_strides[3] = {DATA_STRIDES};
        constexpr bool is_masked[3] = {MASK_AXES};
#pragma unroll
        for (int line = 0; line < A_LINES; ++line) {
            const INDEX m = first + threadIdx.x / CHUNKS_K + line * A_STEP;
            int at[3];
            start[line] = pixel_place(c, m, at) * (INDEX)DATA_IMAGE;
#if IS_MASKED
            outside[line] = m < pixels ? NO_TAP : NO_TAP | NO_ROW;
            int bit = 0;
#endif
#pragma unroll
            for (int axis = 2; axis >= 0; --axis) {
                at[axis] *= moves[axis];
                start[line] += (INDEX)(at[axis] * data_strides[axis]);
#if IS_MASKED
                if (is_masked[axis]) {
                    for (int i = 0; i < c.taps[axis]; ++i)
                        if ((u32)(at[axis] + c.offset[axis] + i * shifts[axis]) >= (u32)extents[axis])
                            outside[line] |= 1u << (bit + i);
                    bit += c.taps[axis];
                }
#else
                place[line][axis] = m < pixels ? at[axis] : 1 << 29;
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
            inside = inside && (u32)(place[line][axis] + tap.moved[axis]) < (u32)extents[axis];
        return inside;
#endif
    }
};

// Every chunk of a stage is one copy, of one tap: what a thread asks for is found once for all its lines.
constexpr bool IS_WIDE = COPY_A == 16 && COPY_B == 16 && (!FILTER_ACROSS || DEPTH % BK == 0);

struct Loader {
    static constexpr bool IS_PREPARED = false;

    Rows rows;
    const DTYPE *data;
    const DTYPE *filter;  // at the first column of the tile
    const Tap *taps;
    int tap_count, columns;  // columns that the tile has
    int blocks;              // of the reduction

    // This thread's part of the block that is asked for, if IS_WIDE.
    Tap tap;
    INDEX moved;           // elements from a row's pixel
    const DTYPE *weights;  // of its first line
    int first_channel;     // of that line, if FILTER_ACROSS
    bool has_weights;      // if not

    // The tap and the channel of number k of the reduction. Behind the last: a tap that no pixel has.
    METHOD Tap tap_at(int k, int &channel) const {
        const int tap = k / DEPTH;
        channel = k - tap * DEPTH;
        return taps[min(tap, tap_count)];
    }

    METHOD bool is_inside(int k, int channel) const { return k < tap_count * DEPTH && has_channel(channel); }

    METHOD bool has_channel(int channel) const { return FILTER_DEPTH >= DEPTH || channel < FILTER_DEPTH; }

    // True if the tile has this column; always, where tiles have no rest.
    METHOD bool has(int column) const { return FILTER_COLUMNS % BN == 0 || column < columns; }

    template <int SHARE>
    METHOD void load(u8 *stage, int number) {
        if constexpr (IS_WIDE) {
            if (SHARE == 0) seek(number);
            copy_rows<SHARE>(smem_address(stage));
            copy_filter<SHARE>(smem_address(stage) + A_BYTES);
            return;
        }
        const int own = number * BK + (int)threadIdx.x % CHUNKS_K * CHUNK;
#pragma unroll UNROLLED(COPY_A)
        for (int e = 0; e < CHUNK; e += PIECE_A) {
            int channel;
            const Tap tap = tap_at(own + e, channel);
            load_data<SHARE>(stage, e, tap, channel);
        }
        if constexpr (FILTER_ACROSS) {
            load_filter_across<SHARE>(stage + A_BYTES, number * BK);
        } else {
#pragma unroll UNROLLED(COPY_B)
            for (int e = 0; e < CHUNK; e += PIECE_B) {
                int channel;
                const Tap tap = tap_at(own + e, channel);
                load_filter<SHARE>(stage, e, tap, channel, is_inside(own + e, channel));
            }
        }
    }

    // ---- Whole chunks ----

    // Lines of the filter: columns, or across channels, B_STEP apart.
    static constexpr int B_CHUNKS = FILTER_ACROSS ? CHUNKS_N : CHUNKS_K, B_ROWS = FILTER_ACROSS ? BK : BN;
    static constexpr int B_STEP = BLOCK / B_CHUNKS, B_LINES = (B_ROWS + B_STEP - 1) / B_STEP;

    METHOD void seek(int number) {
        const int own = (int)threadIdx.x % CHUNKS_K * CHUNK;
        int channel;
        if constexpr (DEPTH % BK == 0) {  // all threads have the same tap
            const u32 turn = (u32)number / (DEPTH / BK);
            tap = taps[turn];
            channel = (number - (int)turn * (DEPTH / BK)) * BK + own;
            has_weights = has_channel(channel);
        } else {
            tap = tap_at(number * BK + own, channel);
            has_weights = is_inside(number * BK + own, channel);
        }
        moved = tap.data + channel;
        const int line = threadIdx.x / B_CHUNKS;
        if constexpr (FILTER_ACROSS) {
            first_channel = channel - own + line;
            const int column = (int)threadIdx.x % B_CHUNKS * CHUNK;
            weights = filter + (tap.filter + (INDEX)(first_channel * (i64)FILTER_CHANNEL + column));
        } else {
            weights = filter + (tap.filter + (INDEX)(channel + line * (i64)FILTER_COLUMN));
        }
    }

    template <int SHARE>
    METHOD void copy_rows(u32 to) const {
        const int chunk = threadIdx.x % CHUNKS_K, first = threadIdx.x / CHUNKS_K;
#pragma unroll
        for (int line = LINES_OF(SHARE, A_LINES); line < LINES_OF(SHARE + 1, A_LINES); ++line)
            cp_async16(to + place_of_line<CHUNKS_K, A_STEP>(first, chunk, line), data + (rows.start[line] + moved),
                       rows.is_inside(line, tap));
    }

    template <int SHARE>
    METHOD void copy_filter(u32 to) const {
        constexpr i64 step = B_STEP * (FILTER_ACROSS ? FILTER_CHANNEL : FILTER_COLUMN);
        const int chunk = threadIdx.x % B_CHUNKS, first = threadIdx.x / B_CHUNKS;
#pragma unroll
        for (int line = LINES_OF(SHARE, B_LINES); line < LINES_OF(SHARE + 1, B_LINES); ++line) {
            const int row = first + line * B_STEP;
            if (B_ROWS % B_STEP != 0 && row >= B_ROWS) break;
            const bool is_valid = FILTER_ACROSS ? has(chunk * CHUNK) && has_channel(first_channel + line * B_STEP)
                                                : has_weights && has(row);
            cp_async16(to + place_of_line<B_CHUNKS, B_STEP>(first, chunk, line), weights + line * step, is_valid);
        }
    }

    // ---- Pieces of chunks, or elements ----

    // Element e of this thread's chunk and its neighbours.
    template <int SHARE>
    METHOD void load_data(u8 *stage, int e, const Tap &tap, int channel) {
        const int chunk = threadIdx.x % CHUNKS_K, row = threadIdx.x / CHUNKS_K;
        const u32 to = smem_address(stage);
        const INDEX from = tap.data + (INDEX)(channel * (i64)DATA_CHANNEL);
#pragma unroll
        for (int line = LINES_OF(SHARE, A_LINES); line < LINES_OF(SHARE + 1, A_LINES); ++line) {
            const int at = place_of_line<CHUNKS_K, A_STEP>(row, chunk, line) + e * ELEMENT_BYTES;
            const DTYPE *p = data + (rows.start[line] + from);
            const bool is_valid = rows.is_inside(line, tap);
            if constexpr (COPY_A > 0)
                copy_async<COPY_A>(to + at, p, is_valid);
            else
                *(DTYPE *)(stage + at) = is_valid ? *p : (DTYPE)0;
        }
    }


    // [column][reduction]
    template <int SHARE>
    METHOD void load_filter(u8 *stage, int e, const Tap &tap, int channel, bool is_tap) {
        constexpr int lines = (BN + A_STEP - 1) / A_STEP;
        const int chunk = threadIdx.x % CHUNKS_K, row = threadIdx.x / CHUNKS_K;
        const u32 to = smem_address(stage) + A_BYTES;
        const DTYPE *from = filter + tap.filter + (INDEX)(channel * (i64)FILTER_CHANNEL + row * (i64)FILTER_COLUMN);
#pragma unroll
        for (int line = LINES_OF(SHARE, lines); line < LINES_OF(SHARE + 1, lines); ++line) {
            const int column = row + line * A_STEP;
            if (BN % A_STEP != 0 && column >= BN) break;
            const bool is_valid = is_tap && has(column);
            const DTYPE *p = from + line * (A_STEP * (i64)FILTER_COLUMN);
            const int at = place<CHUNKS_K>(column, chunk) + e * ELEMENT_BYTES;
            if constexpr (COPY_B > 0)
                copy_async<COPY_B>(to + at, p, is_valid);
            else
                *(DTYPE *)(stage + A_BYTES + at) = is_valid ? *p : (DTYPE)0;
        }
    }

    // [reduction][column]
    template <int SHARE>
    METHOD void load_filter_across(u8 *stage, int k) {
        constexpr int step = BLOCK / CHUNKS_N, lines = (BK + step - 1) / step;
        constexpr bool is_of_one_tap = DEPTH % BK == 0;  // every block of the reduction
        const int chunk = threadIdx.x % CHUNKS_N, row = threadIdx.x / CHUNKS_N;
        const u32 to = smem_address(stage);
        const DTYPE *own = filter + (INDEX)(chunk * CHUNK * (i64)FILTER_COLUMN);
        int first;
        const Tap only = tap_at(k, first);
        const DTYPE *linear = own + (only.filter + (INDEX)((first + row) * (i64)FILTER_CHANNEL));
#pragma unroll
        for (int line = LINES_OF(SHARE, lines); line < LINES_OF(SHARE + 1, lines); ++line) {
            const int depth = row + line * step;
            if (BK % step != 0 && depth >= BK) break;
            int channel = first + depth;
            const DTYPE *from = linear + line * (step * (i64)FILTER_CHANNEL);
            if constexpr (!is_of_one_tap) {
                const Tap tap = tap_at(k + depth, channel);
                from = own + (tap.filter + (INDEX)(channel * (i64)FILTER_CHANNEL));
            }
            const bool is_tap = is_inside(k + depth, channel);
#pragma unroll UNROLLED(COPY_B)
            for (int e = 0; e < CHUNK; e += PIECE_B) {
                const int column = chunk * CHUNK + e, at = place<CHUNKS_N>(depth, chunk) + e * ELEMENT_BYTES;
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

// Where a tile lies.
struct Tile {
    INDEX row, column;  // the first ones
    int group;
};

FUNCTION Tile tile_at(u32 number) {
    return {(INDEX)(number / TILES_WIDE) * BM, (INDEX)(number % TILES_WIDE) * BN, (int)blockIdx.y};
}

// Stores eight columns of a row of a tile, after the epilogue.
FUNCTION void finish_run(const Class &c, const Tile &tile, INDEX m, int column, const SUM (&sums)[RUN],
                         RESULT *result EPILOGUE_PARAMETERS, REAL alpha, REAL beta) {
    constexpr int spread[3] = {SPREAD};
    constexpr i64 strides[3] = {RESULT_STRIDES};
    int at[3];
    const INDEX image = pixel_place(c, m, at);
    INDEX start = image * (INDEX)RESULT_IMAGE;
#pragma unroll
    for (int axis = 0; axis < 3; ++axis) {
        at[axis] = at[axis] * spread[axis] + c.residue[axis];
        start += (INDEX)(at[axis] * strides[axis]);
    }
    if constexpr (IS_RESULT_LINEAR) start = m * (INDEX)RESULT_STEP;
    const int count = WIDTH % RUN == 0 ? RUN : min(RUN, (int)(WIDTH - column));
    const INDEX channel = (INDEX)tile.group * WIDTH + column;
    start += (INDEX)(tile.group * (i64)RESULT_GROUP + column * (i64)RESULT_COLUMN);
    REAL results[RUN];
#pragma unroll
    for (int e = 0; e < RUN; ++e) {
        results[e] = (REAL)sums[e];
        if (HAS_EPILOGUE && e < count)
            results[e] = EPILOGUE(results[e], image, channel + e, at[0], at[1], at[2]);
    }
    store_results<IS_RESULT_VECTOR>(result + start, (INDEX)RESULT_COLUMN, results, count, alpha, beta);
}

KERNEL2(BLOCK, RESIDENT)
void implicit_gemm(const DTYPE *first, const DTYPE *second, RESULT *result EPILOGUE_PARAMETERS, u8 *workspace,
                   SCALE alpha, SCALE beta) {
    extern __shared__ __align__(128) u8 shared[];
    const Class c = class_of(blockIdx.z);
    const INDEX pixels = (INDEX)IMAGES * c.results[0] * c.results[1] * c.results[2];
    const Share share = share_of_block(TILES);
    const Tile tile = tile_at(share.tile);
    if (tile.row >= pixels) return;

    Tap *taps = (Tap *)(shared + STAGES * STAGE_BYTES);
    Loader loader;
    loader.tap_count = c.taps[0] * c.taps[1] * c.taps[2];
    loader.taps = taps;
    fill_taps(c, taps, loader.tap_count);
    loader.rows.set(c, tile.row, pixels);
    loader.data = in_register((IS_DATA_PACKED ? (const DTYPE *)(workspace + DATA_AT) : first) +
                              tile.group * (i64)DATA_GROUP);
    loader.filter = in_register((IS_FILTER_PACKED ? (const DTYPE *)(workspace + FILTER_AT) : second) +
                                tile.group * (i64)FILTER_GROUP + tile.column * (i64)FILTER_COLUMN);
    loader.columns = (int)(FILTER_COLUMNS - tile.column);
    __syncthreads();

    SUM sums[TILES_M][TILES_N][4] = {};
    loader.blocks = (loader.tap_count * DEPTH + BK - 1) / BK;
    const int begin = (int)((i64)loader.blocks * share.part / share.parts);
    const int end = (int)((i64)loader.blocks * (share.part + 1) / share.parts);
    accumulate<false, FILTER_ACROSS>(sums, loader, shared, begin, end - begin);

    if (PARTS > 1 && share.parts > 1) {
        const int plane = blockIdx.z * gridDim.y + blockIdx.y;
        store_part(sums, partial_of(workspace, TILES, plane, gridDim.y * CLASSES, share.tile, share.part));
    } else {
        auto finish = [&](int row, int column, const SUM(&values)[RUN]) {
            if (tile.row + row >= pixels || tile.column + column >= WIDTH) return;
            finish_run(c, tile, tile.row + row, (int)tile.column + column, values, result EPILOGUE_ARGUMENTS,
                       (REAL)alpha, (REAL)beta);
        };
        constexpr i64 strides[3] = {RESULT_STRIDES};
        constexpr bool is_in_sectors = IS_RESULT_VECTOR && RESULT_IMAGE % 32 == 0 && RESULT_GROUP % 32 == 0 &&
                                       strides[0] % 32 == 0 && strides[1] % 32 == 0 && strides[2] % 32 == 0;
        finish_tile<is_in_sectors, ROWS_FIRST>(sums, (SUM *)shared, finish);
    }
}

// Adds the parts of divided tiles. Axis 0: such tiles; axis 1 groups; axis 2 pieces of them in classes.
KERNEL(SUMMING)
void add_parts(const DTYPE *, const DTYPE *, RESULT *result EPILOGUE_PARAMETERS, u8 *workspace, SCALE alpha,
               SCALE beta) {
    constexpr int pieces = BM * RUNS / SUMMED;
    const int number = blockIdx.z / pieces;
    const PartRun run((int)(blockIdx.z % pieces) * SUMMED + (int)threadIdx.x % SUMMED);
    const Class c = class_of(number);
    const INDEX pixels = (INDEX)IMAGES * c.results[0] * c.results[1] * c.results[2];
    const u32 divided = WHOLE + blockIdx.x;
    const Tile tile = tile_at(divided);
    const INDEX row = tile.row + run.row, column = tile.column + run.column;
    const int plane = number * gridDim.y + blockIdx.y, planes = gridDim.y * CLASSES;
    const SUM *first = partial_of(workspace, TILES, plane, planes, divided, 0);
    const SUM *second = partial_of(workspace, TILES, plane, planes, divided, 1);
    SUM values[RUN] = {};
    add_shares(values, first + run.at, second - first, row < pixels);
    if (threadIdx.x < SUMMED && row < pixels && column < WIDTH)
        finish_run(c, tile, row, (int)column, values, result EPILOGUE_ARGUMENTS, (REAL)alpha, (REAL)beta);
}

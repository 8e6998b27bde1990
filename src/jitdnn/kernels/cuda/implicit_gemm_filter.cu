// The gradient of a filter as an implicit matrix product
//
//     dw[k, (tap, c)] = sum over pixels of  dy[pixel, k] * x[pixel moved by tap, c]
//
// with rows = channels of dy, columns = taps with the channels of x inside, and the reduction over the pixels of dy
// (image, place). Channels are innermost in memory, so both operands have the reduction across.
//
// Blocks: axis 0 tiles (TILES), columns inside, and their parts; axis 1 groups.
//
// Macros beside those of implicit_gemm.cuh: HEIGHT (channels of dy in a group; OUTER_CHANNELS packed), DEPTH (channels
// of x in a group, packed; CHANNELS of them count), TAPS_*, IMAGES, PLACES (of an image), RESULTS (extents of dy), EXTENTS
// (of x), MOVES (step of x per result), SHIFTS (of x per tap), OFFSETS (of the first tap), MASK_AXES (taps may lie
// outside), DATA_* (strides of x), OUTER_* (of dy), RESULT_* (of dw), COPY_A, COPY_B, INDEX.

constexpr int COLUMNS = TAPS_0 * TAPS_1 * TAPS_2 * DEPTH;
constexpr INDEX TILES_WIDE = (COLUMNS + BN - 1) / BN;
constexpr int PIECE_A = COPY_A > 0 ? COPY_A / ELEMENT_BYTES : 1, PIECE_B = COPY_B > 0 ? COPY_B / ELEMENT_BYTES : 1;
constexpr int STEP_A = BLOCK / CHUNKS_M, STEP_B = BLOCK / CHUNKS_N;  // pixels of a stage between those of a thread

// A column of the product, as what it adds to a pixel.
struct Column {
    INDEX from;  // elements of x
    int moved[3];
    bool is_there;

    METHOD void set(int number) {
        constexpr int taps[3] = {TAPS_0, TAPS_1, TAPS_2}, shifts[3] = {SHIFTS}, offsets[3] = {OFFSETS};
        constexpr i64 strides[3] = {DATA_STRIDES};
        int tap = number / DEPTH;
        from = (INDEX)((number - tap * DEPTH) * (i64)DATA_CHANNEL);
#pragma unroll
        for (int axis = 2; axis >= 0; --axis) {
            moved[axis] = offsets[axis] + tap % taps[axis] * shifts[axis];
            tap /= taps[axis];
            from += (INDEX)(moved[axis] * strides[axis]);
        }
        is_there = COLUMNS % BN == 0 || number < COLUMNS;
    }
};

// Pixel number m: its image, and its place along the axes.
FUNCTION INDEX pixel_place(INDEX m, int (&at)[3]) {
    constexpr int results[3] = {RESULTS};
#pragma unroll
    for (int axis = 2; axis >= 0; --axis) {
        const INDEX rest = m / results[axis];
        at[axis] = (int)(m - rest * results[axis]);
        m = rest;
    }
    return m;
}

constexpr INDEX PIXELS = (INDEX)IMAGES * PLACES;

struct Loader {
    Column columns[COPY_B > 0 ? CHUNK / PIECE_B : 1];
    int first_column;  // of this thread's chunk
    const DTYPE *outer;  // dy at the first row of the tile
    const DTYPE *data;
    int rows;  // that the tile has

    static constexpr int blocks = (int)((PIXELS + BK - 1) / BK);  // of the reduction

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

    template <int SHARE>
    METHOD void load(u8 *stage, int number) {
        load_outer<SHARE>(stage, (INDEX)number * BK);
        load_data<SHARE>(stage + A_BYTES, (INDEX)number * BK);
    }

    template <int SHARE>
    METHOD void load_outer(u8 *stage, INDEX first) {
        constexpr int lines = (BK + STEP_A - 1) / STEP_A;
        constexpr i64 strides[3] = {OUTER_STRIDES};
        const int chunk = threadIdx.x % CHUNKS_M, row = threadIdx.x / CHUNKS_M;
        const u32 to = smem_address(stage);
        const DTYPE *own = outer + chunk * (CHUNK * (i64)OUTER_CHANNEL);
        const DTYPE *linear = own + (first + row) * (INDEX)OUTER_STEP;
#pragma unroll
        for (int line = LINES_OF(SHARE, lines); line < LINES_OF(SHARE + 1, lines); ++line) {
            const int depth = row + line * STEP_A;
            if (BK % STEP_A != 0 && depth >= BK) break;
            const INDEX m = first + depth;
            const DTYPE *from = linear + line * (STEP_A * (i64)OUTER_STEP);
            if constexpr (!IS_OUTER_LINEAR) {
                int at[3];
                INDEX start = pixel_place(m, at) * (INDEX)OUTER_IMAGE;
#pragma unroll
                for (int axis = 0; axis < 3; ++axis) start += (INDEX)(at[axis] * strides[axis]);
                from = own + start;
            }
#pragma unroll UNROLLED(COPY_A)
            for (int e = 0; e < CHUNK; e += PIECE_A) {
                const int channel = chunk * CHUNK + e, at = place<CHUNKS_M>(depth, chunk) + e * ELEMENT_BYTES;
                const DTYPE *p = from + e * (i64)OUTER_CHANNEL;
                const bool is_valid = m < PIXELS && (OUTER_CHANNELS % BM == 0 || channel < rows);
                if constexpr (COPY_A > 0)
                    copy_async<COPY_A>(to + at, p, is_valid);
                else
                    *(DTYPE *)(stage + at) = is_valid ? *p : (DTYPE)0;
            }
        }
    }

    template <int SHARE>
    METHOD void load_data(u8 *stage, INDEX first) {
        constexpr int lines = (BK + STEP_B - 1) / STEP_B;
        constexpr i64 strides[3] = {DATA_STRIDES};
        constexpr int moves[3] = {MOVES}, extents[3] = {EXTENTS};
        constexpr bool is_masked[3] = {MASK_AXES};
        const int chunk = threadIdx.x % CHUNKS_N, row = threadIdx.x / CHUNKS_N;
        const u32 to = smem_address(stage);
#pragma unroll
        for (int line = LINES_OF(SHARE, lines); line < LINES_OF(SHARE + 1, lines); ++line) {
            const int depth = row + line * STEP_B;
            if (BK % STEP_B != 0 && depth >= BK) break;
            const INDEX m = first + depth;
            int at[3];
            INDEX from = pixel_place(m, at) * (INDEX)DATA_IMAGE;
#pragma unroll
            for (int axis = 0; axis < 3; ++axis) {
                at[axis] *= moves[axis];
                from += (INDEX)(at[axis] * strides[axis]);
            }
#pragma unroll UNROLLED(COPY_B)
            for (int piece = 0; piece < CHUNK / PIECE_B; ++piece) {
                const Column column = column_of(piece);
                bool is_valid = m < PIXELS && column.is_there;
#pragma unroll
                for (int axis = 0; axis < 3; ++axis)
                    if (is_masked[axis])
                        is_valid = is_valid && (u32)(at[axis] + column.moved[axis]) < (u32)extents[axis];
                const int to_byte = place<CHUNKS_N>(depth, chunk) + piece * PIECE_B * ELEMENT_BYTES;
                const DTYPE *p = data + (from + column.from);
                if constexpr (COPY_B > 0)
                    copy_async<COPY_B>(to + to_byte, p, is_valid);
                else
                    *(DTYPE *)(stage + to_byte) = is_valid ? *p : (DTYPE)0;
            }
        }
    }
};

// Where a tile lies.
struct Tile {
    int row, column;  // the first ones
    int group;
};

FUNCTION Tile tile_at(u32 number) {
    return {(int)(number / TILES_WIDE) * BM, (int)(number % TILES_WIDE) * BN, (int)blockIdx.y};
}

// Stores eight columns of a row of a tile.
FUNCTION void finish_run(const Tile &tile, int row, int column, const SUM (&sums)[RUN], RESULT *result, REAL alpha,
                         REAL beta) {
    constexpr int taps[3] = {TAPS_0, TAPS_1, TAPS_2};
    constexpr i64 strides[3] = {RESULT_STRIDES};
    result += RESULT_BASE + (INDEX)(tile.group * (i64)RESULT_GROUP + row * (i64)RESULT_ROW);
    const int count = min(RUN, COLUMNS - column);
    REAL results[RUN];
#pragma unroll
    for (int e = 0; e < RUN; ++e) results[e] = (REAL)sums[e];
    if constexpr (IS_RESULT_VECTOR) {
        store_results<true>(result + column, 1, results, count, alpha, beta);
    } else {
#pragma unroll
        for (int e = 0; e < RUN; ++e) {
            if (e >= count) break;
            int tap = (column + e) / DEPTH;
            const int channel = column + e - tap * DEPTH;
            if (channel >= CHANNELS) continue;  // a zero that fills the group up
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

KERNEL2(BLOCK, RESIDENT)
void implicit_gemm_filter(const DTYPE *first, const DTYPE *second, RESULT *result, u8 *workspace, SCALE alpha,
                          SCALE beta) {
    extern __shared__ __align__(128) u8 shared[];
    const Share share = share_of_block(TILES);
    const Tile tile = tile_at(share.tile);
    Loader loader;
    loader.data = (IS_DATA_PACKED ? (const DTYPE *)(workspace + DATA_AT) : first) + tile.group * (i64)DATA_GROUP;
    loader.outer = (IS_FILTER_PACKED ? (const DTYPE *)(workspace + FILTER_AT) : second) +
                   tile.group * (i64)OUTER_GROUP + tile.row * (i64)OUTER_CHANNEL;
    loader.rows = OUTER_CHANNELS - tile.row;
    loader.set_columns(tile.column);

    SUM sums[TILES_M][TILES_N][4] = {};
    const int begin = (int)((i64)Loader::blocks * share.part / share.parts);
    const int end = (int)((i64)Loader::blocks * (share.part + 1) / share.parts);
    accumulate<true, true>(sums, loader, shared, begin, end - begin);

    if (PARTS > 1 && share.parts > 1) {
        stage_sums(sums, partial_of(workspace, TILES, blockIdx.y, gridDim.y, share.tile, share.part), BN);
    } else {
        SUM *staged = (SUM *)shared;
        stage_sums(sums, staged, LINE);
        __syncthreads();
        for (int run = threadIdx.x; run < BM * RUNS; run += BLOCK) {
            const int row = run / RUNS, column = run % RUNS * RUN;
            if (tile.row + row >= HEIGHT || tile.column + column >= COLUMNS) continue;
            SUM values[RUN];
            read_run(staged + row * LINE + column, values);
            finish_run(tile, tile.row + row, tile.column + column, values, result, (REAL)alpha, (REAL)beta);
        }
    }
}

// Adds the parts of a divided tile in their order. Axis 0: such tiles; axis 1 groups; axis 2 pieces of tiles.
KERNEL(256)
void add_parts(const DTYPE *, const DTYPE *, RESULT *result, u8 *workspace, SCALE alpha, SCALE beta) {
    const int run = blockIdx.z * 256 + threadIdx.x;
    const u32 divided = WHOLE + blockIdx.x;
    const Tile tile = tile_at(divided);
    const int row = run / RUNS, column = run % RUNS * RUN;
    if (run >= BM * RUNS || tile.row + row >= HEIGHT || tile.column + column >= COLUMNS) return;
    SUM values[RUN] = {};
#pragma unroll 8
    for (int part = 0; part < PARTS; ++part) {
        SUM more[RUN];
        read_run(partial_of(workspace, TILES, blockIdx.y, gridDim.y, divided, part) + row * BN + column, more);
#pragma unroll
        for (int e = 0; e < RUN; ++e) values[e] += more[e];
    }
    finish_run(tile, tile.row + row, tile.column + column, values, result, (REAL)alpha, (REAL)beta);
}

// The way out of a tile: sums in registers become results, 64 rows of CHUNK_BYTES (a chunk) go through shared memory,
// and leave in whole sectors of memory; or, where K is split, sums go to the workspace as they are.

constexpr int WORDS = WN * RESULT_BYTES / 8;  // of 4 bytes, in which a thread holds the results of a slab
constexpr int CHUNKS_OF_SLAB = WN / CHUNK, CHUNKS = ROWS * CHUNKS_OF_SLAB, WORDS_OF_CHUNK = WORDS / CHUNKS_OF_SLAB;
static_assert(WN % CHUNK == 0, "chunks are whole");

FUNCTION u32 sum_bits(f32 sum) { return __float_as_uint(sum); }
FUNCTION u32 sum_bits(i32 sum) { return (u32)sum; }
FUNCTION void sum_of_bits(u32 bits, f32 &sum) { sum = __uint_as_float(bits); }
FUNCTION void sum_of_bits(u32 bits, i32 &sum) { sum = (i32)bits; }
FUNCTION void add_four(SUM (&sums)[4], const uint4 &four) {
    const u32 bits[4] = {four.x, four.y, four.z, four.w};
#pragma unroll
    for (int n = 0; n < 4; ++n) {
        SUM more;
        sum_of_bits(bits[n], more);
        sums[n] += more;
    }
}

// Exchanges words between four neighbouring lanes: `own` of the lane with number n becomes the n-th of all four.
FUNCTION void transpose_of_four(u32 (&own)[4]) {
    const int lane = threadIdx.x % 4;
#pragma unroll
    for (int distance = 1; distance < 4; distance *= 2)
#pragma unroll
        for (int n = 0; n < 4; ++n) {
            if (n & distance) continue;
            const bool is_upper = lane & distance;
            const u32 other = shuffle_xor(is_upper ? own[n] : own[n + distance], distance);
            (is_upper ? own[n] : own[n + distance]) = other;
        }
}

// alpha times a number, plus beta times what was in memory.
FUNCTION REAL blended(REAL value, REAL alpha, REAL beta, REAL before) {
    if constexpr (IS_INTEGER) return (REAL)blend_whole(alpha, value, beta, before);
    value *= alpha;
    return value + beta * before;
}

// A result in place of a sum: of integers its bits.
FUNCTION f32 kept(f32 value) { return value; }
FUNCTION i32 kept(f64 value) {
    u32 bits = 0;
    STORE(RESULT, (RESULT *)&bits, 0, value);
    return (i32)bits;
}

// The bits of alpha times a sum of integers, rounded to f64 and then to the result.
FUNCTION u32 scaled_bits(i32 sum, f64 alpha) {
    constexpr bool is_real = (RESULT)0.5f != 0;
    if (alpha == 1 && sizeof(RESULT) == 4) return is_real ? __float_as_uint((f32)sum) : (u32)sum;
    return (u32)kept(alpha * (f64)sum);
}

// The same of four i8, in a word. f32 is faster, and off by less than 2^-22 of a number: where one is too near to the
// middle between two integers to be sure, the four are computed in f64.
FUNCTION u32 four_bytes(const i32 (&sums)[4], f64 alpha) {
    u32 word = 0;
    bool is_sure = true;
#pragma unroll
    for (int n = 0; n < 4; ++n) {
        const f32 near = (f32)sums[n] * (f32)alpha, whole = rintf(near);
        is_sure = is_sure && (fabsf(near - whole) < 0.4999f || fabsf(near) >= 129);  // no NaN is
        word |= ((u32)(i32)fminf(fmaxf(whole, -128), 127) & 0xff) << 8 * n;
    }
    if (!is_sure) {
        word = 0;
#pragma unroll
        for (int n = 0; n < 4; ++n) word |= (scaled_bits(sums[n], alpha) & 0xff) << 8 * n;
    }
    return word;
}

// Adds beta times what is in memory to the results of a tile. `rows`: address of the places of the tile's rows in the
// result, NO_PLACE for rows that it does not have.
FUNCTION void add_before(Sums &sums, const Tables &tables, const Work &work, u32 rows, int first_column,
                         const RESULT *result, REAL beta) {
    first_column += threadIdx.x % 4 * 2;
#pragma unroll
    for (int slab = 0; slab < ROWS; ++slab)
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            const i64 place = shared_load_i64(rows + row_of(slab, half) * 8);
            if (place == NO_PLACE) continue;
            int count = 0;
            const RESULT *before = result;
#pragma unroll
            for (int n = 0; n < WN / 4; ++n) {
                if (n % 16 == 0) {  // 64 columns are of one tap, at most
                    count = work.columns.from(tables, first_column + 4 * n);
                    before = result + place + work.columns.place(tables, first_column + 4 * n);
                }
                const int column = 8 * (n % 16 / 2) + n % 2;
                if (column < count)
                    sums[slab][4 * (n / 2) + 2 * half + n % 2] +=
                        beta * (f32)LOAD(RESULT, before, column * tables.result_column);
            }
        }
}

// Makes the results of a tile of its sums: f(sum), times alpha, plus beta times what is in memory. `rows`: see add_before.
FUNCTION void finish(Sums &sums, const Tables &tables, const Work &work, u32 rows, int first_row, int first_column,
                     const RESULT *result, REAL alpha, REAL beta EPILOGUE_PARAMETERS) {
    const int of_thread = first_column + threadIdx.x % 4 * 2;
#pragma unroll
    for (int slab = 0; slab < ROWS; ++slab)
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            const int row = row_of(slab, half);
            const i64 place = shared_load_i64(rows + row * 8);
            const Pixel pixel(tables, work, first_row + row);
#pragma unroll
            for (int j = 0; j < WN / 4; ++j) {
                const int column = 8 * (j / 2) + of_thread + j % 2;
                SUM &sum = sums[slab][4 * (j / 2) + 2 * half + j % 2];
                REAL value = (REAL)sum;
                const bool is_there = place != NO_PLACE && work.columns.from(tables, column) > 0;
                if constexpr (HAS_EPILOGUE) {
                    if (is_there) value = FINISH(value, pixel, work.channel(column, tables));
                }
                if (IS_INTEGER && beta != 0 && is_there)
                    value = blended(value, alpha, beta,
                                    (REAL)LOAD(RESULT, result, place + work.columns.place(tables, column)));
                else
                    value *= alpha;
                sum = kept(value);
            }
        }
    if constexpr (!IS_INTEGER) {
        if (beta != 0) add_before(sums, tables, work, rows, first_column, result, beta);
    }
}

// Whether what is rounded needs no product before: alpha is 1, or in the sums.
constexpr bool ROUNDS_ALONE = IS_WGRAD && RESULT_BYTES == 2 && !IS_INTEGER;

// The results, `factor` times the sums, as they are stored: a thread's words of a slab. The product, though often by 1,
// keeps the words in registers of their own: those of the sums are taken by products in flight while words leave. So does
// rounding two of them to a word.
FUNCTION void round_results(const Sums &sums, bool is_plain, REAL alpha, u32 (&words)[ROWS][WORDS]) {
    const f32 factor = is_plain ? (f32)alpha : 1.0f;
    // of integers: the bits of results, if they are not plain
    auto bits = [&](SUM sum) { return is_plain ? scaled_bits((i32)sum, alpha) : (u32)sum; };
    // behind an epilogue the factor is known to be 1
    auto real_bits = [](f32 value) { return HAS_EPILOGUE ? bits_in_own_register(value) : __float_as_uint(value); };
#pragma unroll
    for (int slab = 0; slab < ROWS; ++slab)
#pragma unroll
        for (int i = 0; i < WN / 2; i += 2) {
            if constexpr (RESULT_BYTES == 1) {  // four to a word: two of each row
                if (i % 4) continue;
                const SUM *four = sums[slab] + i;
                u32 &word = words[slab][i / 4];
                if constexpr (!IS_INTEGER)
                    word = PACK(factor * four[0], factor * four[1]) |
                           (u32)PACK(factor * four[2], factor * four[3]) << 16;
                else if (is_plain)
                    word = four_bytes({(i32)four[0], (i32)four[1], (i32)four[2], (i32)four[3]}, alpha);
                else
                    word = (u32)four[0] | (u32)four[1] << 8 | (u32)four[2] << 16 | (u32)four[3] << 24;
            } else if constexpr (IS_INTEGER) {
                words[slab][i] = bits(sums[slab][i]), words[slab][i + 1] = bits(sums[slab][i + 1]);
            } else if constexpr (RESULT_BYTES == 2) {
                words[slab][i / 2] = ROUNDS_ALONE ? PACK(sums[slab][i], sums[slab][i + 1])
                                                  : PACK(factor * sums[slab][i], factor * sums[slab][i + 1]);
            } else {
                words[slab][i] = real_bits(factor * sums[slab][i]);
                words[slab][i + 1] = real_bits(factor * sums[slab][i + 1]);
            }
        }
}

// Where a 16-byte piece of a row lies in a staging buffer: permuted as copies do it.
template <int ROW_OF_BUFFER = CHUNK_BYTES>
FUNCTION u32 piece_place(int row, int piece) {
    return row * ROW_OF_BUFFER + (ROW_OF_BUFFER == 128  ? piece ^ (row & 7)
                                  : ROW_OF_BUFFER == 64 ? piece ^ (row >> 1 & 3)
                                  : ROW_OF_BUFFER == 32 ? piece ^ (row >> 2 & 1)
                                                        : piece) * 16;
}

// Writes a chunk, of which each thread holds WORDS_OF_CHUNK words.
FUNCTION void stage_chunk(u32 buffer, const u32 *words) {
    const int lane = threadIdx.x % 32, warp = threadIdx.x % 128 / 32;
    if constexpr (IS_RESULT_BOXES && ROWS_FIRST && RESULT_BYTES == 4) {  // the same of 32 rows, of two boxes
#pragma unroll
        for (int j = 0; j < CHUNK / 8; ++j)
#pragma unroll
            for (int n = 0; n < 4; ++n) {
                const int row = warp % 2 * 16 + n / 2 * 8 + lane / 4, column = 8 * j + lane % 4 * 2 + n % 2;
                shared_store4(buffer + warp / 2 * (BUFFER_BYTES / 2) + piece_place<128>(column, row / 4) + row % 4 * 4,
                              words[4 * j + n]);
            }
    } else if constexpr (IS_RESULT_BOXES && ROWS_FIRST) {  // a row of the buffer has the 64 rows of a column
        static_assert(!IS_RESULT_BOXES || !ROWS_FIRST || RESULT_BYTES != 1, "matrices of two or four bytes are transposed");
#pragma unroll
        for (int j = 0; j < CHUNK / 8; j += 2)
            stmatrix_x4_transposed(buffer + piece_place<128>(8 * (j + lane / 16) + lane % 8, 2 * warp + lane / 8 % 2),
                                   words[2 * j], words[2 * j + 1], words[2 * j + 2], words[2 * j + 3]);
    } else if constexpr (RESULT_BYTES == 2) {
        const int row = warp * 16 + lane % 16;
#pragma unroll
        for (int j = 0; j < CHUNK / 8; j += 2)
            stmatrix_x4(buffer + piece_place(row, j + lane / 16), words[2 * j], words[2 * j + 1], words[2 * j + 2],
                        words[2 * j + 3]);
    } else if constexpr (RESULT_BYTES == 1) {
#pragma unroll
        for (int j = 0; j < CHUNK / 8; ++j)
#pragma unroll
            for (int half = 0; half < 2; ++half)
                shared_store2(buffer + piece_place(row_of(0, half), j / 2) + j % 2 * 8 + lane % 4 * 2,
                              (u16)(words[j] >> 16 * half));
    } else {
#pragma unroll
        for (int j = 0; j < CHUNK / 8; ++j)
#pragma unroll
            for (int half = 0; half < 2; ++half)
                shared_store8(buffer + piece_place(row_of(0, half), 2 * j + lane % 4 / 2) + lane % 2 * 8,
                              words[4 * j + 2 * half], words[4 * j + 2 * half + 1]);
    }
}

// Copies a staged chunk to the result: the rows at `rows` (see finish), columns from `column` of the tile on.
FUNCTION void store_chunk(u32 buffer, u32 rows, const Tables &tables, const Columns &columns, int column,
                          RESULT *result) {
    const int thread = threadIdx.x % 128, count = columns.from(tables, column);
    if constexpr (IS_RESULT_VECTOR) {
        constexpr int run = 16 / RESULT_BYTES, pieces = CHUNK_BYTES / 16;
        const int piece = thread % pieces;
        if (piece * run >= count) return;
        RESULT *to = result + columns.place(tables, column) + piece * run;
#pragma unroll
        for (int row = thread / pieces; row < 64; row += 128 / pieces) {
            const i64 place = shared_load_i64(rows + row * 8);
            if (place != NO_PLACE) store16_whole(to + place, shared_load16(buffer + piece_place(row, piece)));
        }
    } else {
        // neighbouring threads have neighbouring rows, or columns, whichever are neighbours in memory
#pragma unroll 4
        for (int at = thread; at < 64 * CHUNK; at += 128) {
            const int row = ROWS_FIRST ? at % 64 : at / CHUNK, c = ROWS_FIRST ? at / 64 : at % CHUNK;
            const i64 place = shared_load_i64(rows + row * 8);
            if (place == NO_PLACE || c >= count) continue;
            const u32 from = buffer + piece_place(row, c * RESULT_BYTES / 16) + c * RESULT_BYTES % 16;
            const i64 to = place + columns.place(tables, column + c);
            if constexpr (RESULT_BYTES == 1)
                ((u8 *)result)[to] = shared_load1(from);
            else if constexpr (RESULT_BYTES == 2)
                ((u16 *)result)[to] = shared_load2(from);
            else
                ((u32 *)result)[to] = shared_load4(from);
        }
    }
}

// Partial sums of a split tile in the workspace, in the order of the registers:
//
//     split, tile, slab of 64 rows, 8 columns, thread of the warpgroup: four sums
constexpr int SLAB_SUMS = 64 * WN;

FUNCTION void store_partial(const Sums &sums, SUM *partials, const Tables &tables, int number, int warpgroup) {
    SUM *to = partials + ((i64)number * WARPGROUPS + warpgroup) * ROWS * SLAB_SUMS + threadIdx.x % 128 * 4;
#pragma unroll
    for (int slab = 0; slab < ROWS; ++slab)
#pragma unroll
        for (int j = 0; j < WN / 8; ++j) {
            const SUM *four = sums[slab] + 4 * j;
            store16(to + slab * SLAB_SUMS + j * 512,
                    uint4{sum_bits(four[0]), sum_bits(four[1]), sum_bits(four[2]), sum_bits(four[3])});
        }
}

// A thread's two rows, and where they lie in the result.
struct RowsPlace {
    Pixel pixels[2];
    i64 places[2];

    METHOD RowsPlace(const Tables &tables, const Work &work, int first_row)
        : pixels{Pixel(tables, work, first_row), Pixel(tables, work, first_row + 8)} {
#pragma unroll
        for (int half = 0; half < 2; ++half) places[half] = row_place(tables, work, first_row + half * 8);
    }
};

// Where 16 columns lie: of each eight how many there are, and the place of the first.
struct ColumnsPlace {
    int first_column, columns[2];
    i64 places[2];

    METHOD ColumnsPlace(const Tables &tables, const Work &work, int first_column) : first_column(first_column) {
#pragma unroll
        for (int j = 0; j < 2; ++j) {
            columns[j] = work.columns.from(tables, first_column + 8 * j);
            places[j] = work.columns.place(tables, first_column + 8 * j);
        }
    }
};

// Stores the results of a thread's 2 x 4 sums of 16 columns. Where results may be stored as vectors, four lanes exchange
// theirs of half precision, and each stores 8 columns of a row. `summed`: the sums of results that there are. By whole
// warps, of which `is_there` is the same.
FUNCTION void store_columns(const SUM (&sums)[2][4], f32 (&summed)[2][4], const Tables &tables, const Work &work,
                            const RowsPlace &rows, const ColumnsPlace &of, bool is_there, RESULT *result, SCALE alpha,
                            SCALE beta EPILOGUE_PARAMETERS) {
    const int lane = threadIdx.x % 4;
    constexpr bool is_exchanged = IS_RESULT_VECTOR && RESULT_BYTES == 2 && !IS_INTEGER;
    constexpr bool is_paired = IS_RESULT_VECTOR && RESULT_BYTES == 4 && !IS_INTEGER;
    u32 words[4];  // two neighbours each: of both rows, of both blocks of columns
    i64 places[2];
#pragma unroll
    for (int half = 0; half < 2; ++half) {
        places[half] = is_there ? rows.places[half] : NO_PLACE;
        const Pixel &pixel = rows.pixels[half];
#pragma unroll
        for (int j = 0; j < 2; ++j) {
            REAL values[2];
#pragma unroll
            for (int e = 0; e < 2; ++e) {
                REAL &value = values[e];
                value = (REAL)sums[j][2 * half + e];
                if (places[half] == NO_PLACE || of.columns[j] <= lane * 2 + e) continue;
                summed[j][2 * half + e] = (f32)value;
                const i64 at = places[half] + of.places[j] + (lane * 2 + e) * tables.result_column;
                if constexpr (HAS_EPILOGUE)
                    value = FINISH(value, pixel, work.channel(of.first_column + 8 * j + lane * 2 + e, tables));
                if (beta != 0)
                    value = blended(value, (REAL)alpha, (REAL)beta, (REAL)LOAD(RESULT, result, at));
                else
                    value *= (REAL)alpha;
                if constexpr (!is_exchanged && !is_paired) STORE(RESULT, result, at, value);
            }
            if constexpr (is_exchanged) words[2 * half + j] = PACK((f32)values[0], (f32)values[1]);
            if (is_paired && places[half] != NO_PLACE && of.columns[j] > lane * 2)
                store8_whole(result + places[half] + of.places[j] + lane * 2,
                             uint2{__float_as_uint((f32)values[0]), __float_as_uint((f32)values[1])});
        }
    }
    if constexpr (is_exchanged) {
        transpose_of_four(words);
        const i64 place = lane / 2 ? places[1] : places[0];
        if (place != NO_PLACE && (lane % 2 ? of.columns[1] : of.columns[0]) > 0)
            store16_whole(result + place + (lane % 2 ? of.places[1] : of.places[0]),
                          uint4{words[0], words[1], words[2], words[3]});
    }
}

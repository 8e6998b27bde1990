// A tile of a matrix product on the matrix units: BM rows by BN columns of sums, BK elements of the reduction at a time
// through a ring of STAGES buffers of shared memory that asynchronous copies fill.
//
//                columns (BN)                     A warp computes WM x WN of it, as tiles of 16 x 8.
//              +-------+-------+                  An operand lies in a stage with the reduction inside (a row of the
//    rows (BM) | WMxWN |       |                  tile is BK_BYTES of it) or across (a row is one element of the
//              +-------+-------+                  reduction, for all rows or columns of the tile).
//              |       |       |
//              +-------+-------+
//
// All in chunks of 16 bytes, which are exchanged within a row by the row's number, so that the eight rows of a matrix
// that ldmatrix reads at once lie in different banks.
//
// Macros: DTYPE, SUM (f32, or i32 for i8), DTYPE_IS_INTEGER, MULTIPLY, RESULT, REAL (of alpha times a sum), PACK,
// BM, BN, BK_BYTES, WM, WN, STAGES, BUFFERS (of fragments), TILES, WHOLE, PARTS, PARTS_AT (bytes into the workspace),
// SHARERS (threads that add the parts of a run).

#define METHOD __device__ __forceinline__

constexpr int ELEMENT_BYTES = sizeof(DTYPE);
constexpr int CHUNK = 16 / ELEMENT_BYTES;  // elements
constexpr int BK = BK_BYTES / ELEMENT_BYTES;
constexpr int WARPS_N = BN / WN;
constexpr int BLOCK = BM / WM * WARPS_N * 32;  // threads
constexpr int TILES_M = WM / 16, TILES_N = WN / 8;
constexpr int STEPS = BK_BYTES / 32;  // of one mma each
constexpr int CHUNKS_K = BK_BYTES / 16, CHUNKS_M = BM / CHUNK, CHUNKS_N = BN / CHUNK;
constexpr int A_BYTES = BM * BK_BYTES, STAGE_BYTES = (BM + BN) * BK_BYTES;
constexpr bool IS_TF32 = ELEMENT_BYTES == 4;

// What the exchange of chunks XORs in a row: the rows of a matrix fall into all eight groups of banks.
template <int CHUNKS>
FUNCTION constexpr int twist(int row) {
    static_assert(CHUNKS % 8 == 0 || CHUNKS == 12 || CHUNKS == 4 || CHUNKS == 2, "an exchange stays in its row");
    if constexpr (CHUNKS % 8 == 0)
        return row & 7;
    else if constexpr (CHUNKS == 12)  // every second row begins half a line of banks further on
        return row / 2 & 3;
    else
        return row / (8 / CHUNKS) & (CHUNKS - 1);
}

// The byte of a stage's operand at which a chunk lies.
template <int CHUNKS>
FUNCTION int place(int row, int chunk) {
    return (row * CHUNKS + (chunk ^ twist<CHUNKS>(row))) * 16;
}

// The same for one of the lines that a thread copies, STEP rows apart from the first.
template <int CHUNKS, int STEP>
FUNCTION int place_of_line(int first, int chunk, int line) {
    if constexpr (STEP % 8 == 0)  // all are exchanged alike
        return place<CHUNKS>(first, chunk) + line * (STEP * CHUNKS * 16);
    else
        return place<CHUNKS>(first + line * STEP, chunk);
}

// What a lane addresses of an operand, for the first step and the first 16 rows (or columns) of its warp.
struct LanePlace {
    u32 line;   // bytes to its row of the stage
    u32 chunk;  // bytes from there to its chunk, exchanged
};

template <bool ACROSS, int CHUNKS, bool IS_A>
FUNCTION LanePlace lane_place(int first) {
    const int lane = threadIdx.x % 32;
    int row = lane % 16, chunk = lane / 16;       // 16 rows, then the next 8 elements of the reduction
    if (IS_A == ACROSS) {                         // 8 rows, the next 8 elements, then the other 8 rows
        row = lane / 16 * 8 + lane % 8;
        chunk = lane / 8 % 2;
    }
    if constexpr (ACROSS)
        chunk += first / CHUNK;
    else
        row += first;
    return {(u32)(row * CHUNKS * 16), (u32)((chunk ^ twist<CHUNKS>(row)) * 16)};
}

template <bool ACROSS, int CHUNKS>
FUNCTION void read_16(u32 (&r)[4], const LanePlace &lane, u32 operand, int number, int step) {
    if constexpr (ACROSS)
        ldmatrix_x4_trans(r, operand + lane.line + step * (16 * CHUNKS * 16) + (lane.chunk ^ (number * 32)));
    else
        ldmatrix_x4(r, operand + lane.line + number * (16 * CHUNKS * 16) + (lane.chunk ^ (step * 32)));
}

// The same for 4-byte elements that lie across, which ldmatrix cannot transpose. A lane reads the elements of rows
// (columns) g and g + 8 at t and t + 4 of the reduction, with g = lane / 4 and t = lane % 4.
template <int CHUNKS>
FUNCTION LanePlace lane_place_of_words(int first) {
    const int g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
    return {(u32)(t * CHUNKS * 16 + g % 4 * 4), (u32)(((first + g) / 4 ^ twist<CHUNKS>(t)) * 16)};
}

template <int CHUNKS, bool IS_A>
FUNCTION void read_words(u32 (&r)[4], const LanePlace &lane, const u8 *operand, int number, int step) {
    constexpr int next = twist<CHUNKS>(4);  // what four rows further down is exchanged beside
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        const int side = IS_A ? i % 2 : i / 2, depth = IS_A ? i / 2 : i % 2;
        const u32 chunk = lane.chunk ^ ((number * 4 + side * 2) ^ depth * next) * 16;
        r[i] = *(const u32 *)(operand + lane.line + (step * 8 + depth * 4) * (CHUNKS * 16) + chunk);
    }
}

template <bool ACROSS, int CHUNKS, bool IS_A>
FUNCTION LanePlace operand_place(int first) {
    if constexpr (ACROSS && IS_TF32)
        return lane_place_of_words<CHUNKS>(first);
    else
        return lane_place<ACROSS, CHUNKS, IS_A>(first);
}

struct Fragments {
    u32 a[TILES_M][4];
    u32 b[TILES_N / 2][4];
};

FUNCTION u32 as_multiplied(u32 bits) { return IS_TF32 ? to_tf32(__uint_as_float(bits)) : bits; }

FUNCTION void multiply(SUM (&sums)[TILES_M][TILES_N][4], const Fragments &f) {
    u32 a[TILES_M][4];
#pragma unroll
    for (int i = 0; i < TILES_M; ++i)
#pragma unroll
        for (int e = 0; e < 4; ++e) a[i][e] = as_multiplied(f.a[i][e]);
#pragma unroll
    for (int j = 0; j < TILES_N; ++j) {
        const u32 b[2] = {as_multiplied(f.b[j / 2][j % 2 * 2]), as_multiplied(f.b[j / 2][j % 2 * 2 + 1])};
#pragma unroll
        for (int i = 0; i < TILES_M; ++i) MULTIPLY(sums[i][j], a[i], b);
    }
}

// The lines of `count` that share `share` of LOADS has.
#define LINES_OF(share, count) ((count) * (share) / LOADS)

// A stage is asked for in so many shares, one in each step but the last, so that addresses are made while sums are.
constexpr int LOADS = STEPS > 2 ? STEPS - 1 : 1;

// Adds the products of `count` blocks of the reduction from number `first` on. `loader.load<share>(stage, number)`
// starts a share of the copies of one block into a stage, zeros where there is nothing, as in block `loader.blocks`:
// asking for that one behind the last keeps branches out of the loop. `loader.prepare(number)`, with a barrier behind it,
// comes before the first share of a block.
template <int SHARE, class Loader>
FUNCTION void load_shares(Loader &loader, u8 *stage, int number) {
    loader.template load<SHARE>(stage, number);
    if constexpr (SHARE + 1 < LOADS) load_shares<SHARE + 1>(loader, stage, number);
}

template <class Loader>
FUNCTION void load_share(Loader &loader, int share, u8 *stage, int number) {
    if (share == 0) loader.template load<0>(stage, number);
    if constexpr (LOADS > 1)
        if (share == 1) loader.template load<1>(stage, number);
    if constexpr (LOADS > 2)
        if (share == 2) loader.template load<2>(stage, number);
}

template <bool A_ACROSS, bool B_ACROSS, class Loader>
FUNCTION void accumulate(SUM (&sums)[TILES_M][TILES_N][4], Loader &loader, u8 *stages, int first, int count) {
    const int warp = threadIdx.x / 32, warp_m = warp / WARPS_N * WM, warp_n = warp % WARPS_N * WN;
    constexpr bool words_a = A_ACROSS && IS_TF32, words_b = B_ACROSS && IS_TF32;
    const LanePlace lane_a = operand_place<A_ACROSS, A_ACROSS ? CHUNKS_M : CHUNKS_K, true>(warp_m);
    const LanePlace lane_b = operand_place<B_ACROSS, B_ACROSS ? CHUNKS_N : CHUNKS_K, false>(warp_n);
    const u32 base = smem_address(stages);

    auto read = [&](Fragments &f, int stage, int step) {
#pragma unroll
        for (int i = 0; i < TILES_M; ++i) {
            if constexpr (words_a)
                read_words<CHUNKS_M, true>(f.a[i], lane_a, stages + stage, i, step);
            else
                read_16<A_ACROSS, A_ACROSS ? CHUNKS_M : CHUNKS_K>(f.a[i], lane_a, base + stage, i, step);
        }
#pragma unroll
        for (int j = 0; j < TILES_N / 2; ++j) {
            if constexpr (words_b)
                read_words<CHUNKS_N, false>(f.b[j], lane_b, stages + stage + A_BYTES, j, step);
            else
                read_16<B_ACROSS, B_ACROSS ? CHUNKS_N : CHUNKS_K>(f.b[j], lane_b, base + stage + A_BYTES, j, step);
        }
    };

    auto number = [&](int turn) { return turn < count ? first + turn : (int)loader.blocks; };
#pragma unroll
    for (int s = 0; s < STAGES - 1; ++s) {
        if constexpr (Loader::IS_PREPARED) {
            loader.prepare(number(s));
            __syncthreads();
        }
        load_shares<0>(loader, stages + s * STAGE_BYTES, number(s));
        cp_async_commit();
    }
    if constexpr (Loader::IS_PREPARED) loader.prepare(number(STAGES - 1));
    cp_async_wait<STAGES - 2>();
    __syncthreads();

    Fragments fragments[BUFFERS];  // with two, those of the next step are read while this one's are multiplied
    if constexpr (BUFFERS == 2) read(fragments[0], 0, 0);
    int reading = 0, writing = (STAGES - 1) * STAGE_BYTES;
    for (int i = 0; i < count; ++i) {
#pragma unroll
        for (int step = 0; step < STEPS; ++step) {
            if constexpr (BUFFERS == 1) read(fragments[0], reading, step);
            if (step == STEPS - 1) {  // all have read this stage: it may be filled again from here on
                cp_async_wait<STAGES - 2>();
                __syncthreads();
                reading = reading == (STAGES - 1) * STAGE_BYTES ? 0 : reading + STAGE_BYTES;
            }
            if constexpr (BUFFERS == 2) read(fragments[(step + 1) % 2], reading, (step + 1) % STEPS);
            if (step < LOADS) load_share(loader, step, stages + writing, number(i + STAGES - 1));
            if constexpr (Loader::IS_PREPARED)
                if (step == 0) loader.prepare(number(i + STAGES));
            if (step == LOADS - 1) {
                cp_async_commit();
                writing = writing == (STAGES - 1) * STAGE_BYTES ? 0 : writing + STAGE_BYTES;
            }
            multiply(sums, fragments[BUFFERS == 2 ? step % 2 : 0]);
        }
    }
    cp_async_wait<0>();
}

// ---- Which tile a block has ---------------------------------------------------------------------------------------
//
// Along axis 0 the first WHOLE tiles have a block each. The others, which would leave the machine half empty, are
// divided along the reduction into PARTS blocks each, all first parts first.

struct Share {
    u32 tile;
    int part, parts;
};

FUNCTION Share share_of_block(u32 tiles) {
    if (PARTS == 1 || blockIdx.x < WHOLE) return {blockIdx.x, 0, 1};
    const u32 rest = tiles - WHOLE, block = blockIdx.x - WHOLE;
    return {WHOLE + block % rest, (int)(block / rest), PARTS};
}

// Where the sums of a part lie until they are added; the plane is one of those along axes 1 and 2.
FUNCTION SUM *partial_of(u8 *workspace, u32 tiles, int plane, int planes, u32 tile, int part) {
    const i64 own = (i64)plane * (tiles - WHOLE) + (tile - WHOLE);
    return (SUM *)(workspace + PARTS_AT) + ((i64)planes * (tiles - WHOLE) * part + own) * (BM * BN);
}

// Elements that are copied one by one are so in a loop: code for each would be long, and is rarely needed.
#define UNROLLED(copy) ((copy) > 0 ? CHUNK : 1)

// ---- Copies into a stage -----------------------------------------------------------------------------------------

template <int BYTES>
FUNCTION void copy_async(u32 shared, const DTYPE *global, bool valid) {
    if constexpr (BYTES == 16)
        cp_async16(shared, global, valid);
    else if constexpr (BYTES == 8)
        cp_async8(shared, global, valid);
    else
        cp_async4(shared, global, valid);
}

// ---- Sums on their way out ---------------------------------------------------------------------------------------

constexpr int RUN = 8;           // columns of a row that a thread stores together
constexpr int LINE = BN + 8;     // words from row to row; 8 more, so that rows begin in other banks
constexpr int RUNS = BN / RUN;

FUNCTION u32 sum_bits(f32 sum) { return __float_as_uint(sum); }
FUNCTION u32 sum_bits(i32 sum) { return (u32)sum; }
FUNCTION SUM sum_of_bits(u32 bits) {
    if constexpr (DTYPE_IS_INTEGER)
        return (SUM)(i32)bits;
    else
        return (SUM)__uint_as_float(bits);
}

// Where a column lies in a row of staged sums. Threads side by side read runs side by side, four sums at a time: every
// second four runs have their halves exchanged, so that eight threads meet all banks.
FUNCTION int staged_column(int column) { return column ^ (column / 8 & 4); }

template <bool IS_STAGED>
FUNCTION void read_run(const SUM *row, int column, SUM (&run)[RUN]) {
#pragma unroll
    for (int e = 0; e < RUN; e += 4) {
        const uint4 four = *(const uint4 *)(row + (IS_STAGED ? staged_column(column + e) : column + e));
        run[e] = sum_of_bits(four.x);
        run[e + 1] = sum_of_bits(four.y);
        run[e + 2] = sum_of_bits(four.z);
        run[e + 3] = sum_of_bits(four.w);
    }
}

// The sums of a tile into shared memory, or those of a part into the workspace, in rows of `line`.
template <bool IS_STAGED>
FUNCTION void stage_sums(const SUM (&sums)[TILES_M][TILES_N][4], SUM *to, int line) {
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const int row = warp / WARPS_N * WM + lane / 4, column = warp % WARPS_N * WN + lane % 4 * 2;
#pragma unroll
    for (int i = 0; i < TILES_M; ++i)
#pragma unroll
        for (int j = 0; j < TILES_N; ++j)
#pragma unroll
            for (int half = 0; half < 2; ++half) {
                const uint2 pair = {sum_bits(sums[i][j][half * 2]), sum_bits(sums[i][j][half * 2 + 1])};
                const int at = IS_STAGED ? staged_column(column + j * 8) : column + j * 8;
                *(uint2 *)(to + (row + i * 16 + half * 8) * line + at) = pair;
            }
}

// A lane holds two columns of each of four tiles side by side; it gets all eight columns of one of them, of the same row.
FUNCTION void exchange_columns(SUM (&run)[RUN]) {
    const int lane = threadIdx.x;
#pragma unroll
    for (int step = 1; step <= 2; step *= 2) {
        const bool is_upper = lane & step;
#pragma unroll
        for (int pair = 0; pair < RUN / 2; ++pair) {
            if (pair & step) continue;
#pragma unroll
            for (int e = 0; e < 2; ++e) {
                SUM &lower = run[pair * 2 + e], &upper = run[(pair | step) * 2 + e];
                const SUM other = shuffle_xor(is_upper ? lower : upper, step);
                lower = is_upper ? other : lower;
                upper = is_upper ? upper : other;
            }
        }
    }
}

// All runs of the sums that a warp holds. Four lanes have 64 bytes of a row of 2-byte results.
constexpr bool HAS_RUNS = TILES_N % 4 == 0;

// Calls something with all of them, before their columns are exchanged, and with their numbers.
template <class Something>
FUNCTION void each_held_run(const SUM (&sums)[TILES_M][TILES_N][4], Something something) {
#pragma unroll
    for (int i = 0; i < 2 * TILES_M; ++i)
#pragma unroll
        for (int four = 0; four < TILES_N / 4; ++four) {
            SUM run[RUN];
#pragma unroll
            for (int e = 0; e < RUN; ++e) run[e] = sums[i / 2][four * 4 + e / 2][i % 2 * 2 + e % 2];
            something(run, i * (TILES_N / 4) + four);
        }
}

template <class Finish>
FUNCTION void each_own_run(const SUM (&sums)[TILES_M][TILES_N][4], Finish finish) {
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const int row = warp / WARPS_N * WM + lane / 4, column = warp % WARPS_N * WN + lane % 4 * RUN;
    each_held_run(sums, [&](SUM(&run)[RUN], int number) {
        exchange_columns(run);
        finish(row + number / (TILES_N / 4) * 8, column + number % (TILES_N / 4) * 32, run);
    });
}

// All runs of a staged tile, dealt out to the threads; a batch of them is read before the first is stored.
template <bool IS_DOWN_ROWS, class Finish>
FUNCTION void each_staged_run(const SUM *staged, Finish finish) {
    constexpr u32 all = BM * RUNS, batch = all / BLOCK >= 4 ? 4 : 1;
    for (u32 first = threadIdx.x; first < all; first += batch * BLOCK) {
        SUM values[batch][RUN];
        auto row_of = [&](u32 b) { return (int)(IS_DOWN_ROWS ? (first + b * BLOCK) % BM : (first + b * BLOCK) / RUNS); };
        auto column_of = [&](u32 b) {
            return (int)(IS_DOWN_ROWS ? (first + b * BLOCK) / BM : (first + b * BLOCK) % RUNS) * RUN;
        };
#pragma unroll
        for (u32 b = 0; b < batch; ++b)
            if (all % (batch * BLOCK) == 0 || first + b * BLOCK < all)
                read_run<true>(staged + row_of(b) * LINE, column_of(b), values[b]);
#pragma unroll
        for (u32 b = 0; b < batch; ++b)
            if (all % (batch * BLOCK) == 0 || first + b * BLOCK < all) finish(row_of(b), column_of(b), values[b]);
    }
}

// All runs of a tile: out of the registers where four of them are whole sectors of the result, else through the stages.
template <bool IS_IN_SECTORS, bool IS_DOWN_ROWS, class Finish>
FUNCTION void finish_tile(const SUM (&sums)[TILES_M][TILES_N][4], SUM *staged, Finish finish) {
    if constexpr (HAS_RUNS && IS_IN_SECTORS) {
        each_own_run(sums, finish);
    } else {
        __syncthreads();
        stage_sums<true>(sums, staged, LINE);
        __syncthreads();
        each_staged_run<IS_DOWN_ROWS>(staged, finish);
    }
}

// ---- Parts ---------------------------------------------------------------------------------------------------------
//
// The sums of a part lie in the workspace as lanes hold them, so that each store of a warp is 512 bytes side by side: by
// warp, its runs, their halves, and lanes. Where warps hold no runs they lie in rows.

constexpr int SUMMING = 256;               // threads of a group that adds parts
constexpr int SUMMED = SUMMING / SHARERS;  // runs of it
constexpr int HALF_STEP = HAS_RUNS ? 32 * RUN / 2 : RUN / 2;  // from one half of a run to the other
static_assert(BM * RUNS % SUMMING == 0 && SUMMED % 4 == 0, "groups are full, and those who exchange are in one");

FUNCTION void store_part(const SUM (&sums)[TILES_M][TILES_N][4], SUM *to) {
    if constexpr (HAS_RUNS) {
        to += threadIdx.x / 32 * (WM * WN) + threadIdx.x % 32 * (RUN / 2);
        each_held_run(sums, [&](const SUM(&run)[RUN], int number) {
#pragma unroll
            for (int half = 0; half < 2; ++half) {
                const SUM *four = run + half * (RUN / 2);
                store16(to + number * (32 * RUN) + half * HALF_STEP,
                        uint4{sum_bits(four[0]), sum_bits(four[1]), sum_bits(four[2]), sum_bits(four[3])});
            }
        });
    } else {
        stage_sums<false>(sums, to, BN);
    }
}

// A run of a part: which it is of the tile, once its columns are exchanged, and where in the part its first half begins.
struct PartRun {
    int row, column, at;

    METHOD explicit PartRun(int number) {
        row = number / RUNS, column = number % RUNS * RUN, at = number * RUN;
        if constexpr (HAS_RUNS) {
            constexpr int fours = TILES_N / 4, of_warp = 2 * TILES_M * fours;
            const int lane = number % 32, held = number / 32, warp = held / of_warp;
            row = warp / WARPS_N * WM + held % of_warp / fours * 8 + lane / 4;
            column = warp % WARPS_N * WN + held % fours * 32 + lane % 4 * RUN;
            at = held * (32 * RUN) + lane * (RUN / 2);
        }
    }
};

// The sum of all parts of a run, for the first of the SHARERS threads that add them; `first` is its place in the first
// part. Each adds every SHARERS-th part, then the upper half of them hands its sums to the lower, until one is left: the
// order is always the same. All threads of a group come here, neighbours with neighbouring runs.
FUNCTION void add_shares(SUM (&values)[RUN], const SUM *first, i64 part_step, bool is_needed) {
    __shared__ SUM handed[SHARERS > 1 ? SHARERS / 2 : 1][SUMMED][RUN];
    const int place = threadIdx.x % SUMMED, sharer = threadIdx.x / SUMMED;
    if (is_needed) {
#pragma unroll 8
        for (int round = 0; round < (PARTS + SHARERS - 1) / SHARERS; ++round) {
            const int part = round * SHARERS + sharer;
            SUM more[RUN];  // read without a branch, so that the reads of several rounds are under way at once
#pragma unroll
            for (int half = 0; half < 2; ++half) {
                const uint4 four = *(const uint4 *)(first + part_step * min(part, PARTS - 1) + half * HALF_STEP);
                more[half * 4] = sum_of_bits(four.x), more[half * 4 + 1] = sum_of_bits(four.y);
                more[half * 4 + 2] = sum_of_bits(four.z), more[half * 4 + 3] = sum_of_bits(four.w);
            }
#pragma unroll
            for (int e = 0; e < RUN; ++e) values[e] += part < PARTS ? more[e] : (SUM)0;
        }
    }
#pragma unroll
    for (int left = SHARERS / 2; left > 0; left /= 2) {
        if (sharer >= left && sharer < 2 * left) {
#pragma unroll
            for (int e = 0; e < RUN; ++e) handed[sharer - left][place][e] = values[e];
        }
        __syncthreads();
        if (sharer < left) {
#pragma unroll
            for (int e = 0; e < RUN; ++e) values[e] += handed[sharer][place][e];
        }
        __syncthreads();
    }
    if constexpr (HAS_RUNS) exchange_columns(values);
}

// Eight results side by side: alpha times them, plus beta times what is there. `step` is between neighbours.
template <bool IS_VECTOR, class Where>
FUNCTION void store_results(RESULT *p, Where step, const REAL (&results)[RUN], int count, REAL alpha, REAL beta) {
    REAL values[RUN];
#pragma unroll
    for (int e = 0; e < RUN; ++e) {
        values[e] = alpha * results[e];
        if (beta != 0 && e < count) {
#if DTYPE_IS_INTEGER
            values[e] = blend_whole(alpha, results[e], beta, (SCALE)LOAD(RESULT, p, (i64)e * step));
#else
            values[e] += beta * (REAL)LOAD(RESULT, p, (i64)e * step);
#endif
        }
    }
    if constexpr (IS_VECTOR) {
        if (count == RUN) {
            if constexpr (sizeof(RESULT) == 2) {
                u32 words[4];
#pragma unroll
                for (int e = 0; e < 4; ++e) words[e] = PACK(values[2 * e], values[2 * e + 1]);
                store16(p, uint4{words[0], words[1], words[2], words[3]});
                return;
            } else if constexpr (sizeof(RESULT) == 4) {
                u32 words[RUN];
#pragma unroll
                for (int e = 0; e < RUN; ++e) STORE(RESULT, (RESULT *)words, e, values[e]);
                store16(p, uint4{words[0], words[1], words[2], words[3]});
                store16(p + 4, uint4{words[4], words[5], words[6], words[7]});
                return;
            }
        }
    }
#pragma unroll
    for (int e = 0; e < RUN; ++e)
        if (e < count) STORE(RESULT, p, (i64)e * step, values[e]);
}

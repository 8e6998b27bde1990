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


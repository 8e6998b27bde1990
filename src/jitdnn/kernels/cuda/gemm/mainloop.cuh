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
// BM, BN, BK_BYTES, WM, WN, STAGES, FRAGMENT_BUFFERS (of fragments), GRID_TILES, UNSPLIT, SPLITS, PARTIALS_OFFSET (bytes into the workspace),
// REDUCTION_THREADS (threads that add the parts of a run).

#define METHOD __device__ __forceinline__

constexpr int ELEMENT_BYTES = sizeof(DTYPE);
constexpr int CHUNK = 16 / ELEMENT_BYTES;  // elements
constexpr int BK = BK_BYTES / ELEMENT_BYTES;
constexpr int WARPS_N = BN / WN;
constexpr int BLOCK_THREADS = BM / WM * WARPS_N * 32;  // threads
constexpr int MMAS_M = WM / 16, MMAS_N = WN / 8;
constexpr int MMA_STEPS = BK_BYTES / 32;  // of one mma each
constexpr int CHUNKS_K = BK_BYTES / 16, CHUNKS_M = BM / CHUNK, CHUNKS_N = BN / CHUNK;
constexpr int A_BYTES = BM * BK_BYTES, STAGE_BYTES = (BM + BN) * BK_BYTES;
constexpr bool IS_TF32 = ELEMENT_BYTES == 4;

// What the exchange of chunks XORs in a row: the rows of a matrix fall into all eight groups of banks.
template <int CHUNKS>
FUNCTION constexpr int xor_swizzle(int row) {
    static_assert(CHUNKS % 8 == 0 || CHUNKS == 12 || CHUNKS == 4 || CHUNKS == 2, "an swizzle stays in its row");
    if constexpr (CHUNKS % 8 == 0)
        return row & 7;
    else if constexpr (CHUNKS == 12)  // every second row begins half a line of banks further on
        return row / 2 & 3;
    else
        return row / (8 / CHUNKS) & (CHUNKS - 1);
}

// The byte of a stage's operand at which a chunk lies.
template <int CHUNKS>
FUNCTION int position(int row, int chunk) {
    return (row * CHUNKS + (chunk ^ xor_swizzle<CHUNKS>(row))) * 16;
}

// The same for one of the lines that a thread copies, STEP rows apart from the first.
template <int CHUNKS, int STEP>
FUNCTION int position_of_line(int first, int chunk, int line) {
    if constexpr (STEP % 8 == 0)  // all are exchanged alike
        return position<CHUNKS>(first, chunk) + line * (STEP * CHUNKS * 16);
    else
        return position<CHUNKS>(first + line * STEP, chunk);
}

// What a lane addresses of an operand, for the first step and the first 16 rows (or columns) of its warp.
struct LaneOffset {
    u32 line;   // bytes to its row of the stage
    u32 chunk;  // bytes from there to its chunk, exchanged
};

template <bool MN_MAJOR, int CHUNKS, bool IS_A>
FUNCTION LaneOffset lane_offset(int first) {
    const int lane = threadIdx.x % 32;
    int row = lane % 16, chunk = lane / 16;       // 16 rows, then the next 8 elements of the reduction
    if (IS_A == MN_MAJOR) {                         // 8 rows, the next 8 elements, then the other 8 rows
        row = lane / 16 * 8 + lane % 8;
        chunk = lane / 8 % 2;
    }
    if constexpr (MN_MAJOR)
        chunk += first / CHUNK;
    else
        row += first;
    return {(u32)(row * CHUNKS * 16), (u32)((chunk ^ xor_swizzle<CHUNKS>(row)) * 16)};
}

template <bool MN_MAJOR, int CHUNKS>
FUNCTION void read_16(u32 (&r)[4], const LaneOffset &lane, u32 operand, int number, int step) {
    if constexpr (MN_MAJOR)
        ldmatrix_x4_trans(r, operand + lane.line + step * (16 * CHUNKS * 16) + (lane.chunk ^ (number * 32)));
    else
        ldmatrix_x4(r, operand + lane.line + number * (16 * CHUNKS * 16) + (lane.chunk ^ (step * 32)));
}

// The same for 4-byte elements that lie across, which ldmatrix cannot transpose. A lane reads the elements of rows
// (columns) g and g + 8 at t and t + 4 of the reduction, with g = lane / 4 and t = lane % 4.
template <int CHUNKS>
FUNCTION LaneOffset lane_offset_of_words(int first) {
    const int g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
    return {(u32)(t * CHUNKS * 16 + g % 4 * 4), (u32)(((first + g) / 4 ^ xor_swizzle<CHUNKS>(t)) * 16)};
}

template <int CHUNKS, bool IS_A>
FUNCTION void read_words(u32 (&r)[4], const LaneOffset &lane, const u8 *operand, int number, int step) {
    constexpr int next = xor_swizzle<CHUNKS>(4);  // what four rows further down is exchanged beside
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        const int side = IS_A ? i % 2 : i / 2, depth = IS_A ? i / 2 : i % 2;
        const u32 chunk = lane.chunk ^ ((number * 4 + side * 2) ^ depth * next) * 16;
        r[i] = *(const u32 *)(operand + lane.line + (step * 8 + depth * 4) * (CHUNKS * 16) + chunk);
    }
}

template <bool MN_MAJOR, int CHUNKS, bool IS_A>
FUNCTION LaneOffset operand_offset(int first) {
    if constexpr (MN_MAJOR && IS_TF32)
        return lane_offset_of_words<CHUNKS>(first);
    else
        return lane_offset<MN_MAJOR, CHUNKS, IS_A>(first);
}

struct Fragments {
    u32 a[MMAS_M][4];
    u32 b[MMAS_N / 2][4];
};

FUNCTION u32 as_multiplied(u32 bits) { return IS_TF32 ? to_tf32(__uint_as_float(bits)) : bits; }

FUNCTION void multiply(SUM (&sums)[MMAS_M][MMAS_N][4], const Fragments &f) {
    u32 a[MMAS_M][4];
#pragma unroll
    for (int i = 0; i < MMAS_M; ++i)
#pragma unroll
        for (int e = 0; e < 4; ++e) a[i][e] = as_multiplied(f.a[i][e]);
#pragma unroll
    for (int j = 0; j < MMAS_N; ++j) {
        const u32 b[2] = {as_multiplied(f.b[j / 2][j % 2 * 2]), as_multiplied(f.b[j / 2][j % 2 * 2 + 1])};
#pragma unroll
        for (int i = 0; i < MMAS_M; ++i) MULTIPLY(sums[i][j], a[i], b);
    }
}

// The lines of `count` that share `share` of LOAD_SLICES has.
#define LINES_OF(slice, count) ((count) * (slice) / LOAD_SLICES)

// A stage is asked for in so many shares, one in each step but the last, so that addresses are made while sums are.
constexpr int LOAD_SLICES = MMA_STEPS > 2 ? MMA_STEPS - 1 : 1;

// Adds the products of `count` blocks of the reduction from number `first` on. `loader.load<share>(stage, number)`
// starts a share of the copies of one block into a stage, zeros where there is nothing, as in block `loader.blocks`:
// asking for that one behind the last keeps branches out of the loop. `loader.prepare(number)`, with a barrier behind it,
// comes before the first share of a block.
template <int SLICE, class Loader>
FUNCTION void load_slices(Loader &loader, u8 *stage, int number) {
    loader.template load<SLICE>(stage, number);
    if constexpr (SLICE + 1 < LOAD_SLICES) load_slices<SLICE + 1>(loader, stage, number);
}

template <class Loader>
FUNCTION void load_slice(Loader &loader, int slice, u8 *stage, int number) {
    if (slice == 0) loader.template load<0>(stage, number);
    if constexpr (LOAD_SLICES > 1)
        if (slice == 1) loader.template load<1>(stage, number);
    if constexpr (LOAD_SLICES > 2)
        if (slice == 2) loader.template load<2>(stage, number);
}

template <bool A_MN_MAJOR, bool B_MN_MAJOR, class Loader>
FUNCTION void accumulate(SUM (&sums)[MMAS_M][MMAS_N][4], Loader &loader, u8 *stages, int first, int count) {
    const int warp = threadIdx.x / 32, warp_m = warp / WARPS_N * WM, warp_n = warp % WARPS_N * WN;
    constexpr bool words_a = A_MN_MAJOR && IS_TF32, words_b = B_MN_MAJOR && IS_TF32;
    const LaneOffset lane_a = operand_offset<A_MN_MAJOR, A_MN_MAJOR ? CHUNKS_M : CHUNKS_K, true>(warp_m);
    const LaneOffset lane_b = operand_offset<B_MN_MAJOR, B_MN_MAJOR ? CHUNKS_N : CHUNKS_K, false>(warp_n);
    const u32 base = smem_address(stages);

    auto read = [&](Fragments &f, int stage, int step) {
#pragma unroll
        for (int i = 0; i < MMAS_M; ++i) {
            if constexpr (words_a)
                read_words<CHUNKS_M, true>(f.a[i], lane_a, stages + stage, i, step);
            else
                read_16<A_MN_MAJOR, A_MN_MAJOR ? CHUNKS_M : CHUNKS_K>(f.a[i], lane_a, base + stage, i, step);
        }
#pragma unroll
        for (int j = 0; j < MMAS_N / 2; ++j) {
            if constexpr (words_b)
                read_words<CHUNKS_N, false>(f.b[j], lane_b, stages + stage + A_BYTES, j, step);
            else
                read_16<B_MN_MAJOR, B_MN_MAJOR ? CHUNKS_N : CHUNKS_K>(f.b[j], lane_b, base + stage + A_BYTES, j, step);
        }
    };

    auto number = [&](int block_number) { return block_number < count ? first + block_number : (int)loader.blocks; };
#pragma unroll
    for (int s = 0; s < STAGES - 1; ++s) {
        if constexpr (Loader::IS_PREPARED) {
            loader.prepare(number(s));
            __syncthreads();
        }
        load_slices<0>(loader, stages + s * STAGE_BYTES, number(s));
        cp_async_commit();
    }
    if constexpr (Loader::IS_PREPARED) loader.prepare(number(STAGES - 1));
    cp_async_wait<STAGES - 2>();
    __syncthreads();

    Fragments fragments[FRAGMENT_BUFFERS];  // with two, those of the next step are read while this one's are multiplied
    if constexpr (FRAGMENT_BUFFERS == 2) read(fragments[0], 0, 0);
    int reading = 0, writing = (STAGES - 1) * STAGE_BYTES;
    for (int i = 0; i < count; ++i) {
#pragma unroll
        for (int step = 0; step < MMA_STEPS; ++step) {
            if constexpr (FRAGMENT_BUFFERS == 1) read(fragments[0], reading, step);
            if (step == MMA_STEPS - 1) {  // all have read this stage: it may be filled again from here on
                cp_async_wait<STAGES - 2>();
                __syncthreads();
                reading = reading == (STAGES - 1) * STAGE_BYTES ? 0 : reading + STAGE_BYTES;
            }
            if constexpr (FRAGMENT_BUFFERS == 2) read(fragments[(step + 1) % 2], reading, (step + 1) % MMA_STEPS);
            if (step < LOAD_SLICES) load_slice(loader, step, stages + writing, number(i + STAGES - 1));
            if constexpr (Loader::IS_PREPARED)
                if (step == 0) loader.prepare(number(i + STAGES));
            if (step == LOAD_SLICES - 1) {
                cp_async_commit();
                writing = writing == (STAGES - 1) * STAGE_BYTES ? 0 : writing + STAGE_BYTES;
            }
            multiply(sums, fragments[FRAGMENT_BUFFERS == 2 ? step % 2 : 0]);
        }
    }
    cp_async_wait<0>();
}


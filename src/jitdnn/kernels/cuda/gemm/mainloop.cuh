// The mainloop of a matrix product on the tensor cores: a thread block sums a tile of BM x BN, BK elements of K at a
// time, out of a ring of STAGES buffers in shared memory that asynchronous copies fill.
//
//     tile of a thread block                stages in shared memory (STAGE_BYTES each)
//
//              BN                            0                    A_BYTES              STAGE_BYTES
//       +-------+-------+                    +--------------------+--------------------+
//       | WM    |       |  ^         stage 0 | A: BM x BK         | B: BN x BK         |   multiplied now
//       |  x WN |       |  |                 +--------------------+--------------------+
//       +-------+-------+  BM        stage 1 |                    |                    |   copies in flight
//       |       |       |  |                 +--------------------+--------------------+
//       |       |       |  v         stage 2 |                    |                    |   copies in flight
//       +-------+-------+                    +--------------------+--------------------+
//
//     A warp has WM x WN of the tile: MMAS_M x MMAS_N products of 16 x 8, in MMA_STEPS steps of 32 bytes along K.
//
// An operand is K-major in its stage (a row is BK_BYTES of one row or column of the tile) or MN-major (a row is one
// element of K, for all rows or columns of the tile). Rows consist of chunks of 16 bytes, stored at `chunk ^
// xor_swizzle(row)`: so the eight rows that ldmatrix reads at once are in different banks.
//
// The text of a kernel: shape.cuh, mainloop.cuh, tile_scheduler.cuh, copy.cuh, epilogue.cuh, split_k.cuh, store.cuh, the
// functions of its epilogue, and then fprop_dgrad.cu or wgrad.cu, with a Loader and the kernels. Macros that
// gemm/code.py defines:
//
//     macro              unit        meaning
//     DTYPE, RESULT      type        of the operands' elements, and of the results'
//     DTYPE_IS_INTEGER   0 or 1      whether DTYPE is i8
//     SUM                type        of a sum: f32, or i32 for i8
//     REAL               type        of alpha times a sum: f32, or f64 for i8
//     MULTIPLY, PACK     function    the mma instruction; two REAL rounded to one word of half precision
//     BM, BN             elements    the tile of a thread block
//     BK_BYTES           bytes       of K in a stage
//     WM, WN             elements    the tile of a warp
//     STAGES             buffers     of the ring
//     FRAGMENT_BUFFERS   buffers     2: fragments of the next step are read while this one's are multiplied
//     RESIDENT           blocks      that a multiprocessor shall hold at a time
//     IS_SPLIT           0 or 1      whether tiles are split along K
//     INDEX              type        of offsets into tensors

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

// What a row of CHUNKS chunks XORs to the number of a chunk: eight neighbouring rows then meet all eight groups of
// four banks.
template <int CHUNKS>
FUNCTION constexpr int xor_swizzle(int row) {
    static_assert(CHUNKS % 8 == 0 || CHUNKS == 12 || CHUNKS == 4 || CHUNKS == 2, "an exchange stays in its row");
    if constexpr (CHUNKS % 8 == 0)
        return row & 7;
    else if constexpr (CHUNKS == 12)  // every second row begins 16 banks further on
        return row / 2 & 3;
    else
        return row / (8 / CHUNKS) & (CHUNKS - 1);
}

// The byte of an operand in its stage at which a chunk begins.
template <int CHUNKS>
FUNCTION int position(int row, int chunk) {
    return (row * CHUNKS + (chunk ^ xor_swizzle<CHUNKS>(row))) * 16;
}

// The same for row `first + line * STEP`: the rows that one thread copies.
template <int CHUNKS, int STEP>
FUNCTION int position_of_line(int first, int chunk, int line) {
    if constexpr (STEP % 8 == 0)  // all have the same XOR
        return position<CHUNKS>(first, chunk) + line * (STEP * CHUNKS * 16);
    else
        return position<CHUNKS>(first + line * STEP, chunk);
}

// What a lane reads of an operand, for the first mma step and the first 16 rows (or columns) of its warp, in bytes.
struct LaneOffset {
    u32 line;   // to its row in the stage
    u32 chunk;  // from there to its chunk, swizzled
};

template <bool MN_MAJOR, int CHUNKS, bool IS_A>
FUNCTION LaneOffset lane_offset(int first) {
    const int lane = threadIdx.x % 32;
    int row = lane % 16, chunk = lane / 16;       // 16 rows, then the next 8 elements of K
    if (IS_A == MN_MAJOR) {                         // 8 rows, the next 8 elements of K, then the other 8 rows
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

// The same for MN-major elements of 4 bytes, which ldmatrix cannot transpose. A lane reads the elements of rows
// (columns) g and g + 8 at t and t + 4 of K, with g = lane / 4 and t = lane % 4.
template <int CHUNKS>
FUNCTION LaneOffset lane_offset_of_words(int first) {
    const int g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
    return {(u32)(t * CHUNKS * 16 + g % 4 * 4), (u32)(((first + g) / 4 ^ xor_swizzle<CHUNKS>(t)) * 16)};
}

template <int CHUNKS, bool IS_A>
FUNCTION void read_words(u32 (&r)[4], const LaneOffset &lane, const u8 *operand, int number, int step) {
    constexpr int next = xor_swizzle<CHUNKS>(4);  // the XOR of rows four further down, relative to this one's
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

// The first row, of the `count` that a thread copies of an operand, in slice `slice` of LOAD_SLICES.
#define LINES_OF(slice, count) ((count) * (slice) / LOAD_SLICES)

// The copies into a stage are issued in so many slices, one in each mma step but the last, so that their addresses are
// computed while the tensor cores work.
constexpr int LOAD_SLICES = MMA_STEPS > 2 ? MMA_STEPS - 1 : 1;

// Issues all slices of the copies of block `number` of K (BK elements) into a stage. `loader.load<slice>(stage,
// number)` issues one; it fills the stage with zeros where the operands have nothing, as in block `loader.blocks()`,
// the one behind the last. If IS_PREPARED, `loader.prepare(number)` comes before the first slice, with a barrier
// between them.
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

// The mainloop: adds the products of `count` blocks of K from block `first` on. Behind the last block it loads zeros,
// which keeps branches out of the loop.
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

    auto number = [&](int block_number) { return block_number < count ? first + block_number : loader.blocks(); };
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

    Fragments fragments[FRAGMENT_BUFFERS];  // of this step, and with two buffers of the next
    if constexpr (FRAGMENT_BUFFERS == 2) read(fragments[0], 0, 0);
    int reading = 0, writing = (STAGES - 1) * STAGE_BYTES;
    for (int i = 0; i < count; ++i) {
#pragma unroll
        for (int step = 0; step < MMA_STEPS; ++step) {
            if constexpr (FRAGMENT_BUFFERS == 1) read(fragments[0], reading, step);
            if (step == MMA_STEPS - 1) {  // behind the barrier all warps have read this stage: it may be filled again
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


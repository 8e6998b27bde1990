// The stages of a mainloop in shared memory: their sizes, and where a chunk of an operand lies.

#define METHOD __device__ __forceinline__

constexpr int ELEMENT_BYTES = sizeof(DTYPE);
constexpr int CHUNK = 16 / ELEMENT_BYTES;  // elements
constexpr int BK = BK_BYTES / ELEMENT_BYTES;
constexpr int WARPS_N = BN / WN;
constexpr int BLOCK_THREADS = BM / WM * WARPS_N * 32;  // threads
constexpr int MMAS_M = WM / 16, MMAS_N = WN / 8;   // products of 16 x 8, or as many sums by multiply-adds
constexpr int STEPS = BK_BYTES / (IS_FMA ? 16 : 32);  // of a stage
constexpr int CHUNKS_K = BK_BYTES / 16, CHUNKS_M = BM / CHUNK, CHUNKS_N = BN / CHUNK;
constexpr int A_BYTES = BM * BK_BYTES, STAGE_BYTES = (BM + BN) * BK_BYTES;
constexpr bool IS_TF32 = ELEMENT_BYTES == 4;

// What a row of CHUNKS chunks XORs to the number of a chunk: eight neighbouring rows then meet all eight groups of
// four banks.
template <int CHUNKS>
FUNCTION constexpr int xor_swizzle(int row) {
    static_assert(CHUNKS % 8 == 0 || CHUNKS == 12 || CHUNKS == 4 || CHUNKS == 2, "an exchange stays in its row");
    if constexpr (IS_FMA && CHUNKS >= 16)  // lanes read neighbouring chunks of one row
        return 0;
    else if constexpr (CHUNKS % 8 == 0)
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

// The mainloop of a matrix product, on the tensor cores or by multiply-adds: a thread block sums a tile of BM x BN, BK elements of K at a
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
//     A warp has WM x WN of the tile: MMAS_M x MMAS_N products of 16 x 8, in STEPS steps of 32 bytes along K (mma.cuh); or
//     as many sums by multiply-adds, in steps of 16 bytes (fma.cuh).
//
// An operand is K-major in its stage (a row is BK_BYTES of one row or column of the tile) or MN-major (a row is one
// element of K, for all rows or columns of the tile). Rows consist of chunks of 16 bytes, stored at `chunk ^
// xor_swizzle(row)`: so the eight rows that ldmatrix reads at once are in different banks.
//
// The text of a kernel: shape.cuh, stages.cuh, mainloop.cuh, mma.cuh or fma.cuh, which have the loop over K itself,
// tile_scheduler.cuh, copy.cuh, epilogue.cuh, split_k.cuh, store.cuh, the functions of its epilogue, and then
// fprop_dgrad.cu or wgrad.cu, with a Loader and the kernels. Macros that gemm/code.py defines:
//
//     macro              unit        meaning
//     DTYPE, RESULT      type        of the operands' elements, and of the results'
//     DTYPE_IS_INTEGER   0 or 1      whether DTYPE is i8
//     SUM                type        of a sum: f32, or i32 for i8
//     REAL               type        of alpha times a sum: f32, or f64 for i8
//     IS_FMA             0 or 1      whether products are multiply-adds of f32, not of the tensor cores
//     A_MN_MAJOR         0 or 1      whether A is MN-major; B_MN_MAJOR: whether B is
//     MULTIPLY, PACK     function    the mma instruction; two REAL rounded to one word of half precision
//     BM, BN             elements    the tile of a thread block
//     BK_BYTES           bytes       of K in a stage
//     WM, WN             elements    the tile of a warp
//     STAGES             buffers     of the ring
//     FRAGMENT_BUFFERS   buffers     2: fragments of the next step are read while this one's are multiplied
//     RESIDENT           blocks      that a multiprocessor shall hold at a time
//     IS_SPLIT           0 or 1      whether tiles are split along K
//     INDEX              type        of offsets into tensors

// The first row, of the `count` that a thread copies of an operand, in slice `slice` of LOAD_SLICES.
#define LINES_OF(slice, count) ((count) * (slice) / LOAD_SLICES)

// The copies into a stage are issued in so many slices, one in each step but the last, so that their addresses are
// computed while products are made.
constexpr int LOAD_SLICES = STEPS > 3 ? 3 : STEPS > 2 ? 2 : 1;

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

// The first STAGES - 1 copies, of blocks number(0), number(1) and so on; behind it the first is there.
template <class Loader, class Number>
FUNCTION void fill_ring(Loader &loader, u8 *stages, Number number) {
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
}

// The product of a step by warpgroups (sm_90a), in the place of `product.cuh`: all weights of a thread block stay in shared
// memory, and the states go from memory into the registers that wgmma takes them from.
//
// A slab is 64 bytes of K, two products along K. A lane reads the same quarter of its rows, as in `product.cuh`: word e of quarter q
// is operand q of chunk e, so that of 64 bytes of a column of the weights chunk e holds the words e of the quarters, and
// lies where the swizzle of 64 bytes wants it (`pack_weights`).
//
// Warpgroups share the rows, ROW_GROUPS of 64, and the slabs, K_GROUPS in turns, of which each multiplies TOGETHER between two
// waits: what they find is added up in order where sums are read. COLUMNS is a multiple of 32.

#define WARPS (4 * ROW_GROUPS * K_GROUPS)
#define BLOCK (32 * WARPS)
#define ROWS (64 * ROW_GROUPS)
#define LANE_ROWS 2
#define LANE_ROW(r) (threadIdx.x / 128 % ROW_GROUPS * 64 + threadIdx.x / 32 % 4 * 16 + threadIdx.x % 32 / 4 + 8 * (r))
#define ROW_BYTES_AT (threadIdx.x % 4 * 16)
#define SUMS_PITCH (COLUMNS + 8)  // four rows of pairs meet no bank of each other
#define PARTIAL 0                 // numbers of sums beside those that are read
#define AHEAD (2 * TOGETHER)      // slabs of a warpgroup that are asked for

struct Weights {
    u8 *shared;
    const u8 *memory;
    int slabs, resident, tiles;  // `resident`: rounded up to a multiple of TOGETHER * K_GROUPS by slabs of 0
};

FUNCTION void keep_weights(const Weights &w) {
    const int chunks = w.resident * COLUMNS * 4;
    for (int n = threadIdx.x; n < chunks; n += BLOCK) *(uint4 *)(w.shared + 16 * n) = load16(w.memory + 16 * (i64)n);
    async_proxy_fence();
}

template <bool aligned>
FUNCTION uint4 load_states(const u8 *at) {
    if (aligned) return load16_shared_cache(at);
    const u32 *words = (const u32 *)at;
    return {words[0], words[1], words[2], words[3]};
}

#if TF32
#define MULTIPLY wgmma_a_tf32<false>
FUNCTION u32 operand(u32 word) { return to_tf32(__uint_as_float(word)); }
#else
#define MULTIPLY JOIN(wgmma_a_, STATE)<false>
// A register of its own, filled before the products begin: else the loads behind them would write to their operands, and ptxas lets
// each product end before the next begins.
FUNCTION u32 operand(u32 word) { return in_own_register(word); }
#endif

template <bool aligned>
FUNCTION void warpgroup_sums(const Weights &w, const u8 *const (&rows)[2], f32 (&sums)[COLUMNS / 2]) {
    const int begin = threadIdx.x / 128 / ROW_GROUPS;
    uint4 ahead[AHEAD][2];
    auto fetch = [&](int d, int slab) {
#pragma unroll
        for (int r = 0; r < 2; ++r)
            ahead[d][r] = slab < w.slabs ? load_states<aligned>(rows[r] + (i64)slab * 64) : uint4{0, 0, 0, 0};
    };
#pragma unroll
    for (int d = 0; d < AHEAD; ++d) fetch(d, begin + d * K_GROUPS);
#pragma unroll
    for (int n = 0; n < COLUMNS / 2; ++n) sums[n] = 0;
    for (int first = begin; first < w.resident; first += AHEAD * K_GROUPS) {
#pragma unroll
        for (int half = 0; half < AHEAD; half += TOGETHER) {
            if (first + half * K_GROUPS >= w.resident) break;
            u32 a[TOGETHER][2][4];
#pragma unroll
            for (int d = 0; d < TOGETHER; ++d) {
                const uint4 upper = ahead[half + d][0], lower = ahead[half + d][1];
                a[d][0][0] = operand(upper.x), a[d][0][1] = operand(lower.x);
                a[d][0][2] = operand(upper.y), a[d][0][3] = operand(lower.y);
                a[d][1][0] = operand(upper.z), a[d][1][1] = operand(lower.z);
                a[d][1][2] = operand(upper.w), a[d][1][3] = operand(lower.w);
            }
            wgmma_fence();
#pragma unroll
            for (int d = 0; d < TOGETHER; ++d) {
                const u32 tile = smem_address(w.shared) + (first + (half + d) * K_GROUPS) * COLUMNS * 64;
#pragma unroll
                for (int h = 0; h < 2; ++h) MULTIPLY(sums, a[d][h], wgmma_descriptor(tile + 32 * h, 16, 64), true);
            }
            wgmma_commit();
#pragma unroll
            for (int d = 0; d < TOGETHER; ++d) fetch(half + d, first + (AHEAD + half + d) * K_GROUPS);
            wgmma_wait<0>();
            wgmma_fence_operand(sums);
        }
    }
}

// Of ROWS rows of the states times all columns. A barrier must come before the next product.
FUNCTION void product(const Weights &w, const u8 *const (&rows)[2], bool aligned, int most, REAL *partial, REAL *sums) {
    const int part = threadIdx.x / 128 / ROW_GROUPS;
    f32 own[COLUMNS / 2];
    if (aligned) warpgroup_sums<true>(w, rows, own);
    else warpgroup_sums<false>(w, rows, own);
#pragma unroll
    for (int r = 0; r < 2; ++r) {
        f32 *to = sums + (part * ROWS + (int)LANE_ROW(r)) * SUMS_PITCH + threadIdx.x % 4 * 2;
#pragma unroll
        for (int j = 0; j < COLUMNS / 8; ++j) *(float2 *)(to + 8 * j) = {own[4 * j + 2 * r], own[4 * j + 2 * r + 1]};
    }
    __syncthreads();
}

FUNCTION REAL sum_at(const Weights &w, const REAL *sums, int row, int column) {
    REAL sum = sums[row * SUMS_PITCH + column];
#pragma unroll
    for (int part = 1; part < K_GROUPS; ++part) sum += sums[(part * ROWS + row) * SUMS_PITCH + column];
    return sum;
}

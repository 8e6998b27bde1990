// The product of a step: states of up to 16 * MT sequences times the weights of a thread block's columns.
//
// A slab is 64 bytes of K. Weights lie packed by [slab][tile of 8 columns][column][slab's numbers], so that
// the 16 bytes of lane l of a tile are the l-th: column l / 4, quarter l % 4. A lane reads the same quarter of the rows
// l / 4 and l / 4 + 8 of the states. Words 2 h and 2 h + 1 of these are the operands of the h-th mma (m16n8k8, of halves m16n8k16): any order of K
// will do if both operands have it. The first slabs stay in shared memory, the others are read from memory at each step.
//
// Warps take slabs in turns, so that no number of the states is read twice by a block; their sums meet in shared memory and
// are added in order. With TENSOR products are those of tf32: PASSES 3 splits numbers into two each and leaves out the
// product of the lower parts, PASSES 2 splits the states alone (the weights are of half precision). STATE is what states and
// weights are held in: REAL, or f16 or bf16, whose products need no splitting (PASSES 1); nor do those of f32 where they may be rounded
// (TF32).

#ifndef WARPS
#define WARPS (MT == 1 ? 16 : 8)
#endif
#define BLOCK (32 * WARPS)
#define NT 4        // tiles at a time
#define PITCH 40    // of a row of sums: 32 columns, and none meets the bank of another
#define ROWS (16 * MT)
#define LANE_ROWS (2 * MT)
#define LANE_ROW(r) (threadIdx.x % 32 / 4 + 8 * (r))
#define ROW_BYTES_AT (TENSOR * (threadIdx.x % 4) * 16)
#define PARTIAL (WARPS * ROWS * PITCH)
#if TENSOR
#define COLUMN(quarter, c) (2 * (quarter) + (c))
#else
#define COLUMN(quarter, c) ((quarter) + 4 * (c))
#endif

struct Weights {
    u8 *shared;
    const u8 *memory;
    int slabs, resident, tiles;
};

FUNCTION const u8 *slab_at(const Weights &w, int slab) {
    return (slab < w.resident ? w.shared : w.memory) + (i64)slab * w.tiles * 512;
}

// Copies the slabs that stay.
FUNCTION void keep_weights(const Weights &w) {
    const int chunks = w.resident * w.tiles * 32;
    for (int n = threadIdx.x; n < chunks; n += BLOCK)
        *(uint4 *)(w.shared + 16 * n) = load16(w.memory + 16 * (i64)n);
}

// 16 bytes of the states, which may lie at any address that is a multiple of a number's size.
template <bool aligned>
FUNCTION uint4 load_states(const u8 *at) {
    if (aligned) return load16_shared_cache(at);
    const u32 *words = (const u32 *)at;
    return {words[0], words[1], words[2], words[3]};
}

#if TENSOR
#if TF32
#define MULTIPLY mma_tf32
FUNCTION void split(uint4 v, u32 (&high)[4], u32 (&low)[4]) {
    high[0] = to_tf32(__uint_as_float(v.x)), high[1] = to_tf32(__uint_as_float(v.y));
    high[2] = to_tf32(__uint_as_float(v.z)), high[3] = to_tf32(__uint_as_float(v.w));
}
#elif PASSES == 1
#define MULTIPLY JOIN(mma_, STATE)
FUNCTION void split(uint4 v, u32 (&high)[4], u32 (&low)[4]) { high[0] = v.x, high[1] = v.y, high[2] = v.z, high[3] = v.w; }
#else
#define MULTIPLY mma_tf32
FUNCTION void split(uint4 v, u32 (&high)[4], u32 (&low)[4]) {
    const u32 words[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
    for (int j = 0; j < 4; ++j) {
        high[j] = to_tf32(__uint_as_float(words[j]));
        low[j] = to_tf32(__uint_as_float(words[j]) - __uint_as_float(high[j]));
    }
}
#endif
#define DEPTH (MT == 4 ? 2 : 4)

// rows: of the states, the lane's, at its quarter.
template <bool aligned>
FUNCTION void tile_sums(const Weights &w, const u8 *const (&rows)[2 * MT], int first, int count, REAL (&sums)[MT][NT][4]) {
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    uint4 ahead[DEPTH][2 * MT];
#pragma unroll
    for (int d = 0; d < DEPTH; ++d)
        if (warp + d * WARPS < w.slabs)
#pragma unroll
            for (int r = 0; r < 2 * MT; ++r) ahead[d][r] = load_states<aligned>(rows[r] + (i64)(warp + d * WARPS) * 64);
    for (int begin = warp; begin < w.slabs; begin += WARPS * DEPTH)
#pragma unroll
        for (int d = 0; d < DEPTH; ++d) {
            const int slab = begin + d * WARPS, next = slab + WARPS * DEPTH;
            if (slab < w.slabs) {
                const u8 *tiles = slab_at(w, slab) + (first * 32 + lane) * 16;
                u32 high[NT][4], low[NT][4];
#pragma unroll
                for (int j = 0; j < NT; ++j)
                    if (j < count) split(*(const uint4 *)(tiles + j * 512), high[j], low[j]);
#pragma unroll
                for (int m = 0; m < MT; ++m) {
                    u32 upper[2][4], lower[2][4];
                    split(ahead[d][2 * m], upper[0], lower[0]);
                    split(ahead[d][2 * m + 1], upper[1], lower[1]);
#pragma unroll
                    for (int h = 0; h < 2; ++h) {
                        const u32 a[4] = {upper[0][2 * h], upper[1][2 * h], upper[0][2 * h + 1], upper[1][2 * h + 1]};
#pragma unroll
                        for (int j = 0; j < NT; ++j)
                            if (j < count) {
                                const u32 b[2] = {high[j][2 * h], high[j][2 * h + 1]};
#if PASSES == 3
                                const u32 e[2] = {low[j][2 * h], low[j][2 * h + 1]};
                                MULTIPLY(sums[m][j], a, e);
#endif
#if PASSES > 1
                                const u32 c[4] = {lower[0][2 * h], lower[1][2 * h], lower[0][2 * h + 1],
                                                  lower[1][2 * h + 1]};
                                MULTIPLY(sums[m][j], c, b);
#endif
                                MULTIPLY(sums[m][j], a, b);
                            }
                    }
                }
                if (next < w.slabs)
#pragma unroll
                    for (int r = 0; r < 2 * MT; ++r) ahead[d][r] = load_states<aligned>(rows[r] + (i64)next * 64);
            }
        }
}
#else
union Chunk {
    uint4 bytes;
    REAL numbers[16 / sizeof(REAL)];
};

// rows: of the states, the lane's. Lanes begin at different quarters of a slab, so that fewer meet at a bank.
template <bool aligned>
FUNCTION void tile_sums(const Weights &w, const u8 *const (&rows)[2 * MT], int first, int count, REAL (&sums)[MT][NT][4]) {
    const int warp = threadIdx.x / 32, quarter = threadIdx.x % 4;
    for (int slab = warp; slab < w.slabs; slab += WARPS) {
        const u8 *tiles = slab_at(w, slab) + first * 512;
        for (int turn = 0; turn < 4; ++turn) {
            const int at = (turn ^ (quarter >> 1)) * 16;
            Chunk a[2 * MT];
#pragma unroll
            for (int r = 0; r < 2 * MT; ++r) a[r].bytes = load_states<aligned>(rows[r] + (i64)slab * 64 + at);
#pragma unroll
            for (int j = 0; j < NT; ++j)
                if (j < count)
#pragma unroll
                    for (int c = 0; c < 2; ++c) {
                        Chunk b;
                        b.bytes = *(const uint4 *)(tiles + j * 512 + COLUMN(quarter, c) * 64 + at);
#pragma unroll
                        for (int r = 0; r < 2 * MT; ++r)
#pragma unroll
                            for (int k = 0; k < 16 / (int)sizeof(REAL); ++k)
                                sums[r / 2][j][2 * (r % 2) + c] += a[r].numbers[k] * b.numbers[k];
                    }
        }
    }
}
#endif

// Of ROWS rows of the states times all columns: `sums` gets those of the first `most` rows, each of 8 * tiles numbers.
// `partial`: WARPS * ROWS * PITCH numbers of shared memory. A barrier must come before the next product.
FUNCTION void product(const Weights &w, const u8 *const (&rows)[2 * MT], bool aligned, int most, REAL *partial, REAL *sums) {
    const int warp = threadIdx.x / 32, row = threadIdx.x % 32 / 4, quarter = threadIdx.x % 4;
    const int pitch = 8 * w.tiles;
    for (int first = 0; first < w.tiles; first += NT) {
        const int count = w.tiles - first < NT ? w.tiles - first : NT;
        REAL own[MT][NT][4] = {};
        if (aligned) tile_sums<true>(w, rows, first, count, own);
        else tile_sums<false>(w, rows, first, count, own);
#pragma unroll
        for (int m = 0; m < MT; ++m)
#pragma unroll
            for (int j = 0; j < NT; ++j)
                if (j < count)
#pragma unroll
                    for (int e = 0; e < 4; ++e)
                        partial[((warp * MT + m) * 16 + row + 8 * (e / 2)) * PITCH + j * 8 + COLUMN(quarter, e % 2)] =
                            own[m][j][e];
        __syncthreads();
        for (int n = threadIdx.x; n < most * 32; n += BLOCK) {
            const REAL *at = partial + n / 32 * PITCH + n % 32;
            if (n % 32 >= 8 * count) continue;
            REAL sum = at[0];
#pragma unroll
            for (int part = 1; part < WARPS; ++part) sum += at[part * ROWS * PITCH];
            sums[n / 32 * pitch + first * 8 + n % 32] = sum;
        }
        __syncthreads();
    }
}

FUNCTION REAL sum_at(const Weights &w, const REAL *sums, int row, int column) { return sums[row * 8 * w.tiles + column]; }

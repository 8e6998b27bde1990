// What cluster_forward.cu and cluster_backward.cu have in common: a slab of 16 rows times a tile of 8 columns. The two halves of
// a slab have sums of their own, so that half as many products wait for each other.
struct Sums {
    REAL halves[2][4];
};
FUNCTION REAL sum_of(const Sums &sums, int n) { return sums.halves[0][n] + sums.halves[1][n]; }

FUNCTION void multiply_parts(Sums &sums, const u32 (&upper)[2][4], const u32 (&lower)[2][4], const u32 (&high)[4],
                             const u32 (&low)[4]) {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
        const u32 a[4] = {upper[0][2 * h], upper[1][2 * h], upper[0][2 * h + 1], upper[1][2 * h + 1]};
        const u32 b[2] = {high[2 * h], high[2 * h + 1]};
#if PASSES == 3
        const u32 c[4] = {lower[0][2 * h], lower[1][2 * h], lower[0][2 * h + 1], lower[1][2 * h + 1]};
        const u32 e[2] = {low[2 * h], low[2 * h + 1]};
        MULTIPLY(sums.halves[h], a, e);
        MULTIPLY(sums.halves[h], c, b);
#endif
        MULTIPLY(sums.halves[h], a, b);
    }
}

// Adds a warp's products of all slabs: `from` is where the lane's part of its upper row begins, in rows of `pitch` bytes.
FUNCTION void multiply_slabs(Sums (&sums)[UNIT_TILES], const u8 *from, int pitch, const Weights &w) {
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
#pragma unroll 4
    for (int slab = 0; slab < w.slabs; ++slab) {
        u32 upper[2][4], lower[2][4];
        split(*(const uint4 *)(from + slab * 64), upper[0], lower[0]);
        split(*(const uint4 *)(from + 8 * pitch + slab * 64), upper[1], lower[1]);
#pragma unroll
        for (int j = 0; j < UNIT_TILES; ++j) {
            const int tile = warp * UNIT_TILES + j;
            if (tile >= w.tiles) break;
            u32 high[4], low[4];
            split(*(const uint4 *)(w.shared + (slab * w.tiles + tile) * 512 + lane * 16), high, low);
            multiply_parts(sums[j], upper, lower, high, low);
        }
    }
}

// Sequences of a step, and the row of the first of them; without tables where all sequences have all steps. From step -1 to `steps`.
struct Rows {
    Steps there;
    i64 steps, batch;
};
#if WHOLE
FUNCTION i64 count_of(const Rows &rows, i64 t) { return t >= 0 && t < rows.steps ? rows.batch : 0; }
FUNCTION i64 start_of(const Rows &rows, i64 t) { return t * rows.batch; }
#else
FUNCTION i64 count_of(const Rows &rows, i64 t) { return rows.there.counts[t]; }
FUNCTION i64 start_of(const Rows &rows, i64 t) { return rows.there.starts[t]; }
#endif

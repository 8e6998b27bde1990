// What finish_wide does, of an operand that the copy engine has brought (brought.cuh): threads read it in the order of their
// sums, and give each stage back. Macros: see finish_wide.cuh; there is one vector or one pair.

FUNCTION void finish_brought(Sums &sums, Consumer &consumer, const Tables &tables, const Work &work, int first_row,
                             REAL alpha EPILOGUE_PARAMETERS) {
    constexpr int eights = BROUGHT_COLUMNS / 8;
    const int lane = threadIdx.x % 32, warp = threadIdx.x % 128 / 32;
    const int rows_before = consumer.warpgroup / WARPGROUPS_N * ROWS * 64, across = consumer.warpgroup % WARPGROUPS_N;
    const int of_lane = across * WN + lane % 4 * 2, count = work.columns.count;
    const int channel = work.channel(of_lane, tables);
    f32 of_pixel[2 * ROWS][PIXELS + 1];
#pragma unroll
    for (int row = 0; row < 2 * ROWS; ++row) {
        const Pixel pixel(tables, work, first_row + row_of(row / 2, row % 2));
        const bool is_row = is_result(tables, work, first_row + row_of(row / 2, row % 2), pixel);
#pragma unroll
        for (int n = 0; n < PIXELS; ++n) of_pixel[row][n] = is_row ? LOAD_PIXEL(n) : 0;
    }
    const int stages = brought_stages(work);
#pragma unroll
    for (int stage = 0; stage < BROUGHT_STAGES; ++stage) {
        if (stage >= stages) break;
        consumer.wait_for_stage();
#pragma unroll
        for (int n = 0; n < BROUGHT_AT_ONCE; ++n) {
            const int box = stage * BROUGHT_AT_ONCE + n, first = box / WARPGROUPS_N * BROUGHT_COLUMNS;  // of the warpgroup
            if (box >= BROUGHT_BOXES || (WARPGROUPS_N > 1 && box % WARPGROUPS_N != across)) continue;
            const u32 from = consumer.ring.a(consumer.place.stage) + n * BROUGHT_BYTES + rows_before * BROUGHT_ROW;
#pragma unroll
            for (int pair = 0; pair < eights; pair += 2) {  // of eight columns
                f32 of_column[2][2][COLUMNS + 1];
#pragma unroll
                for (int j = 0; j < 2; ++j) {
                    const int column = first + 8 * (pair + j);
#pragma unroll
                    for (int of = 0; of < COLUMNS; ++of)
                        if (of_lane + column < count)
                            LOAD_COLUMNS(of, channel + column, of_column[j][0][of], of_column[j][1][of]);
                }
#pragma unroll
                for (int slab = 0; slab < ROWS; ++slab) {
                    u32 words[4] = {};  // of both rows of eight columns, then of the next eight
                    if constexpr (VECTORS > 0)
                        ldmatrix_x4(words, from + slab * 64 * BROUGHT_ROW +
                                               piece_place<BROUGHT_ROW>(warp * 16 + lane % 16, pair + lane / 16));
#pragma unroll
                    for (int half = 0; half < 2; ++half) {
                        const int row = 2 * slab + half;
                        u32 of_vector[1][2];
                        uint2 of_pair[1];
#pragma unroll
                        for (int j = 0; j < 2; ++j) {
                            of_vector[0][j] = words[2 * j + half];
                            if constexpr (PAIRS > 0)
                                of_pair[0] = shared_load8(
                                    from + piece_place<BROUGHT_ROW>(row_of(slab, half), 2 * (pair + j) + lane % 4 / 2) +
                                    lane % 2 * 8);
#pragma unroll
                            for (int e = 0; e < 2; ++e) {
                                SUM &sum = sums[slab][first / 2 + 4 * (pair + j) + 2 * half + e];
                                sum = kept((REAL)(alpha * FINISH_WIDE((REAL)sum, row, j, e)));
                            }
                        }
                    }
                }
            }
        }
        async_proxy_fence();
        __syncwarp();
        consumer.release(consumer.place.stage);
        consumer.place.advance(consumer.ring);
    }
}

// In the place of a piece of work's sums by halves: those of operands that are not finite, as halves of which they would
// not be what they are in f32, by multiply-adds.
FUNCTION void sum_exactly(Sums &sums, const Tables &tables, const Work &work, int warpgroup, const f32 *first,
                          const f32 *second) {
#if A_MN_MAJOR
    const int rows = (int)tables.rows, begin = work.first_block * BK;
    const int end = min(work.last_block * BK, (int)tables.phases[0].rows);
#else
    const int rows = (int)tables.phases[work.phase].rows, begin = work.first_block, end = work.last_block;
#endif
    const int lane = threadIdx.x % 32;
    f32 exact[ROWS * WN / 2];
#pragma unroll 1
    for (int number = 0; number < ROWS * WN / 2; ++number) {
        const int slab = number / (WN / 2), of_slab = number % (WN / 2);
        const int row = work.first_row + warpgroup / WARPGROUPS_N * ROWS * 64 + row_of(slab, of_slab / 2 % 2);
        const int column = warpgroup % WARPGROUPS_N * WN + of_slab / 4 * 8 + lane % 4 * 2 + of_slab % 2;
        const bool is_there = row < rows && work.columns.from(tables, column) > 0;
        exact[number] = is_there ? exact_sum(tables, work, row, column, first, second, tables.packs[0], tables.packs[1],
                                             begin, end)
                                 : 0.0f;
    }
#pragma unroll
    for (int slab = 0; slab < ROWS; ++slab)
#pragma unroll
        for (int i = 0; i < WN / 2; ++i) sums[slab][i] = exact[slab * (WN / 2) + i];
}

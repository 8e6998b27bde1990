// Results by plain multiply-adds, for operands that are not finite: as halves they would not be what they are in f32.

FUNCTION void compute_exactly(const Tables &tables, const DTYPE *first, const DTYPE *second,
                              RESULT *result EPILOGUE_PARAMETERS, SCALE alpha, SCALE beta) {
    const Pack &one = tables.packs[0], &other = tables.packs[1];
    for (i64 tile = blockIdx.x; tile < tables.works / tables.splits; tile += gridDim.x) {
        const Work work(tables, IS_CLUSTERED ? (int)(tile * tables.splits) : (int)tile);
        for (int at = threadIdx.x; at < BM * BN; at += BLOCK_THREADS) {
            const int row = work.first_row + at / BN, column = at % BN;
            const i64 place = row_place(tables, work, row);
            if (place == NO_PLACE || work.columns.from(tables, column) <= 0) continue;
            f32 value = exact_sum(tables, work, row, column, first, second, one, other);
            if constexpr (HAS_EPILOGUE) {
                const Pixel pixel(tables, work, row);
                value = FINISH(value, pixel, work.channel(column, tables));
            }
            value *= (f32)alpha;
            const i64 to = place + work.columns.place(tables, column);
            if (beta != 0) value += (f32)beta * LOAD(RESULT, result, to);
            STORE(RESULT, result, to, value);
        }
    }
}

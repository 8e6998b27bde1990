// An operand of the epilogue that lies as the results do, brought by the copy engine: behind the stages of a tile the thread
// that copies asks for the operand's boxes, of BM rows by BROUGHT_ROW bytes, as many at once as rows of A are long in a
// stage. They come while the products of this tile, and of those before it, run. See finish_brought.cuh.

constexpr int BROUGHT_COLUMNS = BROUGHT_ROW / RESULT_BYTES, BROUGHT_BYTES = BM * BROUGHT_ROW;  // of a box
constexpr int BROUGHT_BOXES = BN / BROUGHT_COLUMNS, BROUGHT_AT_ONCE = STAGE_ROW / BROUGHT_ROW;  // of a tile, of a stage
constexpr int BROUGHT_STAGES = (BROUGHT_BOXES + BROUGHT_AT_ONCE - 1) / BROUGHT_AT_ONCE;  // of a tile, at most
static_assert(WN % BROUGHT_COLUMNS == 0 && STAGE_ROW % BROUGHT_ROW == 0 && BROUGHT_COLUMNS % 16 == 0, "boxes are whole");

// Where the columns of a box begin in a tile: warpgroups side by side have boxes by turns.
FUNCTION constexpr int brought_column(int box) { return box % WARPGROUPS_N * WN + box / WARPGROUPS_N * BROUGHT_COLUMNS; }

// Stages of boxes that have columns of the result.
FUNCTION int brought_stages(const Work &work) {
    constexpr int columns = BROUGHT_AT_ONCE * BROUGHT_COLUMNS;
    return WARPGROUPS_N > 1 ? BROUGHT_STAGES : (work.columns.count + columns - 1) / columns;
}

// Asks for the boxes of a stage.
FUNCTION void bring(const Tables &tables, const Work &work, u32 to, u32 barrier, int stage) {
    const int first = stage * BROUGHT_AT_ONCE;
    mbarrier_arrive_expect(barrier, min(BROUGHT_AT_ONCE, BROUGHT_BOXES - first) * BROUGHT_BYTES);
#pragma unroll
    for (int n = 0; n < BROUGHT_AT_ONCE; ++n)
        if (first + n < BROUGHT_BOXES)
            tma_load_3d(to + n * BROUGHT_BYTES, tables.brought(), barrier, work.columns.first + brought_column(first + n),
                        work.group, work.first_row);
}

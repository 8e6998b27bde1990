// An epilogue whose operands lie as the results do, channels side by side, or have one number for each channel or each
// pixel: tables of them are brought by whole sectors, 32 columns at a time, and those of the next columns are on their way
// while these are used. What `convolution/warpgroup_gemm/wide.py` writes of the operands stands before this:
//
//     VECTORS, PAIRS    operands as the results, of 2 and of 4 bytes; PIXELS: one number a row; COLUMNS: one a column
//     VECTOR_ROW(n), PAIR_ROW(n)       where the row of a pixel begins, in elements
//     LOAD_VECTOR(n, at) ...           8 halves from there; pairs of f32; an f32 for each pixel or column
//     FINISH_WIDE(sum, row, j, e)      the result, of what is held in the arrays named below

constexpr int FINISH_GROUPS = WN / 32, THREAD_ROWS = 2 * ROWS;
// Vectors of 16 bytes on their way, of each thread: as many registers as results take that are on their way out.
constexpr int VECTORS_AHEAD = ROWS * WN > 192 ? 4 : 8;
constexpr int GROUPS_AHEAD_MOST = VECTORS ? VECTORS_AHEAD / (THREAD_ROWS * VECTORS) : 1;
constexpr int GROUPS_AHEAD = GROUPS_AHEAD_MOST < 1 ? 1 : GROUPS_AHEAD_MOST > FINISH_GROUPS ? FINISH_GROUPS : GROUPS_AHEAD_MOST;
static_assert(WN % 32 == 0, "columns come in groups of 32");
// Groups of columns whose numbers are on their way while one is computed, where there are registers for them.
constexpr int COLUMNS_AHEAD = COLUMNS > 1 || VECTORS + PAIRS > 0 ? 0 : 1;

FUNCTION void finish_wide(Sums &sums, const Tables &tables, const Work &work, int first_row, int first_column,
                          REAL alpha EPILOGUE_PARAMETERS) {
    const int lane = threadIdx.x % 4, count = work.columns.from(tables, first_column);
    const int channel = work.channel(first_column, tables);
    bool is_row[THREAD_ROWS];
    i64 vector_at[THREAD_ROWS][VECTORS + 1], pair_at[THREAD_ROWS][PAIRS + 1];
    f32 of_pixel[THREAD_ROWS][PIXELS + 1];
#pragma unroll
    for (int r = 0; r < THREAD_ROWS; ++r) {
        const int row = first_row + row_of(r / 2, r % 2);
        const Pixel pixel(tables, work, row);
        is_row[r] = is_result(tables, work, row, pixel);
#pragma unroll
        for (int n = 0; n < VECTORS; ++n) vector_at[r][n] = VECTOR_ROW(n) + channel + 8 * lane;
#pragma unroll
        for (int n = 0; n < PAIRS; ++n) pair_at[r][n] = PAIR_ROW(n) + channel + 2 * lane;
#pragma unroll
        for (int n = 0; n < PIXELS; ++n) of_pixel[r][n] = is_row[r] ? LOAD_PIXEL(n) : 0;
    }
    uint4 ahead[GROUPS_AHEAD][THREAD_ROWS][VECTORS + 1];
    auto bring = [&](int group) {
#pragma unroll
        for (int r = 0; r < THREAD_ROWS; ++r)
#pragma unroll
            for (int n = 0; n < VECTORS; ++n)
                if (is_row[r] && 32 * group + 8 * lane < count)
                    ahead[group % GROUPS_AHEAD][r][n] = LOAD_VECTOR(n, vector_at[r][n] + 32 * group);
    };
    f32 of_columns[COLUMNS_AHEAD + 1][4][2][COLUMNS + 1];
    auto load_columns = [&](int group) {
#pragma unroll
        for (int j = 0; j < 4; ++j) {
            const int column = 32 * group + 8 * j + 2 * lane;
            auto &own = of_columns[group % (COLUMNS_AHEAD + 1)][j];
#pragma unroll
            for (int n = 0; n < COLUMNS; ++n)
                if (group < FINISH_GROUPS && column < count) LOAD_COLUMNS(n, channel + column, own[0][n], own[1][n]);
        }
    };
#pragma unroll
    for (int group = 0; group < COLUMNS_AHEAD; ++group) load_columns(group);
#pragma unroll
    for (int group = 0; group < GROUPS_AHEAD; ++group) bring(group);
#pragma unroll
    for (int group = 0; group < FINISH_GROUPS; ++group) {
        load_columns(group + COLUMNS_AHEAD);
        const auto &of_column = of_columns[group % (COLUMNS_AHEAD + 1)];
#pragma unroll
        for (int r = 0; r < THREAD_ROWS; ++r) {
            u32 of_vector[VECTORS + 1][4];
#pragma unroll
            for (int n = 0; n < VECTORS; ++n) {
                const uint4 &words = ahead[group % GROUPS_AHEAD][r][n];
                of_vector[n][0] = words.x, of_vector[n][1] = words.y, of_vector[n][2] = words.z;
                of_vector[n][3] = words.w;
                transpose_of_four(of_vector[n]);
            }
#pragma unroll
            for (int j = 0; j < 4; ++j) {
                const int column = 32 * group + 8 * j;
                uint2 of_pair[PAIRS + 1];
#pragma unroll
                for (int n = 0; n < PAIRS; ++n)
                    if (is_row[r] && column + 2 * lane < count) of_pair[n] = LOAD_PAIR(n, pair_at[r][n] + column);
#pragma unroll
                for (int e = 0; e < 2; ++e) {
                    SUM &sum = sums[r / 2][4 * (4 * group + j) + 2 * (r % 2) + e];
                    sum = kept((REAL)(alpha * FINISH_WIDE((REAL)sum, r, j, e)));
                }
            }
        }
        if (group + GROUPS_AHEAD < FINISH_GROUPS) bring(group + GROUPS_AHEAD);
    }
}

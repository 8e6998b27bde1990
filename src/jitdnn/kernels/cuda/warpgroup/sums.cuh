// Sums by channel of the results of a fprop, in f32 before they are rounded, and of their squares. Every consumer adds up
// the columns of its tiles in a row of its own in the workspace, of reduce_partials every 64 rows of the result have one;
// reduce_sums adds the rows up. All in a fixed order:
//
//     channel_sums[row][sum, square][channel over all groups]

FUNCTION f32 *sums_row(const Tables &tables, u8 *workspace, i64 row) {
    return (f32 *)(workspace + tables.channel_sums) + row * 2 * tables.groups * tables.columns;
}

// Adds up four values over the eight lanes that hold the same columns: the sum and the sum of squares of one column, then
// those of the next. Lane l returns number l / 8, the same as lane l ^ 4.
FUNCTION f32 sum_over_rows(const f32 (&values)[4]) {
    const int lane = threadIdx.x % 32;
    f32 two[2];
#pragma unroll
    for (int n = 0; n < 2; ++n)
        two[n] = (lane & 16 ? values[2 + n] : values[n]) + shuffle_xor(lane & 16 ? values[n] : values[2 + n], 16);
    const f32 one = (lane & 8 ? two[1] : two[0]) + shuffle_xor(lane & 8 ? two[0] : two[1], 8);
    return one + shuffle_xor(one, 4);
}

#if !IS_SPLIT
constexpr int SCRATCH_BYTES = 4 * 2 * WN * 4;
static_assert(SCRATCH_BYTES <= RESULT_BUFFERS * BUFFER_BYTES, "sums of the four warps fit into the staging buffers");

// Which row of the workspace is that of this consumer.
FUNCTION int own_row(int warpgroup) { return blockIdx.x * WARPGROUPS + warpgroup; }

// Columns that this consumer has in no tile are zero.
FUNCTION void clear_sums(const Tables &tables, u8 *workspace, int warpgroup) {
    f32 *row = sums_row(tables, workspace, own_row(warpgroup));
    for (i64 n = threadIdx.x % 128; n < 2 * tables.groups * tables.columns; n += 128) row[n] = 0;
}

// Adds a tile's columns. `scratch`: the staging buffers, from which results may still be on their way.
FUNCTION void sum_columns(const Sums &sums, const Tables &tables, const Work &work, int first_row, int first_column,
                          u32 scratch, int warpgroup, u8 *workspace) {
    const int thread = threadIdx.x % 128, lane = thread % 32, warp = thread / 32;
    if (IS_RESULT_BOXES && thread == 0) tma_store_wait_read<0>();
    warpgroup_barrier(warpgroup + 1);
#pragma unroll
    for (int j = 0; j < WN / 8; ++j) {
        f32 values[4] = {};
#pragma unroll
        for (int slab = 0; slab < ROWS; ++slab)
#pragma unroll
            for (int half = 0; half < 2; ++half) {
                if (first_row + row_of(slab, half) >= tables.phases[0].rows) continue;
#pragma unroll
                for (int e = 0; e < 2; ++e) {
                    const f32 value = sums[slab][4 * j + 2 * half + e];
                    values[2 * e] += value, values[2 * e + 1] += value * value;
                }
            }
        const f32 found = sum_over_rows(values);
        const int column = 8 * j + lane % 4 * 2 + lane / 16, kind = lane / 8 % 2;
        if (!(lane & 4)) shared_store4(scratch + ((warp * 2 + kind) * WN + column) * 4, __float_as_uint(found));
    }
    warpgroup_barrier(warpgroup + 1);
    f32 *row = sums_row(tables, workspace, own_row(warpgroup));
#pragma unroll
    for (int n = thread; n < 2 * WN; n += 128) {
        const int kind = n / WN, column = first_column + n % WN;
        if (work.columns.from(tables, column) <= 0) continue;
        f32 total = 0;
#pragma unroll
        for (int of_warp = 0; of_warp < 4; ++of_warp)
            total += __uint_as_float(shared_load4(scratch + (of_warp * 2 * WN + n) * 4));
        row[kind * tables.groups * tables.columns + work.channel(column, tables)] += total;
    }
    warpgroup_barrier(warpgroup + 1);  // the buffers may be filled again
}
#else
// Of the 64 x 16 results of a thread block of reduce_partials, of which each thread has 2 x 2, 0 where there are none.
FUNCTION void sum_block(const f32 (&results)[4], const Tables &tables, const Work &work, int slab, int column,
                        bool is_there, u8 *workspace) {
    __shared__ f32 of_warps[16][16];  // by 4 pairs of columns: each warp's sum and square of both
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    f32 values[4];
#pragma unroll
    for (int e = 0; e < 2; ++e) {
        values[2 * e] = results[e] + results[2 + e];
        values[2 * e + 1] = results[e] * results[e] + results[2 + e] * results[2 + e];
    }
    const f32 found = sum_over_rows(values);
    if (!(lane & 4)) of_warps[warp][lane % 4 * 4 + lane / 8] = found;
    __syncthreads();
    // the first four lanes of each of the four warps that have 8 columns
    const int pair = threadIdx.x % 4, kind = threadIdx.x / 4 % 2, e = threadIdx.x / 8 % 2, first = threadIdx.x / 128 * 4;
    column += pair * 2 + e;
    if (!is_there || threadIdx.x % 128 >= 16 || work.columns.from(tables, column) <= 0) return;
    f32 total = 0;
#pragma unroll
    for (int n = 0; n < 4; ++n) total += of_warps[first + n][pair * 4 + e * 2 + kind];
    f32 *row = sums_row(tables, workspace, slab);
    row[kind * tables.groups * tables.columns + work.channel(column, tables)] = total;
}
#endif

// A thread block adds up eight columns of both kinds; 32 threads share one.
KERNEL(256)
void reduce_sums(TABLES(Tables, tables), const DTYPE *first, const DTYPE *second, RESULT *result EPILOGUE_PARAMETERS,
                 u8 *workspace, SCALE alpha, SCALE beta) {
    begin_launch();
    __shared__ f64 of_threads[32][8];
    const i64 channels = tables.groups * tables.columns, number = (i64)blockIdx.x * 8 + threadIdx.x % 8;
    const f32 *from = (const f32 *)(workspace + tables.channel_sums) + number;
    f64 total = 0;
    if (number < 2 * channels) {
#pragma unroll 4
        for (i64 row = threadIdx.x / 8; row < tables.sum_rows; row += 32) total += from[row * 2 * channels];
    }
    of_threads[threadIdx.x / 8][threadIdx.x % 8] = total;
    __syncthreads();
    if (threadIdx.x >= 8 || number >= 2 * channels) return;
    for (int n = 1; n < 32; ++n) total += of_threads[n][threadIdx.x];
    (number < channels ? channel_sums : channel_squares)[number % channels] = (f32)total;
}

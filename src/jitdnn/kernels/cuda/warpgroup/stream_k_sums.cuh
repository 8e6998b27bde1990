// The sums of parts of tiles: see stream_k.cuh.

constexpr int sums_ahead(int eights) {
    int most = 8;
    while (eights % most) --most;
    return most;
}

// Adds what `count` blocks have left, every `in_step`-th before this one, in the order of their numbers, in other registers:
// a loop that has the sums of products in it would have the compiler let no product run beside another (C7514).
FUNCTION void add_partials(Sums &sums, int count, const Tables &tables, int warpgroup, u8 *workspace) {
    constexpr int AHEAD = sums_ahead(WN / 8);
    const int in_step = (int)tables.in_step;
    const i64 of_block = (i64)WARPGROUPS * ROWS * SLAB_SUMS * in_step;
    const i64 first = ((i64)blockIdx.x - in_step * count) * WARPGROUPS + warpgroup;
    const SUM *begin = (const SUM *)(workspace + tables.partials) + first * ROWS * SLAB_SUMS + threadIdx.x % 128 * 4;
#pragma unroll
    for (int slab = 0; slab < ROWS; ++slab)
#pragma unroll
        for (int eight = 0; eight < WN / 8; eight += AHEAD) {
            SUM more[AHEAD][4] = {};
            const SUM *from = begin + slab * SLAB_SUMS + eight * 512;
#pragma unroll 1
            for (int block = 0; block < count; ++block, from += of_block) {
                uint4 fours[AHEAD];
#pragma unroll
                for (int n = 0; n < AHEAD; ++n) fours[n] = *(const uint4 *)(from + n * 512);
#pragma unroll
                for (int n = 0; n < AHEAD; ++n) add_four(more[n], fours[n]);
            }
#pragma unroll
            for (int n = 0; n < AHEAD; ++n)
#pragma unroll
                for (int i = 0; i < 4; ++i) sums[slab][4 * (eight + n) + i] += more[n][i];
        }
}

// What a thread that copies nothing does beside the consumers: it signals that they have left their sums, and waits for the
// signals of others before they want theirs.
FUNCTION void exchange_signals(const Ring &ring, const Tables &tables, u8 *workspace) {
    for (int number = blockIdx.x; number < (int)tables.works; number += gridDim.x) {
        const Streamed streamed(tables, number);
        if (streamed.first == streamed.last) break;
        if (streamed.last < stages_of(tables)) {
            mbarrier_wait(ring.behind() + LEFT_AT, 0);
            signal_blocks(signal_of(tables, workspace, blockIdx.x));
        } else if (streamed.first) {
            const int count = streamed.before(tables);
            for (int n = 1; n <= count; ++n)
                wait_for_signals(signal_of(tables, workspace, blockIdx.x - n * (int)tables.in_step), 1);
            mbarrier_arrive(ring.behind() + ALL_LEFT_AT);
        }
    }
}

KERNEL(512)
void clear_signals(TABLES(Tables, tables), const DTYPE *first, const DTYPE *second, RESULT *result EPILOGUE_PARAMETERS,
                   u8 *workspace, SCALE alpha, SCALE beta) {
    begin_launch();
    for (int block = threadIdx.x; block < tables.sharers; block += 512) *signal_of(tables, workspace, block) = 0;
}

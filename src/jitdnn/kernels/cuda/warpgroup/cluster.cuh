// K split over the thread blocks of a cluster: each multiplies its part and leaves its sums in shared memory, where the
// stages were; then each block reads what all have of its share of the tile, adds it up in the order of the blocks, and
// stores the results. No partial sum goes through memory, and there is no second launch.
//
//     warpgroup, slab of 64 rows, 8 columns, thread of the warpgroup: four sums
//
// A share is some of the UNITS of 16 columns of a slab, of each warpgroup.

constexpr int UNITS = ROWS * WN / 16;
constexpr int MOST_BLOCKS_OF_CLUSTER = 8;  // how many there are says the launch, and Tables::splits
static_assert(WN % 16 == 0, "units are whole");
static_assert(BM * BN * 4 <= STAGES * STAGE_BYTES, "the sums have room where the stages were");
static_assert(!HAS_SUMS && !HAS_PROLOGUE && PHASES == 1, "one tile for each cluster, as it is");

struct Exchange {
    u32 shared, barrier;  // addresses: of the first stage; of the barrier

    METHOD u32 own(int warpgroup) const { return shared + warpgroup * UNITS * 4096 + threadIdx.x % 128 * 16; }

    METHOD void initialize() const { mbarrier_init(barrier, 4 * WARPGROUPS); }

    // Lets no warp go on before all have done their products, and copies have arrived.
    METHOD void wait_for_products() const {
        if (WARPGROUPS == 1) return warpgroup_barrier(1);
        __syncwarp();
        if (threadIdx.x % 32 == 0) mbarrier_arrive(barrier);
        mbarrier_wait(barrier, 0);
    }

    METHOD void leave(const Sums &sums, int warpgroup) const {
#pragma unroll
        for (int slab = 0; slab < ROWS; ++slab)
#pragma unroll
            for (int j = 0; j < WN / 8; ++j) {
                const SUM *four = sums[slab] + 4 * j;
                shared_store16(own(warpgroup) + (slab * (WN / 8) + j) * 2048,
                               uint4{sum_bits(four[0]), sum_bits(four[1]), sum_bits(four[2]), sum_bits(four[3])});
            }
    }

#if IS_DIVIDED
    // The same of operands that are not finite: as halves they would not be what they are in f32.
    METHOD void leave_exactly(const Tables &tables, const Work &work, int warpgroup, const f32 *x, const f32 *dy) const {
#pragma unroll 1
        for (int number = 0; number < ROWS * WN / 2; ++number) {
            const int slab = number / (WN / 2), of_slab = number % (WN / 2);
            const f32 sum = exact_sum_of(tables, work, warpgroup, slab, of_slab, x, dy);
            shared_store4(own(warpgroup) + number / 4 * 2048 + number % 4 * 4, sum_bits(sum));
        }
    }
#endif
};

// What the blocks from BLOCK on have left of 16 columns. Where there are no more, one branch leaves out all the rest.
template <int BLOCK>
FUNCTION void load_shares(uint4 (&fours)[MOST_BLOCKS_OF_CLUSTER][2], const u32 (&from)[MOST_BLOCKS_OF_CLUSTER],
                          int offset, int blocks) {
    if constexpr (BLOCK < MOST_BLOCKS_OF_CLUSTER) {
        if (BLOCK >= blocks) return;
#pragma unroll
        for (int j = 0; j < 2; ++j) fours[BLOCK][j] = cluster_load16(from[BLOCK] + offset + j * 2048);
        load_shares<BLOCK + 1>(fours, from, offset, blocks);
    }
}

// Adds them up, in order.
template <int BLOCK>
FUNCTION void add_shares(SUM (&sums)[2][4], const uint4 (&fours)[MOST_BLOCKS_OF_CLUSTER][2], int blocks) {
    if constexpr (BLOCK < MOST_BLOCKS_OF_CLUSTER) {
        if (BLOCK >= blocks) return;
#pragma unroll
        for (int j = 0; j < 2; ++j) add_four(sums[j], fours[BLOCK][j]);
        add_shares<BLOCK + 1>(sums, fours, blocks);
    }
}

// Adds up this block's share of what all blocks of the cluster have left, and stores the results.
FUNCTION void store_share(const Exchange &exchange, const Tables &tables, const Work &work, int warpgroup,
                          RESULT *result, const u8 *workspace, SCALE alpha, SCALE beta EPILOGUE_PARAMETERS) {
    const int blocks = (int)tables.splits, rank = blockIdx.x % blocks;
    u32 from[MOST_BLOCKS_OF_CLUSTER];
#pragma unroll
    for (int block = 0; block < MOST_BLOCKS_OF_CLUSTER; ++block)
        from[block] = cluster_address(exchange.own(warpgroup), min(block, blocks - 1));
#if IS_SCALED
    const Scales scales(tables, workspace);
#endif
    // what others have left of the next unit is on its way while this one's results are made
    int unit = UNITS * rank / blocks;
    const int end = UNITS * (rank + 1) / blocks;
    uint4 next[MOST_BLOCKS_OF_CLUSTER][2];
    if (unit < end) load_shares<0>(next, from, unit * 4096, blocks);
#pragma unroll 1
    while (unit < end) {
        // the rows are those of a slab
        const int slab = unit / (WN / 16), end_of_slab = min(end, (slab + 1) * (WN / 16));
        const RowsPlace rows(tables, work, work.first_row + warpgroup / WARPGROUPS_N * ROWS * 64 + row_of(slab, 0));
#pragma unroll 1
        for (; unit < end_of_slab; ++unit) {
            SUM sums[2][4] = {};
            add_shares<0>(sums, next, blocks);
            if (unit + 1 < end) load_shares<0>(next, from, (unit + 1) * 4096, blocks);
            const ColumnsPlace place(tables, work, warpgroup % WARPGROUPS_N * WN + 16 * (unit % (WN / 16)));
#if IS_SCALED
#pragma unroll
            for (int n = 0; n < 8; ++n) sums[n / 4][n % 4] = scales.power.times(sums[n / 4][n % 4]);
#endif
            f32 summed[2][4];  // for nobody
            store_columns(sums, summed, tables, work, rows, place, true, result, alpha, beta EPILOGUE_ARGUMENTS);
        }
    }
}

// Blockwise scaling of a filter's gradient with one tap: both operands are packed as numbers of half precision, or two
// halves each, a power of two for every block of 64 pixels by 64 channels (pack_blocks.cu). So no pass over them comes
// first that looks for the largest number of all.
//
// A stage has 64 pixels: what 64 rows and 64 columns gain from it is multiplied by what undoes the powers of one block of
// dy and one of x, when it is moved to other registers. The exponents of 32 stages are in the lanes of a warp.

constexpr int NOT_FINITE = 1 << 20;  // in the place of the exponent of a block with infinities or NaN; as in pack_blocks.cu

struct BlockwiseConsumer : Consumer {
    static constexpr int COLUMN_BLOCKS = WN / 64, BLOCKS = ROWS + COLUMN_BLOCKS;
    static_assert(A_MN_MAJOR && B_MN_MAJOR && WN % 64 == 0 && BK == 64, "stages are blocks");
    // Whether the sums of two stages have registers of their own, so that those of one are added while the other's are made.
    static constexpr bool IS_BUFFERED = PARTS == 1 && IS_PART && ROWS * WN / 2 * 3 <= (WARPGROUPS == 3 ? 96 : 192);
    const i32 *from[BLOCKS];  // the exponents of a block of channels, by blocks of pixels
    int first, last, own[BLOCKS];
    bool is_finite = true;

    METHOD BlockwiseConsumer(const Ring &ring, int warpgroup) : Consumer(ring, warpgroup) {}

    METHOD void begin(const Tables &tables, const Work &work, const u8 *workspace) {
        const int stages = ((int)tables.phases[0].rows + BK - 1) / BK;
        const int row = work.first_row / 64 + warpgroup / WARPGROUPS_N * ROWS;
        const int column = work.columns.first / 64 + warpgroup % WARPGROUPS_N * COLUMN_BLOCKS;
        const int rows = ((int)tables.rows + 63) / 64, columns = (int)tables.channel_blocks;
        // blocks that are not there have zeros: any exponent will do
#pragma unroll
        for (int n = 0; n < BLOCKS; ++n)
            from[n] = n < ROWS ? (const i32 *)(workspace + tables.shifts[1]) + (i64)min(row + n, rows - 1) * stages
                               : (const i32 *)(workspace + tables.shifts[0]) +
                                     (i64)min(column + n - ROWS, columns - 1) * stages;
        first = work.first_block, last = work.last_block;
    }

    // Asks for the exponents of 32 stages.
    METHOD void look_up(int stage) {
        const int at = min(stage + lane, last - 1);
#pragma unroll
        for (int n = 0; n < BLOCKS; ++n) own[n] = from[n][at];
    }

    METHOD static void add(f32 (&sums)[WN / 2], const f32 (&stage_sums)[WN / 2], int block, int exponent) {
        if (exponent < -126 || exponent > 127) {  // one factor will do but for numbers that are far from 1
            const Power back(exponent);
#pragma unroll
            for (int i = 0; i < 32; ++i) {
                f32 &sum = sums[block * 32 + i];
                sum = fmaf(stage_sums[block * 32 + i] * back.first, back.second, sum);
            }
        } else {
            const f32 factor = __uint_as_float((u32)(exponent + 127) << 23);
#pragma unroll
            for (int i = 0; i < 32; ++i)
                sums[block * 32 + i] = fmaf(stage_sums[block * 32 + i], factor, sums[block * 32 + i]);
        }
    }

    // The exponents of a stage, counted from the first.
    METHOD void find(int block, int (&exponents)[BLOCKS]) {
        const int lane_of_stage = block % 32;
        if (lane_of_stage == 0) look_up(first + block);
#pragma unroll
        for (int n = 0; n < BLOCKS; ++n) {
            if (PARTS == 2 && lane_of_stage == 0) is_finite = is_finite && !warp_any(own[n] >= NOT_FINITE);
            exponents[n] = shuffle(own[n], lane_of_stage);
        }
    }
    METHOD static void add(Sums &sums, const Sums &stage_sums, const int (&exponents)[BLOCKS]) {
#pragma unroll
        for (int row = 0; row < ROWS; ++row)
#pragma unroll
            for (int n = 0; n < COLUMN_BLOCKS; ++n)
                add(sums[row], stage_sums[row], n, -exponents[row] - exponents[ROWS + n]);
    }

    METHOD int begin_stage(int block, Sums &stage_sums, int (&exponents)[BLOCKS]) {
        mbarrier_wait(ring.full(place.stage), place.parity);
        multiply_stage(ring, place.stage, 0, warpgroup, stage_sums, false);
        find(block, exponents);
        const int stage = place.stage;
        place.advance(ring);
        return stage;
    }
    // The products of a stage begin before the sums of the one before, which lie in other registers, are added.
    METHOD void multiply_ahead(Sums &sums, int blocks) {
        Sums even, odd;
        int of_even[BLOCKS], of_odd[BLOCKS];
        if (!blocks) return;
        int stage = begin_stage(0, even, of_even);
#pragma unroll 1
        for (int block = 1; block + 1 < blocks; block += 2) {
            int next = begin_stage(block, odd, of_odd);
            wgmma_wait<1>();
            release(stage);
            wgmma_fence_operand(even);
            add(sums, even, of_even);
            stage = begin_stage(block + 1, even, of_even);
            wgmma_wait<1>();
            release(next);
            wgmma_fence_operand(odd);
            add(sums, odd, of_odd);
        }
        if (blocks % 2 == 0) {
            const int next = begin_stage(blocks - 1, odd, of_odd);
            wgmma_wait<1>();
            release(stage);
            wgmma_fence_operand(even);
            add(sums, even, of_even);
            wgmma_wait<0>();
            release(next);
            wgmma_fence_operand(odd);
            add(sums, odd, of_odd);
        } else {
            wgmma_wait<0>();
            release(stage);
            wgmma_fence_operand(even);
            add(sums, even, of_even);
        }
    }

    template <int CHUNKS, class Send>
    METHOD void multiply(Sums &sums, int blocks, bool is_sending, Send send) {
        Sums stage_sums;
        clear(sums);
        is_finite = true;
        if constexpr (IS_BUFFERED) {
            multiply_ahead(sums, blocks);
            return;
        }
        int block = 0;
        auto step = [&](auto during) {
            const int lane_of_stage = block % 32;
            if (lane_of_stage == 0) look_up(first + block);
            wait_for_stage();
            multiply_stage(ring, place.stage, 0, warpgroup, stage_sums, false);
            during();
            int exponents[BLOCKS];
#pragma unroll
            for (int n = 0; n < BLOCKS; ++n) {
                if (PARTS == 2 && lane_of_stage == 0) is_finite = is_finite && !warp_any(own[n] >= NOT_FINITE);
                exponents[n] = shuffle(own[n], lane_of_stage);
            }
            finish_stage(stage_sums);
#pragma unroll
            for (int row = 0; row < ROWS; ++row)
#pragma unroll
                for (int n = 0; n < COLUMN_BLOCKS; ++n)
                    add(sums[row], stage_sums[row], n, -exponents[row] - exponents[ROWS + n]);
            ++block;
        };
        for_stages<CHUNKS>(block, blocks, is_sending, send, step);
    }
};

// fprop and dgrad without strides, of few channels, by warpgroups that go along d: all taps of a plane read what one copy brought.
//
//     data     a plane of HALO_H x HALO_W pixels that PATCH_H x BOX_W results meet, rows of 32 channels (64 bytes); the next
//              stage has the next 32 channels, or the next plane along d
//     filter   the part for COLUMNS channels of the result stays in shared memory: for each 32 channels and each tap (r, s) these
//              columns of all taps along d, the last tap first
//
// 64 rows of a product are a patch of 8 x 8 or 1 x 64 results along h and w (PATCH_H: 8, 1), whose pixels are eight groups of
// eight rows of shared memory, GROUP_ROWS apart; of the next tap they begin some rows further. A plane has products with all
// taps along d at once: GROUP columns, of TAPS_T results along d. The first COLUMNS of them have had all of their taps then, and
// leave; the others move to where the first ones were. So no tap along d brings a patch to the tensor cores again, which products
// of few columns would wait for.
//
// With HAS_SUMS formulas of the results are summed as they leave, for each channel of an image: in registers as long as a thread
// block stays in the image, then by its threads in a fixed order, and for all thread blocks by `add_sums` (sums.cuh).

struct Ring {
    u32 filter, shared, barriers;  // behind these come sums of warps

    METHOD Ring(u32 shared_memory, int blocks)
        : filter(shared_memory), shared(shared_memory + TAPS_R * TAPS_S * blocks * SLOT_BYTES),
          barriers(shared + STAGES * STAGE_BYTES) {}
    METHOD u32 stage(int stage) const { return shared + stage * STAGE_BYTES; }
    METHOD u32 full(int stage) const { return barriers + 16 * stage; }
    METHOD u32 empty(int stage) const { return full(stage) + 8; }
    METHOD u32 filter_is_there() const { return barriers + 16 * STAGES; }
};

// A run of results along d, of a column of patches: `count` of them, DILATION_D apart.
struct Run {
    int image, d, h, w, count;  // of the first result

    METHOD Run(const Tables &tables, int work, int end) {
        const int positions = (int)tables.positions, column = work / positions, first = work - column * positions;
        count = min(positions - first, end - work);
        const int line = column / (int)tables.boxes_w, plane = line / (int)tables.boxes_h;
        image = plane / DILATION_D;
        w = (column - line * (int)tables.boxes_w) * BOX_W, h = (line - plane * (int)tables.boxes_h) * PATCH_H;
        d = plane - image * DILATION_D + first * DILATION_D;
    }
};

// What a thread block has: a share of all positions, for some columns.
struct Share {
    int sharer, first_column, begin, end;

    METHOD Share(const Tables &tables) {
        const int tiles = (int)tables.tiles, sharers = gridDim.x / tiles;
        sharer = blockIdx.x / tiles;
        first_column = (blockIdx.x - sharer * tiles) * COLUMNS;
        begin = (int)(tables.works * sharer / sharers), end = (int)(tables.works * (sharer + 1) / sharers);
    }
};

FUNCTION void produce(const Ring &ring, const Tables &tables, const Share &share) {
    const int blocks = (int)tables.blocks;
    mbarrier_arrive_expect(ring.filter_is_there(), TAPS_R * TAPS_S * blocks * SLOT_BYTES);
    u32 to = ring.filter;
#pragma unroll 1
    for (int block = 0; block < blocks; ++block)
#pragma unroll 1
        for (int tap = 0; tap < TAPS_R * TAPS_S; ++tap)
#pragma unroll 1
            for (int t = TAPS_T - 1; t >= 0; --t) {
                const int of_t = (int)(tables.first_tap[0] + t * tables.tap_step[0]);
                const int of_r = (int)(tables.first_tap[1] + tap / TAPS_S * tables.tap_step[1]);
                const int of_s = (int)(tables.first_tap[2] + tap % TAPS_S * tables.tap_step[2]);
#if IS_ACROSS
#pragma unroll
                for (int n = 0; n < COLUMNS; n += 32, to += 32 * ROW)
                    tma_load_5d(to, tables.maps[1], ring.filter_is_there(), share.first_column + n, of_s, of_r, of_t, 32 * block);
#else
                tma_load_5d(to, tables.maps[1], ring.filter_is_there(), 32 * block, of_s, of_r, of_t,
                            share.first_column);
                to += COLUMNS * ROW;
#endif
            }
    int stage = 0;
    u32 parity = 0;
#pragma unroll 1
    for (int work = share.begin; work < share.end;) {
        const Run run(tables, work, share.end);
        work += run.count;
#pragma unroll 1
        for (int step = 0; step < run.count + TAPS_T - 1; ++step)
#pragma unroll 1
            for (int block = 0; block < blocks; ++block) {
                mbarrier_wait(ring.empty(stage), parity ^ 1);
                mbarrier_arrive_expect(ring.full(stage), COPIED_BYTES);
                tma_load_5d(ring.stage(stage), tables.maps[0], ring.full(stage), 32 * block, run.w + (int)tables.base_w,
                            run.h + (int)tables.base_h, run.d + step * DILATION_D + (int)tables.base_d, run.image);
                if (++stage == STAGES) stage = 0, parity ^= 1;
            }
    }
}

// The descriptor of rows of ROW bytes from `sixteenths` of an address on; `apart`: bytes from eight rows to the next eight or, of
// the filter, from 32 columns to the next 32 where they lie across.
FUNCTION u64 data_descriptor(u32 sixteenths, u32 apart) {
    const u64 upper = wgmma_descriptor(0, 0, ROW) + ((u64)((apart - 8 * ROW) / 16) << 32);
    return (upper >> 32) << 32 | sixteenths;
}
FUNCTION u64 filter_descriptor(u32 sixteenths) {
    const u64 upper = wgmma_descriptor(0, 32 * ROW, ROW);
    return (upper >> 32) << 32 | (u32)((u32)upper + sixteenths);
}

typedef f32 Sums[PATCHES][GROUP / 2];

// The products of a stage, all in one text: the wait behind a loop of them is for each.
FUNCTION void multiply_stage(u32 data, u32 filter, Sums &sums, bool is_added) {
    constexpr int step = IS_ACROSS ? 16 * ROW : 32;  // bytes from 16 channels of the filter to the next 16
    data /= 16, filter /= 16;
    wgmma_fence();
#pragma unroll
    for (int tap = 0; tap < TAPS_R * TAPS_S; ++tap)
#pragma unroll
        for (int half = 0; half < 2; ++half)
#pragma unroll
            for (int patch = 0; patch < PATCHES; ++patch) {
                const int row = tap / TAPS_S * DILATION_H * HALO_W + tap % TAPS_S * DILATION_W + patch * PATCH_W;
                MULTIPLY<false, IS_ACROSS>(sums[patch], data_descriptor(data + (row * ROW + half * 32) / 16, GROUP_ROWS * ROW),
                                           filter_descriptor(filter + (tap * SLOT_BYTES + half * step) / 16),
                                           is_added || tap > 0 || half > 0);
            }
    wgmma_commit();
    wgmma_wait<0>();
    wgmma_fence_operand(sums);
}

// Stores the first COLUMNS sums, of a position along d.
FUNCTION void store_results(const Sums &sums, const Tables &tables, const Run &run, int first_column, int d, int consumer,
#if HAS_SUMS
                            Totals &totals, const Numbers &numbers, const Beside &beside,
#endif
                            u16 *result, f32 alpha, f32 beta) {
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32 % 4;
    if (d >= (int)tables.results_d) return;
#pragma unroll
    for (int patch = 0; patch < PATCHES; ++patch)
#pragma unroll
        for (int below = 0; below < 2; ++below) {
            const int group = 2 * warp + below, h = run.h + (PATCH_H > 1 ? group : 0);
            const int w = run.w + (consumer * PATCHES + patch) * PATCH_W + (PATCH_H > 1 ? 0 : 8 * group) + lane / 4;
            const bool is_there = h < (int)tables.results_h && w < (int)tables.results_w;
            u16 *to = result + run.image * tables.image + d * tables.space_d + h * tables.space_h + w * tables.space_w +
                      first_column + lane % 4 * 8;
#pragma unroll
            for (int n = 0; n < COLUMNS; n += 32) {
                const bool has_columns = is_there && first_column + n + lane % 4 * 8 < (int)tables.columns;
                u32 words[4];
                rounded(words, sums[patch] + n / 2 + 2 * below, to + n, has_columns, alpha, beta);
                if (has_columns) store16(to + n, make_uint4(words[0], words[1], words[2], words[3]));
#if HAS_SUMS
                if (has_columns) {
                    const uint4 four = beside[patch][below][n / 32];
                    const u32 others[4] = {four.x, four.y, four.z, four.w};
#pragma unroll
                    for (int i = 0; i < 4; ++i) {
                        add_formulas(totals, numbers, n / 4 + 2 * i, LOW(words[i]), LOW(others[i]));
                        add_formulas(totals, numbers, n / 4 + 2 * i + 1, HIGH(words[i]), HIGH(others[i]));
                    }
                }
#endif
            }
        }
}

#if HAS_SUMS
// What lies beside the results of a position along d.
FUNCTION void load_beside(Beside &found, const Tables &tables, const Run &run, int first_column, int d, int consumer,
                          const u16 *beside) {
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32 % 4;
#pragma unroll
    for (int patch = 0; patch < PATCHES; ++patch)
#pragma unroll
        for (int below = 0; below < 2; ++below) {
            const int group = 2 * warp + below, h = run.h + (PATCH_H > 1 ? group : 0);
            const int w = run.w + (consumer * PATCHES + patch) * PATCH_W + (PATCH_H > 1 ? 0 : 8 * group) + lane / 4;
            const bool is_there = HAS_BESIDE && d < (int)tables.results_d && h < (int)tables.results_h && w < (int)tables.results_w;
            const i64 from = run.image * tables.beside[0] + d * tables.beside[1] + h * tables.beside[2] + w * tables.beside[3];
#pragma unroll
            for (int n = 0; n < COLUMNS; n += 32) {
                const int column = first_column + n + lane % 4 * 8;
                found[patch][below][n / 32] =
                    is_there && column < (int)tables.columns ? *(const uint4 *)(beside + from + column) : uint4{0, 0, 0, 0};
            }
        }
}
#endif

KERNEL2(BLOCK_THREADS, 1)
void correlate_boxes(TABLES(Tables, tables), const u16 *first, const u16 *second, u16 *result, SUM_PARAMETERS u8 *workspace,
                     SCALE alpha, SCALE beta) {
    extern __shared__ __attribute__((aligned(1024))) u8 shared_memory[];
    const Ring ring(smem_address(shared_memory), (int)tables.blocks);
    if (threadIdx.x == 0) {
        for (int stage = 0; stage < STAGES; ++stage) {
            mbarrier_init(ring.full(stage), 1);
            mbarrier_init(ring.empty(stage), 4 * CONSUMERS);
        }
        mbarrier_init(ring.filter_is_there(), 1);
        mbarrier_init_fence();
    }
    begin_launch();
    __syncthreads();
    const Share share(tables);
    const int warpgroup = shuffle((int)threadIdx.x / 128, 0);  // the same in all lanes of a warp, which the compiler cannot know
    if (warpgroup == CONSUMERS) {
        registers_release<PRODUCER_REGISTERS>();
        if (threadIdx.x == 128 * CONSUMERS) produce(ring, tables, share);
        return;
    }
    registers_acquire<CONSUMER_REGISTERS>();
    const int blocks = (int)tables.blocks;
    const u32 own = warpgroup * PATCHES * PATCH_W * ROW;
    int stage = 0;
    u32 parity = 0;
    Sums sums;
#if HAS_SUMS
    Totals totals = {};
    Numbers numbers = {};
    Beside others = {};
    const Parts parts(ring.filter_is_there() + 16, tables, workspace, share.sharer, share.first_column, warpgroup);
    int image = -1;
#endif
    wgmma_fence_operand(sums);
    mbarrier_wait(ring.filter_is_there(), 0);
#pragma unroll 1
    for (int work = share.begin; work < share.end;) {
        const Run run(tables, work, share.end);
        work += run.count;
#if HAS_SUMS
        if (run.image != image) {
            if (image >= 0) parts.leave(totals, image, warpgroup);
            image = run.image;
            load_numbers(numbers, tables, image, share.first_column, NUMBER_ARGUMENTS);
        }
#endif
#pragma unroll 1
        for (int step = 0; step < run.count + TAPS_T - 1; ++step) {
            const int d = run.d + (step - (TAPS_T - 1)) * DILATION_D;
#if HAS_SUMS  // asked for before the products, behind which it is wanted
            if (HAS_BESIDE && step >= TAPS_T - 1) load_beside(others, tables, run, share.first_column, d, warpgroup, BESIDE);
#endif
#pragma unroll 1
            for (int block = 0; block < blocks; ++block) {
                mbarrier_wait(ring.full(stage), parity);
                multiply_stage(ring.stage(stage) + own, ring.filter + block * (TAPS_R * TAPS_S * SLOT_BYTES), sums,
                               TAPS_T > 1 && step > 0 || block > 0);
                if (threadIdx.x % 32 == 0) mbarrier_arrive(ring.empty(stage));
                if (++stage == STAGES) stage = 0, parity ^= 1;
            }
            if (step >= TAPS_T - 1)
#if HAS_SUMS  // neither alpha nor beta touches what is summed
                store_results(sums, tables, run, share.first_column, d, warpgroup, totals, numbers, others, result, 1, 0);
#else
                store_results(sums, tables, run, share.first_column, d, warpgroup, result, (f32)alpha, (f32)beta);
#endif
#pragma unroll
            for (int patch = 0; patch < PATCHES; ++patch)
#pragma unroll
                for (int i = 0; i < GROUP / 2; ++i) {
                    constexpr int kept = GROUP / 2 - COLUMNS / 2;
                    sums[patch][i] = i < kept ? sums[patch][i < kept ? i + COLUMNS / 2 : i] : 0;
                }
            wgmma_fence_operand(sums);
        }
    }
#if HAS_SUMS
    if (image >= 0) parts.leave(totals, image, warpgroup);
#endif
}

// ---- Parts ---------------------------------------------------------------------------------------------------------
//
// The sums of a part lie in the workspace as lanes hold them, so that each store of a warp is 512 bytes side by side: by
// warp, its runs, their halves, and lanes. Where warps hold no runs they lie in rows.

constexpr int SUMMING = 256;               // threads of a group that adds parts
constexpr int SUMMED = SUMMING / SHARERS;  // runs of it
constexpr int HALF_STEP = HAS_RUNS ? 32 * RUN / 2 : RUN / 2;  // from one half of a run to the other
static_assert(BM * RUNS % SUMMING == 0 && SUMMED % 4 == 0, "groups are full, and those who exchange are in one");

FUNCTION void store_part(const SUM (&sums)[TILES_M][TILES_N][4], SUM *to) {
    if constexpr (HAS_RUNS) {
        to += threadIdx.x / 32 * (WM * WN) + threadIdx.x % 32 * (RUN / 2);
        each_held_run(sums, [&](const SUM(&run)[RUN], int number) {
#pragma unroll
            for (int half = 0; half < 2; ++half) {
                const SUM *four = run + half * (RUN / 2);
                store16(to + number * (32 * RUN) + half * HALF_STEP,
                        uint4{sum_bits(four[0]), sum_bits(four[1]), sum_bits(four[2]), sum_bits(four[3])});
            }
        });
    } else {
        stage_sums<false>(sums, to, BN);
    }
}

// A run of a part: which it is of the tile, once its columns are exchanged, and where in the part its first half begins.
struct PartRun {
    int row, column, at;

    METHOD explicit PartRun(int number) {
        row = number / RUNS, column = number % RUNS * RUN, at = number * RUN;
        if constexpr (HAS_RUNS) {
            constexpr int fours = TILES_N / 4, of_warp = 2 * TILES_M * fours;
            const int lane = number % 32, held = number / 32, warp = held / of_warp;
            row = warp / WARPS_N * WM + held % of_warp / fours * 8 + lane / 4;
            column = warp % WARPS_N * WN + held % fours * 32 + lane % 4 * RUN;
            at = held * (32 * RUN) + lane * (RUN / 2);
        }
    }
};

// The sum of all parts of a run, for the first of the SHARERS threads that add them; `first` is its place in the first
// part. Each adds every SHARERS-th part, then the upper half of them hands its sums to the lower, until one is left: the
// order is always the same. All threads of a group come here, neighbours with neighbouring runs.
FUNCTION void add_shares(SUM (&values)[RUN], const SUM *first, i64 part_step, bool is_needed) {
    __shared__ SUM handed[SHARERS > 1 ? SHARERS / 2 : 1][SUMMED][RUN];
    const int place = threadIdx.x % SUMMED, sharer = threadIdx.x / SUMMED;
    if (is_needed) {
#pragma unroll 8
        for (int round = 0; round < (PARTS + SHARERS - 1) / SHARERS; ++round) {
            const int part = round * SHARERS + sharer;
            SUM more[RUN];  // read without a branch, so that the reads of several rounds are under way at once
#pragma unroll
            for (int half = 0; half < 2; ++half) {
                const uint4 four = *(const uint4 *)(first + part_step * min(part, PARTS - 1) + half * HALF_STEP);
                more[half * 4] = sum_of_bits(four.x), more[half * 4 + 1] = sum_of_bits(four.y);
                more[half * 4 + 2] = sum_of_bits(four.z), more[half * 4 + 3] = sum_of_bits(four.w);
            }
#pragma unroll
            for (int e = 0; e < RUN; ++e) values[e] += part < PARTS ? more[e] : (SUM)0;
        }
    }
#pragma unroll
    for (int left = SHARERS / 2; left > 0; left /= 2) {
        if (sharer >= left && sharer < 2 * left) {
#pragma unroll
            for (int e = 0; e < RUN; ++e) handed[sharer - left][place][e] = values[e];
        }
        __syncthreads();
        if (sharer < left) {
#pragma unroll
            for (int e = 0; e < RUN; ++e) values[e] += handed[sharer][place][e];
        }
        __syncthreads();
    }
    if constexpr (HAS_RUNS) exchange_columns(values);
}


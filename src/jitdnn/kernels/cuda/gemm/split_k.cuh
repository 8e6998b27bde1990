// Split-K: partial sums in the workspace, and their reduction.
//
//     workspace    partials
//                  |
//                  v  split 0                                   split 1
//                  +-----------------+-----------------+-------+-----------------+----
//                  | plane 0         | plane 1         |  ...  | plane 0         | ...     plane: (stride phase, group)
//                  +-----------------+-----------------+-------+-----------------+----
//     of a plane   | tile unsplit | tile unsplit + 1 | ...                                 BM * BN sums each
//     of a tile    | warp 0: fragment 0, fragment 1, ... | warp 1: ...
//     of a fragment   | sums 0 ... 3 of lanes 0 ... 31 | sums 4 ... 7 of lanes 0 ... 31 |
//
// A fragment here is what fn of for_each_fragment gets: eight sums of each lane. In this order each store of a warp is
// 512 contiguous bytes; transpose_quad puts columns in order behind the reduction. If not HAS_RUNS, the sums of a tile
// are in rows of BN. The partial sums of a tile are added in a fixed order, so results are always the same.

constexpr int REDUCTION_BLOCK = 256;                                // threads of a block of the reduction
constexpr int HALF_RUN_STRIDE = HAS_RUNS ? 32 * RUN / 2 : RUN / 2;  // sums from one half of a run to the other
static_assert(BM * RUNS % REDUCTION_BLOCK == 0, "groups are full");

FUNCTION void store_partial(const SUM (&sums)[MMAS_M][MMAS_N][4], SUM *to) {
    if constexpr (HAS_RUNS) {
        to += threadIdx.x / 32 * (WM * WN) + own_lane() * (RUN / 2);
        for_each_fragment(sums, [&](const SUM(&run)[RUN], int number) {
#pragma unroll
            for (int half = 0; half < 2; ++half) {
                const SUM *four = run + half * (RUN / 2);
                store16(to + number * (32 * RUN) + half * HALF_RUN_STRIDE,
                        uint4{sum_bits(four[0]), sum_bits(four[1]), sum_bits(four[2]), sum_bits(four[3])});
            }
        });
    } else {
        stage_sums<false>(sums, to, BN);
    }
}

// A run of a partial tile: its row and column in the tile (behind transpose_quad), and the sum at which its first half
// begins.
struct PartialRun {
    int row, column, at;

    METHOD explicit PartialRun(int number) {
        row = number / RUNS, column = number % RUNS * RUN, at = number * RUN;
        if constexpr (HAS_RUNS) {
            constexpr int quads = MMAS_N / 4, fragments_of_warp = 2 * MMAS_M * quads;
            const int lane = number % 32, fragment = number / 32, warp = fragment / fragments_of_warp;
            row = warp / WARPS_N * WM + row_step(fragment % fragments_of_warp / quads) + row_of_lane(lane);
            column = warp % WARPS_N * WN + fragment % quads * 32 + lane % 4 * RUN;
            at = fragment * (32 * RUN) + lane * (RUN / 2);
        }
    }
};

// Runs that a block of the reduction adds: a multiple of four, so that those who exchange are in one.
FUNCTION int reduction_runs(const Work &work) { return REDUCTION_BLOCK >> (int)work.reducer_bits; }

// The sum of a run over all splits, for the first of the `reducers` threads that add it. `first` points to the run in
// split 0. Each thread adds every `reducers`-th split; then the upper half of the threads gives its sums to the lower,
// until one is left. All threads of the block call it, neighbours with neighbouring runs.
FUNCTION void sum_partials(SUM (&values)[RUN], const Work &work, const SUM *first, i64 partial_step, bool is_needed) {
    __shared__ SUM exchanged[REDUCTION_BLOCK / 2][RUN];
    const int reducers = 1 << (int)work.reducer_bits, splits = (int)work.splits.number, runs = reduction_runs(work);
    const int position = threadIdx.x & (runs - 1), reducer = (int)(threadIdx.x * reducers) / REDUCTION_BLOCK;
    if (is_needed) {
#pragma unroll 8
        for (int base = 0; base < splits; base += reducers) {
            const int split = base + reducer;
            SUM more[RUN];  // read without a branch, so that the reads of several rounds are in flight at once
#pragma unroll
            for (int half = 0; half < 2; ++half) {
                const uint4 four = *(const uint4 *)(first + partial_step * min(split, splits - 1) +
                                                     half * HALF_RUN_STRIDE);
                more[half * 4] = sum_of_bits(four.x), more[half * 4 + 1] = sum_of_bits(four.y);
                more[half * 4 + 2] = sum_of_bits(four.z), more[half * 4 + 3] = sum_of_bits(four.w);
            }
#pragma unroll
            for (int e = 0; e < RUN; ++e) values[e] += split < splits ? more[e] : (SUM)0;
        }
    }
    for (int left = reducers / 2; left > 0; left /= 2) {
        if (reducer >= left && reducer < 2 * left) {
#pragma unroll
            for (int e = 0; e < RUN; ++e) exchanged[(reducer - left) * runs + position][e] = values[e];
        }
        __syncthreads();
        if (reducer < left) {
#pragma unroll
            for (int e = 0; e < RUN; ++e) values[e] += exchanged[reducer * runs + position][e];
        }
        __syncthreads();
    }
    if constexpr (HAS_RUNS) transpose_quad<true>(values);
}


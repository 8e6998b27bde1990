// The epilogue: brings the sums of a tile from registers to the function that finishes and stores them, in runs of
// eight columns of one row.
//
//     registers (fragments)  --transpose_quad-->  runs        four lanes have 32 neighbouring columns of a row: full
//                                                             sectors of a result of half precision
//     registers  --shared memory, in rows of STAGED_PITCH-->  runs        any threads have any run

constexpr int RUN = 8;                // columns of a row that a thread stores at a time
constexpr int STAGED_PITCH = BN + 8;  // words from row to row: 8 more than a row has, against bank conflicts
constexpr int RUNS = BN / RUN;

FUNCTION u32 sum_bits(f32 sum) { return __float_as_uint(sum); }
FUNCTION u32 sum_bits(i32 sum) { return (u32)sum; }
FUNCTION SUM sum_of_bits(u32 bits) {
    if constexpr (DTYPE_IS_INTEGER)
        return (SUM)(i32)bits;
    else
        return (SUM)__uint_as_float(bits);
}

// Where a column lies in a row of staged sums. Neighbouring threads read neighbouring runs, four sums at a time: the
// halves of every second group of four runs are swapped, so that eight threads meet all banks.
FUNCTION int swizzled_column(int column) { return column ^ (column / 8 & 4); }

template <bool IS_STAGED>
FUNCTION void read_run(const SUM *row, int column, SUM (&run)[RUN]) {
#pragma unroll
    for (int e = 0; e < RUN; e += 4) {
        const uint4 four = *(const uint4 *)(row + (IS_STAGED ? swizzled_column(column + e) : column + e));
        run[e] = sum_of_bits(four.x);
        run[e + 1] = sum_of_bits(four.y);
        run[e + 2] = sum_of_bits(four.z);
        run[e + 3] = sum_of_bits(four.w);
    }
}

// Writes the sums of a tile to shared memory, or the partial sums of a split to the workspace, in rows of `line`
// words.
template <bool IS_STAGED>
FUNCTION void stage_sums(const SUM (&sums)[MMAS_M][MMAS_N][4], SUM *to, int line) {
    const int warp = threadIdx.x / 32, lane = own_lane();
    const int row = warp / WARPS_N * WM + row_of_lane(lane), column = warp % WARPS_N * WN + column_of_lane(lane);
#pragma unroll
    for (int i = 0; i < MMAS_M; ++i)
#pragma unroll
        for (int j = 0; j < MMAS_N; ++j)
#pragma unroll
            for (int half = 0; half < 2; ++half) {
                const uint2 pair = {sum_bits(sums[i][j][half * 2]), sum_bits(sums[i][j][half * 2 + 1])};
                const int at = IS_STAGED ? swizzled_column(column + column_step(j)) : column + column_step(j);
                *(uint2 *)(to + (row + row_step(i * 2 + half)) * line + at) = pair;
            }
}

// Before, each of four lanes has two columns of each of four neighbouring 16 x 8 fragments; behind it, all eight
// columns of one of them, in the same row: a transposition of 4 x 4 pairs. Lanes of a quad are neighbours, or if not
// IS_IN_ORDER as lane_of_quad says.
template <bool IS_IN_ORDER>
FUNCTION void transpose_quad(SUM (&run)[RUN]) {
    if constexpr (!HAS_PAIRS) return;
    const int lane = IS_IN_ORDER ? threadIdx.x : lane_of_quad();
    constexpr int far_lane = IS_IN_ORDER ? 2 : FAR_LANE;
#pragma unroll
    for (int step = 1; step <= 2; step *= 2) {
        const bool is_upper = lane & step;
#pragma unroll
        for (int pair = 0; pair < RUN / 2; ++pair) {
            if (pair & step) continue;
#pragma unroll
            for (int e = 0; e < 2; ++e) {
                SUM &lower = run[pair * 2 + e], &upper = run[(pair | step) * 2 + e];
                const SUM other = shuffle_xor(is_upper ? lower : upper, step == 1 ? 1 : far_lane);
                lower = is_upper ? other : lower;
                upper = is_upper ? upper : other;
            }
        }
    }
}

// Whether fragments come in fours, so that transpose_quad makes runs of them.
constexpr bool HAS_RUNS = MMAS_N % 4 == 0;

// Calls fn(run, number) with the sums of a lane, eight from four neighbouring fragments at a time, before
// transpose_quad.
template <class Fn>
FUNCTION void for_each_fragment(const SUM (&sums)[MMAS_M][MMAS_N][4], Fn fn) {
#pragma unroll
    for (int i = 0; i < 2 * MMAS_M; ++i)
#pragma unroll
        for (int four = 0; four < MMAS_N / 4; ++four) {
            SUM run[RUN];
#pragma unroll
            for (int e = 0; e < RUN; ++e) run[e] = sums[i / 2][four * 4 + e / 2][i % 2 * 2 + e % 2];
            fn(run, i * (MMAS_N / 4) + four);
        }
}

// Calls finish(row, column, run) with the runs of a lane, out of its registers.
template <class Finish>
FUNCTION void for_each_register_run(const SUM (&sums)[MMAS_M][MMAS_N][4], Finish finish) {
    const int warp = threadIdx.x / 32, lane = own_lane();
    const int row = warp / WARPS_N * WM + row_of_lane(lane), column = warp % WARPS_N * WN + lane % 4 * RUN;
    for_each_fragment(sums, [&](SUM(&run)[RUN], int number) {
        transpose_quad<false>(run);
        finish(row + row_step(number / (MMAS_N / 4)), column + number % (MMAS_N / 4) * 32, run);
    });
}

// The same with the runs of a tile in shared memory, distributed over the threads: neighbouring threads have
// neighbouring runs of a row, or neighbouring rows if IS_DOWN_ROWS. Some runs are read before the first of them is
// stored.
template <bool IS_DOWN_ROWS, class Finish>
FUNCTION void for_each_staged_run(const SUM *staged, Finish finish) {
    constexpr u32 all = BM * RUNS, batch = all / BLOCK_THREADS >= 4 ? 4 : 1;
    for (u32 first = threadIdx.x; first < all; first += batch * BLOCK_THREADS) {
        SUM values[batch][RUN];
        auto row_of = [&](u32 b) {
            return (int)(IS_DOWN_ROWS ? (first + b * BLOCK_THREADS) % BM : (first + b * BLOCK_THREADS) / RUNS);
        };
        auto column_of = [&](u32 b) {
            return (int)(IS_DOWN_ROWS ? (first + b * BLOCK_THREADS) / BM : (first + b * BLOCK_THREADS) % RUNS) * RUN;
        };
#pragma unroll
        for (u32 b = 0; b < batch; ++b)
            if (all % (batch * BLOCK_THREADS) == 0 || first + b * BLOCK_THREADS < all)
                read_run<true>(staged + row_of(b) * STAGED_PITCH, column_of(b), values[b]);
#pragma unroll
        for (u32 b = 0; b < batch; ++b)
            if (all % (batch * BLOCK_THREADS) == 0 || first + b * BLOCK_THREADS < all)
                finish(row_of(b), column_of(b), values[b]);
    }
}

// Calls finish(row, column, run) for all runs of a tile: out of registers where four runs are whole sectors of the
// result, else through shared memory, where the stages were.
template <bool IS_IN_SECTORS, bool IS_DOWN_ROWS, class Finish>
FUNCTION void finish_tile(const SUM (&sums)[MMAS_M][MMAS_N][4], SUM *staged, Finish finish) {
    if constexpr (HAS_RUNS && IS_IN_SECTORS) {
        for_each_register_run(sums, finish);
    } else {
        __syncthreads();
        stage_sums<true>(sums, staged, STAGED_PITCH);
        __syncthreads();
        for_each_staged_run<IS_DOWN_ROWS>(staged, finish);
    }
}


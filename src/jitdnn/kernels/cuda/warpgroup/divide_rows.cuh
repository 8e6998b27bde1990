// f32 rows of A that each warpgroup divides into halves on their way to its registers, from which wgmma takes them: A is
// read as it is in memory, and nothing is written back. B comes as halves that were packed before.
//
//     f32, as it comes     BM rows of the first half of a sub's channels | BM rows of the second half
//     of a wgrad           64 pixels of 32 channels, for each 64 rows | 64 pixels of the next 32
//
// The largest number of a row in a stage becomes 2^13; a thread holds sums of the rows whose fragments it has, so
// each is multiplied by what undoes that when it is moved to other registers. No number reaches other rows. Of
// infinities, whose halves are not what they are, a tile's sums are computed by multiply-adds; NaN stays NaN.
//
// Pixels are taken in an order (row_of) in which half a warp reads all banks.

constexpr int STEPS_OF_SUB = ROW_BYTES / 32;  // products along K, of a row of halves
static_assert(USED_STEPS <= STEPS, "of a stage; those behind have no channels, and are left out");

struct RowDividingConsumer : Consumer {
    const int shift_of_b;   // B was multiplied by 2 to this
    bool is_finite = true;  // what was divided for this work

    METHOD RowDividingConsumer(const Ring &ring, int warpgroup, int shift_of_b)
        : Consumer(ring, warpgroup), shift_of_b(shift_of_b) {}

    // Brings what a stage has of the thread's rows: pairs along K, as fragments have them.
    METHOD void load(int stage, int slab, f32 (&values)[STEPS][4][2]) const {
#if A_MN_MAJOR
        const int warp = threadIdx.x % 128 / 32, number = lane / 4, pair = lane % 4;
        const u32 pixels = ring.a(stage) + (warpgroup / WARPGROUPS_N * ROWS + slab) * SLAB_BYTES + warp / 2 * A_BYTES +
                           pair * 256 + number % 4 * 4;
        const int piece = warp % 2 * 4 + number / 4;
#pragma unroll
        for (int step = 0; step < USED_STEPS; ++step)
#pragma unroll
            for (int n = 0; n < 4; ++n)
#pragma unroll
                for (int e = 0; e < 2; ++e)
                    values[step][n][e] = __uint_as_float(shared_load4(
                        pixels + (step * 16 + n / 2 * 8 + e) * 128 + ((piece + n % 2 * 2) ^ (pair * 2 + e)) * 16));
#else
        const int row = warpgroup / WARPGROUPS_N * ROWS * 64 + row_of(slab, 0), pair = lane % 4;
        const u32 permutation = row * ROW_BYTES >> 3 & (ROW_BYTES - 16);  // 8 rows further it is the same
        const u32 rows = ring.a(stage) + row * ROW_BYTES + pair % 2 * 8, piece = pair / 2 * 16;
#pragma unroll
        for (int step = 0; step < USED_STEPS; ++step)
#pragma unroll
            for (int n = 0; n < 4; ++n) {
                const int at = step % STEPS_OF_SUB * 64 + n / 2 * 32, part = at / ROW_BYTES;  // bytes of f32
                const u32 from = rows + part * A_BYTES + step / STEPS_OF_SUB * BM * ROW_BYTES + n % 2 * 8 * ROW_BYTES;
                const uint2 two = shared_load8(from + (at % ROW_BYTES + piece ^ permutation));
                values[step][n][0] = __uint_as_float(two.x), values[step][n][1] = __uint_as_float(two.y);
            }
#endif
    }

    // By what power of two numbers are multiplied, of which this is the largest.
    METHOD static int shift_of(f32 most) {
        const int exponent = max((int)(__float_as_uint(most) >> 23), 1) - 127;
        return most > 0 ? min(13 - exponent, 127) : 0;
    }
    METHOD static f32 power(int exponent) { return __uint_as_float((u32)(exponent + 127) << 23); }

    // The largest numbers of both rows, of which four threads have a part each.
    METHOD static void find_most(const f32 (&values)[STEPS][4][2], f32 (&most)[2]) {
        f32 of_steps[STEPS][2] = {};
#pragma unroll
        for (int step = 0; step < USED_STEPS; ++step)
#pragma unroll
            for (int half = 0; half < 2; ++half) {
                auto size = [&](int n, int e) { return fabsf(values[step][n][e]); };
                of_steps[step][half] = fmaxf(fmaxf(size(half, 0), size(half, 1)), fmaxf(size(2 + half, 0), size(2 + half, 1)));
            }
#pragma unroll
        for (int half = 0; half < 2; ++half)
            most[half] = fmaxf(fmaxf(of_steps[0][half], of_steps[1][half]), fmaxf(of_steps[2][half], of_steps[3][half]));
#pragma unroll
        for (int distance = 1; distance < 4; distance *= 2)
#pragma unroll
            for (int half = 0; half < 2; ++half) most[half] = fmaxf(most[half], shuffle_xor(most[half], distance));
    }

    METHOD void divide(int stage, int slab, u32 (&high)[STEPS][4], u32 (&low)[STEPS][4], int (&shifts)[2]) {
        f32 values[STEPS][4][2], most[2];
        load(stage, slab, values);
        find_most(values, most);
        is_finite = is_finite && fmaxf(most[0], most[1]) <= 3.4028235e38f;
        f32 scales[2];
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            shifts[half] = shift_of(most[half]);
            scales[half] = power(shifts[half]);
        }
#pragma unroll
        for (int step = 0; step < USED_STEPS; ++step)
#pragma unroll
            for (int n = 0; n < 4; ++n) {
                const f32 first = values[step][n][0] * scales[n % 2], second = values[step][n][1] * scales[n % 2];
                u32 &pair = high[step][n];
                pair = pack_f16(first, second);
                if (!IS_ROUGH) low[step][n] = pack_f16(first - f16_low(pair), second - f16_high(pair));
            }
    }

    // The halves of the thread's rows in a stage, and by what powers of two they were multiplied.
    struct Halves {
        u32 high[ROWS][STEPS][4], low[ROWS][STEPS][4];
        int shifts[ROWS][2];
    };

    METHOD void divide(int stage, Halves &halves) {
#pragma unroll
        for (int slab = 0; slab < ROWS; ++slab)
            divide(stage, slab, halves.high[slab], halves.low[slab], halves.shifts[slab]);
    }

    // Begins the products of a stage: the small ones first, lo * hi, hi * lo, then hi * hi.
    METHOD void multiply_halves(const Halves &halves, int stage, int block, Sums &stage_sums) const {
        const u64 b = b_descriptor(ring, stage, block, warpgroup);
        wgmma_fence();
#pragma unroll
        for (int product = IS_ROUGH ? 2 : 0; product < 3; ++product)
#pragma unroll
            for (int step = 0; step < USED_STEPS; ++step)
#pragma unroll
                for (int slab = 0; slab < ROWS; ++slab)
                    MULTIPLY_A<B_MN_MAJOR>(stage_sums[slab], product == 0 ? halves.low[slab][step] : halves.high[slab][step],
                                           b + (product == 1 ? B_BYTES / 16 : 0) + b_offset(step),
                                           (IS_ROUGH ? 0 : product) + step > 0);
        wgmma_commit();
    }

    // Adds the sums of a stage, without what its operands were multiplied by.
    METHOD static void add(Sums &sums, const Sums &stage_sums, const int (&shifts)[ROWS][2], int shift_of_b) {
#pragma unroll
        for (int slab = 0; slab < ROWS; ++slab)
#pragma unroll
            for (int half = 0; half < 2; ++half) {
                const int exponent = -shifts[slab][half] - shift_of_b;
                // one factor will do but for numbers that are far from 1
                if (warp_any(exponent < -126 || exponent > 127)) {
                    const Power back(exponent);
#pragma unroll
                    for (int j = 0; j < WN / 4; ++j) {
                        const int i = 4 * (j / 2) + 2 * half + j % 2;
                        sums[slab][i] = fmaf(stage_sums[slab][i] * back.first, back.second, sums[slab][i]);
                    }
                } else {
                    const f32 factor = power(exponent);
#pragma unroll
                    for (int j = 0; j < WN / 4; ++j) {
                        const int i = 4 * (j / 2) + 2 * half + j % 2;
                        sums[slab][i] = fmaf(stage_sums[slab][i], factor, sums[slab][i]);
                    }
                }
            }
    }

    template <int CHUNKS, class Send>
    METHOD void multiply(Sums &sums, int blocks, bool, Send) {
        Sums stage_sums;
        clear(sums);
        is_finite = true;
        for (int block = 0; block < blocks; ++block) {
            Halves halves;
            wait_for_stage();
            divide(place.stage, halves);
            multiply_halves(halves, place.stage, block, stage_sums);
            finish_stage(stage_sums);
            add(sums, stage_sums, halves.shifts, shift_of_b);
        }
        is_finite = !warp_any(!is_finite);
    }
};

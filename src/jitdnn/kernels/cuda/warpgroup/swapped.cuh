// Products whose operands change places: the columns of B, of f32 and read across, are the rows of what the tensor cores
// multiply, and the rows of A, which are pixels, its columns. wgmma reads f32 from shared memory along K alone, but one
// operand may come from registers, and threads can read that one as it lies:
//
//     filter   blocks of 32 channels of the result: a row of 128 bytes of them for each step of K, permuted as copies do it
//     pixels   K-major, as ever
//
// Which channel is which row of a product is for us to say. A thread holds the same two rows of every slab, for k = lane %
// 4 and 4 further on. As 2 * ROWS channels that are neighbours one load brings both (ROWS 1) or those of two slabs (ROWS 2),
// and one store takes them away. The quarters of a warp that read at once (of 8 bytes: the halves) begin at
// pieces of 16 bytes that differ in the highest bit, so that the permutation spreads four steps of K over all banks.
static_assert(!SWAPS_OPERANDS || (B_MN_MAJOR && !A_MN_MAJOR && ELEMENT_BYTES == 4 && RESULT_BYTES == 4), "f32");
static_assert(!SWAPS_OPERANDS || (PARTS == 1 && ROWS <= 2 && IS_RESULT_VECTOR && !HAS_EPILOGUE), "plain results");

// The first of a thread's neighbouring channels, from the first of the warpgroup's on.
FUNCTION int channel_of(int thread) {
    const int warp = thread / 32, number = thread % 32 / 4;
    if (ROWS == 2) return warp * 32 + (number % 2 * 4 + number / 2) * 4;
    return warp / 2 * 32 + (warp % 2 * 2 + number / 2 % 2 * 4 + number / 4) * 4 + number % 2 * 2;
}

FUNCTION int first_pixel(const Work &work, int warpgroup) { return work.first_row + warpgroup % WARPGROUPS_N * WN; }
FUNCTION int first_channel(int warpgroup) { return warpgroup / WARPGROUPS_N * ROWS * 64; }

struct SwappedConsumer : Consumer {
    const int channel;  // of those of a tile

    METHOD SwappedConsumer(const Ring &ring, int warpgroup)
        : Consumer(ring, warpgroup), channel(first_channel(warpgroup) + channel_of(threadIdx.x % 128)) {}

    // Brings the rows of a step of K; `steps`: where those of the tap begin.
    METHOD void load(u32 steps, int step, u32 (&rows)[ROWS][4]) const {
#pragma unroll
        for (int further = 0; further < 2; ++further) {
            const int k = lane % 4 + 4 * further;  // of 8 rows, after as many of which the permutation repeats
            const u32 from = steps + (channel / 32 * B_SLAB_BYTES + step * 1024 + k * 128) +
                             ((channel % 32 / 4 ^ k) * 16 + channel % 4 * 4);
            if constexpr (ROWS == 2) {
                const uint4 four = shared_load16(from);
                rows[0][2 * further] = four.x, rows[0][2 * further + 1] = four.y;
                rows[ROWS - 1][2 * further] = four.z, rows[ROWS - 1][2 * further + 1] = four.w;
            } else {
                const uint2 two = shared_load8(from);
                rows[0][2 * further] = two.x, rows[0][2 * further + 1] = two.y;
            }
        }
    }

    // While the products of some steps run, the rows of others are brought. A stage is given back when the next one's
    // last products have begun: those that are in flight then are its own.
    template <int CHUNKS, class Send>
    METHOD void multiply(Sums &sums, int blocks, bool, Send) {
        constexpr int at_once = STEPS % 4 ? STEPS : 4;
        u32 rows[at_once][ROWS][4];
        int previous = -1;
        wgmma_fence_operand(sums);
#pragma unroll 1
        for (int block = 0; block < blocks; ++block) {
            wait_for_stage();
            const u64 pixels = wgmma_descriptor(ring.a(place.stage) + warpgroup % WARPGROUPS_N * WN * A_ROW_BYTES, 16, A_ROW_BYTES);
#pragma unroll
            for (int tap = 0; tap < LINE_TAPS; ++tap) {
                if (HAS_SHORT_LINES && tap == LINE_TAPS - 1 && is_short_line(block)) continue;
                const u32 steps = ring.b(place.stage, block) + tap * TAP_B_BYTES;
#pragma unroll
                for (int step = 0; step < STEPS; ++step) {
                    wgmma_wait<at_once - 1>();  // the last products that had these registers
                    load(steps, step, rows[step % at_once]);
                    wgmma_fence();
#pragma unroll
                    for (int slab = 0; slab < ROWS; ++slab)
                        wgmma_a_tf32<false>(sums[slab], rows[step % at_once][slab], pixels + tap_offset(tap) + a_offset(step),
                                            block > 0 || tap > 0 || step > 0);
                    wgmma_commit();
                }
            }
            if (previous >= 0) release(previous);
            previous = place.stage;
            place.advance(ring);
        }
        wgmma_wait<0>();
        wgmma_fence_operand(sums);
        if (previous >= 0) release(previous);
        if (!blocks) clear(sums);
    }
};

// Stores `count` results of neighbouring channels of a pixel: alpha times the sums, plus beta times what is there.
template <int count>
FUNCTION void store_channels(const f32 (&sums)[count], RESULT *to, f32 alpha, f32 beta) {
    u32 words[count];
#pragma unroll
    for (int n = 0; n < count; ++n) words[n] = __float_as_uint(beta == 0 ? alpha * sums[n] : fmaf(alpha, sums[n], beta * to[n]));
    if constexpr (count == 4)
        store16(to, uint4{words[0], words[1], words[2], words[3]});
    else
        store8(to, uint2{words[0], words[1]});
}

// Stores the results of a tile. `pixels`: address of the places of the warpgroup's pixels in the result.
FUNCTION void store_pixels(const Sums &sums, const Tables &tables, const Work &work, u32 pixels, int warpgroup,
                           RESULT *result, f32 alpha, f32 beta) {
    const int channel = first_channel(warpgroup) + channel_of(threadIdx.x % 128);
    if (work.columns.from(tables, channel) <= 0) return;
    RESULT *to = result + work.columns.place(tables, channel);
#pragma unroll
    for (int i = 0; i < WN / 2; i += 4)
#pragma unroll
        for (int e = 0; e < 2; ++e) {
            const i64 place = shared_load_i64(pixels + (2 * i + threadIdx.x % 4 * 2 + e) * 8);
            if (place == NO_PLACE) continue;
            f32 values[2 * ROWS];
#pragma unroll
            for (int slab = 0; slab < ROWS; ++slab)
                values[2 * slab] = sums[slab][i + e], values[2 * slab + 1] = sums[slab][i + 2 + e];
            store_channels(values, to + place, alpha, beta);
        }
}

#if IS_SPLIT
// The same of a thread of reduce_partials, which has the sums of 16 pixels of a slab.
FUNCTION void store_pixels(const SUM (&sums)[2][4], const Tables &tables, const Work &work, int slab, int pair, int thread,
                           int warpgroup, RESULT *result, f32 alpha, f32 beta) {
    const int channel = first_channel(warpgroup) + channel_of(thread) + 2 * slab;
    if (work.columns.from(tables, channel) <= 0) return;
    RESULT *to = result + work.columns.place(tables, channel);
#pragma unroll
    for (int j = 0; j < 2; ++j)
#pragma unroll
        for (int e = 0; e < 2; ++e) {
            const i64 place = row_place(tables, work, first_pixel(work, warpgroup) + 16 * pair + 8 * j + thread % 4 * 2 + e);
            if (place == NO_PLACE) continue;
            const f32 values[2] = {(f32)sums[j][e], (f32)sums[j][2 + e]};
            store_channels(values, to + place, alpha, beta);
        }
}
#endif

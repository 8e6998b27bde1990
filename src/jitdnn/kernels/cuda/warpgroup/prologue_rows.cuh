// The prologue of a fprop. A warpgroup reads the rows of A that it multiplies anyway, so the path to shared memory carries
// no more than without. While it transforms what is multiplied next, the tensor cores multiply what came before.

constexpr int STEPS_OF_SUB = ROW_BYTES / 32;  // products along K, of a row
typedef u32 Fragments[ROWS][4];               // of A, for a product along K; see wgmma_a

struct PrologueConsumer : Consumer {
    const Tables &tables;
    int outer[ROWS][2], inner[ROWS][2];  // where the windows of the thread's rows begin: 16 bits each of d and h; w
    int a_channel, channel, tap[3];

    METHOD PrologueConsumer(const Ring &ring, const Tables &tables, int warpgroup)
        : Consumer(ring, warpgroup), tables(tables) {}

    METHOD void begin(const Work &work) {
        const Phase &phase = tables.phases[0];
#pragma unroll
        for (int slab = 0; slab < ROWS; ++slab)
#pragma unroll
            for (int half = 0; half < 2; ++half) {
                const int row = work.first_row + warpgroup / WARPGROUPS_N * ROWS * 64 + row_of(slab, half);
                const Position position(tables, 0, row);
                auto begin = [&](int n) {
                    return (int)(phase.axes[n].base + position.at[n] * phase.axes[n].input_stride);
                };
                outer[slab][half] = begin(0) << 16 | (begin(1) & 0xffff), inner[slab][half] = begin(2);
            }
        const int blocks = (int)tables.channel_blocks, first = work.first_block * SUBS;
        int number = first / blocks;
        channel = (first - number * blocks) * SUB_K;
        a_channel = work.group * (int)tables.a_channel_step;
#pragma unroll
        for (int n = 2; n > 0; --n) {
            const int taps = (int)phase.axes[n].taps;
            tap[n] = number % taps, number /= taps;
        }
        tap[0] = number;
    }

    // Whether the pixels of the thread's rows are inside, for the tap that is next: all bits, or none. Behind the last
    // tap none is.
    METHOD void find_inside(u32 (&inside)[ROWS][2]) const {
        const bool is_there = SUBS == 1 || tap[0] < (int)tables.phases[0].axes[0].taps;
#pragma unroll
        for (int slab = 0; slab < ROWS; ++slab)
#pragma unroll
            for (int half = 0; half < 2; ++half) {
                const int window[3] = {outer[slab][half] >> 16, (i16)outer[slab][half], inner[slab][half]};
                inside[slab][half] = is_there && is_inside(tables, window, tap) ? 0xffffffffu : 0;
            }
    }

    // Brings the fragments of a product along K, behind the prologue.
    METHOD void load(int stage, int number, const u32 (&inside)[ROWS][2], Fragments &a) const {
        const int row = warpgroup / WARPGROUPS_N * ROWS * 64 + threadIdx.x % 128 / 32 * 16 + lane % 16;
        const u32 permutation = row * ROW_BYTES >> 3 & (ROW_BYTES - 16);
        const int sub = number / STEPS_OF_SUB, of_sub = number % STEPS_OF_SUB;
        const u32 rows = ring.a(stage) + (sub * BM + row) * ROW_BYTES, piece = of_sub * 32 + lane / 16 * 16;
        const u32 parameters = ring.behind() + PARAMETERS_AT + (a_channel + channel) * 8;
#if ELEMENT_BYTES == 2
        const u32 from = parameters + (of_sub * 16 + lane % 4 * 2) * 8;
        const uint4 of_channels[2] = {shared_load16(from), shared_load16(from + 64)};
#else
        const u32 from = parameters + (of_sub * 8 + lane % 4) * 8;
        const uint2 of_channels[2] = {shared_load8(from), shared_load8(from + 32)};
#endif
#pragma unroll
        for (int slab = 0; slab < ROWS; ++slab) {
            ldmatrix_x4(a[slab], rows + slab * 64 * ROW_BYTES + (piece ^ permutation));
#pragma unroll
            for (int n = 0; n < 4; ++n)
                a[slab][n] = transformed(a[slab][n], of_channels[n / 2]) & inside[slab][n % 2];
        }
    }

    // To the next tap and channels.
    METHOD void advance() {
        const Phase &phase = tables.phases[0];
        channel += SUB_K;
        if (channel < (int)tables.channel_blocks * SUB_K) return;
        channel = 0;
        if (++tap[2] == (int)phase.axes[2].taps) tap[2] = 0, ++tap[1];
        if (tap[1] == (int)phase.axes[1].taps) tap[1] = 0, ++tap[0];
    }

    template <int CHUNKS, class Send>
    METHOD void multiply(Sums &sums, int blocks, bool is_sending, Send send) {
        int block = 0, previous = -1;
        Fragments a[2];  // of this product, and of the one before, which is in flight
        wgmma_fence_operand(sums);
        auto step = [&](auto during) {
            wait_for_stage();
            const u64 b = b_descriptor(ring, place.stage, 0, warpgroup);
            u32 inside[ROWS][2];
#pragma unroll
            for (int number = 0; number < STEPS; ++number) {
                if (number % STEPS_OF_SUB == 0) find_inside(inside);
                load(place.stage, number, inside, a[number % 2]);
                if (number % STEPS_OF_SUB == STEPS_OF_SUB - 1) advance();
                wgmma_fence();
#pragma unroll
                for (int slab = 0; slab < ROWS; ++slab)
                    MULTIPLY_A<B_MN_MAJOR>(sums[slab], a[number % 2][slab], b + b_offset(number),
                                           block > 0 || number > 0);
                wgmma_commit();
                if (number == 0) during();
                wgmma_wait<1>();
                if (number == 0 && previous >= 0) release(previous);
            }
            previous = place.stage;
            place.advance(ring);
            ++block;
        };
        for_stages<CHUNKS>(block, blocks, is_sending, send, step);
        wgmma_wait<0>();
        wgmma_fence_operand(sums);
        if (previous >= 0) release(previous);
        if (!blocks) clear(sums);
    }
};

FUNCTION void begin_prologue(const Ring &ring, const Tables &tables, const f32 *scale, const f32 *shift) {
    load_parameters(ring, tables, scale, shift);
}

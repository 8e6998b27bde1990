// The prologue of a fprop. A warpgroup reads the rows of A that it multiplies anyway, so the path to shared memory carries
// no more than without. While it transforms a stage the tensor cores work for another warpgroup.

constexpr int STEPS_OF_SUB = ROW_BYTES / 32;  // products along K, of a row
typedef u32 Fragments[STEPS][ROWS][4];        // of A, in a stage; see wgmma_a

struct PrologueConsumer {
    const Ring ring;
    const Tables &tables;
    const int warpgroup, lane;
    RingPlace place;
    int window[ROWS][2][3];  // where those of the thread's rows begin
    int a_channel, channel, tap[3];

    METHOD PrologueConsumer(const Ring &ring, const Tables &tables, int warpgroup)
        : ring(ring), tables(tables), warpgroup(warpgroup), lane(threadIdx.x % 32) {}

    METHOD void release(int stage) const {
        if (lane == 0) mbarrier_arrive(ring.empty(stage));
    }

    METHOD void begin(const Work &work) {
        const Phase &phase = tables.phases[0];
#pragma unroll
        for (int slab = 0; slab < ROWS; ++slab)
#pragma unroll
            for (int half = 0; half < 2; ++half) {
                const int row = work.first_row + warpgroup / WARPGROUPS_N * ROWS * 64 + row_of(slab, half);
                const Position position(phase, row);
#pragma unroll
                for (int n = 0; n < 3; ++n)
                    window[slab][half][n] = (int)(phase.axes[n].base + position.at[n] * phase.axes[n].input_stride);
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

    // Brings the fragments of a stage, behind the prologue.
    METHOD void load(int stage, Fragments &a) {
        const int row = warpgroup / WARPGROUPS_N * ROWS * 64 + threadIdx.x % 128 / 32 * 16 + lane % 16;
        const u32 rows = ring.a(stage) + row * ROW_BYTES, permutation = row * ROW_BYTES >> 3 & (ROW_BYTES - 16);
#pragma unroll
        for (int sub = 0; sub < SUBS; ++sub) {
            u32 inside[ROWS][2];
#pragma unroll
            for (int slab = 0; slab < ROWS; ++slab)
#pragma unroll
                for (int half = 0; half < 2; ++half)
                    inside[slab][half] = is_inside(tables, window[slab][half], tap) ? 0xffffffffu : 0;
            const u32 parameters = ring.shared + PARAMETERS_AT + (a_channel + channel) * 8;
#pragma unroll
            for (int of_sub = 0; of_sub < STEPS_OF_SUB; ++of_sub) {
                const int step = sub * STEPS_OF_SUB + of_sub;
                const u32 piece = (of_sub * 32 + lane / 16 * 16) ^ permutation;
#if ELEMENT_BYTES == 2
                const u32 from = parameters + (of_sub * 16 + lane % 4 * 2) * 8;
                const uint4 of_channels[2] = {shared_load16(from), shared_load16(from + 64)};
#else
                const u32 from = parameters + (of_sub * 8 + lane % 4) * 8;
                const uint2 of_channels[2] = {shared_load8(from), shared_load8(from + 32)};
#endif
#pragma unroll
                for (int slab = 0; slab < ROWS; ++slab) {
                    u32(&fragment)[4] = a[step][slab];
                    ldmatrix_x4(fragment, rows + (sub * BM + slab * 64) * ROW_BYTES + piece);
#pragma unroll
                    for (int n = 0; n < 4; ++n)
                        fragment[n] = transformed(fragment[n], of_channels[n / 2]) & inside[slab][n % 2];
                }
            }
            channel += SUB_K;
            if (channel >= (int)tables.channel_blocks * SUB_K) {
                channel = 0;
                if (++tap[2] == (int)tables.phases[0].axes[2].taps) tap[2] = 0, ++tap[1];
                if (tap[1] == (int)tables.phases[0].axes[1].taps) tap[1] = 0, ++tap[0];
            }
        }
    }

    template <int CHUNKS, class Send>
    METHOD void multiply(Sums &sums, int blocks, bool is_sending, Send send) {
        int block = 0;
        auto step = [&](auto during) {
            mbarrier_wait(ring.full(place.stage), place.parity);
            Fragments a;
            load(place.stage, a);
            constexpr int b_row = B_MN_MAJOR ? 128 : ROW_BYTES;
            const u64 b =
                wgmma_descriptor(ring.b(place.stage) + warpgroup % WARPGROUPS_N * WN * b_row, SLAB_BYTES, b_row);
            wgmma_fence();
#pragma unroll
            for (int along = 0; along < STEPS; ++along)
#pragma unroll
                for (int slab = 0; slab < ROWS; ++slab)
                    MULTIPLY_A<B_MN_MAJOR>(sums[slab], a[along][slab], b + step_offset<B_MN_MAJOR, BN>(along),
                                           block > 0 || along > 0);
            wgmma_commit();
            during();
            wgmma_wait<0>();
            release(place.stage);
            place.advance();
            ++block;
        };
        if (is_sending) {
            if (blocks >= CHUNKS) {
#pragma unroll
                for (int chunk = 0; chunk < CHUNKS; ++chunk) step([&] { send(chunk); });
            } else {  // too few products to hide the chunks behind
#pragma unroll
                for (int chunk = 0; chunk < CHUNKS; ++chunk) send(chunk);
            }
        }
        while (block < blocks) step([] {});
        if (!blocks) {
#pragma unroll
            for (int slab = 0; slab < ROWS; ++slab)
#pragma unroll
                for (int i = 0; i < WN / 2; ++i) sums[slab][i] = 0;
        }
    }
};

FUNCTION void begin_prologue(const Ring &ring, const Tables &tables, const f32 *scale, const f32 *shift) {
    load_parameters(ring, tables, scale, shift);
}

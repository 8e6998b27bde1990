// The prologue of a wgrad: all consumers together transform the pixels of the next stage in shared memory, while the
// tensor cores multiply those of this one. What is outside of the image is zero already, and stays.

constexpr int AT_ONCE = 16 * WARPGROUPS;                  // pixels, eight threads each
constexpr int TURNS = (BK + AT_ONCE - 1) / AT_ONCE;       // until those of a stage are done

FUNCTION u32 ready_barrier(const Ring &ring, int stage) { return ring.behind() + READY_AT + 8 * stage; }

struct PrologueConsumer : Consumer {
    const Tables &tables;
    RingPlace ahead;               // of what is transformed next
    int pixel;                     // the first of the stage
    Position at[TURNS], step;      // of this thread's pixels; of BK pixels
    int b_channel, columns;
    Column first;  // of the tile

    METHOD PrologueConsumer(const Ring &ring, const Tables &tables, int warpgroup)
        : Consumer(ring, warpgroup), tables(tables), step(tables.phases[0], BK), first(tables, 0) {}

    METHOD void begin(const Work &work) {
        pixel = work.first_block * BK;
#pragma unroll
        for (int turn = 0; turn < TURNS; ++turn)
            at[turn] = Position(tables.phases[0], pixel + threadIdx.x / 8 + turn * AT_ONCE);
        b_channel = work.group * (int)tables.b_column_step;
        columns = work.columns.count;
        first = Column(tables, work.columns.first);
    }

    METHOD void prepare() {
        const Phase &phase = tables.phases[0];
        const int piece = threadIdx.x % 8;
        mbarrier_wait(ring.full(ahead.stage), ahead.parity);
        Column one = first;
#pragma unroll 1
        for (int n = 0; n < min(BN, columns); n += 64) {
            const u32 parameters = ring.behind() + PARAMETERS_AT + (b_channel + one.channel + piece * 8) * 8;
            uint4 of_channels[4];
#pragma unroll
            for (int pair = 0; pair < 4; ++pair) of_channels[pair] = shared_load16(parameters + pair * 16);
#pragma unroll
            for (int turn = 0; turn < TURNS; ++turn) {
                const int row = threadIdx.x / 8 + turn * AT_ONCE;
                int window[3];
#pragma unroll
                for (int axis = 0; axis < 3; ++axis)
                    window[axis] = (int)phase.axes[axis].base + at[turn].at[axis] * (int)phase.axes[axis].input_stride;
                if (row >= BK || pixel + row >= (int)phase.rows || !is_inside(tables, window, one.tap)) continue;
                const u32 place = ring.b(ahead.stage, 0) + n * 128 + row * 128 + (piece ^ row % 8) * 16;
                const uint4 x = shared_load16(place);
                shared_store16(place, uint4{transformed(x.x, of_channels[0]), transformed(x.y, of_channels[1]),
                                            transformed(x.z, of_channels[2]), transformed(x.w, of_channels[3])});
            }
            one.channel += 64;
            if (one.channel >= (int)tables.channel_blocks * 64) {
                one.channel = 0;
                if (++one.tap[2] == (int)phase.axes[2].taps) one.tap[2] = 0, ++one.tap[1];
                if (one.tap[1] == (int)phase.axes[1].taps) one.tap[1] = 0, ++one.tap[0];
            }
        }
        async_proxy_fence();
        __syncwarp();
        if (lane == 0) mbarrier_arrive(ready_barrier(ring, ahead.stage));
        ahead.advance(ring);
        // the same pixels of the next stage: BK further
        pixel += BK;
#pragma unroll
        for (int turn = 0; turn < TURNS; ++turn) at[turn].add(phase, step);
    }

    template <int CHUNKS, class Send>
    METHOD void multiply(Sums &sums, int blocks, bool is_sending, Send send) {
        int block = 0;
        auto step = [&](auto during) {
            mbarrier_wait(ready_barrier(ring, place.stage), place.parity);
            multiply_stage(ring, place.stage, block, warpgroup, sums, block > 0);
            during();
            if (block + 1 < blocks) prepare();
            finish_stage(sums);
            ++block;
        };
        if (blocks) prepare();
        wgmma_fence_operand(sums);
        for_stages<CHUNKS>(block, blocks, is_sending, send, step);
        if (!blocks) clear(sums);
    }
};

FUNCTION void begin_prologue(const Ring &ring, const Tables &tables, const f32 *scale, const f32 *shift) {
    if (threadIdx.x == 0) {
        for (int stage = 0; stage < STAGES; ++stage) mbarrier_init(ready_barrier(ring, stage), 4 * WARPGROUPS);
        mbarrier_init_fence();
    }
    load_parameters(ring, tables, scale, shift);
}

// Matrix products on the tensor cores of sm_90a: one thread copies, or two in turns, and warpgroups multiply.
//
//     tile of a thread block   BM rows x BN columns of the product, sums in registers
//
//              BK: 128 bytes along K, mostly                 a ring of stages in shared memory:
//            +-----+                                         full[stage]   the operands of a stage have arrived
//            |  B  | BN columns                              empty[stage]  all warps have read them
//            +-----+
//     +-----+  =  +---------------+
//     |     |     |               |  64 * ROWS rows x WN columns of each consumer: a warpgroup, of which there are
//     |  A  |     |  BM x BN sums |  WARPGROUPS_M down and WARPGROUPS_N across
//     +-----+     +---------------+
//
// A thread block stays on its multiprocessor and takes one piece of work after the other: a tile, or one of the splits
// of a tile's K. The results of a tile leave chunk by chunk while the tensor cores work on the next one.
//
// With PARTS 2 every operand comes as two halves whose sum it is: the products hi * hi, hi * lo and lo * hi are added. With
// PARTS 3 it is the sum of three numbers of bf16, the six largest of whose nine products are added.
// Where IS_PROMOTED (of halves, and of 8-bit reals) the sums of each stage are moved to f32 registers, since the tensor
// cores truncate as they add.
//
// What the kernel is for says the text behind this (convolution/warpgroup_gemm): `Work`, `Loader`, and where results lie.

// Where operands lie in shared memory: with TAKES_RING as the host says, B behind all stages of A, so that one compiled
// kernel serves any number of stages, and keeps all of B or not; else the operands of each stage side by side.
struct Ring {
    u32 shared;  // address of the first stage
#if TAKES_RING
    u32 first_b, staging;
    int count, keeps_b;

    METHOD Ring(u32 shared, const Tables &tables)
        : shared(shared), first_b(shared + (u32)tables.first_b), staging(shared + (u32)tables.staging),
          count((int)tables.stages), keeps_b((int)tables.keeps_b) {}
    // The same, kept by threads that use it often: without, the compiler asks for the beginning of shared memory each time.
    METHOD Ring kept() const {
        Ring own = *this;
        own.shared = shuffle(shared, 0), own.first_b = shuffle(first_b, 0);
        return own;
    }
    METHOD int stages() const { return count; }
    METHOD u32 behind() const { return staging; }
    METHOD u32 a(int stage) const { return shared + stage * (PARTS * A_BYTES); }
    // Of a stage or, if all of B is kept, of a step of K.
    METHOD u32 b(int stage, int block) const { return first_b + (keeps_b ? block : stage) * (PARTS * B_BYTES); }
#else
    METHOD Ring(u32 shared, const Tables &) : shared(shared) {}
    METHOD Ring kept() const { return *this; }
    METHOD int stages() const { return STAGES; }
    METHOD u32 behind() const { return shared + STAGES * STAGE_BYTES; }
    METHOD u32 a(int stage) const { return shared + stage * STAGE_BYTES; }
    METHOD u32 b(int stage, int) const { return shared + stage * STAGE_BYTES + PARTS * A_BYTES; }
#endif
    METHOD u32 full(int stage) const { return behind() + BARRIERS_AT + 16 * stage; }
    METHOD u32 empty(int stage) const { return behind() + BARRIERS_AT + 16 * stage + 8; }

    METHOD void initialize() const {
#if TAKES_RING
#pragma unroll 1
#endif
        for (int stage = 0; stage < stages(); ++stage) {
            mbarrier_init(full(stage), 1);
            mbarrier_init(empty(stage), 4 * WARPGROUPS);
        }
        mbarrier_init_fence();
    }
};

// The place in the ring: of the producer, or of a consumer.
struct RingPlace {
    int stage = 0;
    u32 parity = 0;

    METHOD void advance(const Ring &ring) {
        if (++stage == ring.stages()) stage = 0, parity ^= 1;
    }
};

// Whether the stage of a step of K, of all of K, has one tap less than LINE_TAPS.
FUNCTION bool is_short_line(int block) { return HAS_SHORT_LINES && block % LINE_CLASSES >= LINE_LONG; }

// Threads that copy, in turns, each of a warp of its own: what a stage of little work takes one thread, 290 cycles, is longer
// than the stage. All threads find the first tile, before they wait for the launch before: the compiler then knows that it
// is the same for all, and keeps what copies want in uniform registers. Other kernels have no registers for it, and of larger
// tiles of a filter gradient a stage takes longer than its copies.
#define IS_SMALL_WGRAD (SUBS == 1 && PARTS == 1 && 64 * ROWS * WARPGROUPS_M * WN * WARPGROUPS_N <= 64 * 128 && \
                        !(SEGMENT || IS_CLUSTERED || IS_BLOCKWISE || IS_SCALED || IS_DIVIDED || HAS_PROLOGUE))
#if (A_MN_MAJOR && B_MN_MAJOR && !IS_SMALL_WGRAD) || PHASES > 1 || LINE_TAPS > 1 || IS_STREAMED
#define COPIERS 1
#define COPIER_PARAMETERS
#else
#define COPIERS 2
#define COPIER_PARAMETERS , const Work &first_work, const Loader &first_loader, int copier
#endif

#if TAKES_RING && COPIERS > 1
// Memory is idle from the end of one launch to the first copies of the next. So before the launch before is done, the first
// stages are asked for, as far as the L2 cache: those of each row, and of each column, by the one thread block that is first
// there. If all that want the same asked for it, this took longer than it saves.
FUNCTION void ask_ahead(const Tables &tables, const Work &work, Loader loader) {
    const bool asks_for_a = work.columns.first == 0, asks_for_b = work.first_row == 0;
    const int stages = asks_for_a || asks_for_b ? min((int)tables.asked, work.last_block) : 0;
#pragma unroll 1
    for (int stage = 0; stage < stages; ++stage) loader.load(tables, 0, 0, 0, asks_for_b, asks_for_a, ToCache());
}
#endif

// The pieces of work of a thread block, one of each turn of all of them. Of stride phases those with most stages come first:
// in every second turn pieces are numbered from the last thread block to the first, or the same ones would have the longest
// of each turn.
struct Turns {
    static constexpr bool goes_back = PHASES > 1;
    int number, step;

    METHOD Turns() : number(blockIdx.x), step(goes_back ? 2 * gridDim.x - 1 - 2 * blockIdx.x : gridDim.x) {}
    METHOD void next() {
        number += goes_back ? step : (int)gridDim.x;
        if (goes_back) step = 2 * gridDim.x - step;
    }
};

// Where all tiles have the same columns, and there is room for all of B (Ring::keeps_b), it comes with the stages of the
// first tile, and stays.
FUNCTION void produce(const Ring &ring, const Tables &tables COPIER_PARAMETERS) {
    RingPlace place;
#if COPIERS > 1
    bool is_own = copier == 0;  // the next stage
#endif
#if IS_STREAMED  // both halves of each piece of work
    for (int number = blockIdx.x, half = 0; number < (int)tables.works; number += half * gridDim.x, half ^= 1) {
#else
    for (Turns turns; turns.number < (int)tables.works; turns.next()) {
        const int number = turns.number;
#endif
        const bool is_first = number == (int)blockIdx.x;
#if COPIERS > 1
        const Work work = is_first ? first_work : Work(tables, number);
        Loader loader = is_first ? first_loader : Loader(tables, work);
#elif IS_STREAMED
        const Work work = half_of(Work(tables, number), half);
        Loader loader(tables, work);
#else
        const Work work(tables, number);
        Loader loader(tables, work);
#endif
        for (int block = work.first_block; block < work.last_block; ++block) {
#if COPIERS > 1
            if (!is_own) {
                is_own = true;
                loader.skip(tables);
                place.advance(ring);
                continue;
            }
            is_own = false;
#endif
            mbarrier_wait(ring.empty(place.stage), place.parity ^ 1);
            const u32 to_b = ring.b(place.stage, block);
#if PAIRED
            const int copied = COPIED_BYTES - (loader.is_of_both ? 0 : B_BYTES / 2);
#else
            const int copied = COPIED_BYTES - (is_short_line(block) ? TAP_B_BYTES : 0);
#endif
#if TAKES_RING
            const bool has_b = is_first || !ring.keeps_b;
            mbarrier_arrive_expect(ring.full(place.stage), has_b ? copied : PARTS * COPIED_A_BYTES);
            loader.load(tables, ring.a(place.stage), to_b, ring.full(place.stage), has_b);
#else
            mbarrier_arrive_expect(ring.full(place.stage), copied);
            loader.load(tables, ring.a(place.stage), to_b, ring.full(place.stage));
#endif
            place.advance(ring);
        }
#if HAS_BROUGHT
        const int brought = brought_stages(work);
        for (int stage = 0; stage < brought; ++stage) {
#if COPIERS > 1
            if (!is_own) {
                is_own = true;
                place.advance(ring);
                continue;
            }
            is_own = false;
#endif
            mbarrier_wait(ring.empty(place.stage), place.parity ^ 1);
            bring(tables, work, ring.a(place.stage), ring.full(place.stage), stage);
            place.advance(ring);
        }
#endif
    }
}

typedef SUM Sums[ROWS][WN / 2];  // of a thread; see wgmma

// Row of a tile that a thread of a warpgroup holds, in a slab: `half` 0, and 8 rows below it 1. Where threads divide
// pixels (divide_rows.cuh) every second of eight comes first.
FUNCTION int row_of(int slab, int half, int thread) {
    const int number = thread % 32 / 4;
    return slab * 64 + thread / 32 * 16 + half * 8 + (DIVIDES_ROWS && !A_MN_MAJOR ? number % 4 * 2 + number / 4 : number);
}

// From the beginning of an operand's stage to that of a product along K, in units of a descriptor's address: of an operand
// that lies along K, `rows` of it, and of one that lies across, in rows of `row` bytes.
FUNCTION constexpr u32 offset_along(int step, int rows) {
    constexpr int steps = ROW_BYTES / 32;  // of a row
    return (step / steps * rows * ROW_BYTES + step % steps * 32) / 16;
}
FUNCTION constexpr u32 offset_across(int step, int row) { return step * row; }

FUNCTION constexpr u32 a_offset(int step) { return A_MN_MAJOR ? offset_across(step, 128) : offset_along(step, BM); }

// The same from the pixels of the first tap of a line to those of another.
FUNCTION constexpr u32 tap_offset(int tap) {
    const int pixel = LINE_FIRST + tap, row = pixel / LINE_PIXELS;
    return LINE_PIXELS > 1 ? (row * A_ROW_BYTES + (pixel - row * LINE_PIXELS) * ROW_BYTES) / 16
                           : tap * LINE_STEP * ROW_BYTES / 16;
}

FUNCTION constexpr u32 b_offset(int step) {
    if (SEGMENT) {  // in lines
        const int pixel = step * 16, segment = pixel / (SEGMENT ? SEGMENT : 1);
        return (segment * SEGMENT_ROWS + pixel - segment * SEGMENT) * 128 / 16;
    }
    return B_MN_MAJOR ? offset_across(step, B_ROW_BYTES) : offset_along(step, BN);
}

FUNCTION int row_of(int slab, int half) { return row_of(slab, half, threadIdx.x % 128); }

// The columns of a warpgroup in a stage; `block`: the step of K.
FUNCTION u64 b_descriptor(const Ring &ring, int stage, int block, int warpgroup) {
    return wgmma_descriptor(ring.b(stage, block) + warpgroup % WARPGROUPS_N * WARPGROUP_B_BYTES,
                            SEGMENT ? 128 : B_SLAB_BYTES, B_ROW_BYTES);
}

// Begins the products of a stage for the slabs of one warpgroup. `block`: the step of K; `is_added`: to the sums that
// there are.
FUNCTION void multiply_stage(const Ring &ring, int stage, int block, int warpgroup, Sums &sums, bool is_added) {
    constexpr int a_row = A_MN_MAJOR ? 128 : A_ROW_BYTES;
    constexpr int of_slab = A_MN_MAJOR ? SLAB_BYTES : 64 * a_row;
    const u64 a = wgmma_descriptor(ring.a(stage) + warpgroup / WARPGROUPS_N * ROWS * of_slab, SLAB_BYTES, a_row);
    const u64 b = b_descriptor(ring, stage, block, warpgroup);
    wgmma_fence();
    // the small products first: with halves lo * hi, hi * lo, then hi * hi
#pragma unroll
    for (int smallness = IS_ROUGH ? 0 : PARTS - 1; smallness >= 0; --smallness)
#pragma unroll
        for (int part = 0; part <= smallness; ++part) {
            const u64 a_part = a + (smallness - part) * (A_BYTES / 16), b_part = b + part * (B_BYTES / 16);
#pragma unroll
            for (int number = 0; number < LINE_TAPS * STEPS; ++number) {
                const int tap = number / STEPS, step = number % STEPS;
                if (HAS_SHORT_LINES && tap == LINE_TAPS - 1 && is_short_line(block)) continue;
                const u32 of_a = tap_offset(tap), of_b = tap * TAP_B_BYTES / 16;
#pragma unroll
                for (int row = 0; row < ROWS; ++row)
                    MULTIPLY<A_MN_MAJOR, B_MN_MAJOR && !SWAPS_OPERANDS>(
                        sums[row], a_part + of_a + a_offset(step) + row * (of_slab / 16),
                        b_part + of_b + b_offset(step), is_added);
                is_added = true;
            }
        }
    wgmma_commit();
}

#if PAIRED
// The same where halves of the columns are products of their own: in stages that the first half has no tap of it is left out.
FUNCTION void multiply_halves(const Ring &ring, int stage, int block, int warpgroup, Sums &sums, bool is_added, bool is_of_both) {
    const u64 a = wgmma_descriptor(ring.a(stage) + warpgroup * ROWS * 64 * A_ROW_BYTES, SLAB_BYTES, A_ROW_BYTES);
    const u64 b = b_descriptor(ring, stage, block, warpgroup);
    wgmma_fence();
#pragma unroll
    for (int half = 1; half >= 0; --half) {
        if (half == 0 && !is_of_both) continue;
#pragma unroll
        for (int step = 0; step < STEPS; ++step)
#pragma unroll
            for (int row = 0; row < ROWS; ++row)
                MULTIPLY<A_MN_MAJOR, B_MN_MAJOR>(
                    (SUM(&)[WN / 4])sums[row][half * (WN / 4)], a + a_offset(step) + row * (64 * A_ROW_BYTES / 16),
                    b + half * (BN / 2 / B_BLOCK * B_SLAB_BYTES / 16) + b_offset(step), is_added || step > 0);
    }
    wgmma_commit();
}
#endif

FUNCTION void clear(Sums &sums) {
#pragma unroll
    for (int row = 0; row < ROWS; ++row)
#pragma unroll
        for (int i = 0; i < WN / 2; ++i) sums[row][i] = 0;
}

// Takes the steps of a tile from `block` on, which each step counts: with `is_sending` it sends a chunk of the tile before
// in each of the first ones, or where these are too few all chunks in the first. Every text stands here once, but the
// chunks' twice: unrolled, steps with and without them are half of what the compiler has to do.
template <int CHUNKS, class Send, class Step>
FUNCTION void for_stages(const int &block, int blocks, bool is_sending, Send &send, Step &step) {
    int next = is_sending ? 0 : CHUNKS;
    // filter gradients have few steps of many bytes: their chunks take turns with these where they can
    const int at_once = blocks >= CHUNKS ? 1 : IS_WGRAD && 2 * blocks >= CHUNKS ? 2 : CHUNKS;
    const bool has_pauses = IS_WGRAD && blocks >= 2 * CHUNKS;
    auto during = [&] {
        if (next >= CHUNKS || (has_pauses && block % 2)) return;
#pragma unroll
        for (int chunk = 0; chunk < CHUNKS; ++chunk)
            if (chunk >= next && chunk < next + at_once) send(chunk);
        next += at_once;
    };
    if (!blocks) during();
#pragma unroll 1
    while (block < blocks) step(during);
}

// The loop over K of a consumer. `send(chunk)` sends a chunk of the tile before, while products are in flight.
struct Consumer {
    const Ring ring;
    const int warpgroup, lane;
    RingPlace place;
#if PAIRED
    int stages_of_both;
#endif

    METHOD Consumer(const Ring &ring, int warpgroup) : ring(ring.kept()), warpgroup(warpgroup), lane(threadIdx.x % 32) {}

    METHOD void release(int stage) const {
        if (lane == 0) mbarrier_arrive(ring.empty(stage));
    }
    METHOD void wait_for_stage() const { mbarrier_wait(ring.full(place.stage), place.parity); }
    // Waits for all products in flight, which are of this stage and have these sums, and gives it back.
    METHOD void finish_stage(Sums &sums) {
        wgmma_wait<0>();
        wgmma_fence_operand(sums);
        release(place.stage);
        place.advance(ring);
    }

    template <int CHUNKS, class Send>
    METHOD void multiply(Sums &sums, int blocks, bool is_sending, Send send) {
        int block = 0;
#if !IS_PROMOTED
        // a stage is given back one step late, when the next products are in flight already
        int previous = -1;
        wgmma_fence_operand(sums);
        auto step = [&](auto during) {
            wait_for_stage();
#if PAIRED
            multiply_halves(ring, place.stage, block, warpgroup, sums, block > 0, block < stages_of_both);
#else
            multiply_stage(ring, place.stage, block, warpgroup, sums, block > 0);
#endif
            during();
            wgmma_wait<1>();
            if (previous >= 0) release(previous);
            previous = place.stage;
            place.advance(ring);
            ++block;
        };
#else
        Sums stage_sums;
        clear(sums);
        auto step = [&](auto during) {
            wait_for_stage();
            multiply_stage(ring, place.stage, block, warpgroup, stage_sums, false);
            during();
            finish_stage(stage_sums);
#pragma unroll
            for (int row = 0; row < ROWS; ++row)
#pragma unroll
                for (int i = 0; i < WN / 2; ++i) sums[row][i] += stage_sums[row][i];
            ++block;
        };
#endif
        for_stages<CHUNKS>(block, blocks, is_sending, send, step);
#if !IS_PROMOTED
        wgmma_wait<0>();
        wgmma_fence_operand(sums);
        if (previous >= 0) release(previous);
        if (!blocks) clear(sums);
#endif
    }
};

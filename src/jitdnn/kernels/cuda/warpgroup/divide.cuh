// f32 that the copy engine brings as it is, and that is divided into halves where it lies: by all consumers together a
// stage ahead, while the tensor cores multiply those of this one, or by DIVIDERS warpgroups that do nothing else. So no
// pass over the operands comes before.
//
//     f32, as it comes     64 pixels of 32 channels | 64 pixels of the next 32
//     halves               high, 64 channels        | low, 64 channels              16 lanes have a pixel of both
//
// In lines (SEGMENT) x has a few pixels more, which the taps of a line of the filter share.
//
// The largest number of a stage, of each operand, becomes 2^13; the sums of a stage are multiplied by what undoes that when
// they are moved to other registers. Of what is not finite the sums are computed by multiply-adds (store_exact_partial).

constexpr int DIVIDING = DIVIDERS ? 1 : WARPGROUPS;  // warpgroups that divide a stage: of several DIVIDERS each its own
constexpr int FIRST_DIVIDING = DIVIDERS ? 4 * WARPGROUPS : 0;  // warp
constexpr int KNOWN_AT = BARRIERS_AT + 16 * STAGES;            // barriers of each stage: maxima are known, halves ready
constexpr int FOUND_AT = KNOWN_AT + 16 * STAGES;               // maxima, of both operands, by each warp
constexpr int FOUND_WORDS = 8 * DIVIDING;
constexpr int GROUPS_OF_A = DIVIDES_ROWS ? 0 : BM / 64, GROUPS_OF_B = SEGMENT ? WARPGROUPS_N : B_COLUMNS / 64;
constexpr int GROUPS = GROUPS_OF_A + GROUPS_OF_B;  // of 64 channels
constexpr int PIXELS_AT_ONCE = 8 * DIVIDING, PIXELS_OF_B = SEGMENT ? SEGMENTS * SEGMENT_ROWS : 64;
constexpr int TURNS = (PIXELS_OF_B + PIXELS_AT_ONCE - 1) / PIXELS_AT_ONCE;  // until all pixels are divided
constexpr int PIECES = GROUPS_OF_A * ((64 + PIXELS_AT_ONCE - 1) / PIXELS_AT_ONCE) + GROUPS_OF_B * TURNS;  // of a lane
// Whether a thread keeps what it has looked at until it is divided, beside its sums.
constexpr bool KEEPS = DIVIDERS ? PIECES * 4 <= DIVIDER_REGISTERS - 40
                                : ROWS * WN + GROUPS * TURNS * 4 <=
                                      (WARPGROUPS == 3 ? 96 : 176) - (DIVIDES_ROWS ? 32 * ROWS : 0);
static_assert(PARTS == 2 && A_MN_MAJOR && B_MN_MAJOR, "of filter gradients alone");

// Divides the stages of the ring, one after the other.
struct Divider {
    const Ring ring;
    const int lane, warp;   // the latter among those that divide a stage
    RingPlace ahead;        // of what is divided next
    int shifts;             // what that was multiplied by is 2 to this
    bool is_finite = true;  // all that was divided for this work

    METHOD explicit Divider(const Ring &ring)
        : ring(ring), lane(threadIdx.x % 32), warp((threadIdx.x / 32 - FIRST_DIVIDING) % (4 * DIVIDING)) {}

    METHOD u32 known(int stage) const { return ring.behind() + KNOWN_AT + 16 * stage; }
    METHOD u32 ready(int stage) const { return known(stage) + 8; }
    // Where 64 channels of a stage lie, and from their first half to the second.
    METHOD u32 channels_at(int stage, int group) const {
        return group < GROUPS_OF_A ? ring.a(stage) + group * SLAB_BYTES
                                   : ring.b(stage, 0) + (group - GROUPS_OF_A) * (SEGMENT ? WARPGROUP_B_BYTES : SLAB_BYTES);
    }
    METHOD static u32 between(int group) { return group < GROUPS_OF_A ? A_BYTES : B_BYTES; }
    METHOD u32 piece_at(u32 channels, u32 between, int pixel) const {
        const int piece = lane % 8;
        return channels + (lane % 16 < 8 ? 0 : between) + pixel * 128 + (piece ^ pixel % 8) * 16;
    }

    // By what power of two numbers are multiplied whose largest has these bits: all of them, and the largest becomes 2^13,
    // or 2 where it is that small.
    METHOD static int shift_of(u32 most) { return most ? min(13 - (max((int)(most >> 23), 1) - 127), 127) : 0; }
    METHOD static f32 power(int exponent) { return __uint_as_float((u32)(exponent + 127) << 23); }

    // The piece of a lane in one of its turns: 16 bytes of f32.
    METHOD uint4 load_piece(int stage, int group, int turn) const {
        return shared_load16(piece_at(channels_at(stage, group), between(group), pixel_of(turn)));
    }
    METHOD int pixel_of(int turn) const { return warp * 2 + lane / 16 + turn * PIXELS_AT_ONCE; }
    // Whether a lane has a piece in one of its turns: a stage of x in lines has room for more pixels than it has.
    METHOD bool has(int group, int turn) const {
        const bool is_a = group < GROUPS_OF_A;
        const int pixels = is_a ? 64 : PIXELS_OF_B, pixel = pixel_of(turn);
        if (turn * PIXELS_AT_ONCE >= pixels || (pixels % PIXELS_AT_ONCE && pixel >= pixels)) return false;
        return is_a || !SEGMENT || pixel % SEGMENT_ROWS < SEGMENT + TAPS_AT_ONCE - 1;
    }

    // Makes halves of a piece, where those of all lanes are read.
    METHOD void store(int stage, int group, int turn, const uint4 &four, f32 scale) const {
        const f32 values[4] = {scale * __uint_as_float(four.x), scale * __uint_as_float(four.y),
                               scale * __uint_as_float(four.z), scale * __uint_as_float(four.w)};
        u32 high[2], low[2];
#pragma unroll
        for (int n = 0; n < 2; ++n) {
            high[n] = pack_f16(values[2 * n], values[2 * n + 1]);
            if (IS_ROUGH) continue;
            low[n] = pack_f16(values[2 * n] - f16_low(high[n]), values[2 * n + 1] - f16_high(high[n]));
        }
        const int pixel = pixel_of(turn);
        const u32 to = channels_at(stage, group) + pixel * 128 + (lane % 16 / 2 ^ pixel % 8) * 16 + lane % 2 * 8;
        shared_store8(to, high[0], high[1]);
        if (!IS_ROUGH) shared_store8(to + between(group), low[0], low[1]);
    }

    // What the numbers of a stage are multiplied by is 2 to `own`, of each operand, once the largest of all are known.
    METHOD void look_up(int stage, int (&own)[2]) {
#pragma unroll
        for (int operand = 0; operand < 2; ++operand) own[operand] = 0;
#pragma unroll
        for (int operand = DIVIDES_ROWS; operand < 2; ++operand) {
            u32 found = 0;
#pragma unroll
            for (int four = 0; four < DIVIDING; ++four) {
                const uint4 of_warps = shared_load16(slots(stage) + (operand * 4 * DIVIDING + four * 4) * 4);
                found = max(max(found, max(of_warps.x, of_warps.y)), max(of_warps.z, of_warps.w));
            }
            is_finite = is_finite && found < 0x7f800000u;
            own[operand] = shift_of(found);
        }
        shifts = own[0] + own[1];
    }
    METHOD u32 slots(int stage) const { return ring.behind() + FOUND_AT + stage * FOUND_WORDS * 4; }

    METHOD void divide_ahead() {
        const int stage = ahead.stage;
        mbarrier_wait(ring.full(stage), ahead.parity);
        f32 most[2] = {0, 0};  // of what is a number: NaN stays NaN
        uint4 kept[KEEPS ? GROUPS : 1][KEEPS ? TURNS : 1];
#pragma unroll
        for (int group = 0; group < GROUPS; ++group)
#pragma unroll
            for (int turn = 0; turn < TURNS; ++turn) {
                if (!has(group, turn)) continue;
                const uint4 four = load_piece(stage, group, turn);
                if constexpr (KEEPS) kept[group][turn] = four;
                f32 &found = most[group >= GROUPS_OF_A];
                auto size = [](u32 bits) { return fabsf(__uint_as_float(bits)); };
                found = fmaxf(fmaxf(found, fmaxf(size(four.x), size(four.y))), fmaxf(size(four.z), size(four.w)));
            }
#pragma unroll
        for (int operand = DIVIDES_ROWS; operand < 2; ++operand) {
            const u32 found = warp_max(__float_as_uint(most[operand]));
            if (lane == 0) shared_store4(slots(stage) + (operand * 4 * DIVIDING + warp) * 4, found);
        }
        if (lane == 0) mbarrier_arrive(known(stage));
        mbarrier_wait(known(stage), ahead.parity);
        int own[2];
        look_up(stage, own);
        const f32 scales[2] = {power(own[0]), power(own[1])};
#pragma unroll
        for (int group = 0; group < GROUPS; ++group) {
            const f32 scale = scales[group >= GROUPS_OF_A];
            if constexpr (KEEPS) {
#pragma unroll
                for (int turn = 0; turn < TURNS; ++turn)
                    if (has(group, turn)) store(stage, group, turn, kept[group][turn], scale);
            } else {
                constexpr int at_once = TURNS < 4 ? TURNS : 4;
#pragma unroll
                for (int begin = 0; begin < TURNS; begin += at_once) {
                    uint4 fours[at_once];
#pragma unroll
                    for (int n = 0; n < at_once; ++n)
                        if (has(group, begin + n)) fours[n] = load_piece(stage, group, begin + n);
                    __syncwarp();  // all lanes have what they overwrite
#pragma unroll
                    for (int n = 0; n < at_once; ++n)
                        if (has(group, begin + n)) store(stage, group, begin + n, fours[n], scale);
                }
            }
        }
        async_proxy_fence();
        __syncwarp();
        if (lane == 0) mbarrier_arrive(ready(stage));
        ahead.advance(ring);
    }
};

#if DIVIDERS
// All stages of a thread block, of which several warpgroups take every other one: a stage is divided in some 1500 cycles,
// most of them spent waiting.
FUNCTION void divide_all(const Ring &ring, const Tables &tables) {
    Divider divider(ring);
    int before = shuffle((int)threadIdx.x / 128, 0) - WARPGROUPS;  // until the next one of its own
    for (Turns turns; turns.number < (int)tables.works; turns.next()) {
        const Work work(tables, turns.number);
        for (int block = work.first_block; block < work.last_block; ++block) {
            if (before == 0) {
                divider.divide_ahead();
                before = DIVIDERS;
            } else {
                divider.ahead.advance(ring);
            }
            --before;
        }
    }
}
#endif

#if DIVIDES_ROWS
typedef RowDividingConsumer BeforeDividing;
#else
typedef Consumer BeforeDividing;
#endif

struct DividingConsumer : BeforeDividing {
    Divider divider;
#if !DIVIDES_ROWS
    bool is_finite = true;  // all that was divided for this work
#endif

#if DIVIDES_ROWS
    METHOD DividingConsumer(const Ring &ring, int warpgroup) : RowDividingConsumer(ring, warpgroup, 0), divider(ring) {}
#else
    METHOD DividingConsumer(const Ring &ring, int warpgroup) : Consumer(ring, warpgroup), divider(ring) {}
#endif

    // Divides the next stage, unless others do.
    METHOD void divide_ahead(bool is_there) {
        if (!DIVIDERS && is_there) divider.divide_ahead();
    }
    // What a stage was multiplied by, that is divided now.
    METHOD int shifts_of(int stage) {
        if (DIVIDERS) {
            int own[2];
            divider.look_up(stage, own);
        }
        return divider.shifts;
    }

    template <int CHUNKS, class Send>
    METHOD void multiply(Sums &sums, int blocks, bool is_sending, Send send) {
        Sums stage_sums;
        clear(sums);
        is_finite = divider.is_finite = true;
        divide_ahead(blocks > 0);
        for (int block = 0; block < blocks; ++block) {
#if DIVIDES_ROWS
            Halves halves;
            if (DIVIDERS) wait_for_stage();
            divide(place.stage, halves);
            mbarrier_wait(divider.ready(place.stage), place.parity);
            const int shift = shifts_of(place.stage);  // of B
            multiply_halves(halves, place.stage, 0, stage_sums);
            divide_ahead(block + 1 < blocks);
            finish_stage(stage_sums);
            add(sums, stage_sums, halves.shifts, shift);
#else
            mbarrier_wait(divider.ready(place.stage), place.parity);
            multiply_stage(ring, place.stage, 0, warpgroup, stage_sums, false);
            const Power back(-shifts_of(place.stage));
            divide_ahead(block + 1 < blocks);
            finish_stage(stage_sums);
#pragma unroll
            for (int row = 0; row < ROWS; ++row)
#pragma unroll
                for (int i = 0; i < WN / 2; ++i)
                    sums[row][i] = fmaf(stage_sums[row][i] * back.first, back.second, sums[row][i]);
#endif
        }
        is_finite = is_finite && divider.is_finite;
#if DIVIDES_ROWS
        is_finite = !warp_any(!is_finite);
#endif
    }
};

FUNCTION void begin_dividing(const Ring &ring) {
    if (threadIdx.x != 0) return;
    for (int n = 0; n < 2 * STAGES; ++n) mbarrier_init(ring.behind() + KNOWN_AT + 8 * n, 4 * DIVIDING);
    mbarrier_init_fence();
}

// The sum that a thread has as a number of a slab's, over the pixels of a piece of work.
FUNCTION f32 exact_sum_of(const Tables &tables, const Work &work, int warpgroup, int slab, int number, const f32 *x,
                          const f32 *dy) {
    const int first_pixel = work.first_block * BK, last_pixel = min(work.last_block * BK, (int)tables.phases[0].rows);
    const int row = work.first_row + warpgroup / WARPGROUPS_N * ROWS * 64 + row_of(slab, number / 2 % 2);
    const int column = warpgroup % WARPGROUPS_N * WN + number / 4 * 8 + threadIdx.x % 4 * 2 + number % 2;
    if (row >= (int)tables.rows || work.columns.from(tables, column) <= 0) return 0;
    return exact_sum(tables, work, row, column, x, dy, tables.packs[0], tables.packs[1], first_pixel, last_pixel);
}

// In place of store_partial, of operands that are not finite: as halves they would not be what they are in f32.
FUNCTION void store_exact_partial(f32 *partials, const Tables &tables, const Work &work, int number, int warpgroup,
                                  const f32 *x, const f32 *dy) {
    f32 *to = partials + ((i64)number * WARPGROUPS + warpgroup) * ROWS * SLAB_SUMS + threadIdx.x % 128 * 4;
#pragma unroll 1
    for (int number = 0; number < ROWS * WN / 2; ++number) {
        const int slab = number / (WN / 2), in_slab = number % (WN / 2), eight = in_slab / 4;
        to[slab * SLAB_SUMS + eight * 512 + in_slab % 4] = exact_sum_of(tables, work, warpgroup, slab, in_slab, x, dy);
    }
}

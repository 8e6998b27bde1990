// wgrad of few channels by warpgroups: all taps of a box of pixels read what two copies of it brought.
//
//     dy   BOX_D x BOX_H lines of BOX_W pixels, and around them along d and h those that the taps meet
//     x    BOX_D x BOX_H lines of the same pixels, and behind each the pixels that the taps along w meet
//
// both as rows of 32 channels (64 bytes) in shared memory. A line of x has a place (d, h); the tap (t, r) pairs it with the
// line of dy that lies (TAPS - 1 - tap) * DILATION further along each axis, and the tap s with its own pixels s * DILATION_W
// rows further. So a box is all pairs whose x has its d and h, and whose dy has its w: each pair is in one box.
//
// Rows of a product are channels of dy for two taps of the lines, t and r, whose lines of dy lie some bytes apart: the halves
// of 64 rows are 32 rows each. Columns are 32 channels of x for each tap along w. The sums of a pair of blocks of 32 channels,
// SETS of 64 x COLUMNS, are in the registers of a thread block; as many thread blocks as there are share the boxes, and
// add_parts adds up what they have, in order.

#define METHOD __device__ __forceinline__
constexpr int ROW = 64;  // bytes of a row of shared memory: 32 channels of a pixel
constexpr int LINES = TAPS_T * TAPS_R, SETS = (LINES + 1) / 2, COLUMNS = 32 * TAPS_S;
constexpr int HALO_D = BOX_D + (TAPS_T - 1) * DILATION_D, HALO_H = BOX_H + (TAPS_R - 1) * DILATION_H;
constexpr int MORE = ((TAPS_S - 1) * DILATION_W + 7) / 8 * 8;  // pixels of x behind those of a line, in whole swizzles
constexpr int DY_LINE = BOX_W * ROW, X_LINE = (BOX_W + MORE) * ROW;
constexpr int DY_BYTES = HALO_D * HALO_H * DY_LINE, X_BYTES = BOX_D * BOX_H * X_LINE;
constexpr int COPIED_BYTES = DY_BYTES + X_BYTES, STAGE_BYTES = (COPIED_BYTES + 1023) / 1024 * 1024;
constexpr int FIRST_SETS = (SETS + CONSUMERS - 1) / CONSUMERS;  // of the first consumer
constexpr int PART_SUMS = SETS * 64 * COLUMNS;                  // of a thread block
constexpr int BLOCK_THREADS = 128 * (CONSUMERS + 1);
constexpr int CONSUMER_REGISTERS = 232, PRODUCER_REGISTERS = 40;
static_assert(BOX_W % 16 == 0, "a product takes 16 pixels of a line");

// What the host says of the problem, in the order of the `numbers` of wgrad_plan.py.
struct Tables {
    TensorMap maps[2];             // of x and of dy
    i64 boxes, parts, blocks_of_x;  // of all images; thread blocks that share them; blocks of 32 channels of x
    i64 boxes_d, boxes_h, boxes_w, before_d, before_h, before_w;  // of an image; padding in front of x
    i64 channels, filters, pairs;  // of x, of dy; pairs of blocks of channels
    i64 tap_place, tap_d, tap_h, tap_w, row, column;  // of the result, in elements: the tap 0, from tap to tap
};

struct Ring {
    u32 shared;

    METHOD u32 dy(int stage) const { return shared + stage * STAGE_BYTES; }
    METHOD u32 x(int stage) const { return shared + stage * STAGE_BYTES + DY_BYTES; }
    METHOD u32 full(int stage) const { return shared + STAGES * STAGE_BYTES + 16 * stage; }
    METHOD u32 empty(int stage) const { return full(stage) + 8; }
};

FUNCTION void produce(const Ring &ring, const Tables &tables, int part, int pair) {
    const int block_of_dy = pair / (int)tables.blocks_of_x, block_of_x = pair - block_of_dy * (int)tables.blocks_of_x;
    const int across = (int)tables.boxes_w, down = (int)tables.boxes_h, deep = (int)tables.boxes_d;
    int stage = 0;
    u32 parity = 0;
#pragma unroll 1
    for (int box = part; box < (int)tables.boxes; box += (int)tables.parts) {
        const int line = box / across, plane = line / down, image = plane / deep;
        const int w = (box - line * across) * BOX_W, h = (line - plane * down) * BOX_H, d = (plane - image * deep) * BOX_D;
        mbarrier_wait(ring.empty(stage), parity ^ 1);
        mbarrier_arrive_expect(ring.full(stage), COPIED_BYTES);
        tma_load_5d(ring.dy(stage), tables.maps[1], ring.full(stage), 32 * block_of_dy, w,
                    h + (int)tables.before_h - (TAPS_R - 1) * DILATION_H,
                    d + (int)tables.before_d - (TAPS_T - 1) * DILATION_D, image);
        tma_load_5d(ring.x(stage), tables.maps[0], ring.full(stage), 32 * block_of_x, w - (int)tables.before_w, h, d, image);
        if (++stage == STAGES) stage = 0, parity ^= 1;
    }
}

// Bytes from the line of dy that a line of x meets with the last tap to the one that it meets with this one, which is behind it.
FUNCTION constexpr int line_of_tap(int tap) {
    return ((TAPS_T - 1 - tap / TAPS_R) * DILATION_D * HALO_H + (TAPS_R - 1 - tap % TAPS_R) * DILATION_H) * DY_LINE;
}
// The tap of the lower 32 rows of a set, whose line comes first, and of the upper ones, which may be none.
FUNCTION constexpr int lower_tap(int set) { return 2 * set + 1 < LINES ? 2 * set + 1 : 2 * set; }
FUNCTION constexpr int upper_tap(int set) { return 2 * set; }
// Bytes between both lines; where there is one, its next rows are multiplied, and nobody reads these sums.
FUNCTION constexpr int between_taps(int set) {
    const int bytes = line_of_tap(upper_tap(set)) - line_of_tap(lower_tap(set));
    return bytes ? bytes : 8 * ROW;
}

// The descriptor of rows of ROW bytes from `sixteenths` of an address on, whose blocks of 32 channels lie `repeat` bytes apart.
FUNCTION u64 descriptor(u32 sixteenths, u32 repeat) {
    const u64 upper = wgmma_descriptor(0, repeat, ROW);
    return (upper >> 32) << 32 | (u32)((u32)upper + sixteenths);
}

// The products of some sets, by one warpgroup.
template <int FIRST, int COUNT>
FUNCTION void consume(const Ring &ring, const Tables &tables, int part, f32 *partials) {
    f32 sums[COUNT][COLUMNS / 2];
#pragma unroll
    for (int set = 0; set < COUNT; ++set)
#pragma unroll
        for (int i = 0; i < COLUMNS / 2; ++i) sums[set][i] = 0;
    const int lane = threadIdx.x % 32;
    int stage = 0, previous = -1;
    u32 parity = 0;
    wgmma_fence_operand(sums);
#pragma unroll 1
    for (int box = part; box < (int)tables.boxes; box += (int)tables.parts) {
        mbarrier_wait(ring.full(stage), parity);
        wgmma_fence();
        // all in one text: where a loop stands between them, the wait behind them is for those of this stage, too
        const u32 dy = ring.dy(stage) / 16, x = ring.x(stage) / 16;
#pragma unroll
        for (int line = 0; line < BOX_D * BOX_H; ++line)
#pragma unroll
            for (int step = 0; step < BOX_W / 16; ++step)
#pragma unroll
                for (int set = 0; set < COUNT; ++set) {
                    const int of_dy = (line / BOX_H * HALO_H + line % BOX_H) * DY_LINE + line_of_tap(lower_tap(FIRST + set));
                    MULTIPLY<true, true>(sums[set],
                                         descriptor(dy + (of_dy + step * 16 * ROW) / 16, between_taps(FIRST + set)),
                                         descriptor(x + (line * X_LINE + step * 16 * ROW) / 16, DILATION_W * ROW), true);
                }
        wgmma_commit();
        wgmma_wait<1>();
        if (previous >= 0 && lane == 0) mbarrier_arrive(ring.empty(previous));
        previous = stage;
        if (++stage == STAGES) stage = 0, parity ^= 1;
    }
    wgmma_wait<0>();
    wgmma_fence_operand(sums);
    f32 *to = partials + FIRST * (64 * COLUMNS) + threadIdx.x % 128 * 4;
#pragma unroll
    for (int set = 0; set < COUNT; ++set)
#pragma unroll
        for (int j = 0; j < COLUMNS / 8; ++j) {
            const f32 *four = sums[set] + 4 * j;
            store16(to + set * (64 * COLUMNS) + j * 512,
                    make_uint4(__float_as_uint(four[0]), __float_as_uint(four[1]), __float_as_uint(four[2]),
                               __float_as_uint(four[3])));
        }
}

KERNEL2(BLOCK_THREADS, 1)
void multiply_boxes(TABLES(Tables, tables), const u16 *x, const u16 *dy, RESULT *dw, u8 *workspace, SCALE alpha, SCALE beta) {
    extern __shared__ __attribute__((aligned(1024))) u8 shared_memory[];
    const Ring ring = {smem_address(shared_memory)};
    if (threadIdx.x == 0) {
        for (int stage = 0; stage < STAGES; ++stage) {
            mbarrier_init(ring.full(stage), 1);
            mbarrier_init(ring.empty(stage), 4 * CONSUMERS);
        }
        mbarrier_init_fence();
    }
    begin_launch();
    __syncthreads();
    const int warpgroup = shuffle((int)threadIdx.x / 128, 0);  // the same in all lanes of a warp, which the compiler cannot know
    const int pair = blockIdx.x / (int)tables.parts, part = blockIdx.x - pair * (int)tables.parts;
    f32 *partials = (f32 *)workspace + ((i64)part * tables.pairs + pair) * PART_SUMS;
    if (warpgroup == CONSUMERS) {
        registers_release<PRODUCER_REGISTERS>();
        if (threadIdx.x == 128 * CONSUMERS) produce(ring, tables, part, pair);
    } else {
        registers_acquire<CONSUMER_REGISTERS>();
        if (warpgroup == 0) consume<0, FIRST_SETS>(ring, tables, part, partials);
#if CONSUMERS > 1
        if (warpgroup == 1) consume<FIRST_SETS, SETS - FIRST_SETS>(ring, tables, part, partials);
#endif
    }
}

// Four sums of all thread blocks, as a thread of a warpgroup held them, by 16 warps of which each adds up some of the parts.
KERNEL2(512, 2)
void add_parts(TABLES(Tables, tables), const u16 *x, const u16 *dy, RESULT *dw, u8 *workspace, SCALE alpha, SCALE beta) {
    __shared__ f32 of_warps[15][32][4];
    begin_launch();
    const int lane = threadIdx.x % 32, sharer = threadIdx.x / 32;
    const int number = blockIdx.x * 32 + lane;  // of four sums, of those of all pairs
    const i64 step = tables.pairs * PART_SUMS;
    const f32 *from = (const f32 *)workspace + (i64)number * 4;
    f32 sums[4] = {};
#pragma unroll 4
    for (int part = sharer; part < (int)tables.parts; part += 16) {
        const uint4 four = *(const uint4 *)(from + part * step);
        sums[0] += __uint_as_float(four.x), sums[1] += __uint_as_float(four.y);
        sums[2] += __uint_as_float(four.z), sums[3] += __uint_as_float(four.w);
    }
    if (sharer)
#pragma unroll
        for (int i = 0; i < 4; ++i) of_warps[sharer - 1][lane][i] = sums[i];
    __syncthreads();
    if (sharer) return;
#pragma unroll
    for (int other = 0; other < 15; ++other)
#pragma unroll
        for (int i = 0; i < 4; ++i) sums[i] += of_warps[other][lane][i];
    const int pair = number / (PART_SUMS / 4), in_pair = number - pair * (PART_SUMS / 4);
    const int set = in_pair / (16 * COLUMNS), eight = in_pair / 128 % (COLUMNS / 8), thread = in_pair % 128;
    const int block_of_dy = pair / (int)tables.blocks_of_x, block_of_x = pair - block_of_dy * (int)tables.blocks_of_x;
    const int is_upper = thread / 64, tap = is_upper ? upper_tap(set) : lower_tap(set);
    if (is_upper && upper_tap(set) == lower_tap(set)) return;
    const int column = eight * 8 + thread % 4 * 2;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        const int k = 32 * block_of_dy + thread % 64 / 32 * 16 + thread % 32 / 4 + i / 2 * 8;
        const int c = 32 * block_of_x + column % 32 + i % 2;
        if (k >= (int)tables.filters || c >= (int)tables.channels) continue;
        const i64 place = tables.tap_place + tap / TAPS_R * tables.tap_d + tap % TAPS_R * tables.tap_h +
                          column / 32 * tables.tap_w + k * tables.row + c * tables.column;
        f32 value = (f32)alpha * sums[i];
        if (beta != 0) value += (f32)beta * LOAD_RESULT(dw, place);
        STORE_RESULT(dw, place, value);
    }
}

// dgrad of patches that touch without overlap: each pixel of dy by all taps at once, whose results are a patch of x.
//
//     data     rows of 32 channels (64 bytes) of 64 pixels of dy for each consumer, all channels in a stage
//     filter   stays in shared memory: for each 32 channels of dy `own` groups, each 32 channels of x of a tap
//
// A product has PASS groups as columns. Results go where the group's tap says, 64 bytes of a pixel of x at a time.

#define METHOD __device__ __forceinline__
constexpr int ROW = 64;  // bytes of a row of shared memory: 32 channels
constexpr int PIXELS = 64 * CONSUMERS, BLOCK_BYTES = PIXELS * ROW, GROUP_BYTES = 32 * ROW;
constexpr int BLOCK_THREADS = 128 * (CONSUMERS + 1);
constexpr int CONSUMER_REGISTERS = CONSUMERS == 3 ? 160 : 232, PRODUCER_REGISTERS = CONSUMERS == 3 ? 32 : 40;

// What the host says of the problem, in the order of the `numbers` of algorithm.py.
struct Tables {
    TensorMap maps[2];           // of dy and of the filter
    i64 pixels, blocks, stages;  // of dy; of 32 of its channels; of the ring
    i64 tiles, own, channels;    // parts of the groups, and groups of each; channels of x
    i64 extents[3], image, steps[3];  // of dy; of x, in elements from image to image and from patch to patch
    i64 group_step[MOST_GROUPS];      // of x, from the first element of a patch on
    i64 group_tap[MOST_GROUPS];       // its channels / 32, then the tap along d, h and w, 16 bits each
};

struct Ring {
    u32 filter, shared, barriers;
    int stage_bytes, stages;

    METHOD Ring(u32 shared_memory, const Tables &tables)
        : filter(shared_memory), shared(shared_memory + (int)(tables.own * tables.blocks) * GROUP_BYTES),
          stage_bytes((int)tables.blocks * BLOCK_BYTES), stages((int)tables.stages) {
        barriers = shared + stages * stage_bytes;
    }
    METHOD u32 stage(int stage) const { return shared + stage * stage_bytes; }
    METHOD u32 full(int stage) const { return barriers + 16 * stage; }
    METHOD u32 empty(int stage) const { return full(stage) + 8; }
    METHOD u32 filter_is_there() const { return barriers + 16 * stages; }
};

FUNCTION void produce(const Ring &ring, const Tables &tables, int first_group, int sharer, int sharers) {
    const int blocks = (int)tables.blocks, own = (int)tables.own;
    mbarrier_arrive_expect(ring.filter_is_there(), own * blocks * GROUP_BYTES);
    u32 to = ring.filter;
#pragma unroll 1
    for (int block = 0; block < blocks; ++block)
#pragma unroll 1
        for (int group = 0; group < own; ++group, to += GROUP_BYTES) {
            const i64 tap = tables.group_tap[first_group + group];
            tma_load_5d(to, tables.maps[1], ring.filter_is_there(), (int)(tap & 0xffff) * 32, (int)(tap >> 48 & 0xffff),
                        (int)(tap >> 32 & 0xffff), (int)(tap >> 16 & 0xffff), 32 * block);
        }
    int stage = 0;
    u32 parity = 0;
#pragma unroll 1
    for (int first = sharer * PIXELS; first < (int)tables.pixels; first += sharers * PIXELS) {
        mbarrier_wait(ring.empty(stage), parity ^ 1);
        mbarrier_arrive_expect(ring.full(stage), blocks * BLOCK_BYTES);
#pragma unroll 1
        for (int block = 0; block < blocks; ++block)
            tma_load_3d(ring.stage(stage) + block * BLOCK_BYTES, tables.maps[0], ring.full(stage), 32 * block, first, 0);
        if (++stage == ring.stages) stage = 0, parity ^= 1;
    }
}

typedef f32 Sums[PASS * 16];

// The products of 64 pixels with PASS groups, over 32 channels of dy at a time.
FUNCTION void multiply(u32 data, u32 filter, u32 filter_step, int blocks, Sums &sums) {
    wgmma_fence_operand(sums);
    wgmma_fence();
#pragma unroll 1
    for (int block = 0; block < blocks; ++block) {
#pragma unroll
        for (int half = 0; half < 2; ++half)
            MULTIPLY<false, true>(sums, wgmma_descriptor(data + half * 32, 16, ROW),
                                  wgmma_descriptor(filter + half * 16 * ROW, GROUP_BYTES, ROW), block > 0 || half > 0);
        data += BLOCK_BYTES, filter += filter_step;
    }
    wgmma_commit();
    wgmma_wait<0>();
    wgmma_fence_operand(sums);
}

// Where the patch of a pixel of dy begins.
FUNCTION i64 patch_of(int pixel, const Tables &tables) {
    const int w = (int)tables.extents[2], h = (int)tables.extents[1], d = (int)tables.extents[0];
    const int line = pixel / w, plane = line / h, image = plane / d;
    return image * tables.image + (plane - image * d) * tables.steps[0] + (line - plane * h) * tables.steps[1] +
           (pixel - line * w) * tables.steps[2];
}

KERNEL2(BLOCK_THREADS, 1)
void scatter_patches(TABLES(Tables, tables), const u16 *dy, const u16 *w, u16 *x, BIAS_PARAMETER u8 *workspace, SCALE alpha,
                     SCALE beta) {
    extern __shared__ __attribute__((aligned(1024))) u8 shared_memory[];
    const Ring ring(smem_address(shared_memory), tables);
    if (threadIdx.x == 0) {
        for (int stage = 0; stage < ring.stages; ++stage) {
            mbarrier_init(ring.full(stage), 1);
            mbarrier_init(ring.empty(stage), 4 * CONSUMERS);
        }
        mbarrier_init(ring.filter_is_there(), 1);
        mbarrier_init_fence();
    }
    begin_launch();
    __syncthreads();
    const int tiles = (int)tables.tiles, sharer = blockIdx.x / tiles, sharers = gridDim.x / tiles, own = (int)tables.own;
    const int first_group = (blockIdx.x - sharer * tiles) * own;
    const int consumer = shuffle((int)threadIdx.x / 128, 0);  // the same in all lanes of a warp, which the compiler cannot know
    if (consumer == CONSUMERS) {
        registers_release<PRODUCER_REGISTERS>();
        if (threadIdx.x == 128 * CONSUMERS) produce(ring, tables, first_group, sharer, sharers);
        return;
    }
    registers_acquire<CONSUMER_REGISTERS>();
    const int blocks = (int)tables.blocks, lane = threadIdx.x % 32, warp = threadIdx.x / 32 % 4;
    int stage = 0;
    u32 parity = 0;
    Sums sums;
    mbarrier_wait(ring.filter_is_there(), 0);
#pragma unroll 1
    for (int first = sharer * PIXELS; first < (int)tables.pixels; first += sharers * PIXELS) {
        const int pixel = first + consumer * 64 + warp * 16 + lane / 4;
        const bool is_there[2] = {pixel < (int)tables.pixels, pixel + 8 < (int)tables.pixels};
        u16 *const to[2] = {x + patch_of(pixel, tables) + lane % 4 * 8, x + patch_of(pixel + 8, tables) + lane % 4 * 8};
        mbarrier_wait(ring.full(stage), parity);
#pragma unroll 1
        for (int group = 0; group < own; group += PASS) {
            multiply(ring.stage(stage) + consumer * 64 * ROW, ring.filter + group * GROUP_BYTES, own * GROUP_BYTES, blocks, sums);
            if (group + PASS == own && lane == 0) mbarrier_arrive(ring.empty(stage));
#pragma unroll
            for (int n = 0; n < PASS; ++n) {
                const i64 step = tables.group_step[first_group + group + n];
                const int channel = (int)(tables.group_tap[first_group + group + n] & 0xffff) * 32;
#if HAS_BIAS
#pragma unroll
                for (int i = 0; i < 4; ++i) {
                    const int from = channel + i * 8 + lane % 4 * 2;
                    const u32 pair = from < (int)tables.channels ? *(const u32 *)(bias + from) : 0;
#pragma unroll
                    for (int below = 0; below < 2; ++below)
                        sums[n * 16 + 4 * i + 2 * below] += LOW(pair), sums[n * 16 + 4 * i + 2 * below + 1] += HIGH(pair);
                }
#endif
#pragma unroll
                for (int below = 0; below < 2; ++below) {
                    const bool has_columns = is_there[below] && channel + lane % 4 * 8 < (int)tables.channels;
                    u32 words[4];
                    rounded(words, sums + n * 16 + 2 * below, to[below] + step, has_columns, (f32)alpha, (f32)beta);
                    if (has_columns) store16(to[below] + step, make_uint4(words[0], words[1], words[2], words[3]));
                }
            }
        }
        if (++stage == ring.stages) stage = 0, parity ^= 1;
    }
}

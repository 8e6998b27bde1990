// Sizes and what the host says, for correlation.cu and sums.cuh.

#define METHOD __device__ __forceinline__
constexpr int ROW = 64;  // bytes of a row of shared memory: 32 channels of a pixel
constexpr int PATCH_W = 64 / PATCH_H, BOX_W = PATCH_W * CONSUMERS * PATCHES;
constexpr int HALO_H = PATCH_H + (TAPS_R - 1) * DILATION_H, HALO_W = BOX_W + (TAPS_S - 1) * DILATION_W;
constexpr int GROUP_ROWS = PATCH_H > 1 ? HALO_W : 8;  // from eight pixels of a patch to the next
static_assert(PATCH_H == 8 || PATCH_H == 1, "groups of eight pixels along w lie at equal distances");
constexpr int GROUP = TAPS_T * COLUMNS, SLOT_BYTES = GROUP * ROW;  // of the filter's slot of a tap (r, s)
constexpr int COPIED_BYTES = HALO_H * HALO_W * ROW, STAGE_BYTES = (COPIED_BYTES + 1023) / 1024 * 1024;
constexpr int BLOCK_THREADS = 128 * (CONSUMERS + 1);
constexpr int CONSUMER_REGISTERS = CONSUMERS == 3 ? 160 : 232, PRODUCER_REGISTERS = CONSUMERS == 3 ? 32 : 40;

// What the host says of the problem, in the order of the `numbers` of correlation_plan.py.
struct Tables {
    TensorMap maps[2];      // of the data and of the filter
    i64 positions, blocks;  // along d, of results DILATION_D apart; of 32 channels of the data
    i64 works, boxes_h, boxes_w, base_d, base_h, base_w;  // positions of all columns; where the first window begins
    i64 results_d, results_h, results_w, columns, tiles;  // channels of the result, and of how many COLUMNS they are
    i64 first_tap[3], tap_step[3];         // of the filter, along each axis
    i64 image, space_d, space_h, space_w;  // of the result, in elements
#if HAS_SUMS
    i64 images, is_by_image, sharers;      // whether there are sums of each; thread blocks with the same columns
    i64 beside[4];                         // of the tensor beside the result, as of the result
    i64 number_steps[NUMBERS + 1][2];      // of the numbers of channels, from image to image and from channel to channel
#endif
};

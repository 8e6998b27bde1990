// Sizes that follow from the macros of a blocking (warpgroup/plan.py) and of the types; see mainloop.cuh.

constexpr int WARPGROUPS = WARPGROUPS_M * WARPGROUPS_N;
constexpr int BM = 64 * ROWS * WARPGROUPS_M, BN = WN * WARPGROUPS_N;
constexpr int BK = 128 / ELEMENT_BYTES;
constexpr int SLAB_BYTES = 64 * 128;  // 64 rows of a K-major operand, or 64 of K by 64 rows of an MN-major one
constexpr int A_BYTES = BM * 128, B_BYTES = BN * 128;
constexpr int STAGE_BYTES = PARTS * (A_BYTES + B_BYTES);
constexpr int BLOCK_THREADS = 128 * (WARPGROUPS + 1);
constexpr int STEPS = 4;  // products along K of a stage: 32 bytes each
constexpr u32 A_STEP = (A_MN_MAJOR ? 2048 : 32) / 16, B_STEP = (B_MN_MAJOR ? 2048 : 32) / 16;  // of descriptors
static_assert((!A_MN_MAJOR && !B_MN_MAJOR) || ELEMENT_BYTES == 2, "only elements of two bytes are read across");

// Registers of a thread: those that the producer does not need go to the consumers.
constexpr int PRODUCER_REGISTERS = WARPGROUPS == 3 ? 32 : 40;
constexpr int CONSUMER_REGISTERS = WARPGROUPS == 3 ? 160 : WARPGROUPS == 2 ? 232 : 240;

// Shared memory, in this order: stages, staging buffers of the consumers, rows of their tiles, barriers.
constexpr int CHUNK = 128 / RESULT_BYTES;  // columns of a chunk of results: 64 rows of 128 bytes
constexpr int STAGING_AT = STAGES * STAGE_BYTES;
constexpr int ROWS_AT = STAGING_AT + (IS_SPLIT ? 0 : WARPGROUPS * 2 * SLAB_BYTES);
constexpr int BARRIERS_AT = ROWS_AT + WARPGROUPS * ROWS * 64 * 8;

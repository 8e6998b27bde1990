// Sizes that follow from the macros of a blocking (plan.py, of a tile.py) and of the types; see mainloop.cuh.

// Whether a piece of work is a part of a tile's K: of partial sums in memory, or of a cluster of thread blocks.
constexpr bool IS_PART = IS_SPLIT || IS_CLUSTERED;
constexpr int WARPGROUPS = WARPGROUPS_M * WARPGROUPS_N;
// With SWAPS_OPERANDS (swapped.cuh) the columns are the rows of what the tensor cores multiply.
constexpr int BM = SWAPS_OPERANDS ? WN * WARPGROUPS_N : 64 * ROWS * WARPGROUPS_M;
constexpr int BN = SWAPS_OPERANDS ? 64 * ROWS * WARPGROUPS_M : WN * WARPGROUPS_N;
constexpr int STAGE_ROW = SUBS * ROW_BYTES;  // of a stage, in SUBS pieces, each of which a row of shared memory holds
constexpr int BK = STAGE_ROW / ELEMENT_BYTES, SUB_K = ROW_BYTES / ELEMENT_BYTES;
constexpr int SLAB_BYTES = BK * 128;  // of an MN-major operand: K of a stage by 64 rows
// Columns of B that are neighbours in a row of shared memory, where it is MN-major; they come in whole blocks of as many.
constexpr int B_BLOCK = BN == 32 || SWAPS_OPERANDS ? 32 : 64, B_COLUMNS = B_MN_MAJOR ? (BN + B_BLOCK - 1) / B_BLOCK * B_BLOCK : BN;
constexpr int B_ROW_BYTES = B_MN_MAJOR ? ELEMENT_BYTES * B_BLOCK : ROW_BYTES, B_SLAB_BYTES = BK * B_ROW_BYTES;
// Of a wgrad in lines (SEGMENT pixels of a line at a time, 0 of others) the taps of a line of the filter, 64 columns each,
// read the same rows of B, each one row further: of every segment as many more are copied, and there is room for 8.
constexpr int SEGMENTS = SEGMENT ? BK / (SEGMENT ? SEGMENT : BK) : 1, SEGMENT_ROWS = SEGMENT + 8, TAPS_AT_ONCE = WN / 64;
constexpr int WARPGROUP_B_BYTES = SEGMENT ? SEGMENTS * SEGMENT_ROWS * 128 : WN * (B_MN_MAJOR ? STAGE_ROW : ROW_BYTES);
// Of a correlation in lines LINE_TAPS taps of a line of the filter (1 of others), LINE_CLASSES taps apart, read the same rows
// of A, each LINE_STEP rows further: as many more are copied. A stage has B of each of them. Of LINE_CLASSES such stages the
// first LINE_LONG have all of these taps, the others one less.
//
// With LINE_PIXELS above 1 a row of A has as many neighbouring pixels, as many as windows are apart, of which each tap reads
// one: the first tap the LINE_FIRST-th of the first row. Then there are no classes.
constexpr int LINE_REACH = LINE_PIXELS > 1 ? (LINE_FIRST + LINE_TAPS - 1) / LINE_PIXELS : (LINE_TAPS - 1) * LINE_STEP;
constexpr int A_ROW_BYTES = LINE_PIXELS * ROW_BYTES, A_ROWS = BM + (LINE_REACH + 7) / 8 * 8;
constexpr int TAP_B_BYTES = SEGMENT ? WARPGROUPS_N * WARPGROUP_B_BYTES : B_COLUMNS * STAGE_ROW;
constexpr int COPIED_A_BYTES = A_ROWS * LINE_PIXELS * STAGE_ROW, A_BYTES = (COPIED_A_BYTES + 1023) / 1024 * 1024;
constexpr int B_BYTES = LINE_TAPS * TAP_B_BYTES;
constexpr int STAGE_BYTES = PARTS * (A_BYTES + B_BYTES);
constexpr int COPIED_BYTES =  // of a stage
    SEGMENT ? PARTS * (A_BYTES + WARPGROUPS_N * SEGMENTS * (SEGMENT + TAPS_AT_ONCE - 1) * 128)
            : PARTS * (COPIED_A_BYTES + B_BYTES);  // with B
constexpr int BLOCK_THREADS = 128 * (WARPGROUPS + DIVIDERS + 1);  // consumers, those that divide, the producer
constexpr int STEPS = STAGE_ROW / 32;  // products along K of a stage
// Whether the sums are integers, which become results in f64.
constexpr bool IS_INTEGER = sizeof(REAL) == 8;
static_assert((!A_MN_MAJOR && !B_MN_MAJOR) || ELEMENT_BYTES == 2 || SWAPS_OPERANDS, "only elements of two bytes are read across");
static_assert(!(A_MN_MAJOR && B_MN_MAJOR) || ROW_BYTES == 128, "pixels are not divided");
constexpr bool HAS_SHORT_LINES = LINE_LONG < LINE_CLASSES;
static_assert(LINE_TAPS == 1 || (PARTS == 1 && SUBS == 1 && !A_MN_MAJOR), "lines are of rows of pixels");
static_assert(!(A_MN_MAJOR && B_MN_MAJOR) || STAGE_ROW == 128 || (PARTS == 1 && !SEGMENT), "deep stages of filter gradients");
static_assert(!B_MN_MAJOR || WARPGROUPS_N == 1 || WN % 64 == 0 || SWAPS_OPERANDS, "columns come in blocks of 64");

// Registers of a thread: those that the producer does not need go to the consumers.
constexpr int ALL_REGISTERS = 65536 / BLOCK_THREADS / 8 * 8 * BLOCK_THREADS;  // of a thread block
constexpr int PRODUCER_REGISTERS = WARPGROUPS == 3 ? 32 : 40;
constexpr int DIVIDER_REGISTERS = WARPGROUPS == 2 ? 72 : 112;
constexpr int MOST_REGISTERS =
    (ALL_REGISTERS - 128 * (PRODUCER_REGISTERS + DIVIDERS * DIVIDER_REGISTERS)) / (128 * WARPGROUPS) / 8 * 8;
static_assert(WARPGROUPS * DIVIDERS <= 2, "registers of those that divide");
constexpr int CONSUMER_REGISTERS = MOST_REGISTERS < 232 ? MOST_REGISTERS : 232;

// Shared memory, in this order: stages (where a thread block brings B once, those of A and all of B), staging buffers of
// the consumers, rows of their tiles, barriers. From where the stages end:
constexpr int CHUNK = CHUNK_BYTES / RESULT_BYTES;  // columns of a chunk of results: 64 rows of CHUNK_BYTES
constexpr int BUFFER_BYTES = 64 * CHUNK_BYTES;
// Where neighbours in memory are rows, a box of results has 128 bytes of them.
constexpr int BOXES_OF_CHUNK = ROWS_FIRST ? (64 * RESULT_BYTES + 127) / 128 : 1;
constexpr int STAGING_AT = 0;
constexpr int ROWS_AT = STAGING_AT + (IS_PART || SWAPS_OPERANDS ? 0 : WARPGROUPS * RESULT_BUFFERS * BUFFER_BYTES);
constexpr int EXCHANGE_BARRIER_AT = ROWS_AT + WARPGROUPS * (SWAPS_OPERANDS ? WN : ROWS * 64) * 8, BARRIERS_AT = EXCHANGE_BARRIER_AT + 16;
// Where thread blocks have equal parts of K (stream_k.cuh): barriers of sums that this block has left, and that others have
// left.
constexpr int LEFT_AT = EXCHANGE_BARRIER_AT, ALL_LEFT_AT = LEFT_AT + 8;
static_assert(!TAKES_RING || !((A_MN_MAJOR && B_MN_MAJOR) || IS_PART || HAS_PROLOGUE), "whole tiles of correlations");

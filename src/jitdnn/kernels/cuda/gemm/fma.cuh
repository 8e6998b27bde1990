// Fragments of operands for multiply-adds in f32 on the ordinary units, and their products: mma.cuh in its place.
//
// A lane has 2 * MMAS_M rows by 2 * MMAS_N columns of its warp's tile, which are apart so that lanes that read at once
// meet different banks; it reads 16 bytes at a time. A step is four elements of K.
//
//     lane              bit 4    3 2 1    0         column lane: bits 4 and 0; row lane: bits 3 2 1
//     K-major           rows r + 8 * i; columns 2 * c + 8 * j and their neighbours: four elements of K of one of them
//     MN-major          rows 4 * r ... 4 * r + 3 of each 32; eight columns from 8 * c on of each 32: one element of K
//
// Of 16 lanes that read at once two, or four pairs, then read the same 16 bytes, which is one access.
//
// Fragments of an MN-major operand are read one element of K ahead, those of a K-major one with two buffers a step.

constexpr int LANE_ROWS = WM / 8, LANE_COLUMNS = WN / 4;
constexpr int COLUMN_RUN = LANE_COLUMNS < 8 ? LANE_COLUMNS : 8;  // neighbouring columns of a lane, if MN-major
static_assert(LANE_ROWS % 4 == 0 && LANE_COLUMNS % 4 == 0, "lanes read four at a time");
static_assert(STEPS % 2 == 0, "buffers of fragments alternate");

FUNCTION int row_lane() { return threadIdx.x / 2 % 8; }
FUNCTION int column_lane() { return threadIdx.x % 2 + threadIdx.x / 16 % 2 * 2; }

// What a lane reads of one operand.
template <bool IS_A, bool IS_MN_MAJOR>
struct Fragment {
    static constexpr int COUNT = IS_A ? LANE_ROWS : LANE_COLUMNS;
    static constexpr int CHUNKS = IS_MN_MAJOR ? (IS_A ? CHUNKS_M : CHUNKS_N) : CHUNKS_K;
    // Rows of four elements of K are read again in place, each behind its last product, where these go by long rows: half
    // the registers, which leaves the assembler room for its choice of banks.
    static constexpr bool IS_REFILLED = IS_A && !IS_MN_MAJOR && B_MN_MAJOR && LANE_COLUMNS > LANE_ROWS && COUNT >= 8;
    static constexpr int BUFFERS = IS_MN_MAJOR ? 2 : IS_REFILLED ? 1 : FRAGMENT_BUFFERS;
    static constexpr int DEPTH = IS_MN_MAJOR ? 1 : 4;  // elements of K in a buffer

    f32 values[BUFFERS][COUNT][DEPTH];
    const u8 *first;  // K-major: row or column 0 of the lane; MN-major: its first chunk, without the XOR of CHUNKS < 16
    u32 swizzle;      // of bytes

    METHOD explicit Fragment(const u8 *stages) {
        const int warp = threadIdx.x / 32;
        const int start = IS_A ? warp / WARPS_N * WM : warp % WARPS_N * WN;
        if constexpr (IS_MN_MAJOR) {
            const int own = start + (IS_A ? row_lane() * 4 : column_lane() * COLUMN_RUN);
            swizzle = CHUNKS < 16 ? own * 4 : 0;
            first = stages + (IS_A ? 0 : A_BYTES) + (CHUNKS < 16 ? 0 : own * 4);
        } else {
            const int own = start + (IS_A ? row_lane() : column_lane() * 2);
            swizzle = xor_swizzle<CHUNKS>(own) * 16;
            first = stages + (IS_A ? 0 : A_BYTES) + own * (CHUNKS * 16);
        }
    }

    METHOD f32 at(int n, int step, int k) const {
        return IS_MN_MAJOR ? values[k % 2][n][0] : values[step % BUFFERS][n][k % DEPTH];
    }

    METHOD static void read_four(f32 &a, f32 &b, f32 &c, f32 &d, const u8 *from) {
        const uint4 four = *(const uint4 *)from;
        a = __uint_as_float(four.x), b = __uint_as_float(four.y);
        c = __uint_as_float(four.z), d = __uint_as_float(four.w);
    }

    // Element k of K of a stage, MN-major.
    METHOD void read_element(int stage, int k) {
        const u8 *row = first + stage + k * (CHUNKS * 16);
#pragma unroll
        for (int n = 0; n < COUNT; n += 4) {
            const u32 chunk = IS_A ? n * 32 : n / COLUMN_RUN * (COLUMN_RUN * 16) + n % COLUMN_RUN * 4;
            const u32 byte = CHUNKS < 16 ? (swizzle + chunk) ^ (u32)xor_swizzle<CHUNKS>(k) * 16 : chunk;
            f32(&to)[COUNT][DEPTH] = values[k % 2];
            read_four(to[n][0], to[n + 1][0], to[n + 2][0], to[n + 3][0], row + byte);
        }
    }

    // Rows (columns) begin ... end - 1 of a step, K-major.
    METHOD void read_step(int stage, int step, int begin, int end) {
        f32(&to)[COUNT][DEPTH] = values[step % BUFFERS];
#pragma unroll
        for (int n = begin; n < end; ++n) {
            const int row = IS_A ? n * 8 : n / 2 * 8 + n % 2;  // from the lane's first one
            // an odd column has the XOR of the one before, or with eight chunks one more
            const u32 odd = CHUNKS == 8 && !IS_A && n % 2 == 1 ? 16 : 0;
            const u32 chunk = swizzle ^ ((u32)step * 16 ^ odd);
            read_four(to[n][0], to[n][1], to[n][2], to[n][3], first + stage + row * (CHUNKS * 16) + chunk);
        }
    }

    METHOD void read_first() {
        if constexpr (IS_MN_MAJOR)
            read_element(0, 0);
        else if constexpr (BUFFERS == 2 || IS_REFILLED)
            read_step(0, 0, 0, COUNT);
    }
    METHOD void read_own(int stage, int step, int k) {
        if constexpr (!IS_MN_MAJOR && BUFFERS == 1 && !IS_REFILLED)
            if (k == 0) read_step(stage, step, 0, COUNT);
    }
    // `is_late`: the next step lies in a stage that is there with the last element of this one only.
    METHOD void read_next(int stage, int step, int k, bool is_late) {
        if constexpr (IS_MN_MAJOR) {
            read_element(stage, (step * 4 + k + 1) % BK);
        } else if constexpr (BUFFERS == 2) {
            const int quarter = COUNT / 4, next = (step + 1) % STEPS;
            if (!is_late)
                read_step(stage, next, k * quarter, (k + 1) * quarter);
            else if (k == 3)
                read_step(stage, next, 0, COUNT);
        }
    }
};

struct Operands {
    static constexpr int PARTS = 4;  // of a step: elements of K
    static constexpr bool IS_LATE = A_MN_MAJOR || B_MN_MAJOR;  // parts of a stage are read until its last element
    static constexpr int LAST_PART = IS_LATE ? 3 : 0;

    Fragment<true, A_MN_MAJOR> a;
    Fragment<false, B_MN_MAJOR> b;

    METHOD explicit Operands(u8 *stages) : a(stages), b(stages) {}

    METHOD void read_first() { a.read_first(), b.read_first(); }
    METHOD void read_own(int stage, int step, int k) { a.read_own(stage, step, k), b.read_own(stage, step, k); }
    METHOD void read_next(int stage, int step, int k) {
        const bool is_late = IS_LATE && step == STEPS - 1;
        a.read_next(stage, step, k, is_late), b.read_next(stage, step, k, is_late);
    }
    // Of two multiply-adds one after the other each reads two registers and has a third one from the last: three cost
    // half a cycle more. So one goes through the rows and columns of a lane without a jump.
    METHOD void add_products(SUM (&sums)[MMAS_M][MMAS_N][4], int stage, int step, int k) {
        constexpr bool is_by_rows = !A_MN_MAJOR && B_MN_MAJOR;
        constexpr int outer = is_by_rows ? LANE_ROWS : LANE_COLUMNS, inner = is_by_rows ? LANE_COLUMNS : LANE_ROWS;
#pragma unroll
        for (int first = 0; first < outer; ++first)
#pragma unroll
            for (int n = 0; n < inner; ++n) {
                const int second = first % 2 ? inner - 1 - n : n;
                const int i = is_by_rows ? first : second, j = is_by_rows ? second : first;
                sums[i / 2][j / 2][i % 2 * 2 + j % 2] += a.at(i, step, k) * b.at(j, step, k);
                if constexpr (decltype(a)::IS_REFILLED)
                    if (k == 3 && n == inner - 1) a.read_step(stage, (step + 1) % STEPS, i, i + 1);
            }
    }
};

// Registers lie in two banks, by parity, each of which gives one operand a cycle. Where zeros are made and stores take
// several sums at once, the assembler has these in neighbouring registers during the loop, too, and then most may be in
// the bank of what they are multiplied by. So each sum begins as a copy of a zero that the compiler does not know, and
// what is stored is a copy, by an instruction that does nothing and cannot be left out: for the lanes' shapes where that
// was measured to be faster, or no slower.
constexpr bool COPIES_SUMS =
    A_MN_MAJOR ? LANE_COLUMNS == LANE_ROWS : B_MN_MAJOR && LANE_COLUMNS > LANE_ROWS && LANE_ROWS >= 8;

template <class Fn>
FUNCTION void for_each_sum(SUM (&sums)[MMAS_M][MMAS_N][4], Fn fn) {
#pragma unroll
    for (int i = 0; i < MMAS_M; ++i)
#pragma unroll
        for (int j = 0; j < MMAS_N; ++j)
#pragma unroll
            for (int e = 0; e < 4; ++e) fn(sums[i][j][e]);
}

// The mainloop: adds the products of `count` blocks of K from block `first` on. Behind the last block it loads zeros,
// which keeps branches out of the loop.
template <class Loader>
FUNCTION void accumulate(SUM (&sums)[MMAS_M][MMAS_N][4], Loader &loader, u8 *stages, int first, int count) {
    Operands operands(stages);
    auto number = [&](int block_number) { return block_number < count ? first + block_number : loader.blocks(); };
    fill_ring(loader, stages, number);

    const u32 zero = blockDim.y - 1;
    if constexpr (COPIES_SUMS) for_each_sum(sums, [=](SUM &sum) { sum = __uint_as_float(zero); });
    operands.read_first();
    int reading = 0, writing = (STAGES - 1) * STAGE_BYTES;
    for (int i = 0; i < count; ++i) {
#pragma unroll
        for (int step = 0; step < STEPS; ++step) {
#pragma unroll
            for (int part = 0; part < operands.PARTS; ++part) {
                operands.read_own(reading, step, part);
                // behind the barrier all warps have read this stage: it may be filled again
                if (step == STEPS - 1 && part == operands.LAST_PART) {
                    cp_async_wait<STAGES - 2>();
                    __syncthreads();
                    reading = reading == (STAGES - 1) * STAGE_BYTES ? 0 : reading + STAGE_BYTES;
                }
                operands.read_next(reading, step, part);
                if (part == 0) {
                    if (step < LOAD_SLICES) load_slice(loader, step, stages + writing, number(i + STAGES - 1));
                    if constexpr (Loader::IS_PREPARED)
                        if (step == 0) loader.prepare(number(i + STAGES));
                    if (step == LOAD_SLICES - 1) {
                        cp_async_commit();
                        writing = writing == (STAGES - 1) * STAGE_BYTES ? 0 : writing + STAGE_BYTES;
                    }
                }
                operands.add_products(sums, reading, step, part);
            }
        }
    }
    cp_async_wait<0>();
    if constexpr (COPIES_SUMS)
        for_each_sum(sums, [=](SUM &sum) { sum = __uint_as_float(__float_as_uint(sum) ^ zero); });
}

// As in mma.cuh. With B MN-major the columns of fragments j ... j + 3 are eight neighbours.
constexpr int FAR_LANE = 16;
constexpr bool HAS_PAIRS = !B_MN_MAJOR;
FUNCTION int own_lane() { return row_lane() * 4 + column_lane(); }
FUNCTION int lane_of_quad() { return column_lane(); }
FUNCTION int row_of_lane(int lane) { return A_MN_MAJOR ? lane / 4 * 4 : lane / 4; }
FUNCTION constexpr int row_step(int number) { return A_MN_MAJOR ? number / 4 * 32 + number % 4 : number * 8; }
FUNCTION int column_of_lane(int lane) { return lane % 4 * (HAS_PAIRS ? 2 : COLUMN_RUN); }
FUNCTION constexpr int column_step(int j) {
    return HAS_PAIRS ? j * 8 : j * 2 / COLUMN_RUN * (4 * COLUMN_RUN) + j * 2 % COLUMN_RUN;
}

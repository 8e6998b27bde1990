// Fragments of operands for the tensor cores, and their products (mma.sync).

// What a lane reads of an operand, for the first mma step and the first 16 rows (or columns) of its warp, in bytes.
struct LaneOffset {
    u32 line;   // to its row in the stage
    u32 chunk;  // from there to its chunk, swizzled
};

template <bool MN_MAJOR, int CHUNKS, bool IS_A>
FUNCTION LaneOffset lane_offset(int first) {
    const int lane = threadIdx.x % 32;
    int row = lane % 16, chunk = lane / 16;       // 16 rows, then the next 8 elements of K
    if (IS_A == MN_MAJOR) {                         // 8 rows, the next 8 elements of K, then the other 8 rows
        row = lane / 16 * 8 + lane % 8;
        chunk = lane / 8 % 2;
    }
    if constexpr (MN_MAJOR)
        chunk += first / CHUNK;
    else
        row += first;
    return {(u32)(row * CHUNKS * 16), (u32)((chunk ^ xor_swizzle<CHUNKS>(row)) * 16)};
}

template <bool MN_MAJOR, int CHUNKS>
FUNCTION void read_16(u32 (&r)[4], const LaneOffset &lane, u32 operand, int number, int step) {
    if constexpr (MN_MAJOR)
        ldmatrix_x4_trans(r, operand + lane.line + step * (16 * CHUNKS * 16) + (lane.chunk ^ (number * 32)));
    else
        ldmatrix_x4(r, operand + lane.line + number * (16 * CHUNKS * 16) + (lane.chunk ^ (step * 32)));
}

// The same for MN-major elements of 4 bytes, which ldmatrix cannot transpose. A lane reads the elements of rows
// (columns) g and g + 8 at t and t + 4 of K, with g = lane / 4 and t = lane % 4.
template <int CHUNKS>
FUNCTION LaneOffset lane_offset_of_words(int first) {
    const int g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
    return {(u32)(t * CHUNKS * 16 + g % 4 * 4), (u32)(((first + g) / 4 ^ xor_swizzle<CHUNKS>(t)) * 16)};
}

template <int CHUNKS, bool IS_A>
FUNCTION void read_words(u32 (&r)[4], const LaneOffset &lane, const u8 *operand, int number, int step) {
    constexpr int next = xor_swizzle<CHUNKS>(4);  // the XOR of rows four further down, relative to this one's
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        const int side = IS_A ? i % 2 : i / 2, depth = IS_A ? i / 2 : i % 2;
        const u32 chunk = lane.chunk ^ ((number * 4 + side * 2) ^ depth * next) * 16;
        r[i] = *(const u32 *)(operand + lane.line + (step * 8 + depth * 4) * (CHUNKS * 16) + chunk);
    }
}

template <bool MN_MAJOR, int CHUNKS, bool IS_A>
FUNCTION LaneOffset operand_offset(int first) {
    if constexpr (MN_MAJOR && IS_TF32)
        return lane_offset_of_words<CHUNKS>(first);
    else
        return lane_offset<MN_MAJOR, CHUNKS, IS_A>(first);
}

struct Fragments {
    u32 a[MMAS_M][4];
    u32 b[MMAS_N / 2][4];
};

FUNCTION u32 as_multiplied(u32 bits) { return IS_TF32 ? to_tf32(__uint_as_float(bits)) : bits; }

FUNCTION void multiply(SUM (&sums)[MMAS_M][MMAS_N][4], const Fragments &f) {
    u32 a[MMAS_M][4];
#pragma unroll
    for (int i = 0; i < MMAS_M; ++i)
#pragma unroll
        for (int e = 0; e < 4; ++e) a[i][e] = as_multiplied(f.a[i][e]);
#pragma unroll
    for (int j = 0; j < MMAS_N; ++j) {
        const u32 b[2] = {as_multiplied(f.b[j / 2][j % 2 * 2]), as_multiplied(f.b[j / 2][j % 2 * 2 + 1])};
#pragma unroll
        for (int i = 0; i < MMAS_M; ++i) MULTIPLY(sums[i][j], a[i], b);
    }
}

// The mainloop: adds the products of `count` blocks of K from block `first` on. Behind the last block it loads zeros,
// which keeps branches out of the loop.
template <class Loader>
FUNCTION void accumulate(SUM (&sums)[MMAS_M][MMAS_N][4], Loader &loader, u8 *stages, int first, int count) {
    const int warp = threadIdx.x / 32, warp_m = warp / WARPS_N * WM, warp_n = warp % WARPS_N * WN;
    constexpr bool words_a = A_MN_MAJOR && IS_TF32, words_b = B_MN_MAJOR && IS_TF32;
    const LaneOffset lane_a = operand_offset<A_MN_MAJOR, A_MN_MAJOR ? CHUNKS_M : CHUNKS_K, true>(warp_m);
    const LaneOffset lane_b = operand_offset<B_MN_MAJOR, B_MN_MAJOR ? CHUNKS_N : CHUNKS_K, false>(warp_n);
    const u32 base = smem_address(stages);

    auto read = [&](Fragments &f, int stage, int step) {
#pragma unroll
        for (int i = 0; i < MMAS_M; ++i) {
            if constexpr (words_a)
                read_words<CHUNKS_M, true>(f.a[i], lane_a, stages + stage, i, step);
            else
                read_16<A_MN_MAJOR, A_MN_MAJOR ? CHUNKS_M : CHUNKS_K>(f.a[i], lane_a, base + stage, i, step);
        }
#pragma unroll
        for (int j = 0; j < MMAS_N / 2; ++j) {
            if constexpr (words_b)
                read_words<CHUNKS_N, false>(f.b[j], lane_b, stages + stage + A_BYTES, j, step);
            else
                read_16<B_MN_MAJOR, B_MN_MAJOR ? CHUNKS_N : CHUNKS_K>(f.b[j], lane_b, base + stage + A_BYTES, j, step);
        }
    };

    auto number = [&](int block_number) { return block_number < count ? first + block_number : loader.blocks(); };
    fill_ring(loader, stages, number);

    Fragments fragments[FRAGMENT_BUFFERS];  // of this step, and with two buffers of the next
    if constexpr (FRAGMENT_BUFFERS == 2) read(fragments[0], 0, 0);
    int reading = 0, writing = (STAGES - 1) * STAGE_BYTES;
    for (int i = 0; i < count; ++i) {
#pragma unroll
        for (int step = 0; step < STEPS; ++step) {
            if constexpr (FRAGMENT_BUFFERS == 1) read(fragments[0], reading, step);
            if (step == STEPS - 1) {  // behind the barrier all warps have read this stage: it may be filled again
                cp_async_wait<STAGES - 2>();
                __syncthreads();
                reading = reading == (STAGES - 1) * STAGE_BYTES ? 0 : reading + STAGE_BYTES;
            }
            if constexpr (FRAGMENT_BUFFERS == 2) read(fragments[(step + 1) % 2], reading, (step + 1) % STEPS);
            if (step < LOAD_SLICES) load_slice(loader, step, stages + writing, number(i + STAGES - 1));
            if constexpr (Loader::IS_PREPARED)
                if (step == 0) loader.prepare(number(i + STAGES));
            if (step == LOAD_SLICES - 1) {
                cp_async_commit();
                writing = writing == (STAGES - 1) * STAGE_BYTES ? 0 : writing + STAGE_BYTES;
            }
            multiply(sums, fragments[FRAGMENT_BUFFERS == 2 ? step % 2 : 0]);
        }
    }
    cp_async_wait<0>();
}

// Which sums a lane has: one row of each eight, and two neighbouring columns of each fragment. Its row `number` is
// row_of_lane + row_step(number) of the warp's tile; columns of fragment j likewise. Lanes that differ by 1 and FAR_LANE
// are a quad: they have all columns of their rows.
constexpr int FAR_LANE = 2;
constexpr bool HAS_PAIRS = true;
FUNCTION int own_lane() { return threadIdx.x % 32; }  // lanes of a quad are neighbours
FUNCTION int lane_of_quad() { return threadIdx.x; }    // in its two lowest bits
FUNCTION int row_of_lane(int lane) { return lane / 4; }
FUNCTION constexpr int row_step(int number) { return number * 8; }
FUNCTION int column_of_lane(int lane) { return lane % 4 * 2; }
FUNCTION constexpr int column_step(int j) { return j * 8; }

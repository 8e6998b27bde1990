// What the kernels of attention share. What plan.py defines before this text:
//
//   DTYPE                   f16, bf16 or f32, of all tensors but lse
//   D_SIZE, E_SIZE          columns of a tile of q and k, and of v and y: multiples of 16; those beyond D and E are zeros
//   WARPS                   of a thread block
//   HAS_THREE_PRODUCTS      f32 as the sum of two tf32 numbers, in three products; else f32 is rounded to tf32
//   MASK                    0: none, 1: of bools, 2: added to the scores
//   HAS_LENGTHS, HAS_LO, HAS_HI
//   COPY_IN, COPY_OUT       bytes of a copy of what is read, and stored; 0 for single elements
//   PARAMETERS, ARGUMENTS   of every kernel
//
// Rows of a tile lie behind each other in shared memory with 16 bytes between them, so that 8 rows of ldmatrix have
// different banks. g = lane / 4 and i = lane % 4 are those of instructions.cuh.

#define THREADS_OF_BLOCK (WARPS * 32)
#define IS_F32 (sizeof(DTYPE) == 4)
#define STEP_SIZE (32 / (int)sizeof(DTYPE))  // terms of one mma: 32 bytes of a row
#define PITCH(size) ((size) * (int)sizeof(DTYPE) + 16)
#define LOG2_E 1.4426950408889634f
#define LN_2 0.6931471805599453f
#define NOTHING (-__uint_as_float(0x7f800000u))

#define mma_of_f16 mma_f16
#define mma_of_bf16 mma_bf16
#define mma_of_f32 mma_tf32
#define pack_of_f16 pack_f16
#define pack_of_bf16 pack_bf16
#define pack_of_f32(low, high) 0u  // never used

// ---- Fragments -----------------------------------------------------------------------------------------------------

// Of 16 rows and one step of terms of the first matrix, or of one step and 16 columns of the second, which are registers
// 0 and 1 of the first 8 columns and 2 and 3 of the others.
struct Fragment {
    u32 bits[4];
#if HAS_THREE_PRODUCTS
    u32 low[4];  // what tf32 leaves out of `bits`
#endif
};

// f32 numbers as tf32
FUNCTION void round_fragment(Fragment &x) {
    if constexpr (IS_F32)
#pragma unroll
        for (int r = 0; r < 4; r++) {
            const f32 value = __uint_as_float(x.bits[r]);
            x.bits[r] = to_tf32(value);
#if HAS_THREE_PRODUCTS
            const f32 rest = value - __uint_as_float(x.bits[r]);
            x.low[r] = (x.bits[r] & 0x7f800000u) == 0x7f800000u ? 0 : to_tf32(rest);  // infinities have no rest
#endif
        }
}

FUNCTION void mma_once(f32 (&d)[4], const u32 (&a)[4], const u32 (&b)[4], int half) {
    const u32 pair[2] = {b[2 * half], b[2 * half + 1]};
    JOIN(mma_of_, DTYPE)(d, a, pair);
}

// d += a * (columns 8 * half to 8 * half + 7 of b)
FUNCTION void multiply(f32 (&d)[4], const Fragment &a, const Fragment &b, int half) {
#if HAS_THREE_PRODUCTS
    mma_once(d, a.low, b.bits, half);
    mma_once(d, a.bits, b.low, half);
#endif
    mma_once(d, a.bits, b.bits, half);
}

// 16 rows of a tile as the first matrix; `at`: of their first row, and of the first byte of the step in it
FUNCTION void load_first(Fragment &a, u32 at, int pitch) {
    const int lane = threadIdx.x % 32;
    ldmatrix_x4(a.bits, at + lane % 16 * pitch + lane / 16 * 16);
    round_fragment(a);
}
// 16 rows of a tile as columns of the second matrix
FUNCTION void load_second(Fragment &b, u32 at, int pitch) {
    const int lane = threadIdx.x % 32;
    ldmatrix_x4(b.bits, at + (lane % 8 + lane / 16 * 8) * pitch + lane / 8 % 2 * 16);
    round_fragment(b);
}
// Rows of a tile as terms, and 16 columns of it as those of the second matrix. tf32 takes its terms in the order in which
// `as_first` has them: 0, 2, 4, 6, 1, 3, 5, 7.
FUNCTION void load_second_across(Fragment &b, u32 at, const u8 *memory, int pitch) {
    const int lane = threadIdx.x % 32;
    if constexpr (IS_F32) {
        const u8 *from = memory + lane % 4 * 2 * pitch + lane / 4 * 4;
        b.bits[0] = *(const u32 *)from;
        b.bits[1] = *(const u32 *)(from + pitch);
        b.bits[2] = *(const u32 *)(from + 32);
        b.bits[3] = *(const u32 *)(from + pitch + 32);
        round_fragment(b);
    } else {
        ldmatrix_x4_trans(b.bits, at + lane % 16 * pitch + lane / 16 * 16);
    }
}
// Sums of 16 x (8 * count) as the first matrix of the next product: its step number `step`.
template <int count>
FUNCTION void as_first(Fragment &a, const f32 (&sums)[count][4], int step) {
    if constexpr (IS_F32) {
        a.bits[0] = __float_as_uint(sums[step][0]);
        a.bits[1] = __float_as_uint(sums[step][2]);
        a.bits[2] = __float_as_uint(sums[step][1]);
        a.bits[3] = __float_as_uint(sums[step][3]);
        round_fragment(a);
    } else {
#pragma unroll
        for (int r = 0; r < 4; r++) {
            const f32 low = sums[2 * step + r / 2][r % 2 * 2], high = sums[2 * step + r / 2][r % 2 * 2 + 1];
            a.bits[r] = JOIN(pack_of_, DTYPE)(low, high);
        }
    }
}

template <int count>
FUNCTION void clear(f32 (&sums)[count][4]) {
#pragma unroll
    for (int j = 0; j < count; j++)
#pragma unroll
        for (int r = 0; r < 4; r++) sums[j][r] = 0;
}

// ---- Tiles ---------------------------------------------------------------------------------------------------------

// Starts to load `rows` rows of `size` columns, of which `width` are there. `row_of(r)` is the address of row r, null
// for one of zeros. `copy`: bytes of an asynchronous copy, which divide all that is added to addresses; 0: elements
// are read one by one, `step` apart.
template <int copy, int size, int rows, class Rows>
FUNCTION void load_tile(u8 *shared, const DTYPE *anything, int width, i64 step, const Rows &row_of) {
    constexpr int pitch = PITCH(size);
    if constexpr (copy > 0) {
        constexpr int pieces = size * (int)sizeof(DTYPE) / copy;
        const u32 to = smem_address(shared);
#pragma unroll 8
        for (int p = threadIdx.x; p < rows * pieces; p += THREADS_OF_BLOCK) {
            const int row = p / pieces, at = p % pieces * copy;
            const DTYPE *from = row_of(row);
            const bool is_there = from && at < width * (int)sizeof(DTYPE);
            const void *source = is_there ? (const void *)((const u8 *)from + at) : (const void *)anything;
            if constexpr (copy == 16) cp_async16(to + row * pitch + at, source, is_there);
            if constexpr (copy == 8) cp_async8(to + row * pitch + at, source, is_there);
            if constexpr (copy == 4) cp_async4(to + row * pitch + at, source, is_there);
        }
    } else {
        for (int p = threadIdx.x; p < rows * size; p += THREADS_OF_BLOCK) {
            const int row = p / size, column = p % size;
            const DTYPE *from = row_of(row);
            ((DTYPE *)(shared + row * pitch))[column] = from && column < width ? from[column * step] : (DTYPE)0;
        }
    }
}

// The same for rows one behind the other in memory, `step_of_rows` elements apart, of which `there` are there. What is added
// to addresses is the same in each step of a thread, so that a copy takes but an addition.
template <int copy, int size, int rows>
FUNCTION void load_rows(u8 *shared, const DTYPE *from, i64 step_of_rows, int there, int width, i64 step) {
    constexpr int pieces = copy > 0 ? size * (int)sizeof(DTYPE) / (copy > 0 ? copy : 1) : 1;
    if constexpr (copy == 16 && THREADS_OF_BLOCK % pieces == 0) {
        constexpr int side_by_side = THREADS_OF_BLOCK / pieces;
        const int row = threadIdx.x / pieces, at = threadIdx.x % pieces * 16;
        const u32 to = smem_address(shared) + row * PITCH(size) + at;
        const u8 *source = (const u8 *)(from + row * step_of_rows) + at;
        const i64 stride = side_by_side * step_of_rows * (i64)sizeof(DTYPE);
        if (there >= rows && width == size && rows % side_by_side == 0) {
#pragma unroll
            for (int r = 0; r < rows; r += side_by_side, source += stride) cp_async16(to + r * PITCH(size), source);
        } else {
#pragma unroll
            for (int r = 0; r < rows; r += side_by_side, source += stride) {
                const bool is_there = r + row < there && at < width * (int)sizeof(DTYPE);
                if (r + row < rows) cp_async16(to + r * PITCH(size), is_there ? source : (const u8 *)from, is_there);
            }
        }
    } else {
        load_tile<copy, size, rows>(shared, from, width, step, [&](int r) -> const DTYPE * {
            return r < there ? from + r * step_of_rows : nullptr;
        });
    }
}

// Rows 16 * count of a warp's sums, times factors of each row, as alpha * sums + beta * what is there. `row_of(r)`: the
// address of row r of them, null for none. `scratch`: room of the warp's own for its rows, where they are turned so that
// each lane stores 16 bytes.
template <int copy, int size, int tiles, class Rows>
FUNCTION void store_rows(f32 (&sums)[tiles][size / 8][4], u8 *scratch, int width, i64 step, f64 alpha, f64 beta,
                         const Rows &row_of) {
    constexpr int pitch = PITCH(size);
    const int lane = threadIdx.x % 32, g = lane / 4, i = lane % 4;
    if constexpr (copy == 16) {
        if (beta == 0) {
            __syncwarp();
#pragma unroll
            for (int m = 0; m < tiles; m++)
#pragma unroll
                for (int j = 0; j < size / 8; j++)
#pragma unroll
                    for (int r = 0; r < 2; r++) {
                        u8 *at = scratch + (m * 16 + g + 8 * r) * pitch + (j * 8 + 2 * i) * (int)sizeof(DTYPE);
                        const f32 low = (f32)alpha * sums[m][j][2 * r], high = (f32)alpha * sums[m][j][2 * r + 1];
                        if (IS_F32)
                            *(uint2 *)at = make_uint2(__float_as_uint(low), __float_as_uint(high));
                        else
                            *(u32 *)at = JOIN(pack_of_, DTYPE)(low, high);
                    }
            __syncwarp();
            constexpr int pieces = size * (int)sizeof(DTYPE) / 16;
#pragma unroll 4
            for (int p = lane; p < tiles * 16 * pieces; p += 32) {
                const int row = p / pieces, at = p % pieces * 16;
                DTYPE *to = row_of(row);
                if (to && at < width * (int)sizeof(DTYPE)) store16((u8 *)to + at, *(const uint4 *)(scratch + row * pitch + at));
            }
            return;
        }
    }
#pragma unroll
    for (int m = 0; m < tiles; m++)
#pragma unroll
        for (int r = 0; r < 2; r++) {
            DTYPE *to = row_of(m * 16 + g + 8 * r);
            if (!to) continue;
#pragma unroll
            for (int j = 0; j < size / 8; j++)
#pragma unroll
                for (int c = 0; c < 2; c++) {
                    const int column = j * 8 + 2 * i + c;
                    if (column >= width) continue;
                    f32 value = (f32)alpha * sums[m][j][2 * r + c];
                    if (beta != 0) value += (f32)beta * LOAD(DTYPE, to, column * step);
                    STORE(DTYPE, to, column * step, value);
                }
        }
}

// ---- Who sees what -------------------------------------------------------------------------------------------------

// Keys `from` to `to` - 1.
struct Sight {
    int from, to;
};
FUNCTION int clipped(i64 key, i64 keys) { return (int)(key < 0 ? 0 : key > keys ? keys : key); }
FUNCTION Sight sight_of(i64 own, i64 left, i64 right, i64 keys, int low, int high) {
    low = max(low, clipped(own - left, keys));
    high = min(high, clipped(own + right + 1, keys));
    return {low, max(low, high)};
}
#if HAS_LENGTHS
#define LENGTH_OF(n) clipped((i64)lengths[(n) * lengths_n], keys)
#else
#define LENGTH_OF(n) ((int)keys)
#endif
#if HAS_LO
#define LO_OF(t) clipped((i64)lo[(t) * lo_t], keys)
#else
#define LO_OF(t) 0
#endif
#if HAS_HI
#define HI_OF(t) clipped((i64)hi[(t) * hi_t], keys)
#else
#define HI_OF(t) ((int)keys)
#endif
#define SIGHT(t, length) sight_of((t) + past, left, right, keys, LO_OF(t), min(length, HI_OF(t)))

// What a mask makes of a score; `at`: where its number is
#if MASK == 1
#define MASK_DTYPE u8
#define MASKED(score, at) (mask[at] ? (score) : NOTHING)
#elif MASK == 2
#define MASK_DTYPE DTYPE
#define MASKED(score, at) with_mask(score, (f32)LOAD(DTYPE, mask, at))
// The lowest finite number, which some write for -infinity, still tells keys that are hidden from queries that see nothing.
FUNCTION f32 with_mask(f32 score, f32 mask) {
    const f32 lowest = -3.3e38f, sum = score + LOG2_E * mask;
    return sum < lowest && mask != NOTHING ? lowest : sum;
}
#endif

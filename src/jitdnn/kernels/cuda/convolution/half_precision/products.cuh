// Products of fragments, of whatever type the tensors have.
//
// Halves are multiplied as they are; where they are parts of f32 numbers (RESULT_IS_F32) sums are added as those of f32. f32 is multiplied as tf32, of which mma reads the upper 11 bits of the mantissa:
// rounded to it (PRODUCTS 1), or as the sum of two such numbers, of whose four products the three largest are added
// (PRODUCTS 3; "3xTF32" of CUTLASS). The second number is kept times 2^12, so that it has all of its bits however small
// the first is. The tensor cores cut off what they add, so sums of f32 go through them for one step only, and are added
// by f32 adders.

FUNCTION u32 bits_of(u16 value) { return value; }
FUNCTION u32 bits_of(f32 value) { return __float_as_uint(value); }

// Registers of one operand of an mma.
template <int count>
struct Factor {
    u32 bits[count];
#if PRODUCTS == 3
    u32 low[count];     // 2^12 times what mma does not read of `bits`, rounded to what it reads
    u32 finite[count];  // `bits`, but 0 for an infinity, which is multiplied once: by the other factor's `bits`
#endif
};

template <int count>
FUNCTION void prepare(Factor<count> &factor) {
#if IS_F32
#pragma unroll
    for (int i = 0; i < count; i++) {
        const u32 bits = factor.bits[i];
        const f32 value = __uint_as_float(bits);
#if PRODUCTS == 3
        const bool is_infinite = fabsf(value) == __uint_as_float(0x7f800000u);
        const f32 rest = 4096.0f * (value - __uint_as_float(bits & 0xffffe000u));
        factor.low[i] = is_infinite ? 0u : __float_as_uint(rest) + 0x1000u;
        factor.finite[i] = is_infinite ? 0u : bits;
#else
        factor.bits[i] = to_tf32(value);
#endif
    }
#endif
}

// Whether a kernel is to run. One behind a kernel that divides f32 into halves is where that one met a number that is not
// finite, as the header says that lies so many bytes before its workspace.
FUNCTION bool is_wanted(const u8 *workspace) {
#if BYTES_FROM_HEADER
    return ((const i32 *)(workspace - BYTES_FROM_HEADER))[1];
#else
    return true;
#endif
}

#if IS_F32 && PRODUCTS == 2
// Of numbers that are sums of two halves: the three largest products, added to each other by the tensor cores alone.
FUNCTION void multiply_halves(f32 (&sums)[4], const u32 (&whole)[4], const u32 (&rest)[4], const uint2 (&b)[2],
                              f32 factor) {
    f32 step[4] = {0.0f, 0.0f, 0.0f, 0.0f};
    const u32 first[2] = {b[0].x, b[0].y}, second[2] = {b[1].x, b[1].y};
    mma_f16(step, rest, first);
    mma_f16(step, whole, second);
    mma_f16(step, whole, first);
#pragma unroll
    for (int i = 0; i < 4; i++) sums[i] = fmaf(step[i], factor, sums[i]);
}
#endif

FUNCTION void multiply(f32 (&sums)[4], const Factor<4> &a, const Factor<2> &b) {
#if IS_F32
    f32 step[4] = {0.0f, 0.0f, 0.0f, 0.0f};
#if PRODUCTS == 3
    f32 low[4] = {0.0f, 0.0f, 0.0f, 0.0f};
    mma_tf32(low, a.low, b.finite);
    mma_tf32(low, a.finite, b.low);
#pragma unroll
    for (int i = 0; i < 4; i++) sums[i] = fmaf(low[i], 1.0f / 4096.0f, sums[i]);
#endif
    mma_tf32(step, a.bits, b.bits);
#pragma unroll
    for (int i = 0; i < 4; i++) sums[i] += step[i];
#elif RESULT_IS_F32
    f32 step[4] = {0.0f, 0.0f, 0.0f, 0.0f};
    MMA(step, a.bits, b.bits);
#pragma unroll
    for (int i = 0; i < 4; i++) sums[i] += step[i];
#else
    MMA(sums, a.bits, b.bits);
#endif
}

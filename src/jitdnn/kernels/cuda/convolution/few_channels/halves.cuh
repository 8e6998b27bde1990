// f32 numbers as sums of two of half precision: powers of two that they are multiplied by before, so that the largest of
// some becomes 2^13. The header in the workspace, HEADER_BYTES before what is next there, has some.

constexpr int HEADER_BYTES = 2048;  // as in halves.py
constexpr u32 INFINITE = 0x7f800000u;

// value * 2^exponent, by two factors that f32 has.
FUNCTION f32 times_power(f32 value, int exponent) {
    exponent = max(min(exponent, 252), -252);
    const int half = exponent / 2;
    return value * __uint_as_float((u32)(half + 127) << 23) * __uint_as_float((u32)(exponent - half + 127) << 23);
}

// The exponent for numbers of which the largest has these bits; 0 if that is not finite.
FUNCTION int shift_for(u32 most) {
    const int exponent = max((int)(most >> 23), 1) - 127;
    return most && most < INFINITE ? 13 - exponent : 0;
}

// The largest number that any of `warps` warps has; by all of a block's threads, which then wait for each other before
// they call it again.
template <int warps>
FUNCTION u32 most_of_block(u32 most) {
    __shared__ u32 found[warps];
    most = warp_max(most);
    if (threadIdx.x % 32 == 0) found[threadIdx.x / 32] = most;
    __syncthreads();
#pragma unroll
    for (int other = 0; other < warps; other++) most = max(most, found[other]);
    return most;
}

// The first or the second half of a number, as bits.
FUNCTION u32 half_of(f32 value, int which) {
    const u16 whole = to_f16(value);
    return which ? to_f16(value - to_f32_f16(whole)) : whole;
}

// The exponent of both operands together.
FUNCTION int shift_of(const u8 *header) { return ((const i32 *)header)[0] + ((const i32 *)header)[1]; }
FUNCTION f32 unscaled(f32 sum, int shift) { return times_power(sum, -shift); }

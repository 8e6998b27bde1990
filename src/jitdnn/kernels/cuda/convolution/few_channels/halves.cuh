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

// The largest of two kinds of numbers that any of `warps` warps has; by all of a block's threads, which then wait for each
// other before they call it again.
template <int warps>
FUNCTION uint2 most_of_block(u32 first, u32 second = 0) {
    __shared__ uint2 found[warps];
    uint2 most = make_uint2(warp_max(first), warp_max(second));
    if (threadIdx.x % 32 == 0) found[threadIdx.x / 32] = most;
    __syncthreads();
#pragma unroll
    for (int other = 0; other < warps; other++) most.x = max(most.x, found[other].x), most.y = max(most.y, found[other].y);
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

// ---- f32 that is divided where it is staged: pieces of 16 bytes, four of which become 16 first halves and 16 second ones.

template <int pieces, class Place>
FUNCTION u32 most_of_pieces(const f32 *stage, Place place) {
    u32 most = 0;
#pragma unroll 4
    for (int i = threadIdx.x; i < pieces; i += BLOCK_THREADS) {
        const uint4 four = *(const uint4 *)(stage + place(i) + i % 4 * 4);
        most = max(most, max(four.x & 0x7fffffffu, four.y & 0x7fffffffu));
        most = max(most, max(four.z & 0x7fffffffu, four.w & 0x7fffffffu));
    }
    return most;
}

template <int pieces, class Place>
FUNCTION void divide_pieces(f32 *stage, Place place, int shift) {
    static_assert(pieces % 4 == 0, "four pieces are divided together");
    const int lane = threadIdx.x % 32;
#pragma unroll 2
    for (int first = threadIdx.x - lane; first < pieces; first += BLOCK_THREADS) {
        const int i = first + lane;
        f32 *segment = stage + place(min(i, pieces - 1));
        const uint4 four = *(const uint4 *)(segment + i % 4 * 4);
        const f32 value[4] = {times_power(__uint_as_float(four.x), shift), times_power(__uint_as_float(four.y), shift),
                              times_power(__uint_as_float(four.z), shift), times_power(__uint_as_float(four.w), shift)};
        const u32 low = pack_f16(value[0], value[1]), high = pack_f16(value[2], value[3]);
        const u32 rest[2] = {pack_f16(value[0] - f16_low(low), value[1] - f16_high(low)),
                             pack_f16(value[2] - f16_low(high), value[3] - f16_high(high))};
        __syncwarp();
        if (i < pieces) {
            *(uint2 *)(segment + i % 4 * 2) = make_uint2(low, high);
            *(uint2 *)(segment + 8 + i % 4 * 2) = make_uint2(rest[0], rest[1]);
        }
    }
}

// Sums of products of stages that were multiplied by different powers of two: they have that of a stage whose numbers are
// not far smaller than those of any before.
constexpr int NO_NUMBERS = 139, NO_SUMS = 1000;  // exponents of a stage of zeros, and of sums of nothing
FUNCTION bool is_larger(int shift, int scale) { return shift < scale - 16; }
FUNCTION f32 factor_of(int shift, int scale) {
    return __uint_as_float((u32)(max(scale - shift, -126) + 127) << 23);
}

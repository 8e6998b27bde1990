// What the numbers of f32 tensors are multiplied by before they are divided into halves: powers of two, which the header
// in the workspace holds, HEADER_BYTES before what is next there.

constexpr int HEADER_BYTES = 2048;  // as in halves.py

// value * 2^exponent, by two factors that f32 has.
FUNCTION f32 times_power(f32 value, int exponent) {
    exponent = max(min(exponent, 252), -252);
    const int half = exponent / 2;
    return value * __uint_as_float((u32)(half + 127) << 23) * __uint_as_float((u32)(exponent - half + 127) << 23);
}

// The exponent of both operands together.
FUNCTION int shift_of(const u8 *header) { return ((const i32 *)header)[0] + ((const i32 *)header)[1]; }
FUNCTION f32 unscaled(f32 sum, int shift) { return times_power(sum, -shift); }

// Two numbers of an epilogue's operand that are neighbours in memory.

FUNCTION void load_two_f16(const void *from, f32 &low, f32 &high) {
    const u32 pair = *(const u32 *)from;
    low = f16_low(pair), high = f16_high(pair);
}
FUNCTION void load_two_bf16(const void *from, f32 &low, f32 &high) {
    const u32 pair = *(const u32 *)from;
    low = bf16_low(pair), high = bf16_high(pair);
}
FUNCTION void load_two_f32(const void *from, f32 &low, f32 &high) {
    const uint2 pair = *(const uint2 *)from;
    low = __uint_as_float(pair.x), high = __uint_as_float(pair.y);
}

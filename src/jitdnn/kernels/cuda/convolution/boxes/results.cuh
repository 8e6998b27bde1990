// How sums of products leave for memory whose innermost axis are channels: 16 bytes of a lane, 64 of four.

// Four lanes with the same rows exchange words: lane i has those of columns 8 * i of 32 then, from the first lane on.
FUNCTION void exchange(u32 (&words)[4]) {
#pragma unroll
    for (int apart = 1; apart < 4; apart *= 2) {
        const bool is_second = threadIdx.x & apart;
#pragma unroll
        for (int n = 0; n < 4; ++n) {
            if (n & apart) continue;
            const u32 other = shuffle_xor(is_second ? words[n] : words[n | apart], apart);
            if (is_second)
                words[n] = other;
            else
                words[n | apart] = other;
        }
    }
}

// 32 columns of a row as four lanes hold their sums, each `own[4 * i]` and `[4 * i + 1]` of columns 8 * i + 2 * (lane % 4) and the next:
// rounded, with beta times what is there. Lane i % 4 has the words of columns 8 * i and on.
FUNCTION void rounded(u32 (&words)[4], const f32 *own, const u16 *there, bool is_there, f32 alpha, f32 beta) {
    if (beta == 0) {
#pragma unroll
        for (int i = 0; i < 4; ++i) words[i] = PACK(alpha * own[4 * i], alpha * own[4 * i + 1]);
        exchange(words);
        return;
    }
    u32 low[4], high[4];  // sums are rounded once: those of four lanes are exchanged as they are
#pragma unroll
    for (int i = 0; i < 4; ++i)
        low[i] = __float_as_uint(alpha * own[4 * i]), high[i] = __float_as_uint(alpha * own[4 * i + 1]);
    exchange(low);
    exchange(high);
    const uint4 four = is_there ? *(const uint4 *)there : uint4{0, 0, 0, 0};
    const u32 before[4] = {four.x, four.y, four.z, four.w};
#pragma unroll
    for (int i = 0; i < 4; ++i)
        words[i] = PACK(__uint_as_float(low[i]) + beta * LOW(before[i]), __uint_as_float(high[i]) + beta * HIGH(before[i]));
}

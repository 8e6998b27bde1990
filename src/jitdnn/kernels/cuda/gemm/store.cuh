// The store of finished sums: alpha, beta, and stores of up to 16 bytes where strides and addresses allow.

// Stores WIDTH neighbours at once: 4, 8 or a multiple of 16 bytes, at an address that is a multiple of as many.
template <int WIDTH>
FUNCTION void store_neighbours(RESULT *p, const REAL *values) {
    constexpr int words = WIDTH * (int)sizeof(RESULT) / 4;
    u32 bits[words];
#pragma unroll
    for (int n = 0; n < words; ++n) {
        if constexpr (sizeof(RESULT) == 2)
            bits[n] = PACK(values[2 * n], values[2 * n + 1]);
        else
            STORE(RESULT, (RESULT *)bits, n, values[n]);
    }
    if constexpr (words % 4 == 0) {
#pragma unroll
        for (int n = 0; n < words; n += 4)
            store16((u8 *)p + 4 * n, uint4{bits[n], bits[n + 1], bits[n + 2], bits[n + 3]});
    } else if constexpr (words == 2) {
        store8(p, uint2{bits[0], bits[1]});
    } else {
        *(u32 *)p = bits[0];
    }
}

// Stores `count` of eight neighbouring results: alpha times each, plus beta times what is in memory. `step`: elements
// from one to the next. With WIDTH 2, 4 or 8, which divides `count`, so many are stored at once.
template <int WIDTH, class Where>
FUNCTION void store_results(RESULT *p, Where step, const REAL (&results)[RUN], int count, REAL alpha, REAL beta) {
    REAL values[RUN];
#pragma unroll
    for (int e = 0; e < RUN; ++e) {
        values[e] = alpha * results[e];
        if (beta != 0 && e < count) {
#if DTYPE_IS_INTEGER
            values[e] = blend_whole(alpha, results[e], beta, (SCALE)LOAD(RESULT, p, (i64)e * step));
#else
            values[e] += beta * (REAL)LOAD(RESULT, p, (i64)e * step);
#endif
        }
    }
    if constexpr (WIDTH > 1 && (sizeof(RESULT) == 2 || sizeof(RESULT) == 4)) {
#pragma unroll
        for (int e = 0; e < RUN; e += WIDTH)
            if (e < count) store_neighbours<WIDTH>(p + e, values + e);
    } else {
#pragma unroll
        for (int e = 0; e < RUN; ++e, p += step)
            if (e < count) STORE(RESULT, p, 0, values[e]);
    }
}

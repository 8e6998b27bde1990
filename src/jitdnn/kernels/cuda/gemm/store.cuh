// The store of finished sums: alpha, beta, and stores of 16 bytes where strides and addresses allow.

// Stores `count` of eight neighbouring results: alpha times each, plus beta times what is in memory. `step`: elements
// from one to the next.
template <bool IS_VECTOR, class Where>
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
    if constexpr (IS_VECTOR) {
        if (count == RUN) {
            if constexpr (sizeof(RESULT) == 2) {
                u32 words[4];
#pragma unroll
                for (int e = 0; e < 4; ++e) words[e] = PACK(values[2 * e], values[2 * e + 1]);
                store16(p, uint4{words[0], words[1], words[2], words[3]});
                return;
            } else if constexpr (sizeof(RESULT) == 4) {
                u32 words[RUN];
#pragma unroll
                for (int e = 0; e < RUN; ++e) STORE(RESULT, (RESULT *)words, e, values[e]);
                store16(p, uint4{words[0], words[1], words[2], words[3]});
                store16(p + 4, uint4{words[4], words[5], words[6], words[7]});
                return;
            }
        }
    }
#pragma unroll
    for (int e = 0; e < RUN; ++e)
        if (e < count) STORE(RESULT, p, (i64)e * step, values[e]);
}

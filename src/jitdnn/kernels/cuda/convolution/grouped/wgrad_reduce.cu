// The sums of all workers. SUM_SHARES threads share the workers of SUM_VECTOR neighbouring elements of dw.
KERNEL(256) void grouped_filter_sum(const u16 *x, const u16 *dy, u16 *dw, u8 *workspace, f64 alpha, f64 beta) {
    constexpr int PLACES = 256 / SUM_SHARES;
    __shared__ f32 some[SUM_SHARES][PLACES][SUM_VECTOR];
    const int place = threadIdx.x % PLACES, share = threadIdx.x / PLACES;
    const int element = ((int)blockIdx.x * PLACES + place) * SUM_VECTOR;
    const f32 *part = (const f32 *)workspace + element;
    f32 sums[SUM_VECTOR] = {};
    if (element < ELEMENTS) {
#pragma unroll 8
        for (int i = share; i < WORKERS; i += SUM_SHARES) {
            const f32 *from = part + (i64)i * ELEMENTS;
#if SUM_VECTOR == 4
            const float4 four = *(const float4 *)from;
            sums[0] += four.x, sums[1] += four.y, sums[2] += four.z, sums[3] += four.w;
#else
            sums[0] += *from;
#endif
        }
    }
    if (SUM_SHARES > 1) {
#pragma unroll
        for (int e = 0; e < SUM_VECTOR; e++) some[share][place][e] = sums[e];
        __syncthreads();
        if (share > 0) return;
        for (int i = 1; i < SUM_SHARES; i++)
#pragma unroll
            for (int e = 0; e < SUM_VECTOR; e++) sums[e] += some[i][place][e];
    }
    if (element >= ELEMENTS) return;
    constexpr int ALL = GROUPS_OF_CHANNELS * GROUP_OUT;
    const int c = element % GROUP_IN, k = element / GROUP_IN % ALL, tap = element / (GROUP_IN * ALL);
    u16 *to = dw + W_BASE + (INDEX)k * W_K + (INDEX)c * W_C + (INDEX)(tap / TAPS_S) * W_R + (INDEX)(tap % TAPS_S) * W_S;
#pragma unroll
    for (int e = 0; e < SUM_VECTOR; e++) {
        f32 value = (f32)alpha * sums[e];
        if (beta != 0.0) value += (f32)beta * FROM_HALF(to[(INDEX)e * W_C]);
        to[(INDEX)e * W_C] = TO_HALF(value);
    }
}

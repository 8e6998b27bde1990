// The reduction of all workers' partial sums: REDUCTION_THREADS threads for REDUCTION_VECTOR neighbouring elements of
// dw.
KERNEL(256)
void grouped_wgrad_reduce(const u16 *x, const u16 *dy, u16 *dw, u8 *workspace, f64 alpha, f64 beta, NUMBERS) {
    const Sizes sizes = SIZES;
    constexpr int BLOCK_RUNS = 256 / REDUCTION_THREADS;
    __shared__ f32 partial[REDUCTION_THREADS][BLOCK_RUNS][REDUCTION_VECTOR];
    const int offset = threadIdx.x % BLOCK_RUNS, reducer = threadIdx.x / BLOCK_RUNS;
    const int element = ((int)blockIdx.x * BLOCK_RUNS + offset) * REDUCTION_VECTOR;
    const f32 *part = (const f32 *)workspace + element;
    f32 sums[REDUCTION_VECTOR] = {};
    if (element < ELEMENTS) {
#pragma unroll 8
        for (int i = reducer; i < WORKERS; i += REDUCTION_THREADS) {
            const f32 *from = part + (i64)i * ELEMENTS;
#if REDUCTION_VECTOR == 4
            const float4 four = *(const float4 *)from;
            sums[0] += four.x, sums[1] += four.y, sums[2] += four.z, sums[3] += four.w;
#else
            sums[0] += *from;
#endif
        }
    }
    if (REDUCTION_THREADS > 1) {
#pragma unroll
        for (int e = 0; e < REDUCTION_VECTOR; e++) partial[reducer][offset][e] = sums[e];
        __syncthreads();
        if (reducer > 0) return;
        for (int i = 1; i < REDUCTION_THREADS; i++)
#pragma unroll
            for (int e = 0; e < REDUCTION_VECTOR; e++) sums[e] += partial[i][offset][e];
    }
    if (element >= ELEMENTS) return;
    constexpr int ALL = GROUPS_OF_CHANNELS * GROUP_OUT;
    const int c = element % GROUP_IN, k = element / GROUP_IN % ALL, tap = element / (GROUP_IN * ALL);
    u16 *to = dw + W_BASE + (INDEX)k * W_K + (INDEX)c * W_C + (INDEX)(tap / TAPS_S) * W_R + (INDEX)(tap % TAPS_S) * W_S;
    f32 value[REDUCTION_VECTOR];
#pragma unroll
    for (int e = 0; e < REDUCTION_VECTOR; e++) {
        value[e] = (f32)alpha * sums[e];
        if (beta != 0.0) value[e] += (f32)beta * FROM_HALF(to[(INDEX)e * W_C]);
    }
#if REDUCTION_VECTOR == 4
    if (W_C == 1 && is_aligned_to(to, 8)) {
        store8(to, make_uint2(PACK(value[0], value[1]), PACK(value[2], value[3])));
        return;
    }
#endif
#pragma unroll
    for (int e = 0; e < REDUCTION_VECTOR; e++) to[(INDEX)e * W_C] = TO_HALF(value[e]);
}

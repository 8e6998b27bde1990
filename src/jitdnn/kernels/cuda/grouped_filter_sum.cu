// The sums of all workers: 32 elements of dw for a block, 8 threads each.
KERNEL(256) void grouped_filter_sum(const u16 *x, const u16 *dy, u16 *dw, u8 *workspace, f64 alpha, f64 beta) {
    __shared__ f32 some[8][32];
    const int column = threadIdx.x % 32, turn = threadIdx.x / 32, element = (int)blockIdx.x * 32 + column;
    const f32 *part = (const f32 *)workspace + element;
    f32 sum = 0.0f;
    if (element < ELEMENTS) {
#pragma unroll 8
        for (int i = turn; i < WORKERS; i += 8) sum += part[(i64)i * ELEMENTS];
    }
    some[turn][column] = sum;
    __syncthreads();
    if (turn > 0 || element >= ELEMENTS) return;
    for (int i = 1; i < 8; i++) sum += some[i][column];
    constexpr int ALL = GROUPS_OF_CHANNELS * GROUP_OUT;
    const int c = element % GROUP_IN, k = element / GROUP_IN % ALL, tap = element / (GROUP_IN * ALL);
    u16 *to = dw + W_BASE + (INDEX)k * W_K + (INDEX)c * W_C + (INDEX)(tap / TAPS_S) * W_R + (INDEX)(tap % TAPS_S) * W_S;
    f32 value = (f32)alpha * sum;
    if (beta != 0.0) value += (f32)beta * FROM_HALF(*to);
    *to = TO_HALF(value);
}

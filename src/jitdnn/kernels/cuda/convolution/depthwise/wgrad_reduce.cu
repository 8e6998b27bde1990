// The reduction of a filter's gradient: adds [splits][taps][CHANNELS] f32 in a fixed order, 8 threads for each sum.
// NUMBERS: the integers of all kernels, of which `splits` is one.

KERNEL(256)
void reduce_partials(const element *__restrict__ x, const element *__restrict__ dy, element *dw, u8 *workspace,
                     f64 alpha, f64 beta, NUMBERS) {
    constexpr int SUMS = D_TAPS * H_TAPS * W_TAPS * CHANNELS;
    __shared__ f32 shared[8][32];
    const f32 *partials = (const f32 *)workspace;
    int lane = threadIdx.x % 32, slice = threadIdx.x / 32, o = blockIdx.x * 32 + lane;
    f32 sum = 0;
    if (o < SUMS) {
#pragma unroll 8
        for (int part = slice; part < (int)splits; part += 8) sum += partials[(i64)part * SUMS + o];
    }
    shared[slice][lane] = sum;
    __syncthreads();
    if (slice == 0 && o < SUMS) {
#pragma unroll
        for (int i = 1; i < 8; i++) sum += shared[i][lane];
        int tap = o / CHANNELS, c = o % CHANNELS;
        element *location = dw + W_BASE + (i64)c * W_C + tap / (H_TAPS * W_TAPS) * D_TAP_STEP +
                         tap / W_TAPS % H_TAPS * H_TAP_STEP + tap % W_TAPS * W_TAP_STEP;
        f32 value = (f32)alpha * sum;
        if (beta != 0) value += (f32)beta * widen(*location);
        *location = narrow(value);
    }
}

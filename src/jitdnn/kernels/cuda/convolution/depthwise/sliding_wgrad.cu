// The gradient of a depthwise filter on the ordinary units: rows slide through registers.
//
// A thread has CPT neighbouring channels, a sum for each of their taps, and a window of the STEPS last rows of dy. An
// item is a tile of DB x QB columns of dy over HB rows; a thread takes every (gridDim.y * SLOTS)-th item. The threads
// of a group add their sums in a fixed order, `sum_parts` adds those of the groups: no atomics, the same result every
// time.
//
// Macros: those of sliding.cu; ROUND (steps of the loop's body, a multiple of AHEAD), PARTS, which is
// gridDim.y. The workspace is [PARTS][taps][CHANNELS] f32.

constexpr int STRIPS = (W_COUNT + QB - 1) / QB, DEPTHS = (D_COUNT + DB - 1) / DB, CHUNKS = (H_COUNT + HB - 1) / HB;
constexpr int SLOTS = THREAD_COUNT / CB;
constexpr i64 ITEMS = (i64)STRIPS * DEPTHS * CHUNKS * W_PHASES * H_PHASES * D_PHASES * IMAGES;

template <bool aligned>
FUNCTION void add_item(const element *__restrict__ x, const element *__restrict__ dy, i64 item, int c,
                       f32 (&sums)[TAPS][CPT]) {
    i64 t = item;
    int strip = t % STRIPS;
    t /= STRIPS;
    int depth = t % DEPTHS;
    t /= DEPTHS;
    int phase_w = t % W_PHASES;
    t /= W_PHASES;
    int phase_d = t % D_PHASES;
    t /= D_PHASES;
    int n = t % IMAGES;
    t /= IMAGES;
    // what differs in its steps comes last, so that the threads of a warp have the same
    int phase_h = t % H_PHASES;
    int chunk = (int)(t / H_PHASES);

    const element *source = x + n * (i64)X_N + c / MULTIPLIER * (i64)X_C;
    const element *gradient = dy + n * (i64)Y_N + c * (i64)Y_C;
    int k0 = strip * QB, e0 = depth * DB, m0 = k0 * W_STRIDE, l0 = e0 * D_STRIDE;
    int b0 = chunk * HB, b1 = min(b0 + HB, H_COUNT);

    // steps that read nothing but padding have nothing to add
    int origin = H_IN_ORIGIN + H_IN_SLOPE * phase_h;
    int first = floor_divide(-floor_divide(origin, H_IN_PITCH), ROWS_IN);
    int last = floor_divide(floor_divide(H_IN_EXTENT - 1 - origin, H_IN_PITCH), ROWS_IN);
    int end = min(b1 - 1 + STEPS - 1, last);

    struct Step {
        InputRows<aligned> x;
        Pack<CPT> dy[DB][QB];
    };
    Step ahead[AHEAD];
    auto load = [&](int step, Step &next) {
        bool is_step = step <= end;
        next.x.load(source, step, is_step, l0, m0, phase_d, phase_h, phase_w);
        int h = OUT_POSITION(H, step, phase_h);
#pragma unroll
        for (int e = 0; e < DB; e++) {
            int d = OUT_POSITION(D, e0 + e, phase_d);
            bool inside = is_step && step < b1 && OUT_HAS(H, h) && OUT_HAS(D, d);
            const element *row = gradient + ((OFFSET)h * (OFFSET)H_OUT_STEP + (OFFSET)d * (OFFSET)D_OUT_STEP);
#pragma unroll
            for (int q = 0; q < QB; q++) {
                int p = OUT_POSITION(W, k0 + q, phase_w);
                if (inside && OUT_HAS(W, p))
                    next.dy[e][q].template load<aligned>(row + (OFFSET)p * (OFFSET)W_OUT_STEP);
                else
                    next.dy[e][q].zero();
            }
        }
    };

    // slot_of(i, j): where step i of a round finds the row of dy that is j steps old; a copy from slot to slot costs an
    // instruction a number, which is saved where a round is a whole number of windows
    f32 window[STEPS][DB][QB][CPT] = {};
    auto slot_of = [](int i, int j) { return ROUND % STEPS == 0 ? (i + STEPS - j) % STEPS : j; };
#pragma unroll
    for (int i = 0; i < AHEAD; i++) load(b0 + i, ahead[i]);
#pragma unroll 1
    for (int round = b0; round <= end; round += ROUND) {
#pragma unroll
        for (int i = 0; i < ROUND; i++) {
            int step = round + i;
            if (step > end) break;
            Step &here = ahead[i % AHEAD];
            f32 values[ROWS_IN][PLANES][COLUMNS][CPT];
            here.x.get(values);
#pragma unroll
            for (int e = 0; e < DB; e++)
#pragma unroll
                for (int q = 0; q < QB; q++) {
                    if (ROUND % STEPS != 0)
#pragma unroll
                        for (int j = STEPS - 1; j > 0; j--)
#pragma unroll
                            for (int k = 0; k < CPT; k++) window[j][e][q][k] = window[j - 1][e][q][k];
                    here.dy[e][q].get(window[slot_of(i, 0)][e][q]);
                }
            // into the same registers, and when the products have read them: see `advance` of sliding.cu
            if (AHEAD == 1 && step < end) load(step + 1, here);
            if (step >= first) {
#pragma unroll
                for (int j = 0; j < STEPS; j++)
#pragma unroll
                    for (int u = 0; u < ROWS_IN; u++) {
                        if (j * ROWS_IN + u >= H_TAPS) continue;
#pragma unroll
                        for (int z = 0; z < D_TAPS; z++)
#pragma unroll
                            for (int e = 0; e < DB; e++)
#pragma unroll
                                for (int q = 0; q < QB; q++)
#pragma unroll
                                    for (int s = 0; s < W_TAPS; s++)
#pragma unroll
                                        for (int k = 0; k < CPT; k++) {
                                            f32 &sum = sums[(z * H_TAPS + j * ROWS_IN + u) * W_TAPS + s][k];
                                            sum = fmaf(window[slot_of(i, j)][e][q][k],
                                                       values[u][e * D_STRIDE + z][q * W_STRIDE + s][k], sum);
                                        }
                    }
            }
            if (AHEAD > 1) load(step + AHEAD, here);
        }
    }
}

KERNEL2(THREAD_COUNT, MIN_BLOCKS)
void depthwise_filter(const element *__restrict__ x, const element *__restrict__ dy, element *dw, u8 *workspace,
                      f64 alpha, f64 beta) {
    int slot = threadIdx.x / CB, c = (blockIdx.x * CB + threadIdx.x % CB) * CPT;
    bool aligned = ((u64)x | (u64)dy) % (ALIGNMENT * sizeof(element)) == 0;
    f32 sums[TAPS][CPT] = {};
    if (slot < SLOTS) {
        i64 item = (i64)blockIdx.y * SLOTS + slot;
        if (ALIGNMENT == 1 || aligned) {
#pragma unroll 1
            for (; item < ITEMS; item += (i64)PARTS * SLOTS) add_item<true>(x, dy, item, c, sums);
        } else {
#pragma unroll 1
            for (; item < ITEMS; item += (i64)PARTS * SLOTS) add_item<false>(x, dy, item, c, sums);
        }
    }
    // several taps at a time, so that the group's memory is enough
    constexpr int WIDTH = CB * CPT, ROOM = 8192 / THREAD_COUNT / CPT > 0 ? 8192 / THREAD_COUNT / CPT : 1;
    __shared__ f32 shared[ROOM * SLOTS * WIDTH];
    f32 *parts = (f32 *)workspace + (i64)blockIdx.y * TAPS * CHANNELS;
#pragma unroll
    for (int i0 = 0; i0 < TAPS; i0 += ROOM) {
        if (i0 > 0) __syncthreads();
        if (slot < SLOTS)
#pragma unroll
            for (int i = 0; i < ROOM; i++)
                if (i0 + i < TAPS)
#pragma unroll
                    for (int k = 0; k < CPT; k++)
                        shared[(i * SLOTS + slot) * WIDTH + threadIdx.x % CB * CPT + k] = sums[i0 + i < TAPS ? i0 + i : 0][k];
        __syncthreads();
        for (int o = threadIdx.x; o < ROOM * WIDTH; o += THREAD_COUNT) {
            int i = o / WIDTH, k = o % WIDTH;
            if (i0 + i >= TAPS) break;
            f32 sum = 0;
            for (int j = 0; j < SLOTS; j++) sum += shared[(i * SLOTS + j) * WIDTH + k];
            parts[(i64)(i0 + i) * CHANNELS + blockIdx.x * WIDTH + k] = sum;
        }
    }
}

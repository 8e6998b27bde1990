KERNEL2(BLOCK_THREADS, RESIDENT)
void few_channels_fprop(const ELEMENT *RESTRICT x, const ELEMENT *RESTRICT w, RESULT *y EPILOGUE_PARAMETERS,
                        u8 *workspace, f64 alpha64, f64 beta64, NUMBERS) {
    begin_launch();
    const Sizes sizes = SIZES;
    extern __shared__ uint4 memory[];
    u32 *stages = (u32 *)memory;
    uint4 *filter = memory + STAGES * STAGE_WORDS / 4;             // [phase][step][column group][pair of tiles][lane]
    u32 *word_offsets = (u32 *)(filter + FRAGMENTS);  // [phase][step][8]
    // of STAGES_RESULTS: [warp][4 channels][RESULT_PITCH] sums, or [warp][8 outputs][CHANNEL_PITCH] results
    f32 *staged = (f32 *)(word_offsets + PHASES * STEPS * 8);
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
    const int column_group = warp % COLUMN_GROUPS, phase = warp / COLUMN_GROUPS % PHASES;
    const int output_warp = warp / (COLUMN_GROUPS * PHASES), first_channel = (int)blockIdx.y * BLOCK_COLUMNS;
#if HAS_SUMS  // neither touches what is summed
    const f32 alpha = 1, beta = 0;
#else
    const f32 alpha = (f32)alpha64, beta = (f32)beta64;
#endif
#if RESULT_IS_F32
    const int shift = shift_of(workspace - HEADER_BYTES);
#endif

    const uint4 *my_filter = filter + (phase * STEPS * COLUMN_GROUPS + column_group) * (TILE_N / 2 * 32) + lane;
    const u32 *my_offsets = word_offsets + phase * STEPS * 8 + t;
#if HAS_SUMS
    Totals totals = {};
    f32 *shared_sums = (f32 *)((u8 *)memory + SUMS_SHARED);
    int image = -1;
    clear_parts(workspace, sizes);
#endif
    int index = blockIdx.x, buffer = 0;
    if (STAGES == 2 && index < STRIPS) {
        fetch_rows(stages, x, strip_of(index), sizes);
        cp_async_commit();
    }
#if IS_PACKED
    const uint4 *packed = (const uint4 *)workspace + blockIdx.y * FRAGMENTS;
    for (int i = threadIdx.x; i < FRAGMENTS; i += BLOCK_THREADS) cp_async16(filter + i, packed + i, true);
    cp_async_commit();
#else
#pragma unroll 2
    for (int i = threadIdx.x; i < FRAGMENTS; i += BLOCK_THREADS) filter[i] = filter_fragment(w, first_channel, i, sizes);
#endif
#pragma unroll 1
    for (int i = threadIdx.x; i < PHASES * STEPS * 8; i += BLOCK_THREADS)
        word_offsets[i] = word_offset(i % (STEPS * 8), phase_lead(i / (STEPS * 8)));

    for (; index < STRIPS; index += gridDim.x) {
        const Strip at = strip_of(index);
#if HAS_SUMS
        if (at.n != image && BY_IMAGE) {
            if (image >= 0) leave_sums(totals, shared_sums, workspace, image, sizes);
            image = at.n;
        }
#endif
        if (STAGES == 2) {
            if (index + (int)gridDim.x < STRIPS) {
                fetch_rows(stages + (buffer ^ 1) * STAGE_WORDS, x, strip_of(index + gridDim.x), sizes);
                cp_async_commit();
                cp_async_wait<1>();
            } else {
                cp_async_wait<0>();
            }
        } else {
            fetch_rows(stages, x, at, sizes);
            cp_async_commit();
            cp_async_wait<0>();
        }
        __syncthreads();
        finish_rows(stages + buffer * STAGE_WORDS, x, at);
        const u32 *stage = stages + buffer * STAGE_WORDS;
#pragma unroll 1
        for (int first = output_warp * TILE; first < PHASE_OUTPUTS; first += OUTPUT_WARPS * TILE) {
            int base[TILE_M][2];
#pragma unroll
            for (int i = 0; i < TILE_M; i++)
#pragma unroll
                for (int h = 0; h < 2; h++) {
                    int phase_output = first + i * 16 + h * 8 + g;
                    base[i][h] = output_word(phase_output < PHASE_OUTPUTS ? phase_output : 0, phase);
                }
            f32 sums[TILE_M][TILE_N][4] = {};
            u32 next_low = my_offsets[0], next_high = my_offsets[4];
#pragma unroll UNROLL_STEPS
            for (int step = 0; step < STEPS; step++) {
                const u32 low = next_low, high = next_high;
                if (step + 1 < STEPS) next_low = my_offsets[step * 8 + 8], next_high = my_offsets[step * 8 + 12];
                const u32 low_mask = half_mask(low), high_mask = half_mask(high);
                const int low_at = (int)(low & 0x3fffffffu), high_at = (int)(high & 0x3fffffffu);
                Factor<4> a[TILE_M];
#pragma unroll
                for (int i = 0; i < TILE_M; i++) {
                    a[i].bits[0] = stage[base[i][0] + low_at] & low_mask;
                    a[i].bits[1] = stage[base[i][1] + low_at] & low_mask;
                    a[i].bits[2] = stage[base[i][0] + high_at] & high_mask;
                    a[i].bits[3] = stage[base[i][1] + high_at] & high_mask;
                    prepare(a[i]);
                }
                const uint4 *fragment = my_filter + step * (COLUMN_GROUPS * TILE_N / 2 * 32);
#pragma unroll
                for (int j = 0; j < TILE_N; j += 2) {
                    const uint4 pair = fragment[j / 2 * 32];
                    Factor<2> even = {{pair.x, pair.y}}, odd = {{pair.z, pair.w}};
                    prepare(even);
                    prepare(odd);
#pragma unroll
                    for (int i = 0; i < TILE_M; i++) {
                        multiply(sums[i][j], a[i], even);
                        multiply(sums[i][j + 1], a[i], odd);
                    }
                }
            }
#if RESULT_IS_F32
#pragma unroll
            for (int i = 0; i < TILE_M * TILE_N * 4; i++) {
                f32 &sum = sums[i / (TILE_N * 4)][i / 4 % TILE_N][i % 4];
                sum = unscaled(sum, shift);
            }
#endif
#if STAGES_RESULTS == BY_ROWS
            f32 *results = staged + warp * (4 * RESULT_PITCH);
#pragma unroll
            for (int j = 0; j < TILE_N; j += 4) {
                constexpr int whole = TILE_N / 4 * 4;
                const int count = j < whole ? 8 : 4;  // channels of a lane
#pragma unroll
                for (int e = 0; e < 8; e++) {
                    if (e >= count) break;
                    __syncwarp();
#pragma unroll
                    for (int i = 0; i < TILE_M; i++)
#pragma unroll
                        for (int h = 0; h < 2; h++)
                            results[t * RESULT_PITCH + i * 16 + h * 8 + g] = sums[i][j + e / 2][2 * h + e % 2];
                    __syncwarp();
#pragma unroll
                    for (int at_once = 0; at_once < 4 * TILE; at_once += 32) {
                        const int owner = (at_once + lane) / TILE, output = (at_once + lane) % TILE;
                        const int phase_output = first + output;
                        const int p = at.p + phase_output / PHASE_COLUMNS,
                                  q = at.q + phase_output % PHASE_COLUMNS * PHASES + phase;
                        if (phase_output >= PHASE_OUTPUTS || p >= OUT_P || q >= OUT_Q) continue;
                        const INDEX to = (INDEX)at.n * Y_N + (INDEX)at.o * Y_D + (INDEX)p * Y_H + (INDEX)q * Y_W;
                        const int channel = first_channel + column_group * (TILE_N * 8) + j * 8 + owner * count + e;
                        const f32 mine[1] = {results[owner * RESULT_PITCH + output]};
                        store_channels<1, IS_FULL>(y, to, channel, FILTERS, mine, alpha, beta COORDINATE_ARGUMENTS);
                    }
                }
            }
#elif STAGES_RESULTS == BY_CHANNELS
            RESULT *results = (RESULT *)staged + (warp * 8 + g) * CHANNEL_PITCH;
            const int channel = first_channel + column_group * (TILE_N * 8);
            const int there = FILTERS - channel < TILE_N * 8 ? FILTERS - channel : TILE_N * 8;
#pragma unroll
            for (int i = 0; i < TILE_M; i++)
#pragma unroll
                for (int h = 0; h < 2; h++) {
                    const int phase_output = first + i * 16 + h * 8 + g;
                    const int p = at.p + phase_output / PHASE_COLUMNS,
                              q = at.q + phase_output % PHASE_COLUMNS * PHASES + phase;
                    const bool is_output = phase_output < PHASE_OUTPUTS && p < OUT_P && q < OUT_Q && there > 0;
                    RESULT *to = y + ((INDEX)at.n * Y_N + (INDEX)at.o * Y_D + (INDEX)p * Y_H + (INDEX)q * Y_W);
                    const int shift = (int)((u64)(to + channel) % 64 / sizeof(RESULT));  // of the run's beginning
                    __syncwarp();
                    if (is_output) {
                        RESULT *run = results + shift;
#pragma unroll
                        for (int j = 0; j + 4 <= TILE_N; j += 4) {
                            f32 mine[8];
#pragma unroll
                            for (int e = 0; e < 8; e++) mine[e] = sums[i][j + e / 2][2 * h + e % 2];
                            stage_channels<8, IS_FULL>(run + j * 8 + t * 8, to, channel + j * 8 + t * 8, FILTERS, mine,
                                                       alpha, beta COORDINATE_ARGUMENTS);
                        }
                        if (TILE_N % 4) {
                            f32 mine[4];
#pragma unroll
                            for (int e = 0; e < 4; e++) mine[e] = sums[i][TILE_N - 2 + e / 2][2 * h + e % 2];
                            const int further = (TILE_N - 2) * 8 + t * 4;
                            stage_channels<4, IS_FULL>(run + further, to, channel + further, FILTERS, mine, alpha,
                                                       beta COORDINATE_ARGUMENTS);
                        }
                    }
                    __syncwarp();
                    if (is_output) store_run(results, to + channel, shift, there, t);
                }
#else
#pragma unroll
            for (int i = 0; i < TILE_M; i++)
#pragma unroll
                for (int h = 0; h < 2; h++) {
                    const int phase_output = first + i * 16 + h * 8 + g;
                    const int p = at.p + phase_output / PHASE_COLUMNS,
                              q = at.q + phase_output % PHASE_COLUMNS * PHASES + phase;
                    if (phase_output >= PHASE_OUTPUTS || p >= OUT_P || q >= OUT_Q) continue;
                    const INDEX to = (INDEX)at.n * Y_N + (INDEX)at.o * Y_D + (INDEX)p * Y_H + (INDEX)q * Y_W;
                    const int channel = first_channel + column_group * (TILE_N * 8);
#pragma unroll
                    for (int j = 0; j + 4 <= TILE_N; j += 4) {
                        f32 mine[8];
#pragma unroll
                        for (int e = 0; e < 8; e++) mine[e] = sums[i][j + e / 2][2 * h + e % 2];
                        store_channels<8, IS_FULL>(y, to, channel + j * 8 + t * 8, FILTERS, mine, alpha,
                                                   beta COORDINATE_ARGUMENTS);
#if HAS_SUMS
#pragma unroll
                        for (int e = 0; e < 8; e++)
                            totals[0][j * 2 + e] += mine[e], totals[1][j * 2 + e] += mine[e] * mine[e];
#endif
                    }
                    if (TILE_N % 4) {
                        f32 mine[4];
#pragma unroll
                        for (int e = 0; e < 4; e++) mine[e] = sums[i][TILE_N - 2 + e / 2][2 * h + e % 2];
                        store_channels<4, IS_FULL>(y, to, channel + (TILE_N - 2) * 8 + t * 4, FILTERS, mine, alpha,
                                                   beta COORDINATE_ARGUMENTS);
#if HAS_SUMS
                        constexpr int first_sum = TILE_N / 4 * 8;
#pragma unroll
                        for (int e = 0; e < 4; e++)
                            totals[0][first_sum + e] += mine[e], totals[1][first_sum + e] += mine[e] * mine[e];
#endif
                    }
                }
#endif
        }
        __syncthreads();
        if (STAGES == 2) buffer ^= 1;
    }
#if HAS_SUMS
    if (!BY_IMAGE || image >= 0) leave_sums(totals, shared_sums, workspace, image, sizes);
#endif
}

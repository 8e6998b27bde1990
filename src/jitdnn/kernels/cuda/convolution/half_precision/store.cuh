// The store of neighbouring channels of one output, as wide as strides and addresses allow, or through shared memory.
// RESULT_VECTOR: channels that may be stored at once; RESULT_C: the stride from one channel to the next. HAS_WHOLE_RUNS:
// as many divide those below `limit`, so that none of them is stored by itself.

// Stores `count` sums of the channels from `k` on, of those below `limit`: of all of them, if is_full. `to` is the
// offset of channel 0.
template <int count, bool is_full>
FUNCTION void store_channels(RESULT *result, INDEX to, int k, int limit, const f32 (&sums)[count], f32 alpha, f32 beta
                             COORDINATE_PARAMETERS) {
    constexpr int width = count < RESULT_VECTOR ? count : RESULT_VECTOR;
    f32 value[count];
#pragma unroll
    for (int i = 0; i < count; i++) {
        value[i] = 0.0f;
        if (is_full || k + i < limit) value[i] = alpha * FINISH(sums[i], k + i);
    }
#pragma unroll
    for (int first = 0; first < count; first += width) {
        if (HAS_WHOLE_RUNS && !is_full && k + first >= limit) continue;
        if (width > 1 && (is_full || HAS_WHOLE_RUNS || k + first + width <= limit)) {
#if STORES_F32
            f32 *at = result + to + k + first;
            u32 word[width + 1];
#pragma unroll
            for (int i = 0; i < width; i++) {
                if (beta != 0.0f) value[first + i] += beta * at[i];
                word[i] = __float_as_uint(value[first + i]);
            }
            if (width == 4) store16(at, make_uint4(word[0], word[1], word[width - 2], word[width - 1]));
            if (width == 2) store8(at, make_uint2(word[0], word[width - 1]));
#else
            u32 *at = (u32 *)(result + to + k + first), word[width / 2 + 1];
            if (beta != 0.0f) {
#pragma unroll
                for (int i = 0; i < width / 2; i++) {
                    value[first + 2 * i] += beta * LOW(at[i]);
                    value[first + 2 * i + 1] += beta * HIGH(at[i]);
                }
            }
#pragma unroll
            for (int i = 0; i < width / 2; i++) word[i] = PACK(value[first + 2 * i], value[first + 2 * i + 1]);
            if (width == 8) store16(at, make_uint4(word[0], word[1], word[width / 2 - 2], word[width / 2 - 1]));
            if (width == 4) store8(at, make_uint2(word[0], word[width / 2 - 1]));
            if (width == 2) store4(at, word[0]);
#endif
            continue;
        }
#pragma unroll
        for (int i = first; i < first + width; i++) {
            if (!is_full && k + i >= limit) break;
            RESULT *at = result + to + (INDEX)(k + i) * RESULT_C;
            if (beta != 0.0f) value[i] += beta * FROM_RESULT(*at);
            *at = TO_RESULT(value[i]);
        }
    }
}

// The same into shared memory: `run` is the place of channel k, `result` the output's channel 0.
template <int count, bool is_full>
FUNCTION void stage_channels(RESULT *run, const RESULT *result, int k, int limit, const f32 (&sums)[count], f32 alpha,
                             f32 beta COORDINATE_PARAMETERS) {
#pragma unroll
    for (int i = 0; i < count; i++) {
        if (!is_full && k + i >= limit) break;
        f32 value = alpha * FINISH(sums[i], k + i);
        if (beta != 0.0f) value += beta * FROM_RESULT(result[k + i]);
        run[i] = TO_RESULT(value);
    }
}

// Stores a run of `count` results that begins `shift` elements behind a multiple of 64 bytes, in memory as in shared
// memory: four threads, of which this is number t, store 64 bytes at a time, and of pieces of 16 bytes that the run has
// in part 2, 4 and 8 bytes.
FUNCTION void store_run(const RESULT *staged, RESULT *run, int shift, int count, int t) {
    constexpr int piece = 16 / (int)sizeof(RESULT);
#pragma unroll 1
    for (int at = t * piece; at < shift + count; at += 4 * piece) {
        const RESULT *from = staged + at;
        RESULT *to = run + (at - shift);
        int low = shift - at > 0 ? shift - at : 0;  // the first of the piece's elements that is of the run
        int high = shift + count - at;
        if (high > piece) high = piece;
        if (low == 0 && high == piece) {
            store16(to, *(const uint4 *)from);
            continue;
        }
        if (low & 1 && low < high) to[low] = from[low], low++;
#if !STORES_F32
        if (low & 2 && low + 2 <= high) store4(to + low, *(const u32 *)(from + low)), low += 2;
        if (low + 4 <= high) store8(to + low, *(const uint2 *)(from + low)), low += 4;
#endif
        if (low + 2 <= high) {
#if STORES_F32
            store8(to + low, *(const uint2 *)(from + low));
#else
            store4(to + low, *(const u32 *)(from + low));
#endif
            low += 2;
        }
        if (low < high) to[low] = from[low];
    }
}

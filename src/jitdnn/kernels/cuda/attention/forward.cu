// y = softmax(q k^T) v in one pass over the keys: the largest score, the sum of the exponentials and the sum of the values
// are those of the keys so far, and shrink when a larger score comes.
//
// Behind tile.cuh. What plan.py defines besides:
//
//   TILES              tiles of 16 queries that a warp has
//   KEYS               keys of a tile, a multiple of 16
//   SHARES_ROWS        all warps have the same queries, and each a part of the keys of every tile
//   HAS_LSE            lse is wanted
//   IS_SPLIT           several thread blocks share the keys of a tile of queries; `combine` joins what they have
//   IS_SCALED_FIRST    scores are scaled before their maximum is taken: where a mask is added, or scale is not positive
//
// `pack` query heads that share a key head are rows behind each other: all of a group where there are few queries, else 1.

#define ROWS ((SHARES_ROWS ? 1 : WARPS) * TILES * 16)
#define OWN_KEYS (SHARES_ROWS ? KEYS / WARPS : KEYS)  // of a warp, of each tile
#define QUERY_BYTES (ROWS * (PITCH(D_SIZE) > PITCH(E_SIZE) ? PITCH(D_SIZE) : PITCH(E_SIZE)))
#define STAGE_BYTES (KEYS * (PITCH(D_SIZE) + PITCH(E_SIZE)))
// q stays in registers where there is room
#define IS_KEPT (TILES * D_SIZE * (int)sizeof(DTYPE) * (HAS_THREE_PRODUCTS ? 2 : 1) <= 256)

#if MASK
#define MASK_PARAMETERS , const MASK_DTYPE *mask, const i64 (&mask_rows)[TILES][2], i64 mask_s
#define MASK_ARGUMENTS , mask, mask_rows, mask_s
#else
#define MASK_PARAMETERS
#define MASK_ARGUMENTS
#endif

// `count` keys of a tile, the first of which is number `first`, join what there is of each query: `top` is the largest
// score, `total` the thread's part of the sum of the exponentials, `sums` that of the values.
template <int count>
FUNCTION void take_keys(f32 (&sums)[TILES][E_SIZE / 8][4], f32 (&top)[TILES][2], f32 (&total)[TILES][2],
                        const Fragment (&kept)[TILES][IS_KEPT ? D_SIZE / STEP_SIZE : 1], u32 queries_at, u32 keys_at,
                        const u8 *values, int first, const Sight (&sight)[TILES][2], bool is_whole, f32 factor,
                        f32 later MASK_PARAMETERS) {
    const int lane = threadIdx.x % 32, i = lane % 4;
    const u32 values_at = smem_address(values);
    f32 scores[TILES][count / 8][4];
#pragma unroll
    for (int m = 0; m < TILES; m++) clear(scores[m]);
#pragma unroll
    for (int step = 0; step < D_SIZE / STEP_SIZE; step++) {
        Fragment now[TILES];
#pragma unroll
        for (int m = 0; m < TILES; m++) {
            if (IS_KEPT)
                now[m] = kept[m][IS_KEPT ? step : 0];
            else
                load_first(now[m], queries_at + m * 16 * PITCH(D_SIZE) + step * 32, PITCH(D_SIZE));
        }
#pragma unroll
        for (int j = 0; j < count / 16; j++) {
            Fragment b;
            load_second(b, keys_at + j * 16 * PITCH(D_SIZE) + step * 32, PITCH(D_SIZE));
#pragma unroll
            for (int m = 0; m < TILES; m++) {
                multiply(scores[m][2 * j], now[m], b, 0);
                multiply(scores[m][2 * j + 1], now[m], b, 1);
            }
        }
    }
#if IS_SCALED_FIRST
#pragma unroll
    for (int m = 0; m < TILES; m++)
#pragma unroll
        for (int j = 0; j < count / 8; j++)
#pragma unroll
            for (int c = 0; c < 4; c++) scores[m][j][c] *= factor;
#endif
    if (!is_whole) {
#pragma unroll
        for (int m = 0; m < TILES; m++)
#pragma unroll
            for (int j = 0; j < count / 8; j++)
#pragma unroll
                for (int c = 0; c < 4; c++) {
                    const int key = first + j * 8 + 2 * i + c % 2;
                    if (key < sight[m][c / 2].from || key >= sight[m][c / 2].to)
                        scores[m][j][c] = NOTHING;
#if MASK
                    else
                        scores[m][j][c] = MASKED(scores[m][j][c], mask_rows[m][c / 2] + key * mask_s);
#endif
                }
    }
    f32 shrink[TILES][2];
    bool is_larger = false;
#pragma unroll
    for (int m = 0; m < TILES; m++)
#pragma unroll
        for (int r = 0; r < 2; r++) {
            f32 largest = max(scores[m][0][2 * r], scores[m][0][2 * r + 1]);
#pragma unroll
            for (int j = 1; j < count / 8; j++)
                largest = max(largest, max(scores[m][j][2 * r], scores[m][j][2 * r + 1]));
            largest = max(largest, shuffle_xor(largest, 1));
            largest = max(largest, shuffle_xor(largest, 2));
            largest = max(largest, top[m][r]);
            const f32 base = largest == NOTHING ? 0 : largest * later;
            is_larger = is_larger || largest > top[m][r];
            shrink[m][r] = exp2_approximate(top[m][r] * later - base);
            top[m][r] = largest;
            f32 sum = 0;
#pragma unroll
            for (int j = 0; j < count / 8; j++)
#pragma unroll
                for (int c = 0; c < 2; c++) {
                    f32 &score = scores[m][j][2 * r + c];
                    score = exp2_approximate(score * later - base);
                    sum += score;
                }
            total[m][r] = total[m][r] * shrink[m][r] + sum;
        }
    if (warp_any(is_larger)) {
#pragma unroll
        for (int m = 0; m < TILES; m++)
#pragma unroll
            for (int j = 0; j < E_SIZE / 8; j++)
#pragma unroll
                for (int c = 0; c < 4; c++) sums[m][j][c] *= shrink[m][c / 2];
    }
#pragma unroll
    for (int step = 0; step < count / STEP_SIZE; step++) {
        Fragment weights[TILES];
#pragma unroll
        for (int m = 0; m < TILES; m++) as_first(weights[m], scores[m], step);
#pragma unroll
        for (int j = 0; j < E_SIZE / 16; j++) {
            Fragment b;
            const int at = step * STEP_SIZE * PITCH(E_SIZE) + j * 16 * (int)sizeof(DTYPE);
            load_second_across(b, values_at + at, values + at, PITCH(E_SIZE));
#pragma unroll
            for (int m = 0; m < TILES; m++) {
                multiply(sums[m][2 * j], weights[m], b, 0);
                multiply(sums[m][2 * j + 1], weights[m], b, 1);
            }
        }
    }
}

KERNEL(THREADS_OF_BLOCK)
void attend(PARAMETERS) {
    extern __shared__ __align__(128) u8 shared[];
    __shared__ int ranges[2 * WARPS];
    u8 *stages = shared + QUERY_BYTES;
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, i = lane % 4;

    // which queries; the last ones, which see most keys where they are ordered, come first
    const i64 split = IS_SPLIT ? blockIdx.x % splits : 0, work = IS_SPLIT ? blockIdx.x / splits : blockIdx.x;
    const int first_row = (int)(blocks - 1 - work % blocks) * ROWS;
    const i64 unit = work / blocks, units = heads / pack;
    const int n = (int)(unit / units), first_head = (int)(unit % units * pack), rows = (int)(queries * pack);
    const int key_head = first_head / (int)group;
    const DTYPE *q_heads = q + n * q_n, *k_head = k + n * k_n + key_head * k_h, *v_head = v + n * v_n + key_head * v_h;
    const bool is_packed = pack > 1;
    const auto head_of = [&](int row) { return first_head + (is_packed ? row / (int)queries : 0); };
    const auto query_of = [&](int row) { return is_packed ? row % (int)queries : row; };

    load_tile<COPY_IN, D_SIZE, ROWS>(shared, q, (int)d, q_d, [&](int r) -> const DTYPE * {
        const int row = first_row + r;
        return row < rows ? q_heads + head_of(row) * q_h + query_of(row) * q_t : nullptr;
    });
    cp_async_commit();

    // what the thread's rows see; what any row of the warp and of the block sees, and what all rows of the warp see
    const int warp_row = first_row + (SHARES_ROWS ? 0 : warp * TILES * 16), length = LENGTH_OF(n);
    Sight sight[TILES][2];
    int any_from = 0x7fffffff, any_to = 0, all_from = 0, all_to = 0x7fffffff;
#pragma unroll
    for (int m = 0; m < TILES; m++)
#pragma unroll
        for (int r = 0; r < 2; r++) {
            const int row = warp_row + m * 16 + g + 8 * r;
            sight[m][r] = {0, 0};
            if (row >= rows) continue;
            const int t = query_of(row);
            sight[m][r] = SIGHT(t, length);
            if (sight[m][r].from < sight[m][r].to) {
                any_from = min(any_from, sight[m][r].from);
                any_to = max(any_to, sight[m][r].to);
            }
            all_from = max(all_from, sight[m][r].from);
            all_to = min(all_to, sight[m][r].to);
        }
    any_from = warp_min(any_from), any_to = warp_max(any_to);
    all_from = warp_max(all_from), all_to = warp_min(all_to);
    if (lane == 0) ranges[2 * warp] = any_from, ranges[2 * warp + 1] = any_to;
    __syncthreads();
    int from = 0x7fffffff, to = 0;
#pragma unroll
    for (int w = 0; w < WARPS; w++) from = min(from, ranges[2 * w]), to = max(to, ranges[2 * w + 1]);
    int tiles = from < to ? (to - from + KEYS - 1) / KEYS : 0;
    if (IS_SPLIT) {
        const int each = (tiles + (int)splits - 1) / (int)splits, before = min(tiles, (int)split * each);
        tiles = min(each, tiles - before);
        from += before * KEYS;  // nothing is added to it where there is no tile
    }

    const auto load_keys = [&](int tile) {
        u8 *stage = stages + tile % 2 * STAGE_BYTES;
        const int first = from + tile * KEYS;
        load_rows<COPY_IN, D_SIZE, KEYS>(stage, k_head + first * k_s, k_s, to - first, (int)d, k_d);
        load_rows<COPY_IN, E_SIZE, KEYS>(stage + KEYS * PITCH(D_SIZE), v_head + first * v_s, v_s, to - first, (int)e, v_e);
        cp_async_commit();
    };
    if (tiles > 0) load_keys(0);

    const f32 factor = (f32)(scale * LOG2_E), later = IS_SCALED_FIRST ? 1.0f : factor;
    f32 sums[TILES][E_SIZE / 8][4], top[TILES][2], total[TILES][2];
#pragma unroll
    for (int m = 0; m < TILES; m++) {
        clear(sums[m]);
#pragma unroll
        for (int r = 0; r < 2; r++) top[m][r] = NOTHING, total[m][r] = 0;
    }
#if MASK
    i64 mask_rows[TILES][2];
#pragma unroll
    for (int m = 0; m < TILES; m++)
#pragma unroll
        for (int r = 0; r < 2; r++) {
            const int row = min(warp_row + m * 16 + g + 8 * r, rows - 1);
            mask_rows[m][r] = n * mask_n + head_of(row) * mask_h + query_of(row) * mask_t;
        }
#endif
    const u32 queries_at = smem_address(shared) + (SHARES_ROWS ? 0 : warp * TILES * 16) * PITCH(D_SIZE);
    Fragment queries_kept[TILES][IS_KEPT ? D_SIZE / STEP_SIZE : 1];

    for (int tile = 0; tile < tiles; tile++) {
        cp_async_wait<0>();
        __syncthreads();
        if (tile + 1 < tiles) load_keys(tile + 1);
        if (IS_KEPT && tile == 0)
#pragma unroll
            for (int step = 0; step < D_SIZE / STEP_SIZE; step++)
#pragma unroll
                for (int m = 0; m < TILES; m++)
                    load_first(queries_kept[m][IS_KEPT ? step : 0], queries_at + m * 16 * PITCH(D_SIZE) + step * 32, PITCH(D_SIZE));
        const int own = SHARES_ROWS ? warp * OWN_KEYS : 0, first = from + tile * KEYS + own;
        if (first >= any_to || first + OWN_KEYS <= any_from) continue;
        const u8 *stage = stages + tile % 2 * STAGE_BYTES, *values = stage + KEYS * PITCH(D_SIZE) + own * PITCH(E_SIZE);
        const u32 keys_at = smem_address(stage) + own * PITCH(D_SIZE);
        const bool is_whole = !MASK && first >= all_from && first + OWN_KEYS <= all_to;
        // of the last tile often a few keys alone are there
        if (OWN_KEYS > 16 && first + 16 >= any_to)
            take_keys<16>(sums, top, total, queries_kept, queries_at, keys_at, values, first, sight, is_whole, factor,
                          later MASK_ARGUMENTS);
        else
            take_keys<OWN_KEYS>(sums, top, total, queries_kept, queries_at, keys_at, values, first, sight, is_whole, factor,
                                later MASK_ARGUMENTS);
    }
    cp_async_wait<0>();  // of the queries, where there are no keys
    __syncthreads();

#if SHARES_ROWS
    // what the warps have becomes one, in their order: that of the others passes through the stages, registers by registers
    f32 *others = (f32 *)stages;
    constexpr int registers = TILES * (E_SIZE / 2 + 4);
    if (warp > 0) {
        f32 *mine = others + (warp - 1) * registers * 32 + lane;
#pragma unroll
        for (int m = 0; m < TILES; m++) {
#pragma unroll
            for (int j = 0; j < E_SIZE / 2; j++) mine[(m * (E_SIZE / 2 + 4) + j) * 32] = sums[m][j / 4][j % 4];
#pragma unroll
            for (int r = 0; r < 2; r++) {
                mine[(m * (E_SIZE / 2 + 4) + E_SIZE / 2 + r) * 32] = top[m][r];
                mine[(m * (E_SIZE / 2 + 4) + E_SIZE / 2 + 2 + r) * 32] = total[m][r];
            }
        }
    }
    __syncthreads();
    if (warp > 0) return;
#pragma unroll 1
    for (int w = 0; w < WARPS - 1; w++) {
        const f32 *theirs = others + w * registers * 32 + lane;
#pragma unroll
        for (int m = 0; m < TILES; m++) {
            const f32 *tile = theirs + m * (E_SIZE / 2 + 4) * 32;
            f32 own[2], other[2];
#pragma unroll
            for (int r = 0; r < 2; r++) {
                const f32 their_top = tile[(E_SIZE / 2 + r) * 32], largest = max(top[m][r], their_top);
                const f32 base = largest == NOTHING ? 0 : largest * later;
                own[r] = exp2_approximate(top[m][r] * later - base);
                other[r] = exp2_approximate(their_top * later - base);
                total[m][r] = total[m][r] * own[r] + tile[(E_SIZE / 2 + 2 + r) * 32] * other[r];
                top[m][r] = largest;
            }
#pragma unroll
            for (int j = 0; j < E_SIZE / 2; j++)
                sums[m][j / 4][j % 4] = sums[m][j / 4][j % 4] * own[j % 4 / 2] + tile[j * 32] * other[j % 4 / 2];
        }
    }
#endif
#pragma unroll
    for (int m = 0; m < TILES; m++)
#pragma unroll
        for (int r = 0; r < 2; r++) {
            f32 &whole = total[m][r];
            whole += shuffle_xor(whole, 1);
            whole += shuffle_xor(whole, 2);
            const int row = warp_row + m * 16 + g + 8 * r;
            if (IS_SPLIT) {
                if (row >= rows) continue;
                const i64 place = split * (rows_of_all) + ((i64)n * heads + head_of(row)) * queries + query_of(row);
                f32 *part = (f32 *)workspace + place * e;
#pragma unroll
                for (int j = 0; j < E_SIZE / 8; j++)
#pragma unroll
                    for (int c = 0; c < 2; c++)
                        if (j * 8 + 2 * i + c < e) part[j * 8 + 2 * i + c] = sums[m][j][2 * r + c];
                if (i == 0) {
                    f32 *numbers = (f32 *)workspace + splits * rows_of_all * e + place * 2;
                    numbers[0] = top[m][r] == NOTHING ? NOTHING : top[m][r] * later;
                    numbers[1] = whole;
                }
                continue;
            }
            const f32 share = whole == 0 ? 0 : 1 / whole;
#pragma unroll
            for (int j = 0; j < E_SIZE / 8; j++) sums[m][j][2 * r] *= share, sums[m][j][2 * r + 1] *= share;
#if HAS_LSE
            if (i == 0 && row < rows)
                lse[n * lse_n + head_of(row) * lse_h + query_of(row) * lse_t] =
                    whole == 0 ? NOTHING : LN_2 * top[m][r] * later + logf(whole);
#endif
        }
    if (IS_SPLIT) return;
    DTYPE *y_heads = y + n * y_n;
    store_rows<COPY_OUT, E_SIZE, TILES>(
        sums, shared + (SHARES_ROWS ? 0 : warp * TILES * 16) * PITCH(E_SIZE), (int)e, y_e, alpha, beta, [&](int r) -> DTYPE * {
            const int row = warp_row + r;
            return row < rows ? y_heads + head_of(row) * y_h + query_of(row) * y_t : nullptr;
        });
}

#if IS_SPLIT
// One warp for each row: what the parts of its keys have, as one.
KERNEL(128)
void combine(PARAMETERS) {
    const i64 row = (i64)blockIdx.x * 4 + threadIdx.x / 32;
    const int lane = threadIdx.x % 32;
    if (row >= rows_of_all) return;
    const f32 *parts = (const f32 *)workspace, *numbers = parts + splits * rows_of_all * e;
    f32 top = NOTHING, total = 0;
    for (i64 s = 0; s < splits; s++) top = max(top, numbers[(s * rows_of_all + row) * 2]);
    const f32 base = top == NOTHING ? 0 : top;
    for (i64 s = 0; s < splits; s++) {
        const f32 *own = numbers + (s * rows_of_all + row) * 2;
        total += own[1] * exp2_approximate(own[0] - base);
    }
    const f32 share = total == 0 ? 0 : 1 / total;
    const i64 t = row % queries, h = row / queries % heads, n = row / queries / heads;
    DTYPE *to = y + n * y_n + h * y_h + t * y_t;
    for (i64 column = lane; column < e; column += 32) {
        f32 sum = 0;
        for (i64 s = 0; s < splits; s++)
            sum += parts[(s * rows_of_all + row) * e + column] *
                   exp2_approximate(numbers[(s * rows_of_all + row) * 2] - base);
        f32 value = (f32)alpha * (sum * share);
        if (beta != 0) value += (f32)beta * LOAD(DTYPE, to, column * y_e);
        STORE(DTYPE, to, column * y_e, value);
    }
#if HAS_LSE
    if (lane == 0) lse[n * lse_n + h * lse_h + t * lse_t] = total == 0 ? NOTHING : LN_2 * top + logf(total);
#endif
}
#endif

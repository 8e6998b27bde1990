// The gradients of attention, from probabilities that are computed again of lse. `gradients_of_queries` has tiles of
// queries and goes through the keys, `gradients_of_keys` the other way round: each sum is of one thread block, in an order
// that is always the same, for the price of two products more than where all are made at once. Before them `prepare` makes
// of each query delta = sum(dy y) and lse in powers of 2.
//
// Behind tile.cuh. What plan.py defines besides:
//
//   TILES              tiles of 16 rows that a warp has: queries in `gradients_of_queries`, keys in `gradients_of_keys`
//   KEYS, PASSING      rows of a tile of the others: keys there, queries here
//   IS_JOINT           dk and dv at once; else one after the other, since registers have no room for both

#define ROWS (WARPS * TILES * 16)
// rows stay in registers where there is room
#define IS_KEPT(size) (TILES == 1 && (size) * (int)sizeof(DTYPE) * (HAS_THREE_PRODUCTS ? 2 : 1) <= 128)
#define BOTH (PITCH(D_SIZE) + PITCH(E_SIZE))
#define DELTA_OF(row) ((const f32 *)workspace)[row]
#define LSE_OF(row) ((const f32 *)workspace)[rows_of_all + (row)]

KERNEL(128)
void prepare(PARAMETERS) {
    const i64 row = (i64)blockIdx.x * 4 + threadIdx.x / 32;
    const int lane = threadIdx.x % 32;
    if (row >= rows_of_all) return;
    const i64 t = row % queries, h = row / queries % heads, n = row / queries / heads;
    const DTYPE *y_row = y + n * y_n + h * y_h + t * y_t, *dy_row = dy + n * dy_n + h * dy_h + t * dy_t;
    f32 sum = 0;
    for (i64 column = lane; column < e; column += 32)
        sum += LOAD(DTYPE, y_row, column * y_e) * LOAD(DTYPE, dy_row, column * dy_e);
    sum = warp_sum(sum);
    if (lane == 0) {
        const f32 own = lse[n * lse_n + h * lse_h + t * lse_t];
        ((f32 *)workspace)[row] = sum;
        // a query that sees nothing: probabilities of 2 to the power -infinity
        ((f32 *)workspace)[rows_of_all + row] = own == NOTHING ? -NOTHING : own * LOG2_E;
    }
}

// The rows of a warp as the first matrix, where they stay in registers.
template <int size>
struct Kept {
    Fragment of[TILES][IS_KEPT(size) ? size / STEP_SIZE : 1];
};
template <int size>
FUNCTION void keep(Kept<size> &kept, u32 at) {
    if constexpr (IS_KEPT(size))
#pragma unroll
        for (int step = 0; step < size / STEP_SIZE; step++)
#pragma unroll
            for (int m = 0; m < TILES; m++)
                load_first(kept.of[m][step], at + m * 16 * PITCH(size) + step * 32, PITCH(size));
}

// sums = rows of the warp (at `first_at`) times columns (8 * count rows at `second_at`) over `size` terms
template <int size, int count>
FUNCTION void products(f32 (&sums)[TILES][count][4], const Kept<size> &kept, u32 first_at, u32 second_at) {
#pragma unroll
    for (int m = 0; m < TILES; m++) clear(sums[m]);
#pragma unroll
    for (int step = 0; step < size / STEP_SIZE; step++) {
        Fragment a[TILES];
#pragma unroll
        for (int m = 0; m < TILES; m++) {
            if constexpr (IS_KEPT(size))
                a[m] = kept.of[m][step];
            else
                load_first(a[m], first_at + m * 16 * PITCH(size) + step * 32, PITCH(size));
        }
#pragma unroll
        for (int j = 0; j < count / 2; j++) {
            Fragment b;
            load_second(b, second_at + j * 16 * PITCH(size) + step * 32, PITCH(size));
#pragma unroll
            for (int m = 0; m < TILES; m++) {
                multiply(sums[m][2 * j], a[m], b, 0);
                multiply(sums[m][2 * j + 1], a[m], b, 1);
            }
        }
    }
}
// sums (x size) += weights (x 8 * count) times the rows at `memory`
template <int size, int count>
FUNCTION void add_weighted(f32 (&sums)[TILES][size / 8][4], const f32 (&weights)[TILES][count][4], const u8 *memory) {
    const u32 at = smem_address(memory);
#pragma unroll
    for (int step = 0; step < count * 8 / STEP_SIZE; step++) {
        Fragment a[TILES];
#pragma unroll
        for (int m = 0; m < TILES; m++) as_first(a[m], weights[m], step);
#pragma unroll
        for (int j = 0; j < size / 16; j++) {
            Fragment b;
            const int place = step * STEP_SIZE * PITCH(size) + j * 16 * (int)sizeof(DTYPE);
            load_second_across(b, at + place, memory + place, PITCH(size));
#pragma unroll
            for (int m = 0; m < TILES; m++) {
                multiply(sums[m][2 * j], a[m], b, 0);
                multiply(sums[m][2 * j + 1], a[m], b, 1);
            }
        }
    }
}

KERNEL(THREADS_OF_BLOCK)
void gradients_of_queries(PARAMETERS) {
    extern __shared__ __align__(128) u8 shared[];
    __shared__ int ranges[2 * WARPS];
    u8 *slopes = shared + ROWS * PITCH(D_SIZE), *stages = slopes + ROWS * PITCH(E_SIZE);
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, i = lane % 4;
    const int first_row = (int)(blocks - 1 - blockIdx.x % blocks) * ROWS;
    const i64 unit = blockIdx.x / blocks, n = unit / heads, h = unit % heads, key_head = h / group;
    const DTYPE *q_head = q + n * q_n + h * q_h, *dy_head = dy + n * dy_n + h * dy_h;
    const DTYPE *k_head = k + n * k_n + key_head * k_h, *v_head = v + n * v_n + key_head * v_h;

    load_tile<COPY_IN, D_SIZE, ROWS>(shared, q, (int)d, q_d, [&](int r) -> const DTYPE * {
        return first_row + r < queries ? q_head + (first_row + r) * q_t : nullptr;
    });
    load_tile<COPY_IN, E_SIZE, ROWS>(slopes, dy, (int)e, dy_e, [&](int r) -> const DTYPE * {
        return first_row + r < queries ? dy_head + (first_row + r) * dy_t : nullptr;
    });
    cp_async_commit();

    const int warp_row = first_row + warp * TILES * 16, length = LENGTH_OF(n);
    Sight sight[TILES][2];
    f32 delta[TILES][2], base[TILES][2];
    int any_from = 0x7fffffff, any_to = 0, all_from = 0, all_to = 0x7fffffff;
#pragma unroll
    for (int m = 0; m < TILES; m++)
#pragma unroll
        for (int r = 0; r < 2; r++) {
            const i64 t = warp_row + m * 16 + g + 8 * r;
            Sight own = {0, 0};
            delta[m][r] = 0, base[m][r] = 0;
            if (t < queries) {
                own = SIGHT(t, length);
                delta[m][r] = DELTA_OF(unit * queries + t), base[m][r] = LSE_OF(unit * queries + t);
                if (own.from < own.to) any_from = min(any_from, own.from), any_to = max(any_to, own.to);
                all_from = max(all_from, own.from), all_to = min(all_to, own.to);
            }
            sight[m][r] = own;
        }
    any_from = warp_min(any_from), any_to = warp_max(any_to);
    all_from = warp_max(all_from), all_to = warp_min(all_to);
    if (lane == 0) ranges[2 * warp] = any_from, ranges[2 * warp + 1] = any_to;
    __syncthreads();
    int from = 0x7fffffff, to = 0;
#pragma unroll
    for (int w = 0; w < WARPS; w++) from = min(from, ranges[2 * w]), to = max(to, ranges[2 * w + 1]);
    const int tiles = from < to ? (to - from + KEYS - 1) / KEYS : 0;

    const auto load_keys = [&](int tile) {
        u8 *stage = stages + tile % 2 * KEYS * BOTH;
        const int first = from + tile * KEYS;
        load_rows<COPY_IN, D_SIZE, KEYS>(stage, k_head + first * k_s, k_s, to - first, (int)d, k_d);
        load_rows<COPY_IN, E_SIZE, KEYS>(stage + KEYS * PITCH(D_SIZE), v_head + first * v_s, v_s, to - first, (int)e, v_e);
        cp_async_commit();
    };
    if (tiles > 0) load_keys(0);

    const f32 factor = (f32)(scale * LOG2_E);
    f32 sums[TILES][D_SIZE / 8][4];
#pragma unroll
    for (int m = 0; m < TILES; m++) clear(sums[m]);
    const u32 queries_at = smem_address(shared) + warp * TILES * 16 * PITCH(D_SIZE);
    const u32 slopes_at = smem_address(slopes) + warp * TILES * 16 * PITCH(E_SIZE);
    Kept<D_SIZE> queries_kept;
    Kept<E_SIZE> slopes_kept;
#if MASK
    const i64 mask_row = n * mask_n + h * mask_h;
#endif
    for (int tile = 0; tile < tiles; tile++) {
        cp_async_wait<0>();
        __syncthreads();
        if (tile + 1 < tiles) load_keys(tile + 1);
        if (tile == 0) keep<D_SIZE>(queries_kept, queries_at), keep<E_SIZE>(slopes_kept, slopes_at);
        const int first = from + tile * KEYS;
        if (first >= any_to || first + KEYS <= any_from) continue;
        const u8 *stage = stages + tile % 2 * KEYS * BOTH;
        f32 scores[TILES][KEYS / 8][4], slope[TILES][KEYS / 8][4];
        products<D_SIZE>(scores, queries_kept, queries_at, smem_address(stage));
        products<E_SIZE>(slope, slopes_kept, slopes_at, smem_address(stage + KEYS * PITCH(D_SIZE)));
#pragma unroll
        for (int m = 0; m < TILES; m++)
#pragma unroll
            for (int j = 0; j < KEYS / 8; j++)
#pragma unroll
                for (int c = 0; c < 4; c++) scores[m][j][c] *= factor;
        if (MASK || first < all_from || first + KEYS > all_to) {
#pragma unroll
            for (int m = 0; m < TILES; m++)
#pragma unroll
                for (int j = 0; j < KEYS / 8; j++)
#pragma unroll
                    for (int c = 0; c < 4; c++) {
                        const int key = first + j * 8 + 2 * i + c % 2;
                        if (key < sight[m][c / 2].from || key >= sight[m][c / 2].to)
                            scores[m][j][c] = NOTHING;
#if MASK
                        else
                            scores[m][j][c] = MASKED(scores[m][j][c], mask_row + key * mask_s +
                                                     (warp_row + m * 16 + g + c / 2 * 8) * mask_t);
#endif
                    }
        }
#pragma unroll
        for (int m = 0; m < TILES; m++)
#pragma unroll
            for (int j = 0; j < KEYS / 8; j++)
#pragma unroll
                for (int c = 0; c < 4; c++)
                    scores[m][j][c] =
                        exp2_approximate(scores[m][j][c] - base[m][c / 2]) * (slope[m][j][c] - delta[m][c / 2]);
        add_weighted<D_SIZE>(sums, scores, stage);
    }
    cp_async_wait<0>();
    __syncthreads();
    DTYPE *dq_head = dq + n * dq_n + h * dq_h;
    store_rows<COPY_OUT, D_SIZE, TILES>(sums, shared + warp * TILES * 16 * PITCH(D_SIZE), (int)d, dq_d, alpha * scale, beta,
                                   [&](int r) -> DTYPE * {
                                       const int row = warp_row + r;
                                       return row < queries ? dq_head + row * dq_t : nullptr;
                                   });
}

// A warp has keys as rows, and the columns of a tile of scores are queries.
template <bool wants_dk, bool wants_dv>
FUNCTION void sum_of_queries(PARAMETERS) {
    extern __shared__ __align__(128) u8 kept_memory[];
    // of the queries of a stage: delta, lse, and who sees what
    __shared__ __align__(8) f32 deltas[2][PASSING], bases[2][PASSING];
    __shared__ int seen_from[2][PASSING], seen_to[2][PASSING];
    u8 *values = kept_memory + ROWS * PITCH(D_SIZE), *stages = values + ROWS * PITCH(E_SIZE);
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, i = lane % 4;
    const i64 key_blocks = (keys + ROWS - 1) / ROWS, key_heads = heads / group;
    const int first_key = (int)(blockIdx.x % key_blocks) * ROWS, warp_key = first_key + warp * TILES * 16;
    const i64 unit = blockIdx.x / key_blocks, n = unit / key_heads, key_head = unit % key_heads;
    const DTYPE *k_head = k + n * k_n + key_head * k_h, *v_head = v + n * v_n + key_head * v_h;
    const int length = LENGTH_OF(n);

    load_tile<COPY_IN, D_SIZE, ROWS>(kept_memory, k, (int)d, k_d, [&](int r) -> const DTYPE * {
        return first_key + r < length ? k_head + (first_key + r) * k_s : nullptr;
    });
    load_tile<COPY_IN, E_SIZE, ROWS>(values, v, (int)e, v_e, [&](int r) -> const DTYPE * {
        return first_key + r < length ? v_head + (first_key + r) * v_s : nullptr;
    });
    cp_async_commit();

    // queries that left, right and past let see any of these keys
    const int last_key = min(first_key + ROWS, length) - 1;
    const int from = clipped(first_key - right - past, queries), to = clipped(last_key + left - past + 1, queries);
    const int each = from < to && first_key <= last_key ? (to - from + PASSING - 1) / PASSING : 0;
    const int tiles = each * (int)group;

    const auto load_queries = [&](int tile) {
        u8 *stage = stages + tile % 2 * PASSING * BOTH;
        const i64 h = key_head * group + tile / each;
        const int first = from + tile % each * PASSING;
        const DTYPE *q_head = q + n * q_n + h * q_h, *dy_head = dy + n * dy_n + h * dy_h;
        load_rows<COPY_IN, D_SIZE, PASSING>(stage, q_head + first * q_t, q_t, to - first, (int)d, q_d);
        load_rows<COPY_IN, E_SIZE, PASSING>(stage + PASSING * PITCH(D_SIZE), dy_head + first * dy_t, dy_t, to - first,
                                            (int)e, dy_e);
        for (int r = threadIdx.x; r < PASSING; r += THREADS_OF_BLOCK) {
            const i64 t = first + r, row = (n * heads + h) * queries + t;
            Sight own = {0, 0};
            if (t < to) own = SIGHT(t, length);
            deltas[tile % 2][r] = t < to ? DELTA_OF(row) : 0;
            bases[tile % 2][r] = t < to ? LSE_OF(row) : -NOTHING;
            seen_from[tile % 2][r] = own.from, seen_to[tile % 2][r] = own.to;
        }
        cp_async_commit();
    };
    if (tiles > 0) load_queries(0);

    const f32 factor = (f32)(scale * LOG2_E);
    f32 dk_sums[TILES][D_SIZE / 8][4], dv_sums[TILES][E_SIZE / 8][4];
#pragma unroll
    for (int m = 0; m < TILES; m++) clear(dk_sums[m]), clear(dv_sums[m]);
    const u32 keys_at = smem_address(kept_memory) + warp * TILES * 16 * PITCH(D_SIZE);
    const u32 values_at = smem_address(values) + warp * TILES * 16 * PITCH(E_SIZE);
    Kept<D_SIZE> keys_kept;
    Kept<E_SIZE> values_kept;
    for (int tile = 0; tile < tiles; tile++) {
        cp_async_wait<0>();
        __syncthreads();
        if (tile + 1 < tiles) load_queries(tile + 1);
        if (tile == 0) keep<D_SIZE>(keys_kept, keys_at), keep<E_SIZE>(values_kept, values_at);
        const int turn = tile % 2;
        const u8 *stage = stages + turn * PASSING * BOTH, *slopes = stage + PASSING * PITCH(D_SIZE);
        int any_from = 0x7fffffff, any_to = 0, all_from = 0, all_to = 0x7fffffff;
#pragma unroll
        for (int r = 0; r < PASSING; r += 32) {
            if (r + lane >= PASSING) break;
            const int begin = seen_from[turn][r + lane], end = seen_to[turn][r + lane];
            if (begin < end) any_from = min(any_from, begin), any_to = max(any_to, end);
            all_from = max(all_from, begin), all_to = min(all_to, end);
        }
        any_from = warp_min(any_from), any_to = warp_max(any_to);
        all_from = warp_max(all_from), all_to = warp_min(all_to);
        if (warp_key >= any_to || warp_key + TILES * 16 <= any_from) continue;

        f32 scores[TILES][PASSING / 8][4];
        products<D_SIZE>(scores, keys_kept, keys_at, smem_address(stage));
#pragma unroll
        for (int m = 0; m < TILES; m++)
#pragma unroll
            for (int j = 0; j < PASSING / 8; j++)
#pragma unroll
                for (int c = 0; c < 4; c++) scores[m][j][c] *= factor;
#if MASK
        const i64 mask_at = n * mask_n + (key_head * group + tile / each) * mask_h + (from + tile % each * PASSING) * mask_t;
#endif
        if (MASK || warp_key < all_from || warp_key + TILES * 16 > all_to) {
#pragma unroll
            for (int m = 0; m < TILES; m++)
#pragma unroll
                for (int j = 0; j < PASSING / 8; j++)
#pragma unroll
                    for (int c = 0; c < 4; c++) {
                        const int query = j * 8 + 2 * i + c % 2, key = warp_key + m * 16 + g + c / 2 * 8;
                        if (key < seen_from[turn][query] || key >= seen_to[turn][query])
                            scores[m][j][c] = NOTHING;
#if MASK
                        else
                            scores[m][j][c] = MASKED(scores[m][j][c], mask_at + query * mask_t + key * mask_s);
#endif
                    }
        }
#pragma unroll
        for (int j = 0; j < PASSING / 8; j++) {
            const uint2 pair = *(const uint2 *)&bases[turn][j * 8 + 2 * i];
#pragma unroll
            for (int m = 0; m < TILES; m++)
#pragma unroll
                for (int c = 0; c < 4; c++)
                    scores[m][j][c] = exp2_approximate(scores[m][j][c] - __uint_as_float(c % 2 ? pair.y : pair.x));
        }
        if (wants_dv) add_weighted<E_SIZE>(dv_sums, scores, slopes);
        if (wants_dk) {
            f32 slope[TILES][PASSING / 8][4];
            products<E_SIZE>(slope, values_kept, values_at, smem_address(slopes));
#pragma unroll
            for (int j = 0; j < PASSING / 8; j++) {
                const uint2 pair = *(const uint2 *)&deltas[turn][j * 8 + 2 * i];
#pragma unroll
                for (int m = 0; m < TILES; m++)
#pragma unroll
                    for (int c = 0; c < 4; c++)
                        scores[m][j][c] *= slope[m][j][c] - __uint_as_float(c % 2 ? pair.y : pair.x);
            }
            add_weighted<D_SIZE>(dk_sums, scores, stage);
        }
    }
    cp_async_wait<0>();
    __syncthreads();
    if (wants_dk) {
        DTYPE *dk_head = dk + n * dk_n + key_head * dk_h;
        store_rows<COPY_OUT, D_SIZE, TILES>(dk_sums, kept_memory + warp * TILES * 16 * PITCH(D_SIZE), (int)d, dk_d, alpha * scale, beta,
                                       [&](int r) -> DTYPE * {
                                           const int key = warp_key + r;
                                           return key < keys ? dk_head + key * dk_s : nullptr;
                                       });
    }
    if (wants_dv) {
        DTYPE *dv_head = dv + n * dv_n + key_head * dv_h;
        store_rows<COPY_OUT, E_SIZE, TILES>(dv_sums, values + warp * TILES * 16 * PITCH(E_SIZE), (int)e, dv_e, alpha, beta,
                                       [&](int r) -> DTYPE * {
                                           const int key = warp_key + r;
                                           return key < keys ? dv_head + key * dv_s : nullptr;
                                       });
    }
}
#if IS_JOINT
KERNEL(THREADS_OF_BLOCK) void gradients_of_keys(PARAMETERS) { sum_of_queries<true, true>(ARGUMENTS); }
#else
KERNEL(THREADS_OF_BLOCK) void gradient_of_keys(PARAMETERS) { sum_of_queries<true, false>(ARGUMENTS); }
KERNEL(THREADS_OF_BLOCK) void gradient_of_values(PARAMETERS) { sum_of_queries<false, true>(ARGUMENTS); }
#endif

// The recurrent part of a layer of few units, back through the steps, by clusters of thread blocks (sm_90a); see cluster_forward.cu.
//
// A block finds the gradients of its units' gates at a step, multiplies them by the weights of all units, and writes what each of
// the other blocks' units gets of that to their shared memory, where they add up the parts in order. So a step has one barrier
// of the cluster, and one of the block between gates and product.
//
//   slopes: 16 rows of the gradients of the block's gates (gate, unit), of `pitch` bytes
//   parts:  two buffers, read at a step and written for the next: from which block, row, own unit
//
// Arguments are those of backward.cu as far as they are needed. CLUSTER blocks of `units` units, WARPS warps of UNIT_TILES tiles of
// 8 of all units each, ITEMS units of a sequence a thread.

#define BACKWARD_ARGUMENTS                                                                                               \
    const u8 *weights, const REAL *dy, REAL *dh, REAL *dc, const REAL *kept_gates, const REAL *kept_cells, const REAL *out, \
        const REAL *first, REAL *dgates, const i32 *tables, u8 *workspace, f64 alpha, f64 beta, i64 steps, i64 batch,    \
        i64 directions, i64 size, i64 padded, i64 units, i64 tiles, i64 slabs, f64 lowest, f64 highest

#define DISTANCE (ITEMS == 1 ? 3 : 2)

KERNEL_OF_CLUSTERS(BLOCK, CLUSTER) void cluster_backward(BACKWARD_ARGUMENTS) {
    extern __shared__ __align__(1024) uint4 memory[];
    const int rank = blockIdx.x, direction = blockIdx.z, first_n = blockIdx.y * 16, own = (int)units;
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, quarter = lane % 4;
    const Rows sequences = {steps_of(tables, steps), steps, batch};
    const int pitch = ((int)slabs | 1) * 64, part_size = 16 * own;
    const Weights w = {(u8 *)memory, weights + (direction * CLUSTER + rank) * slabs * tiles * 512, (int)slabs, (int)slabs, (int)tiles};
    keep_weights(w);
    u8 *slopes = w.shared + slabs * tiles * 512;
    REAL *parts = (REAL *)(slopes + 16 * pitch);
    for (int n = threadIdx.x; n < 4 * pitch; n += BLOCK) ((u32 *)slopes)[n] = 0;

    // a unit of a sequence: what was kept of a step, asked for DISTANCE steps ahead
    struct Item {
        REAL kept[4], c, old, dy;
    };
    int rows[ITEMS], unit[ITEMS];
    REAL carried[ITEMS];  // c's gradient of a lstm, what goes past the gates of a gru
#pragma unroll
    for (int j = 0; j < ITEMS; ++j) {
        const int item = threadIdx.x + j * BLOCK;
        rows[j] = item / own;
        unit[j] = rows[j] < 16 ? rank * own + item % own : (int)padded;
        carried[j] = 0;
#ifdef CELL_LSTM
        if (unit[j] < padded && first_n + rows[j] < batch)
            carried[j] = dc[(direction * batch + first_n + rows[j]) * padded + unit[j]];
#endif
    }
    const i64 first_t = direction ? 0 : steps - 1, back = direction ? 1 : -1;
    auto fetch = [&](Item (&to)[ITEMS], i64 s) {
        const i64 t = first_t + s * back, before = t + back;
        const i64 count = s < steps ? count_of(sequences, t) : 0, start = s < steps ? start_of(sequences, t) : 0;
        const i64 known = s < steps ? count_of(sequences, before) : 0;
        const i64 earlier_start = s < steps ? start_of(sequences, before) : 0;
#pragma unroll
        for (int j = 0; j < ITEMS; ++j) {
            const i64 n = first_n + rows[j];
            to[j] = {};
            if (n >= count || unit[j] >= padded) continue;
            const i64 at = (start + n) * directions + direction, earlier = (earlier_start + n) * directions + direction;
            if (unit[j] < size) to[j].dy = dy[at * size + unit[j]];
#pragma unroll
            for (int g = 0; g < 4; ++g) to[j].kept[g] = kept_gates[(at * 4 + g) * padded + unit[j]];
            const REAL *begin = first + (direction * batch + n) * padded + unit[j];
#ifdef CELL_LSTM
            to[j].c = kept_cells[at * padded + unit[j]];
            to[j].old = n < known ? kept_cells[earlier * padded + unit[j]] : *begin;
#else
            to[j].old = n < known ? out[earlier * padded + unit[j]] : *begin;
#endif
        }
    };
    Item ahead[DISTANCE][ITEMS];
#pragma unroll
    for (int d = 0; d < DISTANCE; ++d) fetch(ahead[d], d);
    i64 behind = 0;
    cluster_arrive();
    cluster_wait();

    // step -1, or `steps`, has no sequences
    auto step = [&](i64 s, Item (&items)[ITEMS]) {
        const i64 t = first_t + s * back, here = start_of(sequences, t), current = count_of(sequences, t);
        const REAL *from = parts + (s + 1) % 2 * CLUSTER * part_size;
#pragma unroll
        for (int j = 0; j < ITEMS; ++j) {
            const i64 n = first_n + rows[j];
            const i64 state = (direction * batch + n) * padded + unit[j];
            if (unit[j] >= padded || (n >= behind && n >= current)) continue;
            REAL sum = 0;
            if (n < behind) {
#pragma unroll
                for (int b = 0; b < CLUSTER; ++b) sum += from[b * part_size + threadIdx.x + j * BLOCK];
#ifdef CELL_GRU
                sum += carried[j];
#endif
            } else {
                sum = dh[state];  // of a sequence that ends here
            }
            if (n >= current) {  // which began at the step after
                dh[state] = sum;
                continue;
            }
            sum += items[j].dy;
            const REAL *kept = items[j].kept, old = items[j].old;
            REAL slope[4];
#ifdef CELL_LSTM
            const REAL i = kept[0], f = kept[1], g = kept[2], o = kept[3], c = items[j].c, level = hyperbolic_tangent(c);
            REAL slope_c = carried[j] + sum * o * ((REAL)1 - level) * ((REAL)1 + level);
#if CLIPPED
            slope_c = c > (REAL)lowest && c < (REAL)highest ? slope_c : (REAL)0;
#endif
            carried[j] = slope_c * f;
            slope[0] = slope_c * g * i * ((REAL)1 - i);
            slope[1] = slope_c * old * f * ((REAL)1 - f);
            slope[2] = slope_c * i * ((REAL)1 - g) * ((REAL)1 + g);
            slope[3] = sum * level * o * ((REAL)1 - o);
#else
            const REAL r = kept[0], z = kept[1], fresh = kept[2], m = kept[3];
            slope[0] = sum * ((REAL)1 - z) * ((REAL)1 - fresh) * ((REAL)1 + fresh);
            carried[j] = sum * z;
            slope[1] = slope[0] * m * r * ((REAL)1 - r);
            slope[2] = sum * (old - fresh) * z * ((REAL)1 - z);
            slope[3] = slope[0] * r;
#endif
            REAL *to = (REAL *)(slopes + rows[j] * pitch) + (unit[j] - rank * own);
            REAL *kept_slopes = dgates + ((here + n) * directions + direction) * 4 * padded + unit[j];
#pragma unroll
            for (int g = 0; g < 4; ++g) {
                kept_slopes[g * padded] = slope[g];
                if (g >= SKIPPED) to[(g - SKIPPED) * own] = slope[g];
            }
        }
        if (s == steps) return;
        fetch(items, s + DISTANCE);
        __syncthreads();
        const u8 *at = slopes + lane / 4 * pitch + quarter * 16;
        Sums sums[UNIT_TILES] = {};
        multiply_slabs(sums, at, pitch, w);
        const u32 to = smem_address(parts + (s % 2 * CLUSTER + rank) * part_size);
#pragma unroll
        for (int j = 0; j < UNIT_TILES; ++j) {
            const int column = (warp * UNIT_TILES + j) * 8 + 2 * quarter, block = column / own, u = column % own;
            if (column >= padded) break;
#pragma unroll
            for (int r = 0; r < 2; ++r)
                cluster_store8(cluster_address(to + ((lane / 4 + 8 * r) * own + u) * 4, block),
                               __float_as_uint(sum_of(sums[j], 2 * r)), __float_as_uint(sum_of(sums[j], 2 * r + 1)));
        }
        cluster_arrive();
        behind = current;
        cluster_wait();
    };
    for (i64 s = 0; s <= steps; s += DISTANCE)
#pragma unroll
        for (int d = 0; d < DISTANCE; ++d)
            if (s + d <= steps) step(s + d, ahead[d]);
#ifdef CELL_LSTM
#pragma unroll
    for (int j = 0; j < ITEMS; ++j)
        if (unit[j] < padded && first_n + rows[j] < batch)
            dc[(direction * batch + first_n + rows[j]) * padded + unit[j]] = carried[j];
#endif
}

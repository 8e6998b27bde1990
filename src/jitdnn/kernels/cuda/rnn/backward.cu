// The recurrent part of a layer, back through the steps: all of them in one launch.
//
// As in forward.cu thread block (slice, group, direction) has UB units for a group of sequences. At each step the gradients
// of the gates of the step after, which all blocks of the group and direction wrote, times the block's columns are those of
// the states; then come the gates' own, and a barrier among these blocks. With a projection the product with it comes in
// between. One step more gives the gradients of the first states.
//
// All blocks read the gradients of all gates, which is more than L2 gives in time where there are many: with IN_PARTS `parts`
// blocks next to each other share their units, each for a part of K, and behind one more barrier each adds up what they
// found for its own units. With PAIRED two of them are a cluster (sm_90a), which write that to each other's shared memory and wait
// for each other alone.
//
//   dh   (directions, batch, width): what comes from behind the last step; it becomes the gradient of the first states
//   dc   (directions, batch, padded): the same of c
//   carried (directions, batch, padded): what goes back past the gates of a gru

#define BACKWARD_ARGUMENTS                                                                                                \
    const u8 *weights, const u8 *projection, const REAL *dy, REAL *dh, REAL *dc, REAL *carried, const REAL *kept_gates,  \
        const REAL *kept_cells, const REAL *out, const REAL *first, REAL *dgates, REAL *dout, REAL *found, STATE *sent,  \
        const f32 *factors, const i32 *tables, u32 *arrived, u8 *workspace, f64 alpha, f64 beta, i64 steps, i64 batch, i64 directions, i64 first_direction,     \
        i64 slices, i64 group_rows, i64 size, i64 padded, i64 width, i64 given_units, i64 columns, i64 packed, i64 slabs, i64 resident, i64 outputs,    \
        i64 slabs2, i64 resident2, i64 given_parts, f64 lowest, f64 highest

#if PROJECTED
#define FIRST_COLUMNS outputs
#else
#define FIRST_COLUMNS units
#endif

// In half precision the gates' gradients are `sent` in that type, times factors[0], and their products are times factors[1].
#if SENT
#define READ sent
#define UNSCALED(sum) ((sum) * factor)
#else
#define READ dgates
#define UNSCALED(sum) (sum)
#endif

// Addresses of the gates' gradients of the step after, of a lane's rows; what lies behind the last sequence is not used.
#define AFTER(rows)                                                                                                       \
    for (int r = 0; r < LANE_ROWS; ++r) {                                                                                    \
        const int n = m0 + (int)LANE_ROW(r);                                                                                   \
        const i64 at = after_row + (n < behind ? n : behind - 1);                                                         \
        rows[r] = (const u8 *)(READ + (at * directions + direction) * SECTIONS * padded + SKIPPED * padded) +             \
                  ROW_BYTES_AT + slice % parts * slabs * 64;                                                     \
    }

#if PAIRED
KERNEL_OF_CLUSTERS(BLOCK, 2)
#else
KERNEL(BLOCK)
#endif
void backward(BACKWARD_ARGUMENTS) {
    extern __shared__ __align__(1024) uint4 memory[];
    const int slice = blockIdx.x, direction = (int)first_direction + blockIdx.z;
    const int thread = threadIdx.x;
#ifdef UNITS  // divisions by these are multiplications
    const int units = UNITS, parts = PARTS;
#else
    const i64 units = given_units, parts = given_parts;
#endif
    const i64 first_n = blockIdx.y * group_rows;
    const Steps there = steps_of(tables, steps);
    const int tiles = (int)columns / 8, tiles2 = (int)units / 8;
    u8 *room = (u8 *)memory;
    const i64 place = direction * slices + slice;
    const Weights w = {room, weights + place * packed * tiles * 512, (int)slabs, (int)resident, tiles};
    keep_weights(w);
    room += resident * tiles * 512;
#if PROJECTED
    const Weights v = {room, projection + place * slabs2 * tiles2 * 512, (int)slabs2, (int)resident2, tiles2};
    keep_weights(v);
    room += resident2 * tiles2 * 512;
#endif
    REAL *partial = (REAL *)room, *sums = partial + PARTIAL;
#if PAIRED
    REAL *inbox = sums + K_GROUPS * ROWS * SUMS_PITCH;  // from which of the two, sequence, own unit
#endif
    u32 *meeting = arrived + direction * gridDim.y + blockIdx.y;
    u32 target = 0;
    const bool aligned = (((u64)READ | (u64)dout) & 15) == 0;
#if SENT
    const REAL scale = factors[0], factor = factors[1];
#endif
    __syncthreads();

    // what an item, a unit of a sequence, needs of what was kept: asked for before the blocks wait for each other
    struct Item {
        REAL kept[4], c, old, cell, dy;
    };
    auto fetch = [&](int n, int unit, int current, i64 here, i64 known, i64 before_row) {
        Item found = {};
        if (n >= current || unit >= padded) return found;
        const i64 at = (here + n) * directions + direction, state = direction * batch + first_n + n;
        if (!PROJECTED && unit < size) found.dy = dy[at * size + unit];
#if defined(CELL_LSTM) || defined(CELL_GRU)
#pragma unroll
        for (int g = 0; g < 4; ++g) found.kept[g] = kept_gates[(at * 4 + g) * padded + unit];
        const i64 earlier = (before_row + first_n + n) * directions + direction;
#ifdef CELL_LSTM
        found.c = kept_cells[at * padded + unit];
        found.old = first_n + n < known ? kept_cells[earlier * padded + unit] : first[state * padded + unit];
        found.cell = dc[state * padded + unit];
#else
        found.old = first_n + n < known ? out[earlier * width + unit] : first[state * width + unit];
        found.cell = carried[state * padded + unit];
#endif
#else
        found.kept[0] = out[at * width + unit];
#endif
        return found;
    };
    auto count_of = [&](i64 t) {
        const i64 left = there.counts[t] - first_n;
        return left < 0 ? 0 : (int)(left < group_rows ? left : group_rows);
    };
    const i64 first_t = direction ? 0 : steps - 1, back = direction ? 1 : -1;
    i64 after_row = 0, here = there.starts[first_t] + first_n;
    int behind = 0, current = count_of(first_t);
    i64 known = there.counts[first_t + back], before_row = there.starts[first_t + back];
#if !PROJECTED
    Item items[ITEMS];
    auto prefetch = [&](int count, i64 from, i64 earlier_known, i64 earlier_row) {
#pragma unroll
        for (int j = 0; j < ITEMS; ++j) {
            const int item = thread + j * BLOCK;
            items[j] = fetch(item / (int)units, slice * (int)units + item % (int)units, count, from, earlier_known,
                             earlier_row);
        }
    };
    prefetch(current, here, known, before_row);
#endif

    for (i64 s = 0; s <= steps; ++s) {
        // steps -1 and `steps` have no sequences, and none beyond is asked for
        const i64 t = first_t + s * back, next = t + back, later = s + 1 < steps ? next + back : next;
        const int next_count = s < steps ? count_of(next) : 0;
        const i64 next_row = s < steps ? there.starts[next] + first_n : 0;
        const i64 next_known = s + 1 < steps ? there.counts[later] : 0;
        const i64 next_before = s + 1 < steps ? there.starts[later] : 0;
        const int count = current > behind ? current : behind;
#if IN_PARTS
        for (int m0 = 0; m0 < behind; m0 += ROWS) {
            const u8 *rows[LANE_ROWS];
            AFTER(rows)
            const int most = behind - m0 < ROWS ? behind - m0 : ROWS, shared_units = (int)(FIRST_COLUMNS * parts);
            product(w, rows, aligned, most, partial, sums);
            for (int item = thread; item < most * shared_units; item += BLOCK) {
                const int n = item / shared_units, u = item % shared_units;
                const int unit = slice / (int)parts * shared_units + u;
#if PAIRED
                const u32 to = smem_address(inbox + (slice % 2 * (int)group_rows + m0 + n) * units + u % units);
                cluster_store4(cluster_address(to, u / units), __float_as_uint(UNSCALED(sum_at(w, sums, n, u))));
#else
                if (unit < width)
                    found[((slice % parts * directions + direction) * batch + first_n + m0 + n) * width + unit] =
                        UNSCALED(sum_at(w, sums, n, u));
#endif
            }
            __syncthreads();
        }
#if PAIRED
        if (behind) {
            cluster_arrive();
            cluster_wait();
        }
#else
        if (behind) {
            arrive_among_blocks(meeting);
            wait_among_blocks(meeting, target += (u32)slices);
        }
#endif
#endif
        for (int m0 = 0; m0 < count; m0 += ROWS) {
#if !IN_PARTS
            if (behind > m0) {
                const u8 *rows[LANE_ROWS];
                AFTER(rows)
                product(w, rows, aligned, behind - m0 < ROWS ? behind - m0 : ROWS, partial, sums);
            }
#endif
            const int most = count - m0 < ROWS ? count - m0 : ROWS;
            auto apply = [&](int item, const Item *given) {
                const int n = m0 + item / (int)FIRST_COLUMNS, u = item % (int)FIRST_COLUMNS;
                const int unit = slice * (int)FIRST_COLUMNS + u;
                if (unit >= width) return;
                const i64 state = direction * batch + first_n + n;
                const i64 at = (here + n) * directions + direction;
                REAL sum;
                if (n < behind) {
#if IN_PARTS
                    sum = 0;
                    for (i64 part = 0; part < parts; ++part)
#if PAIRED
                        sum += inbox[((int)part * (int)group_rows + n) * units + u];
#else
                        sum += found[(part * directions * batch + state) * width + unit];
#endif
#else
                    sum = UNSCALED(sum_at(w, sums, n - m0, u));
#endif
#ifdef CELL_GRU
                    sum += n < current ? given->cell : carried[state * padded + unit];
#endif
                } else {
                    sum = dh[state * width + unit];  // of a sequence that ends here
                }
                if (n >= current) {  // which began at the step after
                    dh[state * width + unit] = sum;
                    return;
                }
#if PROJECTED
                if (unit < size) sum += dy[at * size + unit];
                dout[at * width + unit] = sum;
            };
            for (int item = thread; item < most * FIRST_COLUMNS; item += BLOCK) apply(item, nullptr);
            __syncthreads();
        }
        if (count) {
            arrive_among_blocks(meeting);
            wait_among_blocks(meeting, target += (u32)slices);
        }
        for (int m0 = 0; m0 < current; m0 += ROWS) {
            const u8 *rows[LANE_ROWS];
#pragma unroll
            for (int r = 0; r < LANE_ROWS; ++r) {
                const int n = m0 + (int)LANE_ROW(r);
                const i64 at = here + (n < current ? n : current - 1);
                rows[r] = (const u8 *)(dout + (at * directions + direction) * width) + ROW_BYTES_AT;
            }
            const int most = current - m0 < ROWS ? current - m0 : ROWS;
            product(v, rows, aligned, most, partial, sums);
            auto apply_gates = [&](int item, const Item *given) {
                const int n = m0 + item / (int)units, u = item % (int)units, unit = slice * (int)units + u;
                if (unit >= padded) return;
                const i64 state = direction * batch + first_n + n;
                const i64 at = (here + n) * directions + direction;
                const REAL sum = sum_at(v, sums, n - m0, u);
#else
                sum += given->dy;
#endif
                REAL *slope = dgates + at * SECTIONS * padded + unit;
                const REAL *kept = given->kept, old = given->old;
#if defined(CELL_LSTM)
                const REAL i = kept[0], f = kept[1], g = kept[2], o = kept[3], c = given->c, level = hyperbolic_tangent(c);
                REAL slope_c = given->cell + sum * o * ((REAL)1 - level) * ((REAL)1 + level);
#if CLIPPED
                slope_c = c > (REAL)lowest && c < (REAL)highest ? slope_c : (REAL)0;
#endif
                dc[state * padded + unit] = slope_c * f;
                slope[0] = slope_c * g * i * ((REAL)1 - i);
                slope[padded] = slope_c * old * f * ((REAL)1 - f);
                slope[2 * padded] = slope_c * i * ((REAL)1 - g) * ((REAL)1 + g);
                slope[3 * padded] = sum * level * o * ((REAL)1 - o);
#elif defined(CELL_GRU)
                const REAL r = kept[0], z = kept[1], fresh = kept[2], m = kept[3];
                const REAL dn = sum * ((REAL)1 - z) * ((REAL)1 - fresh) * ((REAL)1 + fresh);
                carried[state * padded + unit] = sum * z;
                slope[0] = dn;
                slope[padded] = dn * m * r * ((REAL)1 - r);
                slope[2 * padded] = sum * (old - fresh) * z * ((REAL)1 - z);
                slope[3 * padded] = dn * r;
#else
                const REAL h = kept[0];
#ifdef CELL_TANH
                slope[0] = sum * ((REAL)1 - h) * ((REAL)1 + h);
#else
                slope[0] = h > (REAL)0 ? sum : (REAL)0;
#endif
#endif
#if SENT
#pragma unroll
                for (int g = 0; g < SECTIONS; ++g)
                    STORE(STATE, sent, at * SECTIONS * padded + g * padded + unit, slope[g * padded] * scale);
#endif
            };
#if PROJECTED
            for (int item = thread; item < most * units; item += BLOCK) {
                const int n = m0 + item / (int)units, unit = slice * (int)units + item % (int)units;
                const Item given = fetch(n, unit, current, here, known, before_row);
                apply_gates(item, &given);
            }
#else
            int ready = 0;
            if (m0 == 0) {
#pragma unroll
                for (int j = 0; j < ITEMS; ++j)
                    if (thread + j * BLOCK < most * units) apply(thread + j * BLOCK, &items[j]);
                ready = ITEMS * BLOCK;
            }
            for (int item = thread + ready; item < most * units; item += BLOCK) {
                const int n = m0 + item / (int)units, unit = slice * (int)units + item % (int)units;
                const Item given = fetch(n, unit, current, here, known, before_row);
                apply(item, &given);
            }
#endif
            __syncthreads();
        }
        if (count && s < steps) arrive_among_blocks(meeting);
#if !PROJECTED
        if (s < steps) prefetch(next_count, next_row, next_known, next_before);
#endif
        if (count && s < steps) wait_among_blocks(meeting, target += (u32)slices);
        after_row = here, behind = current;
        here = next_row, current = next_count, known = next_known, before_row = next_before;
    }
}

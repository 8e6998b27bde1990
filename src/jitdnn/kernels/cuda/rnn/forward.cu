// The recurrent part of a layer, forward: all steps in one launch.
//
// Thread block (slice, group, direction) has UB units, all gates of them, for a group of sequences. At each step it
// multiplies the states of the step before, which all blocks of its group and direction wrote, by its columns; then come the
// gates, and a barrier among these blocks. With a projection V the product with V is one more of the same kind behind
// one more barrier.
//
// width and full_width: numbers from one sequence's states, and those before the projection, to the next; size and padded:
// those that there are, as they are kept for the gradients in `kept_out` and `kept_full`, if these are other memory.

#define FORWARD_ARGUMENTS                                                                                                 \
    const u8 *weights, const u8 *projection, const ELEMENT *wx, const REAL *bias, const STATE *first_h, REAL *cells,     \
        STATE *out, STATE *full, REAL *kept_gates, REAL *kept_cells, REAL *kept_out, REAL *kept_full, const i32 *tables, \
        u32 *arrived, u8 *workspace,                                                                                     \
        f64 alpha, f64 beta, i64 steps, i64 batch, i64 directions, i64 first_direction, i64 slices, i64 group_rows,      \
        i64 hidden, i64 padded, i64 width, i64 full_width, i64 size, i64 given_units, i64 columns, i64 packed, i64 slabs, i64 resident, i64 outputs, i64 slabs2, i64 resident2,   \
        f64 lowest, f64 highest

KERNEL(BLOCK) void forward(FORWARD_ARGUMENTS) {
    extern __shared__ __align__(1024) uint4 memory[];
    const int slice = blockIdx.x, direction = (int)first_direction + blockIdx.z;
    const int thread = threadIdx.x;
#ifdef UNITS  // divisions by these are multiplications
    const int units = UNITS;
#else
    const i64 units = given_units;
#endif
    const i64 first_n = blockIdx.y * group_rows;
    const Steps there = steps_of(tables, steps);
    const int tiles = (int)columns / 8, tiles2 = (int)outputs / 8;
    // shared memory: weights that stay, sums
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
    REAL *biases = (REAL *)room;
    REAL *partial = biases + (BIASES * units + 3) / 4 * 4, *sums = partial + PARTIAL;
    u32 *meeting = arrived + direction * gridDim.y + blockIdx.y;
    u32 target = 0;
    const int first_unit = slice * (int)units;
    const int own = (int)padded - first_unit < units ? (int)padded - first_unit : (int)units;  // may be less than 1
    for (int n = thread; n < BIASES * units; n += BLOCK) {
        const int unit = first_unit + n % (int)units;
        biases[n] = unit < padded ? bias[(direction * BIASES + n / units) * padded + unit] : (REAL)0;
    }
    const bool aligned = (((u64)out | (u64)full) & 15) == 0;
    __syncthreads();

    // what an item, a unit of a sequence, needs beside the products: asked for before the blocks wait for each other
    struct Item {
        REAL x[GATES], old;
    };
    auto fetch = [&](int item, int m0, int count, i64 here) {
        Item found;
        const int n = m0 + item / (int)units, u = item % (int)units, unit = first_unit + u;
        const bool is_there = n < count && u < own;
        const i64 at = first_n + n;
        const ELEMENT *x = wx + ((here + at) * directions + direction) * GATES * hidden + unit;
#pragma unroll
        for (int g = 0; g < GATES; ++g)
            found.x[g] = is_there && unit < hidden ? (REAL)LOAD(ELEMENT, x, g * hidden) : (REAL)0;
#if defined(CELL_LSTM) || defined(CELL_GRU)
        found.old = is_there ? cells[(direction * batch + at) * padded + unit] : (REAL)0;
#endif
        return found;
    };
    auto count_of = [&](i64 t) {
        const i64 left = there.counts[t] - first_n;
        return left < 0 ? 0 : (int)(left < group_rows ? left : group_rows);
    };
    const i64 first_t = direction ? steps - 1 : 0, forth = direction ? -1 : 1;
    Item items[ITEMS];
    i64 known = 0, before_row = 0, here = there.starts[first_t];
    int count = count_of(first_t);
#pragma unroll
    for (int j = 0; j < ITEMS; ++j) items[j] = fetch(thread + j * BLOCK, 0, count, here);

    for (i64 s = 0; s < steps; ++s) {
        const i64 t = first_t + s * forth;
        // steps beyond the last have no sequences
        const i64 next_row = there.starts[t + forth], all = there.counts[t];
        const int next_count = count_of(t + forth);
        for (int m0 = 0; m0 < count; m0 += ROWS) {
            const u8 *rows[LANE_ROWS];
#pragma unroll
            for (int r = 0; r < LANE_ROWS; ++r) {
                const int n = m0 + (int)LANE_ROW(r);
                const i64 at = first_n + (n < count ? n : count - 1);
                const STATE *state = at < known ? out + ((before_row + at) * directions + direction) * width
                                               : first_h + (direction * batch + at) * width;
                rows[r] = (const u8 *)state + ROW_BYTES_AT;
            }
            const int most = count - m0 < ROWS ? count - m0 : ROWS;
            product(w, rows, aligned, most, partial, sums);
            auto apply = [&](int item, const Item &given) {
                const int n = item / (int)units, u = item % (int)units, unit = first_unit + u;
                if (u >= own) return;
                const i64 at = first_n + m0 + n, place_of = (here + at) * directions + direction;
                const REAL *b = biases + u;
                auto sum = [&](int gate) { return sum_at(w, sums, n, gate * (int)units + u); };
                REAL in[GATES];
#pragma unroll
                for (int g = 0; g < GATES; ++g) in[g] = given.x[g] + b[g * units];
                REAL h;
#if defined(CELL_LSTM)
                const REAL i = sigmoid(in[0] + sum(0));
                const REAL f = sigmoid(in[1] + sum(1));
                const REAL g = hyperbolic_tangent(in[2] + sum(2));
                const REAL o = sigmoid(in[3] + sum(3));
                REAL *cell = cells + (direction * batch + at) * padded + unit;
                REAL c = f * given.old + i * g;
#if CLIPPED
                c = c < (REAL)lowest ? (REAL)lowest : c > (REAL)highest ? (REAL)highest : c;
#endif
                *cell = c;
                h = o * hyperbolic_tangent(c);
#if KEPT
                REAL *kept = kept_gates + place_of * 4 * padded + unit;
                kept[0] = i, kept[padded] = f, kept[2 * padded] = g, kept[3 * padded] = o;
                kept_cells[place_of * padded + unit] = c;
#endif
#elif defined(CELL_GRU)
                const REAL r = sigmoid(in[0] + sum(0));
                const REAL z = sigmoid(in[1] + sum(1));
                const REAL m = b[3 * units] + sum(2);
                const REAL fresh = hyperbolic_tangent(in[2] + r * m);
                h = ((REAL)1 - z) * fresh + z * given.old;
                cells[(direction * batch + at) * padded + unit] = h;
#if KEPT
                REAL *kept = kept_gates + place_of * 4 * padded + unit;
                kept[0] = r, kept[padded] = z, kept[2 * padded] = fresh, kept[3 * padded] = m;
#endif
#else
                const REAL whole = in[0] + sum(0);
#ifdef CELL_TANH
                h = hyperbolic_tangent(whole);
#else
                h = whole < (REAL)0 ? (REAL)0 : whole;
#endif
#endif
#if PROJECTED
                STORE(STATE, full, place_of * full_width + unit, h);
                if (kept_full) kept_full[place_of * padded + unit] = h;
#else
                STORE(STATE, out, place_of * width + unit, h);
                if (kept_out) kept_out[place_of * size + unit] = h;
#endif
            };
            int ready = 0;
            if (m0 == 0) {
#pragma unroll
                for (int j = 0; j < ITEMS; ++j)
                    if (thread + j * BLOCK < most * units) apply(thread + j * BLOCK, items[j]);
                ready = ITEMS * BLOCK;
            }
            for (int item = thread + ready; item < most * units; item += BLOCK)
                apply(item, fetch(item, m0, count, here));
            __syncthreads();
        }
#if PROJECTED
        if (count) {
            arrive_among_blocks(meeting);
            wait_among_blocks(meeting, target += (u32)slices);
        }
        for (int m0 = 0; m0 < count; m0 += ROWS) {
            const u8 *rows[LANE_ROWS];
#pragma unroll
            for (int r = 0; r < LANE_ROWS; ++r) {
                const int n = m0 + (int)LANE_ROW(r);
                const i64 at = here + first_n + (n < count ? n : count - 1);
                rows[r] = (const u8 *)(full + (at * directions + direction) * full_width) + ROW_BYTES_AT;
            }
            const int most = count - m0 < ROWS ? count - m0 : ROWS;
            product(v, rows, aligned, most, partial, sums);
            for (int item = thread; item < most * outputs; item += BLOCK) {
                const int n = item / (int)outputs, u = item % (int)outputs, unit = slice * (int)outputs + u;
                if (unit >= size) continue;
                const i64 at = (here + first_n + m0 + n) * directions + direction;
                const REAL h = sum_at(v, sums, n, u);
                STORE(STATE, out, at * width + unit, h);
                if (kept_out) kept_out[at * size + unit] = h;
            }
            __syncthreads();
        }
#endif
        // a group without sequences at this step has written nothing; all blocks of a group skip the same barriers
        if (count && s + 1 < steps) arrive_among_blocks(meeting);
#pragma unroll
        for (int j = 0; j < ITEMS; ++j) items[j] = fetch(thread + j * BLOCK, 0, next_count, next_row);
        if (count && s + 1 < steps) wait_among_blocks(meeting, target += (u32)slices);
        known = all, before_row = here, here = next_row, count = next_count;
    }
}

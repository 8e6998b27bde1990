// The recurrent part of a layer of few units, forward: all steps in one launch, by clusters of thread blocks (sm_90a).
//
// Cluster (group, direction) has all units for 16 sequences. Its blocks write each other's states to shared memory, so that nothing
// goes through L2 from step to step and a step has one barrier. A tile of 8 columns is two units with four gates each (a
// gru has a fourth of zeros), so that lanes find all gates of their units by one exchange with the lane next to them, and c stays in
// a register.
//
//   states: two buffers of 16 rows of PITCH_BYTES, read at a step and written for the next; both begin as the first states,
//           which a sequence finds that begins at a later step.
//
// Arguments are those of forward.cu as far as they are needed. CLUSTER blocks, WARPS warps of UNIT_TILES tiles each.

#define FORWARD_ARGUMENTS                                                                                                \
    const u8 *weights, const ELEMENT *wx, const REAL *bias, const STATE *first_h, REAL *cells, STATE *out,              \
        REAL *kept_gates, REAL *kept_cells, REAL *kept_out, const i32 *tables, u8 *workspace, f64 alpha, f64 beta,       \
        i64 steps, i64 batch, i64 directions, i64 hidden, i64 padded, i64 width, i64 size, i64 tiles, i64 slabs,        \
        f64 lowest, f64 highest

#define DISTANCE (UNIT_TILES == 1 ? 4 : 2)

KERNEL_OF_CLUSTERS(BLOCK, CLUSTER) void cluster_forward(FORWARD_ARGUMENTS) {
    extern __shared__ __align__(1024) uint4 memory[];
    const int rank = blockIdx.x, direction = blockIdx.z, first_n = blockIdx.y * 16;
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, quarter = lane % 4;
    const bool is_lower = quarter % 2;  // has the lower rows' gates after the exchange
    const Rows sequences = {steps_of(tables, steps), steps, batch};
    const int pitch = ((int)slabs | 1) * 64;  // rows next to each other lie 64 bytes apart in the banks
    const Weights w = {(u8 *)memory, weights + (direction * CLUSTER + rank) * slabs * tiles * 512, (int)slabs, (int)slabs, (int)tiles};
    keep_weights(w);
    u8 *states = w.shared + slabs * tiles * 512;
    const int words = (int)width * STATE_BYTES / 4;
    for (int n = threadIdx.x; n < 16 * words; n += BLOCK) {
        const int row = n / words, word = n % words;
        u32 value = 0;
        if (first_n + row < batch) value = ((const u32 *)(first_h + (direction * batch + first_n + row) * width))[word];
#pragma unroll
        for (int b = 0; b < 2; ++b) *(u32 *)(states + (b * 16 + row) * pitch + word * 4) = value;
    }
    const int row = lane / 4 + 8 * is_lower;  // of the lane's units
    const i64 at = first_n + row;
    int unit[UNIT_TILES];
    REAL old[UNIT_TILES], biases[UNIT_TILES][4];
#pragma unroll
    for (int j = 0; j < UNIT_TILES; ++j) {
        const int tile = warp * UNIT_TILES + j;
        unit[j] = tile < tiles ? (rank * (int)tiles + tile) * 2 + quarter / 2 : (int)padded;
        const bool is_there = unit[j] < padded;
        old[j] = is_there && at < batch ? cells[(direction * batch + at) * padded + unit[j]] : (REAL)0;
#pragma unroll
        for (int g = 0; g < 4; ++g) biases[j][g] = is_there ? bias[(direction * 4 + g) * padded + unit[j]] : (REAL)0;
    }
    // what a step needs beside the states: asked for DISTANCE steps ahead
    struct Ahead {
        REAL x[UNIT_TILES][GATES];
        i64 place;
        bool is_there;
    };
    const i64 first_t = direction ? steps - 1 : 0, forth = direction ? -1 : 1;
    auto fetch = [&](Ahead &to, i64 s) {
        const i64 t = first_t + s * forth;
        to.is_there = s < steps && at < count_of(sequences, t);
        to.place = s < steps ? (start_of(sequences, t) + at) * directions + direction : 0;
        const ELEMENT *from = wx + to.place * GATES * hidden;
#pragma unroll
        for (int j = 0; j < UNIT_TILES; ++j)
#pragma unroll
            for (int g = 0; g < GATES; ++g)
                to.x[j][g] = to.is_there && unit[j] < hidden ? (REAL)LOAD(ELEMENT, from, g * hidden + unit[j]) : (REAL)0;
    };
    Ahead ahead[DISTANCE];
#pragma unroll
    for (int d = 0; d < DISTANCE; ++d) fetch(ahead[d], d);
    cluster_arrive();
    cluster_wait();

    auto step = [&](i64 s, Ahead &now) {
        const bool is_there = now.is_there;
        const i64 place = now.place;
        const u8 *from = states + (s % 2 * 16 + lane / 4) * pitch + quarter * 16;
        const u32 to = smem_address(states + ((s + 1) % 2 * 16 + row) * pitch);
        Sums sums[UNIT_TILES] = {};
        multiply_slabs(sums, from, pitch, w);
        REAL state[UNIT_TILES], gates[UNIT_TILES][4];
#pragma unroll
        for (int j = 0; j < UNIT_TILES; ++j) {
            // of this lane's rows and gates half is the other lane's
            REAL found[4], sum[4];
#pragma unroll
            for (int n = 0; n < 4; ++n) found[n] = sum_of(sums[j], n);
#pragma unroll
            for (int n = 0; n < 2; ++n) {
                const REAL other = shuffle_xor(is_lower ? found[n] : found[n + 2], 1);
                sum[n] = is_lower ? other : found[n];
                sum[n + 2] = is_lower ? found[n + 2] : other;
            }
            REAL in[GATES], h;
#pragma unroll
            for (int g = 0; g < GATES; ++g) in[g] = now.x[j][g] + biases[j][g];
#ifdef CELL_LSTM
            const REAL i = sigmoid(in[0] + sum[0]), f = sigmoid(in[1] + sum[1]);
            const REAL g = hyperbolic_tangent(in[2] + sum[2]), o = sigmoid(in[3] + sum[3]);
            REAL c = f * old[j] + i * g;
#if CLIPPED
            c = c < (REAL)lowest ? (REAL)lowest : c > (REAL)highest ? (REAL)highest : c;
#endif
            h = o * hyperbolic_tangent(c);
            if (is_there) old[j] = c;
            gates[j][0] = i, gates[j][1] = f, gates[j][2] = g, gates[j][3] = o;
#else
            const REAL r = sigmoid(in[0] + sum[0]), z = sigmoid(in[1] + sum[1]), m = biases[j][3] + sum[2];
            const REAL fresh = hyperbolic_tangent(in[2] + r * m);
            h = ((REAL)1 - z) * fresh + z * old[j];
            if (is_there) old[j] = h;
            gates[j][0] = r, gates[j][1] = z, gates[j][2] = fresh, gates[j][3] = m;
#endif
            state[j] = h;
            // two units next to each other, of which each of the two lanes that have them writes to half of the blocks
            const REAL other = shuffle_xor(h, 2);
            const REAL left = quarter / 2 ? other : h, right = quarter / 2 ? h : other;
            if (is_there && s + 1 < steps && unit[j] < padded) {
                const u32 pair = to + (unit[j] & ~1) * STATE_BYTES;
#if CLUSTER == 1
                if (quarter < 2)
#else
#pragma unroll
                for (int half = 0; half < CLUSTER / 2; ++half)
#endif
                {
#if CLUSTER == 1
                    const u32 peer = pair;
#else
                    const u32 peer = cluster_address(pair, quarter / 2 * (CLUSTER / 2) + half);
#endif
#if STATE_BYTES == 2
                    cluster_store4(peer, JOIN(pack_, STATE)(left, right));
#else
                    cluster_store8(peer, __float_as_uint(left), __float_as_uint(right));
#endif
                }
            }
        }
        if (s + 1 < steps) cluster_arrive();
        if (is_there) {
#pragma unroll
            for (int j = 0; j < UNIT_TILES; ++j) {
                if (unit[j] >= padded) continue;
                STORE(STATE, out, place * width + unit[j], state[j]);
#if KEPT
                if (kept_out) kept_out[place * size + unit[j]] = state[j];
#pragma unroll
                for (int g = 0; g < 4; ++g) kept_gates[(place * 4 + g) * padded + unit[j]] = gates[j][g];
#ifdef CELL_LSTM
                kept_cells[place * padded + unit[j]] = old[j];
#endif
#endif
            }
        }
        fetch(now, s + DISTANCE);
        if (s + 1 < steps) cluster_wait();
    };
    for (i64 s = 0; s < steps; s += DISTANCE)
#pragma unroll
        for (int d = 0; d < DISTANCE; ++d)
            if (s + d < steps) step(s + d, ahead[d]);
#pragma unroll
    for (int j = 0; j < UNIT_TILES; ++j)
        if (at < batch && unit[j] < padded) cells[(direction * batch + at) * padded + unit[j]] = old[j];
}

// What is around the recurrent part: which sequences there are, copies between tensors and rows, weights as they are read.
//
// Row by row follow the sequences of step 0, of step 1, and so on, the longest sequence first. `tables` has i32 numbers:
//
//   counts[t]   sequences of step t, from t = -1 to `steps`, which have none
//   starts[t]   the first row of step t; starts[steps] is the number of all rows
//   order[n]    which sequence of the batch is number n in the order by length
//   lengths[n]  steps of sequence number n
//   arrived     counters of barriers

// STATE is the type in which the states of all steps are exchanged: in half precision that of the tensors, where tensor cores
// multiply them.

#define TABLES const i32 *tables
#define ORDER (tables + 2 * steps + 4)
#define LENGTHS (ORDER + batch)
#define STARTS (tables + steps + 3)
#define COUNTS (tables + 1)
#define TAIL u8 *workspace, f64 alpha, f64 beta
#define THREADS 256
#define EACH(n, count) for (i64 n = (i64)blockIdx.x * THREADS + threadIdx.x; n < (count); n += (i64)gridDim.x * THREADS)

// Divisions of 32 bits, which are much quicker, where no count needs more (COUNT is u32).
FUNCTION i64 over(i64 number, i64 by) { return (COUNT)number / (COUNT)by; }
FUNCTION i64 rest(i64 number, i64 by) { return (COUNT)number % (COUNT)by; }

FUNCTION i64 clamped(i64 value, i64 least, i64 most) { return value < least ? least : value > most ? most : value; }

// One thread block. `sequences`: 0 whole, 1 lengths, 2 packed; `lengths` is what the caller says of them.
KERNEL(1024) void make_tables(i32 *tables, const INDEX *lengths, TAIL, i64 sequences, i64 steps, i64 batch, i64 rows,
                              i64 stride, i64 counters) {
    i32 *counts = tables + 1, *starts = tables + steps + 3, *order = tables + 2 * steps + 4, *known = order + batch;
    u32 *arrived = (u32 *)(known + batch);
    for (i64 n = threadIdx.x; n < counters; n += 1024) arrived[n] = 0;
    if (threadIdx.x == 0) counts[-1] = counts[steps] = 0, starts[-1] = 0;
    if (sequences == 2) {
        if (threadIdx.x == 0) {
            i64 most = batch, first = 0;
            for (i64 t = 0; t < steps; ++t) {
                const i64 wanted = lengths[t * stride], left = rows - first;
                most = clamped(wanted < most ? wanted : most, 0, left);
                counts[t] = (i32)most, starts[t] = (i32)first;
                first += most;
            }
            starts[steps] = (i32)first;
        }
        __syncthreads();
        for (i64 n = threadIdx.x; n < batch; n += 1024) {
            i64 length = 0;
            while (length < steps && counts[length] > n) ++length;
            order[n] = (i32)n, known[n] = (i32)length;
        }
        return;
    }
    if (sequences == 0) {
        for (i64 n = threadIdx.x; n < batch; n += 1024) order[n] = (i32)n, known[n] = (i32)steps;
        for (i64 t = threadIdx.x; t <= steps; t += 1024) {
            if (t < steps) counts[t] = (i32)batch;
            starts[t] = (i32)(t * batch);
        }
        return;
    }
    for (i64 n = threadIdx.x; n < batch; n += 1024) {
        const i64 own = clamped(lengths[n * stride], 0, steps);
        i64 rank = 0;
        for (i64 other = 0; other < batch; ++other) {
            const i64 length = clamped(lengths[other * stride], 0, steps);
            rank += length > own || (length == own && other < n);
        }
        order[rank] = (i32)n, known[rank] = (i32)own;
    }
    for (i64 t = threadIdx.x; t <= steps; t += 1024) {
        i64 count = 0, first = 0;
        for (i64 n = 0; n < batch; ++n) {
            const i64 length = clamped(lengths[n * stride], 0, steps);
            count += length > t, first += length < t ? length : t;
        }
        if (t < steps) counts[t] = (i32)count;
        starts[t] = (i32)first;
    }
}

// The step of a row and its sequence's number in the order by length; step -1 for rows that no sequence has.
struct Row {
    i64 step, number;
};
FUNCTION Row row_of(TABLES, i64 steps, i64 batch, i64 row) {
    if (row >= STARTS[steps]) return {-1, 0};
    i64 low = over(row, batch), high = steps;  // starts[low] <= row < starts[high]
    if (row < STARTS[low + 1]) high = low + 1;  // as where all are equally long
    while (high - low > 1) {
        const i64 middle = (low + high) / 2;
        if (STARTS[middle] <= row) low = middle;
        else high = middle;
    }
    return {low, row - STARTS[low]};
}

// Where a row is in a tensor of (steps, batch, ...), or of rows if that is packed.
FUNCTION i64 offset_of(TABLES, i64 steps, i64 is_packed, Row at, i64 row, i64 step_t, i64 step_n) {
    return is_packed ? row * step_n : at.step * step_t + ORDER[at.number] * step_n;
}

// Eight numbers that lie one behind the other, at an address that is a multiple of 16.
template <typename type>
struct __align__(16) Eight {
    type numbers[8];
};
template <typename type>
FUNCTION Eight<type> load_eight(const type *from) {
    Eight<type> found;
#pragma unroll
    for (int n = 0; n < (int)sizeof(type) / 2; ++n) ((uint4 *)found.numbers)[n] = ((const uint4 *)from)[n];
    return found;
}
template <typename type>
FUNCTION void store_eight(type *to, const Eight<type> &eight) {
#pragma unroll
    for (int n = 0; n < (int)sizeof(type) / 2; ++n) store16((uint4 *)to + n, ((const uint4 *)eight.numbers)[n]);
}
// Whether rows can be walked eight numbers at a time: all of these are multiples of eight, and units lie one behind the other.
FUNCTION bool is_wide(const void *one, const void *other, i64 numbers, i64 step_u) {
    return (((u64)one | (u64)other) & 15) == 0 && numbers % 8 == 0 && step_u == 1;
}

// Rows (rows, columns) of a tensor; 0 where no sequence is.
#define GATHER(name, TO)                                                                                              \
    KERNEL(THREADS) void name(TABLES, const ELEMENT *x, TO *to, TAIL, i64 steps, i64 batch, i64 rows, i64 columns,     \
                              i64 is_packed, i64 step_t, i64 step_n, i64 step_u) {                                    \
        if (is_wide(x, to, columns | step_t | step_n, step_u)) {                                                      \
            EACH(n, rows * columns / 8) {                                                                             \
                const i64 row = over(n, columns / 8), column = rest(n, columns / 8) * 8;                              \
                const Row at = row_of(tables, steps, batch, row);                                                     \
                Eight<ELEMENT> from = {};                                                                             \
                if (at.step >= 0)                                                                                     \
                    from = load_eight(x + offset_of(tables, steps, is_packed, at, row, step_t, step_n) + column);     \
                Eight<TO> eight;                                                                                      \
                _Pragma("unroll") for (int e = 0; e < 8; ++e)                                                         \
                    STORE(TO, eight.numbers, e, LOAD(ELEMENT, from.numbers, e));                                      \
                store_eight(to + row * columns + column, eight);                                                      \
            }                                                                                                         \
            return;                                                                                                   \
        }                                                                                                             \
        EACH(n, rows * columns) {                                                                                     \
            const i64 row = over(n, columns);                                                                         \
            const Row at = row_of(tables, steps, batch, row);                                                         \
            if (at.step < 0) STORE(TO, to, n, 0);                                                                     \
            else                                                                                                      \
                STORE(TO, to, n, LOAD(ELEMENT, x, offset_of(tables, steps, is_packed, at, row, step_t, step_n) +      \
                                                      rest(n, columns) * step_u));                                    \
        }                                                                                                             \
    }
GATHER(gather, ELEMENT)
GATHER(gather_real, REAL)

FUNCTION void blend(ELEMENT *to, i64 at, REAL value, f64 alpha, f64 beta) {
    value = (REAL)alpha * value;
    if (beta != 0) value += (REAL)beta * (REAL)LOAD(ELEMENT, to, at);
    STORE(ELEMENT, to, at, value);
}

// A tensor from rows of `parts` pieces of `columns` numbers, each in `pitch`; zeros, blended, where no sequence is.
KERNEL(THREADS) void scatter(TABLES, const STATE *from, const f32 *factors, ELEMENT *y, TAIL, i64 steps, i64 batch, i64 rows, i64 parts,
                             i64 columns, i64 pitch, i64 is_packed, i64 step_t, i64 step_n, i64 step_u) {
    const REAL factor = factors ? (REAL)factors[1] : (REAL)1;
    const int together = is_wide(from, y, columns | pitch | step_t | step_n, step_u) ? 8 : 1;
    EACH(n, rows * parts * columns / together) {
        const i64 width = parts * columns / together, column = rest(n, width) * together, row = over(n, width);
        i64 to, source;
        if (is_packed) {
            to = row * step_n;
            source = row < STARTS[steps] ? row : -1;
        } else {
            const i64 t = over(row, batch), number = rest(row, batch);
            to = t * step_t + ORDER[number] * step_n;
            source = number < COUNTS[t] ? STARTS[t] + number : -1;
        }
        to += column * step_u;
        source = source < 0 ? -1 : (source * parts + over(column, columns)) * pitch + rest(column, columns);
        if (together == 1) {
            blend(y, to, source < 0 ? (REAL)0 : (REAL)LOAD(STATE, from, source) * factor, alpha, beta);
            continue;
        }
        Eight<STATE> found = {};
        if (source >= 0) found = load_eight(from + source);
        Eight<ELEMENT> result = {};
        if (beta != 0) result = load_eight(y + to);
#pragma unroll
        for (int e = 0; e < 8; ++e) blend(result.numbers, e, (REAL)LOAD(STATE, found.numbers, e) * factor, alpha, beta);
        store_eight(y + to, result);
    }
}

// Rows of `parts` pieces of `columns` numbers, each in `pitch`, to rows without gaps; 0 where no sequence is, and where a
// number is dropped (`threshold` 0 or more). A block of random numbers serves 8 rows by 16 bits each; blocks count through
// layers, groups of rows, and the padded units.
#define COMPACT(name, FROM, TO)                                                                                             \
    KERNEL(THREADS) void name(TABLES, const FROM *from, const f32 *factors, const u32 *state, TO *to, TAIL, i64 steps, i64 rows, \
                              i64 parts, i64 columns, i64 pitch, i64 padded, i64 below, i64 threshold, f64 factor) {  \
        EACH(n, rows * parts * columns) {                                                                             \
            const i64 column = rest(n, parts * columns), row = over(n, parts * columns);                                    \
            const i64 piece = over(column, columns), unit = rest(column, columns);                                              \
            REAL value = 0;                                                                                           \
            if (row < STARTS[steps]) value = LOAD(FROM, from, (row * parts + piece) * pitch + unit);                  \
            if (factors) value *= (REAL)factors[1];                                                                   \
            if (threshold >= 0) value = kept(state, rows, row, parts * padded, piece * padded + unit, below, threshold) \
                                            ? value * (REAL)factor : (REAL)0;                                         \
            STORE(TO, to, n, value);                                                                                  \
        }                                                                                                             \
    }
FUNCTION bool kept(const u32 *state, i64 rows, i64 row, i64 columns, i64 column, i64 below, i64 threshold) {
    u32 words[4];
    const i64 groups = (rows + 7) / 8;
    philox(words, (u64)((below * groups + row / 8) * columns + column), state[0], state[1], state[2], state[3]);
    const int half = (int)(row % 8);
    return (i64)(words[half / 2] >> 16 * (half % 2) & 0xffffu) >= threshold;
}
COMPACT(compact, STATE, ELEMENT)
COMPACT(compact_real, REAL, REAL)
COMPACT(compact_up, STATE, REAL)
COMPACT(compact_down, REAL, ELEMENT)

// States of one layer (directions, batch, size) with the longest sequence first and padded by 0; 0 if there are none.
#define TAKE(name, TO)                                                                                                \
    KERNEL(THREADS) void name(TABLES, const ELEMENT *from, TO *to, TAIL, i64 steps, i64 batch, i64 directions,         \
                              i64 size, i64 padded, i64 step_d, i64 step_n, i64 step_u) {                             \
        EACH(n, directions * batch * padded) {                                                                        \
            const i64 unit = rest(n, padded), state = over(n, padded), number = rest(state, batch), direction = over(state, batch);                 \
            REAL value = 0;                                                                                           \
            if (from && unit < size)                                                                                  \
                value = LOAD(ELEMENT, from, direction * step_d + ORDER[number] * step_n + unit * step_u);             \
            STORE(TO, to, n, value);                                                                                  \
        }                                                                                                             \
    }
TAKE(take_states, REAL)
TAKE(take_first, STATE)

// The other way.
KERNEL(THREADS) void give_states(TABLES, const REAL *from, ELEMENT *to, TAIL, i64 steps, i64 batch, i64 directions,
                                 i64 size, i64 padded, i64 step_d, i64 step_n, i64 step_u) {
    EACH(n, directions * batch * size) {
        const i64 unit = rest(n, size), state = over(n, size), number = rest(state, batch), direction = over(state, batch);
        STORE(ELEMENT, to, direction * step_d + ORDER[number] * step_n + unit * step_u,
              from[(direction * batch + number) * padded + unit]);
    }
}

// The last states, out of the rows (rows, directions, padded) of all steps, or of sequences without steps the first ones.
KERNEL(THREADS) void last_states(TABLES, const STATE *rows, const STATE *first, ELEMENT *to, TAIL, i64 steps, i64 batch,
                                 i64 directions, i64 size, i64 padded, i64 step_d, i64 step_n, i64 step_u) {
    EACH(n, directions * batch * size) {
        const i64 unit = rest(n, size), state = over(n, size), number = rest(state, batch), direction = over(state, batch);
        const i64 length = LENGTHS[number], t = direction ? 0 : length - 1;
        const REAL value = length ? LOAD(STATE, rows, ((STARTS[t] + number) * directions + direction) * padded + unit)
                                  : LOAD(STATE, first, (direction * batch + number) * padded + unit);
        STORE(ELEMENT, to, direction * step_d + ORDER[number] * step_n + unit * step_u, value);
    }
}

// The states that each row's step began with, without gaps: (directions, rows, size); 0 where no sequence is.
KERNEL(THREADS) void states_before(TABLES, const REAL *rows, const REAL *first, STATE *to, TAIL, i64 steps, i64 batch,
                                   i64 count, i64 directions, i64 size, i64 padded) {
    EACH(n, directions * count * size) {
        const i64 unit = rest(n, size), place = over(n, size), row = rest(place, count), direction = over(place, count);
        const Row at = row_of(tables, steps, batch, row);
        REAL value = 0;
        if (at.step >= 0) {
            const i64 before = direction ? at.step + 1 : at.step - 1;
            value = at.number < COUNTS[before]
                        ? rows[((STARTS[before] + at.number) * directions + direction) * padded + unit]
                        : first[(direction * batch + at.number) * padded + unit];
        }
        STORE(STATE, to, n, value);
    }
}

// Zeros in the rows behind the last that a sequence has.
#define ZERO_ROWS(name, TO)                                                                                           \
    KERNEL(THREADS) void name(TABLES, TO *rows, TAIL, i64 steps, i64 count, i64 width) {                              \
        const i64 used = STARTS[steps];                                                                               \
        EACH(n, (count - used) * width) STORE(TO, rows, used * width + n, 0);                                         \
    }
ZERO_ROWS(zero_rows, REAL)
ZERO_ROWS(zero_rows_state, STATE)

// Zeros: units that pad what is exchanged.
KERNEL(THREADS) void clear(STATE *to, TAIL, i64 count) {
    EACH(n, count) STORE(STATE, to, n, 0);
}

// Weights as `product.cuh` says: [slice][slab][tile][column][slab's numbers]. Column c of a slice is unit c % units of its
// gate c / units, and 0 beyond the last of `gates`; `parts` slices next to each other have the same columns and follow each
// other along K, `used` slabs each, behind which come slabs of 0. The matrix has rows (gate, unit) and columns k, or is read the other
// way round: `is_transposed`, with rows (k / padded, k % padded) and columns (unit). `order` 1: as `warpgroup.cuh` says; 2: column c is gate
// c % 4 of unit c / 4, as `cluster_forward.cu` wants it.
KERNEL(THREADS) void pack_weights(const ELEMENT *matrix, STATE *packed, TAIL, i64 slices, i64 slabs, i64 columns,
                                  i64 units, i64 unit_count, i64 k_count, i64 padded, i64 is_transposed, i64 parts,
                                  i64 used, i64 gates, i64 order, i64 step_row, i64 step_column) {
    const i64 per_word = 4 / (i64)sizeof(STATE) > 1 ? 4 / (i64)sizeof(STATE) : 1, per_slab = 64 / (i64)sizeof(STATE);
    EACH(n, slices * slabs * columns * per_slab) {
        const i64 place = rest(n, per_slab), line = over(n, per_slab), column = rest(line, columns);
        const i64 block = over(line, columns), slab = rest(block, slabs), slice = over(block, slabs);
        i64 inside = place;
        if (order == 1) {
            const i64 word = place / per_word, chunk = word / 4 ^ (column / 2 & 3);
            inside = (word % 4 * 4 + chunk) * per_word + place % per_word;
        }
        const i64 k = (rest(slice, parts) * used + slab) * per_slab + inside;
        const i64 unit = over(slice, parts) * units + (order == 2 ? column / 4 : rest(column, units));
        const i64 gate = order == 2 ? column % 4 : over(column, units);
        REAL value = 0;
        if (unit < unit_count && gate < gates && slab < used) {
            if (is_transposed) {
                if (rest(k, padded) < k_count)
                    value = LOAD(ELEMENT, matrix,
                                 (over(k, padded) * k_count + rest(k, padded)) * step_row + unit * step_column);
            } else if (k < k_count)
                value = LOAD(ELEMENT, matrix, (gate * unit_count + unit) * step_row + k * step_column);
        }
        STORE(STATE, packed, n, value);
    }
}

// The same for cluster_backward.cu: rows of all gates of a slice's units, (gate, unit), and columns of all units.
KERNEL(THREADS) void pack_columns(const ELEMENT *matrix, REAL *packed, TAIL, i64 slices, i64 slabs, i64 columns,
                                  i64 units, i64 unit_count, i64 gates, i64 step_row, i64 step_column) {
    const i64 per_slab = 64 / (i64)sizeof(REAL);
    EACH(n, slices * slabs * columns * per_slab) {
        const i64 line = over(n, per_slab), column = rest(line, columns), block = over(line, columns);
        const i64 k = rest(block, slabs) * per_slab + rest(n, per_slab), gate = over(k, units);
        const i64 unit = over(block, slabs) * units + rest(k, units);
        REAL value = 0;
        if (gate < gates && unit < unit_count && column < unit_count)
            value = LOAD(ELEMENT, matrix, (gate * unit_count + unit) * step_row + column * step_column);
        packed[n] = value;
    }
}

// Biases by gate, padded by 0: the sums of both, but of a gru's third gate that of the recurrent product by itself.
KERNEL(THREADS) void pack_biases(const ELEMENT *in, const ELEMENT *recurrent, REAL *packed, TAIL, i64 sections,
                                 i64 hidden, i64 padded, i64 step_in, i64 step_recurrent) {
    EACH(n, sections * padded) {
        const i64 section = n / padded, unit = n % padded;
        REAL value = 0;
        if (unit < hidden) {
            const i64 own = GRU && section == 3 ? 2 : section;
            if (in && !(GRU && section == 3)) value += LOAD(ELEMENT, in, (own * hidden + unit) * step_in);
            if (recurrent && !(GRU && section == 2))
                value += LOAD(ELEMENT, recurrent, (own * hidden + unit) * step_recurrent);
        }
        packed[n] = value;
    }
}

// The input weights (gates * hidden, depth) with the rows in the order of `dgates` and padded by 0: a row of dgates times
// this is a gradient of the layer's input.
KERNEL(THREADS) void pad_weights(const ELEMENT *matrix, STATE *to, TAIL, i64 sections, i64 hidden, i64 padded, i64 depth,
                                 i64 step_row, i64 step_column) {
    EACH(n, sections * padded * depth) {
        const i64 column = rest(n, depth), row = over(n, depth), unit = rest(row, padded), section = over(row, padded);
        const i64 gate = GRU ? (section == 0 ? 2 : section == 3 ? -1 : section - 1) : section;
        REAL value = 0;
        if (unit < hidden && gate >= 0)
            value = LOAD(ELEMENT, matrix, (gate * hidden + unit) * step_row + column * step_column);
        STORE(STATE, to, n, value);
    }
}

// A matrix of sums blended into a gradient.
KERNEL(THREADS) void give_matrix(const STATE *from, const f32 *factors, ELEMENT *to, TAIL, i64 rows, i64 columns, i64 step_row,
                                 i64 step_column) {
    EACH(n, rows * columns) {
        const REAL value = (REAL)LOAD(STATE, from, n) * (factors ? (REAL)factors[1] : (REAL)1);
        blend(to, over(n, columns) * step_row + rest(n, columns) * step_column, value, alpha, beta);
    }
}

// Sums of a run of rows of dgates, in order: a thread for each column, blocks for runs of `run` rows. The columns of all directions.
// `largest`, if it is one, gets the bits of the largest number too (`FIND_LARGEST`).
KERNEL(THREADS) void sum_rows(TABLES, const REAL *dgates, REAL *sums, u32 *largest, TAIL, i64 steps, i64 pitch, i64 run,
                              i64 blocks) {
    const i64 column = blockIdx.x % blocks * THREADS + threadIdx.x, part = blockIdx.x / blocks;
    const i64 rows = STARTS[steps], begin = part * run, end = begin + run < rows ? begin + run : rows;
    REAL sum = 0, most = 0;
    if (column < pitch) {
#pragma unroll 8
        for (i64 row = begin; row < end; ++row) {
            const REAL value = dgates[row * pitch + column], size = value < 0 ? -value : value;
            sum += value;
            most = size > most ? size : most;
        }
        sums[part * pitch + column] = sum;
    }
    most = warp_max(most);
    if (largest && threadIdx.x % 32 == 0 && most > 0) largest_among_blocks(largest, __float_as_uint((f32)most));
}

// A bias's gradient: what `sum_rows` found for its columns, in order.
KERNEL(THREADS) void bias_gradient(const REAL *sums, ELEMENT *to, TAIL, i64 parts, i64 pitch, i64 gates, i64 hidden,
                                   i64 padded, i64 is_recurrent, i64 step) {
    EACH(n, gates * hidden) {
        const i64 gate = n / hidden;
        const i64 section = GRU ? (gate < 2 ? gate + 1 : is_recurrent ? 3 : 0) : gate;
        REAL sum = 0;
        for (i64 part = 0; part < parts; ++part) sum += sums[part * pitch + section * padded + n % hidden];
        blend(to, n * step, sum, alpha, beta);
    }
}

// ---- Gradients in f16, times a power of two: so small ones keep their bits, and no sum of products is out of range ----
// factors: by which numbers are multiplied, and by which what is made of them; then the bits of the largest number.

KERNEL(THREADS) void begin_factors(f32 *factors, TAIL) {
    if (blockIdx.x == 0 && threadIdx.x == 0) factors[0] = factors[1] = 1, ((u32 *)factors)[2] = ((u32 *)factors)[3] = 0;
}

#define FIND_LARGEST(name, FROM)                                                                                      \
    KERNEL(THREADS) void name(const FROM *from, u32 *largest, TAIL, i64 count) {                                      \
        REAL most = 0;                                                                                                \
        EACH(n, count) {                                                                                              \
            const REAL value = LOAD(FROM, from, n), size = value < 0 ? -value : value;                                \
            most = size > most ? size : most;                                                                         \
        }                                                                                                             \
        most = warp_max(most);                                                                                        \
        if (threadIdx.x % 32 == 0 && most > 0) largest_among_blocks(largest, __float_as_uint((f32)most));             \
    }
FIND_LARGEST(find_largest, REAL)
FIND_LARGEST(find_largest_element, ELEMENT)

// The largest number becomes 2^`exponent` or a little more, less the power of two of the other operand's largest if there is one. Where
// there are only zeros, or a number that is none, nothing is scaled.
KERNEL(THREADS) void end_factors(f32 *factors, TAIL, i64 exponent) {
    if (blockIdx.x || threadIdx.x) return;
    const u32 first = ((u32 *)factors)[2] >> 23, second = ((u32 *)factors)[3] >> 23;
    if (first == 0 || first == 255 || second == 255) return;
    i64 power = exponent - ((i64)first - 127);
    if (second > 127) power -= (i64)second - 127;
    power = clamped(power, -100, 100);
    factors[0] = __uint_as_float((u32)(127 + power) << 23), factors[1] = __uint_as_float((u32)(127 - power) << 23);
}

// Times the factor, in half precision.
KERNEL(THREADS) void halve(const REAL *from, const f32 *factors, ELEMENT *to, TAIL, i64 count) {
    const REAL factor = factors[0];
    EACH(n, count) STORE(ELEMENT, to, n, from[n] * factor);
}

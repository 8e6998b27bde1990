// fprop, and dgrad by stride phases: rows are pixels of the result, columns its channels; K runs over taps, with the
// channels of the data inside. In lines (LINE_TAPS, sizes.cuh) rows are windows of a line and of as many pixels behind its
// last window as the taps reach, whose results are thrown away: so each tap reads the same pixels, some rows further on.
// Or rows are channels of the result, and its pixels columns (PIXELS_ARE_COLUMNS): the filter is A, the data B.

// The columns of a tile.
struct Columns {
    int first, count;

    METHOD i64 place(const Tables &tables, int column) const {
#if PAIRED
        const int half = column >= BN / 2;
        return tables.pair.place[half] + (column - half * (BN / 2)) * tables.result_column;
#else
        return (first + column) * tables.result_column;
#endif
    }
    // Columns that there are from this one on.
    METHOD int from(const Tables &, int column) const { return count - column; }
};

// Which part of K a piece of work has, of a split or of a cluster; `number` becomes that of the tile, of all groups.
FUNCTION int split_of(const Tables &tables, int &number) {
    if (!IS_CLUSTERED && !IS_SPLIT) return 0;
    const int count = (int)(IS_CLUSTERED ? tables.splits : tables.tiles_m * tables.tiles_n * tables.groups);
#if HAS_DIVISORS
    const int outer = quotient(number, tables.by.part);
#else
    const int outer = number / count;
#endif
    const int inner = number - outer * count;
    number = IS_CLUSTERED ? outer : inner;
    return IS_CLUSTERED ? inner : outer;
}

// Which tile of a group has a number.
FUNCTION void place_tile(const Tables &tables, int number, int &row_tile, int &column_tile) {
    const int tiles_n = (int)tables.tiles_n, tiles_m = (int)tables.tiles_m;
    int width = (int)tables.strip, before = 0;
    if (width < tiles_n) {
#if HAS_DIVISORS
        before = quotient(number, tables.by.strip) * width;
#else
        before = number / (tiles_m * width) * width;
#endif
        number -= before * tiles_m;
        width = min(width, tiles_n - before);
    }
#if HAS_DIVISORS
    row_tile = width == (int)tables.strip ? quotient(number, tables.by.width) : number / width;
#else
    row_tile = quotient(number, width);
#endif
    column_tile = before + number - row_tile * width;
}

// The tile down, counted through all stride phases, that has a number where phases, of as many tiles each, take turns: what
// one reads of the data is in L2 when the next one reads it.
FUNCTION int tile_in_turn(const Tables &tables, int number) {
    if (PHASES == 1 || !tables.turn) return number;
    const int of_phase = (int)tables.phases[PHASES > 1].first_tile, phases = (int)tables.tiles_m / of_phase;
#if HAS_DIVISORS
    const int turn = (int)tables.turn, first = quotient(number, tables.by.turns) * turn, length = min(turn, of_phase - first);
    const int rest = number - first * phases, phase = length == turn ? quotient(rest, tables.by.turn) : rest / length;
    return phase * of_phase + first + rest - phase * length;
#else
    return number;
#endif
}

// One piece of the work: a tile of a stride phase and a group, and which stages of its K.
struct Work {
    int phase, group, first_row, first_block, last_block;
    Columns columns;
#if IS_STREAMED
    bool is_end;  // it has the last stage of a tile
#endif

    METHOD Work(const Tables &tables, int number) {
#if IS_STREAMED
        const Streamed streamed(tables, number);
        number = streamed.tile, is_end = streamed.last == stages_of(tables);
#else
        const int split = split_of(tables, number);
#endif
        const int tiles = (int)(tables.tiles_m * tables.tiles_n);
#if HAS_DIVISORS
        group = tables.groups == 1 ? 0 : quotient(number, tables.by.tiles);
#else
        group = tables.groups == 1 ? 0 : number / tiles;
#endif
        number -= group * tiles;
        int row_tile, column_tile;
        place_tile(tables, number, row_tile, column_tile);
        columns.first = column_tile * BN;
        row_tile = tile_in_turn(tables, row_tile);
        phase = 0;
#pragma unroll
        for (int next = 1; next < PHASES; ++next) phase += row_tile >= (int)tables.phases[next].first_tile;
        first_row = (row_tile - (int)tables.phases[phase].first_tile) * BM;
        columns.count = min(BN, (int)tables.columns - columns.first);
#if IS_STREAMED
        first_block = streamed.first, last_block = streamed.last;
#else
        const Phase &own = tables.phases[phase];
        const int taps = (int)(own.axes[0].taps * own.axes[1].taps * own.axes[2].taps);
        const int blocks = (taps * (int)tables.channel_blocks + SUBS - 1) / SUBS;
        first_block = split * (int)tables.blocks_of_split;
        last_block = min(blocks, first_block + (int)tables.blocks_of_split);
        if (last_block < first_block) last_block = first_block;
#endif
    }

#if PAIRED
    // Stages with taps of both halves of the columns, in front of those of the second half.
    METHOD int stages_of_both(const Tables &tables) const {
        const Phase &own = tables.phases[phase];
        return (int)(tables.pair.both * own.axes[0].taps * own.axes[1].taps * tables.channel_blocks);
    }
#endif

    // The channel of a column, over all groups.
    METHOD int channel(int column, const Tables &tables) const {
        return group * (int)tables.columns + columns.first + column;
    }
};

// The coordinates of a row in the result.
struct Pixel {
    int image, a, b, c, of_line;  // the last one counts the results of a line, of its stride phase

    METHOD Pixel(const Tables &tables, const Work &work, int row) {
        const Phase &phase = tables.phases[work.phase];
        const Position position(tables, work.phase, row);
        auto along = [&](int n) {
            return (int)(phase.axes[n].first_result + position.at[n] * phase.axes[n].result_stride);
        };
        image = position.image, a = along(0), b = along(1), c = along(2), of_line = position.at[2];
    }
};

// Whether a row is one of the result: in lines there are windows behind the last of each that reach into the next.
FUNCTION bool is_result(const Tables &tables, const Work &work, int row, const Pixel &pixel) {
    const Phase &phase = tables.phases[work.phase];
    return row < phase.rows && (LINE_TAPS == 1 || pixel.of_line < (int)phase.axes[2].results - LINE_REACH);
}

// Where a row begins in the result; NO_PLACE if there is none.
FUNCTION i64 row_place(const Tables &tables, const Work &work, int row) {
    if constexpr (PIXELS_ARE_COLUMNS) return row < (int)tables.rows ? row * tables.result_row : NO_PLACE;
    const Pixel pixel(tables, work, row);
    if (!is_result(tables, work, row, pixel)) return NO_PLACE;
    return pixel.image * tables.result_image + work.group * tables.result_group + pixel.a * tables.result_space[0] +
           pixel.b * tables.result_space[1] + pixel.c * tables.result_space[2];
}

// Where the columns of a chunk lie.
struct BoxPlace {
    int column;

    METHOD void find(const Tables &, const Columns &columns, int first_column, int) { column = columns.first + first_column; }
    METHOD BoxPlace of_chunk(int chunk) const { return {column + chunk * CHUNK}; }
};

// Stores a chunk of the rows from this one on.
FUNCTION void store_box(u32 from, const Tables &tables, const BoxPlace &place, int group, int row) {
    if constexpr (IS_RESULT_BOXES)
        for (int more = 0; more < BOXES_OF_CHUNK; ++more)
            tma_store_3d(from + more * (BUFFER_BYTES / BOXES_OF_CHUNK), tables.result(),
                         ROWS_FIRST ? row + more * (64 / BOXES_OF_CHUNK) : place.column, group,
                         ROWS_FIRST ? place.column : row);
}

// Brings the stages of a piece of work, one after the other: SUBS times a tap and SUB_K channels. One thread does this,
// or two in turns, while the tensor cores work, so a step is a few additions; all else is in the constructor, or done once
// for a tap.
struct Loader {
    int image, w, h, d;           // where the window of the tile's first pixel begins
    int phase, row, column;       // of the tile's first result: a pixel, and its channel
    int channel;                  // of what comes next
    int s, r, t;                  // its tap: positions behind the window's beginning
    int filter_s, filter_r, filter_t, filter_at[3];  // and where it is in the filter, and where tap 0 is
    int a_channel, b_channel, channels;
    const Axis &x, &y, &z;

    METHOD Loader(const Tables &tables, const Work &work)
        : phase(work.phase), row(PIXELS_ARE_COLUMNS ? work.columns.first : work.first_row),
          x(tables.phases[work.phase].axes[2]), y(tables.phases[work.phase].axes[1]), z(tables.phases[work.phase].axes[0]) {
        const Position position(tables, phase, row);
        auto begin = [&](const Axis &axis, int at) { return (int)(axis.base + at * axis.input_stride); };
        w = begin(x, position.at[2]), h = begin(y, position.at[1]), d = begin(z, position.at[0]);
        image = position.image + work.group * (int)tables.a_image_step;
        column = (PIXELS_ARE_COLUMNS ? work.first_row : work.columns.first) + work.group * (int)tables.b_column_step;
        a_channel = work.group * (int)tables.a_channel_step, b_channel = work.group * (int)tables.b_channel_step;
        const int blocks = (int)tables.channel_blocks, first = work.first_block * SUBS;
        int tap = IS_PART || IS_STREAMED ? first / blocks : 0;  // the first block of all is that of tap 0
        channel = (first - tap * blocks) * SUB_K, channels = blocks * SUB_K;
        filter_at[2] = (int)x.first_tap, filter_at[1] = (int)y.first_tap;
        filter_at[0] = (int)z.first_tap + work.group * (int)tables.b_outer_step;
        int at[3] = {};
        if (tap) {
            at[2] = tap % (int)x.taps, tap /= (int)x.taps;
            at[1] = tap % (int)y.taps, at[0] = tap / (int)y.taps;
        }
        s = at[2] * (int)x.dilation, r = at[1] * (int)y.dilation, t = at[0] * (int)z.dilation;
        filter_s = filter_at[2] + at[2] * (int)x.tap_step, filter_r = filter_at[1] + at[1] * (int)y.tap_step;
        filter_t = filter_at[0] + at[0] * (int)z.tap_step;
#if PAIRED
        s = (int)tables.pair.first;
#endif
    }

#if PAIRED
    bool is_of_both = true;

    // Taps along the last axis come last: those of both halves before that of one.
    METHOD void next_tap(const Tables &tables) {
        channel = 0;
        r += (int)y.dilation, filter_r += (int)y.tap_step;
        if (r < (int)(y.taps * y.dilation)) return;
        r = 0, filter_r = filter_at[1];
        t += (int)z.dilation, filter_t += (int)z.tap_step;
        if (t < (int)(z.taps * z.dilation)) return;
        t = 0, filter_t = filter_at[0];
        if (++s < (int)(tables.pair.first + tables.pair.both)) return;
        s = (int)tables.pair.single, is_of_both = false;
    }

    // The filter of a tap, of the second half of the columns alone or of both.
    METHOD void load_pair(const Tables &tables, u32 to, u32 barrier, int from) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            if (half == 0 && !is_of_both) continue;
            const int tap = (int)(tables.pair.tap[half] + s * tables.pair.tap_step[half]);
#pragma unroll
            for (int n = 0; n < BN / 2; n += B_BLOCK)
                tma_load_5d(to + (half * (BN / 2) + n) / B_BLOCK * B_SLAB_BYTES, tables.b(0), barrier, n, tap, filter_r,
                            filter_t, from);
        }
    }
#endif

    METHOD void next_tap() {
        channel = 0;
        s += (int)x.dilation, filter_s += (int)x.tap_step;
        if (s < (int)(x.taps * x.dilation)) return;
        s = 0, filter_s = filter_at[2];
        r += (int)y.dilation, filter_r += (int)y.tap_step;
        if (r < (int)(y.taps * y.dilation)) return;
        r = 0, filter_r = filter_at[1];
        t += (int)z.dilation, filter_t += (int)z.tap_step;
        if (SUBS == 1 || t < (int)(z.taps * z.dilation)) return;
        // behind the last tap there are zeros
        t = 0, filter_t = filter_at[0], a_channel = b_channel = NO_CHANNEL;
    }

    // Leaves the next stage to the other thread.
    METHOD void skip(const Tables &tables) {
#pragma unroll
        for (int sub = 0; sub < SUBS; ++sub) {
            channel += SUB_K;
#if PAIRED
            if (channel >= channels) next_tap(tables);
#else
            if (channel >= channels) next_tap();
#endif
        }
    }

    // Rows of a stage that are neighbours in memory, in blocks of 64: from this channel on.
    template <class... How>
    METHOD void load_across(const Tables &tables, u32 to, u32 barrier, int from, How... how) {
        if (tables.is_a_whole) {
            tma_load_4d(to, tables.a(phase, 0), barrier, 0, from, row / 64, image, how...);
            return;
        }
#pragma unroll
        for (int m = 0; m < BM; m += 64)
            tma_load_3d(to + m / 64 * SLAB_BYTES, tables.a(phase, 0), barrier, row + m, from, image, how...);
    }

    // Of the taps of the filter, counted through.
    METHOD int tap_number(const Tables &tables, int tap_s) const {
        return filter_t * (int)tables.tap_space[0] + filter_r * (int)tables.tap_space[1] + tap_s;
    }

    // The filter of a tap where pixels are columns: its channels are rows, along K or across.
    template <class... How>
    METHOD void load_filter_rows(const Tables &tables, u32 to, int sub, u32 barrier, int from, How... how) {
        if constexpr (!A_MN_MAJOR) {
            tma_load_5d(to + sub * BM * ROW_BYTES, tables.b(0), barrier, from, filter_s, filter_r, filter_t, column,
                        how...);
            return;
        }
        if (SUBS == 1 && tables.is_b_whole) {
            tma_load_4d(to, tables.b(0), barrier, 0, tap_number(tables, filter_s), from, column / 64, how...);
            return;
        }
#pragma unroll
        for (int m = 0; m < BM; m += 64)
            tma_load_5d(to + m / 64 * SLAB_BYTES + sub * SUB_K * 128, tables.b(0), barrier, column + m, filter_s, filter_r,
                        filter_t, from, how...);
    }

    template <class... How>
    METHOD void load(const Tables &tables, u32 to_a, u32 to_b, u32 barrier, bool has_b = true, bool has_a = true,
                     How... how) {
#if PAIRED
        load_pixels(tables, to_a, tables.a(phase, 0), barrier, channel, w, h, d, image, s, r, t);
        load_pair(tables, to_b, barrier, channel);
        channel += SUB_K;
        if (channel >= channels) next_tap(tables);
        return;
#endif
#pragma unroll
        for (int sub = 0; sub < SUBS; ++sub) {
            const int a = a_channel + channel, b = b_channel + channel;
            if constexpr (PIXELS_ARE_COLUMNS) {
                if (has_b)
                    load_pixels(tables, to_b + sub * BN * ROW_BYTES, tables.a(phase, 0), barrier, a, w, h, d, image, s, r,
                                t, how...);
                if (has_a) load_filter_rows(tables, to_a, sub, barrier, b, how...);
                channel += SUB_K;
                if (channel >= channels) next_tap();
                continue;
            }
            constexpr int further = DIVIDES_ROWS ? SUB_K / 2 : 0;  // of f32 a row has half as many channels
#pragma unroll
            for (int part = 0; part < PARTS; ++part) {
                if (!has_a) {
                } else if constexpr (!A_MN_MAJOR) {
                    load_pixels(tables, to_a + part * A_BYTES + sub * BM * ROW_BYTES, tables.a(phase, part), barrier,
                                a + part * further, w, h, d, image, s, r, t, how...);
                } else if (sub == 0) {  // all of the stage: there is one tap
                    load_across(tables, to_a, barrier, a, how...);
                }
                if (!has_b) continue;
#pragma unroll
                for (int tap = 0; tap < LINE_TAPS; ++tap) {
                    if (HAS_SHORT_LINES && tap == LINE_TAPS - 1 && s >= LINE_LONG) continue;
                    const u32 to = to_b + part * B_BYTES + tap * TAP_B_BYTES;
                    const int tap_s = filter_s + tap * (LINE_CLASSES * (int)x.tap_step);
                    if (B_MN_MAJOR && B_COLUMNS > B_BLOCK && SUBS == 1 && tables.is_b_whole) {
                        tma_load_4d(to, tables.b(part), barrier, 0, tap_number(tables, tap_s), b, column / B_BLOCK,
                                    how...);
                    } else if constexpr (B_MN_MAJOR) {
#pragma unroll
                        for (int n = 0; n < B_COLUMNS; n += B_BLOCK)
                            tma_load_5d(to + n / B_BLOCK * B_SLAB_BYTES + sub * SUB_K * B_ROW_BYTES, tables.b(part),
                                        barrier, column + n, tap_s, filter_r, filter_t, b, how...);
                    } else {
#pragma unroll
                        for (int n = 0; n < BN; n += WN)
                            tma_load_5d(to + (sub * BN + n) * ROW_BYTES, tables.b(part), barrier, b, tap_s, filter_r,
                                        filter_t, column + n, how...);
                    }
                }
            }
            channel += SUB_K;
            if (channel >= channels) next_tap();
        }
    }
};

#if PARTS > 1
constexpr int MOST_BLOCKS = 0x7fffffff;

// The sum at a row and a column of a tile, of the operands as they are, over these stages.
FUNCTION f32 exact_sum(const Tables &tables, const Work &work, int row, int column, const f32 *data, const f32 *weights,
                       const Pack &of_data, const Pack &of_weights, int first_block = 0, int last_block = MOST_BLOCKS) {
    const Phase &phase = tables.phases[work.phase];
    const Position position(tables, work.phase, row);
    const int of_column = work.columns.first + column + work.group * (int)tables.b_column_step;
    const i64 of_result = of_column * of_weights.image, along = of_weights.channel;  // halves are K-major
    const i64 image = (position.image + work.group * tables.a_image_step) * of_data.image;
    f32 sum = 0;
    const int taps = (int)(phase.axes[0].taps * phase.axes[1].taps * phase.axes[2].taps);
    for (int tap = 0; tap < taps; ++tap) {
        int left = tap, number[3];
        i64 from = image, filter = of_result + work.group * tables.b_outer_step * of_weights.space[0];
        bool is_inside = true;
        for (int n = 2; n >= 0; --n) {
            const Axis &axis = phase.axes[n];
            number[n] = left % (int)axis.taps, left /= (int)axis.taps;
            const int at = (int)(axis.base + position.at[n] * axis.input_stride + number[n] * axis.dilation);
            is_inside = is_inside && of_data.has(n, at);
            from += at * of_data.space[n];
            filter += (axis.first_tap + number[n] * axis.tap_step) * of_weights.space[n];
        }
        if (!is_inside) continue;
        from += work.group * tables.a_channel_step * of_data.channel;
        filter += work.group * tables.b_channel_step * along;
        // channels of this tap that belong to those stages
        const i64 before = (i64)tap * tables.channel_blocks;
        const i64 begin = ((i64)first_block * SUBS - before) * SUB_K, end = ((i64)last_block * SUBS - before) * SUB_K;
        for (int c = (int)max(begin, 0ll); c < (int)min(end, tables.channels); ++c)
            sum = fmaf(data[from + c * of_data.channel], weights[filter + c * along], sum);
    }
    return sum;
}
#endif

// fprop, and dgrad by stride phases: rows are pixels of the result, columns its channels; K runs over taps, with the
// channels of the data inside.

// The columns of a tile.
struct Columns {
    int first, count;

    METHOD i64 place(const Tables &tables, int column) const { return (first + column) * tables.result_column; }
    // Columns that there are from this one on.
    METHOD int from(const Tables &, int column) const { return count - column; }
};

// One piece of the work: a tile of a stride phase and a group, and which stages of its K.
struct Work {
    int phase, group, first_row, first_block, last_block;
    Columns columns;

    METHOD Work(const Tables &tables, int number) {
        const int tiles_n = (int)tables.tiles_n, tiles = (int)tables.tiles_m * tiles_n;
        const int split = number / (tiles * (int)tables.groups);
        number -= split * tiles * (int)tables.groups;
        group = number / tiles;
        number -= group * tiles;
        const int row_tile = number / tiles_n;
        columns.first = (number - row_tile * tiles_n) * BN;
        phase = 0;
#pragma unroll
        for (int next = 1; next < PHASES; ++next) phase += row_tile >= (int)tables.phases[next].first_tile;
        first_row = (row_tile - (int)tables.phases[phase].first_tile) * BM;
        columns.count = min(BN, (int)tables.columns - columns.first);
        const Phase &own = tables.phases[phase];
        const int taps = (int)(own.axes[0].taps * own.axes[1].taps * own.axes[2].taps);
        const int blocks = (taps * (int)tables.channel_blocks + SUBS - 1) / SUBS;
        first_block = split * (int)tables.blocks_of_split;
        last_block = min(blocks, first_block + (int)tables.blocks_of_split);
        if (last_block < first_block) last_block = first_block;
    }

    // The channel of a column, over all groups.
    METHOD int channel(int column, const Tables &tables) const {
        return group * (int)tables.columns + columns.first + column;
    }
};

// The coordinates of a row in the result.
struct Pixel {
    int image, a, b, c;

    METHOD Pixel(const Tables &tables, const Work &work, int row) {
        const Phase &phase = tables.phases[work.phase];
        const Position position(phase, row);
        auto along = [&](int n) {
            return (int)(phase.axes[n].first_result + position.at[n] * phase.axes[n].result_stride);
        };
        image = position.image, a = along(0), b = along(1), c = along(2);
    }
};

// Where a row begins in the result; NO_PLACE if there is none.
FUNCTION i64 row_place(const Tables &tables, const Work &work, int row) {
    if (row >= tables.phases[work.phase].rows) return NO_PLACE;
    const Pixel pixel(tables, work, row);
    return pixel.image * tables.result_image + work.group * tables.result_group + pixel.a * tables.result_space[0] +
           pixel.b * tables.result_space[1] + pixel.c * tables.result_space[2];
}

// Stores a chunk whose first column, of the tile, and row are given.
FUNCTION void store_box(u32 from, const Tables &tables, const Columns &columns, int column, int group, int row) {
    if constexpr (IS_RESULT_BOXES) tma_store_3d(from, tables.result(), columns.first + column, group, row);
}

// Brings the stages of a piece of work, one after the other: SUBS times a tap and SUB_K channels.
struct Loader {
    int image, w, h, d;    // where the window of the tile's first pixel begins
    int channel, s, r, t;  // of what comes next
    int phase, column, a_channel, b_channel, outer;

    METHOD Loader(const Tables &tables, const Work &work) {
        const Phase &own = tables.phases[phase = work.phase];
        const Position position(own, work.first_row);
        auto begin = [&](int n) { return (int)(own.axes[n].base + position.at[n] * own.axes[n].input_stride); };
        image = position.image + work.group * (int)tables.a_image_step;
        d = begin(0), h = begin(1), w = begin(2);
        const int blocks = (int)tables.channel_blocks, first = work.first_block * SUBS;
        int tap = first / blocks;
        channel = (first - tap * blocks) * SUB_K;
        const int taps_s = (int)own.axes[2].taps, taps_r = (int)own.axes[1].taps;
        t = s = r = 0;
        if (tap) {
            s = tap % taps_s, tap /= taps_s;
            r = tap % taps_r, t = tap / taps_r;
        }
        column = work.columns.first + work.group * (int)tables.b_column_step;
        a_channel = work.group * (int)tables.a_channel_step;
        b_channel = work.group * (int)tables.b_channel_step;
        outer = work.group * (int)tables.b_outer_step;
    }

    METHOD void load(const Tables &tables, u32 to_a, u32 to_b, u32 barrier) {
        const Phase &own = tables.phases[phase];
        const Axis &z = own.axes[0], &y = own.axes[1], &x = own.axes[2];
        auto filter = [](const Axis &axis, int tap) { return (int)axis.first_tap + tap * (int)axis.tap_step; };
#pragma unroll
        for (int sub = 0; sub < SUBS; ++sub) {
            // behind the last tap there are zeros
            const bool is_there = SUBS == 1 || t < (int)z.taps;
            const int a = is_there ? a_channel + channel : NO_CHANNEL, b = is_there ? b_channel + channel : NO_CHANNEL;
            const int fs = filter(x, s), fr = filter(y, r), ft = (is_there ? filter(z, t) : 0) + outer;
#pragma unroll
            for (int part = 0; part < PARTS; ++part) {
                LOAD_PIXELS(to_a + part * A_BYTES + sub * BM * ROW_BYTES, tables.a(phase, part), barrier, a, w, h, d,
                            image, s * (int)x.dilation, r * (int)y.dilation, is_there ? t * (int)z.dilation : 0);
                const u32 to = to_b + part * B_BYTES;
                if constexpr (B_MN_MAJOR) {
#pragma unroll
                    for (int n = 0; n < B_COLUMNS; n += 64)
                        tma_load_5d(to + n * 128 + sub * SUB_K * 128, tables.b(part), barrier, column + n, fs, fr, ft,
                                    b);
                } else {
#pragma unroll
                    for (int n = 0; n < BN; n += WN)
                        tma_load_5d(to + (sub * BN + n) * ROW_BYTES, tables.b(part), barrier, b, fs, fr, ft,
                                    column + n);
                }
            }
            channel += SUB_K;
            if (channel >= (int)tables.channel_blocks * SUB_K) {
                channel = 0;
                if (++s == (int)x.taps) s = 0, ++r;
                if (r == (int)y.taps) r = 0, ++t;
            }
        }
    }
};

#if PARTS == 2
// The sum at a row and a column of a tile, of the operands as they are.
FUNCTION f32 exact_sum(const Tables &tables, const Work &work, int row, int column, const f32 *data, const f32 *weights,
                       const Pack &of_data, const Pack &of_weights) {
    const Phase &phase = tables.phases[work.phase];
    const Position position(phase, row);
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
        for (int c = 0; c < (int)tables.channels; ++c)
            sum = fmaf(data[from + c * of_data.channel], weights[filter + c * along], sum);
    }
    return sum;
}
#endif

// wgrad: rows are channels of dy, columns taps with channels of x inside, each tap's extended to whole blocks of 64 or, where
// tiles end inside of such a block, to whole tiles; K runs over pixels. Both operands are read across: a stage has BK pixels, with their channels as neighbours.

// The tap along each axis, and the channel, that a column belongs to. In lines TAPS_AT_ONCE taps of a line
// of the filter are neighbours, of the same channels, then channels, then the next taps of the line, of which the last may
// not be there.
struct Column {
    int tap[3], channel;

    METHOD Column(const Tables &tables, int column) {
        const PlaceDivisors &by = tables.by;
        int line;
        if constexpr (SEGMENT) {
            const int block = column / 64, of_run = block / TAPS_AT_ONCE, run = quotient(of_run, by.column);
            channel = (of_run - run * (int)by.column.number) * 64 + column % 64;
            line = quotient(run, by.tap_s);
            tap[2] = (run - line * (int)by.tap_s.number) * TAPS_AT_ONCE + block - of_run * TAPS_AT_ONCE;
        } else {
            const int number = quotient(column, by.column);
            channel = column - number * (int)by.column.number;
            line = quotient(number, by.tap_s);
            tap[2] = number - line * (int)by.tap_s.number;
        }
        const int plane = quotient(line, by.tap_r);
        tap[1] = line - plane * (int)by.tap_r.number, tap[0] = plane;
    }
    METHOD bool is_there(const Tables &tables) const { return !SEGMENT || tap[2] < (int)tables.phases[0].axes[2].taps; }
};

// The position of a pixel, of a segment in lines.
FUNCTION Position position_of(const Tables &tables, int pixel) {
    const Divisor *by = tables.by.results;
    const int line = quotient(pixel, by[2]), plane = quotient(line, by[1]), image = quotient(plane, by[0]);
    Position position(image);
    position.at[2] = pixel - line * (int)by[2].number, position.at[1] = line - plane * (int)by[1].number;
    position.at[0] = plane - image * (int)by[0].number;
    return position;
}

// The columns of a tile.
struct Columns {
    int first, count;

    // The place of a column in the result, from that of its row on.
    METHOD i64 place(const Tables &tables, int column) const {
        const Column one(tables, first + column);
        return tables.tap_place + one.tap[0] * tables.tap_space[0] + one.tap[1] * tables.tap_space[1] +
               one.tap[2] * tables.tap_space[2] + one.channel * tables.result_column;
    }
    // Columns of the same tap that there are from this one on.
    METHOD int from(const Tables &tables, int column) const {
        if (column >= count) return 0;
        const Column one(tables, first + column);
        return one.is_there(tables) ? (int)tables.channels - one.channel : 0;
    }
};

// Whether splits of K may take its stages in turns: all thread blocks are at neighbouring pixels at the same time, whose
// windows overlap, and what L2 holds for the next taps is one region of the data. What is not finite is summed anew over a run
// of pixels, as it is where stages are scaled.
constexpr bool IS_INTERLEAVED = IS_SPLIT && PARTS == 1 && !(SEGMENT || IS_DIVIDED || DIVIDES_ROWS || IS_BLOCKWISE || HAS_PROLOGUE);

// From one stage of a piece of work to the next, in stages of K: 1, or as many as there are splits.
FUNCTION int stage_step(const Tables &tables) { return IS_INTERLEAVED ? (int)tables.stage_step : 1; }

struct Work {
    int group, first_row, first_block, last_block;
    Columns columns;
#if IS_STREAMED
    bool is_end;  // it has the last stage of a tile
#endif

    METHOD Work(const Tables &tables, int number) {
        const PlaceDivisors &by = tables.by;
#if IS_STREAMED
        const Streamed streamed(tables, number);
        number = streamed.tile, is_end = streamed.last == stages_of(tables);
#else
        int split = 0;
        if constexpr (IS_PART) {
            split = quotient(number, by.part), number -= split * (int)by.part.number;
            if constexpr (IS_CLUSTERED) {  // neighbours have parts of a tile
                const int part = number;
                number = split, split = part;
            }
        }
#endif
        group = quotient(number, by.tiles), number -= group * (int)by.tiles.number;
        const int outer = quotient(number, by.strip), inner = number - outer * (int)by.strip.number;
        const bool is_down_first = tables.strip == 1;
        const int row_tile = is_down_first ? inner : outer, column_tile = is_down_first ? outer : inner;
        first_row = row_tile * BM, columns.first = column_tile * BN;
        columns.count = min(BN, (int)tables.columns - columns.first);
#if IS_STREAMED
        first_block = streamed.first, last_block = streamed.last;
#else
        const int blocks = ((int)tables.phases[0].rows + BK - 1) / BK;
        first_block = split * (int)tables.blocks_of_split;
        last_block = max(first_block, min(blocks, first_block + (int)tables.blocks_of_split));
        if (stage_step(tables) > 1)  // as many as there are, counted from the first one
            first_block = split, last_block = split + quotient(blocks + (int)by.parts.number - 1 - split, by.parts);
#endif
    }
    METHOD int channel(int column, const Tables &) const { return column; }  // for no epilogue
};

// Rows are channels here: there are no pixels.
struct Pixel {
    METHOD Pixel(const Tables &, const Work &, int) {}
};

FUNCTION i64 row_place(const Tables &tables, const Work &work, int row) {
    return row < tables.rows ? work.group * tables.result_group + row * tables.result_row : NO_PLACE;
}

// Where the columns of a chunk lie, which are channels of one tap: three divisions, for which lanes have one chunk each.
struct BoxPlace {
    int channel, tap;  // -1 where there are no such columns

    METHOD void find(const Tables &tables, const Columns &columns, int first_column, int chunk) {
        const int column = first_column + chunk * CHUNK;
        const Column one(tables, columns.first + column);
        const int taps_s = (int)tables.phases[0].axes[2].taps, taps_r = (int)tables.phases[0].axes[1].taps;
        channel = one.channel;
        tap = column < columns.count && one.is_there(tables)
                  ? (one.tap[0] * taps_r + one.tap[1]) * taps_s + one.tap[2] : -1;
    }
    METHOD BoxPlace of_chunk(int chunk) const { return {shuffle(channel, chunk), shuffle(tap, chunk)}; }
};

// Stores a chunk of the rows from this one on.
FUNCTION void store_box(u32 from, const Tables &tables, const BoxPlace &place, int group, int row) {
    if constexpr (IS_RESULT_BOXES) {
        // rows behind the last are those of the next group
        if (place.tap < 0 || row >= (int)tables.rows) return;
        // the products of a batch have one tap each, in whose place they are numbered
        tma_store_3d(from, tables.result(), place.channel, place.tap + group * (int)tables.a_image_step,
                     row + group * (int)tables.a_channel_step);
    }
}

#if SEGMENT
// Brings the stages of a piece of work in lines: SEGMENTS segments of pixels each, of dy and, with what the taps reach
// further, of x. What is outside of a tensor is zero: dy behind the end of a line, all behind the last line.
struct Loader {
    Position at, step;  // of a segment, counted along the lines; of one segment
    int row, a_image, b_image, channels[WARPGROUPS_N], from[WARPGROUPS_N][3];
    const Axis &x, &y, &z;

    METHOD Loader(const Tables &tables, const Work &work)
        : at(position_of(tables, work.first_block * SEGMENTS)), step(position_of(tables, 1)),
          x(tables.phases[0].axes[2]), y(tables.phases[0].axes[1]), z(tables.phases[0].axes[0]) {
        row = work.first_row + work.group * (int)tables.a_channel_step;
        a_image = work.group * (int)tables.a_image_step, b_image = work.group * (int)tables.b_outer_step;
#pragma unroll
        for (int n = 0; n < WARPGROUPS_N; ++n) {
            const bool is_there = WN * n < work.columns.count;
            const Column one(tables, is_there ? work.columns.first + WN * n : 0);
            channels[n] = is_there ? one.channel + work.group * (int)tables.b_column_step : NO_CHANNEL;
#pragma unroll
            for (int axis = 0; axis < 3; ++axis)
                from[n][axis] = (int)tables.phases[0].axes[axis].base +
                                one.tap[axis] * (int)tables.phases[0].axes[axis].dilation;
        }
    }

    METHOD void load(const Tables &tables, u32 to_a, u32 to_b, u32 barrier) {
#pragma unroll
        for (int segment = 0; segment < SEGMENTS; ++segment) {
            const int w = at.at[2] * SEGMENT, h = at.at[1], d = at.at[0];
#pragma unroll
            for (int part = 0; part < PARTS; ++part) {
                const int further = IS_DIVIDED ? 32 * part : 0;  // of f32 a row has half as many channels
#pragma unroll
                for (int m = 0; m < BM; m += 64)
                    tma_load_5d(to_a + part * A_BYTES + m / 64 * SLAB_BYTES + segment * SEGMENT * 128,
                                tables.a(0, part), barrier, row + m + further, w, h, d, at.image + a_image);
#pragma unroll
                for (int n = 0; n < WARPGROUPS_N; ++n)
                    tma_load_5d(to_b + part * B_BYTES + n * WARPGROUP_B_BYTES + segment * SEGMENT_ROWS * 128,
                                tables.b(part), barrier, channels[n] + further, w + from[n][2],
                                h * (int)y.input_stride + from[n][1], d * (int)z.input_stride + from[n][0],
                                at.image + b_image);
            }
            at.add(tables.phases[0], step);
        }
    }
};
#else
// Brings the stages of a piece of work, one after the other: BK pixels each. One thread does this while the tensor cores
// work, so a step is a few additions; all else is in the constructor.
struct Loader {
    static constexpr int BOXES = (BN + 63) / 64;  // of 64 columns, of which the last one may go on behind the tile
    int pixel, row, a_image, b_image;
    bool is_linear;                      // pixels are copied by their number alone
    Position at, step;                   // else of the first pixel of the next stage; from one stage to the next
    int stride;                          // the same in pixels
    int channels[BOXES], taps[BOXES];    // of 64 columns: the first channel; offsets of 8 bits: s, r, t
    const Phase &phase;
    const Axis &x, &y, &z;

    METHOD Loader(const Tables &tables, const Work &work)
        : pixel(work.first_block * BK), is_linear(tables.is_a_linear && tables.is_b_linear),
          phase(tables.phases[0]), x(tables.phases[0].axes[2]), y(tables.phases[0].axes[1]), z(tables.phases[0].axes[0]) {
        stride = BK * stage_step(tables);
        at = step = Position(0);
        if (!is_linear) at = position_of(tables, pixel), step = position_of(tables, stride);
        row = work.first_row + work.group * (int)tables.a_channel_step;
        a_image = work.group * (int)tables.a_image_step, b_image = work.group * (int)tables.b_outer_step;
#pragma unroll
        for (int n = 0; n < BOXES; ++n) {
            const bool is_there = 64 * n < work.columns.count;
            const Column one(tables, is_there ? work.columns.first + 64 * n : 0);
            channels[n] = is_there ? one.channel + work.group * (int)tables.b_column_step : NO_CHANNEL;
            taps[n] = one.tap[2] * (int)x.dilation | one.tap[1] * (int)y.dilation << 8 |
                      one.tap[0] * (int)z.dilation << 16;
        }
    }

    METHOD void load(const Tables &tables, u32 to_a, u32 to_b, u32 barrier) {
        auto begin = [](const Axis &axis, int number) {
            return (int)axis.base + number * (int)axis.input_stride;
        };
        const int w = begin(x, at.at[2]), h = begin(y, at.at[1]), d = begin(z, at.at[0]);
#pragma unroll
        for (int part = 0; part < PARTS; ++part) {
            // of f32 a row has half as many channels
            const int of_b = IS_DIVIDED ? 32 * part : 0, of_a = IS_DIVIDED || DIVIDES_ROWS ? 32 * part : 0;
#pragma unroll
            for (int m = 0; m < BM; m += 64) {
                const u32 to = to_a + part * A_BYTES + m / 64 * SLAB_BYTES;
                if (tables.is_a_whole) {
                    tma_load_4d(to, tables.a(0, part), barrier, of_a, pixel, row / 64, a_image);
                    break;
                }
                if (tables.is_a_linear)
                    tma_load_3d(to, tables.a(0, part), barrier, row + m + of_a, pixel, a_image);
                else
                    load_pixels(tables, to, tables.a(0, part), barrier, row + m + of_a, at.at[2], at.at[1], at.at[0],
                                at.image + a_image, 0, 0, 0);
            }
#pragma unroll
            for (int n = 0; n < BOXES; ++n) {
                const u32 to = to_b + part * B_BYTES + n * SLAB_BYTES;
                if (tables.is_b_whole) {
                    tma_load_4d(to, tables.b(part), barrier, of_b, pixel, channels[0] / 64, b_image);
                    break;
                }
                if (tables.is_b_linear)
                    tma_load_3d(to, tables.b(part), barrier, channels[n] + of_b, pixel, b_image);
                else
                    load_pixels(tables, to, tables.b(part), barrier, channels[n] + of_b, w, h, d, at.image + b_image,
                                taps[n] & 255, taps[n] >> 8 & 255, taps[n] >> 16);
            }
        }
        skip(tables);
    }
    // Leaves the next stage to the other thread.
    METHOD void skip(const Tables &) {
        pixel += stride;
        if (!is_linear) at.add(phase, step);
    }
};
#endif

#if PARTS > 1
// The sum at a row and a column of a tile, of the operands as they are, over these pixels.
FUNCTION f32 exact_sum(const Tables &tables, const Work &work, int row, int column, const f32 *x, const f32 *dy,
                       const Pack &of_x, const Pack &of_dy, int first_pixel = 0, int last_pixel = -1) {
    const Phase &phase = tables.phases[0];
    const Column one(tables, work.columns.first + column);
    const int channel = one.channel + work.group * (int)tables.b_column_step;
    f32 sum = 0;
    if (last_pixel < 0) last_pixel = (int)phase.rows;
    for (int pixel = first_pixel; pixel < last_pixel; ++pixel) {
        Position position(phase, SEGMENT ? pixel / (SEGMENT ? SEGMENT : 1) : pixel);
        if constexpr (SEGMENT) {  // of a line, which may end inside of it
            position.at[2] = position.at[2] * SEGMENT + pixel % SEGMENT;
            if (!of_dy.has(2, position.at[2])) continue;
        }
        i64 from = (position.image + work.group * tables.b_outer_step) * of_x.image + channel * of_x.channel;
        i64 outer = (position.image + work.group * tables.a_image_step) * of_dy.image +
                    (row + work.group * tables.a_channel_step) * of_dy.channel;
        bool is_inside = true;
        for (int n = 0; n < 3; ++n) {
            const Axis &axis = phase.axes[n];
            const int at = (int)(axis.base + position.at[n] * axis.input_stride + one.tap[n] * axis.dilation);
            is_inside = is_inside && of_x.has(n, at);
            from += at * of_x.space[n];
            outer += position.at[n] * of_dy.space[n];
        }
        if (is_inside) sum = fmaf(x[from], dy[outer], sum);
    }
    return sum;
}
#endif

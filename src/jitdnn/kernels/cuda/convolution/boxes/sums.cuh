// Sums by channel of formulas of the results that leave by correlation.cu, of those as they are stored: functions
// `add_formulas` and `load_numbers` of sums.py know the formulas. These may read another tensor, at the place of the result,
// and NUMBERS numbers that each channel, or each channel of an image, has.
//
//     workspace    for each consumer of each thread block and each image that it has results of, [formula][COLUMNS * tiles]:
//                  of the thread blocks with the same columns number `sharer` has its part of image i at sharer + i.
//                  Thread blocks go through the images in order, so no two parts have one place.
//     shared       [warps of consumers][formula][COLUMNS]
//
// Everything is added in an order that sizes alone decide: in f32 what a thread meets in an image, the eight threads of a warp
// with the same columns, and warps; the consumers of all thread blocks in f64.

// Of a thread, which has eight columns of every 32.
typedef f32 Totals[2][COLUMNS / 4];
typedef f32 Numbers[NUMBERS + 1][COLUMNS / 4];
typedef uint4 Beside[PATCHES][2][COLUMNS / 32];
FUNCTION int column_of(int i) { return i / 8 * 32 + threadIdx.x % 4 * 8 + i % 8; }

// The numbers of a part.
FUNCTION int part_row(const Tables &tables) { return 2 * COLUMNS * (int)tables.tiles; }

// What a consumer writes its sums to.
struct Parts {
    u32 shared;
    f32 *first;
    int row;

    METHOD Parts(u32 shared_memory, const Tables &tables, u8 *workspace, int sharer, int first_column, int consumer)
        : shared(shared_memory + consumer * (4 * 2 * COLUMNS * 4)), row(CONSUMERS * part_row(tables)) {
        first = (f32 *)workspace + first_column + (i64)sharer * row + consumer * part_row(tables);
    }

    // Write the sums of an image, and begin anew.
    METHOD void leave(Totals &totals, int image, int consumer) const {
        const int lane = threadIdx.x % 32, warp = threadIdx.x / 32 % 4;
#pragma unroll
        for (int kind = 0; kind < 2; ++kind)
#pragma unroll
            for (int i = 0; i < COLUMNS / 4; ++i) {
                f32 total = totals[kind][i];
#pragma unroll
                for (int apart = 4; apart < 32; apart *= 2) total += shuffle_xor(total, apart);
                const u32 to = shared + 4 * ((2 * warp + kind) * COLUMNS + column_of(i));
                if (lane < 4) shared_store4(to, __float_as_uint(total));
                totals[kind][i] = 0;
            }
        warpgroup_barrier(consumer + 1);
        for (int i = threadIdx.x % 128; i < 2 * COLUMNS; i += 128) {
            f32 total = 0;
#pragma unroll
            for (int other = 0; other < 4; ++other)
                total += __uint_as_float(shared_load4(shared + 4 * (2 * other * COLUMNS + i)));
            first[(i64)image * row + i / COLUMNS * (row / (2 * CONSUMERS)) + i % COLUMNS] = total;
        }
        warpgroup_barrier(consumer + 1);
    }
};

// Adds up the parts of 32 channels, of an image or of all: 32 threads share a channel.
KERNEL2(1024, 1)
void add_sums(TABLES(Tables, tables), const u16 *first, const u16 *second, u16 *result, SUM_PARAMETERS u8 *workspace,
              SCALE alpha, SCALE beta) {
    __shared__ f64 of_warps[2][32][33];
    begin_launch();
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, blocks = ((int)tables.columns + 31) / 32;
    const int group = blockIdx.x / blocks, column = (blockIdx.x - group * blocks) * 32 + lane;
    const int row = part_row(tables), sharers = (int)tables.sharers, works = (int)(tables.works / tables.images);
    const int first_image = tables.is_by_image ? group : 0, end_image = tables.is_by_image ? group + 1 : (int)tables.images;
    const f32 *parts = (const f32 *)workspace + column;  // there are columns behind the last channel
    f64 total = 0, other_total = 0;
    for (int sharer = warp; sharer < sharers; sharer += 32) {
        const int begin = (int)(tables.works * sharer / sharers), end = (int)(tables.works * (sharer + 1) / sharers);
        const int end_there = min(end_image, (end - 1) / works + 1);
        for (int image = max(first_image, begin / works); image < end_there; ++image)
#pragma unroll
            for (int consumer = 0; consumer < CONSUMERS; ++consumer) {
                const f32 *part = parts + ((i64)(sharer + image) * CONSUMERS + consumer) * row;
                total += part[0], other_total += part[row / 2];
            }
    }
    of_warps[0][warp][lane] = total, of_warps[1][warp][lane] = other_total;
    __syncthreads();
    if (warp > 1 || column >= (int)tables.columns) return;
    total = 0;
    for (int other = 0; other < 32; ++other) total += of_warps[warp][other][lane];
    (warp ? second_sums : first_sums)[(i64)group * tables.columns + column] = (f32)total;
}

// The kernels: the product, and the sum of the splits of K.

KERNEL2(BLOCK_THREADS, 1)
void multiply(TABLES(Tables, tables), const DTYPE *first, const DTYPE *second, RESULT *result EPILOGUE_PARAMETERS,
              u8 *workspace, SCALE alpha, SCALE beta) {
    extern __shared__ __attribute__((aligned(1024))) u8 shared_memory[];
#if IS_SCALED
    const Scales scales(tables, workspace);
    if (PARTS == 2 && !scales.is_finite) return;  // add_exactly has the work
#endif
    const Ring ring = {smem_address(shared_memory)};
    if (threadIdx.x == 0) ring.initialize();
#if HAS_PROLOGUE
    begin_prologue(ring, tables, scale, shift);
#endif
    __syncthreads();
    // the same in all lanes of a warp, which the compiler cannot know
    const int warpgroup = shuffle((int)threadIdx.x / 128, 0);
    if (warpgroup == WARPGROUPS) {
        registers_release<PRODUCER_REGISTERS>();
        if (threadIdx.x == 128 * WARPGROUPS) produce(ring, tables);
    } else {
        registers_acquire<CONSUMER_REGISTERS>();
#if HAS_PROLOGUE
        PrologueConsumer consumer(ring, tables, warpgroup);
#else
        Consumer consumer(ring, warpgroup);
#endif
        Sums sums;
#if IS_SPLIT
        SUM *partials = (SUM *)(workspace + tables.partials);
        for (int number = blockIdx.x; number < (int)tables.works; number += gridDim.x) {
            const Work work(tables, number);
#if HAS_PROLOGUE
            consumer.begin(work);
#endif
            consumer.multiply<1>(sums, work.last_block - work.first_block, false, [](int) {});
            store_partial(sums, partials, tables, number, warpgroup);
        }
#else
        const u32 staging = ring.shared + STAGING_AT + warpgroup * 2 * BUFFER_BYTES;
        const u32 rows = ring.shared + ROWS_AT + warpgroup * ROWS * 64 * 8;
        const int rows_before = warpgroup / WARPGROUPS_N * ROWS * 64, first_column = warpgroup % WARPGROUPS_N * WN;
        const bool is_plain = !HAS_EPILOGUE && beta == 0;
        const bool is_leader = threadIdx.x % 128 == 0;
        u32 words[ROWS][WORDS];
        bool is_leaving = false;
        Columns columns = {0, 0};  // of the tile whose results are in `words`, as are its first row and its group
        int leaving_row = 0, leaving_group = 0, buffer = 0;
        auto send = [&](int chunk) {
            const u32 to = staging + buffer * BUFFER_BYTES;
            const int slab = chunk / CHUNKS_OF_SLAB, column = first_column + chunk % CHUNKS_OF_SLAB * CHUNK;
            buffer ^= 1;
            if constexpr (IS_RESULT_BOXES) {
                if (is_leader) tma_store_wait_read<1>();  // the store that had this buffer
                warpgroup_barrier(warpgroup + 1);
            }
            stage_chunk(to, words[slab] + chunk % CHUNKS_OF_SLAB * WORDS_OF_CHUNK);
            if constexpr (IS_RESULT_BOXES) {
                async_proxy_fence();
                warpgroup_barrier(warpgroup + 1);
                if (is_leader) {
                    store_box(to, tables, columns, column, leaving_group, leaving_row + slab * 64);
                    tma_store_commit();
                }
            } else {
                warpgroup_barrier(warpgroup + 1);  // the buffer is written; the one before it was read
                store_chunk(to, rows + slab * 64 * 8, tables, columns, column, result);
            }
        };
#if HAS_SUMS
        clear_sums(tables, workspace, warpgroup);
#endif
        for (int number = blockIdx.x; number < (int)tables.works; number += gridDim.x) {
            const Work work(tables, number);
#if HAS_PROLOGUE
            consumer.begin(work);
#endif
            consumer.multiply<CHUNKS>(sums, work.last_block - work.first_block, is_leaving, send);
            const int first_row = work.first_row + rows_before, row = threadIdx.x % 128;
            if (!IS_RESULT_BOXES || !is_plain) {
                warpgroup_barrier(warpgroup + 1);  // the rows of the tile before are no longer read
                if (row < ROWS * 64) shared_store_i64(rows + row * 8, row_place(tables, work, first_row + row));
                warpgroup_barrier(warpgroup + 1);
            }
#if IS_SCALED
#pragma unroll
            for (int slab = 0; slab < ROWS; ++slab)
#pragma unroll
                for (int i = 0; i < WN / 2; ++i) sums[slab][i] = scales.power.times(sums[slab][i]);
#endif
#if HAS_SUMS
            sum_columns(sums, tables, work, first_row, first_column, staging, warpgroup, workspace);
#endif
            if (!is_plain)
                finish(sums, tables, work, rows, first_row, first_column, result, (REAL)alpha,
                       (REAL)beta EPILOGUE_ARGUMENTS);
            round_results(sums, is_plain, (REAL)alpha, words);
            is_leaving = true, columns = work.columns, leaving_row = first_row, leaving_group = work.group;
        }
        if (is_leaving) {
#pragma unroll
            for (int chunk = 0; chunk < CHUNKS; ++chunk) send(chunk);
        }
        if (IS_RESULT_BOXES && is_leader) tma_store_wait_read<0>();
#endif
    }
}

#if IS_SPLIT
// A thread has the four sums that a thread of a consumer had; a block 256 of them.
KERNEL2(256, 4)
void reduce_partials(TABLES(Tables, tables), const DTYPE *first, const DTYPE *second,
                     RESULT *result EPILOGUE_PARAMETERS, u8 *workspace, SCALE alpha, SCALE beta) {
    constexpr int fours = BM * BN / 4;  // of a tile
    const i64 index = (i64)blockIdx.x * 256 + threadIdx.x, tiles = tables.works / tables.splits;
    const int tile = (int)(index / fours), in_tile = (int)(index % fours);
    const SUM *from = (const SUM *)(workspace + tables.partials) + index * 4;
    SUM sums[4] = {};
    auto add = [&](int n, u32 bits) {
        SUM more;
        sum_of_bits(bits, more);
        sums[n] += more;
    };
#pragma unroll 8
    for (int split = 0; split < (int)tables.splits; ++split) {
        const uint4 four = *(const uint4 *)(from + split * tiles * (BM * BN));
        add(0, four.x), add(1, four.y), add(2, four.z), add(3, four.w);
    }
#if IS_SCALED
    const Scales scales(tables, workspace);
    if (PARTS == 2 && !scales.is_finite) return;
#pragma unroll
    for (int n = 0; n < 4; ++n) sums[n] = scales.power.times(sums[n]);
#endif
    const Work work(tables, tile);
    const int thread = in_tile % 128, j = in_tile / 128 % (WN / 8), slab = in_tile / (128 * (WN / 8)) % ROWS;
    const int warpgroup = in_tile / (128 * (WN / 8) * ROWS);
#if HAS_SUMS
    f32 summed[4] = {};
#endif
#pragma unroll
    for (int half = 0; half < 2; ++half) {
        const int row = work.first_row + (warpgroup / WARPGROUPS_N * ROWS + slab) * 64 + thread / 32 * 16 +
                        half * 8 + thread % 32 / 4;
        const i64 place = row_place(tables, work, row);
        if (place == NO_PLACE) continue;
        const Pixel pixel(tables, work, row);
#pragma unroll
        for (int e = 0; e < 2; ++e) {
            const int column = warpgroup % WARPGROUPS_N * WN + 8 * j + thread % 4 * 2 + e;
            if (work.columns.from(tables, column) <= 0) continue;
            const i64 at = place + work.columns.place(tables, column);
            REAL value = (REAL)sums[2 * half + e];
#if HAS_SUMS
            summed[2 * half + e] = (f32)value;
#endif
            if constexpr (HAS_EPILOGUE) value = FINISH(value, pixel, work.channel(column, tables));
            if (beta != 0)
                value = blended(value, (REAL)alpha, (REAL)beta, (REAL)LOAD(RESULT, result, at));
            else
                value *= (REAL)alpha;
            STORE(RESULT, result, at, value);
        }
    }
#if HAS_SUMS
    const int of_result = work.first_row / 64 + warpgroup / WARPGROUPS_N * ROWS + slab;
    sum_block(summed, tables, work, of_result, warpgroup % WARPGROUPS_N * WN + 8 * j, workspace);
#endif
}
#endif

// The kernels: the product, and the sum of the splits of K.

// Whether there are tiles whose sums have no terms: of stride phases that no tap meets.
constexpr bool MAY_BE_EMPTY = PHASES > 1 && !PAIRED && IS_RESULT_VECTOR && !IS_SPLIT && !HAS_EPILOGUE && !HAS_SUMS && !SWAPS_OPERANDS;

// Zeros in place of a tile's results, of the rows and columns of one warpgroup: each lane finds the place of one row.
FUNCTION void store_zeros(const Tables &tables, const Work &work, int first_row, int first_column, RESULT *result) {
    constexpr int run = 16 / RESULT_BYTES, pieces = WN / run;
    static_assert(pieces % 2 == 0, "all lanes exchange places");
    const int lane = threadIdx.x % 32, warp = threadIdx.x % 128 / 32;
    const int columns = work.columns.from(tables, first_column);
    RESULT *to = result + work.columns.place(tables, first_column);
#pragma unroll 1
    for (int row = warp * 16; row < ROWS * 64; row += 64) {
        const i64 own = row_place(tables, work, first_row + row + lane % 16);
#pragma unroll 4
        for (int item = lane; item < 16 * pieces; item += 32) {
            const int of_row = item / pieces, piece = item - of_row * pieces;
            const i64 place = shuffle(own, of_row);
            if (place != NO_PLACE && piece * run < columns) store16(to + place + piece * run, uint4{0, 0, 0, 0});
        }
    }
}

#if IS_CLUSTERED
KERNEL_OF_ANY_CLUSTERS(BLOCK_THREADS)
#else
KERNEL2(BLOCK_THREADS, 1)
#endif
void multiply(TABLES(Tables, tables), const DTYPE *first, const DTYPE *second, RESULT *result EPILOGUE_PARAMETERS,
              u8 *workspace, SCALE alpha, SCALE beta) {
    extern __shared__ __attribute__((aligned(1024))) u8 shared_memory[];
    const Ring ring(smem_address(shared_memory), tables);
#if IS_CLUSTERED
    const Exchange exchange = {ring.shared, ring.behind() + EXCHANGE_BARRIER_AT};
    if (threadIdx.x == 0) exchange.initialize();
#endif
#if IS_STREAMED
    if (threadIdx.x == 0) {
        mbarrier_init(ring.behind() + LEFT_AT, 128 * WARPGROUPS);
        mbarrier_init(ring.behind() + ALL_LEFT_AT, 1);
    }
#endif
    if (threadIdx.x == 0) ring.initialize();
#if COPIERS > 1
    const Work first_work(tables, blockIdx.x);
    const Loader first_loader(tables, first_work);
#if TAKES_RING
    if (threadIdx.x == 0) ask_ahead(tables, first_work, first_loader);
#endif
#endif
    begin_launch();
#if IS_SCALED
    const Scales scales(tables, workspace);
#if PARTS > 1
    if (!scales.is_finite) {
        compute_exactly(tables, first, second, result EPILOGUE_ARGUMENTS, alpha, beta);
        return;
    }
#endif
#endif
#if HAS_PROLOGUE
    begin_prologue(ring, tables, scale, shift);
#endif
#if IS_DIVIDED
    begin_dividing(ring);
#endif
    __syncthreads();
    // the same in all lanes of a warp, which the compiler cannot know
    const int warpgroup = shuffle((int)threadIdx.x / 128, 0);
    if (warpgroup == WARPGROUPS + DIVIDERS) {
        registers_release<PRODUCER_REGISTERS>();
#if COPIERS > 1
        const int copier = shuffle((int)threadIdx.x / 32 % 4, 0);
        if (threadIdx.x % 32 == 0 && copier < COPIERS) produce(ring, tables, first_work, first_loader, copier);
#else
        if (threadIdx.x == 128 * (WARPGROUPS + DIVIDERS)) produce(ring, tables);
#endif
#if IS_STREAMED
        if (threadIdx.x == 128 * WARPGROUPS + 96) exchange_signals(ring, tables, workspace);
#endif
#if IS_CLUSTERED
        __syncwarp();
        cluster_arrive_relaxed();
        cluster_wait();
        cluster_arrive_relaxed();
        cluster_wait();
#endif
#if DIVIDERS
    } else if (warpgroup >= WARPGROUPS) {
        registers_release<DIVIDER_REGISTERS>();
        divide_all(ring, tables);
#endif
    } else {
        registers_acquire<CONSUMER_REGISTERS>();
#if HAS_PROLOGUE
        PrologueConsumer consumer(ring, tables, warpgroup);
#elif IS_DIVIDED
        DividingConsumer consumer(ring, warpgroup);
#elif IS_BLOCKWISE
        BlockwiseConsumer consumer(ring, warpgroup);
#elif DIVIDES_ROWS
        RowDividingConsumer consumer(ring, warpgroup, scales.exponent);
#elif SWAPS_OPERANDS
        SwappedConsumer consumer(ring, warpgroup);
#else
        Consumer consumer(ring, warpgroup);
#endif
        Sums sums;
#if IS_SPLIT
        SUM *partials = (SUM *)(workspace + tables.partials);
        for (Turns turns; turns.number < (int)tables.works; turns.next()) {
            const int number = turns.number;
            const Work work(tables, number);
#if HAS_PROLOGUE
            consumer.begin(work);
#elif IS_BLOCKWISE
            consumer.begin(tables, work, workspace);
#endif
            consumer.multiply<1>(sums, work.last_block - work.first_block, false, [](int) {});
#if (DIVIDES_ROWS && !IS_DIVIDED) || (IS_BLOCKWISE && PARTS == 2)
            if (!consumer.is_finite) sum_exactly(sums, tables, work, warpgroup, first, second);
#endif
#if IS_DIVIDED
            if (!consumer.is_finite)
                store_exact_partial(partials, tables, work, number, warpgroup, first, second);
            else
#endif
                store_partial(sums, partials, tables, number, warpgroup);
        }
#elif IS_CLUSTERED
        const Work work(tables, blockIdx.x);
#if IS_BLOCKWISE
        consumer.begin(tables, work, workspace);
#endif
        consumer.multiply<1>(sums, work.last_block - work.first_block, false, [](int) {});
#if IS_BLOCKWISE && PARTS == 2
        if (!consumer.is_finite) sum_exactly(sums, tables, work, warpgroup, first, second);
#endif
        exchange.wait_for_products();
#if IS_DIVIDED
        if (!consumer.is_finite)
            exchange.leave_exactly(tables, work, warpgroup, first, second);
        else
#endif
            exchange.leave(sums, warpgroup);
        cluster_arrive();
        cluster_wait();
        store_share(exchange, tables, work, warpgroup, result, workspace, alpha, beta EPILOGUE_ARGUMENTS);
        cluster_arrive_relaxed();
        cluster_wait();  // a block stays as long as others read what it left
#elif SWAPS_OPERANDS
        const u32 pixels = ring.behind() + ROWS_AT + warpgroup * WN * 8;
        for (Turns turns; turns.number < (int)tables.works; turns.next()) {
            const int number = turns.number;
            const Work work(tables, number);
            warpgroup_barrier(warpgroup + 1);  // the pixels of the tile before are no longer read
            for (int n = threadIdx.x % 128; n < WN; n += 128)
                shared_store_i64(pixels + n * 8, row_place(tables, work, first_pixel(work, warpgroup) + n));
            warpgroup_barrier(warpgroup + 1);
            consumer.multiply<1>(sums, work.last_block - work.first_block, false, [](int) {});
            store_pixels(sums, tables, work, pixels, warpgroup, result, alpha, beta);
        }
#else
        const u32 staging = ring.behind() + STAGING_AT + warpgroup * RESULT_BUFFERS * BUFFER_BYTES;
        const u32 rows = ring.behind() + ROWS_AT + warpgroup * ROWS * 64 * 8;
        const int rows_before = warpgroup / WARPGROUPS_N * ROWS * 64, first_column = warpgroup % WARPGROUPS_N * WN;
        const bool is_plain = !HAS_EPILOGUE && beta == 0 && !(ROUNDS_ALONE && alpha != 1);
        const bool is_leader = threadIdx.x % 128 == 0;
        u32 words[ROWS][WORDS];
        bool is_leaving = false;
        Columns columns = {0, 0};  // of the tile whose results are in `words`, as are its first row and its group
        int leaving_row = 0, leaving_group = 0, buffer = 0;
        BoxPlace boxes;
        auto send = [&](int chunk) {
            const u32 to = staging + buffer * BUFFER_BYTES;
            const int slab = chunk / CHUNKS_OF_SLAB, column = first_column + chunk % CHUNKS_OF_SLAB * CHUNK;
            if (IS_RESULT_BOXES && !(A_MN_MAJOR && B_MN_MAJOR) && column >= columns.count) return;  // it lies outside
            buffer ^= RESULT_BUFFERS - 1;
            if constexpr (IS_RESULT_BOXES) {
                if (is_leader) tma_store_wait_read<RESULT_BUFFERS - 1>();  // the store that had this buffer
                warpgroup_barrier(warpgroup + 1);
            } else if (RESULT_BUFFERS == 1) {
                warpgroup_barrier(warpgroup + 1);  // it was read
            }
            stage_chunk(to, words[slab] + chunk % CHUNKS_OF_SLAB * WORDS_OF_CHUNK);
            if constexpr (IS_RESULT_BOXES) {
                if (chunk == 0) boxes.find(tables, columns, first_column, threadIdx.x % 32 % CHUNKS_OF_SLAB);
                const BoxPlace place = boxes.of_chunk(chunk % CHUNKS_OF_SLAB);
                async_proxy_fence();
                warpgroup_barrier(warpgroup + 1);
                if (is_leader) {
                    store_box(to, tables, place, leaving_group, leaving_row + slab * 64);
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
        Turns turns;
#if IS_STREAMED
        const Work first_work(tables, turns.number);
        if (!first_work.is_end) {
            consumer.multiply<1>(sums, first_work.last_block - first_work.first_block, false, [](int) {});
            store_partial(sums, (SUM *)(workspace + tables.partials), tables, turns.number, warpgroup);
            mbarrier_arrive(ring.behind() + LEFT_AT);
            turns.next();
        }
#endif
        for (; turns.number < (int)tables.works; turns.next()) {
            const int number = turns.number;
            const Work work(tables, number);
#if IS_STREAMED
            if (work.first_block == work.last_block) break;
#endif
            if constexpr (MAY_BE_EMPTY) {
                if (is_plain && work.first_block == work.last_block && alpha - alpha == 0) {
                    store_zeros(tables, work, work.first_row + rows_before, first_column, result);
                    continue;
                }
            }
#if HAS_PROLOGUE
            consumer.begin(work);
#elif IS_BLOCKWISE
            consumer.begin(tables, work, workspace);
#elif PAIRED
            consumer.stages_of_both = shuffle(work.stages_of_both(tables), 0);  // or the compiler does not know that all lanes have the same
#endif
#if LEAVES_AT_ONCE
#if RESULT_BYTES == 2 && !IS_PROMOTED
            clear(sums);  // or the compiler keeps registers for them while results leave
#endif
            consumer.multiply<1>(sums, work.last_block - work.first_block, false, [](int) {});
#else
            consumer.multiply<CHUNKS>(sums, work.last_block - work.first_block, is_leaving, send);
#endif
#if IS_STREAMED
            if (work.first_block > 0) {
                mbarrier_wait(ring.behind() + ALL_LEFT_AT, 0);
                add_partials(sums, Streamed(tables, number).before(tables), tables, warpgroup, workspace);
            }
#endif
#if (DIVIDES_ROWS && !IS_DIVIDED) || (IS_BLOCKWISE && PARTS == 2)
            if (!consumer.is_finite) sum_exactly(sums, tables, work, warpgroup, first, second);
#endif
            const int first_row = work.first_row + rows_before, row = threadIdx.x % 128;
            if (!IS_RESULT_BOXES || (IS_WIDE ? beta != 0 : !is_plain)) {
                warpgroup_barrier(warpgroup + 1);  // the rows of the tile before are no longer read
                if (row < ROWS * 64) shared_store_i64(rows + row * 8, row_place(tables, work, first_row + row));
                warpgroup_barrier(warpgroup + 1);
            }
#if IS_SCALED && !DIVIDES_ROWS
#pragma unroll
            for (int slab = 0; slab < ROWS; ++slab)
#pragma unroll
                for (int i = 0; i < WN / 2; ++i) sums[slab][i] = scales.power.times(sums[slab][i]);
#endif
#if HAS_SUMS
            sum_columns(sums, tables, work, first_row, first_column, staging, warpgroup, workspace);
#endif
#if IS_WIDE
#if HAS_BROUGHT
            finish_brought(sums, consumer, tables, work, first_row, (REAL)alpha EPILOGUE_ARGUMENTS);
#else
            finish_wide(sums, tables, work, first_row, first_column, (REAL)alpha EPILOGUE_ARGUMENTS);
#endif
            if (beta != 0) add_before(sums, tables, work, rows, first_column, result, (REAL)beta);
#else
            if (!is_plain)
                finish(sums, tables, work, rows, first_row, first_column, result, (REAL)alpha,
                       (REAL)beta EPILOGUE_ARGUMENTS);
#endif
            round_results(sums, is_plain, (REAL)alpha, words);
            is_leaving = true, columns = work.columns, leaving_row = first_row, leaving_group = work.group;
#if LEAVES_AT_ONCE
            // fragments or sums take the registers of results on their way out: they leave before the next tile's products
#pragma unroll
            for (int chunk = 0; chunk < CHUNKS; ++chunk) send(chunk);
#endif
        }
#if !LEAVES_AT_ONCE
        if (is_leaving) {
#pragma unroll
            for (int chunk = 0; chunk < CHUNKS; ++chunk) send(chunk);
        }
#endif
        if (IS_RESULT_BOXES && is_leader) tma_store_wait_read<0>();
#endif
    }
}

#if IS_SPLIT
constexpr int SHARERS = HAS_SUMS ? 4 : 16, SHARER_THREADS = 512 / SHARERS;  // sums by channel are those of warpgroups

// A thread has the sums that a thread of a consumer had of 16 columns, 2 x 4 of them, of all splits or, where these are
// many, of a run of them: `sharing` warps have the same sums, and the first of them adds theirs, in order. Where
// results may be stored as vectors, four lanes exchange theirs of half precision, and each stores 8 columns of a row.
KERNEL2(REDUCERS, REDUCERS == 512 ? 2 : 4)
void reduce_partials(TABLES(Tables, tables), const DTYPE *first, const DTYPE *second,
                     RESULT *result EPILOGUE_PARAMETERS, u8 *workspace, SCALE alpha, SCALE beta) {
    constexpr int eights = BM * BN / 8;  // of a tile
    static_assert(WN % 16 == 0, "threads have pairs of 8 columns");
    begin_launch();
    // as in code.py
    const int sharing = REDUCERS == 512 && tables.splits >= 32 ? SHARERS : tables.splits >= 16 ? 4 : tables.splits >= 8 ? 2 : 1;
    const int number = blockIdx.x * (REDUCERS / SHARER_THREADS) + threadIdx.x / SHARER_THREADS, sharer = number % sharing;
    const i64 tiles = tables.works / tables.splits;
    const i64 index = (i64)(number / sharing) * SHARER_THREADS + threadIdx.x % SHARER_THREADS;
    const int tile = (int)(index / eights), in_tile = (int)(index % eights), thread = in_tile % 128;
    const bool is_there = tile < tiles;
    const int pair = in_tile / 128 % (WN / 16), slab = in_tile / (8 * WN) % ROWS;
    const int warpgroup = in_tile / (8 * WN * ROWS);
    const SUM *from = (const SUM *)(workspace + tables.partials) + (i64)tile * (BM * BN) +
                      (warpgroup * ROWS + slab) * SLAB_SUMS + pair * 1024 + thread * 4;
    SUM sums[2][4] = {};  // of 8 columns each: see store_partial
    const int splits = is_there ? (int)tables.splits : 0;
    const int begin = splits * sharer / sharing, end = splits * (sharer + 1) / sharing;
    auto load = [&](int split, int j) { return *(const uint4 *)(from + split * tiles * (BM * BN) + j * 512); };
    auto add = [&](const uint4 &four, int j) { add_four(sums[j], four); };
    // while the first are under way, where the results go is found out
    constexpr int AHEAD = 2;
    uint4 ahead[AHEAD][2];
#pragma unroll
    for (int n = 0; n < AHEAD; ++n)
        if (begin + n < end) ahead[n][0] = load(begin + n, 0), ahead[n][1] = load(begin + n, 1);
    const Work work(tables, tile);
#if !SWAPS_OPERANDS
    const int first_row = work.first_row + warpgroup / WARPGROUPS_N * ROWS * 64 + row_of(slab, 0, thread);
    const int first_column = warpgroup % WARPGROUPS_N * WN + 16 * pair;
    const ColumnsPlace place(tables, work, first_column);
#endif
#pragma unroll
    for (int n = 0; n < AHEAD; ++n)
        if (begin + n < end) add(ahead[n][0], 0), add(ahead[n][1], 1);
#pragma unroll 4
    for (int split = begin + AHEAD; split < end; ++split) add(load(split, 0), 0), add(load(split, 1), 1);
#if IS_WGRAD
    if (tables.discards && (u64)(workspace + tables.partials) % 128 == 0) {
        const u32 seen = sum_bits(sums[0][0]) | sum_bits(sums[1][0]);
        __syncwarp();  // a line is what eight lanes have read
        for (int split = begin; threadIdx.x % 8 == 0 && split < end; ++split)
#pragma unroll
            for (int j = 0; j < 2; ++j) discard_line(from + split * tiles * (BM * BN) + j * 512, seen);
    }
#endif
    if (sharing > 1) {
        __shared__ SUM of_sharers[8][REDUCERS];
        if (sharer)
#pragma unroll
            for (int n = 0; n < 8; ++n) of_sharers[n][threadIdx.x] = sums[n / 4][n % 4];
        __syncthreads();
        for (int other = 1; other < sharing; ++other)
#pragma unroll
            for (int n = 0; n < 8; ++n)
                if (!sharer) sums[n / 4][n % 4] += of_sharers[n][threadIdx.x + SHARER_THREADS * other];
    }
    const bool leads = is_there && !sharer;
#if !HAS_SUMS
    if (!leads) return;  // whole warps
#endif
#if IS_SCALED
    const Scales scales(tables, workspace);
    if (PARTS > 1 && !scales.is_finite) return;
#endif
#if IS_SCALED && !DIVIDES_ROWS
#pragma unroll
    for (int n = 0; n < 8; ++n) sums[n / 4][n % 4] = scales.power.times(sums[n / 4][n % 4]);
#endif
#if SWAPS_OPERANDS
    store_pixels(sums, tables, work, slab, pair, thread, warpgroup, result, alpha, beta);
    return;
#else
    f32 summed[2][4] = {};
    const RowsPlace rows(tables, work, first_row);
    store_columns(sums, summed, tables, work, rows, place, leads, result, alpha, beta EPILOGUE_ARGUMENTS);
#if HAS_SUMS
    const int of_result = work.first_row / 64 + warpgroup / WARPGROUPS_N * ROWS + slab;
#pragma unroll
    for (int j = 0; j < 2; ++j) {
        if (j) __syncthreads();  // what the first call shares is read
        sum_block(summed[j], tables, work, of_result, first_column + 8 * j, leads, workspace);
    }
#endif
#endif
}
#endif

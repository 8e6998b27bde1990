// The rows of the input that a thread of the sliding kernels reads in a step: forward, backward to the data and for
// wgrad.
//
// Macros, beside those of common.cuh:
//
//     macro            unit       meaning
//     THREAD_CHANNELS  channels   of a thread
//     TILE_COLUMNS, TILE_DEPTHS   columns and planes of the results of a thread
//     IN_PACK          columns    of the input that are neighbours in memory and read at once
//     OFFSET           type       of an offset within an image
//     IS_ALIGNED       0 or 1     whether all tensors are at multiples of what is read and stored at once

constexpr int ROWS_IN = H_SCATTERED ? 1 : H_STRIDE, STEPS = (H_TAPS + H_STRIDE - 1) / H_STRIDE;
constexpr int TAPS = D_TAPS * H_TAPS * W_TAPS;
constexpr int W_STRIDE_PHASE = W_START - floor_divide(W_START, W_STRIDE) * W_STRIDE;
constexpr int D_STRIDE_PHASE = D_START - floor_divide(D_START, D_STRIDE) * D_STRIDE;
constexpr int W_FIRST = first_coordinate(W_SCATTERED, W_STRIDE, W_STRIDE_PHASE, TILE_COLUMNS, W_TAPS);
constexpr int D_FIRST = first_coordinate(D_SCATTERED, D_STRIDE, D_STRIDE_PHASE, TILE_DEPTHS, D_TAPS);
constexpr int COLUMNS = last_coordinate(W_SCATTERED, W_STRIDE, W_STRIDE_PHASE, TILE_COLUMNS, W_TAPS) - W_FIRST + 1;
constexpr int PLANES = last_coordinate(D_SCATTERED, D_STRIDE, D_STRIDE_PHASE, TILE_DEPTHS, D_TAPS) - D_FIRST + 1;

static constexpr __device__ bool is_column_read(int j) {
    return is_read(W_SCATTERED, W_STRIDE, W_STRIDE_PHASE, TILE_COLUMNS, W_TAPS, W_FIRST + j);
}
static constexpr __device__ bool is_plane_read(int e) {
    return is_read(D_SCATTERED, D_STRIDE, D_STRIDE_PHASE, TILE_DEPTHS, D_TAPS, D_FIRST + e);
}

// Of the columns that a tile reads, those that no other tile begins with: where neighbouring columns are neighbours in
// memory, they are read in packs of IN_PACK.
constexpr int OWN = IN_PACK > 1 ? -W_IN_ORIGIN : 0;
static constexpr __device__ bool is_in_pack(int j) {
    return j >= OWN && j < OWN + TILE_COLUMNS * W_STRIDE && OWN + (j - OWN) / IN_PACK * IN_PACK + IN_PACK <= COLUMNS;
}
template <int count>
FUNCTION void get_column(const Pack<count> &columns, int i, f32 (&values)[THREAD_CHANNELS]) {
#if IN_PACK > 1
    Pack<1> one;
    pick(columns, i, one);
    one.get(values);
#endif
}

// Rows in registers as they were loaded: they are converted where they are used, since any use waits for the load.
struct InputRows {
    static constexpr bool is_packed = IN_PACK > 1 && IS_ALIGNED;
    Pack<THREAD_CHANNELS> single[ROWS_IN][PLANES][COLUMNS];
    Pack<IN_PACK == 1 ? THREAD_CHANNELS : IN_PACK> several[ROWS_IN][PLANES][TILE_COLUMNS * W_STRIDE / IN_PACK];

    // the rows of `step`, for a tile that reads from plane l0 and column m0 on; zeros outside of the input, and unless
    // `is_step`
    __device__ __forceinline__ void load(const element *__restrict__ source, int step, bool is_step, int l0, int m0,
                                         int phase_d, int phase_h, int phase_w) {
#pragma unroll
        for (int u = 0; u < ROWS_IN; u++) {
            int h = IN_POSITION(H, step * ROWS_IN + u, phase_h);
#pragma unroll
            for (int e = 0; e < PLANES; e++) {
                if (!is_plane_read(e)) continue;
                int d = IN_POSITION(D, l0 + e, phase_d);
                bool inside = is_step && IN_HAS(H, h) && IN_HAS(D, d);
                const element *row = source + ((OFFSET)h * (OFFSET)H_IN_STEP + (OFFSET)d * (OFFSET)D_IN_STEP);
#pragma unroll
                for (int j = 0; j < COLUMNS; j++) {
                    bool in_pack = is_packed && is_in_pack(j);
                    if (!is_column_read(j) && !in_pack) continue;
                    if (in_pack && (j - OWN) % IN_PACK != 0) continue;
                    int q = IN_POSITION(W, m0 + j, phase_w);
                    bool is_there = inside && IN_HAS(W, q);
                    const element *location = row + (OFFSET)q * (OFFSET)W_IN_STEP;
                    if (in_pack)
                        fetch<true>(several[u][e][in_pack ? (j - OWN) / IN_PACK : 0], location, is_there);
                    else
                        fetch<IS_ALIGNED>(single[u][e][j], location, is_there);
                }
            }
        }
    }
    template <bool whole, int count>
    static __device__ __forceinline__ void fetch(Pack<count> &pack, const element *location, bool is_there) {
        if (is_there)
            pack.template load<whole>(location);
        else
            pack.zero();
    }
    __device__ __forceinline__ void get(f32 (&values)[ROWS_IN][PLANES][COLUMNS][THREAD_CHANNELS]) const {
#pragma unroll
        for (int u = 0; u < ROWS_IN; u++)
#pragma unroll
            for (int e = 0; e < PLANES; e++)
#pragma unroll
                for (int j = 0; j < COLUMNS; j++) {
                    bool in_pack = is_packed && is_in_pack(j);
                    if (!is_plane_read(e) || !is_column_read(j)) continue;
                    if (in_pack)
                        get_column(several[u][e][in_pack ? (j - OWN) / IN_PACK : 0], (j - OWN) % IN_PACK,
                                   values[u][e][j]);
                    else
                        single[u][e][j].get(values[u][e][j]);
                }
    }
};

// Divides the f32 numbers of two tensors into halves, three channels for one, so that products of halves add up to those
// of f32 numbers but for 2^-22 of the largest:
//
//     of x   first   rest    first          x w = (first + rest) (first' + rest')
//     of w   first   first   rest
//
// A number times a power of two that brings the tensor's largest finite one to 2^13 is rounded to half precision, and so
// is what that leaves. An infinity stands in the first channel alone, where it meets no zero but that of a number that is
// zero: others that are far too small become the smallest there is.
//
// Rows of the copies have their channels innermost, and begin at multiples of 16 bytes.

constexpr int BLOCKS_OF_X = 256, BLOCKS_OF_W = 8;  // of find_maxima; as in halves.py

// Extents and strides of a tensor, elements of a row of its copy, and, where it is one run of memory, how many elements it
// has and the first of them (`low`).
struct Tensor { int images, channels, d, h, w, n_step, c_step, d_step, h_step, w_step, pitch, run, low; };
#define OF_TENSOR(a)                                                                                              \
    i64 a##_images, i64 a##_channels, i64 a##_d, i64 a##_h, i64 a##_w, i64 a##_n_step, i64 a##_c_step,            \
        i64 a##_d_step, i64 a##_h_step, i64 a##_w_step, i64 a##_pitch, i64 a##_run, i64 a##_low
#define TENSOR(a)                                                                                                 \
    {(int)a##_images, (int)a##_channels, (int)a##_d, (int)a##_h, (int)a##_w, (int)a##_n_step, (int)a##_c_step,    \
     (int)a##_d_step, (int)a##_h_step, (int)a##_w_step, (int)a##_pitch, (int)a##_run, (int)a##_low}
// w_at, header_at: where the copy of w and the header begin in the workspace
#define NUMBERS OF_TENSOR(x), OF_TENSOR(w), i64 w_at, i64 header_at

FUNCTION u32 *maxima_of(u8 *header) { return (u32 *)header + 8; }

// The largest finite number, as bits.
FUNCTION u32 larger(u32 most, u32 value) {
    const u32 bits = value & 0x7fffffffu;
    return bits < INFINITE ? max(most, bits) : most;
}

// Of what block `block` of so many sees of a tensor.
FUNCTION u32 most_of_tensor(const f32 *from, const Tensor of, int block, int blocks) {
    u32 most = 0;
    const int first = block * 256 + threadIdx.x, step = blocks * 256;
    if (of.run) {
        const f32 *run = from + of.low;
        const int before = min((int)((16 - ((u64)run & 15)) % 16 / 4), of.run);  // elements until a multiple of 16 bytes
        const int fours = (of.run - before) / 4, behind = before + fours * 4;
        if (first < before) most = larger(most, __float_as_uint(run[first]));
        if (behind + first < of.run) most = larger(most, __float_as_uint(run[behind + first]));
#pragma unroll 8
        for (int i = first; i < fours; i += step) {
            const uint4 four = load16(run + before + i * 4);
            most = larger(larger(larger(larger(most, four.x), four.y), four.z), four.w);
        }
        return most;
    }
    const int count = of.images * of.channels * of.d * of.h * of.w;
#pragma unroll 4
    for (int i = first; i < count; i += step) {
        const u32 column = (u32)i % of.w, line = (u32)i / of.w, h = line % of.h, rest = line / of.h, d = rest % of.d;
        const u32 plane = rest / of.d, c = plane % of.channels, n = plane / of.channels;
        most = larger(most, __float_as_uint(from[(int)n * of.n_step + (int)c * of.c_step + (int)d * of.d_step +
                                                 (int)h * of.h_step + (int)column * of.w_step]));
    }
    return most;
}

KERNEL(256)
void find_maxima(const f32 *RESTRICT x, const f32 *RESTRICT w, u8 *workspace, f64 alpha, f64 beta, NUMBERS) {
    begin_launch();
    const int block = blockIdx.x;
    u32 most;
    if (block < BLOCKS_OF_X)
        most = most_of_tensor(x, TENSOR(x), block, BLOCKS_OF_X);
    else
        most = most_of_tensor(w, TENSOR(w), block - BLOCKS_OF_X, BLOCKS_OF_W);
    most = most_of_block<8>(most).x;
    if (threadIdx.x == 0) maxima_of(workspace + header_at)[block] = most;
}

// Divides eight neighbours of a copy.
template <bool is_w>
FUNCTION void divide_eight(const f32 *from, const Tensor of, u16 *to, u32 chunk, int shift) {
    const u32 chunks = of.pitch / 8, line = chunk / chunks, first = (chunk - line * chunks) * 8;
    const u32 h = line % of.h, rest = line / of.h, d = rest % of.d, n = rest / of.d;
    if (n >= (u32)of.images) return;
    const f32 *row = from + (int)n * of.n_step + (int)d * of.d_step + (int)h * of.h_step;
    int column = first / (3 * of.channels), c = first - column * (3 * of.channels), part = c / of.channels;
    c -= part * of.channels;
    f32 values[8];
    u32 kinds[8];  // the part of each, 3 behind the last column
#pragma unroll
    for (int e = 0; e < 8; e++) {
        const bool is_there = column < of.w;
        kinds[e] = is_there ? part : 3;
        values[e] = row[is_there ? column * of.w_step + c * of.c_step : 0];
        if (++c == of.channels) {
            c = 0;
            if (++part == 3) part = 0, column++;
        }
    }
    u32 words[4];
#pragma unroll
    for (int e = 0; e < 8; e++) {
        const f32 value = values[e], scaled = times_power(value, shift);
        u32 whole = to_f16(scaled);
        const bool is_infinite = fabsf(value) == __uint_as_float(INFINITE);
        const u32 rest = to_f16(scaled - to_f32_f16((u16)whole));
        if ((whole & 0x7fffu) == 0 && value != 0.0f) whole |= 1u;
        u32 half = (kinds[e] == 1) == is_w ? whole : rest;
        if (kinds[e] == 0) half = whole;
        if (kinds[e] == 3 || (kinds[e] > 0 && is_infinite)) half = 0;
        words[e / 2] = e % 2 ? words[e / 2] | half << 16 : half;
    }
    store16(to + chunk * 8, make_uint4(words[0], words[1], words[2], words[3]));
}

KERNEL(256)
void divide_numbers(const f32 *RESTRICT x, const f32 *RESTRICT w, u8 *workspace, f64 alpha, f64 beta, NUMBERS) {
    begin_launch();
    const Tensor of_x = TENSOR(x), of_w = TENSOR(w);
    const int blocks_x = (of_x.images * of_x.d * of_x.h * (of_x.pitch / 8) + 255) / 256, block = blockIdx.x;
    const u32 *maxima = maxima_of(workspace + header_at);
    const uint2 most = most_of_block<8>(maxima[threadIdx.x], maxima[BLOCKS_OF_X + threadIdx.x % BLOCKS_OF_W]);
    const int shifts[2] = {shift_for(most.x), shift_for(most.y)};
    if (block == 0 && threadIdx.x == 0) {
        i32 *header = (i32 *)(workspace + header_at);
        header[0] = shifts[0], header[1] = shifts[1];
    }
    if (block < blocks_x)
        divide_eight<false>(x, of_x, (u16 *)workspace, block * 256 + threadIdx.x, shifts[0]);
    else
        divide_eight<true>(w, of_w, (u16 *)(workspace + w_at), (block - blocks_x) * 256 + threadIdx.x, shifts[1]);
}

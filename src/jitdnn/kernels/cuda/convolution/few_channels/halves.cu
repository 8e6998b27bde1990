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

struct Tensor {
    i64 images, channels, d, h, w, steps[5], pitch;
};
#define OF_TENSOR(a)                                                                                               \
    i64 a##_images, i64 a##_channels, i64 a##_d, i64 a##_h, i64 a##_w, i64 a##_n_step, i64 a##_c_step,             \
        i64 a##_d_step, i64 a##_h_step, i64 a##_w_step, i64 a##_pitch
#define TENSOR(a)                                                                                                  \
    {a##_images, a##_channels, a##_d, a##_h, a##_w, {a##_n_step, a##_c_step, a##_d_step, a##_h_step, a##_w_step},  \
     a##_pitch}
// w_at, header_at: where the copy of w and the header begin in the workspace
#define NUMBERS OF_TENSOR(x), OF_TENSOR(w), i64 w_at, i64 header_at

FUNCTION u32 *maxima_of(u8 *header) { return (u32 *)header + 8; }

// The largest finite number, as bits.
FUNCTION u32 larger(u32 most, f32 value) {
    const u32 bits = __float_as_uint(value) & 0x7fffffffu;
    return bits < INFINITE ? max(most, bits) : most;
}

KERNEL(256)
void find_maxima(const f32 *RESTRICT x, const f32 *RESTRICT w, u8 *workspace, f64 alpha, f64 beta, NUMBERS) {
    begin_launch();
    __shared__ u32 found[8];
    const bool is_w = blockIdx.x >= BLOCKS_OF_X;
    const Tensor of_x = TENSOR(x), of_w = TENSOR(w), &of = is_w ? of_w : of_x;
    const f32 *from = is_w ? w : x;
    const int block = is_w ? blockIdx.x - BLOCKS_OF_X : blockIdx.x, blocks = is_w ? BLOCKS_OF_W : BLOCKS_OF_X;
    const int lines = (int)(of.images * of.channels * of.d * of.h), warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const int across = (int)of.w, step = (int)of.steps[4];
    u32 most = 0;
    // a warp takes a line of one channel
#pragma unroll 1
    for (int line = block * 8 + warp; line < lines; line += blocks * 8) {
        const u32 h = (u32)line % (u32)of.h, rest = (u32)line / (u32)of.h, d = rest % (u32)of.d;
        const u32 plane = rest / (u32)of.d, c = plane % (u32)of.channels, n = plane / (u32)of.channels;
        const f32 *start = from + n * of.steps[0] + c * of.steps[1] + d * of.steps[2] + h * of.steps[3];
#pragma unroll 4
        for (int column = lane; column < across; column += 32) most = larger(most, start[column * step]);
    }
    most = warp_max(most);
    if (lane == 0) found[warp] = most;
    __syncthreads();
    if (threadIdx.x == 0) {
        for (int other = 0; other < 8; other++) most = max(most, found[other]);
        maxima_of(workspace + header_at)[blockIdx.x] = most;
    }
}

KERNEL(256)
void divide_numbers(const f32 *RESTRICT x, const f32 *RESTRICT w, u8 *workspace, f64 alpha, f64 beta, NUMBERS) {
    begin_launch();
    __shared__ u32 found[2][8];
    const Tensor of_x = TENSOR(x), of_w = TENSOR(w);
    const int chunks_x = (int)(of_x.images * of_x.d * of_x.h * (of_x.pitch / 8)), blocks_x = (chunks_x + 255) / 256;
    const bool is_w = (int)blockIdx.x >= blocks_x;
    const Tensor &of = is_w ? of_w : of_x;
    const u32 *maxima = maxima_of(workspace + header_at);
    const u32 most_x = warp_max(maxima[threadIdx.x]), most_w = warp_max(maxima[BLOCKS_OF_X + threadIdx.x % BLOCKS_OF_W]);
    if (threadIdx.x % 32 == 0) found[0][threadIdx.x / 32] = most_x, found[1][threadIdx.x / 32] = most_w;
    __syncthreads();
    u32 most[2] = {0, 0};
#pragma unroll
    for (int other = 0; other < 8; other++)
        most[0] = max(most[0], found[0][other]), most[1] = max(most[1], found[1][other]);
    const int shift = shift_for(is_w ? most[1] : most[0]);
    if (threadIdx.x == 0 && (blockIdx.x == 0 || (int)blockIdx.x == blocks_x))
        ((i32 *)(workspace + header_at))[is_w] = shift;
    const u32 chunk = (blockIdx.x - (is_w ? blocks_x : 0)) * 256 + threadIdx.x;
    const u32 chunks = (u32)(of.pitch / 8), line = chunk / chunks, first = (chunk - line * chunks) * 8;
    if (line >= (u32)(of.images * of.d * of.h)) return;
    const u32 h = line % (u32)of.h, rest = line / (u32)of.h, d = rest % (u32)of.d, n = rest / (u32)of.d;
    const f32 *from = (is_w ? w : x) + n * of.steps[0] + d * of.steps[2] + h * of.steps[3];
    const u32 channels = 3 * (u32)of.channels;
    u32 column = first / channels, channel = first - column * channels, words[4];
#pragma unroll
    for (int e = 0; e < 8; e++) {
        u32 half = 0;
        if (column < (u32)of.w) {
            const u32 part = channel / (u32)of.channels, c = channel - part * (u32)of.channels;
            const f32 value = from[column * of.steps[4] + c * of.steps[1]], scaled = times_power(value, shift);
            u32 whole = to_f16(scaled);
            if ((whole & 0x7fffu) == 0 && value != 0.0f) whole |= 1u;
            const bool is_infinite = fabsf(value) == __uint_as_float(INFINITE);
            if (part == 0)
                half = whole;
            else if (!is_infinite)
                half = (part == 1) == is_w ? whole : (u32)to_f16(scaled - to_f32_f16((u16)whole));
        }
        words[e / 2] = e % 2 ? words[e / 2] | half << 16 : half;
        if (++channel == channels) channel = 0, column++;
    }
    store16(workspace + (is_w ? w_at : 0) + (i64)chunk * 16, make_uint4(words[0], words[1], words[2], words[3]));
}

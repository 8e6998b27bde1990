// Windows of few pixels: copied to the rows of a matrix (im2col), and products of all pixels and taps added where they
// belong (col2im). Channels are innermost, four to a thread.
//
// Of each axis there are, of the convolution as it is forward: extents of the data, of the result and of the filter,
// stride, dilation and padding, and elements from one position of the data (`x_step`), or the data's gradient, to the next.

struct WindowAxis {
    i64 extent, results, taps, stride, dilation, before, step;
};
#define OF_AXIS(a) \
    i64 a##_extent, i64 a##_results, i64 a##_taps, i64 a##_stride, i64 a##_dilation, i64 a##_before, i64 a##_step
#define AXIS(a) {a##_extent, a##_results, a##_taps, a##_stride, a##_dilation, a##_before, a##_step}
#define NUMBERS i64 images, i64 channels, i64 image_step, OF_AXIS(d), OF_AXIS(h), OF_AXIS(w)

FUNCTION uint4 load_four(const f32 *from) {
    if ((u64)from % 16 == 0) return load16(from);
    return uint4{__float_as_uint(from[0]), __float_as_uint(from[1]), __float_as_uint(from[2]), __float_as_uint(from[3])};
}

// rows[image, result][tap][channel], zeros outside of x.
KERNEL(256)
void copy_windows(const f32 *x, f32 *rows, u8 *workspace, f64 alpha, f64 beta, NUMBERS) {
    begin_launch();
    const WindowAxis axes[3] = {AXIS(d), AXIS(h), AXIS(w)};
    const u32 vectors = (u32)channels / 4, unit = blockIdx.x * 256u + threadIdx.x, pair = unit / vectors;
    const u32 taps = (u32)(d_taps * h_taps * w_taps);
    u32 result = pair / taps, tap = pair - result * taps;
    bool is_inside = true;
    i64 place = (unit - pair * vectors) * 4;
#pragma unroll
    for (int n = 2; n >= 0; --n) {
        const WindowAxis &axis = axes[n];
        const u32 next_result = result / (u32)axis.results, next_tap = tap / (u32)axis.taps;
        const int at = (int)(result - next_result * axis.results) * (int)axis.stride +
                       (int)(tap - next_tap * axis.taps) * (int)axis.dilation - (int)axis.before;
        is_inside = is_inside && at >= 0 && at < axis.extent;
        place += at * axis.step;
        result = next_result, tap = next_tap;
    }
    if (result >= images) return;
    store16(rows + (i64)unit * 4, is_inside ? load_four(x + place + result * image_step) : uint4{0, 0, 0, 0});
}

// Whether position `at` of dx was read by a tap, and for which result: `from`.
FUNCTION bool is_met(const WindowAxis &axis, int at, int tap, int &from) {
    const int reach = at + (int)axis.before - tap * (int)axis.dilation;
    from = reach / (int)axis.stride;
    return reach >= 0 && from * (int)axis.stride == reach && from < axis.results;
}

// dx of products[image, result][tap][channel], in the order of the taps.
KERNEL(256)
void add_windows(const f32 *products, f32 *dx, u8 *workspace, f64 alpha, f64 beta, NUMBERS) {
    begin_launch();
    const WindowAxis axes[3] = {AXIS(d), AXIS(h), AXIS(w)};
    const u32 vectors = (u32)channels / 4, unit = blockIdx.x * 256u + threadIdx.x;
    u32 pixel = unit / vectors;
    const u32 channel = (unit - pixel * vectors) * 4, taps = (u32)(d_taps * h_taps * w_taps);
    int at[3];
    i64 place = channel;
#pragma unroll
    for (int n = 2; n >= 0; --n) {
        const u32 next = pixel / (u32)axes[n].extent;
        at[n] = (int)(pixel - next * axes[n].extent);
        place += at[n] * axes[n].step;
        pixel = next;
    }
    if (pixel >= images) return;
    f32 sums[4] = {};
    // where there are strides most taps meet nothing, and are left out a whole axis at a time
    int from[3];  // the result that a tap meets, along each axis
    for (int d = 0; d < (int)d_taps; ++d) {
        if (!is_met(axes[0], at[0], d, from[0])) continue;
        for (int h = 0; h < (int)h_taps; ++h) {
            if (!is_met(axes[1], at[1], h, from[1])) continue;
            const i64 line = (pixel * axes[0].results + from[0]) * axes[1].results + from[1];
            for (int w = 0; w < (int)w_taps; ++w) {
                if (!is_met(axes[2], at[2], w, from[2])) continue;
                const i64 row = line * axes[2].results + from[2];
                const u32 tap = ((u32)d * (u32)h_taps + h) * (u32)w_taps + w;
                const uint4 four = load16(products + (row * taps + tap) * channels + channel);
                sums[0] += __uint_as_float(four.x), sums[1] += __uint_as_float(four.y);
                sums[2] += __uint_as_float(four.z), sums[3] += __uint_as_float(four.w);
            }
        }
    }
    f32 *to = dx + place + pixel * image_step;
#pragma unroll
    for (int n = 0; n < 4; ++n) {
        f32 value = (f32)alpha * sums[n];
        if (beta != 0) value += (f32)beta * to[n];
        sums[n] = value;
    }
    if ((u64)to % 16 == 0) {
        store16(to, uint4{__float_as_uint(sums[0]), __float_as_uint(sums[1]), __float_as_uint(sums[2]), __float_as_uint(sums[3])});
    } else {
#pragma unroll
        for (int n = 0; n < 4; ++n) to[n] = sums[n];
    }
}

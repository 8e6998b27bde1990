// Copies f32 tensors of any strides into the workspace as numbers of half precision, with their channels innermost and
// extended by zeros to a multiple of 16 bytes: packed[image][pixel][channel]. A block takes 64 pixels, counted through all
// images, of 64 channels: it reads them once, brings the largest number to 2^13 by a power of two, and leaves the exponent
// for the product, exponents[channels / 64][pixels / 64]. With PARTS 2 the copy is two, as in pack.cu: a number and what
// half precision rounds away.
//
// With PARTS 1 what is not finite stays what it is, and of numbers that are lost the smallest there is is left, since
// infinity times zero is no number. With PARTS 2 the exponent says NOT_FINITE, and the product computes otherwise.

FUNCTION void pack_block(const Tables &tables, int number, const f32 *tensor, u8 *workspace, int block) {
    const Pack form = chosen(number, tables.packs[0], tables.packs[1]);
    i32 *const exponents = (i32 *)(workspace + (number ? tables.shifts[1] : tables.shifts[0]));
    const int wide = ((int)form.packed_channels + 63) / 64, thread = threadIdx.x;
    const i64 pixels = form.images * form.extents[0] * form.extents[1] * form.extents[2];
    const int runs = (int)((pixels + 63) / 64), run = block / wide, of_channels = block - run * wide;
    const i64 first_pixel = (i64)run * 64;
    const int first_channel = of_channels * 64, here = (int)min((i64)64, pixels - first_pixel);
    const int channels = min(64, (int)form.channels - first_channel);
    // 16 threads have a pixel: four of its channels each, of every 16th pixel
    const int own_pixel = thread / 16, own_channel = thread % 16 * 4;
    __shared__ i64 places[64];
    const bool is_flat = form.is_flat;
    if (!is_flat) {
        if (thread < 64) places[thread] = form.pixel((u32)(first_pixel + min(thread, here - 1)));
        __syncthreads();
    }
    uint4 fours[4];
    const bool is_aligned = form.channel == 1 && (u64)tensor % 16 == 0 &&
                            (form.channels | form.image | form.space[0] | form.space[1] | form.space[2]) % 4 == 0;
    if (is_aligned) {
#pragma unroll
        for (int turn = 0; turn < 4; ++turn) {
            const int pixel = own_pixel + 16 * turn;
            const bool is_there = pixel < here && own_channel < channels;
            const i64 place = is_flat ? (first_pixel + pixel) * form.channels : is_there ? places[pixel] : 0;
            fours[turn] = is_there ? load16_streaming(tensor + place + first_channel + own_channel) : uint4{0, 0, 0, 0};
        }
    } else {
        // neighbouring threads read neighbours of the tensor
        __shared__ f32 tile[64][65];  // by channels, then pixels
        const bool is_innermost = form.channel == 1;
        const int fixed = thread % 64;
#pragma unroll 4
        for (int other = thread / 64; other < 64; other += 4) {
            const int pixel = is_innermost ? other : fixed, channel = is_innermost ? fixed : other;
            const bool is_there = pixel < here && channel < channels;
            const i64 place = is_flat ? (first_pixel + pixel) * form.channels : is_there ? places[pixel] : 0;
            tile[channel][pixel] = is_there ? tensor[place + (first_channel + channel) * form.channel] : 0.0f;
        }
        __syncthreads();
#pragma unroll
        for (int turn = 0; turn < 4; ++turn) {
            const int pixel = own_pixel + 16 * turn;
            auto bits = [&](int n) { return __float_as_uint(tile[own_channel + n][pixel]); };
            fours[turn] = uint4{bits(0), bits(1), bits(2), bits(3)};
        }
    }
    u32 most = 0;
    bool is_finite = true;
    auto take = [&](u32 bits) {
        bits &= 0x7fffffffu;
        is_finite = is_finite && bits < 0x7f800000u;
        most = max(most, bits < 0x7f800000u ? bits : 0);
    };
#pragma unroll
    for (int turn = 0; turn < 4; ++turn) take(fours[turn].x), take(fours[turn].y), take(fours[turn].z), take(fours[turn].w);
    __shared__ u32 found[8];
    most = warp_max(most) | (warp_any(!is_finite) ? 0x80000000u : 0u);
    if (thread % 32 == 0) found[thread / 32] = most;
    __syncthreads();
    u32 flags = 0;
    most = 0;
#pragma unroll
    for (int warp = 0; warp < 8; ++warp) flags |= found[warp], most = max(most, found[warp] & 0x7fffffffu);
    // of subnormal numbers the exponent is that of the least normal one
    const int shift = most ? min(13 - (max((int)(most >> 23), 1) - 127), 127) : 0;
    if (thread == 0) exponents[(i64)of_channels * runs + run] = PARTS == 2 && flags >> 31 ? NOT_FINITE : shift;
    const f32 scale = __uint_as_float((u32)(shift + 127) << 23);
    u16 *const copy = (u16 *)(workspace + form.at) + first_pixel * form.packed_channels + first_channel + own_channel;
    if (first_channel + own_channel >= form.packed_channels) return;
#pragma unroll
    for (int turn = 0; turn < 4; ++turn) {
        const int pixel = own_pixel + 16 * turn;
        if (pixel >= here) return;
        u16 *const to = copy + pixel * form.packed_channels;
        const f32 values[4] = {__uint_as_float(fours[turn].x), __uint_as_float(fours[turn].y),
                               __uint_as_float(fours[turn].z), __uint_as_float(fours[turn].w)};
        u32 high[2];
#pragma unroll
        for (int n = 0; n < 2; ++n) {
            const f32 first = scale * values[2 * n], second = scale * values[2 * n + 1];
            high[n] = pack_f16(first, second);
#if PARTS == 1
            if (!(high[n] & 0x7fffu) && values[2 * n] != 0) high[n] |= 1u;
            if (!(high[n] & 0x7fff0000u) && values[2 * n + 1] != 0) high[n] |= 0x10000u;
#endif
        }
        store8(to, uint2{high[0], high[1]});
#if PARTS == 2
        u32 low[2];
#pragma unroll
        for (int n = 0; n < 2; ++n)
            low[n] = pack_f16(scale * values[2 * n] - f16_low(high[n]), scale * values[2 * n + 1] - f16_high(high[n]));
        store8(to + form.between, uint2{low[0], low[1]});
#endif
    }
}

// Both operands side by side, since either may be too small to keep the device busy.
KERNEL(256)
void pack_operands(TABLES(Tables, tables), const DTYPE *first, const DTYPE *second,
                   RESULT *result EPILOGUE_PARAMETERS, u8 *workspace, SCALE alpha, SCALE beta) {
    begin_launch();
    const int of_first = blocks_of(tables.packs[0]), block = blockIdx.x;
    const bool is_second = block >= of_first;
    pack_block(tables, is_second, is_second ? second : first, workspace, is_second ? block - of_first : block);
}

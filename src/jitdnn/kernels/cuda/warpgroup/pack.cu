// Copies tensors of any strides into the workspace, with their channels innermost and extended by zeros to a multiple of
// 16 bytes: packed[image][pixel][channel]. A block takes 64 pixels, counted through all images, of 64 channels. Where
// these are not innermost in the tensor they go through shared memory, so that neighbouring threads read neighbours of
// the tensor and write neighbours of the copy.
//
// With PARTS 2 the copy is two: f32 numbers, times a power of two that brings the largest to 2^13, are the sum of a
// number of half precision and of another for what that rounds away. Numbers 2^37 times smaller than the largest are
// lost. With PARTS 3 it is three, numbers of bf16 whose sum has all 24 bits, down to 2^-122 of the largest number. With
// IS_SCALED alone there is but the first copy, with the 11 bits of tf32; numbers that are lost become the
// smallest that there is, since infinity times zero is no number.

#if IS_SCALED
#if PARTS > 1
// Two scaled numbers as parts: the first ones side by side, and what is left of both.
FUNCTION u32 take_part(f32 &first, f32 &second) {
#if PARTS == 3
    const u32 pair = pack_bf16(first, second);
    first -= bf16_low(pair), second -= bf16_high(pair);
#else
    const u32 pair = pack_f16(first, second);
    first -= f16_low(pair), second -= f16_high(pair);
#endif
    return pair;
}
// Writes the parts of a scaled number; `between`: elements from one copy to the next.
FUNCTION void put(u16 *to, i64 at, i64 between, f32 value) {
    f32 nothing = 0;
#pragma unroll
    for (int part = 0; part < PARTS; ++part) to[at + part * between] = (u16)take_part(value, nothing);
}
#else
// A scaled number as it is multiplied. `original`: before it was scaled, which may have made zero of it.
FUNCTION u16 rounded(f32 value, f32 original) {
    const u16 half = to_f16(value);
    return (half & 0x7fffu) == 0 && original != 0 ? (u16)(half | 1u) : half;
}
#endif

// A tensor whose copy has its elements in the same order: four at a time, the last ones first, which find_maxima has
// left in the cache.
struct Flat {
    static constexpr int ahead = 4;  // fours that a thread asks for at once
    i64 at, end;
    uint4 fours[ahead];

    METHOD Flat(const Pack &form, int block, int blocks) {
        const i64 count = form.images * form.extents[0] * form.extents[1] * form.extents[2] * form.channels;
        const i64 rounds = (count + blocks * 1024ll - 1) / (blocks * 1024ll);
        const i64 first = (blocks - 1 - block) * rounds * 1024;
        at = first + threadIdx.x * 4, end = min(count, first + rounds * 1024);
    }
    METHOD void load(const f32 *tensor) {
#pragma unroll
        for (int n = 0; n < ahead; ++n)
            fours[n] = at + n * 1024 < end ? load16_streaming(tensor + at + n * 1024) : uint4{0, 0, 0, 0};
    }
    METHOD void split(const Pack &form, const f32 *tensor, u16 *to, const Power &scale) {
        for (;;) {
#pragma unroll
            for (int n = 0; n < ahead; ++n)
                if (at + n * 1024 < end) split_four(form, fours[n], to + at + n * 1024, scale);
            at += ahead * 1024;
            if (at >= end) return;
            load(tensor);
        }
    }
    METHOD static void split_four(const Pack &form, const uint4 &four, u16 *to, const Power &scale) {
#if PARTS == 1
        auto pair = [&](u32 low, u32 high) {
            const f32 first = __uint_as_float(low), second = __uint_as_float(high);
            return rounded(scale.times(first), first) | (u32)rounded(scale.times(second), second) << 16;
        };
        store8(to, uint2{pair(four.x, four.y), pair(four.z, four.w)});
#else
        f32 values[4] = {scale.times(__uint_as_float(four.x)), scale.times(__uint_as_float(four.y)),
                         scale.times(__uint_as_float(four.z)), scale.times(__uint_as_float(four.w))};
#pragma unroll
        for (int part = 0; part < PARTS; ++part) {
            const u32 first = take_part(values[0], values[1]);
            store8(to + part * form.between, uint2{first, take_part(values[2], values[3])});
        }
#endif
    }
};
#endif

#if IS_WIDENED
// An 8-bit real as a number of half precision, which holds it.
FUNCTION u16 widened(u8 value, int number) {
    return to_f16(number == 0 ? JOIN(f32_of_, FIRST)(value) : JOIN(f32_of_, SECOND)(value));
}
#endif

// What thread block `block` of those of a tensor does.
FUNCTION void pack(const Tables &tables, int number, const DTYPE *tensor, u8 *workspace, int block) {
    const Pack form = chosen(number, tables.packs[0], tables.packs[1]);
    PACKED *const copy = (PACKED *)(workspace + form.at);
#if IS_SCALED
    const bool is_flat = form.is_flat && (u64)tensor % 16 == 0;
    Flat flat(form, block, blocks_of(form));
    if (is_flat) flat.load(tensor);  // before it waits for what it is scaled by
    const Header header(tables, workspace);
    if (blockIdx.x == 0 && threadIdx.x == 0) header.publish(tables, workspace);
    const Power scale(header.shift(number));
    if (is_flat) {
        flat.split(form, tensor, copy, scale);
        return;
    }
#endif
    const int wide = ((int)form.packed_channels + 63) / 64;
    const i64 pixels = form.images * form.extents[0] * form.extents[1] * form.extents[2];
    const i64 first_pixel = (i64)(block / wide) * 64;
    const int first_channel = block % wide * 64, thread = threadIdx.x;
    if (first_pixel >= pixels) return;
    const int here = (int)min((i64)64, pixels - first_pixel);
    const int channels = min(64, (int)form.packed_channels - first_channel);
    PACKED *to = copy + first_pixel * form.packed_channels + first_channel;
    auto write = [&](int pixel, int channel, DTYPE value) {
        const i64 place = pixel * form.packed_channels + channel;
#if PARTS > 1
        put(to, place, form.between, scale.times(value));
#elif IS_SCALED
        to[place] = rounded(scale.times(value), value);
#elif IS_WIDENED
        to[place] = widened(value, number);
#else
        to[place] = value;
#endif
    };
    if (form.channel == 1) {
        // both have their channels innermost: threads follow these, however few there are
        __shared__ i64 places[64];
        if (thread < here) places[thread] = form.pixel((u32)(first_pixel + thread));
        __syncthreads();
#pragma unroll 4
        for (int item = thread; item < here * channels; item += 256) {
            const int pixel = item / channels, channel = item - pixel * channels;
            const bool is_there = first_channel + channel < form.channels;
            write(pixel, channel, is_there ? tensor[places[pixel] + first_channel + channel] : (DTYPE)0);
        }
        return;
    }
    __shared__ DTYPE tile[64][64 + 4 / sizeof(DTYPE)];
    const bool is_pixel = thread % 64 < here;
    const DTYPE *from = tensor + (is_pixel ? form.pixel((u32)(first_pixel + thread % 64)) : 0);
#pragma unroll 4
    for (int channel = thread / 64; channel < 64; channel += 4) {
        const bool is_there = is_pixel && first_channel + channel < form.channels;
        tile[channel][thread % 64] = is_there ? from[(first_channel + channel) * form.channel] : (DTYPE)0;
    }
    __syncthreads();
    if (thread % 64 >= channels) return;
#pragma unroll 4
    for (int pixel = thread / 64; pixel < here; pixel += 4) write(pixel, thread % 64, tile[thread % 64][pixel]);
}

// Both operands, those of them that are copied: side by side, since either may be too small to keep the device busy.
KERNEL(256)
void pack_operands(TABLES(Tables, tables), const DTYPE *first, const DTYPE *second,
                   RESULT *result EPILOGUE_PARAMETERS, u8 *workspace, SCALE alpha, SCALE beta) {
    begin_launch();
    const int of_first = DIVIDES_ROWS && !A_MN_MAJOR ? 0 : blocks_of(tables.packs[0]), block = blockIdx.x;
    const bool is_second = block >= of_first;
    pack(tables, is_second, is_second ? second : first, workspace, is_second ? block - of_first : block);
}

#if IS_SCALED
// The largest finite magnitude of each operand, and whether all of its numbers are finite: MAXIMA blocks for each. So
// many threads, with so many loads each, are what keeps the memory busy.
KERNEL(512)
void find_maxima(TABLES(Tables, tables), const DTYPE *first, const DTYPE *second,
                 RESULT *result EPILOGUE_PARAMETERS, u8 *workspace, SCALE alpha, SCALE beta) {
    begin_launch();
    __shared__ u32 found[16];
    const int operand = DIVIDES_ROWS ? 1 - A_MN_MAJOR : blockIdx.y;
    const Pack &form = tables.packs[operand];
    const f32 *tensor = operand ? second : first;
    const i64 pixels = form.images * form.extents[0] * form.extents[1] * form.extents[2];
    const i64 count = pixels * form.channels, step = (i64)gridDim.x * 512;
    u32 most = 0;
    bool is_finite = true;
    auto take = [&](u32 bits) {
        bits &= 0x7fffffffu;
        if (bits < 0x7f800000u)
            most = max(most, bits);
        else
            is_finite = false;
    };
    i64 at = (i64)blockIdx.x * 512 + threadIdx.x;
    if (form.is_dense) {
        i64 done = 0;
        if ((u64)tensor % 16 == 0) {
            done = count / 4 * 4;
#pragma unroll 8
            for (i64 four = at; four < count / 4; four += step) {
                const uint4 bits = load16(tensor + four * 4);
                take(bits.x), take(bits.y), take(bits.z), take(bits.w);
            }
        }
        for (i64 one = done + at; one < count; one += step) take(__float_as_uint(tensor[one]));
    } else {
        for (; at < count; at += step) {
            const i64 pixel = at / form.channels;
            take(__float_as_uint(tensor[form.pixel((u32)pixel) + (at - pixel * form.channels) * form.channel]));
        }
    }
    most = warp_max(most) | (warp_any(!is_finite) ? 0x80000000u : 0u);
    if (threadIdx.x % 32 == 0) found[threadIdx.x / 32] = most;
    __syncthreads();
    if (threadIdx.x == 0) {
        for (int warp = 1; warp < 16; ++warp)
            most = max(most & 0x7fffffffu, found[warp] & 0x7fffffffu) | ((most | found[warp]) & 0x80000000u);
        Header::maxima(tables, workspace)[operand * MAXIMA + blockIdx.x] = most;
    }
}
#endif

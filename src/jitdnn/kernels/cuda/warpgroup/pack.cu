// Copies tensors of any strides into the workspace, with their channels innermost and extended by zeros to a multiple of
// 16 bytes: packed[image][pixel][channel]. A block takes 64 pixels, counted through all images, of 64 channels; they go
// through shared memory, so that neighbouring threads read neighbours of the tensor and write neighbours of the copy.

FUNCTION void pack(const Pack &form, const DTYPE *tensor, u8 *workspace) {
    __shared__ DTYPE tile[64][64 + 4 / sizeof(DTYPE)];
    const int wide = ((int)form.packed_channels + 63) / 64;
    const i64 pixels = form.images * form.extents[0] * form.extents[1] * form.extents[2];
    const i64 first_pixel = (i64)(blockIdx.x / wide) * 64;
    const int first_channel = blockIdx.x % wide * 64, thread = threadIdx.x;
    if (first_pixel >= pixels) return;
    auto place = [&](i64 pixel) {
        const i64 line = pixel / form.extents[2], plane = line / form.extents[1], image = plane / form.extents[0];
        return image * form.image + (plane - image * form.extents[0]) * form.space[0] +
               (line - plane * form.extents[1]) * form.space[1] + (pixel - line * form.extents[2]) * form.space[2];
    };
    if (form.channel == 1) {
        const int channel = first_channel + thread % 64;
#pragma unroll 4
        for (int pixel = thread / 64; pixel < 64; pixel += 4) {
            const bool is_there = channel < form.channels && first_pixel + pixel < pixels;
            tile[thread % 64][pixel] = is_there ? tensor[place(first_pixel + pixel) + channel] : (DTYPE)0;
        }
    } else {
        const bool is_pixel = first_pixel + thread % 64 < pixels;
        const DTYPE *from = tensor + (is_pixel ? place(first_pixel + thread % 64) : 0);
#pragma unroll 4
        for (int channel = thread / 64; channel < 64; channel += 4) {
            const bool is_there = is_pixel && first_channel + channel < form.channels;
            tile[channel][thread % 64] = is_there ? from[(first_channel + channel) * form.channel] : (DTYPE)0;
        }
    }
    __syncthreads();
    DTYPE *to = (DTYPE *)(workspace + form.at) + first_pixel * form.packed_channels + first_channel;
    const int channel = thread % 64;
    if (first_channel + channel >= form.packed_channels) return;
#pragma unroll 4
    for (int pixel = thread / 64; pixel < 64; pixel += 4)
        if (first_pixel + pixel < pixels) to[pixel * form.packed_channels + channel] = tile[channel][pixel];
}

#define PACK_KERNEL(name, operand, number)                                                               \
    KERNEL(256)                                                                                          \
    void name(TABLES(Tables, tables), const DTYPE *first, const DTYPE *second,                           \
              RESULT *result EPILOGUE_PARAMETERS, u8 *workspace, SCALE alpha, SCALE beta) {              \
        pack(tables.packs[number], operand, workspace);                                                  \
    }
PACK_KERNEL(pack_first, first, 0)
PACK_KERNEL(pack_second, second, 1)

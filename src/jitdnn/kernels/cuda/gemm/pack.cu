// Packs a tensor of any order and any strides into the workspace, with its channels innermost, those of each group
// extended by zeros to a number that wide copies divide:  packed[image][pixel][group][channel].
//
// A thread block takes `block_pixels` pixels, counted through all images, of LANES packed channels: 4096 elements.
// They go through shared memory, so that neighbouring threads read neighbours of the tensor and write neighbours of
// the copy. Macros (gemm/packing.py), beside DTYPE and INDEX:
//
//     macro              unit        meaning
//     LANES              channels    of a thread block
//     VECTOR             channels    that are stored at a time
//     AXES               axes        of pixels, images among them: those that lie evenly in memory are one
//     IS_ALONG_CHANNELS  0 or 1      whether neighbouring threads read neighbouring channels
//     IS_CHUNKED         0 or 1      whether channels are innermost in the tensor, too, in whole chunks of 16 bytes
//     IS_ONE_GROUP       0 or 1      whether the channels are one group

constexpr int CHUNK = 16 / sizeof(DTYPE);  // elements

struct __align__(64) Tables {
    i64 at;                             // byte of the workspace
    i64 pixels, packed;                 // of all images; packed channels of all groups
    i64 channels, groups;               // channels of a group
    Divisor group_channels;             // packed ones
    Divisor blocks;                     // of LANES packed channels
    i64 channel;                        // elements from channel to channel
    Divisor extents[AXES];              // pixels along the axes, outermost first
    i64 strides[AXES];                  // elements
};

struct __align__(VECTOR * sizeof(DTYPE)) ChannelVector {
    DTYPE channel[VECTOR];
};

KERNEL(256)
void pack(TABLES(Tables, tables), const DTYPE *tensor, u8 *workspace, SCALE, SCALE) {
    begin_launch();
    constexpr int block_pixels = 4096 / LANES;
    const INDEX all = (INDEX)tables.pixels;
    const int packed = (int)tables.packed;
    __shared__ DTYPE tile[LANES][block_pixels + 2];

    const INDEX of_block = quotient((INDEX)blockIdx.x, tables.blocks);
    const int t = threadIdx.x, first_lane = (int)((INDEX)blockIdx.x - of_block * (INDEX)tables.blocks.number) * LANES;
    const INDEX first_pixel = of_block * block_pixels;

    // the offset of a pixel, and the channel of the tensor behind a packed channel: -1 if there is none
    auto pixel_offset = [&](INDEX position) {
        INDEX offset = 0;
#pragma unroll
        for (int axis = AXES - 1; axis > 0; --axis) {
            const INDEX outer = quotient(position, tables.extents[axis]);
            offset += (position - outer * (INDEX)tables.extents[axis].number) * (INDEX)tables.strides[axis];
            position = outer;
        }
        return offset + position * (INDEX)tables.strides[0];
    };
    auto channel_of = [&](int lane) {
        const int number = first_lane + lane;
        if constexpr (IS_ONE_GROUP) return number < (int)tables.channels ? number : -1;
        const int group = quotient(number, tables.group_channels);
        const int channel = number - group * (int)tables.group_channels.number;
        return channel < (int)tables.channels && group < (int)tables.groups ? group * (int)tables.channels + channel
                                                                           : -1;
    };
    DTYPE *to = (DTYPE *)(workspace + tables.at) + (i64)first_pixel * packed + first_lane;
    if constexpr (IS_CHUNKED) {
        if ((u64)tensor % 16 == 0) {
            constexpr int chunks = LANES / CHUNK;
            const int lane = t % chunks * CHUNK, channel = channel_of(lane);
            if (first_lane + lane >= packed) return;
#pragma unroll 4
            for (int position = t / chunks; position < block_pixels; position += 256 / chunks) {
                if (first_pixel + position >= all) break;
                uint4 chunk = {};
                if (channel >= 0) chunk = load16(tensor + (pixel_offset(first_pixel + position) + channel));
                store16(to + (i64)position * packed + lane, chunk);
            }
            return;
        }
    }
    const INDEX channel_step = (INDEX)tables.channel;
    if constexpr (IS_ALONG_CHANNELS) {
        constexpr int step = 256 / LANES;
        const int lane = t % LANES, channel = channel_of(lane);
#pragma unroll 8
        for (int position = t / LANES; position < block_pixels; position += step) {
            const bool is_there = channel >= 0 && first_pixel + position < all;
            tile[lane][position] =
                is_there ? tensor[pixel_offset(first_pixel + position) + channel * channel_step] : (DTYPE)0;
        }
    } else {
        constexpr int step = 256 / block_pixels;
        const int position = t % block_pixels;
        const bool has_pixel = first_pixel + position < all;
        const DTYPE *from = tensor + (has_pixel ? pixel_offset(first_pixel + position) : 0);
#pragma unroll 8
        for (int lane = t / block_pixels; lane < LANES; lane += step) {
            const int channel = channel_of(lane);
            tile[lane][position] = has_pixel && channel >= 0 ? from[channel * channel_step] : (DTYPE)0;
        }
    }
    __syncthreads();

    constexpr int runs = LANES / VECTOR;
    const int lane = t % runs * VECTOR;
    if (first_lane + lane >= packed) return;
#pragma unroll 4
    for (int position = t / runs; position < block_pixels; position += 256 / runs) {
        if (first_pixel + position >= all) break;
        ChannelVector next;
#pragma unroll
        for (int i = 0; i < VECTOR; ++i) next.channel[i] = tile[lane + i][position];
        *(ChannelVector *)(to + (i64)position * packed + lane) = next;
    }
}

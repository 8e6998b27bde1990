// Packs a tensor of any order and any strides into the workspace, with its channels innermost, those of each group
// extended by zeros to a number that wide copies divide:  packed[image][pixel][group][channel].
//
// A thread block takes `block_pixels` pixels, counted through all images, of `lanes` packed channels: 4096 elements.
// They go through shared memory, so that neighbouring threads read neighbours of the tensor and write neighbours of
// the copy. P, which gemm/code.py writes for each tensor, has its extents, strides and groups.

template <int COUNT>
struct __align__(COUNT * sizeof(DTYPE)) ChannelVector {
    DTYPE channel[COUNT];
};

// True if pixels are whole chunks apart.
template <class P>
FUNCTION constexpr bool has_chunks() {
    return P::image % CHUNK == 0 && P::strides[0] % CHUNK == 0 && P::strides[1] % CHUNK == 0 &&
           P::strides[2] % CHUNK == 0;
}

template <class P>
FUNCTION void pack(const DTYPE *tensor, u8 *workspace) {
    constexpr int packed = P::group_channels * P::groups;
    constexpr int lanes = packed >= 64 ? 64 : 16, block_pixels = 4096 / lanes;
    constexpr int vector = packed % 4 == 0 ? 4 : 1;  // channels that are stored at a time
    constexpr i64 all = (i64)P::images * P::extents[0] * P::extents[1] * P::extents[2];
    constexpr int wide = (packed + lanes - 1) / lanes;
    __shared__ DTYPE tile[lanes][block_pixels + 2];

    const INDEX block = blockIdx.x;
    const int first_lane = (int)(block % wide) * lanes, t = threadIdx.x;
    const INDEX first_pixel = block / wide * block_pixels;

    // the offset of a pixel, and the channel of the tensor behind a packed channel: -1 if there is none
    auto pixel_offset = [&](INDEX position) {
        const INDEX row = position / P::extents[2], plane = row / P::extents[1], image = plane / P::extents[0];
        return image * P::image + (plane - image * P::extents[0]) * P::strides[0] +
               (row - plane * P::extents[1]) * P::strides[1] + (position - row * P::extents[2]) * P::strides[2];
    };
    auto channel_of = [&](int lane) {
        const int channel = (first_lane + lane) % P::group_channels, group = (first_lane + lane) / P::group_channels;
        return channel < P::channels && group < P::groups ? group * P::channels + channel : -1;
    };
    DTYPE *to = (DTYPE *)(workspace + P::at) + (i64)first_pixel * packed + first_lane;
    if constexpr (P::channel == 1 && P::channels % CHUNK == 0 && P::group_channels % CHUNK == 0 && has_chunks<P>()) {
        if ((u64)tensor % 16 == 0) {  // channels are innermost in the tensor, too
            constexpr int chunks = lanes / CHUNK;
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
    if constexpr (P::is_along_channels) {
        constexpr int step = 256 / lanes;
        const int lane = t % lanes, channel = channel_of(lane);
#pragma unroll 8
        for (int position = t / lanes; position < block_pixels; position += step) {
            const bool is_there = channel >= 0 && first_pixel + position < all;
            tile[lane][position] =
                is_there ? tensor[pixel_offset(first_pixel + position) + channel * P::channel] : (DTYPE)0;
        }
    } else {
        constexpr int step = 256 / block_pixels;
        const int position = t % block_pixels;
        const bool has_pixel = first_pixel + position < all;
        const DTYPE *from = tensor + (has_pixel ? pixel_offset(first_pixel + position) : 0);
#pragma unroll 8
        for (int lane = t / block_pixels; lane < lanes; lane += step) {
            const int channel = channel_of(lane);
            tile[lane][position] = has_pixel && channel >= 0 ? from[channel * P::channel] : (DTYPE)0;
        }
    }
    __syncthreads();

    constexpr int runs = lanes / vector;
    const int lane = t % runs * vector;
    if (first_lane + lane >= packed) return;
#pragma unroll 4
    for (int position = t / runs; position < block_pixels; position += 256 / runs) {
        if (first_pixel + position >= all) break;
        ChannelVector<vector> next;
#pragma unroll
        for (int i = 0; i < vector; ++i) next.channel[i] = tile[lane + i][position];
        *(ChannelVector<vector> *)(to + (i64)position * packed + lane) = next;
    }
}

// A tensor of any order and any strides copied to the workspace with its channels innermost, those of a group extended
// by zeros to a number that wide copies divide:  packed[image][place][group][channel].
//
// A block takes `places` places, counted through all images, of `lanes` packed channels through shared memory, so that
// neighbouring threads read neighbours of the one order and write neighbours of the other.

template <int COUNT>
struct __align__(COUNT * sizeof(DTYPE)) Neighbours {
    DTYPE channel[COUNT];
};

// True if places lie whole chunks apart.
template <class P>
FUNCTION constexpr bool has_chunks() {
    return P::image % CHUNK == 0 && P::strides[0] % CHUNK == 0 && P::strides[1] % CHUNK == 0 &&
           P::strides[2] % CHUNK == 0;
}

template <class P>
FUNCTION void pack(const DTYPE *tensor, u8 *workspace) {
    constexpr int packed = P::group_channels * P::groups;
    constexpr int lanes = packed >= 64 ? 64 : 16, places = 4096 / lanes;
    constexpr int beside = packed % 4 == 0 ? 4 : 1;  // channels that are stored together
    constexpr i64 all = (i64)P::images * P::extents[0] * P::extents[1] * P::extents[2];
    constexpr int wide = (packed + lanes - 1) / lanes;
    __shared__ DTYPE tile[lanes][places + 2];

    const INDEX block = blockIdx.x;
    const int first_lane = (int)(block % wide) * lanes, t = threadIdx.x;
    const INDEX first_place = block / wide * places;

    // where a place lies, and where a packed channel; -1 for one that is not there
    auto place_at = [&](INDEX place) {
        const INDEX row = place / P::extents[2], plane = row / P::extents[1], image = plane / P::extents[0];
        return image * P::image + (plane - image * P::extents[0]) * P::strides[0] +
               (row - plane * P::extents[1]) * P::strides[1] + (place - row * P::extents[2]) * P::strides[2];
    };
    auto channel_of = [&](int lane) {
        const int channel = (first_lane + lane) % P::group_channels, group = (first_lane + lane) / P::group_channels;
        return channel < P::channels && group < P::groups ? group * P::channels + channel : -1;
    };
    DTYPE *to = (DTYPE *)(workspace + P::at) + (i64)first_place * packed + first_lane;
    if constexpr (P::channel == 1 && P::channels % CHUNK == 0 && P::group_channels % CHUNK == 0 && has_chunks<P>()) {
        if ((u64)tensor % 16 == 0) {  // channels are innermost already
            constexpr int chunks = lanes / CHUNK;
            const int lane = t % chunks * CHUNK, channel = channel_of(lane);
            if (first_lane + lane >= packed) return;
#pragma unroll 4
            for (int place = t / chunks; place < places; place += 256 / chunks) {
                if (first_place + place >= all) break;
                uint4 chunk = {};
                if (channel >= 0) chunk = load16(tensor + (place_at(first_place + place) + channel));
                store16(to + (i64)place * packed + lane, chunk);
            }
            return;
        }
    }
    if constexpr (P::is_along_channels) {
        constexpr int step = 256 / lanes;
        const int lane = t % lanes, channel = channel_of(lane);
#pragma unroll 8
        for (int place = t / lanes; place < places; place += step) {
            const bool is_there = channel >= 0 && first_place + place < all;
            tile[lane][place] = is_there ? tensor[place_at(first_place + place) + channel * P::channel] : (DTYPE)0;
        }
    } else {
        constexpr int step = 256 / places;
        const int place = t % places;
        const bool is_place = first_place + place < all;
        const DTYPE *from = tensor + (is_place ? place_at(first_place + place) : 0);
#pragma unroll 8
        for (int lane = t / places; lane < lanes; lane += step) {
            const int channel = channel_of(lane);
            tile[lane][place] = is_place && channel >= 0 ? from[channel * P::channel] : (DTYPE)0;
        }
    }
    __syncthreads();

    constexpr int runs = lanes / beside;
    const int lane = t % runs * beside;
    if (first_lane + lane >= packed) return;
#pragma unroll 4
    for (int place = t / runs; place < places; place += 256 / runs) {
        if (first_place + place >= all) break;
        Neighbours<beside> next;
#pragma unroll
        for (int i = 0; i < beside; ++i) next.channel[i] = tile[lane + i][place];
        *(Neighbours<beside> *)(to + (i64)place * packed + lane) = next;
    }
}

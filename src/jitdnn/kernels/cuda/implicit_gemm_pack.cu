// A tensor of any order and any strides copied to the workspace with its channels innermost, those of a group extended
// by zeros to a number that wide copies divide:  packed[image][place][group][channel].
//
// A group takes PIXELS places of CHANNELS channels through shared memory, so that neighbouring threads read neighbours
// of the one order and write neighbours of the other.

template <class P>
FUNCTION void pack(const DTYPE *tensor, u8 *workspace) {
    constexpr int lanes = P::group_channels * P::groups >= 64 ? 64 : 16;  // packed channels of a tile
    constexpr int places = 4096 / lanes;
    constexpr int packed = P::group_channels * P::groups;
    constexpr i64 space = (i64)P::extents[0] * P::extents[1] * P::extents[2];
    constexpr int wide = (packed + lanes - 1) / lanes;
    constexpr i64 high = (space + places - 1) / places;
    __shared__ DTYPE tile[lanes][places + 2];

    i64 block = blockIdx.x;
    const int first_lane = (int)(block % wide) * lanes;
    block /= wide;
    const i64 first_place = block % high * places, image = block / high;
    for (int i = threadIdx.x; i < 4096; i += 256) {
        const int lane = P::is_along_channels ? i % lanes : i / places;
        const int place = P::is_along_channels ? i / lanes : i % places;
        const int channel = (first_lane + lane) % P::group_channels, group = (first_lane + lane) / P::group_channels;
        const i64 at = first_place + place;
        DTYPE value = 0;
        if (at < space && channel < P::channels && group < P::groups) {
            const int rest = (int)(at / P::extents[2]), last = (int)(at - (i64)rest * P::extents[2]);
            const i64 from = image * P::image + rest / P::extents[1] * P::strides[0] + rest % P::extents[1] * P::strides[1] +
                             last * P::strides[2];
            value = tensor[from + (i64)(group * P::channels + channel) * P::channel];
        }
        tile[lane][place] = value;
    }
    __syncthreads();
    DTYPE *to = (DTYPE *)(workspace + P::at) + (image * space + first_place) * packed + first_lane;
    for (int i = threadIdx.x; i < 4096; i += 256) {
        const int lane = i % lanes, place = i / lanes;
        if (first_place + place < space && first_lane + lane < packed) to[(i64)place * packed + lane] = tile[lane][place];
    }
}

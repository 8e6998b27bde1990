// Boxes of a tensor as the copy engine brings them to shared memory.
#pragma once
#include "runtime.h"

#include <cstring>

namespace emulation {

// What tensor_maps.py writes.
struct Map {
    unsigned long long address, strides[4];
    Word extents[5], mark;
    unsigned short box[5];
    short lower[3], upper[3];
    unsigned char steps[5], size, rank, is_im2col;
};
static_assert(sizeof(Map) == 96, "as tensor_maps.py packs it, and two bytes of padding");
constexpr Word MAP_MARK = 0x70616d74;
constexpr int ROW = 128;  // bytes of each row of a box

// Where a byte lies whose place without the 128-byte swizzle is `address`.
constexpr Word swizzled(Word address) { return address ^ (address >> 3 & 0x70); }

inline int rows_of(const Map &map) {
    int rows = map.box[1];
    for (int axis = 2; axis < map.rank && !map.is_im2col; ++axis) rows *= map.box[axis];
    return rows;
}

// Row `row` of a box: `channel` and what follows of the pixel at `position`, zero outside of the tensor.
inline void copy_row(const Map &map, const long long *position, int channel, unsigned char *shared, Word address) {
    unsigned char bytes[ROW] = {};
    bool is_inside = true;
    const unsigned char *from = reinterpret_cast<const unsigned char *>(map.address);
    for (int axis = 1; axis < map.rank; ++axis) {
        is_inside &= position[axis] >= 0 && position[axis] < static_cast<long long>(map.extents[axis]);
        from += position[axis] * static_cast<long long>(map.strides[axis - 1]);
    }
    const long long count = ROW / map.size, left = static_cast<long long>(map.extents[0]) - channel;
    const long long first = channel < 0 ? -static_cast<long long>(channel) : 0, last = left < count ? left : count;
    if (is_inside && first < last)
        memcpy(bytes + first * map.size, from + (channel + first) * map.size, (last - first) * map.size);
    for (int piece = 0; piece < ROW; piece += 16) memcpy(shared + swizzled(address + piece), bytes + piece, 16);
}

// `shared` is where address 0 is.
inline void copy_box(const Map &map, const Box &box, unsigned char *shared, Word address) {
    const int rows = rows_of(map), rank = map.rank;
    long long position[5], base[5];
    for (int axis = 1; axis < rank; ++axis) base[axis] = box.coordinates[axis];
    for (int row = 0; row < rows; ++row) {
        if (map.is_im2col) {
            for (int axis = 1; axis < rank; ++axis)
                position[axis] = base[axis] + (axis < rank - 1 ? box.taps[axis - 1] : 0);
        } else {
            for (int axis = 1, rest = row; axis < rank; rest /= map.box[axis++])
                position[axis] = base[axis] + rest % map.box[axis] * map.steps[axis];
        }
        copy_row(map, position, box.coordinates[0], shared, address + ROW * row);
        if (!map.is_im2col) continue;
        // the next window: along w, then h, then d, then the next image
        int axis = 1;
        for (; axis < rank - 1; ++axis) {
            base[axis] += map.steps[axis];
            if (base[axis] <= static_cast<long long>(map.extents[axis]) - 1 + map.upper[axis - 1]) break;
            base[axis] = map.lower[axis - 1];
        }
        if (axis == rank - 1) ++base[axis];
    }
}

}  // namespace emulation

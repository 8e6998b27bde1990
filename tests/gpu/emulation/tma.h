// Boxes of a tensor as the copy engine brings them to shared memory, and back.
#pragma once
#include "numbers.h"
#include "runtime.h"

#include <cstring>

namespace emulation {

// What tensor_maps.py writes.
struct Map {
    unsigned long long address, strides[4];
    Word extents[5], mark;
    unsigned short box[5];
    short lower[3], upper[3];
    unsigned char steps[5], size, rank, is_im2col, is_rounded;
};
static_assert(sizeof(Map) == 96, "as tensor_maps.py packs it, and a byte of padding");
constexpr Word MAP_MARK = 0x70616d74;
constexpr int MOST_ROW = 128;  // bytes of a row of a box: 128, 64 or 32

// Where a byte lies whose place in rows of `row` bytes, without their swizzle, is `address`.
constexpr Word swizzled(Word address, Word row) { return address ^ (address >> 3 & (row - 16)); }

inline int row_of(const Map &map) { return map.box[0] * map.size; }

inline int rows_of(const Map &map) {
    int rows = map.box[1];
    for (int axis = 2; axis < map.rank && !map.is_im2col; ++axis) rows *= map.box[axis];
    return rows;
}

// What of a row is in the tensor: the bytes from `first` to `last`, of which the first is at `global`.
struct Inside {
    unsigned char *global;
    int first, last;
};

// Of the row that begins at `channel` of the pixel at `position`.
inline Inside inside(const Map &map, const long long *position, int channel) {
    unsigned long long at = map.address;
    for (int axis = 1; axis < map.rank; ++axis) {
        if (position[axis] < 0 || position[axis] >= static_cast<long long>(map.extents[axis])) return {};
        at += position[axis] * map.strides[axis - 1];
    }
    const long long count = map.box[0], left = static_cast<long long>(map.extents[0]) - channel;
    const long long first = channel < 0 ? -static_cast<long long>(channel) : 0, last = left < count ? left : count;
    if (first >= last) return {};
    at += (channel + first) * map.size;
    return {reinterpret_cast<unsigned char *>(at), int(first) * map.size, int(last) * map.size};
}

// Calls with each row of a box: its number, and what of it is in the tensor.
template <typename Each>
void for_rows(const Map &map, const Box &box, Each each) {
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
        each(row, inside(map, position, box.coordinates[0]));
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

// Calls with each run of bytes of the tensor that a box has.
template <typename Each>
void for_global(const Map &map, const Box &box, Each each) {
    for_rows(map, box, [&](int, const Inside &part) {
        if (part.global) each(part.global, part.last - part.first);
    });
}

// Fills shared memory, with zero outside of the tensor. `shared` is where address 0 is.
inline void load_box(const Map &map, const Box &box, unsigned char *shared, Word address) {
    const int bytes = row_of(map);
    for_rows(map, box, [&](int row, const Inside &part) {
        unsigned char held[MOST_ROW] = {};
        if (part.global) memcpy(held + part.first, part.global, part.last - part.first);
        for (int at = 0; map.is_rounded && at < bytes; at += 4) {
            float value;
            memcpy(&value, held + at, 4);
            const Word rounded = tf32_of_f32(value);
            memcpy(held + at, &rounded, 4);
        }
        for (int at = 0; at < bytes; at += 16)
            memcpy(shared + swizzled(address + row * bytes + at, bytes), held + at, 16);
    });
}

// Writes what of the box is in the tensor.
inline void store_box(const Map &map, const Box &box, const unsigned char *shared, Word address) {
    const int bytes = row_of(map);
    for_rows(map, box, [&](int row, const Inside &part) {
        unsigned char held[MOST_ROW];
        for (int at = 0; at < bytes; at += 16)
            memcpy(held + at, shared + swizzled(address + row * bytes + at, bytes), 16);
        if (part.global) memcpy(part.global, held + part.first, part.last - part.first);
    });
}

}  // namespace emulation

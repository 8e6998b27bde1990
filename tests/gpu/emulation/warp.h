// What the lanes of a warp do together, when all of them have handed over their operands.
#pragma once
#include "numbers.h"

namespace emulation {

constexpr int WARP = 32;

struct Warp {
    Word live, ready, arrived;
    Kind kind;
    int line;
    void *operands[WARP];
};

inline const char *name_of(Kind kind) {
    switch (kind) {
        case SYNC: return "__syncwarp";
        case SHUFFLE: return "a shuffle";
        case BALLOT: return "a vote";
        case LDMATRIX: return "ldmatrix";
        case STMATRIX: return "stmatrix";
        default: return "mma";
    }
}

inline void shuffle(Warp &warp) {
    for (int lane = 0; lane < WARP; ++lane) {
        if (!(warp.arrived >> lane & 1)) continue;
        auto *own = static_cast<Shuffle *>(warp.operands[lane]);
        const int source = own->source < 0 ? lane : own->source;
        own->result = warp.arrived >> source & 1 ? static_cast<Shuffle *>(warp.operands[source])->value : ~0ull;
    }
}

inline void ballot(Warp &warp) {
    Word votes = 0;
    for (int lane = 0; lane < WARP; ++lane)
        if (warp.arrived >> lane & 1) votes |= Word(static_cast<Ballot *>(warp.operands[lane])->value) << lane;
    for (int lane = 0; lane < WARP; ++lane)
        if (warp.arrived >> lane & 1) static_cast<Ballot *>(warp.operands[lane])->result = votes;
}

inline void ldmatrix(Warp &warp) {
    const auto &first = *static_cast<Ldmatrix *>(warp.operands[0]);
    const unsigned short *rows[WARP];
    for (int lane = 0; lane < 8 * first.matrices; ++lane) {
        rows[lane] = static_cast<const unsigned short *>(static_cast<Ldmatrix *>(warp.operands[lane])->row);
    }
    for (int lane = 0; lane < WARP; ++lane) {
        auto &own = *static_cast<Ldmatrix *>(warp.operands[lane]);
        for (int matrix = 0; matrix < first.matrices; ++matrix) {
            const unsigned short *const *row = rows + 8 * matrix;
            const int group = lane / 4, pair = 2 * (lane % 4);
            const Word low = first.is_transposed ? row[pair][group] : row[group][pair];
            const Word high = first.is_transposed ? row[pair + 1][group] : row[group][pair + 1];
            own.result[matrix] = low | high << 16;
        }
    }
}

inline void stmatrix(Warp &warp) {
    for (int lane = 0; lane < WARP; ++lane) {
        const auto &own = *static_cast<Stmatrix *>(warp.operands[lane]);
        for (int matrix = 0; matrix < 4; ++matrix) {
            const auto row = [&](int n) { return static_cast<Stmatrix *>(warp.operands[8 * matrix + n])->row; };
            const Word value = own.values[matrix];
            if (!own.is_transposed) {
                static_cast<Word *>(row(lane / 4))[lane % 4] = value;
                continue;
            }
            for (int half = 0; half < 2; ++half)
                static_cast<unsigned short *>(row(2 * (lane % 4) + half))[lane / 4] =
                    static_cast<unsigned short>(value >> 16 * half);
        }
    }
}

// D[16][8] += A[16][K] * B[K][8], spread over the lanes as the PTX manual draws it: a register holds `packed`
// neighbours along K.
template <int K, int packed, typename Sum, typename Decode>
void mma(Warp &warp, Decode decode) {
    static Sum a[16][K], b[K][8], d[16][8];
    for (int lane = 0; lane < WARP; ++lane) {
        const auto *own = static_cast<const Mma *>(warp.operands[lane]);
        const int group = lane / 4, inner = lane % 4;
        for (int n = 0; n < 4; ++n) {
            const Word bits = static_cast<const Word *>(own->a)[n];
            const int row = group + 8 * (n % 2), column = packed * (inner + 4 * (n / 2));
            for (int part = 0; part < packed; ++part) a[row][column + part] = decode(bits, part);
        }
        for (int n = 0; n < 2; ++n) {
            const Word bits = static_cast<const Word *>(own->b)[n];
            const int row = packed * (inner + 4 * n);
            for (int part = 0; part < packed; ++part) b[row + part][group] = decode(bits, part);
        }
        for (int n = 0; n < 4; ++n) d[group + 8 * (n / 2)][2 * inner + n % 2] = static_cast<const Sum *>(own->d)[n];
    }
    for (int row = 0; row < 16; ++row)
        for (int k = 0; k < K; ++k)
            for (int column = 0; column < 8; ++column) d[row][column] += a[row][k] * b[k][column];
    for (int lane = 0; lane < WARP; ++lane) {
        const auto *own = static_cast<const Mma *>(warp.operands[lane]);
        for (int n = 0; n < 4; ++n) static_cast<Sum *>(own->d)[n] = d[lane / 4 + 8 * (n / 2)][2 * (lane % 4) + n % 2];
    }
}

inline void mma_f64(Warp &warp) {
    const auto operand = [&](int lane) { return static_cast<const Mma *>(warp.operands[lane]); };
    for (int lane = 0; lane < WARP; ++lane) {
        const int row = lane / 4, column = 2 * (lane % 4);
        auto *d = static_cast<double *>(operand(lane)->d);
        for (int n = 0; n < 2; ++n)
            for (int k = 0; k < 4; ++k)
                d[n] += *static_cast<const double *>(operand(4 * row + k)->a) *
                        *static_cast<const double *>(operand(4 * (column + n) + k)->b);
    }
}

}  // namespace emulation

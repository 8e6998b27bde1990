// What kernels that are compiled for the CPU ask of the scheduler that runs their threads (runtime.cpp).
#pragma once

namespace emulation {

typedef unsigned int Word;

struct Index {
    unsigned int x, y, z;
};

// What the lanes of a warp do together. Each hands over the address of its operands.
enum Kind { SYNC, SHUFFLE, BALLOT, LDMATRIX, MMA_BF16, MMA_F16, MMA_TF32, MMA_S8, MMA_F64 };

struct Shuffle {
    unsigned long long value, result;
    int source;  // the lane whose value is the result; -1: one that does not exist, so the own
};
struct Ballot {
    bool value;
    Word result;
};
struct Ldmatrix {
    const void *row;
    Word *result;
    int matrices;
    bool is_transposed;
};
struct Mma {
    void *d;  // 4 sums, 2 of f64
    const void *a, *b;
};

extern "C" {
extern Index threadIdx, blockIdx, blockDim, gridDim;
extern unsigned char *emulation_dynamic_shared;

// Ends the kernel with a message; `line` is 0 where it is not known.
[[noreturn]] void emulation_fail(int line, const char *format, ...);
void emulation_barrier(int line);
void emulation_collective(Kind kind, int line, void *operands);
void emulation_copy(void *shared, const void *global, int bytes, bool is_valid, int line);
void emulation_commit();
void emulation_wait(int pending);
Word emulation_shared_address(const void *shared, int line);
void *emulation_shared_pointer(Word address);
}

}  // namespace emulation

// What kernels that are compiled for the CPU ask of the scheduler that runs their threads (runtime.cpp).
#pragma once

namespace emulation {

typedef unsigned int Word;

struct Index {
    unsigned int x, y, z;
};

// What the lanes of a warp do together. Each hands over the address of its operands.
enum Kind { SYNC, SHUFFLE, BALLOT, LDMATRIX, STMATRIX, MMA_BF16, MMA_F16, MMA_TF32, MMA_S8, MMA_F64 };

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
struct Stmatrix {
    void *row;
    Word values[4];
    bool is_transposed;
};
struct Mma {
    void *d;  // 4 sums, 2 of f64
    const void *a, *b;
};

// What a copy takes of the tensor that a map describes.
struct Box {
    const void *map;
    bool is_im2col;
    int rank, coordinates[5], taps[3];
};

// d += a * b of a warpgroup, as one of its threads asks for it. `a` and `b` are descriptors.
enum Element { BF16, F16, TF32, S8, E4M3, E5M2 };
struct Product {
    void *d;  // sums of 4 bytes
    unsigned long long a, b;
    Element element, element_b;  // of a, of b
    int n;
    bool is_a_mn_major, is_b_mn_major, is_added;
    const Word *a_registers = nullptr;  // of this thread, in place of the descriptor
};

extern "C" {
extern Index threadIdx, blockIdx, blockDim, gridDim;
extern unsigned char *emulation_dynamic_shared;

// Ends the kernel with a message; `line` is 0 where it is not known.
[[noreturn]] void emulation_fail(int line, const char *format, ...);
void emulation_barrier(int line);
void emulation_collective(Kind kind, int line, void *operands);
void emulation_copy(void *shared, const void *global, int bytes, bool is_valid, int line);
void emulation_wait_for_launch_before();
void emulation_commit();
void emulation_wait(int pending);
Word emulation_shared_address(const void *shared, int line);
void *emulation_shared_pointer(Word address);
void *emulation_shared_access(Word address, int bytes, const char *what, int line);
void emulation_read(const void *pointer, int bytes, int line);
void emulation_write(const void *pointer, int bytes, int line);
void emulation_signal(const void *address);
void emulation_see_signals(const void *address);
void emulation_atomic(const void *pointer, int bytes, int line);
void *emulation_shared_write(Word address, int bytes, const char *what, int line);

// Of sm_90a: hopper.h.
void emulation_mbarrier_init(Word barrier, Word arrivals, int line);
void emulation_mbarrier_fence();
void emulation_mbarrier_arrive(Word barrier, Word bytes, int line);
void emulation_mbarrier_wait(Word barrier, Word parity, int line);
void emulation_warpgroup_barrier(int number, int line);
void emulation_tma_load(Word shared, Word barrier, const Box *box, int line);
void emulation_tma_ask(const Box *box, int line);
void emulation_tma_store(Word shared, const Box *box, int line);
void emulation_tma_store_commit();
void emulation_tma_store_wait_read(int pending, int line);
void emulation_async_proxy_fence();
Word emulation_cluster_address(Word shared, int block, int line);
Word emulation_own_address(Word there, const char *what, int line);
const void *emulation_cluster_access(Word there, int bytes, const char *what, int line);
void emulation_cluster_arrive(bool is_relaxed, int line);
void emulation_cluster_wait(int line);
void emulation_wgmma(const Product *product, int line);
void emulation_wgmma_fence();
void emulation_wgmma_commit(int line);
void emulation_wgmma_wait(int pending, int line);
}

}  // namespace emulation

// Stands in for instructions.cuh when a kernel is compiled for the CPU.
#pragma once
#include "builtins.h"
#include "numbers.h"

// ---- Names of the prelude ----------------------------------------------------------------------------------------

typedef signed char i8;
typedef unsigned char u8;
typedef short i16;
typedef unsigned short u16;
typedef int i32;
typedef unsigned int u32;
typedef long long i64;
typedef unsigned long long u64;
typedef float f32;
typedef double f64;

#define JITDNN_INSTRUCTIONS
#define KERNEL(threads) extern "C" __global__ __launch_bounds__(threads)
#define KERNEL2(threads, min_blocks) extern "C" __global__ __launch_bounds__(threads, min_blocks)
#define TABLES(type, name) const __grid_constant__ type name
#define FUNCTION static inline
#define GLOBAL
#define RESTRICT __restrict__

// ---- Instructions -----------------------------------------------------------------------------------------------

#define EMULATION_LINE int line = __builtin_LINE()

namespace emulation {
// The compiler keeps nothing of memory in registers beyond this point: other threads change it.
static inline void fence() { asm volatile("" ::: "memory"); }
static inline void collective(Kind kind, int line, void *operands) {
    fence();
    emulation_collective(kind, line, operands);
    fence();
}
static inline const void *aligned(const void *p, unsigned long bytes, int line, const char *what) {
    if ((unsigned long)p % bytes)
        emulation_fail(line, "%s: misaligned address %p: it must be a multiple of %lu", what, p, bytes);
    return p;
}
}  // namespace emulation

static inline void __syncthreads(EMULATION_LINE) {
    emulation::fence();
    emulation::emulation_barrier(line);
    emulation::fence();
}
static inline void __syncwarp(unsigned mask = ~0u, EMULATION_LINE) {
    if (mask != ~0u) emulation::emulation_fail(line, "__syncwarp of a part of a warp is not emulated");
    emulation::collective(emulation::SYNC, line, nullptr);
}

static inline u32 smem_address(const void *shared, EMULATION_LINE) {
    return emulation::emulation_shared_address(shared, line);
}

static inline void wait_for_launch_before() {
    emulation::fence();
    emulation::emulation_wait_for_launch_before();
}
static inline void let_next_begin() {}
static inline void begin_launch() { wait_for_launch_before(); }

#define EMULATION_COPY(bytes)                                                                                          \
    static inline void cp_async##bytes(void *shared, const void *global, bool valid = true, EMULATION_LINE) {          \
        emulation::emulation_copy(shared, global, bytes, valid, line);                                                 \
        emulation::fence();                                                                                            \
    }                                                                                                                  \
    static inline void cp_async##bytes(u32 shared, const void *global, bool valid = true, EMULATION_LINE) {            \
        emulation::emulation_copy(emulation::emulation_shared_pointer(shared), global, bytes, valid, line);            \
        emulation::fence();                                                                                            \
    }
EMULATION_COPY(16)
EMULATION_COPY(8)
EMULATION_COPY(4)
#undef EMULATION_COPY
template <class T>
static inline T *in_register(T *pointer) {
    return pointer;
}
static inline void cp_async_commit() { emulation::emulation_commit(); }
template <int pending>
static inline void cp_async_wait() {
    emulation::emulation_wait(pending);
    emulation::fence();
}

#define EMULATION_LDMATRIX(name, count, is_transposed)                                                 \
    static inline void name(u32 (&r)[count], const void *row, EMULATION_LINE) {                        \
        emulation::Ldmatrix operands = {row, r, count, is_transposed};                                 \
        emulation::collective(emulation::LDMATRIX, line, &operands);                                   \
    }                                                                                                  \
    static inline void name(u32 (&r)[count], u32 row, EMULATION_LINE) {                                \
        name(r, emulation::emulation_shared_pointer(row), line);                                       \
    }
EMULATION_LDMATRIX(ldmatrix_x4, 4, false)
EMULATION_LDMATRIX(ldmatrix_x4_trans, 4, true)
EMULATION_LDMATRIX(ldmatrix_x2, 2, false)
EMULATION_LDMATRIX(ldmatrix_x2_trans, 2, true)
#undef EMULATION_LDMATRIX

#define EMULATION_MMA(name, kind, sum)                                                                          \
    static inline void name(sum (&d)[4], const u32 (&a)[4], const u32 (&b)[2], EMULATION_LINE) {                \
        emulation::Mma operands = {d, a, b};                                                                    \
        emulation::collective(emulation::kind, line, &operands);                                                \
    }
EMULATION_MMA(mma_bf16, MMA_BF16, f32)
EMULATION_MMA(mma_f16, MMA_F16, f32)
EMULATION_MMA(mma_tf32, MMA_TF32, f32)
EMULATION_MMA(mma_s8, MMA_S8, i32)
#undef EMULATION_MMA
static inline void mma_f64(f64 (&d)[2], f64 a, f64 b, EMULATION_LINE) {
    emulation::Mma operands = {d, &a, &b};
    emulation::collective(emulation::MMA_F64, line, &operands);
}

namespace emulation {
template <typename type>
static inline type shuffled(type value, int source, int line) {
    Shuffle operands = {0, 0, source >= 0 && source < 32 ? source : -1};
    __builtin_memcpy(&operands.value, &value, sizeof value);
    collective(SHUFFLE, line, &operands);
    __builtin_memcpy(&value, &operands.result, sizeof value);
    return value;
}
static inline int lane() { return (int)(threadIdx.x % 32u); }
}  // namespace emulation

#define EMULATION_EXCHANGES(type)                                                                                     \
    static inline type shuffle(type value, int lane, EMULATION_LINE) {                                                \
        return emulation::shuffled(value, lane & 31, line);                                                           \
    }                                                                                                                 \
    static inline type shuffle_down(type value, int lanes, EMULATION_LINE) {                                          \
        return emulation::shuffled(value, emulation::lane() + lanes, line);                                           \
    }                                                                                                                 \
    static inline type shuffle_up(type value, int lanes, EMULATION_LINE) {                                            \
        return emulation::shuffled(value, emulation::lane() - lanes, line);                                           \
    }                                                                                                                 \
    static inline type shuffle_xor(type value, int mask, EMULATION_LINE) {                                            \
        return emulation::shuffled(value, emulation::lane() ^ mask, line);                                            \
    }
EMULATION_EXCHANGES(f32)
EMULATION_EXCHANGES(f64)
EMULATION_EXCHANGES(i32)
EMULATION_EXCHANGES(u32)
EMULATION_EXCHANGES(i64)
EMULATION_EXCHANGES(u64)
#undef EMULATION_EXCHANGES
// CUDA's own name, which plain kernels use: of whole warps only
template <typename type>
static inline type __shfl_xor_sync(unsigned mask, type value, int distance, EMULATION_LINE) {
    if (mask != ~0u) emulation::emulation_fail(line, "a shuffle of a part of a warp is not emulated");
    return shuffle_xor(value, distance, line);
}

template <typename value_type>
static inline value_type warp_sum(value_type value, EMULATION_LINE) {
    for (int mask = 16; mask > 0; mask /= 2) value += shuffle_xor(value, mask, line);
    return value;
}
template <typename value_type>
static inline value_type warp_max(value_type value, EMULATION_LINE) {
    for (int mask = 16; mask > 0; mask /= 2) value = max(value, shuffle_xor(value, mask, line));
    return value;
}
template <typename value_type>
static inline value_type warp_min(value_type value, EMULATION_LINE) {
    for (int mask = 16; mask > 0; mask /= 2) value = min(value, shuffle_xor(value, mask, line));
    return value;
}
static inline u32 warp_ballot(bool value, EMULATION_LINE) {
    emulation::Ballot operands = {value, 0};
    emulation::collective(emulation::BALLOT, line, &operands);
    return operands.result;
}
static inline bool warp_any(bool value, EMULATION_LINE) { return warp_ballot(value, line) != 0; }
static inline bool warp_all(bool value, EMULATION_LINE) { return warp_ballot(!value, line) == 0; }

// Blocks run one after the other: one that waits for a later one would wait for ever.
EMULATION_NOTED static inline void signal_blocks(u32 *arrived, EMULATION_LINE) {
    emulation::emulation_atomic(arrived, 4, line);
    emulation::emulation_signal(arrived);
    ++*arrived;
}
EMULATION_NOTED static inline void wait_for_signals(const u32 *arrived, u32 target, EMULATION_LINE) {
    if ((i32)(*arrived - target) < 0)
        emulation::emulation_fail(line, "wait_among_blocks: %u arrived of %u, and later blocks run later", *arrived,
                                  target);
    emulation::emulation_atomic(arrived, 4, line);
    emulation::emulation_see_signals(arrived);
}
static inline void arrive_among_blocks(u32 *arrived, EMULATION_LINE) {
    __syncthreads(line);
    if (threadIdx.x == 0) signal_blocks(arrived);
}
static inline void wait_among_blocks(u32 *arrived, u32 target, EMULATION_LINE) {
    if (threadIdx.x == 0) wait_for_signals(arrived, target, line);
    __syncthreads(line);
}

EMULATION_NOTED static inline void largest_among_blocks(u32 *most, u32 value, EMULATION_LINE) {
    emulation::emulation_atomic(most, 4, line);
    *most = value > *most ? value : *most;
}

static inline u16 to_bf16(f32 value) { return emulation::bf16_of_f32(value); }
static inline u16 to_f16(f32 value) { return emulation::f16_of_f32(value); }
static inline f32 to_f32_bf16(u16 half) { return __uint_as_float((u32)half << 16); }
static inline f32 to_f32_f16(u16 half) { return emulation::f32_of_f16(half); }
static inline u32 pack_bf16(f32 low, f32 high) { return to_bf16(low) | (u32)to_bf16(high) << 16; }
static inline u32 pack_f16(f32 low, f32 high) { return to_f16(low) | (u32)to_f16(high) << 16; }
static inline f32 bf16_low(u32 pair) { return __uint_as_float(pair << 16); }
static inline f32 bf16_high(u32 pair) { return __uint_as_float(pair & 0xffff0000u); }
static inline f32 f16_low(u32 pair) { return to_f32_f16((u16)pair); }
static inline f32 f16_high(u32 pair) { return to_f32_f16((u16)(pair >> 16)); }
static inline u32 to_tf32(f32 value) { return emulation::tf32_of_f32(value); }

#define EMULATION_WIDE_LOAD(name, type)                                                              \
    EMULATION_NOTED static inline type name(const void *p, EMULATION_LINE) {                         \
        emulation::emulation_read(p, sizeof(type), line);                                            \
        return *(const type *)emulation::aligned(p, sizeof(type), line, #name);                      \
    }
#define EMULATION_WIDE_STORE(name, type)                                                             \
    EMULATION_NOTED static inline void name(void *p, type value, EMULATION_LINE) {                   \
        emulation::emulation_write(p, sizeof(type), line);                                           \
        *(type *)emulation::aligned(p, sizeof(type), line, #name) = value;                           \
    }
EMULATION_WIDE_LOAD(load4, u32)
EMULATION_WIDE_LOAD(load8, uint2)
EMULATION_WIDE_LOAD(load16, uint4)
EMULATION_WIDE_LOAD(load16_streaming, uint4)
EMULATION_WIDE_LOAD(load16_shared_cache, uint4)
EMULATION_WIDE_LOAD(load8_wide, uint2)
EMULATION_WIDE_LOAD(load16_wide, uint4)
EMULATION_WIDE_LOAD(load8_once, uint2)
EMULATION_WIDE_LOAD(load16_once, uint4)
EMULATION_WIDE_STORE(store4, u32)
EMULATION_WIDE_STORE(store8, uint2)
EMULATION_WIDE_STORE(store16, uint4)
EMULATION_WIDE_STORE(store16_streaming, uint4)
EMULATION_WIDE_STORE(store8_whole, uint2)
EMULATION_WIDE_STORE(store16_whole, uint4)
#undef EMULATION_WIDE_LOAD
#undef EMULATION_WIDE_STORE

static inline u32 byte_permute(u32 low, u32 high, u32 selector) { return __byte_perm(low, high, selector); }
static inline i32 dot4_s8(u32 a, u32 b, i32 sum) { return __dp4a((i32)a, (i32)b, sum); }
static inline f32 maximum_rough(f32 a, f32 b) { return a > b || a != a ? a : b; }
static inline f32 minimum_rough(f32 a, f32 b) { return a < b || a != a ? a : b; }
static inline f32 exp2_approximate(f32 x) { return x < -126.0f ? 0.0f : __builtin_exp2f(x); }
static inline f32 reciprocal_approximate(f32 x) { return 1.0f / x; }

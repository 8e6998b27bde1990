// Stands in for hopper.cuh, behind cuda.h, when a kernel of the "hopper" dialect is compiled for the CPU.
#pragma once
#include "cuda.h"

struct __align__(64) TensorMap {
    char opaque[128];
};

// ---- Barriers ----------------------------------------------------------------------------------------------------

EMULATION_NOTED static inline uint4 load16_among_256(const void *from, EMULATION_LINE) {
    emulation::emulation_read(from, 16, line);
    return *(const uint4 *)from;
}
// What is read behind it is seen to be none.
static inline void discard_line(const void *line, u32) {
    if ((u64)line % 128) emulation::emulation_fail(0, "discard_line: 128 bytes begin at a multiple of 128");
    for (int n = 0; n < 32; ++n) ((u32 *)line)[n] = 0xffffffff;
}
static inline void mbarrier_init(u32 barrier, u32 arrivals, EMULATION_LINE) {
    emulation::emulation_mbarrier_init(barrier, arrivals, line);
    emulation::fence();
}
static inline void mbarrier_init_fence() { emulation::emulation_mbarrier_fence(); }
static inline void mbarrier_arrive_expect(u32 barrier, u32 bytes, EMULATION_LINE) {
    emulation::fence();
    emulation::emulation_mbarrier_arrive(barrier, bytes, line);
    emulation::fence();
}
static inline void mbarrier_arrive(u32 barrier, EMULATION_LINE) { mbarrier_arrive_expect(barrier, 0, line); }
static inline void mbarrier_wait(u32 barrier, u32 parity, EMULATION_LINE) {
    emulation::fence();
    emulation::emulation_mbarrier_wait(barrier, parity, line);
    emulation::fence();
}
static inline void warpgroup_barrier(int number, EMULATION_LINE) {
    emulation::fence();
    emulation::emulation_warpgroup_barrier(number, line);
    emulation::fence();
}

// ---- Copies of boxes ---------------------------------------------------------------------------------------------

namespace emulation {
static inline void load(u32 shared, u32 barrier, const Box &box, int line) {
    fence();
    emulation_tma_load(shared, barrier, &box, line);
    fence();
}
static inline void ask(const Box &box, int line) { emulation_tma_ask(&box, line); }
// A tap as the instruction takes it: 16 bits.
static inline int tap(int value) { return (short)value; }
}  // namespace emulation

static inline void tma_load_3d(u32 shared, const TensorMap &map, u32 barrier, int a, int b, int c, EMULATION_LINE) {
    emulation::load(shared, barrier, {&map, false, 3, {a, b, c}, {}}, line);
}
static inline void tma_load_4d(u32 shared, const TensorMap &map, u32 barrier, int a, int b, int c, int d,
                               EMULATION_LINE) {
    emulation::load(shared, barrier, {&map, false, 4, {a, b, c, d}, {}}, line);
}
static inline void tma_load_5d(u32 shared, const TensorMap &map, u32 barrier, int a, int b, int c, int d, int e,
                               EMULATION_LINE) {
    emulation::load(shared, barrier, {&map, false, 5, {a, b, c, d, e}, {}}, line);
}
static inline void tma_load_im2col_3d(u32 shared, const TensorMap &map, u32 barrier, int c, int w, int n, int s,
                                      EMULATION_LINE) {
    emulation::load(shared, barrier, {&map, true, 3, {c, w, n}, {(unsigned short)s}}, line);
}
static inline void tma_load_im2col_4d(u32 shared, const TensorMap &map, u32 barrier, int c, int w, int h, int n, int s,
                                      int r, EMULATION_LINE) {
    emulation::load(shared, barrier, {&map, true, 4, {c, w, h, n}, {emulation::tap(s), emulation::tap(r)}}, line);
}
static inline void tma_load_im2col_5d(u32 shared, const TensorMap &map, u32 barrier, int c, int w, int h, int d, int n,
                                      int s, int r, int t, EMULATION_LINE) {
    emulation::load(shared, barrier,
                    {&map, true, 5, {c, w, h, d, n}, {emulation::tap(s), emulation::tap(r), emulation::tap(t)}}, line);
}
// As far as the L2 cache.
struct ToCache {};
static inline void tma_load_3d(u32, const TensorMap &map, u32, int a, int b, int c, ToCache, EMULATION_LINE) {
    emulation::ask({&map, false, 3, {a, b, c}, {}}, line);
}
static inline void tma_load_4d(u32, const TensorMap &map, u32, int a, int b, int c, int d,
                               ToCache, EMULATION_LINE) {
    emulation::ask({&map, false, 4, {a, b, c, d}, {}}, line);
}
static inline void tma_load_5d(u32, const TensorMap &map, u32, int a, int b, int c, int d, int e,
                               ToCache, EMULATION_LINE) {
    emulation::ask({&map, false, 5, {a, b, c, d, e}, {}}, line);
}
static inline void tma_load_im2col_3d(u32, const TensorMap &map, u32, int c, int w, int n, int s, ToCache, EMULATION_LINE) {
    emulation::ask({&map, true, 3, {c, w, n}, {(unsigned short)s}}, line);
}
static inline void tma_load_im2col_4d(u32, const TensorMap &map, u32, int c, int w, int h, int n, int s,
                                      int r, ToCache, EMULATION_LINE) {
    emulation::ask({&map, true, 4, {c, w, h, n}, {emulation::tap(s), emulation::tap(r)}}, line);
}
static inline void tma_load_im2col_5d(u32, const TensorMap &map, u32, int c, int w, int h, int d, int n,
                                      int s, int r, int t, ToCache, EMULATION_LINE) {
    emulation::ask({&map, true, 5, {c, w, h, d, n}, {emulation::tap(s), emulation::tap(r), emulation::tap(t)}}, line);
}
static inline void tma_store_3d(u32 shared, const TensorMap &map, int a, int b, int c, EMULATION_LINE) {
    const emulation::Box box = {&map, false, 3, {a, b, c}, {}};
    emulation::fence();
    emulation::emulation_tma_store(shared, &box, line);
}
static inline void tma_store_commit() { emulation::emulation_tma_store_commit(); }
template <int pending>
static inline void tma_store_wait_read(EMULATION_LINE) {
    static_assert(pending >= 0, "cp.async.bulk.wait_group takes no negative number");
    emulation::fence();
    emulation::emulation_tma_store_wait_read(pending, line);
    emulation::fence();
}
static inline void async_proxy_fence() {
    emulation::fence();
    emulation::emulation_async_proxy_fence();
}
static inline void tma_prefetch_map(const TensorMap &) {}

// ---- Products of a warpgroup -------------------------------------------------------------------------------------

static inline u64 wgmma_descriptor(u32 address, u32 repeat = 16, u32 row = 128) {
    const u64 swizzle = row == 128 ? 1 : row == 64 ? 2 : 3;
    return (u64)((address & 0x3ffff) >> 4) | (u64)(repeat >> 4) << 16 | (u64)(8 * row >> 4) << 32 | swizzle << 62;
}
static inline u32 in_own_register(u32 word) { return word; }
static inline u32 bits_in_own_register(f32 value) { return __float_as_uint(value); }
template <class Sums>
static inline void wgmma_fence_operand(Sums &) {}
static inline void wgmma_fence() {
    emulation::emulation_wgmma_fence();
    emulation::fence();
}
static inline void wgmma_commit(EMULATION_LINE) {
    emulation::emulation_wgmma_commit(line);
    emulation::fence();
}
template <int pending>
static inline void wgmma_wait(EMULATION_LINE) {
    static_assert(pending >= 0 && pending <= 7, "wgmma.wait_group takes 0 to 7");
    emulation::fence();
    emulation::emulation_wgmma_wait(pending, line);
    emulation::fence();
}

#define EMULATION_WGMMA(name, sum, element, element_b)                                                                              \
    template <bool is_a_mn_major, bool is_b_mn_major, int count>                                                    \
    static inline void name(sum (&d)[count], u64 a, u64 b, bool is_added, EMULATION_LINE) {                         \
        static_assert(count == 16 || count == 32 || count == 72 || (count >= 48 && count <= 128 && count % 16 == 0), \
                      "there are instructions for n = 32, 64, 96, 128, 144, 160, 192, 224 and 256");                \
        static_assert(emulation::element < emulation::TF32 || (!is_a_mn_major && !is_b_mn_major),                   \
                      "elements of one and of four bytes are K-major");                                             \
        const emulation::Product product = {d, a, b, emulation::element, emulation::element_b, 2 * count,           \
                                            is_a_mn_major, is_b_mn_major, is_added};                                \
        emulation::fence();                                                                                         \
        emulation::emulation_wgmma(&product, line);                                                                 \
        emulation::fence();                                                                                         \
    }
EMULATION_WGMMA(wgmma_bf16, f32, BF16, BF16)
EMULATION_WGMMA(wgmma_f16, f32, F16, F16)
EMULATION_WGMMA(wgmma_tf32, f32, TF32, TF32)
EMULATION_WGMMA(wgmma_s8, i32, S8, S8)
EMULATION_WGMMA(wgmma_e4m3_e4m3, f32, E4M3, E4M3)
EMULATION_WGMMA(wgmma_e4m3_e5m2, f32, E4M3, E5M2)
EMULATION_WGMMA(wgmma_e5m2_e4m3, f32, E5M2, E4M3)
EMULATION_WGMMA(wgmma_e5m2_e5m2, f32, E5M2, E5M2)
#undef EMULATION_WGMMA

#define EMULATION_WGMMA_A(name, element)                                                                            \
    template <bool is_b_mn_major, int count>                                                                        \
    static inline void name(f32 (&d)[count], const u32 (&a)[4], u64 b, bool is_added, EMULATION_LINE) {             \
        static_assert(count == 16 || count == 32 || count == 72 || (count >= 48 && count <= 128 && count % 16 == 0), \
                      "there are instructions for n = 32, 64, 96, 128, 144, 160, 192, 224 and 256");                     \
        static_assert(emulation::element != emulation::TF32 || !is_b_mn_major, "tf32 is K-major");                  \
        const emulation::Product product = {d, 0, b, emulation::element, emulation::element, 2 * count, false,      \
                                            is_b_mn_major, is_added, a};                                            \
        emulation::fence();                                                                                         \
        emulation::emulation_wgmma(&product, line);                                                                 \
        emulation::fence();                                                                                         \
    }
EMULATION_WGMMA_A(wgmma_a_bf16, BF16)
EMULATION_WGMMA_A(wgmma_a_f16, F16)
EMULATION_WGMMA_A(wgmma_a_tf32, TF32)
#undef EMULATION_WGMMA_A

// ---- Registers of a warpgroup, and the way out -------------------------------------------------------------------

template <int count>
static inline void registers_release() {
    static_assert(count % 8 == 0 && count >= 24 && count <= 256, "registers come in multiples of 8 from 24 to 256");
}
template <int count>
static inline void registers_acquire() {
    registers_release<count>();
}

static inline u32 pack_relu_bf16(f32 low, f32 high) { return pack_bf16(low < 0 ? 0 : low, high < 0 ? 0 : high); }
static inline u32 pack_relu_f16(f32 low, f32 high) { return pack_f16(low < 0 ? 0 : low, high < 0 ? 0 : high); }

static inline void stmatrix_x4(u32 row, u32 a, u32 b, u32 c, u32 d, EMULATION_LINE) {
    emulation::Stmatrix operands = {emulation::emulation_shared_pointer(row), {a, b, c, d}, false};
    emulation::collective(emulation::STMATRIX, line, &operands);
}
static inline void stmatrix_x4_transposed(u32 row, u32 a, u32 b, u32 c, u32 d, EMULATION_LINE) {
    emulation::Stmatrix operands = {emulation::emulation_shared_pointer(row), {a, b, c, d}, true};
    emulation::collective(emulation::STMATRIX, line, &operands);
}

static inline u16 pack_f8e4m3(f32 low, f32 high) {
    return emulation::f8_of_f32<3>(low) | emulation::f8_of_f32<3>(high) << 8;
}
static inline u16 pack_f8e5m2(f32 low, f32 high) {
    return emulation::f8_of_f32<2>(low) | emulation::f8_of_f32<2>(high) << 8;
}

namespace emulation {
template <typename type>
EMULATION_NOTED static inline type loaded(u32 address, const char *what, int line) {
    fence();
    const void *from = emulation_shared_access(address, sizeof(type), what, line);
    emulation_read(from, sizeof(type), line);
    return *(const type *)from;
}
template <typename type>
EMULATION_NOTED static inline void stored(u32 address, type value, const char *what, int line) {
    *(type *)emulation_shared_write(address, sizeof(type), what, line) = value;
    fence();
}
}  // namespace emulation

static inline uint4 shared_load16(u32 address, EMULATION_LINE) {
    return emulation::loaded<uint4>(address, "shared_load16", line);
}
static inline uint2 shared_load8(u32 address, EMULATION_LINE) {
    return emulation::loaded<uint2>(address, "shared_load8", line);
}
static inline u32 shared_load4(u32 address, EMULATION_LINE) {
    return emulation::loaded<u32>(address, "shared_load4", line);
}
static inline u16 shared_load2(u32 address, EMULATION_LINE) {
    return emulation::loaded<u16>(address, "shared_load2", line);
}
static inline u8 shared_load1(u32 address, EMULATION_LINE) {
    return emulation::loaded<u8>(address, "shared_load1", line);
}
static inline void shared_store2(u32 address, u16 value, EMULATION_LINE) {
    emulation::stored(address, value, "shared_store2", line);
}
static inline void shared_store4(u32 address, u32 value, EMULATION_LINE) {
    emulation::stored(address, value, "shared_store4", line);
}
static inline void shared_store16(u32 address, uint4 value, EMULATION_LINE) {
    emulation::stored(address, value, "shared_store16", line);
}
static inline void shared_store8(u32 address, u32 low, u32 high, EMULATION_LINE) {
    emulation::stored(address, uint2{low, high}, "shared_store8", line);
}
static inline i64 shared_load_i64(u32 address, EMULATION_LINE) {
    return emulation::loaded<i64>(address, "shared_load_i64", line);
}
static inline void shared_store_i64(u32 address, i64 value, EMULATION_LINE) {
    emulation::stored(address, value, "shared_store_i64", line);
}

// ---- Clusters ----------------------------------------------------------------------------------------------------

#define KERNEL_OF_CLUSTERS(threads, blocks) extern "C" __global__ __launch_bounds__(threads, 1, blocks)
#define KERNEL_OF_ANY_CLUSTERS(threads) extern "C" __global__ __launch_bounds__(threads, 1, 0)
static inline u32 cluster_address(u32 shared, int block, EMULATION_LINE) {
    return emulation::emulation_cluster_address(shared, block, line);
}
static inline void cluster_store4(u32 there, u32 value, EMULATION_LINE) {
    shared_store4(emulation::emulation_own_address(there, "cluster_store4", line), value, line);
}
static inline void cluster_store8(u32 there, u32 low, u32 high, EMULATION_LINE) {
    shared_store8(emulation::emulation_own_address(there, "cluster_store8", line), low, high, line);
}
EMULATION_NOTED static inline uint4 cluster_load16(u32 there, EMULATION_LINE) {
    emulation::fence();
    return *(const uint4 *)emulation::emulation_cluster_access(there, 16, "cluster_load16", line);
}
static inline void cluster_arrive_relaxed(EMULATION_LINE) {
    emulation::fence();
    emulation::emulation_cluster_arrive(true, line);
}
static inline void cluster_arrive(EMULATION_LINE) {
    emulation::fence();
    emulation::emulation_cluster_arrive(false, line);
}
static inline void cluster_wait(EMULATION_LINE) {
    emulation::emulation_cluster_wait(line);
    emulation::fence();
}

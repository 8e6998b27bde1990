// Stands in for CUDA's built-in names and for instructions.cuh when a kernel is compiled for the CPU. No system header
// is included: kernels may use any name that CUDA leaves free.
#pragma once
#include "runtime.h"

using emulation::blockDim;
using emulation::blockIdx;
using emulation::gridDim;
using emulation::threadIdx;

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
#define KERNEL(threads) static
#define KERNEL2(threads, min_blocks) static
#define FUNCTION static inline
#define GLOBAL
#define RESTRICT __restrict__

// ---- Words of the language ---------------------------------------------------------------------------------------

#define __CUDACC__ 1
#define __CUDACC_RTC__ 1
#define __CUDA_ARCH__ EMULATION_ARCH
#define __builtin_assume(condition) ((void)0)
#define __trap() emulation::emulation_fail(__builtin_LINE(), "__trap")
#define __align__(bytes) __attribute__((aligned(bytes)))
#define __constant__
#define __device__
#define __forceinline__ inline
#define __global__
#define __grid_constant__
#define __host__
#define __launch_bounds__(...)
#define __noinline__ __attribute__((noinline))
#define __shared__ static __attribute__((used))
// All that is static and not constant is shared arrays: device.py renames their section (.bss; templates heed no
// section attribute), so that every block can begin with poison in it.
extern "C" char __start_shared_arrays[] __attribute__((weak, visibility("hidden")));
extern "C" char __stop_shared_arrays[] __attribute__((weak, visibility("hidden")));

// ---- Vector types ------------------------------------------------------------------------------------------------

#define EMULATION_VECTORS(name, type)                                                                    \
    struct name##1 { type x; };                                                                          \
    struct __align__(2 * sizeof(type)) name##2 { type x, y; };                                           \
    struct name##3 { type x, y, z; };                                                                    \
    struct __align__(4 * sizeof(type) < 16 ? 4 * sizeof(type) : 16) name##4 { type x, y, z, w; };        \
    static inline name##1 make_##name##1(type x) { return {x}; }                                         \
    static inline name##2 make_##name##2(type x, type y) { return {x, y}; }                              \
    static inline name##3 make_##name##3(type x, type y, type z) { return {x, y, z}; }                   \
    static inline name##4 make_##name##4(type x, type y, type z, type w) { return {x, y, z, w}; }
EMULATION_VECTORS(char, signed char)
EMULATION_VECTORS(uchar, unsigned char)
EMULATION_VECTORS(short, short)
EMULATION_VECTORS(ushort, unsigned short)
EMULATION_VECTORS(int, int)
EMULATION_VECTORS(uint, unsigned int)
EMULATION_VECTORS(longlong, long long)
EMULATION_VECTORS(ulonglong, unsigned long long)
EMULATION_VECTORS(float, float)
EMULATION_VECTORS(double, double)
#undef EMULATION_VECTORS

// ---- Mathematics: overloaded for float and double, and float under C's name --------------------------------------

#define EMULATION_MATH1(name)                                                  \
    static inline double name(double x) { return __builtin_##name(x); }        \
    static inline float name(float x) { return __builtin_##name##f(x); }       \
    static inline float name##f(float x) { return __builtin_##name##f(x); }
#define EMULATION_MATH2(name)                                                                  \
    static inline double name(double x, double y) { return __builtin_##name(x, y); }           \
    static inline float name(float x, float y) { return __builtin_##name##f(x, y); }           \
    static inline double name(double x, float y) { return __builtin_##name(x, y); }            \
    static inline double name(float x, double y) { return __builtin_##name(x, y); }            \
    static inline float name##f(float x, float y) { return __builtin_##name##f(x, y); }
EMULATION_MATH1(acos)
EMULATION_MATH1(acosh)
EMULATION_MATH1(asin)
EMULATION_MATH1(asinh)
EMULATION_MATH1(atan)
EMULATION_MATH1(atanh)
EMULATION_MATH1(cbrt)
EMULATION_MATH1(ceil)
EMULATION_MATH1(cos)
EMULATION_MATH1(cosh)
EMULATION_MATH1(erf)
EMULATION_MATH1(erfc)
EMULATION_MATH1(exp)
EMULATION_MATH1(exp10)
EMULATION_MATH1(exp2)
EMULATION_MATH1(expm1)
EMULATION_MATH1(fabs)
EMULATION_MATH1(floor)
EMULATION_MATH1(lgamma)
EMULATION_MATH1(log)
EMULATION_MATH1(log10)
EMULATION_MATH1(log1p)
EMULATION_MATH1(log2)
EMULATION_MATH1(logb)
EMULATION_MATH1(nearbyint)
EMULATION_MATH1(rint)
EMULATION_MATH1(round)
EMULATION_MATH1(sin)
EMULATION_MATH1(sinh)
EMULATION_MATH1(sqrt)
EMULATION_MATH1(tan)
EMULATION_MATH1(tanh)
EMULATION_MATH1(tgamma)
EMULATION_MATH1(trunc)
EMULATION_MATH2(atan2)
EMULATION_MATH2(copysign)
EMULATION_MATH2(fdim)
EMULATION_MATH2(fmax)
EMULATION_MATH2(fmin)
EMULATION_MATH2(fmod)
EMULATION_MATH2(hypot)
EMULATION_MATH2(pow)
EMULATION_MATH2(remainder)
#undef EMULATION_MATH1
#undef EMULATION_MATH2

static inline float pow(float x, int n) { return __builtin_powf(x, (float)n); }
static inline double pow(double x, int n) { return __builtin_pow(x, (double)n); }
static inline float fmaf(float a, float b, float c) { return __builtin_fmaf(a, b, c); }
static inline float fma(float a, float b, float c) { return __builtin_fmaf(a, b, c); }
static inline double fma(double a, double b, double c) { return __builtin_fma(a, b, c); }
static inline float ldexp(float x, int n) { return __builtin_ldexpf(x, n); }
static inline float ldexpf(float x, int n) { return __builtin_ldexpf(x, n); }
static inline double ldexp(double x, int n) { return __builtin_ldexp(x, n); }
static inline float rsqrtf(float x) { return 1.0f / __builtin_sqrtf(x); }
static inline float rsqrt(float x) { return 1.0f / __builtin_sqrtf(x); }
static inline double rsqrt(double x) { return 1.0 / __builtin_sqrt(x); }
static inline float normcdff(float x) { return 0.5f * __builtin_erfcf(x * -0.70710678118654752f); }
static inline double normcdf(double x) { return 0.5 * __builtin_erfc(x * -0.70710678118654752); }
static inline bool isnan(float x) { return x != x; }
static inline bool isnan(double x) { return x != x; }
static inline bool isinf(float x) { return __builtin_isinf(x); }
static inline bool isinf(double x) { return __builtin_isinf(x); }
static inline bool isfinite(float x) { return __builtin_isfinite(x); }
static inline bool isfinite(double x) { return __builtin_isfinite(x); }
static inline bool signbit(float x) { return __builtin_signbit(x); }
static inline bool signbit(double x) { return __builtin_signbit(x); }
static inline float abs(float x) { return __builtin_fabsf(x); }
static inline double abs(double x) { return __builtin_fabs(x); }
static inline int abs(int x) { return __builtin_abs(x); }
static inline long long abs(long long x) { return __builtin_llabs(x); }
static inline long long llabs(long long x) { return __builtin_llabs(x); }

static inline float min(float a, float b) { return __builtin_fminf(a, b); }
static inline float max(float a, float b) { return __builtin_fmaxf(a, b); }
static inline double min(float a, double b) { return __builtin_fmin(a, b); }
static inline double max(float a, double b) { return __builtin_fmax(a, b); }
static inline double min(double a, float b) { return __builtin_fmin(a, b); }
static inline double max(double a, float b) { return __builtin_fmax(a, b); }
static inline double min(double a, double b) { return __builtin_fmin(a, b); }
static inline double max(double a, double b) { return __builtin_fmax(a, b); }
#define EMULATION_ORDER(type, a_type, b_type)                                                              \
    static inline type min(a_type a, b_type b) { return (type)a < (type)b ? (type)a : (type)b; }           \
    static inline type max(a_type a, b_type b) { return (type)a > (type)b ? (type)a : (type)b; }
EMULATION_ORDER(int, int, int)
EMULATION_ORDER(unsigned, unsigned, unsigned)
EMULATION_ORDER(unsigned, int, unsigned)
EMULATION_ORDER(unsigned, unsigned, int)
EMULATION_ORDER(long, long, long)
EMULATION_ORDER(unsigned long, unsigned long, unsigned long)
EMULATION_ORDER(long long, long long, long long)
EMULATION_ORDER(unsigned long long, unsigned long long, unsigned long long)
EMULATION_ORDER(unsigned long long, long long, unsigned long long)
EMULATION_ORDER(unsigned long long, unsigned long long, long long)
#undef EMULATION_ORDER

#define __expf(x) __builtin_expf(x)
#define __exp10f(x) __builtin_exp10f(x)
#define __logf(x) __builtin_logf(x)
#define __log2f(x) __builtin_log2f(x)
#define __log10f(x) __builtin_log10f(x)
#define __powf(x, y) __builtin_powf(x, y)
#define __sinf(x) __builtin_sinf(x)
#define __cosf(x) __builtin_cosf(x)
#define __tanf(x) __builtin_tanf(x)
#define __frsqrt_rn(x) rsqrtf(x)
static inline float __fdividef(float a, float b) { return a / b; }
static inline float __fdiv_rn(float a, float b) { return a / b; }
static inline float __frcp_rn(float a) { return 1.0f / a; }
static inline float __fsqrt_rn(float a) { return __builtin_sqrtf(a); }
static inline float __fmul_rn(float a, float b) { return a * b; }
static inline float __fadd_rn(float a, float b) { return a + b; }
static inline float __fsub_rn(float a, float b) { return a - b; }
static inline float __fmaf_rn(float a, float b, float c) { return __builtin_fmaf(a, b, c); }
static inline double __dmul_rn(double a, double b) { return a * b; }
static inline double __dadd_rn(double a, double b) { return a + b; }
static inline float __saturatef(float x) { return x > 0.0f ? (x < 1.0f ? x : 1.0f) : 0.0f; }

// ---- Bits and conversions ----------------------------------------------------------------------------------------

namespace emulation {
template <typename To, typename From>
static inline To bits(From from) {
    static_assert(sizeof(To) == sizeof(From));
    To to;
    __builtin_memcpy(&to, &from, sizeof to);
    return to;
}
// Out of range values go to the nearest end, as on the GPU.
template <typename To, typename From>
static inline To whole(From rounded, To least, To most) {
    if (rounded != rounded) return sizeof(To) == 8 ? least : To(0);
    if (rounded <= (From)least) return least;
    return rounded >= (From)most ? most : (To)rounded;
}
}  // namespace emulation

static inline unsigned __float_as_uint(float x) { return emulation::bits<unsigned>(x); }
static inline int __float_as_int(float x) { return emulation::bits<int>(x); }
static inline float __uint_as_float(unsigned x) { return emulation::bits<float>(x); }
static inline float __int_as_float(int x) { return emulation::bits<float>(x); }
static inline long long __double_as_longlong(double x) { return emulation::bits<long long>(x); }
static inline double __longlong_as_double(long long x) { return emulation::bits<double>(x); }

#define EMULATION_ROUNDED(suffix, from, rounding, builtin)                                                             \
    static inline int __##from##2int_##suffix(from x) {                                                                \
        return emulation::whole<int>(builtin(x), -0x7fffffff - 1, 0x7fffffff);                                         \
    }                                                                                                                  \
    static inline unsigned __##from##2uint_##suffix(from x) { return emulation::whole<unsigned>(builtin(x), 0u, ~0u); } \
    static inline long long __##from##2ll_##suffix(from x) {                                                           \
        return emulation::whole<long long>(builtin(x), -0x7fffffffffffffffll - 1, 0x7fffffffffffffffll);               \
    }
EMULATION_ROUNDED(rn, float, nearest, __builtin_rintf)
EMULATION_ROUNDED(rz, float, zero, __builtin_truncf)
EMULATION_ROUNDED(rd, float, down, __builtin_floorf)
EMULATION_ROUNDED(ru, float, up, __builtin_ceilf)
EMULATION_ROUNDED(rn, double, nearest, __builtin_rint)
EMULATION_ROUNDED(rz, double, zero, __builtin_trunc)
EMULATION_ROUNDED(rd, double, down, __builtin_floor)
EMULATION_ROUNDED(ru, double, up, __builtin_ceil)
#undef EMULATION_ROUNDED
static inline float __int2float_rn(int x) { return (float)x; }
static inline float __uint2float_rn(unsigned x) { return (float)x; }
static inline float __ll2float_rn(long long x) { return (float)x; }
static inline float __double2float_rn(double x) { return (float)x; }

static inline int __popc(unsigned x) { return __builtin_popcount(x); }
static inline int __popcll(unsigned long long x) { return __builtin_popcountll(x); }
static inline int __clz(int x) { return x ? __builtin_clz((unsigned)x) : 32; }
static inline int __clzll(long long x) { return x ? __builtin_clzll((unsigned long long)x) : 64; }
static inline int __ffs(int x) { return __builtin_ffs(x); }
static inline int __ffsll(long long x) { return __builtin_ffsll(x); }
static inline unsigned __brev(unsigned x) {
    unsigned reversed = 0;
    for (int bit = 0; bit < 32; ++bit) reversed |= (x >> bit & 1u) << (31 - bit);
    return reversed;
}
static inline unsigned __umulhi(unsigned a, unsigned b) { return (unsigned)((unsigned long long)a * b >> 32); }
static inline int __mulhi(int a, int b) { return (int)((long long)a * b >> 32); }
static inline unsigned long long __umul64hi(unsigned long long a, unsigned long long b) {
    return (unsigned long long)((unsigned __int128)a * b >> 64);
}
static inline long long __mul64hi(long long a, long long b) { return (long long)((__int128)a * b >> 64); }
static inline unsigned __byte_perm(unsigned low, unsigned high, unsigned selector) {
    const unsigned long long all = (unsigned long long)high << 32 | low;
    unsigned result = 0;
    for (int n = 0; n < 4; ++n) {
        const unsigned nibble = selector >> 4 * n & 15u;
        unsigned byte = (unsigned)(all >> 8 * (nibble & 7u)) & 0xffu;
        if (nibble & 8u) byte = byte & 0x80u ? 0xffu : 0u;  // the sign, repeated
        result |= byte << 8 * n;
    }
    return result;
}
static inline unsigned __funnelshift_l(unsigned low, unsigned high, unsigned shift) {
    return (unsigned)(((unsigned long long)high << 32 | low) << (shift & 31u) >> 32);
}
static inline unsigned __funnelshift_r(unsigned low, unsigned high, unsigned shift) {
    return (unsigned)(((unsigned long long)high << 32 | low) >> (shift & 31u));
}
static inline int __dp4a(int a, int b, int sum) {
    for (int n = 0; n < 4; ++n) sum += (int)(signed char)(a >> 8 * n) * (int)(signed char)(b >> 8 * n);
    return sum;
}

// ---- Memory ------------------------------------------------------------------------------------------------------

template <typename type> static inline type __ldg(const type *p) { return *p; }
template <typename type> static inline type __ldcs(const type *p) { return *p; }
template <typename type> static inline type __ldcg(const type *p) { return *p; }
template <typename type> static inline void __stcs(type *p, type value) { *p = value; }
template <typename type> static inline void __stcg(type *p, type value) { *p = value; }
static inline void __threadfence() {}
static inline void __threadfence_block() {}

// Atomics of integers alone: sums of reals would depend on the order.
#define EMULATION_ATOMIC(name, type, result)                       \
    static inline type name(type *p, type value) {                 \
        const type before = *p;                                    \
        *p = result;                                               \
        return before;                                             \
    }
#define EMULATION_ATOMICS(type)                                                      \
    EMULATION_ATOMIC(atomicAdd, type, (type)((u64)before + (u64)value))              \
    EMULATION_ATOMIC(atomicMax, type, before > value ? before : value)               \
    EMULATION_ATOMIC(atomicMin, type, before < value ? before : value)               \
    EMULATION_ATOMIC(atomicOr, type, before | value)                                 \
    EMULATION_ATOMIC(atomicAnd, type, before & value)                                \
    EMULATION_ATOMIC(atomicXor, type, before ^ value)                                \
    EMULATION_ATOMIC(atomicExch, type, value)                                        \
    static inline type atomicCAS(type *p, type expected, type value) {               \
        const type before = *p;                                                      \
        if (before == expected) *p = value;                                          \
        return before;                                                               \
    }
EMULATION_ATOMICS(int)
EMULATION_ATOMICS(unsigned)
EMULATION_ATOMICS(unsigned long long)
#undef EMULATION_ATOMICS
#undef EMULATION_ATOMIC

// ---- instructions.cuh --------------------------------------------------------------------------------------------

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
    if ((unsigned long)p % bytes) emulation_fail(line, "%s: misaligned address %p: it must be a multiple of %lu", what, p, bytes);
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

static inline u16 to_bf16(f32 value) { return emulation::emulation_bf16_of_f32(value); }
static inline u16 to_f16(f32 value) { return emulation::emulation_f16_of_f32(value); }
static inline f32 to_f32_bf16(u16 half) { return __uint_as_float((u32)half << 16); }
static inline f32 to_f32_f16(u16 half) { return emulation::emulation_f32_of_f16(half); }
static inline u32 pack_bf16(f32 low, f32 high) { return to_bf16(low) | (u32)to_bf16(high) << 16; }
static inline u32 pack_f16(f32 low, f32 high) { return to_f16(low) | (u32)to_f16(high) << 16; }
static inline f32 bf16_low(u32 pair) { return __uint_as_float(pair << 16); }
static inline f32 bf16_high(u32 pair) { return __uint_as_float(pair & 0xffff0000u); }
static inline f32 f16_low(u32 pair) { return to_f32_f16((u16)pair); }
static inline f32 f16_high(u32 pair) { return to_f32_f16((u16)(pair >> 16)); }
static inline u32 to_tf32(f32 value) {
    const u32 bits = __float_as_uint(value);
    if ((bits & 0x7fffffffu) > 0x7f800000u) return 0x7fffffffu;
    if ((bits & 0x7fffffffu) == 0x7f800000u) return bits;
    return (bits + 0x1000u) & ~0x1fffu;
}

#define EMULATION_WIDE_LOAD(name, type)                                                              \
    static inline type name(const void *p, EMULATION_LINE) {                                         \
        return *(const type *)emulation::aligned(p, sizeof(type), line, #name);                      \
    }
#define EMULATION_WIDE_STORE(name, type)                                                             \
    static inline void name(void *p, type value, EMULATION_LINE) {                                   \
        *(type *)emulation::aligned(p, sizeof(type), line, #name) = value;                           \
    }
EMULATION_WIDE_LOAD(load4, u32)
EMULATION_WIDE_LOAD(load8, uint2)
EMULATION_WIDE_LOAD(load16, uint4)
EMULATION_WIDE_LOAD(load16_streaming, uint4)
EMULATION_WIDE_STORE(store4, u32)
EMULATION_WIDE_STORE(store8, uint2)
EMULATION_WIDE_STORE(store16, uint4)
EMULATION_WIDE_STORE(store16_streaming, uint4)
#undef EMULATION_WIDE_LOAD
#undef EMULATION_WIDE_STORE

static inline u32 byte_permute(u32 low, u32 high, u32 selector) { return __byte_perm(low, high, selector); }
static inline i32 dot4_s8(u32 a, u32 b, i32 sum) { return __dp4a((i32)a, (i32)b, sum); }
static inline f32 exp2_approximate(f32 x) { return x < -126.0f ? 0.0f : __builtin_exp2f(x); }

// ---- How a kernel is called: arguments of 8 bytes each -----------------------------------------------------------

namespace emulation {
template <typename type>
static inline type argument(const u64 *slot) {
    static_assert(sizeof(type) == 8, "arguments of kernels are pointers, SCALE and i64");
    type value;
    __builtin_memcpy(&value, slot, sizeof value);
    return value;
}
template <int... numbers>
struct Numbers {};
template <typename... types, int... numbers>
static inline void call(void (*kernel)(types...), const u64 *slots, Numbers<numbers...>) {
    kernel(argument<types>(slots + numbers)...);
}
template <typename... types>
static inline void call(void (*kernel)(types...), const void *slots) {
    call(kernel, (const u64 *)slots, Numbers<__integer_pack((int)sizeof...(types))...>{});
}
template <typename... types>
static constexpr int arity(void (*)(types...)) {
    return (int)sizeof...(types);
}
}  // namespace emulation

// What Python finds of a kernel, behind its text.
#define EMULATION_FIRST(value, ...) (value)
#define EMULATION_EXPORT(name)                                                                              \
    extern "C" __attribute__((visibility("default"))) void emulation_entry_##name(const void *slots) { emulation::call(name, slots); }             \
    extern "C" __attribute__((visibility("default"))) int emulation_arity_##name() { return emulation::arity(name); }
#define EMULATION_EXPORT_THREADS(name, ...) \
    extern "C" __attribute__((visibility("default"))) int emulation_threads_##name() { return EMULATION_FIRST(__VA_ARGS__, 0); }
extern "C" __attribute__((visibility("default"))) void *emulation_shared_begin() { return __start_shared_arrays; }
extern "C" __attribute__((visibility("default"))) void *emulation_shared_end() { return __stop_shared_arrays; }

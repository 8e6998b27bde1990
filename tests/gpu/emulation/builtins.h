// CUDA's words, types and functions for a kernel that is compiled for the CPU. No system header is included: kernels
// may use any name that CUDA leaves free.
#pragma once
#include "runtime.h"

using emulation::blockDim;
using emulation::blockIdx;
using emulation::gridDim;
using emulation::threadIdx;

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
#define __grid_constant__
#define __host__
#define __noinline__ __attribute__((noinline))
// Of functions that say themselves what they read and write.
#define EMULATION_NOTED __attribute__((no_sanitize("thread")))
// __global__, __launch_bounds__ and __shared__ stay as they are: build.py replaces them in the preprocessed text.

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

#define EMULATION_ROUNDED(suffix, from, builtin)                                                                       \
    static inline int __##from##2int_##suffix(from x) {                                                                \
        return emulation::whole<int>(builtin(x), -0x7fffffff - 1, 0x7fffffff);                                         \
    }                                                                                                                  \
    static inline unsigned __##from##2uint_##suffix(from x) {                                                          \
        return emulation::whole<unsigned>(builtin(x), 0u, ~0u);                                                        \
    }                                                                                                                  \
    static inline long long __##from##2ll_##suffix(from x) {                                                           \
        return emulation::whole<long long>(builtin(x), -0x7fffffffffffffffll - 1, 0x7fffffffffffffffll);               \
    }
EMULATION_ROUNDED(rn, float, __builtin_rintf)
EMULATION_ROUNDED(rz, float, __builtin_truncf)
EMULATION_ROUNDED(rd, float, __builtin_floorf)
EMULATION_ROUNDED(ru, float, __builtin_ceilf)
EMULATION_ROUNDED(rn, double, __builtin_rint)
EMULATION_ROUNDED(rz, double, __builtin_trunc)
EMULATION_ROUNDED(rd, double, __builtin_floor)
EMULATION_ROUNDED(ru, double, __builtin_ceil)
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

#define EMULATION_CACHED(load, store)                                                                                \
    template <typename type>                                                                                         \
    EMULATION_NOTED static inline type load(const type *p, int line = __builtin_LINE()) {                            \
        emulation::emulation_read(p, sizeof *p, line);                                                               \
        return *p;                                                                                                   \
    }                                                                                                                \
    template <typename type>                                                                                         \
    EMULATION_NOTED static inline void store(type *p, type value, int line = __builtin_LINE()) {                     \
        emulation::emulation_write(p, sizeof *p, line);                                                              \
        *p = value;                                                                                                  \
    }
EMULATION_CACHED(__ldcs, __stcs)
EMULATION_CACHED(__ldcg, __stcg)
EMULATION_CACHED(__ldg, emulation_no_store)
#undef EMULATION_CACHED
static inline void __threadfence() {}
static inline void __threadfence_block() {}

// Atomics of integers alone: sums of reals would depend on the order.
#define EMULATION_ATOMIC(name, type, result)                       \
    EMULATION_NOTED static inline type name(type *p, type value, int line = __builtin_LINE()) {      \
        emulation::emulation_atomic(p, sizeof *p, line);           \
        const type before = *p;                                    \
        *p = result;                                               \
        return before;                                             \
    }
#define EMULATION_ATOMICS(type)                                                      \
    EMULATION_ATOMIC(atomicAdd, type, (type)((unsigned long long)before + (unsigned long long)value))              \
    EMULATION_ATOMIC(atomicMax, type, before > value ? before : value)               \
    EMULATION_ATOMIC(atomicMin, type, before < value ? before : value)               \
    EMULATION_ATOMIC(atomicOr, type, before | value)                                 \
    EMULATION_ATOMIC(atomicAnd, type, before & value)                                \
    EMULATION_ATOMIC(atomicXor, type, before ^ value)                                \
    EMULATION_ATOMIC(atomicExch, type, value)                                        \
    EMULATION_NOTED static inline type atomicCAS(type *p, type expected, type value, int line = __builtin_LINE()) { \
        emulation::emulation_atomic(p, sizeof *p, line);                             \
        const type before = *p;                                                      \
        if (before == expected) *p = value;                                          \
        return before;                                                               \
    }
EMULATION_ATOMICS(int)
EMULATION_ATOMICS(unsigned)
EMULATION_ATOMICS(unsigned long long)
#undef EMULATION_ATOMICS
#undef EMULATION_ATOMIC

/* What CUDA C++ and OpenCL C call differently, so that one text of a kernel serves both.
 *
 * A plain kernel uses the names below and otherwise only what the two languages have in common: C99 without
 * variable-length arrays. HAS_F64 is defined to 0 for devices without double precision.
 */
#ifdef __OPENCL_VERSION__
#pragma OPENCL FP_CONTRACT ON
#if HAS_F64
#pragma OPENCL EXTENSION cl_khr_fp64 : enable
#endif
#define GLOBAL __global
#define SHARED __local
#define RESTRICT restrict
#define FUNCTION inline
#define CONSTANT_TABLE __constant
#define KERNEL(threads) __kernel __attribute__((reqd_work_group_size(threads, 1, 1)))
#define BLOCK_ID(axis) get_group_id(axis)
#define GRID_SIZE(axis) get_num_groups(axis)
#define THREAD_ID ((int)get_local_id(0))
#define THREADS ((int)get_local_size(0))
#define BARRIER() barrier(CLK_LOCAL_MEM_FENCE | CLK_GLOBAL_MEM_FENCE)
typedef char i8;
typedef uchar u8;
typedef short i16;
typedef ushort u16;
typedef int i32;
typedef uint u32;
typedef long i64;
typedef ulong u64;
FUNCTION u32 bits_of_f32(float x) { return as_uint(x); }
FUNCTION float f32_of_bits(u32 x) { return as_float(x); }
FUNCTION float load_f16(GLOBAL const u16 *p, i64 i) { return vload_half(i, (GLOBAL const half *)p); }
FUNCTION void store_f16(GLOBAL u16 *p, i64 i, float x) { vstore_half_rte(x, i, (GLOBAL half *)p); }
FUNCTION float f32_of_f16(u16 bits) { return vload_half(0, (const __private half *)&bits); }
FUNCTION u16 bits_of_f16(float x) {
  u16 bits;
  vstore_half_rte(x, 0, (__private half *)&bits);
  return bits;
}
#define VECTOR4(type) type##4
typedef uint2 u32x2;
typedef VECTOR4(uint) u32x4;
typedef VECTOR4(float) f32x4;
#else
#ifndef JITDNN_INSTRUCTIONS /* the CUDA prelude defines these types too */
#define GLOBAL
#define RESTRICT __restrict__
#define FUNCTION static __device__ __forceinline__
#define KERNEL(threads) extern "C" __global__ __launch_bounds__(threads)
typedef signed char i8;
typedef unsigned char u8;
typedef short i16;
typedef unsigned short u16;
typedef int i32;
typedef unsigned int u32;
typedef long long i64;
typedef unsigned long long u64;
#endif
#define SHARED __shared__
#define CONSTANT_TABLE __constant__ const
#define BLOCK_ID(axis) group_id_##axis()
#define GRID_SIZE(axis) groups_##axis()
#define THREAD_ID ((int)threadIdx.x)
#define THREADS ((int)blockDim.x)
#define BARRIER() __syncthreads()
FUNCTION i64 group_id_0(void) { return blockIdx.x; }
FUNCTION i64 group_id_1(void) { return blockIdx.y; }
FUNCTION i64 group_id_2(void) { return blockIdx.z; }
FUNCTION i64 groups_0(void) { return gridDim.x; }
FUNCTION i64 groups_1(void) { return gridDim.y; }
FUNCTION i64 groups_2(void) { return gridDim.z; }
FUNCTION u32 bits_of_f32(float x) { return __float_as_uint(x); }
FUNCTION float f32_of_bits(u32 x) { return __uint_as_float(x); }
#ifdef JITDNN_INSTRUCTIONS
FUNCTION float f32_of_f16(u16 bits) { return to_f32_f16(bits); }
FUNCTION u16 bits_of_f16(float x) { return to_f16(x); }
#else
#define HAS_NATIVE_NARROWING
FUNCTION float f32_of_f16(u16 bits) {
  float x;
  asm("cvt.f32.f16 %0, %1;" : "=f"(x) : "h"(bits));
  return x;
}
FUNCTION u16 bits_of_f16(float x) {
  u16 bits;
  asm("cvt.rn.f16.f32 %0, %1;" : "=h"(bits) : "f"(x));
  return bits;
}
FUNCTION u16 bits_of_bf16(float x) {
  u16 bits;
  asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(bits) : "f"(x));
  return bits;
}
/* two of them, the first in the low half */
FUNCTION u32 bits_of_two_bf16(float low, float high) {
  u32 bits;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(bits) : "f"(high), "f"(low));
  return bits;
}
FUNCTION u32 bits_of_two_f16(float low, float high) {
  u32 bits;
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(bits) : "f"(high), "f"(low));
  return bits;
}
/* the larger number, or NaN if either is */
FUNCTION float max_nan_f32(float a, float b) {
  float larger;
  asm("max.NaN.f32 %0, %1, %2;" : "=f"(larger) : "f"(a), "f"(b));
  return larger;
}
#endif
FUNCTION float load_f16(const u16 *p, i64 i) { return f32_of_f16(p[i]); }
FUNCTION void store_f16(u16 *p, i64 i, float x) { p[i] = bits_of_f16(x); }
struct __align__(8) u32x2 { u32 x, y; };
struct __align__(16) u32x4 { u32 x, y, z, w; };
struct __align__(16) f32x4 { float x, y, z, w; };
#endif

typedef float f32;
#if HAS_F64
typedef double f64;
typedef double SCALE;
#else
typedef float SCALE;
#endif
/* What a result of integers becomes by alpha and beta: products and sum are rounded one by one, so that what lies between
 * two integers does so for every target. The compiler may not fuse them. */
#ifdef __OPENCL_VERSION__
FUNCTION SCALE blend_whole(SCALE alpha, SCALE result, SCALE beta, SCALE before) {
#pragma OPENCL FP_CONTRACT OFF
  return alpha * result + beta * before;
}
#else
FUNCTION SCALE blend_whole(SCALE alpha, SCALE result, SCALE beta, SCALE before) {
  return __dadd_rn(__dmul_rn(alpha, result), __dmul_rn(beta, before));
}
#endif
/* storage only: load_f16 and its like make numbers of them */
typedef u16 f16;
typedef u16 bf16;
typedef u8 boolean;

FUNCTION float load_bf16(GLOBAL const u16 *p, i64 i) { return f32_of_bits((u32)p[i] << 16); }
#ifndef HAS_NATIVE_NARROWING
FUNCTION u16 bits_of_bf16(float x) {
  u32 bits = bits_of_f32(x);
  if ((bits & 0x7fffffffu) > 0x7f800000u) return (u16)((bits >> 16) | 0x40u); /* NaN stays NaN */
  return (u16)((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);                 /* ties to even */
}
FUNCTION u32 bits_of_two_bf16(float low, float high) { return bits_of_bf16(low) | (u32)bits_of_bf16(high) << 16; }
FUNCTION u32 bits_of_two_f16(float low, float high) { return bits_of_f16(low) | (u32)bits_of_f16(high) << 16; }
FUNCTION float max_nan_f32(float a, float b) { return a != a || a > b ? a : b; }
#endif
FUNCTION void store_bf16(GLOBAL u16 *p, i64 i, float x) { p[i] = bits_of_bf16(x); }
FUNCTION float load_f32(GLOBAL const float *p, i64 i) { return p[i]; }
FUNCTION void store_f32(GLOBAL float *p, i64 i, float x) { p[i] = x; }
#if HAS_F64
FUNCTION double load_f64(GLOBAL const double *p, i64 i) { return p[i]; }
FUNCTION void store_f64(GLOBAL double *p, i64 i, double x) { p[i] = x; }
#endif

/* Integers: loads give the number itself; store_<type> takes an integer and wraps, store_real_<type> a real number,
 * rounded to the nearest and clamped to the type's range (NaN becomes 0). */
#define INTEGER_ACCESS(type, stored)                                               \
  FUNCTION stored load_##type(GLOBAL const stored *p, i64 i) { return p[i]; }      \
  FUNCTION void store_##type(GLOBAL stored *p, i64 i, i64 x) { p[i] = (stored)x; }
INTEGER_ACCESS(i8, i8)
INTEGER_ACCESS(u8, u8)
INTEGER_ACCESS(i16, i16)
INTEGER_ACCESS(u16, u16)
INTEGER_ACCESS(i32, i32)
INTEGER_ACCESS(u32, u32)
INTEGER_ACCESS(i64, i64)
INTEGER_ACCESS(u64, u64)
FUNCTION i64 load_bool(GLOBAL const u8 *p, i64 i) { return p[i] != 0; }
FUNCTION void store_bool(GLOBAL u8 *p, i64 i, i64 x) { p[i] = x != 0; }
#define ROUNDED_STORE(type, stored, least, most)                          \
  FUNCTION void store_real_##type(GLOBAL stored *p, i64 i, SCALE x) {     \
    SCALE whole = rint(x);                                                \
    p[i] = x != x                 ? (stored)0                             \
           : whole <= (SCALE)least ? (stored)least                        \
           : whole >= (SCALE)most  ? (stored)most                         \
                                   : (stored)whole;                       \
  }
ROUNDED_STORE(i8, i8, -128, 127)
ROUNDED_STORE(u8, u8, 0, 255)
ROUNDED_STORE(i16, i16, -32768, 32767)
ROUNDED_STORE(u16, u16, 0, 65535)
ROUNDED_STORE(i32, i32, -2147483647 - 1, 2147483647)
ROUNDED_STORE(u32, u32, 0, 4294967295u)
ROUNDED_STORE(i64, i64, (-9223372036854775807 - 1), 9223372036854775807)
ROUNDED_STORE(u64, u64, 0, 18446744073709551615ul)
FUNCTION void store_real_bool(GLOBAL u8 *p, i64 i, SCALE x) { p[i] = x != (SCALE)0; }
#define store_real_f16 store_f16
#define store_real_bf16 store_bf16
#define store_real_f32 store_f32
#define store_real_f64 store_f64

#define JOIN_(a, b) a##b
#define JOIN(a, b) JOIN_(a, b)
/* LOAD(f16, p, i) where the type may itself be a macro */
#define LOAD(type, p, i) JOIN(load_, type)(p, i)
#define STORE(type, p, i, x) JOIN(store_real_, type)(p, i, x)

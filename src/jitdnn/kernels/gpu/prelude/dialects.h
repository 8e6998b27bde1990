/* The names of plain kernels in CUDA C++ and in OpenCL C. `plain.h` follows.
 *
 * A plain kernel uses these names, those of plain.h, and otherwise only what the two languages have in common: C99 without
 * variable-length arrays. HAS_F64 is defined to 0 for devices without double precision.
 *
 * A target with another language has a file of its own in place of this one. It defines the same names; EXCHANGE_SPACE to
 * KERNEL_BESIDE of reduce.h, KEEP_LARGEST of unpooling.c, WARP_GREATEST and KEEP_GREATEST of ctc.c and COUNT_UP of
 * grid_sample_by_image.c, which are left alone there; and __dadd_rn and __dmul_rn, a sum and a product of doubles that no
 * compiler fuses.
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

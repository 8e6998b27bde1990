/* Types of storage and access to their elements, in what CUDA C++, OpenCL C and C have in common: after the file that says
 * how the target's language calls the rest (dialects.h).
 */
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
typedef u8 f8e4m3;
typedef u8 f8e5m2;
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
/* Reals of 8 bits. e5m2 is the upper byte of an f16; e4m3, times 2^-8, has the fields of an f16, and no infinity. Stores
 * round to the nearest, ties to even, and what is beyond the range becomes the largest number. */
FUNCTION float f32_of_f8e5m2(u8 x) { return f32_of_f16((u16)(x << 8)); }
FUNCTION float f32_of_f8e4m3(u8 x) {
  const float finite = 256.0f * f32_of_f16((u16)((x & 0x80) << 8 | (x & 0x7f) << 7));
  return (x & 0x7f) == 0x7f ? f32_of_bits(0x7fc00000u) : finite;
}
#define BITS_OF_F8(type, fraction, bias, largest, largest_bits, least_normal, power)                     \
  FUNCTION u8 bits_of_##type(float x) {                                                                  \
    const u32 bits = bits_of_f32(x), size = bits & 0x7fffffffu, sign = bits >> 24 & 0x80u;               \
    const u32 even = (1u << (22 - (fraction))) - 1u + (size >> (23 - (fraction)) & 1u);                  \
    u32 made = (size + even - ((u32)(bias) << 23)) >> (23 - (fraction));                                 \
    /* the last place of `power` is that of the smallest numbers */                                      \
    if (size < (least_normal)) made = bits_of_f32(f32_of_bits(size) + f32_of_bits(power)) - (power);     \
    if (size >= (largest)) made = (largest_bits);                                                        \
    if (size > 0x7f800000u) made = 0x7fu;                                                                \
    return (u8)(sign | made);                                                                            \
  }
BITS_OF_F8(f8e4m3, 3, 120, 0x43e00000u, 0x7eu, 0x3c800000u, 0x46800000u) /* 448, 2^-6, 2^14 */
BITS_OF_F8(f8e5m2, 2, 112, 0x47600000u, 0x7bu, 0x38800000u, 0x43000000u) /* 57344, 2^-14, 2^7 */
FUNCTION float load_f8e4m3(GLOBAL const u8 *p, i64 i) { return f32_of_f8e4m3(p[i]); }
FUNCTION float load_f8e5m2(GLOBAL const u8 *p, i64 i) { return f32_of_f8e5m2(p[i]); }
FUNCTION void store_f8e4m3(GLOBAL u8 *p, i64 i, float x) { p[i] = bits_of_f8e4m3(x); }
FUNCTION void store_f8e5m2(GLOBAL u8 *p, i64 i, float x) { p[i] = bits_of_f8e5m2(x); }
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
#define store_real_f8e4m3 store_f8e4m3
#define store_real_f8e5m2 store_f8e5m2
#define store_real_f16 store_f16
#define store_real_bf16 store_bf16
#define store_real_f32 store_f32
#define store_real_f64 store_f64

#define JOIN_(a, b) a##b
#define JOIN(a, b) JOIN_(a, b)
/* LOAD(f16, p, i) where the type may itself be a macro */
#define LOAD(type, p, i) JOIN(load_, type)(p, i)
#define STORE(type, p, i, x) JOIN(store_real_, type)(p, i, x)

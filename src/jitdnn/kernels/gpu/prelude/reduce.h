/* Results of threads put together: over the threads of a warp by shuffles, over those of a thread block by shared memory.
 *
 * EXCHANGE(type, x, distance, into): `into` becomes x of the thread whose number differs in the bit `distance` (1 to 16).
 * Every thread of the thread block takes part. Where a device's warps are not known shared memory is used, which
 * EXCHANGE_SPACE declares at the beginning of the kernel.
 */
#if defined(EXCHANGE_SPACE) /* by a target with another language, with all of the following */
#elif defined(__OPENCL_VERSION__)
#define EXCHANGE_SPACE(threads)           \
  SHARED u32 exchange_u32[threads];        \
  SHARED u64 exchange_u64[threads];
#define EXCHANGE_AS(type, x, distance, into)             \
  exchange_##type[THREAD_ID] = x;                        \
  BARRIER();                                             \
  into = exchange_##type[THREAD_ID ^ (distance)];        \
  BARRIER();
#define EXCHANGE_f32(x, distance, into)                  \
  {                                                      \
    u32 other_bits;                                      \
    EXCHANGE_AS(u32, as_uint(x), distance, other_bits)   \
    into = as_float(other_bits);                         \
  }
#define EXCHANGE_f64(x, distance, into)                  \
  {                                                      \
    u64 other_bits;                                      \
    EXCHANGE_AS(u64, as_ulong(x), distance, other_bits)  \
    into = as_double(other_bits);                        \
  }
#define EXCHANGE_i32(x, distance, into)                  \
  {                                                      \
    u32 other_bits;                                      \
    EXCHANGE_AS(u32, (u32)(x), distance, other_bits)     \
    into = (i32)other_bits;                              \
  }
#define EXCHANGE_i64(x, distance, into)                  \
  {                                                      \
    u64 other_bits;                                      \
    EXCHANGE_AS(u64, (u64)(x), distance, other_bits)     \
    into = (i64)other_bits;                              \
  }
#define HIGH_PRODUCT(a, b) mul_hi(a, b)
#define KERNEL_RESIDENT(threads, groups) KERNEL(threads)
#else
#define EXCHANGE_SPACE(threads)
#define EXCHANGE_f32(x, distance, into) into = __shfl_xor_sync(0xffffffffu, x, distance);
#define EXCHANGE_f64(x, distance, into) into = __shfl_xor_sync(0xffffffffu, x, distance);
#define EXCHANGE_i32(x, distance, into) into = __shfl_xor_sync(0xffffffffu, x, distance);
#define EXCHANGE_i64(x, distance, into) into = __shfl_xor_sync(0xffffffffu, x, distance);
#define HIGH_PRODUCT(a, b) __umulhi(a, b)
/* with registers for so many thread blocks of a multiprocessor */
#define KERNEL_RESIDENT(threads, groups) extern "C" __global__ __launch_bounds__(threads, groups)
#endif
#define UNROLL _Pragma("unroll")
#define EXCHANGE(type, x, distance, into) JOIN(EXCHANGE_, type)(x, distance, into)

/* n / d for n below 2^31, where `magic` and `shift` belong to d */
FUNCTION u32 quotient_u32(u32 n, u32 magic, u32 shift) { return (HIGH_PRODUCT(n, magic) + n) >> shift; }

/* Numbers of 16 bits. exp: the product is rounded, which changes the result by |x| / 2^24 of it, less than they tell */
#ifdef HAS_NATIVE_NARROWING
/* of both halves the larger number */
FUNCTION u32 max_number_pair_bf16(u32 a, u32 b) {
  u32 larger;
  asm("max.bf16x2 %0, %1, %2;" : "=r"(larger) : "r"(a), "r"(b));
  return larger;
}
FUNCTION u32 max_number_pair_f16(u32 a, u32 b) {
  u32 larger;
  asm("max.f16x2 %0, %1, %2;" : "=r"(larger) : "r"(a), "r"(b));
  return larger;
}
FUNCTION f32 short_exp(f32 x) {
  f32 power;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(power) : "f"(x * 1.4426950408889634f));
  return power;
}
#else
FUNCTION u32 max_number_pair_bf16(u32 a, u32 b) {
  const f32 low = fmax(f32_of_bits(a << 16), f32_of_bits(b << 16));
  const f32 high = fmax(f32_of_bits(a & 0xffff0000u), f32_of_bits(b & 0xffff0000u));
  return bits_of_two_bf16(low, high);
}
FUNCTION u32 max_number_pair_f16(u32 a, u32 b) {
  const f32 low = fmax(f32_of_f16((u16)a), f32_of_f16((u16)b));
  return bits_of_two_f16(low, fmax(f32_of_f16((u16)(a >> 16)), f32_of_f16((u16)(b >> 16))));
}
FUNCTION f32 short_exp(f32 x) { return exp(x); }
#endif

/* Extremes. max and min are NaN where an argument is; the _number ones pass over a NaN b. */
#define EXTREMES(type)                                                                                  \
  FUNCTION type fold_max_##type(type a, type b) { return a != a || a > b ? a : b; }                     \
  FUNCTION type fold_min_##type(type a, type b) { return a != a || a < b ? a : b; }                     \
  FUNCTION type fold_max_number_##type(type a, type b) { return fmax(a, b); }                           \
  FUNCTION type fold_min_number_##type(type a, type b) { return fmin(a, b); }                           \
  /* whether value at `here` comes before best at `at`: the greater, NaN above all, the first of equals */ \
  FUNCTION int is_beyond_max_##type(type best, i64 at, type value, i64 here) {                          \
    int is_nan = value != value, was_nan = best != best;                                                \
    int is_equal = value == best || (is_nan && was_nan);                                                \
    return value > best || (is_nan && !was_nan) || (is_equal && here < at);                             \
  }                                                                                                     \
  FUNCTION int is_beyond_min_##type(type best, i64 at, type value, i64 here) {                          \
    int is_nan = value != value, was_nan = best != best;                                                \
    int is_equal = value == best || (is_nan && was_nan);                                                \
    return value < best || (is_nan && !was_nan) || (is_equal && here < at);                             \
  }
EXTREMES(f32)
#if HAS_F64
EXTREMES(f64)
#endif

/* Mean, squares of distances from it, and count: those of the second behind the first, whose count is left as it is. */
#define MERGE_moments(type, mean, squares, count, mean_z, squares_z, count_z)       \
  {                                                                                 \
    const type whole = count + count_z, part = whole > 0 ? count_z / whole : 0;     \
    const type apart = mean_z - mean;                                               \
    squares += squares_z + apart * apart * count * part;                            \
    mean += apart * part;                                                           \
  }
/* The greatest number and the sum of exp(x - greatest). */
#define MERGE_powers(type, top, sum, top_z, sum_z)                                  \
  {                                                                                 \
    const type least = (type)f32_of_bits(0xff800000u), most = top_z > top ? top_z : top;           \
    const type origin = most == least ? 0 : most;                                   \
    sum = (top == least ? sum : sum * exp(top - origin)) +                          \
          (top_z == least ? sum_z : sum_z * exp(top_z - origin));                   \
    top = most;                                                                     \
  }

/* Elements in words of 4 bytes: `byte` says where in the word an element begins. */
FUNCTION f32 element_f32(u32 word, int byte) { return f32_of_bits(word); }
FUNCTION f32 element_bf16(u32 word, int byte) { return f32_of_bits(byte ? word & 0xffff0000u : word << 16); }
FUNCTION f32 element_f8e4m3(u32 word, int byte) { return f32_of_f8e4m3((u8)(word >> (8 * byte))); }
FUNCTION f32 element_f8e5m2(u32 word, int byte) { return f32_of_f8e5m2((u8)(word >> (8 * byte))); }
FUNCTION f32 element_f16(u32 word, int byte) { return f32_of_f16((u16)(word >> (8 * byte))); }
FUNCTION i32 element_i32(u32 word, int byte) { return (i32)word; }
FUNCTION u32 element_u32(u32 word, int byte) { return word; }
FUNCTION i16 element_i16(u32 word, int byte) { return (i16)(word >> (8 * byte)); }
FUNCTION u16 element_u16(u32 word, int byte) { return (u16)(word >> (8 * byte)); }
FUNCTION i8 element_i8(u32 word, int byte) { return (i8)(word >> (8 * byte)); }
FUNCTION u8 element_u8(u32 word, int byte) { return (u8)(word >> (8 * byte)); }
FUNCTION u8 element_bool(u32 word, int byte) { return (word >> (8 * byte) & 0xffu) != 0; }
FUNCTION u32 bits_f32(f32 x) { return bits_of_f32(x); }
FUNCTION u32 bits_f16(f32 x) { return bits_of_f16(x); }
FUNCTION u32 bits_bf16(f32 x) { return bits_of_bf16(x); }

/* `words` (1, 2, 4 or 8) words at an address that is a multiple of their size, or of 16 */
FUNCTION void load_words(u32 *into, GLOBAL const u8 *p, int words) {
  if (words >= 4) {
    u32x4 a = *(GLOBAL const u32x4 *)p;
    into[0] = a.x;
    into[1] = a.y;
    into[2] = a.z;
    into[3] = a.w;
    if (words == 8) {
      a = *(GLOBAL const u32x4 *)(p + 16);
      into[4] = a.x;
      into[5] = a.y;
      into[6] = a.z;
      into[7] = a.w;
    }
  } else if (words == 2) {
    u32x2 a = *(GLOBAL const u32x2 *)p;
    into[0] = a.x;
    into[1] = a.y;
  } else {
    into[0] = *(GLOBAL const u32 *)p;
  }
}
FUNCTION void store_words(GLOBAL u8 *p, const u32 *from, int words) {
  if (words >= 4) {
    u32x4 a;
    a.x = from[0];
    a.y = from[1];
    a.z = from[2];
    a.w = from[3];
    *(GLOBAL u32x4 *)p = a;
    if (words == 8) {
      a.x = from[4];
      a.y = from[5];
      a.z = from[6];
      a.w = from[7];
      *(GLOBAL u32x4 *)(p + 16) = a;
    }
  } else if (words == 2) {
    u32x2 a;
    a.x = from[0];
    a.y = from[1];
    *(GLOBAL u32x2 *)p = a;
  } else {
    *(GLOBAL u32 *)p = from[0];
  }
}

/* Elements by value, and several of them in one access of memory.
 *
 * number_<type> is the number that an element stands for. The other way, item_<type>_f32 and item_<type>_f64 round a real
 * number to the nearest (integers: clamped to the range, NaN is 0), and item_<type>_i64 wraps a whole one.
 */
#define NUMBERS(type, stored, number, from_f32, from_f64, from_i64)      \
  FUNCTION number number_##type(stored x) { return NUMBER_OF_##type(x); } \
  FUNCTION stored item_##type##_f32(f32 x) { return from_f32; }          \
  FUNCTION_OF_F64(stored item_##type##_f64(f64 x) { return from_f64; })  \
  FUNCTION stored item_##type##_i64(i64 x) { return from_i64; }
#if HAS_F64
#define SCALE_TYPE f64
#define FUNCTION_OF_F64(...) FUNCTION __VA_ARGS__
#else
#define SCALE_TYPE f32
#define FUNCTION_OF_F64(...)
#endif
#define NUMBER_OF_f16(x) f32_of_f16(x)
#define NUMBER_OF_bf16(x) f32_of_bits((u32)(x) << 16)
#define NUMBER_OF_f32(x) (x)
#define NUMBER_OF_f8e4m3(x) f32_of_f8e4m3(x)
#define NUMBER_OF_f8e5m2(x) f32_of_f8e5m2(x)
NUMBERS(f8e4m3, u8, f32, bits_of_f8e4m3(x), bits_of_f8e4m3((f32)x), bits_of_f8e4m3((f32)x))
NUMBERS(f8e5m2, u8, f32, bits_of_f8e5m2(x), bits_of_f8e5m2((f32)x), bits_of_f8e5m2((f32)x))
NUMBERS(f16, u16, f32, bits_of_f16(x), bits_of_f16((f32)x), bits_of_f16((f32)x))
NUMBERS(bf16, u16, f32, bits_of_bf16(x), bits_of_bf16((f32)x), bits_of_bf16((f32)x))
NUMBERS(f32, f32, f32, x, (f32)x, (f32)x)
#if HAS_F64
#define NUMBER_OF_f64(x) (x)
NUMBERS(f64, f64, f64, (f64)x, x, (f64)x)
#endif

#define HELD(type, real, least, most, x)                                     \
  ((x) != (x)                        ? (type)0                               \
   : rint(x) <= (real)(least) ? (type)(least)                                \
   : rint(x) >= (real)(most)  ? (type)(most)                                 \
                              : (type)rint(x))
#define WHOLE_NUMBERS(type, least, most)                                      \
  NUMBERS(type, type, type, HELD(type, f32, least, most, x), HELD(type, f64, least, most, x), (type)x)
#define NUMBER_OF_i8(x) (x)
#define NUMBER_OF_u8(x) (x)
#define NUMBER_OF_i16(x) (x)
#define NUMBER_OF_u16(x) (x)
#define NUMBER_OF_i32(x) (x)
#define NUMBER_OF_u32(x) (x)
#define NUMBER_OF_i64(x) (x)
#define NUMBER_OF_u64(x) (x)
#define NUMBER_OF_bool(x) ((x) != 0)
WHOLE_NUMBERS(i8, -128, 127)
WHOLE_NUMBERS(u8, 0, 255)
WHOLE_NUMBERS(i16, -32768, 32767)
WHOLE_NUMBERS(u16, 0, 65535)
WHOLE_NUMBERS(i32, -2147483647 - 1, 2147483647)
WHOLE_NUMBERS(u32, 0, 4294967295u)
WHOLE_NUMBERS(i64, -9223372036854775807 - 1, 9223372036854775807)
WHOLE_NUMBERS(u64, 0, 18446744073709551615ul)
FUNCTION i32 number_bool(u8 x) { return x != 0; }
FUNCTION u8 item_bool_f32(f32 x) { return x != (f32)0; }
FUNCTION_OF_F64(u8 item_bool_f64(f64 x) { return x != 0; })
FUNCTION u8 item_bool_i64(i64 x) { return x != 0; }

/* PACK(bf16, u16, 8, u32x4, 1): pack_bf16_8 is 8 elements, in memory or out of it, moved as 1 value of type u32x4 */
#define PACK(type, stored, count, word, words)                                                     \
  typedef union {                                                                                  \
    word whole[words];                                                                             \
    stored items[count];                                                                           \
  } pack_##type##_##count;                                                                         \
  FUNCTION pack_##type##_##count load_##type##_##count(GLOBAL const stored *p) {                   \
    pack_##type##_##count loaded;                                                                  \
    for (int part = 0; part < words; ++part) loaded.whole[part] = ((GLOBAL const word *)p)[part];  \
    return loaded;                                                                                 \
  }                                                                                                \
  FUNCTION void store_##type##_##count(GLOBAL stored *p, pack_##type##_##count stored_pack) {      \
    for (int part = 0; part < words; ++part) ((GLOBAL word *)p)[part] = stored_pack.whole[part];   \
  }
/* whether a pointer is a multiple of so many bytes */
#define IS_ALIGNED(p, bytes) (((u64)(p) & (bytes - 1)) == 0)

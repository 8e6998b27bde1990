/* Neighbouring elements of a tensor as numbers.
 *
 * Defines: X, the type of storage; NUMBER, that of arithmetic; OFFSET, that of offsets in elements; PACKED, 1 where X is
 * f32, f16 or bf16, which are accessed 4 to 16 bytes at once.
 */
#define UNROLL _Pragma("unroll")
#define LARGEST ((NUMBER)f32_of_bits(0x7f800000u)) /* infinity */
#define LARGER JOIN(larger_, NUMBER) /* the larger of two, or NaN if either is */
#define larger_f32 max_nan_f32
#if HAS_F64
FUNCTION f64 larger_f64(f64 a, f64 b) { return a != a || a > b ? a : b; }
#endif
#if PACKED
#define A_WORD (4 / (int)sizeof(X)) /* elements of one */
#define RAW_f32(x) bits_of_f32(x)
#define RAW_f16(x) (u32)(x)
#define RAW_bf16(x) (u32)(x)
#define UNPACK_f32(words, n) f32_of_bits((words)[n])
#define UNPACK_bf16(words, n) \
  ((n) % 2 ? f32_of_bits((words)[(n) / 2] & 0xffff0000u) : f32_of_bits((words)[(n) / 2] << 16))
#define UNPACK_f16(words, n) f32_of_f16((u16)((n) % 2 ? (words)[(n) / 2] >> 16 : (words)[(n) / 2] & 0xffffu))
#define PACK_f32(v, at) bits_of_f32((v)[at])
#define PACK_bf16(v, at) bits_of_two_bf16((v)[at], (v)[(at) + 1])
#define PACK_f16(v, at) bits_of_two_f16((v)[at], (v)[(at) + 1])

/* `count` elements from p + i on, which together lie at a multiple of their size if `is_aligned`, as 32-bit words; count
 * and is_aligned are constants once this is inlined */
FUNCTION void load_words(GLOBAL const X *p, OFFSET i, int count, int is_aligned, u32 *words) {
  if (is_aligned && count == 4 * A_WORD) {
    const u32x4 all = *(GLOBAL const u32x4 *)(p + i);
    words[0] = all.x, words[1] = all.y, words[2] = all.z, words[3] = all.w;
  } else if (is_aligned && count == 2 * A_WORD) {
    const u32x2 both = *(GLOBAL const u32x2 *)(p + i);
    words[0] = both.x, words[1] = both.y;
  } else if (is_aligned && count == A_WORD) {
    words[0] = *(GLOBAL const u32 *)(p + i);
  } else {
    UNROLL for (int n = 0; n < count; ++n) {
      const u32 bits = JOIN(RAW_, X)(p[i + n]);
      words[n / A_WORD] = n % A_WORD ? words[n / A_WORD] | bits << 16 : bits;
    }
  }
}

FUNCTION void unpack(const u32 *words, int count, NUMBER *v) {
  UNROLL for (int n = 0; n < count; ++n) v[n] = JOIN(UNPACK_, X)(words, n);
}
#endif

/* `count` elements as numbers */
FUNCTION void load_vector(GLOBAL const X *p, OFFSET i, int count, int is_aligned, NUMBER *v) {
#if PACKED
  u32 words[16];
  load_words(p, i, count, is_aligned, words);
  unpack(words, count, v);
#else
  UNROLL for (int n = 0; n < count; ++n) v[n] = (NUMBER)LOAD(X, p, i + n);
#endif
}

FUNCTION void store_vector(GLOBAL X *p, OFFSET i, int count, int is_aligned, const NUMBER *v) {
#if PACKED
  if (is_aligned && count % A_WORD == 0) {
    u32 words[4];
    UNROLL for (int n = 0; n < count / A_WORD; ++n) words[n] = JOIN(PACK_, X)(v, n * A_WORD);
    if (count == 4 * A_WORD) {
      u32x4 all;
      all.x = words[0], all.y = words[1], all.z = words[2], all.w = words[3];
      *(GLOBAL u32x4 *)(p + i) = all;
    } else if (count == 2 * A_WORD) {
      u32x2 both;
      both.x = words[0], both.y = words[1];
      *(GLOBAL u32x2 *)(p + i) = both;
    } else {
      *(GLOBAL u32 *)(p + i) = words[0];
    }
    return;
  }
#endif
  UNROLL for (int n = 0; n < count; ++n) STORE(X, p, i + n, v[n]);
}

/* alpha * v + beta * what is there; with beta 0 that is not read */
#if X_IS_WHOLE
#define FACTOR SCALE
FUNCTION void store_scaled(GLOBAL X *p, OFFSET i, int count, int is_aligned, const NUMBER *v, SCALE alpha, SCALE beta) {
  UNROLL for (int n = 0; n < count; ++n) {
    SCALE scaled = (SCALE)v[n];
    if (beta != 0)
      scaled = blend_whole(alpha, scaled, beta, (SCALE)LOAD(X, p, i + n));
    else
      scaled *= alpha;
    STORE(X, p, i + n, scaled);
  }
}
#else
#define FACTOR NUMBER
FUNCTION void store_scaled(GLOBAL X *p, OFFSET i, int count, int is_aligned, const NUMBER *v, NUMBER alpha, NUMBER beta) {
  NUMBER scaled[16];
  UNROLL for (int n = 0; n < count; ++n) scaled[n] = alpha * v[n];
  if (beta != 0) {
    NUMBER before[16];
    load_vector(p, i, count, is_aligned, before);
    UNROLL for (int n = 0; n < count; ++n) scaled[n] += beta * before[n];
  }
  store_vector(p, i, count, is_aligned, scaled);
}
#endif

/* whether addresses are multiples of `bytes` */
FUNCTION int is_multiple(GLOBAL const X *p, int bytes) { return ((u64)p & (u64)(bytes - 1)) == 0; }

/* Philox4x32-10 (problems/philox.py): four random words for the number of a block. */
FUNCTION void philox(u32 words[4], u64 block, u32 key0, u32 key1, u32 offset_low, u32 offset_high) {
  u32 x0 = (u32)block, x1 = (u32)(block >> 32), x2 = offset_low, x3 = offset_high;
#pragma unroll
  for (int turn = 0; turn < 10; ++turn) {
    const u64 first = (u64)x0 * 0xD2511F53u, second = (u64)x2 * 0xCD9E8D57u;
    x0 = (u32)(second >> 32) ^ x1 ^ key0;
    x1 = (u32)second;
    x2 = (u32)(first >> 32) ^ x3 ^ key1;
    x3 = (u32)first;
    key0 += 0x9E3779B9u;
    key1 += 0xBB67AE85u;
  }
  words[0] = x0;
  words[1] = x1;
  words[2] = x2;
  words[3] = x3;
}
#define WAVES(REAL)                                                                                           \
  /* cosine and sine of an angle in turns, from 0 to 1: of what is left of whole quarters, turned back */     \
  FUNCTION void waves_##REAL(REAL turns, REAL *cosine, REAL *sine) {                                          \
    const REAL quarters = rint(turns * (REAL)4);                                                              \
    const REAL angle = (turns - quarters * (REAL)0.25) * (REAL)6.283185307179586476925;                       \
    const REAL c = cos(angle), s = sin(angle);                                                                \
    const int quarter = (int)quarters & 3;                                                                    \
    *cosine = quarter == 0 ? c : quarter == 1 ? -s : quarter == 2 ? -c : s;                                   \
    *sine = quarter == 0 ? s : quarter == 1 ? c : quarter == 2 ? -s : -c;                                     \
  }                                                                                                           \
  /* Box and Muller's pair; half a last bit, `half_bit`, is added to the fraction u, which may be 0 or round to 1 */ \
  FUNCTION void normal_pair_##REAL(REAL u, REAL v, REAL half_bit, REAL mean, REAL deviation, REAL *first, REAL *second) { \
    const REAL squared = (REAL)-2 * log(u + half_bit);                                                        \
    const REAL size = deviation * sqrt(squared > (REAL)0 ? squared : (REAL)0);                                \
    REAL cosine, sine;                                                                                        \
    waves_##REAL(v, &cosine, &sine);                                                                          \
    *first = fma(size, cosine, mean);                                                                         \
    *second = fma(size, sine, mean);                                                                          \
  }
WAVES(f32)
#if HAS_F64
WAVES(f64)
#endif

// Products of numbers with f32 sums, by dtype. ELEMENT: of the tensors.
#if IS_F32
#define ELEMENT f32
#define TO_HALF(value) (value)
#define FROM_HALF(value) (value)
#elif IS_BF16
#define ELEMENT u16
#define MMA mma_bf16
#define PACK pack_bf16
#define LOW bf16_low
#define HIGH bf16_high
#define TO_HALF to_bf16
#define FROM_HALF to_f32_bf16
#else
#define ELEMENT u16
#define MMA mma_f16
#define PACK pack_f16
#define LOW f16_low
#define HIGH f16_high
#define TO_HALF to_f16
#define FROM_HALF to_f32_f16
#endif

// RESULT: of what fprop stores, which may be f32 of products of halves.
#define STORES_F32 (IS_F32 || RESULT_IS_F32)
#if STORES_F32
#define RESULT f32
#define TO_RESULT(value) (value)
#define FROM_RESULT(value) (value)
#else
#define RESULT u16
#define TO_RESULT TO_HALF
#define FROM_RESULT FROM_HALF
#endif

FUNCTION bool is_aligned_to(const void *p, int bytes) { return ((u64)p & (u64)(bytes - 1)) == 0; }

/* The names of plain kernels in C for a processor: in place of gpu/prelude/dialects.h.
 *
 * A thread block runs as fibers, one after the other from barrier to barrier, so that shared memory is static memory.
 * `device.py` puts this before every source, and behind it a function for each kernel that calls `run_grid`.
 */
#include <stdlib.h>
#include <tgmath.h>
#include <ucontext.h>

#define GLOBAL
#define SHARED static
#define RESTRICT restrict
#define FUNCTION static inline __attribute__((unused))
#define CONSTANT_TABLE static const
#define KERNEL(threads) kernel_of_this_source
#define KERNEL_BESIDE(threads, blocks) KERNEL(threads)
#define BLOCK_ID(axis) block_index[axis]
#define GRID_SIZE(axis) grid_size[axis]
#define THREAD_ID ((int)thread_index)
#define THREADS ((int)block_size)
#define BARRIER() wait_for_block()
typedef signed char i8;
typedef unsigned char u8;
typedef short i16;
typedef unsigned short u16;
typedef int i32;
typedef unsigned int u32;
typedef long long i64;
typedef unsigned long long u64;
typedef struct __attribute__((aligned(8))) { u32 x, y; } u32x2;
typedef struct __attribute__((aligned(16))) { u32 x, y, z, w; } u32x4;
typedef struct __attribute__((aligned(16))) { float x, y, z, w; } f32x4;
#define max(a, b) ((a) > (b) ? (a) : (b))
#define min(a, b) ((a) < (b) ? (a) : (b))

FUNCTION u32 bits_of_f32(float x) { union { float number; u32 bits; } both = {x}; return both.bits; }
FUNCTION float f32_of_bits(u32 x) { union { u32 bits; float number; } both = {x}; return both.number; }
FUNCTION float f32_of_f16(u16 x) { union { u16 bits; _Float16 number; } both = {x}; return (float)both.number; }
FUNCTION u16 bits_of_f16(float x) { union { _Float16 number; u16 bits; } both = {(_Float16)x}; return both.bits; }
FUNCTION float load_f16(const u16 *p, i64 i) { return f32_of_f16(p[i]); }
FUNCTION void store_f16(u16 *p, i64 i, float x) { p[i] = bits_of_f16(x); }
FUNCTION double __dadd_rn(double a, double b) { return a + b; }
FUNCTION double __dmul_rn(double a, double b) { return a * b; }

/* reduce.h: threads give each other numbers by shared memory */
#define EXCHANGE_SPACE(threads) SHARED float exchanged_f32[threads]; SHARED double exchanged_f64[threads]; \
  SHARED i32 exchanged_i32[threads]; SHARED i64 exchanged_i64[threads];
#define EXCHANGE_BY_MEMORY(space, x, distance, into) \
  space[THREAD_ID] = x;                              \
  BARRIER();                                         \
  into = space[THREAD_ID ^ (distance)];              \
  BARRIER();
#define EXCHANGE_f32(x, distance, into) EXCHANGE_BY_MEMORY(exchanged_f32, x, distance, into)
#define EXCHANGE_f64(x, distance, into) EXCHANGE_BY_MEMORY(exchanged_f64, x, distance, into)
#define EXCHANGE_i32(x, distance, into) EXCHANGE_BY_MEMORY(exchanged_i32, x, distance, into)
#define EXCHANGE_i64(x, distance, into) EXCHANGE_BY_MEMORY(exchanged_i64, x, distance, into)
#define HIGH_PRODUCT(a, b) ((u32)((u64)(a) * (b) >> 32))
/* ctc.c */
#define WARP_GREATEST(value) (value)
#define KEEP_GREATEST(p, value) (*(p) = max(*(p), value));
/* grid_sample_by_image.c: what was there before */
#define COUNT_UP(p, more) ((*(p) += (more)) - (more))
/* unpooling.c */
#define KEEP_LARGEST(p, value) (*(p) = max(*(p), value))

/* ---- a grid, block by block ---- */

typedef union {
  void *pointer;
  double real;
  i64 integer;
} Argument;
typedef void Entry(const Argument *);

static i64 block_index[3], grid_size[3];
static volatile i64 thread_index, block_size;
static ucontext_t scheduler, fibers[1024];
static char *stacks[1024], is_done[1024];
static Entry *running;
static const Argument *arguments;
enum { STACK = 1 << 16 };

static void wait_for_block(void) { swapcontext(&fibers[thread_index], &scheduler); }
static void run_thread(void) {
  running(arguments);
  is_done[thread_index] = 1; /* uc_link goes back to the scheduler */
}

/* 0, or 1 if some threads of a block ended while others waited at a barrier */
static int run_block(int has_barriers) {
  i64 done = 0;
  if (!has_barriers) {
    for (thread_index = 0; thread_index < block_size; ++thread_index) running(arguments);
    return 0;
  }
  for (i64 n = 0; n < block_size; ++n) {
    if (!stacks[n]) stacks[n] = malloc(STACK);
    getcontext(&fibers[n]);
    fibers[n].uc_stack.ss_sp = stacks[n];
    fibers[n].uc_stack.ss_size = STACK;
    fibers[n].uc_link = &scheduler;
    makecontext(&fibers[n], run_thread, 0);
    is_done[n] = 0;
  }
  while (done == 0) {
    for (i64 n = 0; n < block_size; ++n) {
      thread_index = n;
      swapcontext(&scheduler, &fibers[n]);
      done += is_done[n];
    }
  }
  return done != block_size;
}

static int run_grid(Entry *entry, int has_barriers, const Argument *given, const i64 *grid, i64 threads) {
  int has_failed = 0;
  running = entry, arguments = given, block_size = threads;
  for (int axis = 0; axis < 3; ++axis) grid_size[axis] = grid[axis];
  for (block_index[2] = 0; block_index[2] < grid[2]; ++block_index[2])
    for (block_index[1] = 0; block_index[1] < grid[1]; ++block_index[1])
      for (block_index[0] = 0; block_index[0] < grid[0]; ++block_index[0]) has_failed |= run_block(has_barriers);
  return has_failed;
}

/* Unpooling: values put where indices say, the last one of several, and gradients taken from there.
 *
 * Defines: X, the type of values; NUMBER, that of arithmetic; INDEX; OFFSET, which holds any offset within an image;
 * CHANNELS_INNER 1 where neighbouring threads have neighbouring channels, 0 for neighbouring columns; FORWARD.
 *
 * Forward, workspace has an i32 for every element of the image, in the order of the threads: the place, in its plane, of the
 * last value that goes there, or -1. Whole numbers are compared in memory, so that the order of threads does not matter.
 */
#define GROUP 256
#if defined(KEEP_LARGEST) /* by a target with another language */
#elif defined(__OPENCL_VERSION__)
#define KEEP_LARGEST(p, value) atomic_max(p, value)
#else
#define KEEP_LARGEST(p, value) atomicMax(p, value)
#endif
#define STEPS(t) i64 t##_n, i64 t##_c, i64 t##_d, i64 t##_h, i64 t##_w
#if FORWARD
#define OPERANDS GLOBAL const X *small, GLOBAL const INDEX *indices, GLOBAL X *large
#define TENSORS STEPS(small), STEPS(indices), STEPS(large)
#else
#define OPERANDS GLOBAL const X *large, GLOBAL const INDEX *indices, GLOBAL X *small
#define TENSORS STEPS(large), STEPS(indices), STEPS(small)
#endif
#define ARGUMENTS                                                                                                    \
  OPERANDS, GLOBAL u8 *workspace, SCALE alpha, SCALE beta, i64 images, i64 channels, i64 small_depth, i64 small_height, \
      i64 small_width, i64 large_depth, i64 large_height, i64 large_width, TENSORS
#define AT(t, c, d, h, w) \
  ((OFFSET)t##_c * (c) + (OFFSET)t##_d * (d) + (OFFSET)t##_h * (h) + (OFFSET)t##_w * (w))

typedef struct {
  OFFSET c, d, h, w;
} Place;

/* a place in a plane, of which `number` is the order */
FUNCTION Place place_of(OFFSET c, OFFSET number, OFFSET height, OFFSET width) {
  Place at;
  const OFFSET row = number / width;
  at.c = c, at.w = number - row * width;
  at.d = row / height, at.h = row - at.d * height;
  return at;
}

/* the channel and the place in its plane of a thread, and whether there is one */
FUNCTION int unit_of(OFFSET channels, OFFSET size, OFFSET *c, OFFSET *number) {
  const i64 unit = BLOCK_ID(0) * GROUP + THREAD_ID;
  if (unit >= (i64)channels * size) return 0;
  const OFFSET inner = CHANNELS_INNER ? channels : size, rest = (OFFSET)unit / inner, first = (OFFSET)unit - rest * inner;
  *c = CHANNELS_INNER ? first : rest;
  *number = CHANNELS_INNER ? rest : first;
  return 1;
}

FUNCTION void store(GLOBAL X *p, OFFSET i, NUMBER value, NUMBER alpha, NUMBER beta) {
  value *= alpha;
  if (beta != 0) value += beta * (NUMBER)LOAD(X, p, i);
  STORE(X, p, i, value);
}

#define SMALL_SIZE ((OFFSET)small_depth * (OFFSET)small_height * (OFFSET)small_width)
#define LARGE_SIZE ((OFFSET)large_depth * (OFFSET)large_height * (OFFSET)large_width)
#define SMALL_PLACE(number) place_of(c, number, (OFFSET)small_height, (OFFSET)small_width)
#define LARGE_PLACE(number) place_of(c, number, (OFFSET)large_height, (OFFSET)large_width)

#if FORWARD
#define LAST_AT(number)                    \
  ((i64)image * channels * LARGE_SIZE +    \
   (CHANNELS_INNER ? (number) * (OFFSET)channels + c : c * LARGE_SIZE + (number)))

KERNEL(GROUP)
void unpooling_clear(ARGUMENTS) {
  OFFSET c, number;
  if (!unit_of((OFFSET)channels, LARGE_SIZE, &c, &number)) return;
  for (i64 image = BLOCK_ID(1); image < images; image += GRID_SIZE(1)) ((GLOBAL i32 *)workspace)[LAST_AT(number)] = -1;
}

KERNEL(GROUP)
void unpooling_send(ARGUMENTS) {
  OFFSET c, number;
  if (!unit_of((OFFSET)channels, SMALL_SIZE, &c, &number)) return;
  const Place at = SMALL_PLACE(number);
  for (i64 image = BLOCK_ID(1); image < images; image += GRID_SIZE(1)) {
    const i64 to = (i64)indices[image * indices_n + AT(indices, c, at.d, at.h, at.w)];
    if (to >= 0 && to < LARGE_SIZE) KEEP_LARGEST((GLOBAL i32 *)workspace + LAST_AT((OFFSET)to), (i32)number);
  }
}

KERNEL(GROUP)
void unpooling_forward(ARGUMENTS) {
  OFFSET c, number;
  if (!unit_of((OFFSET)channels, LARGE_SIZE, &c, &number)) return;
  const Place at = LARGE_PLACE(number);
  for (i64 image = BLOCK_ID(1); image < images; image += GRID_SIZE(1)) {
    const i32 from = ((GLOBAL const i32 *)workspace)[LAST_AT(number)];
    NUMBER value = 0;
    if (from >= 0) {
      const Place place = SMALL_PLACE((OFFSET)from);
      value = (NUMBER)LOAD(X, small + image * small_n, AT(small, c, place.d, place.h, place.w));
    }
    store(large + image * large_n, AT(large, c, at.d, at.h, at.w), value, (NUMBER)alpha, (NUMBER)beta);
  }
}

#else

KERNEL(GROUP)
void unpooling_backward(ARGUMENTS) {
  OFFSET c, number;
  if (!unit_of((OFFSET)channels, SMALL_SIZE, &c, &number)) return;
  const Place at = SMALL_PLACE(number);
  for (i64 image = BLOCK_ID(1); image < images; image += GRID_SIZE(1)) {
    const i64 from = (i64)indices[image * indices_n + AT(indices, c, at.d, at.h, at.w)];
    NUMBER value = 0;
    if (from >= 0 && from < LARGE_SIZE) {
      const Place place = LARGE_PLACE((OFFSET)from);
      value = (NUMBER)LOAD(X, large + image * large_n, AT(large, c, place.d, place.h, place.w));
    }
    store(small + image * small_n, AT(small, c, at.d, at.h, at.w), value, (NUMBER)alpha, (NUMBER)beta);
  }
}
#endif

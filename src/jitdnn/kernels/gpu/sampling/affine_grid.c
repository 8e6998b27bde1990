/* Affine grids, and the gradient of theta: sums over the places in parts, and then over the parts in their order.
 *
 * Defines: X, NUMBER, RANK, axes of space of the three that everything has, ALIGN_CORNERS, SIGNATURE.
 */
#define GROUP 256
#define SIZE ((i64)depth * height * width)
#define TERMS (RANK * (RANK + 1))

/* where an element is between -1 and 1 */
FUNCTION NUMBER end_of(i64 i, i64 extent) {
  if (extent == 1) return 0;
  return ALIGN_CORNERS ? (NUMBER)(2 * i - (extent - 1)) / (NUMBER)(extent - 1) : (NUMBER)(2 * i + 1 - extent) / (NUMBER)extent;
}

/* (x, y, z, 1), or (x, y, 1), of an element */
#define FIND_BASE(number)                                                                    \
  NUMBER base[RANK + 1];                                                                     \
  const i64 line = (number) / width, w = (number) - line * width, d = line / height, h = line - d * height; \
  base[0] = end_of(w, width), base[1] = end_of(h, height);                                   \
  if (RANK == 3) base[RANK - 1] = end_of(d, depth);                                          \
  base[RANK] = 1;

FUNCTION void store(GLOBAL X *p, i64 i, NUMBER value, SCALE alpha, SCALE beta) {
  value *= (NUMBER)alpha;
  if (beta != 0) value += (NUMBER)beta * (NUMBER)LOAD(X, p, i);
  STORE(X, p, i, value);
}

#if FORWARD
KERNEL(GROUP) void affine_grid(SIGNATURE) {
  const i64 unit = BLOCK_ID(0) * GROUP + THREAD_ID, image = unit / SIZE, number = unit - image * SIZE;
  if (image >= images) return;
  FIND_BASE(number)
  theta += image * theta_0;
  grid += image * grid_n + d * grid_d + h * grid_h + w * grid_w;
  for (int i = 0; i < RANK; ++i) {
    NUMBER sum = 0;
    for (int j = 0; j <= RANK; ++j) sum += (NUMBER)LOAD(X, theta, i * theta_1 + j * theta_2) * base[j];
    store(grid, i * grid_axis, sum, alpha, beta);
  }
}
#else
#define PARTS ((GLOBAL NUMBER *)workspace) /* by image, part and term */

KERNEL(GROUP) void affine_grid_parts(SIGNATURE) {
  SHARED NUMBER shared[GROUP];
  const i64 image = BLOCK_ID(0) / parts, part = BLOCK_ID(0) - image * parts;
  if (image >= images) return;
  NUMBER sums[TERMS];
  for (int term = 0; term < TERMS; ++term) sums[term] = 0;
  for (i64 number = part * GROUP + THREAD_ID; number < SIZE; number += parts * GROUP) {
    FIND_BASE(number)
    const i64 at = image * grid_n + d * grid_d + h * grid_h + w * grid_w;
    for (int i = 0; i < RANK; ++i) {
      const NUMBER slope = (NUMBER)LOAD(X, dgrid, at + i * grid_axis);
      for (int j = 0; j <= RANK; ++j) sums[i * (RANK + 1) + j] += slope * base[j];
    }
  }
  for (int term = 0; term < TERMS; ++term) {
    BARRIER();
    shared[THREAD_ID] = sums[term];
    BARRIER();
    for (int width_ = GROUP / 2; width_ > 0; width_ /= 2) {
      if (THREAD_ID < width_) shared[THREAD_ID] += shared[THREAD_ID + width_];
      BARRIER();
    }
    if (THREAD_ID == 0) PARTS[BLOCK_ID(0) * TERMS + term] = shared[0];
  }
}

KERNEL(GROUP) void affine_grid_sums(SIGNATURE) {
  const i64 unit = BLOCK_ID(0) * GROUP + THREAD_ID, image = unit / TERMS, term = unit - image * TERMS;
  NUMBER sum = 0;
  if (image >= images) return;
  for (i64 part = 0; part < parts; ++part) sum += PARTS[(image * parts + part) * TERMS + term];
  store(dtheta, image * theta_0 + term / (RANK + 1) * theta_1 + term % (RANK + 1) * theta_2, sum, alpha, beta);
}
#endif

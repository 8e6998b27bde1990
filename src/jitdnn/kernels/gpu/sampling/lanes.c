/* LANES channels of one position at once: after pooling/access.c, with ARE_NEIGHBOURS 1 where they lie side by side. */
/* LANES channels from p + i on */
FUNCTION void load_lanes(GLOBAL const X *p, OFFSET i, OFFSET step, OFFSET left, int is_aligned, NUMBER *values) {
#if ARE_NEIGHBOURS
  load_vector(p, i, LANES, is_aligned, values);
#else
  for (int n = 0; n < LANES; ++n) values[n] = n < left ? (NUMBER)LOAD(X, p, i + n * step) : 0;
#endif
}

FUNCTION void store_lanes(GLOBAL X *p, OFFSET i, OFFSET step, OFFSET left, int is_aligned, const NUMBER *values, NUMBER alpha,
                          NUMBER beta) {
#if ARE_NEIGHBOURS
  store_scaled(p, i, LANES, is_aligned, values, alpha, beta);
#else
  for (int n = 0; n < LANES; ++n) {
    if (n < left) store_scaled(p, i + n * step, 1, 0, values + n, alpha, beta);
  }
#endif
}

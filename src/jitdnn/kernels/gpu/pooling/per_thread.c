/* Pooling with any windows: a thread reduces the window of LANES neighbouring channels, or, backward, through the
 * windows that its elements lie in.
 *
 * Defines apart from those of access.c: MAX 1 or 0 (average); COUNTS_PADDING; ADAPTIVE; LANES; CHANNELS_INNER 1 where
 * neighbouring threads have neighbouring channels, 0 for neighbouring columns; INDEX, if the places of the maxima are a
 * result, its type; PLACE, an integer that holds a place in a plane; FORWARD.
 *
 * A unit is LANES channels at one position of one image. Offsets within an image are of type OFFSET.
 */
#define GROUP 256

/* the outputs whose windows span position i: from *low to before *high */
FUNCTION void windows_of(Axis a, OFFSET i, OFFSET *low, OFFSET *high) {
#if ADAPTIVE
  *low = i * a.out / a.extent;
  *high = ((i + 1) * a.out + a.extent - 1) / a.extent;
#else
  OFFSET last = i + a.before, first = last - (a.window - 1) * a.dilation;
  *low = first <= 0 ? 0 : parts(first, a.stride);
  *high = least(a.out, last / a.stride + 1);
#endif
}

/* the unit of this thread: its first channel and its position among width x height x depth; 0 if there is none */
FUNCTION int unit_of(OFFSET channels, OFFSET depth, OFFSET height, OFFSET width, OFFSET *c, OFFSET *d, OFFSET *h, OFFSET *w) {
  const i64 unit = BLOCK_ID(0) * GROUP + THREAD_ID;
  const OFFSET vectors = channels / LANES;
  if (unit >= (i64)vectors * depth * height * width) return 0;
#if CHANNELS_INNER
  OFFSET rest = (OFFSET)unit / vectors;
  *c = ((OFFSET)unit - rest * vectors) * LANES;
#else
  OFFSET rest = (OFFSET)unit;
#endif
  OFFSET next = rest / width;
  *w = rest - next * width;
  rest = next / height;
  *h = next - rest * height;
#if CHANNELS_INNER
  *d = rest;
#else
  next = rest / depth;
  *d = rest - next * depth;
  *c = next * LANES;
#endif
  return 1;
}

#define ARGUMENTS \
  OPERANDS, GLOBAL u8 *workspace, SCALE alpha, SCALE beta, i64 images, i64 channels, AXIS(d), AXIS(h), AXIS(w), TENSORS
#define VECTOR_BYTES (LANES * (int)sizeof(X))
#define AT(t, c, d, h, w) \
  ((OFFSET)t##_c * (c) + (OFFSET)t##_d * (d) + (OFFSET)t##_h * (h) + (OFFSET)t##_w * (w))

#if MAX || FORWARD
/* The maxima of a window and their places in the plane, -1 for an empty window; or the averages. `x` is at the first
 * channel, and steps along the axes are `step_d` and so on. */
FUNCTION void pool(GLOBAL const X *x, int is_aligned, Axis ad, Axis ah, Axis aw, OFFSET step_d, OFFSET step_h, OFFSET step_w,
                   OFFSET d, OFFSET h, OFFSET w, NUMBER *result, PLACE *places) {
  const Bounds bd = bounds_of(ad, d), bh = bounds_of(ah, h), bw = bounds_of(aw, w);
  NUMBER values[LANES];
  for (int n = 0; n < LANES; ++n) {
    result[n] = MAX ? -LARGEST : 0;
    places[n] = -1;
  }
  for (OFFSET i = bd.low; i < bd.high; i += ad.dilation) {
    for (OFFSET j = bh.low; j < bh.high; j += ah.dilation) {
      const OFFSET row = i * step_d + j * step_h;
      for (OFFSET k = bw.low; k < bw.high; k += aw.dilation) {
        load_vector(x, row + k * step_w, LANES, is_aligned, values);
        for (int n = 0; n < LANES; ++n) {
#if MAX
          /* the first of equal ones stays, and the first NaN */
          if (places[n] < 0 || (!(values[n] <= result[n]) && result[n] == result[n])) {
            result[n] = values[n];
            places[n] = ((PLACE)i * (PLACE)ah.extent + (PLACE)j) * (PLACE)aw.extent + (PLACE)k;
          }
#else
          result[n] += values[n];
#endif
        }
      }
    }
  }
  for (int n = 0; n < LANES; ++n) {
#if MAX
    if (places[n] < 0) result[n] = EMPTY_MAX;
#else
    result[n] /= (NUMBER)bd.count * (NUMBER)bh.count * (NUMBER)bw.count;
#endif
  }
}
#endif

#if FORWARD
KERNEL(GROUP)
void pooling_forward(ARGUMENTS) {
  const Axis ad = MAKE_AXIS(d), ah = MAKE_AXIS(h), aw = MAKE_AXIS(w);
  const int is_aligned = LANES > 1 && is_multiple(x, VECTOR_BYTES) && is_multiple(y, VECTOR_BYTES);
  OFFSET c, d, h, w;
  if (!unit_of((OFFSET)channels, ad.out, ah.out, aw.out, &c, &d, &h, &w)) return;
  for (i64 image = BLOCK_ID(1); image < images; image += GRID_SIZE(1)) {
    NUMBER result[LANES];
    PLACE places[LANES];
    pool(x + image * x_n + c * (OFFSET)x_c, is_aligned, ad, ah, aw, (OFFSET)x_d, (OFFSET)x_h, (OFFSET)x_w, d, h, w, result,
         places);
    store_scaled(y + image * y_n, AT(y, c, d, h, w), LANES, is_aligned, result, (FACTOR)alpha, (FACTOR)beta);
#ifdef INDEX
    for (int n = 0; n < LANES; ++n) indices[image * indices_n + AT(indices, c + n, d, h, w)] = (INDEX)places[n];
#endif
  }
}
#else

#if MAX
/* where places are kept: in the order of the units */
FUNCTION i64 kept_at(i64 image, OFFSET channels, Axis ad, Axis ah, Axis aw) {
  return image * channels * ad.out * ah.out * aw.out;
}
#define KEPT_C (CHANNELS_INNER ? 1 : ad.out * ah.out * aw.out)
#define KEPT_W (CHANNELS_INNER ? (OFFSET)channels : 1)
#define KEPT_AT(c, d, h, w) (KEPT_C * (c) + KEPT_W * (((d)*ah.out + (h)) * aw.out + (w)))

/* The places of the maxima, for the next launch. */
KERNEL(GROUP)
void pooling_places(ARGUMENTS) {
  const Axis ad = MAKE_AXIS(d), ah = MAKE_AXIS(h), aw = MAKE_AXIS(w);
  const int is_aligned = LANES > 1 && is_multiple(x, VECTOR_BYTES);
  OFFSET c, d, h, w;
  if (!unit_of((OFFSET)channels, ad.out, ah.out, aw.out, &c, &d, &h, &w)) return;
  for (i64 image = BLOCK_ID(1); image < images; image += GRID_SIZE(1)) {
    NUMBER result[LANES];
    PLACE places[LANES];
    pool(x + image * x_n + c * (OFFSET)x_c, is_aligned, ad, ah, aw, (OFFSET)x_d, (OFFSET)x_h, (OFFSET)x_w, d, h, w, result,
         places);
    GLOBAL PLACE *kept = (GLOBAL PLACE *)workspace + kept_at(image, (OFFSET)channels, ad, ah, aw) + KEPT_AT(c, d, h, w);
    for (int n = 0; n < LANES; ++n) kept[n] = places[n];
  }
}
#endif

/* Every element adds up what comes from the windows that it lies in. */
KERNEL(GROUP)
void pooling_backward(ARGUMENTS) {
  const Axis ad = MAKE_AXIS(d), ah = MAKE_AXIS(h), aw = MAKE_AXIS(w);
  const int is_aligned = LANES > 1 && is_multiple(dy, VECTOR_BYTES) && is_multiple(dx, VECTOR_BYTES);
  OFFSET c, d, h, w, low_d, high_d, low_h, high_h, low_w, high_w;
  if (!unit_of((OFFSET)channels, ad.extent, ah.extent, aw.extent, &c, &d, &h, &w)) return;
  windows_of(ad, d, &low_d, &high_d);
  windows_of(ah, h, &low_h, &high_h);
  windows_of(aw, w, &low_w, &high_w);
  for (i64 image = BLOCK_ID(1); image < images; image += GRID_SIZE(1)) {
    NUMBER sums[LANES], values[LANES];
    for (int n = 0; n < LANES; ++n) sums[n] = 0;
#if MAX
    const PLACE place = ((PLACE)d * (PLACE)ah.extent + (PLACE)h) * (PLACE)aw.extent + (PLACE)w;
    GLOBAL const PLACE *kept = (GLOBAL const PLACE *)workspace + kept_at(image, (OFFSET)channels, ad, ah, aw);
#endif
    for (OFFSET i = low_d; i < high_d; ++i) {
      const Bounds bd = bounds_of(ad, i);
      if ((d - bd.start) % ad.dilation != 0) continue;
      for (OFFSET j = low_h; j < high_h; ++j) {
        const Bounds bh = bounds_of(ah, j);
        if ((h - bh.start) % ah.dilation != 0) continue;
        for (OFFSET k = low_w; k < high_w; ++k) {
#if MAX
          GLOBAL const PLACE *their = kept + KEPT_AT(c, i, j, k);
          for (int n = 0; n < LANES; ++n) {
            if (their[n] == place) sums[n] += (NUMBER)LOAD(X, dy + image * dy_n, AT(dy, c + n, i, j, k));
          }
#else
          const Bounds bw = bounds_of(aw, k);
          if ((w - bw.start) % aw.dilation != 0) continue;
          const NUMBER share = 1 / ((NUMBER)bd.count * (NUMBER)bh.count * (NUMBER)bw.count);
          load_vector(dy + image * dy_n, AT(dy, c, i, j, k), LANES, is_aligned, values);
          for (int n = 0; n < LANES; ++n) sums[n] += values[n] * share;
#endif
        }
      }
    }
    store_scaled(dx + image * dx_n, AT(dx, c, d, h, w), LANES, is_aligned, sums, (FACTOR)alpha, (FACTOR)beta);
  }
}
#endif

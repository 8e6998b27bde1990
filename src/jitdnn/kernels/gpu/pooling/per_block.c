/* Pooling with large windows: many threads of a thread block share one, and backward write a whole plane.
 *
 * Defines apart from those of access.c and bounds.c: LANES neighbouring channels of an item; ITEMS of a thread block,
 * EACH = 256 / ITEMS threads for every one of them; CHANNELS_INNER 1 where neighbouring threads have neighbouring items, 0
 * where they have neighbouring elements; WHOLE 1 if a window is a plane whose elements lie at equal distances, of which
 * VECTOR neighbours are accessed at once; PLACE, an integer that holds a place in a plane.
 *
 * FLAT 1 where the planes of a tensor follow one another without gaps: a thread block then takes the planes of its items as one
 * run of memory, by VECTOR elements (16 bytes), and has room for STAGED numbers.
 *
 * An item is LANES channels of one output. `parts` thread blocks share the windows of the same items: each leaves what it found in
 * workspace, PLACE [parts][items][LANES] if MAX, and behind these as many NUMBER.
 */
#define GROUP 256
#ifdef __OPENCL_VERSION__
#define LOCAL_POINTER __local
#else
#define LOCAL_POINTER
#endif
#define EACH (GROUP / ITEMS)
#define UNROLL_4 _Pragma("unroll 4")
#define AHEAD 4 /* accesses of a thread at once */
#define WORDS ((LANES * VECTOR + A_WORD - 1) / A_WORD)
#define ARGUMENTS                                                                                                          \
  OPERANDS, GLOBAL u8 *workspace, SCALE alpha, SCALE beta, i64 images, i64 channels, AXIS(d), AXIS(h), AXIS(w), TENSORS,     \
      i64 parts_, i64 items_
#define AT(t, c, d, h, w) \
  ((OFFSET)t##_c * (c) + (OFFSET)t##_d * (d) + (OFFSET)t##_h * (h) + (OFFSET)t##_w * (w))

#define PLACES_BYTES (MAX * parts_ * items_ * LANES * (i64)sizeof(PLACE))

typedef struct {
  i64 image;
  OFFSET c, d, h, w;
} Item;

FUNCTION Item item_of(u32 number, OFFSET channels, Axis ad, Axis ah, Axis aw) {
  const u32 vectors = (u32)channels / LANES;
  Item item;
  u32 rest = number, next = rest;
#if CHANNELS_INNER
  next = rest / vectors;
  item.c = (OFFSET)(rest - next * vectors) * LANES;
#endif
  rest = next, next = rest / (u32)aw.out;
  item.w = (OFFSET)(rest - next * (u32)aw.out);
  rest = next, next = rest / (u32)ah.out;
  item.h = (OFFSET)(rest - next * (u32)ah.out);
  rest = next, next = rest / (u32)ad.out;
  item.d = (OFFSET)(rest - next * (u32)ad.out);
#if !CHANNELS_INNER
  rest = next, next = rest / vectors;
  item.c = (OFFSET)(rest - next * vectors) * LANES;
#endif
  item.image = next;
  return item;
}

/* what a window has found so far, and one more element of it */
FUNCTION void enter(NUMBER value, PLACE place, NUMBER *result, PLACE *at) {
#if MAX
  /* the first of equal ones, and the first NaN: parts of a window are not met in order */
  const int is_nan = value != value, was_nan = *result != *result;
  const int is_equal = value == *result || (is_nan && was_nan);
  if (place >= 0 && (*at < 0 || value > *result || (is_nan && !was_nan) || (is_equal && place < *at))) {
    *result = value;
    *at = place;
  }
#else
  *result += value;
#endif
}

#if FLAT
#define RUN(t) ((t) + BLOCK_ID(0) * ITEMS * (i64)count)
/* the elements of the thread block's planes, as numbers; those behind the last plane are left out */
FUNCTION void stage(GLOBAL const X *run, OFFSET end, int is_aligned, LOCAL_POINTER NUMBER *staged) {
  NUMBER values[VECTOR];
  UNROLL_4 for (OFFSET i = THREAD_ID * VECTOR; i < end; i += GROUP * VECTOR) {
    if (i + VECTOR <= end) {
      load_vector(run, i, VECTOR, is_aligned, values);
      UNROLL for (int v = 0; v < VECTOR; ++v) staged[i + v] = values[v];
    } else {
      for (int v = 0; i + v < end; ++v) staged[i + v] = (NUMBER)LOAD(X, run, i + v);
    }
  }
}
#endif

#if MAX || FORWARD
/* what this thread's elements of one part of a window come to */
FUNCTION void share_of_window(GLOBAL const X *x, int is_aligned, Item item, Axis ad, Axis ah, Axis aw, OFFSET x_d, OFFSET x_h,
                              OFFSET x_w, int thread, u32 part, u32 parts_, NUMBER *result, PLACE *at) {
  for (int n = 0; n < LANES; ++n) {
    result[n] = MAX ? -LARGEST : 0;
    at[n] = -1;
  }
#if WHOLE
  NUMBER values[LANES * VECTOR];
  const OFFSET count = ad.extent * ah.extent * aw.extent / VECTOR, share = (count + (OFFSET)parts_ - 1) / (OFFSET)parts_;
  const OFFSET end = least(count, share * (OFFSET)(part + 1));
  OFFSET i = share * (OFFSET)part + thread;
#if PACKED && !MAX
  /* some accesses are on their way while those before them are added up */
  u32 next[AHEAD][WORDS], words[AHEAD][WORDS];
#define LOAD_NEXT(from)                                                                            \
  UNROLL for (int a = 0; a < AHEAD; ++a) {                                                         \
    const OFFSET at_a = (from) + a * EACH;                                                         \
    UNROLL for (int w = 0; w < WORDS; ++w) next[a][w] = 0;                                         \
    if (at_a < end) load_words(x, at_a * VECTOR * x_w, LANES * VECTOR, is_aligned, next[a]);       \
  }
  LOAD_NEXT(i)
  for (; i < end; i += AHEAD * EACH) {
    UNROLL for (int a = 0; a < AHEAD; ++a) {
      UNROLL for (int w = 0; w < WORDS; ++w) words[a][w] = next[a][w];
    }
    LOAD_NEXT(i + AHEAD * EACH)
    UNROLL for (int a = 0; a < AHEAD; ++a) {
      unpack(words[a], LANES * VECTOR, values);
      UNROLL for (int v = 0; v < VECTOR; ++v) {
        UNROLL for (int n = 0; n < LANES; ++n) result[n] += values[v * LANES + n];
      }
    }
  }
#else
  UNROLL_4 for (; i < end; i += EACH) {
    load_vector(x, i * VECTOR * x_w, LANES * VECTOR, is_aligned, values);
    for (int v = 0; v < VECTOR; ++v) {
      for (int n = 0; n < LANES; ++n) {
#if MAX
        /* a thread meets its elements in order */
        if (at[n] < 0 || (!(values[v * LANES + n] <= result[n]) && result[n] == result[n])) {
          result[n] = values[v * LANES + n];
          at[n] = (PLACE)(i * VECTOR + v);
        }
#else
        result[n] += values[v * LANES + n];
#endif
      }
    }
  }
#endif
#else
  NUMBER values[LANES];
  const Bounds bd = bounds_of(ad, item.d), bh = bounds_of(ah, item.h), bw = bounds_of(aw, item.w);
  if (bd.low >= bd.high || bh.low >= bh.high || bw.low >= bw.high) return;
  const OFFSET width = parts(bw.high - bw.low, aw.dilation), height = parts(bh.high - bh.low, ah.dilation);
  const OFFSET count = parts(bd.high - bd.low, ad.dilation) * height * width;
  const OFFSET share = (count + (OFFSET)parts_ - 1) / (OFFSET)parts_, end = least(count, share * (OFFSET)(part + 1));
  for (OFFSET i = share * (OFFSET)part + thread; i < end; i += EACH) {
    const OFFSET row = i / width, slice = row / height;
    const OFFSET d = bd.low + slice * ad.dilation, h = bh.low + (row - slice * height) * ah.dilation;
    const OFFSET w = bw.low + (i - row * width) * aw.dilation;
    load_vector(x, d * x_d + h * x_h + w * x_w, LANES, is_aligned, values);
    for (int n = 0; n < LANES; ++n) {
      enter(values[n], ((PLACE)d * (PLACE)ah.extent + (PLACE)h) * (PLACE)aw.extent + (PLACE)w, result + n, at + n);
    }
  }
#endif
}
#endif

#if FORWARD
#ifdef INDEX
#define KEEP_PLACE(n) \
  indices[item.image * indices_n + AT(indices, item.c + n, item.d, item.h, item.w)] = (INDEX)(at[n] < 0 ? -1 : at[n])
#else
#define KEEP_PLACE(n)
#endif
/* the result of an item whose window is done */
#define FINISH()                                                                                                       \
  {                                                                                                                    \
    const NUMBER count = (NUMBER)bounds_of(ad, item.d).count * (NUMBER)bounds_of(ah, item.h).count *                    \
                         (NUMBER)bounds_of(aw, item.w).count;                                                          \
    for (int n = 0; n < LANES; ++n) {                                                                                  \
      if (MAX) {                                                                                                       \
        if (at[n] < 0) result[n] = EMPTY_MAX;                                                                          \
      } else {                                                                                                         \
        result[n] /= count;                                                                                            \
      }                                                                                                                \
      KEEP_PLACE(n);                                                                                                   \
    }                                                                                                                  \
    store_scaled(y + item.image * y_n, AT(y, item.c, item.d, item.h, item.w), LANES,                                    \
                 LANES > 1 && is_multiple(y, LANES * (int)sizeof(X)), result, (FACTOR)alpha, (FACTOR)beta);            \
  }
#endif

#if MAX || FORWARD
#define SHARE_OF_WINDOW(is_aligned)                                                                                     \
  share_of_window(x + item.image * x_n + item.c * (OFFSET)x_c, is_aligned, item, ad, ah, aw, (OFFSET)x_d, (OFFSET)x_h, \
                  (OFFSET)x_w, thread, part, (u32)parts_, result, at)

/* One part of the windows of ITEMS items; the results themselves where there is only one part and FORWARD. */
KERNEL(GROUP)
void pooling_reduce(ARGUMENTS) {
  SHARED NUMBER found[GROUP * LANES];
#if MAX
  SHARED PLACE found_at[GROUP * LANES];
#endif
  const Axis ad = MAKE_AXIS(d), ah = MAKE_AXIS(h), aw = MAKE_AXIS(w);
  const int mine = CHANNELS_INNER ? THREAD_ID % ITEMS : THREAD_ID / EACH;
  const int thread = CHANNELS_INNER ? THREAD_ID / ITEMS : THREAD_ID % EACH;
  const u32 number = (u32)BLOCK_ID(0) * ITEMS + (u32)mine, part = (u32)BLOCK_ID(1);
  const int is_item = number < (u32)items_, is_aligned = is_multiple(x, LANES * VECTOR * (int)sizeof(X));
  NUMBER result[LANES];
  PLACE at[LANES];
  const Item item = item_of(is_item ? number : 0, (OFFSET)channels, ad, ah, aw);
#if FLAT
  SHARED NUMBER staged[STAGED];
  const OFFSET count = ad.extent * ah.extent * aw.extent;
  const i64 left = items_ - BLOCK_ID(0) * ITEMS;
  const OFFSET end = (OFFSET)(left < ITEMS ? left : ITEMS) * count;
  if (is_multiple(x, VECTOR * (int)sizeof(X))) {
    stage(RUN(x), end, 1, staged);
  } else {
    stage(RUN(x), end, 0, staged);
  }
  BARRIER();
  result[0] = MAX ? -LARGEST : 0;
  at[0] = -1;
  for (OFFSET i = thread; is_item && i < count; i += EACH) enter(staged[mine * count + i], (PLACE)i, result, at);
#else
  if (is_item) {
    if (is_aligned) {
      SHARE_OF_WINDOW(1);
    } else {
      SHARE_OF_WINDOW(0);
    }
  }
#endif
  for (int distance = EACH / 2; distance > 0; distance /= 2) {
    const int here = (mine * EACH + thread) * LANES;
    BARRIER();
    if (is_item && thread >= distance && thread < 2 * distance) {
      for (int n = 0; n < LANES; ++n) {
        found[here + n] = result[n];
#if MAX
        found_at[here + n] = at[n];
#endif
      }
    }
    BARRIER();
    if (is_item && thread < distance) {
      for (int n = 0; n < LANES; ++n) {
#if MAX
        enter(found[here + distance * LANES + n], found_at[here + distance * LANES + n], result + n, at + n);
#else
        result[n] += found[here + distance * LANES + n];
#endif
      }
    }
  }
  if (!is_item || thread > 0) return;
#if FORWARD
  if (parts_ == 1) {
    FINISH()
    return;
  }
#endif
  const i64 slot = ((i64)part * items_ + number) * LANES;
  GLOBAL NUMBER *kept = (GLOBAL NUMBER *)(workspace + PLACES_BYTES);
  for (int n = 0; n < LANES; ++n) {
    kept[slot + n] = result[n];
#if MAX
    ((GLOBAL PLACE *)workspace)[slot + n] = at[n];
#endif
  }
}

/* what the parts of a window come to */
FUNCTION void join(GLOBAL const u8 *workspace, u32 number, i64 parts_, i64 items_, NUMBER *result, PLACE *at) {
  GLOBAL const NUMBER *kept = (GLOBAL const NUMBER *)(workspace + PLACES_BYTES);
  for (int n = 0; n < LANES; ++n) {
    result[n] = MAX ? -LARGEST : 0;
    at[n] = -1;
  }
  for (i64 part = 0; part < parts_; ++part) {
    const i64 slot = (part * items_ + number) * LANES;
    for (int n = 0; n < LANES; ++n) {
      PLACE place = -1;
#if MAX
      place = ((GLOBAL const PLACE *)workspace)[slot + n];
#endif
      enter(kept[slot + n], place, result + n, at + n);
    }
  }
}
#endif

#if FORWARD
/* The results from all parts, a thread for every item. */
KERNEL(GROUP)
void pooling_join(ARGUMENTS) {
  const Axis ad = MAKE_AXIS(d), ah = MAKE_AXIS(h), aw = MAKE_AXIS(w);
  const i64 number = BLOCK_ID(0) * GROUP + THREAD_ID;
  if (number >= items_) return;
  const Item item = item_of((u32)number, (OFFSET)channels, ad, ah, aw);
  NUMBER result[LANES];
  PLACE at[LANES];
  join(workspace, (u32)number, parts_, items_, result, at);
  FINISH()
}
#else

#if FLAT
/* The gradient of whole planes that follow one another: the thread block's as one run of memory. */
KERNEL(GROUP)
void pooling_spread(ARGUMENTS) {
  SHARED NUMBER gradients[ITEMS];
  SHARED PLACE chosen[ITEMS];
  const Axis ad = MAKE_AXIS(d), ah = MAKE_AXIS(h), aw = MAKE_AXIS(w);
  const OFFSET count = ad.extent * ah.extent * aw.extent;
  const i64 left = items_ - BLOCK_ID(0) * ITEMS;
  const OFFSET planes = (OFFSET)(left < ITEMS ? left : ITEMS), end = planes * count;
  for (OFFSET n = THREAD_ID; n < planes; n += GROUP) {
    const u32 number = (u32)BLOCK_ID(0) * ITEMS + (u32)n;
    const Item item = item_of(number, (OFFSET)channels, ad, ah, aw);
    const NUMBER gradient = (NUMBER)LOAD(X, dy + item.image * dy_n, (OFFSET)dy_c * item.c);
#if MAX
    NUMBER result[1];
    PLACE at[1];
    join(workspace, number, parts_, items_, result, at);
    chosen[n] = at[0];
    gradients[n] = gradient;
#else
    gradients[n] = gradient / (NUMBER)count;
#endif
  }
  BARRIER();
  const int is_aligned = is_multiple(dx, VECTOR * (int)sizeof(X));
  GLOBAL X *run = RUN(dx);
  for (OFFSET i = THREAD_ID * VECTOR; i < end; i += GROUP * VECTOR) {
    NUMBER values[VECTOR];
    OFFSET plane = i / count, place = i - plane * count;
    UNROLL for (int v = 0; v < VECTOR; ++v) {
      if (i + v >= end) break;
#if MAX
      values[v] = chosen[plane] == (PLACE)place ? gradients[plane] : 0;
#else
      values[v] = gradients[plane];
#endif
      if (++place == count) place = 0, ++plane;
    }
    if (i + VECTOR <= end) {
      store_scaled(run, i, VECTOR, is_aligned, values, (FACTOR)alpha, (FACTOR)beta);
    } else {
      for (int v = 0; i + v < end; ++v) store_scaled(run, i + v, 1, 0, values + v, (FACTOR)alpha, (FACTOR)beta);
    }
  }
}
#else
/* The gradient of whole planes: a share for every element, or all for the largest. */
KERNEL(GROUP)
void pooling_spread(ARGUMENTS) {
  const Axis ad = MAKE_AXIS(d), ah = MAKE_AXIS(h), aw = MAKE_AXIS(w);
  const int mine = CHANNELS_INNER ? THREAD_ID % ITEMS : THREAD_ID / EACH;
  const int thread = CHANNELS_INNER ? THREAD_ID / ITEMS : THREAD_ID % EACH;
  const u32 number = (u32)BLOCK_ID(0) * ITEMS + (u32)mine, part = (u32)BLOCK_ID(1), groups = (u32)GRID_SIZE(1);
  if (number >= (u32)items_) return;
  const Item item = item_of(number, (OFFSET)channels, ad, ah, aw);
  GLOBAL X *to = dx + item.image * dx_n + item.c * (OFFSET)dx_c;
  const int is_aligned = is_multiple(dx, LANES * VECTOR * (int)sizeof(X));
  const OFFSET count = ad.extent * ah.extent * aw.extent / VECTOR, share = (count + (OFFSET)groups - 1) / (OFFSET)groups;
  const OFFSET end = least(count, share * (OFFSET)(part + 1));
  NUMBER gradient[LANES], values[LANES * VECTOR];
  for (int n = 0; n < LANES; ++n) gradient[n] = (NUMBER)LOAD(X, dy + item.image * dy_n, (OFFSET)dy_c * (item.c + n));
#if MAX
  NUMBER result[LANES];
  PLACE at[LANES];
  join(workspace, number, parts_, items_, result, at);
#else
  for (int n = 0; n < LANES; ++n) gradient[n] /= (NUMBER)(ad.extent * ah.extent * aw.extent);
#endif
  for (OFFSET i = share * (OFFSET)part + thread; i < end; i += EACH) {
    for (int v = 0; v < VECTOR; ++v) {
      for (int n = 0; n < LANES; ++n) {
#if MAX
        values[v * LANES + n] = at[n] == (PLACE)(i * VECTOR + v) ? gradient[n] : 0;
#else
        values[v * LANES + n] = gradient[n];
#endif
      }
    }
    store_scaled(to, i * VECTOR * (OFFSET)dx_w, LANES * VECTOR, is_aligned, values, (FACTOR)alpha, (FACTOR)beta);
  }
}
#endif
#endif

/* Convolutions by transforms of pieces of images, which never leave the thread block; see plan.py for the pieces.
 *
 * A filter is real, so that two pieces of one channel are transformed as one of complex numbers, one as the real and one as the
 * imaginary part: their results come out in the same places. In the gradient of a filter, of which each part of conj(dy) x is a
 * sum of two such products, the real part is the sum of both.
 *
 * A *unit* is a share of the pieces of a channel of the result, or of one channel of x and one of dy; LINES units run side by side
 * in a thread block. */
#define ARGUMENTS                                                                                         \
  GLOBAL const ELEMENT *first, GLOBAL const ELEMENT *second, GLOBAL ELEMENT *result EPILOGUE_PARAMETERS,  \
      GLOBAL u8 *workspace, SCALE alpha, SCALE beta, PARAMETERS

/* The points of a transform that have elements of a tensor: along each axis `count` from `lowest` on, every step-th, from element
 * `first` on; those of that element, image and channel begin at `at`. */
typedef struct {
  int lowest[AXES], first[AXES];
  u32 count[AXES];
  i64 at;
} Window;

/* Whether there is an element at a point given by its position along each axis; its offset and its indices. `is_dense`: all
 * steps are 1, as the compiler knows. */
FUNCTION int has_element(
    const Window *window, const int *digits, const OFFSET *strides, const int *steps, int is_dense, OFFSET *at, int *indices) {
  int is_in = 1;
  OFFSET place = 0;
  UNROLL for (int a = 0; a < AXES; ++a) {
    const u32 from_lowest = (u32)(digits[a] - window->lowest[a]);
    int index = (int)from_lowest;
    is_in = is_in && from_lowest < window->count[a];
    if (!is_dense && is_in) {
      index = (int)(from_lowest / (u32)steps[a]);
      is_in = (u32)index * (u32)steps[a] == from_lowest;
    }
    place += (OFFSET)index * strides[a];
    indices[a] = window->first[a] + index;
  }
  *at = place;
  return is_in;
}

/* The position of a thread's next number. PoCL 3.1 makes something else of a loop over the axes that carries. */
FUNCTION void advance(int *digits, const int *lengths, const int *ahead) {
#if AXES == 3
  const int last = digits[2] + ahead[2], carry = last >= lengths[2];
  digits[2] = carry ? last - lengths[2] : last;
#elif AXES == 2
  const int carry = 0;
#endif
#if AXES > 1
  const int inner = digits[1] + ahead[1] + carry, is_over = inner >= lengths[1];
  digits[1] = is_over ? inner - lengths[1] : inner;
  digits[0] += ahead[0] + is_over;
#else
  digits[0] += ahead[0];
#endif
}

#define LESS(a, b) ((a) < (b) ? (a) : (b))
#define BEGIN                                                                                           \
  STAGE                                                                                                 \
  const int line = THREAD_ID / LINE_THREADS, t = THREAD_ID % LINE_THREADS;                              \
  NUMBER_POINTER stage = stage_of_block + line * STAGE_OF_LINE;                                    \
  const int lengths[AXES] = LENGTHS, ahead[AXES] = AHEAD, strides[AXES] = STRIDES, dilations[AXES] = DILATIONS; \
  const int extents_x[AXES] = EXTENTS_X, extents_y[AXES] = EXTENTS_Y, spans[AXES] = SPANS;              \
  const int paddings[AXES] = PADDINGS, sizes[AXES] = SIZES, tiles[AXES] = TILES;                        \
  const OFFSET strides_x[AXES] = STRIDES_X, strides_y[AXES] = STRIDES_Y, strides_w[AXES] = STRIDES_W;   \
  const int reach_of_part = (int)taps_of_part * dilations[AXES - 1];                                    \
  int start[AXES];                                                                                      \
  {                                                                                                     \
    int rest = t;                                                                                       \
    UNROLL for (int a = AXES - 1; a > 0; --a) {                                                         \
      start[a] = rest % lengths[a];                                                                     \
      rest /= lengths[a];                                                                               \
    }                                                                                                   \
    start[0] = rest;                                                                                    \
  }                                                                                                     \
  MAKE_ROOTS

/* What unit `number` works on in term `term` of its sum: a row and a column of the filter, a channel of x and one of y. */
#if IS_WGRAD
#define MAKE_CHANNELS(number, term)                                                                     \
  const int row = (number) / (int)group_c, column = (number) - row * (int)group_c;                      \
  const int channel_y = row, channel_x = row / (int)group_k * (int)group_c + column;
#elif IS_DATA
#define MAKE_CHANNELS(number, term)                                                                     \
  const int channel_x = number, column = channel_x % (int)group_c;                                      \
  const int channel_y = channel_x / (int)group_c * (int)group_k + (term), row = channel_y;
#else
#define MAKE_CHANNELS(number, term)                                                                     \
  const int channel_y = number, row = channel_y, column = term;                                         \
  const int channel_x = channel_y / (int)group_k * (int)group_c + (term);
#endif

/* The window of a piece in x, or in y (is_of_y), which the filter pairs with it. */
#define MAKE_WINDOW(window, is_of_y, number, part, is_there)                                            \
  Window window;                                                                                        \
  int image_of_##window;                                                                                \
  {                                                                                                     \
    int piece = number;                                                                                 \
    ANEW(piece)                                                                                         \
    image_of_##window = piece / (int)pieces_of_image;                                                   \
    int rest = piece - image_of_##window * (int)pieces_of_image;                                        \
    window.at = (is_of_y) ? image_of_##window * y_n + channel_y * y_c                                     \
                          : image_of_##window * x_n + channel_x * x_c;                                    \
    UNROLL for (int a = AXES - 1; a >= 0; --a) {                                                        \
      const int tile = a > 0 ? rest % tiles[a] : rest, begin = tile * sizes[a];                         \
      const int padding = paddings[a] - (a == AXES - 1 ? (part) * reach_of_part : 0);                   \
      rest /= tiles[a];                                                                                 \
      int low, high, from;                                                                              \
      if (IS_DATA) {                                                                                    \
        const int meets = begin - spans[a] + padding;                                                   \
        const int from_y = meets > 0 ? (meets + strides[a] - 1) / strides[a] : 0;                       \
        const int at_y = from_y * strides[a] - padding;                                                 \
        /* the same place for the results of all parts */                                              \
        const int origin = IS_IN_PARTS && a == AXES - 1 ? begin - spans[a] : LESS(begin, at_y);         \
        low = begin - origin, from = begin, high = low + LESS(sizes[a], extents_x[a] - begin);          \
        if (is_of_y) {                                                                                  \
          low = at_y - origin, from = from_y;                                                           \
          high = LESS(high, low + (extents_y[a] - from_y) * strides[a]);                                \
        }                                                                                               \
      } else if (is_of_y) {                                                                             \
        low = 0, from = begin, high = LESS(lengths[a], LESS(sizes[a], extents_y[a] - begin) * strides[a]); \
      } else {                                                                                          \
        const int origin = begin * strides[a] - padding;                                                \
        low = origin < 0 ? -origin : 0, from = origin + low, high = LESS(lengths[a], extents_x[a] - origin); \
      }                                                                                                 \
      window.lowest[a] = low, window.first[a] = from;                                                   \
      window.count[a] = (is_there) && high > low ? (u32)(high - low) : 0u;                              \
      window.at += (i64)from * ((is_of_y) ? strides_y[a] : strides_x[a]);                               \
    }                                                                                                   \
  }
/* Of the taps of a channel, or those of one part of its filter. */
#define MAKE_FILTER_WINDOW(window, part, is_there)                                                      \
  Window window;                                                                                        \
  window.at = filter_first + row * filter_k + column * filter_c;                                        \
  window.at += (part) * taps_of_part * (i64)strides_w[AXES - 1];                                        \
  UNROLL for (int a = 0; a < AXES; ++a) {                                                               \
    int count = spans[a] + 1;                                                                           \
    if (a == AXES - 1) {                                                                                \
      const int left = ((int)taps - (part) * (int)taps_of_part - 1) * dilations[a] + 1;                 \
      count = LESS(count, left);                                                                        \
    }                                                                                                   \
    window.lowest[a] = window.first[a] = 0;                                                             \
    window.count[a] = (is_there) ? (u32)count : 0u;                                                     \
  }

/* The filter's taps as real parts of the numbers. */
#define LOAD_FILTER(window)                                                                             \
  {                                                                                                     \
    ELEMENT loaded[16];                                                                                 \
    LOAD_NUMBERS(loaded, second, window, strides_w, dilations, IS_UNDILATED)                            \
    UNROLL for (int k = 0; k < 16; ++k) re[k] = REAL_OF(loaded[k]) * (REAL)(1.0 / POINTS), im[k] = 0;   \
  }

#define START_AT_FIRST                                                      \
  int digits[AXES];                                                         \
  UNROLL for (int a = 0; a < AXES; ++a) {                                   \
    digits[a] = start[a];                                                   \
    ANEW(digits[a])                                                         \
  }

/* Two pieces of a tensor, 2 * pair and the next one: one as the real and one as the imaginary part. Numbers of 16 bits become
 * others behind all loads: each of them would wait for its own. */
#define LOAD_PIECES(from, is_of_y, part, strides_of_it, is_dense)                                       \
  {                                                                                                     \
    ELEMENT loaded_re[16], loaded_im[16];                                                               \
    {                                                                                                   \
      MAKE_WINDOW(one, is_of_y, 2 * pair, part, is_there && 2 * pair < pieces)                          \
      LOAD_NUMBERS(loaded_re, from, one, strides_of_it, strides, is_dense)                              \
    }                                                                                                   \
    {                                                                                                   \
      MAKE_WINDOW(other, is_of_y, 2 * pair + 1, part, is_there && 2 * pair + 1 < pieces)                \
      LOAD_NUMBERS(loaded_im, from, other, strides_of_it, strides, is_dense)                            \
    }                                                                                                   \
    UNROLL for (int k = 0; k < 16; ++k) re[k] = REAL_OF(loaded_re[k]), im[k] = REAL_OF(loaded_im[k]);   \
  }
#define LOAD_NUMBERS(loaded, from, window, strides_of_it, steps, is_dense)                              \
  START_AT_FIRST                                                                                        \
  UNROLL for (int k = 0; k < 16; ++k) {                                                                 \
    OFFSET at;                                                                                          \
    int indices[AXES];                                                                                  \
    const int is_in = has_element(&window, digits, strides_of_it, steps, is_dense, &at, indices);       \
    loaded[k] = is_in ? (from)[window.at + at] : (ELEMENT)0;                                            \
    advance(digits, lengths, ahead);                                                                    \
  }

#if !IS_WGRAD
#define STORE_NUMBER(number, window, image)                                                                           \
  if (has_element(&window, digits, STRIDES_OF_RESULT, strides, RESULT_IS_DENSE, &at, indices)) {                      \
    const REAL sum = number;                                                                                          \
    REAL value = (REAL)alpha * (REAL)(EPILOGUE(sum, image, IS_DATA ? channel_x : channel_y));                                                 \
    if (beta != 0) value += (REAL)beta * (REAL)LOAD(ELEMENT, result, window.at + at);                                 \
    STORE(ELEMENT, result, window.at + at, value);                                                                    \
  }

#define LOAD_PAIR(part) LOAD_PIECES(first, IS_DATA, part, STRIDES_OF_DATA, DATA_ARE_DENSE)
#define STORE_PAIR                                                                                   \
  {                                                                                                  \
    MAKE_WINDOW(one, !IS_DATA, 2 * pair, 0, is_there && 2 * pair < pieces)                           \
    MAKE_WINDOW(other, !IS_DATA, 2 * pair + 1, 0, is_there && 2 * pair + 1 < pieces)                 \
    START_AT_FIRST                                                                                   \
    UNROLL for (int k = 0; k < 16; ++k) {                                                            \
      OFFSET at;                                                                                     \
      int indices[AXES];                                                                             \
      STORE_NUMBER(re[k], one, image_of_one)                                                         \
      STORE_NUMBER(im[k], other, image_of_other)                                                     \
      advance(digits, lengths, ahead);                                                               \
    }                                                                                                \
  }

#if IS_SUM || IS_PRODUCT
#if IS_PREPARED || IS_PRODUCT
#define SPECTRUM_OF(part, k)                                                                                            \
  ((GLOBAL Number *)workspace + ((((part) * filters + row * group_c + column) * 16 + (k)) * LINE_THREADS + t))

/* The spectra of all parts of all filters, `rounds` of them by a line of a thread block. */
KERNEL_OF_BLOCK
void filter_spectra(ARGUMENTS) {
  BEGIN
  for (int round = 0; round < (int)rounds; ++round) {
    int unit = ((int)BLOCK_ID(0) * (int)rounds + round) * LINES + line;
    ANEW(unit)
    const int part = unit / (int)filters, number = unit - part * (int)filters;
    const int row = number / (int)group_c, column = number - row * (int)group_c, is_there = part < parts;
    REAL re[16], im[16];
    MAKE_FILTER_WINDOW(window, part, is_there)
    LOAD_FILTER(window)
    BARRIER(); /* nobody reads what the one before left */
    forward(re, im, stage, roots, t);
    if (is_there) {
      UNROLL for (int k = 0; k < 16; ++k) {
        Number number;
        number.re = re[k], number.im = im[k];
        *SPECTRUM_OF(part, k) = number;
      }
    }
  }
}
#endif

#if !IS_PRODUCT
/* re and im, times the spectrum of a filter or its conjugate, are added to the sum. */
#define ADD_PRODUCT(spectrum)                                                                                           \
  UNROLL for (int k = 0; k < 16; ++k) {                                                                                 \
    const Number by = spectrum;                                                                                         \
    const REAL by_im = by.im * (IS_DATA ? 1 : -1);                                                                      \
    sum_re[k] += re[k] * by.re - im[k] * by_im;                                                                         \
    sum_im[k] += re[k] * by_im + im[k] * by.re;                                                                         \
  }

/* The sum over channels, and over parts of the filter, which are transformed one after the other. */
KERNEL_OF_BLOCK
void convolve(ARGUMENTS) {
  BEGIN
  const int unit = (int)BLOCK_ID(0) * LINES + line, share = unit / (int)results, number = unit - share * (int)results;
  const int is_there = share < shares;
  REAL re[16], im[16], sum_re[16], sum_im[16];
  for (int n = 0; n < (int)pairs_of_share; ++n) {
    const int pair = share * (int)pairs_of_share + n;
    UNROLL for (int k = 0; k < 16; ++k) sum_re[k] = sum_im[k] = 0;
#if IS_PREPARED
    for (int step = 0; step < (int)(parts * terms); ++step) {
      const int term = step / (int)parts, part = step - term * (int)parts;
      MAKE_CHANNELS(number, term)
      LOAD_PAIR(part)
      BARRIER();
      forward(re, im, stage, roots, t);
      if (is_there) ADD_PRODUCT(*SPECTRUM_OF(part, k))
    }
#else
    NUMBER_POINTER kept = stage + POINTS + t;
    for (int step = 0; step < 2 * (int)(parts * terms); ++step) { /* of each part the filter, then what it meets */
      const int is_data = step % 2, term = step / 2 / (int)parts, part = step / 2 - term * (int)parts;
      MAKE_CHANNELS(number, term)
      if (is_data) {
        LOAD_PAIR(part)
      } else {
        MAKE_FILTER_WINDOW(window, part, is_there)
        LOAD_FILTER(window)
      }
      BARRIER();
      forward(re, im, stage, roots, t);
      if (is_data) {
        ADD_PRODUCT(kept[k * LINE_THREADS])
      } else {
        KEEP(re, im)
      }
    }
#endif
    inverse(sum_re, sum_im, stage, roots, t);
    UNROLL for (int k = 0; k < 16; ++k) re[k] = sum_re[k], im[k] = sum_im[k];
    MAKE_CHANNELS(number, 0)
    STORE_PAIR
  }
}
#endif
#else
/* Forward, and with IS_DATA the gradient of the data. */
KERNEL_OF_BLOCK
void convolve(ARGUMENTS) {
  BEGIN
  const int unit = (int)BLOCK_ID(0) * LINES + line, share = unit / (int)results, number = unit - share * (int)results;
  const int is_there = share < shares;
  MAKE_CHANNELS(number, 0)
  REAL re[16], im[16];
  NUMBER_POINTER kept = stage + POINTS + t; /* the spectrum of the filter */
  for (int n = -1; n < (int)pairs_of_share; ++n) { /* the filter, then pairs of pieces */
    const int pair = share * (int)pairs_of_share + n;
    if (n < 0) {
      MAKE_FILTER_WINDOW(window, 0, is_there)
      LOAD_FILTER(window)
    } else {
      LOAD_PAIR(0)
    }
    if (n == 0) BARRIER(); /* nobody reads what the filter's transform left */
    forward(re, im, stage, roots, t);
    if (n < 0) {
      KEEP(re, im)
    } else {
      UNROLL for (int k = 0; k < 16; ++k) {
        const Number by = kept[k * LINE_THREADS];
        TIMES(re[k], im[k], by.re, by.im * (IS_DATA ? 1 : -1))
      }
      inverse(re, im, stage, roots, t);
      STORE_PAIR
    }
  }
}
#endif
#else
/* The taps of a channel from the spectrum of their gradient. */
#define FINISH_FILTER                                                                                                   \
  inverse(sum_re, sum_im, stage, roots, t);                                                                             \
  START_AT_FIRST                                                                                                        \
  UNROLL for (int k = 0; k < 16; ++k) {                                                                                 \
    OFFSET at;                                                                                                          \
    int indices[AXES];                                                                                                  \
    if (has_element(&window, digits, strides_w, dilations, IS_UNDILATED, &at, indices)) {                               \
      REAL value = (REAL)alpha * (sum_re[k] * (REAL)(1.0 / POINTS));                                                    \
      if (beta != 0) value += (REAL)beta * (REAL)LOAD(ELEMENT, result, window.at + at);                                 \
      STORE(ELEMENT, result, window.at + at, value);                                                                    \
    }                                                                                                                   \
    advance(digits, lengths, ahead);                                                                                    \
  }
#if !IS_PRODUCT
#define PART_OF(share, k) \
  ((GLOBAL Number *)workspace + (((share) * (i64)parts * results + slot) * 16 + (k)) * LINE_THREADS + t)

/* The gradient of the filter; of several shares, the spectrum of each one's part. */
KERNEL_OF_BLOCK
void filter_gradient(ARGUMENTS) {
  BEGIN
  const int slots = (int)(results * parts), unit = (int)BLOCK_ID(0) * LINES + line, share = unit / slots;
  const int slot = unit - share * slots, part = slot / (int)results, number = slot - part * (int)results;
  const int is_there = share < shares;
  MAKE_CHANNELS(number, 0)
  REAL re[16], im[16], sum_re[16], sum_im[16];
  NUMBER_POINTER kept = stage + POINTS + t;
  UNROLL for (int k = 0; k < 16; ++k) sum_re[k] = sum_im[k] = 0;
  for (int n = 0; n < 2 * (int)pairs_of_share; ++n) { /* of each pair x, then dy */
    const int pair = share * (int)pairs_of_share + n / 2;
    const int is_dy = n % 2;
    if (is_dy) {
      LOAD_PIECES(second, 1, part, strides_y, IS_UNSTRIDED)
    } else {
      LOAD_PIECES(first, 0, part, strides_x, 1)
    }
    BARRIER();
    forward(re, im, stage, roots, t);
    if (is_dy) {
      UNROLL for (int k = 0; k < 16; ++k) {
        const Number of = kept[k * LINE_THREADS];
        sum_re[k] += re[k] * of.re + im[k] * of.im;
        sum_im[k] += re[k] * of.im - im[k] * of.re;
      }
    } else {
      KEEP(re, im)
    }
  }
  if (shares == 1) {
    MAKE_FILTER_WINDOW(window, part, is_there)
    FINISH_FILTER
  } else if (is_there) {
    UNROLL for (int k = 0; k < 16; ++k) {
      Number number;
      number.re = sum_re[k], number.im = sum_im[k];
      *PART_OF(share, k) = number;
    }
  }
}

KERNEL_OF_BLOCK
void sum_shares(ARGUMENTS) {
  BEGIN
  const int slot = (int)BLOCK_ID(0) * LINES + line, part = slot / (int)results, number = slot - part * (int)results;
  const int is_there = part < parts;
  MAKE_CHANNELS(number, 0)
  REAL sum_re[16], sum_im[16];
  UNROLL for (int k = 0; k < 16; ++k) sum_re[k] = sum_im[k] = 0;
  for (int share = 0; share < shares && is_there; ++share)
    UNROLL for (int k = 0; k < 16; ++k) {
      const Number number = *PART_OF(share, k);
      sum_re[k] += number.re, sum_im[k] += number.im;
    }
  MAKE_FILTER_WINDOW(window, part, is_there)
  FINISH_FILTER
}
#endif
#endif

/* Pooling with small windows of a fixed size: a thread goes down some rows of an image and keeps what each row of x adds
 * to the windows that it is in.
 *
 * Defines apart from those of access.c: MAX 1 or 0 (average); COUNTS_PADDING; FORWARD; INDEX, if the places of the
 * maxima are a result, its type; PLACE, an integer that holds a place in a plane; HAS_EMPTY 1 if windows may see nothing of
 * the image; KH, KW the window; SH, SW the stride; BEFORE_H, BEFORE_W the padding; LANES neighbouring channels of a thread;
 * COLUMNS, its outputs in a row, or backward tiles of SH x SW elements; VECTOR and
 * VECTOR_OUT, neighbouring columns of x and dx, and of y and dy, that are accessed at once (1 if LANES are more).
 *
 * Backward, tile (t, u) is rows t * SH .. and columns u * SW .. of dx; the windows that reach it begin FIRST_H and FIRST_W
 * behind output (t, u), and end at LAST_H and LAST_W.
 */
#define GROUP 128
#define WINDOWS (COLUMNS + LAST_W - FIRST_W) /* of one row that a thread looks at */
#define SPAN ((WINDOWS - 1) * SW + KW)       /* columns of x that they cover */
#define HALO (BEFORE_W - FIRST_W * SW)       /* those before the column of the first tile */
#define TILE (COLUMNS * SW)
#define WINDOW_ROWS (LAST_H - FIRST_H + 1)
#define KEPT_ROWS (KH > SH ? KH - SH : 0) /* rows of x that the next window has too */
#define NEEDS_PLACES (MAX && (!FORWARD || defined(INDEX)))

#if MAX
#define NOTHING (-LARGEST) /* what padding counts as */
#else
#define NOTHING 0
#endif
/* the same in the bits of storage, as often as a word holds it */
#define LEAST_f32 0xff800000u
#define LEAST_f16 0xfc00fc00u
#define LEAST_bf16 0xff80ff80u
#define UNSIGNED_i32 u32
#define UNSIGNED_i64 u64
#define IS_BELOW(i, extent) ((JOIN(UNSIGNED_, OFFSET))(i) < (JOIN(UNSIGNED_, OFFSET))(extent)) /* and not negative */

/* `span` columns of a row, for all lanes: `halo` of them before column `first`. Where they are not in the image, or
 * `is_inside` is 0, they are padding of x if `is_x`, and else 0. Behind the halo, `vector` columns are read at once.
 * All are read before any is looked at. */
FUNCTION void load_row(GLOBAL const X *p, int is_inside, OFFSET first, OFFSET extent, OFFSET step, int is_aligned, int span,
                       int halo, int vector, int is_x, NUMBER *v) {
  const OFFSET limit = is_inside ? extent : 0;
#define IS_WHOLE(j) (vector > 1 && (j) >= halo && (j) < halo + (span - halo) / vector * vector)
#if PACKED
  u32 words[SPAN * LANES];
  UNROLL for (int j = 0; j < span; ++j) {
    const OFFSET column = first - halo + j;
    if (!IS_WHOLE(j)) {
      UNROLL for (int n = 0; n < (LANES + A_WORD - 1) / A_WORD; ++n) {
        words[j * LANES + n] = MAX && is_x ? JOIN(LEAST_, X) : 0;
      }
      if (IS_BELOW(column, limit)) load_words(p, column * step, LANES, is_aligned, words + j * LANES);
    } else if ((j - halo) % vector == 0) {
      UNROLL for (int n = 0; n < vector / A_WORD; ++n) words[j + n] = MAX && is_x ? JOIN(LEAST_, X) : 0;
      if (IS_BELOW(column, limit)) load_words(p, column, vector, is_aligned, words + j);
    }
  }
  UNROLL for (int j = 0; j < span; ++j) {
    if (!IS_WHOLE(j)) {
      unpack(words + j * LANES, LANES, v + j * LANES);
    } else if ((j - halo) % vector == 0) {
      unpack(words + j, vector, v + j);
    }
  }
#else
  UNROLL for (int j = 0; j < span; ++j) {
    const OFFSET column = first - halo + j;
    UNROLL for (int n = 0; n < LANES; ++n) v[j * LANES + n] = is_x ? NOTHING : 0;
    if (IS_BELOW(column, limit)) load_vector(p, column * step, LANES, is_aligned, v + j * LANES);
  }
#endif
}

/* the maximum of several numbers, or their sum; `tap` is what the first of equal ones came from */
FUNCTION void accumulate(NUMBER value, int place, NUMBER *result, int *tap) {
#if NEEDS_PLACES
  if (!(value <= *result) && *result == *result) {
    *result = value;
    *tap = place;
  }
#elif MAX
  *result = LARGER(*result, value);
#else
  *result += value;
#endif
}

/* what one row adds to the windows that lie in it */
FUNCTION void windows_of_row(const NUMBER *v, NUMBER *results, int *taps) {
  UNROLL for (int q = 0; q < WINDOWS; ++q) {
    UNROLL for (int n = 0; n < LANES; ++n) {
      NUMBER result = v[q * SW * LANES + n];
      int tap = 0;
      UNROLL for (int k = 1; k < KW; ++k) accumulate(v[(q * SW + k) * LANES + n], k, &result, &tap);
      results[q * LANES + n] = result;
      taps[q * LANES + n] = tap;
    }
  }
}

/* the tap that a window's maximum comes from: of nothing but -infinity, the first in the image */
FUNCTION int first_of(NUMBER result, int tap, OFFSET start, OFFSET column) {
  return result == -LARGEST ? (start < 0 ? (int)-start : 0) * KW + (column < 0 ? (int)-column : 0) : tap;
}

/* how many elements an average of this window counts along one axis */
FUNCTION NUMBER counted(OFFSET start, OFFSET window, OFFSET extent, OFFSET after) {
  const OFFSET end = start + window, limit = extent + (COUNTS_PADDING ? after : 0);
  const OFFSET count = (end < limit ? end : limit) - (COUNTS_PADDING || start > 0 ? start : 0);
  return (NUMBER)(count > 1 ? count : 1);
}

#define STORE_RESULT(p, i, count, is_aligned, v)              \
  if (is_plain) {                                             \
    store_vector(p, i, count, is_aligned, v);                 \
  } else {                                                    \
    store_scaled(p, i, count, is_aligned, v, alpha, beta);    \
  }

typedef struct {
  OFFSET inputs_h, inputs_w, outputs_h, outputs_w, after_h, after_w; /* extents and padding */
  OFFSET rows; /* outputs, or tiles, that a thread goes down */
} Shape;

#if FORWARD
FUNCTION void slide(GLOBAL const X *x, GLOBAL X *y,
#ifdef INDEX
                    GLOBAL INDEX *indices, OFFSET indices_c, OFFSET indices_h, OFFSET indices_w,
#endif
                    Shape s, OFFSET x_h, OFFSET x_w, OFFSET y_h, OFFSET y_w, OFFSET row, OFFSET tile, NUMBER alpha, NUMBER beta,
                    int is_aligned, int is_plain) {
  NUMBER results[KH][WINDOWS * LANES], v[SPAN * LANES], inverse[WINDOWS];
  int taps[KH][WINDOWS * LANES];
  const OFFSET first = tile * COLUMNS, last = row + s.rows < s.outputs_h ? row + s.rows : s.outputs_h;
#if !MAX
  UNROLL for (int q = 0; q < WINDOWS; ++q) {
    inverse[q] = 1 / counted((first + q) * SW - BEFORE_W, KW, s.inputs_w, s.after_w);
  }
#endif
  UNROLL for (int i = 0; i < KEPT_ROWS; ++i) {
    const OFFSET h = row * SH - BEFORE_H + i;
    load_row(x + h * x_h, h >= 0 && h < s.inputs_h, first * SW, s.inputs_w, x_w, is_aligned, SPAN, HALO, VECTOR, 1, v);
    windows_of_row(v, results[i], taps[i]);
  }
  for (OFFSET p = row; p < last; ++p) {
    const OFFSET start = p * SH - BEFORE_H;
    UNROLL for (int i = KEPT_ROWS; i < KH; ++i) {
      const OFFSET h = start + i;
      load_row(x + h * x_h, h >= 0 && h < s.inputs_h, first * SW, s.inputs_w, x_w, is_aligned, SPAN, HALO, VECTOR, 1, v);
      windows_of_row(v, results[i], taps[i]);
    }
    NUMBER out[WINDOWS * LANES];
#if !MAX
    const NUMBER share = 1 / counted(start, KH, s.inputs_h, s.after_h);
#endif
    UNROLL for (int q = 0; q < WINDOWS; ++q) {
      const OFFSET column = (first + q) * SW - BEFORE_W;
      UNROLL for (int n = 0; n < LANES; ++n) {
        NUMBER result = results[0][q * LANES + n];
        int tap = taps[0][q * LANES + n];
        UNROLL for (int i = 1; i < KH; ++i) {
          accumulate(results[i][q * LANES + n], i * KW + taps[i][q * LANES + n], &result, &tap);
        }
#if MAX
        const int is_empty = HAS_EMPTY && (start >= s.inputs_h || column >= s.inputs_w);
#ifdef INDEX
        tap = first_of(result, tap, start, column);
        const PLACE place = (PLACE)(start + tap / KW) * (PLACE)s.inputs_w + (PLACE)(column + tap % KW);
        if (first + q < s.outputs_w) {
          indices[n * indices_c + p * indices_h + (first + q) * indices_w] = (INDEX)(is_empty ? -1 : place);
        }
#endif
        if (is_empty) result = EMPTY_MAX;
#else
        result *= share * inverse[q];
#endif
        out[q * LANES + n] = result;
      }
    }
    UNROLL for (int q = 0; q < WINDOWS; ++q) {
      if (first + q >= s.outputs_w) break;
      if (VECTOR_OUT == 1) {
        STORE_RESULT(y + p * y_h, (first + q) * y_w, LANES, is_aligned, out + q * LANES);
      } else if (q % VECTOR_OUT == 0) {
        STORE_RESULT(y + p * y_h, first + q, VECTOR_OUT, is_aligned, out + q);
      }
    }
    UNROLL for (int i = 0; i < KEPT_ROWS; ++i) {
      UNROLL for (int n = 0; n < WINDOWS * LANES; ++n) {
        results[i][n] = results[i + SH][n];
        taps[i][n] = taps[i + SH][n];
      }
    }
  }
}

#else

#define NEW_ROWS (KH - KEPT_ROWS)
#define GRADIENTS ((MAX ? WINDOWS : TILE) * LANES) /* of a row: those of windows, or what elements get of them */
/* what the windows of row p bring: gradients, and the rows of x that those before them have not */
#define LOAD_WINDOWS(p)                                                                                              \
  {                                                                                                                  \
    const int is_row = (p) < last + LAST_H;                                                                          \
    load_row(dy + (p) * dy_h, is_row && (p) >= 0 && (p) < s.outputs_h, first, s.outputs_w, dy_w, is_aligned, WINDOWS, \
             -FIRST_W, VECTOR_OUT, 0, next);                                                                         \
    LOAD_NEW_ROWS(p)                                                                                                 \
  }
#if MAX
#define LOAD_NEW_ROWS(p)                                                                                     \
  UNROLL for (int i = 0; i < NEW_ROWS; ++i) {                                                                \
    const OFFSET h = (p) * SH - BEFORE_H + KEPT_ROWS + i;                                                    \
    load_row(x + h * x_h, is_row && h >= 0 && h < s.inputs_h, first * SW, s.inputs_w, x_w, is_aligned, SPAN, \
             HALO, VECTOR, 1, v[i]);                                                                   \
  }
#else
#define LOAD_NEW_ROWS(p)
#endif

FUNCTION void slide(GLOBAL const X *dy, GLOBAL const X *x, GLOBAL X *dx, Shape s, OFFSET dy_h, OFFSET dy_w, OFFSET x_h,
                    OFFSET x_w, OFFSET dx_h, OFFSET dx_w, OFFSET row, OFFSET tile, NUMBER alpha, NUMBER beta, int is_aligned,
                    int is_plain) {
  NUMBER gradients[WINDOW_ROWS][GRADIENTS], next[WINDOWS * LANES];
  const OFFSET first = tile * COLUMNS, tiles = (s.inputs_h + SH - 1) / SH;
  const OFFSET last = row + s.rows < tiles ? row + s.rows : tiles;
#if MAX
  NUMBER results[KH][WINDOWS * LANES], v[NEW_ROWS][SPAN * LANES];
  int taps[KH][WINDOWS * LANES], chosen[WINDOW_ROWS][WINDOWS * LANES];
  UNROLL for (int i = 0; i < KEPT_ROWS; ++i) {
    const OFFSET h = (row + FIRST_H) * SH - BEFORE_H + i;
    load_row(x + h * x_h, h >= 0 && h < s.inputs_h, first * SW, s.inputs_w, x_w, is_aligned, SPAN, HALO, VECTOR, 1, v[0]);
    windows_of_row(v[0], results[i], taps[i]);
  }
#else
  NUMBER inverse[WINDOWS];
  UNROLL for (int q = 0; q < WINDOWS; ++q) {
    inverse[q] = 1 / counted((first + FIRST_W + q) * SW - BEFORE_W, KW, s.inputs_w, s.after_w);
  }
#endif
  LOAD_WINDOWS(row + FIRST_H)
  for (OFFSET p = row + FIRST_H; p < last + LAST_H; ++p) {
    const OFFSET start = p * SH - BEFORE_H, t = p - LAST_H;
#if MAX
    UNROLL for (int n = 0; n < WINDOWS * LANES; ++n) gradients[WINDOW_ROWS - 1][n] = next[n];
    UNROLL for (int i = 0; i < NEW_ROWS; ++i) windows_of_row(v[i], results[KEPT_ROWS + i], taps[KEPT_ROWS + i]);
#else
    const NUMBER share = 1 / counted(start, KH, s.inputs_h, s.after_h);
    UNROLL for (int n = 0; n < GRADIENTS; ++n) gradients[WINDOW_ROWS - 1][n] = 0;
    UNROLL for (int q = 0; q < WINDOWS; ++q) {
      const NUMBER weight = share * inverse[q];
      UNROLL for (int n = 0; n < LANES; ++n) {
        const NUMBER gradient = weight * next[q * LANES + n];
        UNROLL for (int c = 0; c < TILE; ++c) {
          const int kw = c + BEFORE_W - (FIRST_W + q) * SW;
          if (kw >= 0 && kw < KW) gradients[WINDOW_ROWS - 1][c * LANES + n] += gradient;
        }
      }
    }
#endif
    /* read while what follows is computed */
    LOAD_WINDOWS(p + 1)
#if MAX
    UNROLL for (int q = 0; q < WINDOWS; ++q) {
      const OFFSET column = (first + FIRST_W + q) * SW - BEFORE_W;
      UNROLL for (int n = 0; n < LANES; ++n) {
        NUMBER result = results[0][q * LANES + n];
        int tap = taps[0][q * LANES + n];
        UNROLL for (int i = 1; i < KH; ++i) {
          accumulate(results[i][q * LANES + n], i * KW + taps[i][q * LANES + n], &result, &tap);
        }
        chosen[WINDOW_ROWS - 1][q * LANES + n] = first_of(result, tap, start, column);
      }
    }
#endif
    if (t >= row) {
      UNROLL for (int r = 0; r < SH; ++r) {
        if (t * SH + r >= s.inputs_h) break;
        NUMBER sums[TILE * LANES];
        UNROLL for (int c = 0; c < TILE; ++c) {
          UNROLL for (int n = 0; n < LANES; ++n) {
            NUMBER sum = 0;
            UNROLL for (int m = 0; m < WINDOW_ROWS; ++m) {
              const int kh = r + BEFORE_H - (FIRST_H + m) * SH;
              if (kh < 0 || kh >= KH) continue;
#if MAX
              UNROLL for (int q = 0; q < WINDOWS; ++q) {
                const int kw = c + BEFORE_W - (FIRST_W + q) * SW;
                if (kw < 0 || kw >= KW) continue;
                if (chosen[m][q * LANES + n] == kh * KW + kw) sum += gradients[m][q * LANES + n];
              }
#else
              sum += gradients[m][c * LANES + n];
#endif
            }
            sums[c * LANES + n] = sum;
          }
        }
        GLOBAL X *to = dx + (t * SH + r) * dx_h;
        UNROLL for (int c = 0; c < TILE; ++c) {
          if (first * SW + c >= s.inputs_w) break;
          if (VECTOR == 1) {
            STORE_RESULT(to, (first * SW + c) * dx_w, LANES, is_aligned, sums + c * LANES);
          } else if (c % VECTOR == 0) {
            STORE_RESULT(to, first * SW + c, VECTOR, is_aligned, sums + c);
          }
        }
      }
    }
    UNROLL for (int n = 0; n < GRADIENTS; ++n) {
      UNROLL for (int m = 0; m + 1 < WINDOW_ROWS; ++m) {
        gradients[m][n] = gradients[m + 1][n];
#if MAX
        chosen[m][n] = chosen[m + 1][n];
#endif
      }
#if MAX
      UNROLL for (int i = 0; i < KEPT_ROWS; ++i) {
        results[i][n] = results[i + SH][n];
        taps[i][n] = taps[i + SH][n];
      }
#endif
    }
  }
}
#endif

/* A unit is LANES channels of COLUMNS columns of some rows. Neighbours are the next channels, `inner` vectors of them, then
 * the next columns, rows, `outer` parts of the channels, depth, images. */
KERNEL(GROUP)
void pooling_sliding(OPERANDS, GLOBAL u8 *workspace, SCALE alpha, SCALE beta, i64 images, i64 inner, i64 tiles, i64 chunks,
                     i64 outer, i64 depth, i64 rows, i64 inputs_h, i64 inputs_w, i64 outputs_h, i64 outputs_w, i64 after_h,
                     i64 after_w, i64 images_at_once, TENSORS) {
  u32 rest = (u32)BLOCK_ID(0) * GROUP + (u32)THREAD_ID;
  u32 next = rest / (u32)inner;
  const u32 vector = rest - next * (u32)inner;
  rest = next, next = rest / (u32)tiles;
  const OFFSET tile = (OFFSET)(rest - next * (u32)tiles);
  rest = next, next = rest / (u32)chunks;
  const OFFSET row = (OFFSET)(rest - next * (u32)chunks) * (OFFSET)rows;
  rest = next, next = rest / (u32)outer;
  const OFFSET c = (OFFSET)(((rest - next * (u32)outer) * (u32)inner + vector) * LANES);
  rest = next, next = rest / (u32)depth;
  const OFFSET d = (OFFSET)(rest - next * (u32)depth);
  const i64 image = BLOCK_ID(1) * images_at_once + next;
  if (next >= (u32)images_at_once || image >= images) return;
  Shape s;
  s.inputs_h = (OFFSET)inputs_h, s.inputs_w = (OFFSET)inputs_w, s.outputs_h = (OFFSET)outputs_h;
  s.outputs_w = (OFFSET)outputs_w, s.after_h = (OFFSET)after_h, s.after_w = (OFFSET)after_w, s.rows = (OFFSET)rows;
  const int in = LANES > VECTOR ? LANES : VECTOR, out = LANES > VECTOR_OUT ? LANES : VECTOR_OUT;
  const int in_bytes = in * (int)sizeof(X), out_bytes = out * (int)sizeof(X);
#define PLANE(t) (t + image * t##_n + (c * (OFFSET)t##_c + d * (OFFSET)t##_d))
#if FORWARD
#ifdef INDEX
#define PLACES PLANE(indices), (OFFSET)indices_c, (OFFSET)indices_h, (OFFSET)indices_w,
#else
#define PLACES
#endif
  const int is_aligned = is_multiple(x, in_bytes) && is_multiple(y, out_bytes);
#define SLIDE(is_aligned, is_plain)                                                                                            \
  slide(PLANE(x), PLANE(y), PLACES s, (OFFSET)x_h, (OFFSET)x_w, (OFFSET)y_h, (OFFSET)y_w, row, tile, (NUMBER)alpha,    \
        (NUMBER)beta, is_aligned, is_plain)
#else
#if MAX
#define FROM PLANE(x), PLANE(dx), s, (OFFSET)dy_h, (OFFSET)dy_w, (OFFSET)x_h, (OFFSET)x_w
  const int is_aligned = is_multiple(x, in_bytes) && is_multiple(dx, in_bytes) && is_multiple(dy, out_bytes);
#else
#define FROM PLANE(dy), PLANE(dx), s, (OFFSET)dy_h, (OFFSET)dy_w, 0, 0
  const int is_aligned = is_multiple(dx, in_bytes) && is_multiple(dy, out_bytes);
#endif
#define SLIDE(is_aligned, is_plain)                                                                                         \
  slide(PLANE(dy), FROM, (OFFSET)dx_h, (OFFSET)dx_w, row, tile, (NUMBER)alpha, (NUMBER)beta, is_aligned, is_plain)
#endif
  if (is_aligned && alpha == 1 && beta == 0) {
    SLIDE(1, 1);
  } else if (is_aligned) {
    SLIDE(1, 0);
  } else {
    SLIDE(0, 0);
  }
}

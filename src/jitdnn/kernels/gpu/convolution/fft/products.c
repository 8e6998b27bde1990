/* Channels that meet, by spectra in the workspace: those of one operand, `a`, and of the other, `b`, then for each point the
 * product of two matrices, and the way back. Each number is transformed once, whatever the number of channels that it meets.
 *
 *     forward            a: filters, row i of a group and column t      b: pairs of pieces of x, channel t of pair j
 *     data's gradient    a: filters, row t and column i                 b: pairs of pieces of dy, channel t of pair j
 *     filter's gradient  a: pairs of pieces of dy, channel i of pair t  b: pairs of pieces of x, channel j of pair t
 *
 * Forward and in the filter's gradient a is conjugated. Spectra lie as threads have them; spectrum n is `points` numbers from
 * n * POINTS on. */
#define SPECTRUM(first, n, k) ((GLOBAL Number *)workspace + (((first) + (n)) * 16 + (k)) * LINE_THREADS + t)

#define STORE_SPECTRUM(first, n)                     \
  UNROLL for (int k = 0; k < 16; ++k) {              \
    Number number;                                   \
    number.re = re[k], number.im = im[k];            \
    *SPECTRUM(first, n, k) = number;                 \
  }
#define LOAD_SPECTRUM(to_re, to_im, first, n)        \
  UNROLL for (int k = 0; k < 16; ++k) {              \
    const Number number = *SPECTRUM(first, n, k);    \
    to_re[k] = number.re, to_im[k] = number.im;      \
  }

/* A line of a thread block has one transform after the other, `rounds` of them. */
#define FOR_UNITS for (int round = 0; round < (int)rounds; ++round)
#define MAKE_UNIT                                                                                       \
  i64 unit = ((i64)BLOCK_ID(0) * rounds + round) * LINES + line;                                        \
  BARRIER(); /* nobody reads what the one before left */

/* Of all pairs of pieces of a tensor with `channels`: spectrum pair * channels + channel, behind `begin` others. */
#define PIECES_KERNEL(name, from, is_of_y, strides_of_it, is_dense, channels, begin)                    \
  KERNEL_OF_BLOCK                                                                                       \
  void name(ARGUMENTS) {                                                                                \
    BEGIN                                                                                               \
    FOR_UNITS {                                                                                         \
      MAKE_UNIT                                                                                         \
      const int pair = (int)(unit / (channels)), is_there = pair < pairs;                               \
      const int channel_x = (int)(unit - pair * (channels)), channel_y = channel_x;                     \
      REAL re[16], im[16];                                                                              \
      LOAD_PIECES(from, is_of_y, 0, strides_of_it, is_dense)                                            \
      forward(re, im, stage, roots, t);                                                                 \
      if (is_there) STORE_SPECTRUM(begin, unit)                                                         \
    }                                                                                                   \
  }
#if IS_WGRAD
PIECES_KERNEL(spectra_of_dy, second, 1, strides_y, IS_UNSTRIDED, channels_y, (i64)0)
PIECES_KERNEL(spectra_of_x, first, 0, strides_x, 1, channels_x, spectra_of_a)
#else
PIECES_KERNEL(spectra_of_data, first, IS_DATA, STRIDES_OF_DATA, DATA_ARE_DENSE, IS_DATA ? channels_y : channels_x, spectra_of_a)
#endif

/* Terms whose numbers are on their way at once. */
#ifdef __CUDACC__
#define TERMS_AHEAD 4
#else
#define TERMS_AHEAD 1
#endif

#define LOAD_TERM(d)                                   \
  UNROLL for (int n = 0; n < 4; ++n) {                 \
    one[d][n] = *a[n], other[d][n] = *b[n];            \
    a[n] += a_term * POINTS, b[n] += b_term * POINTS;  \
  }

/* The products of matrices: 32 neighbouring points by the lanes of a warp, 4 x 4 numbers of the result to a thread, 2 x 2 such
 * tiles to a thread block. Blocks that are neighbours have the same points, and share what they read in the cache. */
KERNEL(128)
void multiply_spectra(ARGUMENTS) {
  const int warp = THREAD_ID / 32;
  const i64 tiles_i = (rows + 7) / 8, tiles_j = (columns + 7) / 8;
  i64 rest = BLOCK_ID(0);
  const i64 i0 = rest % tiles_i * 8 + warp % 2 * 4;
  rest /= tiles_i;
  const i64 j0 = rest % tiles_j * 8 + warp / 2 * 4;
  rest /= tiles_j;
  const i64 group = rest % groups, point = rest / groups * 32 + THREAD_ID % 32;
  if (i0 >= rows || j0 >= columns) return;
  GLOBAL const Number *a[4];
  GLOBAL const Number *b[4];
  UNROLL for (int n = 0; n < 4; ++n) { /* what is outside is read elsewhere, and not stored */
    const i64 i = i0 + n < rows ? i0 + n : i0, j = j0 + n < columns ? j0 + n : j0;
    a[n] = (GLOBAL const Number *)workspace + (group * a_group + i * a_row) * POINTS + point;
    b[n] = (GLOBAL const Number *)workspace + (spectra_of_a + group * b_group + j * b_column) * POINTS + point;
  }
  REAL re[4][4], im[4][4];
  UNROLL for (int i = 0; i < 4; ++i)
    UNROLL for (int j = 0; j < 4; ++j) re[i][j] = im[i][j] = 0;
  Number one[TERMS_AHEAD][4], other[TERMS_AHEAD][4];
  UNROLL for (int d = 0; d < TERMS_AHEAD; ++d)
    if (d < sums) {
      LOAD_TERM(d)
    }
  for (i64 term = 0; term < sums; term += TERMS_AHEAD) {
    UNROLL for (int d = 0; d < TERMS_AHEAD; ++d) {
      if (term + d >= sums) break;
      UNROLL for (int i = 0; i < 4; ++i) {
        const REAL a_im = one[d][i].im * (IS_DATA ? 1 : -1), minus = -a_im;
        UNROLL for (int j = 0; j < 4; ++j) {
          re[i][j] += one[d][i].re * other[d][j].re;
          im[i][j] += one[d][i].re * other[d][j].im;
          re[i][j] += minus * other[d][j].im;
          im[i][j] += a_im * other[d][j].re;
        }
      }
      if (term + d + TERMS_AHEAD < sums) { /* into the same registers, as nothing is to wait for them */
        LOAD_TERM(d)
      }
    }
  }
  UNROLL for (int i = 0; i < 4; ++i)
    UNROLL for (int j = 0; j < 4; ++j) {
      if (i0 + i >= rows || j0 + j >= columns) continue;
      Number number;
      number.re = re[i][j], number.im = im[i][j];
      const i64 to = spectra_of_a + spectra_of_b + group * c_group + (i0 + i) * c_row + (j0 + j) * c_column;
      ((GLOBAL Number *)workspace)[to * POINTS + point] = number;
    }
}

/* The way back. */
KERNEL_OF_BLOCK
void finish(ARGUMENTS) {
  BEGIN
  const i64 spectra = spectra_of_a + spectra_of_b;
  FOR_UNITS {
    MAKE_UNIT
#if IS_WGRAD
    const int is_there = unit < filters, part = 0;
    const int row = is_there ? (int)(unit / group_c) : 0, column = is_there ? (int)(unit - row * group_c) : 0;
    REAL sum_re[16], sum_im[16];
    LOAD_SPECTRUM(sum_re, sum_im, spectra, is_there ? unit : 0)
    MAKE_FILTER_WINDOW(window, part, is_there)
    FINISH_FILTER
#else
    const int pair = (int)(unit / results), is_there = pair < pairs;
    const int channel_x = (int)(unit - pair * results), channel_y = channel_x;
    REAL re[16], im[16];
    LOAD_SPECTRUM(re, im, spectra, is_there ? unit : 0)
    inverse(re, im, stage, roots, t);
    STORE_PAIR
#endif
  }
}

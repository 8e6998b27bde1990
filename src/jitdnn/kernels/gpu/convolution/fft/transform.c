/* Complex transforms of POINTS points, LINE_THREADS threads to each, 16 numbers a thread in registers.
 *
 * POINTS is FIRST_RADIX (2 to 16) times powers of 16. A pass transforms the numbers of a thread and multiplies them by roots of
 * one; between two passes they change hands through shared memory. The spectrum stays as the last pass leaves it, in an order of
 * its own, from which `inverse` goes the same way back: nothing is ever sorted. Each thread writes where it has read itself, so
 * that there is one barrier to an exchange, none between `forward` and `inverse`, and none from `inverse` to the next `forward`.
 */
#ifdef __CUDACC__
#define KERNEL_OF_BLOCK extern "C" __global__ __launch_bounds__(THREADS_OF_BLOCK, 512 / THREADS_OF_BLOCK)
#define UNROLL _Pragma("unroll")
#define ROOT_TABLE static __device__ const
#define ANEW(number) asm volatile("" : "+r"(number));
#define NUMBER_POINTER Number *
#define STAGE extern __shared__ __align__(16) Number stage_of_block[];
#else
#define KERNEL_OF_BLOCK KERNEL(THREADS_OF_BLOCK)
#define UNROLL
#define ANEW(number)
#define STAGE SHARED Number stage_of_block[LINES * STAGE_OF_LINE];
#ifdef __OPENCL_VERSION__
#define ROOT_TABLE __constant
#define NUMBER_POINTER __local Number *
#else
#define ROOT_TABLE static const
#define NUMBER_POINTER Number *
#endif
#endif
/* ANEW: what follows from a number is computed where it is used, and not kept in registers from before a loop: addresses of 16
 * numbers in each pass alone are more than there are. */
#define LINE_THREADS (POINTS / 16)

/* A complex number, that is read and written at once. */
#ifdef __CUDACC__
typedef struct __align__(8) {
#else
typedef struct {
#endif
  REAL re, im;
} Number;
#define ROOT_HALF NUMBER(0.70710678118654752440)
#define COS_EIGHTH NUMBER(0.92387953251128675613)
#define SIN_EIGHTH NUMBER(0.38268343236508977173)

/* exp(-2 pi i n / POINTS) for the first eighth, cosine and sine, rounded from double precision */
ROOT_TABLE REAL roots_of_one[POINTS / 8 + 1][2] = {ROOTS};

/* Where a number lies in shared memory: the 16 threads that meet there at once never meet in a bank, whether they read
 * neighbours or every 16th number. It is linear: PLACE(a ^ b) = PLACE(a) ^ PLACE(b). */
#define PLACE(n) ((n) ^ (((n) >> 4) & 15))

/* exp(-2 pi i n / POINTS), 2 n < POINTS */
FUNCTION Number root_of(int n) {
  const int octant = n / (POINTS / 8), rest = n % (POINTS / 8), nearer = octant & 1 ? POINTS / 8 - rest : rest;
  const REAL one = roots_of_one[nearer][0], other = roots_of_one[nearer][1];
  const int is_across = octant == 1 || octant == 2; /* the angle is nearer to a quarter turn */
  const REAL cosine = is_across ? other : one, sine = is_across ? one : other;
  Number made;
  made.re = octant >= 2 ? -cosine : cosine;
  made.im = -sine;
  return made;
}

/* Passes; behind the first one, neighbours among the 16 numbers of a thread are STEP_OF(pass) points apart. */
#define STEP_OF(pass) ((pass) == 0 ? LINE_THREADS : POINTS / FIRST_RADIX >> (4 * (pass)))

/* In shared memory, of each pass but the last: powers 1, 2, 4 and 8 of the root of each of STEP_OF(pass) neighbours, of which the
 * other powers are made. */
#define ROOTS_OF(pass) ((pass) == 0 ? 0 : 4 * LINE_THREADS + ((pass) == 1 ? 0 : 4 * STEP_OF(1)))
#define ROOT_COUNT (4 * LINE_THREADS + (PASSES > 2 ? 4 * STEP_OF(1) : 0) + (PASSES > 3 ? 4 * STEP_OF(2) : 0))
#define MAKE_ROOTS                                                                                  \
  SHARED Number roots[ROOT_COUNT];                                                                  \
  UNROLL for (int pass = 0; pass < PASSES - 1; ++pass)                                              \
    for (int n = THREAD_ID; n < 4 * STEP_OF(pass); n += THREADS_OF_BLOCK) {                         \
      const int power = n / STEP_OF(pass), of = n % STEP_OF(pass);                                  \
      roots[ROOTS_OF(pass) + n] =                                                                   \
          root_of((pass == 0 ? of : of * (POINTS / 16 / STEP_OF(pass))) << power);                  \
    }                                                                                               \
  BARRIER();

#define TIMES(re, im, by_re, by_im)                        \
  {                                                        \
    const REAL times_re = (re) * (by_re) - (im) * (by_im); \
    im = (re) * (by_im) + (im) * (by_re);                  \
    re = times_re;                                         \
  }

/* Times exp(-2 pi i n / 8). */
#define TURN_1(re, im)                                   \
  {                                                      \
    const REAL sum = re + im, difference = im - re;      \
    re = ROOT_HALF * sum, im = ROOT_HALF * difference;   \
  }
#define TURN_2(re, im)      \
  {                         \
    const REAL before = re; \
    re = im, im = -before;  \
  }
#define TURN_3(re, im)                                   \
  {                                                      \
    const REAL sum = re + im, difference = im - re;      \
    re = ROOT_HALF * difference, im = -ROOT_HALF * sum;  \
  }

/* Powers 1 to count - 1 of a root, each a product of at most four numbers that were rounded once. */
FUNCTION void powers_of(NUMBER_POINTER roots, int step, int count, REAL *re, REAL *im) {
  UNROLL for (int k = 1; k < 16; ++k) {
    const int log = k < 2 ? 0 : k < 4 ? 1 : k < 8 ? 2 : 3, rest = k - (1 << log);
    if (k < count) {
      if (rest) {
        re[k] = re[k - rest], im[k] = im[k - rest];
      } else {
        const Number root = roots[log * step];
        re[k] = root.re, im[k] = root.im;
      }
      if (rest) TIMES(re[k], im[k], re[rest], im[rest])
    }
  }
}

FUNCTION void transform_2(REAL *re, REAL *im) {
  const REAL a = re[0], b = im[0];
  re[0] = a + re[1], im[0] = b + im[1];
  re[1] = a - re[1], im[1] = b - im[1];
}

/* Four numbers `step` apart. */
FUNCTION void transform_4_of(REAL *re, REAL *im, int step) {
  const REAL ar = re[0] + re[2 * step], ai = im[0] + im[2 * step], br = re[0] - re[2 * step], bi = im[0] - im[2 * step];
  const REAL cr = re[step] + re[3 * step], ci = im[step] + im[3 * step];
  const REAL dr = re[step] - re[3 * step], di = im[step] - im[3 * step];
  re[0] = ar + cr, im[0] = ai + ci;
  re[2 * step] = ar - cr, im[2 * step] = ai - ci;
  re[step] = br + di, im[step] = bi - dr;
  re[3 * step] = br - di, im[3 * step] = bi + dr;
}
FUNCTION void transform_4(REAL *re, REAL *im) { transform_4_of(re, im, 1); }

FUNCTION void transform_8(REAL *re, REAL *im) {
  REAL odd_re[4], odd_im[4], even_re[4], even_im[4];
  UNROLL for (int n = 0; n < 4; ++n) {
    even_re[n] = re[n] + re[n + 4], even_im[n] = im[n] + im[n + 4];
    odd_re[n] = re[n] - re[n + 4], odd_im[n] = im[n] - im[n + 4];
  }
  TURN_1(odd_re[1], odd_im[1])
  TURN_2(odd_re[2], odd_im[2])
  TURN_3(odd_re[3], odd_im[3])
  transform_4(even_re, even_im);
  transform_4(odd_re, odd_im);
  UNROLL for (int k = 0; k < 4; ++k) {
    re[2 * k] = even_re[k], im[2 * k] = even_im[k];
    re[2 * k + 1] = odd_re[k], im[2 * k + 1] = odd_im[k];
  }
}

FUNCTION void transform_16(REAL *re, REAL *im) {
  REAL made_re[16], made_im[16];
  UNROLL for (int n = 0; n < 4; ++n) transform_4_of(re + n, im + n, 4);
  TIMES(re[5], im[5], COS_EIGHTH, -SIN_EIGHTH)
  TURN_1(re[6], im[6])
  TIMES(re[7], im[7], SIN_EIGHTH, -COS_EIGHTH)
  TURN_1(re[9], im[9])
  TURN_2(re[10], im[10])
  TURN_3(re[11], im[11])
  TIMES(re[13], im[13], SIN_EIGHTH, -COS_EIGHTH)
  TURN_3(re[14], im[14])
  TIMES(re[15], im[15], -COS_EIGHTH, SIN_EIGHTH)
  UNROLL for (int k = 0; k < 4; ++k) transform_4(re + 4 * k, im + 4 * k);
  UNROLL for (int k = 0; k < 16; ++k) made_re[k] = re[4 * (k % 4) + k / 4], made_im[k] = im[4 * (k % 4) + k / 4];
  UNROLL for (int k = 0; k < 16; ++k) re[k] = made_re[k], im[k] = made_im[k];
}

FUNCTION void multiply_by_powers(REAL *re, REAL *im, NUMBER_POINTER roots, int step) {
  REAL power_re[16], power_im[16];
  powers_of(roots, step, 16, power_re, power_im);
  UNROLL for (int k = 1; k < 16; ++k) TIMES(re[k], im[k], power_re[k], power_im[k])
}

/* The first pass: transforms of FIRST_RADIX numbers, 16 / FIRST_RADIX apart among the 16 of a thread. */
FUNCTION void transform_first(REAL *re, REAL *im) {
#if FIRST_RADIX == 16
  transform_16(re, im);
#else
  UNROLL for (int m = 0; m < 16 / FIRST_RADIX; ++m) {
    REAL some_re[FIRST_RADIX], some_im[FIRST_RADIX];
    UNROLL for (int k = 0; k < FIRST_RADIX; ++k)
      some_re[k] = re[m + 16 / FIRST_RADIX * k], some_im[k] = im[m + 16 / FIRST_RADIX * k];
    JOIN(transform_, FIRST_RADIX)(some_re, some_im);
    UNROLL for (int k = 0; k < FIRST_RADIX; ++k)
      re[m + 16 / FIRST_RADIX * k] = some_re[k], im[m + 16 / FIRST_RADIX * k] = some_im[k];
  }
#endif
}

FUNCTION void multiply_first(REAL *re, REAL *im, NUMBER_POINTER roots) {
#if FIRST_RADIX == 16
  multiply_by_powers(re, im, roots, LINE_THREADS);
#else
  const REAL cosines[16] = {1,  COS_EIGHTH,  ROOT_HALF,  SIN_EIGHTH,  0, -SIN_EIGHTH, -ROOT_HALF, -COS_EIGHTH,
                            -1, -COS_EIGHTH, -ROOT_HALF, -SIN_EIGHTH, 0, SIN_EIGHTH,  ROOT_HALF,  COS_EIGHTH};
  REAL power_re[16], power_im[16];
  powers_of(roots, LINE_THREADS, FIRST_RADIX, power_re, power_im);
  UNROLL for (int m = 0; m < 16 / FIRST_RADIX; ++m)
    UNROLL for (int k = 1; k < FIRST_RADIX; ++k) {
      const int at = m + 16 / FIRST_RADIX * k, turn = m * k; /* in sixteenths, 9 at most */
      TIMES(re[at], im[at], power_re[k], power_im[k])
      if (turn) TIMES(re[at], im[at], cosines[turn], cosines[turn + 4])
    }
#endif
}

#define FIRST_OF(pass) PLACE(t / STEP_OF(pass) * 16 * STEP_OF(pass) + t % STEP_OF(pass))

#define WRITE_STAGE(at, step)                     \
  UNROLL for (int k = 0; k < 16; ++k) {           \
    Number number;                                \
    number.re = re[k], number.im = im[k];         \
    stage[(at) ^ PLACE((step) * k)] = number;     \
  }
#define READ_STAGE(at, step)                                    \
  UNROLL for (int k = 0; k < 16; ++k) {                         \
    const Number number = stage[(at) ^ PLACE((step) * k)];      \
    re[k] = number.re, im[k] = number.im;                       \
  }

/* A spectrum that a thread keeps for itself. */
#define KEEP(re, im)                              \
  UNROLL for (int k = 0; k < 16; ++k) {           \
    Number number;                                \
    number.re = re[k], number.im = im[k];         \
    kept[k * LINE_THREADS] = number;              \
  }

/* Number k of thread t is point t + LINE_THREADS k. */
FUNCTION void forward(REAL *re, REAL *im, NUMBER_POINTER stage, NUMBER_POINTER roots, int t) {
  ANEW(t)
  transform_first(re, im);
  multiply_first(re, im, roots + t);
  WRITE_STAGE(PLACE(t), LINE_THREADS)
  UNROLL for (int pass = 1; pass < PASSES; ++pass) {
    ANEW(t)
    const int at = FIRST_OF(pass);
    BARRIER();
    READ_STAGE(at, STEP_OF(pass))
    transform_16(re, im);
    if (pass < PASSES - 1) {
      multiply_by_powers(re, im, roots + ROOTS_OF(pass) + t % STEP_OF(pass), STEP_OF(pass));
      WRITE_STAGE(at, STEP_OF(pass))
    }
  }
}

/* The way back, times POINTS. The transform of i times the conjugate, real and imaginary part in each other's place, is that of
 * the inverse. */
FUNCTION void inverse_of_swapped(REAL *re, REAL *im, NUMBER_POINTER stage, NUMBER_POINTER roots, int t) {
  UNROLL for (int pass = PASSES - 1; pass > 0; --pass) {
    ANEW(t)
    const int at = FIRST_OF(pass);
    if (pass < PASSES - 1) {
      BARRIER();
      READ_STAGE(at, STEP_OF(pass))
      multiply_by_powers(re, im, roots + ROOTS_OF(pass) + t % STEP_OF(pass), STEP_OF(pass));
    }
    transform_16(re, im);
    WRITE_STAGE(at, STEP_OF(pass))
  }
  ANEW(t)
  BARRIER();
  READ_STAGE(PLACE(t), LINE_THREADS)
  multiply_first(re, im, roots + t);
  transform_first(re, im);
}
FUNCTION void inverse(REAL *re, REAL *im, NUMBER_POINTER stage, NUMBER_POINTER roots, int t) {
  inverse_of_swapped(im, re, stage, roots, t);
}

/* Images sampled at the places of a grid, and both gradients.
 *
 * Defines apart from those of lanes.c: RANK, axes of space, 2 or 3, of the three that everything has; LINEAR, 0 for the nearest
 * element; PADDING, 0 for zeros, 1 for the border, 2 for reflection; ALIGN_CORNERS; CHANNELS_INNER, 1 where neighbouring threads
 * have neighbouring channels, 0 where neighbouring positions; MEMBERS, threads that share a place of dgrid; OPERANDS, SIGNATURE.
 *
 *   grid_sample_forward   a position and some channels of it for each thread
 *   grid_sample_by_grid   places for a thread block, MEMBERS threads for the channels of each
 */
#define GROUP 256
#define CORNERS (LINEAR ? 1 << RANK : 1)
#define FIRST_AXIS (3 - RANK)
#define AT(t, c, d, h, w) \
  ((OFFSET)t##_c * (c) + (OFFSET)t##_d * (d) + (OFFSET)t##_h * (h) + (OFFSET)t##_w * (w))
#define IMAGE_EXTENTS {(OFFSET)depth, (OFFSET)height, (OFFSET)width}
#define IMAGE_STEPS {(OFFSET)x_d, (OFFSET)x_h, (OFFSET)x_w}

/* Along an axis: the element in front of a place, or the nearest one; how far behind it the place is; and what it moves
 * by with the number in the grid */
typedef struct {
  OFFSET low;
  NUMBER far, slope;
} Place;

FUNCTION Place place_of(NUMBER g, OFFSET extent) {
  const NUMBER size = (NUMBER)extent, last = size - 1;
  Place place;
#if ALIGN_CORNERS
  NUMBER u = (g + 1) * 0.5f * last, slope = last * 0.5f;
#else
  NUMBER u = ((g + 1) * size - 1) * 0.5f, slope = size * 0.5f;
#endif
#if PADDING == 2
  const NUMBER first = ALIGN_CORNERS ? 0 : -0.5f, span = ALIGN_CORNERS ? last : size;
  const NUMBER distance = fabs(u - first), ratio = distance / (span > 0 ? span : 1);
  if (u < first) slope = -slope;
  /* mirrored more often than that, a place is anywhere; a NaN becomes 0 below */
  const i32 turns = ratio < 4194304 ? (i32)ratio : 0;
  const NUMBER rest = distance - (NUMBER)turns * span;
  u = (turns & 1 ? span - rest : rest) + first;
  if (turns & 1) slope = -slope;
#endif
#if PADDING
  if (!(u > 0 && u < last)) slope = 0;
  u = u > 0 ? u : 0;
  u = u < last ? u : last;
#endif
  /* farther out nothing changes; what is not ordered is outside */
  u = u > -2 ? u : -2;
  u = u < size + 1 ? u : size + 1;
  const NUMBER low = LINEAR ? floor(u) : rint(u);
  place.low = (OFFSET)low, place.far = u - low, place.slope = slope;
  return place;
}

/* The elements around a place: offsets and weights of those that are inside, the last axis fastest. */
typedef struct {
  Place places[3];
  OFFSET offsets[1 << RANK];
  NUMBER weights[1 << RANK];
  int is_inside[1 << RANK];
} Cell;

FUNCTION void find_places(GLOBAL const X *grid, i64 at, i64 step, const OFFSET *extents, Place *places) {
  UNROLL for (int axis = FIRST_AXIS; axis < 3; ++axis) {
    places[axis] = place_of((NUMBER)LOAD(X, grid, at + (2 - axis) * step), extents[axis]);
  }
}

FUNCTION void find_corners(const OFFSET *extents, const OFFSET *steps, Cell *cell) {
  UNROLL for (int corner = 0; corner < CORNERS; ++corner) {
    OFFSET offset = 0;
    NUMBER weight = 1;
    int is_inside = 1;
    UNROLL for (int axis = FIRST_AXIS; axis < 3; ++axis) {
      const int side = corner >> (2 - axis) & 1;
      const OFFSET i = cell->places[axis].low + side;
      is_inside = is_inside && i >= 0 && i < extents[axis];
      offset += i * steps[axis];
      if (LINEAR) weight *= side ? cell->places[axis].far : 1 - cell->places[axis].far;
    }
    cell->offsets[corner] = is_inside ? offset : 0;
    cell->weights[corner] = weight;
    cell->is_inside[corner] = is_inside;
  }
}

/* LANES channels that are all there: side by side at a multiple of their size if `is_plain`, else apart; or those of them
 * that are there */
FUNCTION void load_group(GLOBAL const X *p, OFFSET i, OFFSET step, OFFSET left, int is_plain, NUMBER *values) {
#if ARE_NEIGHBOURS
  load_vector(p, i, LANES, is_plain, values);
#else
  UNROLL for (int n = 0; n < LANES; ++n) values[n] = is_plain || n < left ? (NUMBER)LOAD(X, p, i + n * step) : 0;
#endif
}
#define IS_PLAIN(left) (ARE_NEIGHBOURS ? is_aligned : (left) >= LANES)

/* the coordinates of a position of so many rows and columns */
#define SPLIT(number, rows, columns)                              \
  const OFFSET line = (number) / (OFFSET)(columns), w = (number) - line * (OFFSET)(columns); \
  const OFFSET d = line / (OFFSET)(rows), h = line - d * (OFFSET)(rows);

#if FORWARD
/* all corners are read at once, outside of the image its first element, which counts nothing then */
#define ADD_CORNERS(is_plain)                                                                                      \
  UNROLL for (int corner = 0; corner < CORNERS; ++corner) {                                                        \
    load_group(from, (OFFSET)x_c * c + cell.offsets[corner], (OFFSET)x_c, end - c, is_plain, values[corner]);      \
  }                                                                                                                \
  UNROLL for (int corner = 0; corner < CORNERS; ++corner) {                                                        \
    UNROLL for (int n = 0; n < LANES; ++n) {                                                                       \
      sums[n] += cell.weights[corner] * (cell.is_inside[corner] ? values[corner][n] : 0);                          \
    }                                                                                                              \
  }

KERNEL(GROUP) void grid_sample_forward(SIGNATURE) {
  const OFFSET extents[3] = IMAGE_EXTENTS, steps[3] = IMAGE_STEPS;
  const OFFSET size = (OFFSET)out_depth * (OFFSET)out_height * (OFFSET)out_width;
  const OFFSET parts = ((OFFSET)channels + (OFFSET)per_thread - 1) / (OFFSET)per_thread, inner = CHANNELS_INNER ? parts : size;
  const i64 unit = BLOCK_ID(0) * GROUP + THREAD_ID;
  if (unit >= (i64)parts * size) return;
  const OFFSET outer = (OFFSET)(unit / inner), rest = (OFFSET)(unit - (i64)outer * inner);
  const OFFSET begin = (CHANNELS_INNER ? rest : outer) * (OFFSET)per_thread, number = CHANNELS_INNER ? outer : rest;
  const OFFSET end = begin + (OFFSET)per_thread < (OFFSET)channels ? begin + (OFFSET)per_thread : (OFFSET)channels;
  const int is_aligned = is_multiple(x, LANES * (int)sizeof(X)) && is_multiple(y, LANES * (int)sizeof(X));
  SPLIT(number, out_height, out_width)
  for (i64 image = BLOCK_ID(1); image < images; image += GRID_SIZE(1)) {
    Cell cell;
    find_places(grid, image * grid_n + (i64)grid_d * d + (i64)grid_h * h + (i64)grid_w * w, grid_axis, extents, cell.places);
    find_corners(extents, steps, &cell);
    for (OFFSET c = begin; c < end; c += LANES) {
      NUMBER sums[LANES], values[CORNERS][LANES];
      GLOBAL const X *from = x + image * x_n;
      UNROLL for (int n = 0; n < LANES; ++n) sums[n] = 0;
      if (IS_PLAIN(end - c)) {
        ADD_CORNERS(1)
      } else {
        ADD_CORNERS(0)
      }
      store_lanes(y + image * y_n, AT(y, c, d, h, w), (OFFSET)y_c, end - c, is_aligned, sums, (NUMBER)alpha, (NUMBER)beta);
    }
  }
}
#endif

#if BY_GRID
#define ADD_PRODUCTS(is_plain)                                                                                     \
  load_group(dy, AT(dy, c, d, h, w), (OFFSET)dy_c, left, is_plain, slopes);                                        \
  UNROLL for (int corner = 0; corner < CORNERS; ++corner) {                                                        \
    load_group(x, (OFFSET)x_c * c + cell.offsets[corner], (OFFSET)x_c, left, is_plain, values[corner]);            \
  }                                                                                                                \
  UNROLL for (int corner = 0; corner < CORNERS; ++corner) {                                                        \
    UNROLL for (int n = 0; n < LANES; ++n) {                                                                       \
      if (is_plain || ARE_NEIGHBOURS || n < left) dots[corner] += slopes[n] * values[corner][n];                   \
    }                                                                                                              \
  }

KERNEL(GROUP) void grid_sample_by_grid(SIGNATURE) {
  SHARED NUMBER parts[RANK][GROUP];
  const OFFSET extents[3] = IMAGE_EXTENTS, steps[3] = IMAGE_STEPS;
  const OFFSET size = (OFFSET)out_depth * (OFFSET)out_height * (OFFSET)out_width;
  const int places = GROUP / MEMBERS, member = CHANNELS_INNER ? THREAD_ID % MEMBERS : THREAD_ID / places;
  const i64 unit = BLOCK_ID(0) * places + (CHANNELS_INNER ? THREAD_ID / MEMBERS : THREAD_ID % places);
  const i64 image = unit / size;
  const OFFSET number = (OFFSET)(unit - image * size);
  NUMBER sums[RANK];
  SPLIT(number, out_height, out_width)
  UNROLL for (int axis = 0; axis < RANK; ++axis) sums[axis] = 0;
#if LINEAR
  const int is_aligned = is_multiple(x, LANES * (int)sizeof(X)) && is_multiple(dy, LANES * (int)sizeof(X));
  if (image < images) {
    NUMBER dots[CORNERS], slopes[LANES], values[CORNERS][LANES];
    Cell cell;
    find_places(grid, image * grid_n + (i64)grid_d * d + (i64)grid_h * h + (i64)grid_w * w, grid_axis, extents, cell.places);
    find_corners(extents, steps, &cell);
    UNROLL for (int corner = 0; corner < CORNERS; ++corner) dots[corner] = 0;
    x += image * x_n;
    dy += image * dy_n;
    for (OFFSET c = member * LANES; c < (OFFSET)channels; c += MEMBERS * LANES) {
      const OFFSET left = (OFFSET)channels - c;
      if (IS_PLAIN(left)) {
        ADD_PRODUCTS(1)
      } else {
        ADD_PRODUCTS(0)
      }
    }
    /* what is outside of the image was not to be read */
    UNROLL for (int corner = 0; corner < CORNERS; ++corner) dots[corner] = cell.is_inside[corner] ? dots[corner] : 0;
    UNROLL for (int corner = 0; corner < CORNERS; ++corner) {
      UNROLL for (int axis = FIRST_AXIS; axis < 3; ++axis) {
        NUMBER term = corner >> (2 - axis) & 1 ? dots[corner] : -dots[corner];
        UNROLL for (int other = FIRST_AXIS; other < 3; ++other) {
          const NUMBER far = cell.places[other].far;
          if (other != axis) term *= corner >> (2 - other) & 1 ? far : 1 - far;
        }
        sums[2 - axis] += term;
      }
    }
    UNROLL for (int axis = FIRST_AXIS; axis < 3; ++axis) sums[2 - axis] *= cell.places[axis].slope;
  }
#endif
  if (MEMBERS > 1) {
    UNROLL for (int axis = 0; axis < RANK; ++axis) parts[axis][THREAD_ID] = sums[axis];
    BARRIER();
    const int next = CHANNELS_INNER ? 1 : places;
    for (int other = 1; other < MEMBERS && member == 0; ++other) {
      UNROLL for (int axis = 0; axis < RANK; ++axis) sums[axis] += parts[axis][THREAD_ID + other * next];
    }
  }
  if (member != 0 || image >= images) return;
  dgrid += image * dgrid_n + (i64)dgrid_d * d + (i64)dgrid_h * h + (i64)dgrid_w * w;
  UNROLL for (int axis = 0; axis < RANK; ++axis) {
    store_scaled(dgrid, (OFFSET)(axis * dgrid_axis), 1, 0, sums + axis, (NUMBER)alpha, (NUMBER)beta);
  }
}
#endif

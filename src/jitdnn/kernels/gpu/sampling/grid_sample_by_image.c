/* The gradient of a sampled image: each element of dx adds up what the places around it give back, in the order of the places.
 *
 * A cell is the room between neighbouring elements, before the first and behind the last too; with the nearest element it
 * is that element. Places are listed by cell, with nothing but integers added in memory, so that the sums are the same
 * from run to run:
 *
 *   clear          no place in any cell
 *   count          the cell of each place, and how many came there before
 *   begin          where the list of each cell begins; cells with more than CROWDED places
 *   fill           lists in any order
 *   order          lists in the order of the places, with what is needed of each
 *   order_long     lists of more than LONG places, by a thread block that looks at all places of the image
 *   sum_crowded    for crowded cells the sums that all their corners get, by a thread block
 *   grid_sample_by_image
 *
 * After grid_sample.c. CELLS_OF is the number of cells along an axis of an extent.
 */
#define CELLS_OF(extent) ((extent) + LINEAR)
#define HEADER ((GLOBAL i32 *)workspace) /* entries of lists that are given away; crowded cells */
#define COUNTS ((GLOBAL i32 *)(workspace + at_counts))
#define STARTS ((GLOBAL i32 *)(workspace + at_starts))
#define CROWD ((GLOBAL i32 *)(workspace + at_crowd))             /* of a crowded cell, its number among these */
#define CROWDED_CELLS ((GLOBAL i32 *)(workspace + at_crowded_cells))
#define CELL_OF ((GLOBAL i32 *)(workspace + at_cell_of))         /* of a place; -1 where it reaches no element */
#define BEFORE ((GLOBAL i32 *)(workspace + at_before))
#define LISTS ((GLOBAL i32 *)(workspace + at_lists))
#define FROM ((GLOBAL OFFSET *)(workspace + at_from))            /* in order: where in dy's image a place is */
#define FAR ((GLOBAL NUMBER *)(workspace + at_far))              /* and how far behind the cell's first element, by axis */
#define SUMS ((GLOBAL NUMBER *)(workspace + at_sums))            /* of crowded cells, by corner and channel */
#define PLACES_OF_IMAGE ((i64)out_depth * out_height * out_width)
#define CELLS_OF_IMAGE \
  ((i64)(RANK == 3 ? CELLS_OF(depth) : 1) * CELLS_OF(height) * CELLS_OF(width))
#if defined(COUNT_UP) /* by a target with another language */
#elif defined(__OPENCL_VERSION__)
#define COUNT_UP(p, more) atomic_add(p, more)
#else
#define COUNT_UP(p, more) atomicAdd(p, more)
#endif
#ifdef __OPENCL_VERSION__
#define SHARED_POINTER __local
#else
#define SHARED_POINTER
#endif

/* the sum over the threads before this one; the sum over all goes to *total */
FUNCTION i32 sum_before(SHARED_POINTER i32 *shared, i32 mine, i32 *total) {
  BARRIER();
  shared[THREAD_ID] = mine;
  BARRIER();
  for (int step = 1; step < GROUP; step *= 2) {
    const i32 other = THREAD_ID >= step ? shared[THREAD_ID - step] : 0;
    BARRIER();
    shared[THREAD_ID] += other;
    BARRIER();
  }
  *total = shared[GROUP - 1];
  return shared[THREAD_ID] - mine;
}

/* an entry of the list for the place of that number in its image */
FUNCTION void write_entry(GLOBAL OFFSET *from, GLOBAL NUMBER *far, i64 entry, i64 entries, OFFSET offset, const Place *places) {
  from[entry] = offset;
#if LINEAR
  UNROLL for (int axis = FIRST_AXIS; axis < 3; ++axis) far[(axis - FIRST_AXIS) * entries + entry] = places[axis].far;
#endif
}
#define WRITE_ENTRY(entry, number)                                                                                     \
  {                                                                                                                    \
    SPLIT(number, out_height, out_width)                                                                               \
    Place places[3];                                                                                                   \
    find_places(grid, image * grid_n + (i64)grid_d * d + (i64)grid_h * h + (i64)grid_w * w, grid_axis, extents, places); \
    write_entry(FROM, FAR, entry, images * PLACES_OF_IMAGE, AT(dy, 0, d, h, w), places);                               \
  }

KERNEL(GROUP) void clear(SIGNATURE) {
  const i64 cell = BLOCK_ID(0) * GROUP + THREAD_ID;
  if (cell < images * CELLS_OF_IMAGE) COUNTS[cell] = 0;
  if (cell < 2) HEADER[cell] = 0;
}

KERNEL(GROUP) void count(SIGNATURE) {
  const OFFSET extents[3] = IMAGE_EXTENTS;
  const i64 place = BLOCK_ID(0) * GROUP + THREAD_ID, image = place / PLACES_OF_IMAGE;
  if (image >= images) return;
  const OFFSET number = (OFFSET)(place - image * PLACES_OF_IMAGE);
  SPLIT(number, out_height, out_width)
  Place places[3];
  i64 cell = image;
  int is_cell = 1;
  find_places(grid, image * grid_n + (i64)grid_d * d + (i64)grid_h * h + (i64)grid_w * w, grid_axis, extents, places);
  UNROLL for (int axis = FIRST_AXIS; axis < 3; ++axis) {
    const OFFSET at = places[axis].low + LINEAR;
    is_cell = is_cell && at >= 0 && at < CELLS_OF(extents[axis]);
    cell = cell * CELLS_OF(extents[axis]) + at;
  }
  CELL_OF[place] = is_cell ? (i32)cell : -1;
  if (is_cell) BEFORE[place] = COUNT_UP(COUNTS + cell, 1);
}

KERNEL(GROUP) void begin(SIGNATURE) {
  SHARED i32 shared[GROUP];
  SHARED i32 base;
  const i64 cell = BLOCK_ID(0) * GROUP + THREAD_ID;
  const int is_cell = cell < images * CELLS_OF_IMAGE;
  const i32 own = is_cell ? COUNTS[cell] : 0;
  i32 all;
  const i32 before = sum_before(shared, own, &all);
  if (THREAD_ID == 0) base = COUNT_UP(HEADER, all);
  BARRIER();
  if (is_cell) STARTS[cell] = base + before;
  if (own > CROWDED) {
    const i32 id = COUNT_UP(HEADER + 1, 1);
    CROWD[cell] = id;
    CROWDED_CELLS[id] = (i32)cell;
  }
}

KERNEL(GROUP) void fill(SIGNATURE) {
  const i64 place = BLOCK_ID(0) * GROUP + THREAD_ID;
  if (place >= images * PLACES_OF_IMAGE || CELL_OF[place] < 0) return;
  LISTS[STARTS[CELL_OF[place]] + BEFORE[place]] = (i32)place;
}

KERNEL(GROUP) void order(SIGNATURE) {
  const OFFSET extents[3] = IMAGE_EXTENTS;
  const i64 place = BLOCK_ID(0) * GROUP + THREAD_ID, image = place / PLACES_OF_IMAGE;
  if (image >= images || CELL_OF[place] < 0) return;
  const i32 start = STARTS[CELL_OF[place]], found = COUNTS[CELL_OF[place]];
  i64 entry = start;
  if (found > LONG) return;
  for (i32 other = 0; other < found && found > 1; ++other) entry += LISTS[start + other] < (i32)place;
  WRITE_ENTRY(entry, (OFFSET)(place - image * PLACES_OF_IMAGE))
}

#define SEVERAL 8 /* places of a thread, one after the other */

KERNEL(GROUP) void order_long(SIGNATURE) {
  SHARED i32 shared[GROUP];
  const OFFSET extents[3] = IMAGE_EXTENTS;
  for (i64 crowd = BLOCK_ID(0); crowd < HEADER[1]; crowd += GRID_SIZE(0)) {
    const i32 cell = CROWDED_CELLS[crowd];
    i64 entry = STARTS[cell];
    const i64 image = cell / CELLS_OF_IMAGE, first = image * PLACES_OF_IMAGE;
    if (COUNTS[cell] <= LONG) continue;
    for (i64 begin = 0; begin < PLACES_OF_IMAGE; begin += GROUP * SEVERAL) {
      int is_here[SEVERAL];
      i32 all, found = 0;
      UNROLL for (int u = 0; u < SEVERAL; ++u) {
        const i64 number = begin + THREAD_ID * SEVERAL + u;
        is_here[u] = number < PLACES_OF_IMAGE && CELL_OF[first + number] == cell;
        found += is_here[u];
      }
      i64 at = entry + sum_before(shared, found, &all);
      for (int u = 0; u < SEVERAL; ++u) {
        if (is_here[u]) {
          WRITE_ENTRY(at, (OFFSET)(begin + THREAD_ID * SEVERAL + u))
          ++at;
        }
      }
      entry += all;
    }
  }
}

/* the weight of an entry for a corner of its cell */
#if LINEAR
FUNCTION NUMBER weight_of(GLOBAL const NUMBER *far, i64 entry, i64 entries, int corner) {
  NUMBER weight = 1;
  UNROLL for (int axis = 0; axis < RANK; ++axis) {
    const NUMBER there = far[axis * entries + entry];
    weight *= corner >> (RANK - 1 - axis) & 1 ? there : 1 - there;
  }
  return weight;
}
#else
FUNCTION NUMBER weight_of(GLOBAL const NUMBER *far, i64 entry, i64 entries, int corner) { return 1; }
#endif

KERNEL(GROUP) void sum_crowded(SIGNATURE) {
  SHARED NUMBER shared[LANES][GROUP], parts[LANES][32];
  const i64 entries = images * PLACES_OF_IMAGE;
  const OFFSET vectors = ((OFFSET)channels + LANES - 1) / LANES;
  const int is_aligned = is_multiple(dy, LANES * (int)sizeof(X));
  for (i64 unit = BLOCK_ID(0); unit < HEADER[1] * (i64)vectors; unit += GRID_SIZE(0)) {
    const i64 crowd = unit / vectors;
    const i32 cell = CROWDED_CELLS[crowd], start = STARTS[cell], found = COUNTS[cell];
    const OFFSET c = (OFFSET)(unit - crowd * vectors) * LANES, left = (OFFSET)channels - c;
    GLOBAL const X *from = dy + cell / CELLS_OF_IMAGE * dy_n;
    NUMBER sums[CORNERS][LANES], values[LANES];
    UNROLL for (int corner = 0; corner < CORNERS; ++corner) {
      UNROLL for (int n = 0; n < LANES; ++n) sums[corner][n] = 0;
    }
    for (i64 entry = start + THREAD_ID; entry < (i64)start + found; entry += GROUP) {
      load_group(from, FROM[entry] + (OFFSET)dy_c * c, (OFFSET)dy_c, left, ARE_NEIGHBOURS && is_aligned, values);
      UNROLL for (int corner = 0; corner < CORNERS; ++corner) {
        const NUMBER weight = weight_of(FAR, entry, entries, corner);
        UNROLL for (int n = 0; n < LANES; ++n) sums[corner][n] += weight * values[n];
      }
    }
    /* for each corner 32 threads a channel add up a part each, and then one thread the parts */
    UNROLL for (int corner = 0; corner < CORNERS; ++corner) {
      const int channel = THREAD_ID / 32, part = THREAD_ID % 32;
      UNROLL for (int n = 0; n < LANES; ++n) shared[n][THREAD_ID] = sums[corner][n];
      BARRIER();
      NUMBER sum = 0;
      if (channel < LANES) {
        UNROLL for (int other = 0; other < GROUP / 32; ++other) sum += shared[channel][part + 32 * other];
        parts[channel][part] = sum;
      }
      BARRIER();
      if (THREAD_ID < LANES && THREAD_ID < left) {
        sum = 0;
        UNROLL for (int other = 0; other < 32; ++other) sum += parts[THREAD_ID][other];
        SUMS[(crowd * CORNERS + corner) * channels + c + THREAD_ID] = sum;
      }
    }
  }
}

#define ADD_ENTRIES(is_plain)                                                                                  \
  for (i64 entry = start; entry < (i64)start + found; ++entry) {                                               \
    const NUMBER weight = weight_of(FAR, entry, entries, corner);                                              \
    load_group(from, FROM[entry] + (OFFSET)dy_c * c, (OFFSET)dy_c, left, is_plain, values);                    \
    UNROLL for (int n = 0; n < LANES; ++n) sums[n] += weight * values[n];                                      \
  }

KERNEL(GROUP) void grid_sample_by_image(SIGNATURE) {
  const OFFSET size = (OFFSET)depth * (OFFSET)height * (OFFSET)width, vectors = ((OFFSET)channels + LANES - 1) / LANES;
  const OFFSET inner = CHANNELS_INNER ? vectors : size;
  const i64 unit = BLOCK_ID(0) * GROUP + THREAD_ID, entries = images * PLACES_OF_IMAGE;
  if (unit >= (i64)vectors * size) return;
  const OFFSET outer = (OFFSET)(unit / inner), rest = (OFFSET)(unit - (i64)outer * inner);
  const OFFSET c = (CHANNELS_INNER ? rest : outer) * LANES, number = CHANNELS_INNER ? outer : rest;
  const OFFSET left = (OFFSET)channels - c;
  const int is_aligned = is_multiple(dy, LANES * (int)sizeof(X)) && is_multiple(dx, LANES * (int)sizeof(X));
  SPLIT(number, height, width)
  for (i64 image = BLOCK_ID(1); image < images; image += GRID_SIZE(1)) {
    GLOBAL const X *from = dy + image * dy_n;
    NUMBER sums[LANES], values[LANES];
    UNROLL for (int n = 0; n < LANES; ++n) sums[n] = 0;
    /* of the cell behind the element it is the first corner, of that before it the last */
    for (int corner = CORNERS - 1; corner >= 0; --corner) {
      i64 cell = image;
      if (RANK == 3) cell = cell * CELLS_OF(depth) + d + LINEAR - (corner >> 2 & 1);
      cell = cell * CELLS_OF(height) + h + LINEAR - (corner >> 1 & 1);
      cell = cell * CELLS_OF(width) + w + LINEAR - (corner & 1);
      const i32 found = COUNTS[cell], start = STARTS[cell];
      if (found > CROWDED) {
        GLOBAL const NUMBER *summed = SUMS + ((i64)CROWD[cell] * CORNERS + corner) * channels + c;
        UNROLL for (int n = 0; n < LANES; ++n) sums[n] += n < left ? summed[n] : 0;
      } else if (IS_PLAIN(left)) {
        ADD_ENTRIES(1)
      } else {
        ADD_ENTRIES(0)
      }
    }
    store_lanes(dx + image * dx_n, AT(dx, c, d, h, w), (OFFSET)dx_c, left, is_aligned, sums, (NUMBER)alpha, (NUMBER)beta);
  }
}

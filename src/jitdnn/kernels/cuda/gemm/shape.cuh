// What the host says of a product: structures of i64, filled by gemm/shape.py in the same order. A kernel's first
// argument is a `Tables` of them (TABLES), so that one module serves every shape that its macros allow; or, with
// KNOWN_SHAPE, the numbers of one shape are compiled in, and divisions are by constants.
#ifdef KNOWN_SHAPE
#define SHAPE_PARAMETER
#define KNOWN_TABLES constexpr Tables tables = {KNOWN_SHAPE};
#else
#define SHAPE_PARAMETER TABLES(Tables, tables),
#define KNOWN_TABLES
#endif

// Tiles and splits of a product; see tile_scheduler.cuh and split_k.cuh.
struct Work {
    i64 tiles;       // of the (largest) product of a group
    i64 unsplit;     // the first ones, which are not split along K
    Divisor splits;  // thread blocks of each other tile
    i64 partials;    // byte of the workspace where the partial sums begin
    i64 reducer_bits;  // threads that add the partial sums of a run are 2 to this
    Divisor tiles_n, split_tiles;
};

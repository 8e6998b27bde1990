// Stream-K: the K of all tiles is one run of stages, of which every thread block has an equal part, so that tiles that are no
// multiple of the multiprocessors leave none of these idle (Osama et al., 2023, arXiv 2301.03598).
//
//     stages   | tile 0          | tile 1          | tile 2          |
//     blocks   | 0         | 1         | 2         | 3         | 4   ...
//
// A block begins with the last tile of its part. If it does not have that tile's end, its sums go to the workspace, and it
// signals that they are there; who has the end of a tile adds what the blocks before have left, in the order of their
// numbers, and stores the results. So blocks wait for blocks before them alone, which have begun before, and for what
// these do first. Each part has a stage at least (`_shared_evenly` in plan.py).
//
// `in_step` blocks, neighbours, have such parts of as many runs of tiles, tile by tile side by side: they are at the same
// place of K at the same time, and ask L2 for the same lines.

FUNCTION int stages_of(const Tables &tables) {  // of a tile
    const Phase &phase = tables.phases[0];
    if (A_MN_MAJOR && B_MN_MAJOR) return ((int)phase.rows + BK - 1) / BK;  // of a wgrad, whose K are pixels
    const int taps = (int)(phase.axes[0].taps * phase.axes[1].taps * phase.axes[2].taps);
    return (taps * (int)tables.channel_blocks + SUBS - 1) / SUBS;
}

// What a thread block does of a tile: its stages from `first` to `last`; none where they are the same.
struct Streamed {
    int tile, first, last, share, run;  // `run`: stages of as many tiles as `in_step` blocks share with others

    METHOD Streamed(const Tables &tables, int number) {
        const int tiles = (int)(tables.tiles_m * tables.tiles_n), blocks = stages_of(tables);
        const int in_step = (int)tables.in_step, piece = number / (int)gridDim.x, block = number - piece * (int)gridDim.x;
        share = block / in_step, run = tiles / in_step * blocks;
        const int begin = begin_of(tables, share), end = begin_of(tables, share + 1);
        const int place = (end - 1) / blocks - piece;  // in the run of tiles
        first = max(begin - place * blocks, 0), last = min(end - place * blocks, blocks);
        if (place < 0 || last <= first) first = last = 0;
        tile = max(place, 0) * in_step + block - share * in_step;
    }
    // The first stage of a part. The host sees to it that the product is an int.
    METHOD int begin_of(const Tables &tables, int share) const {
        return share * run / (int)(tables.sharers / tables.in_step);
    }
    // How many parts before this one have stages of the same tile.
    METHOD int before(const Tables &tables) const {
        const int begin = begin_of(tables, share) - first;  // of the tile
        int count = 0;
        while (begin_of(tables, share - count) > begin) ++count;
        return count;
    }
};

// The stage of a part that is brought first. Parts of two tiles are at the stages 0, 1, ... of the second one first. One inside
// of a tile begins at a multiple of its length, and so is at the same stages as these from its first stage on.
FUNCTION int brought_first(int first_block, int last_block, bool is_end) {
    const int length = last_block - first_block;
    if (first_block == 0 || is_end || length == 0) return first_block;
    const int at = (first_block + length - 1) / length * length;
    return at < last_block ? at : first_block;
}

// The stages of a part from that one on (0), and those before it (1).
template <class Part>
FUNCTION Part half_of(const Part &part, int number) {
    Part one = part;
    (number ? one.last_block : one.first_block) = brought_first(part.first_block, part.last_block, part.is_end);
    return one;
}

FUNCTION u32 *signal_of(const Tables &tables, u8 *workspace, int block) {
    return (u32 *)(workspace + tables.signals) + block;
}

// Which tile a thread block computes, and which split of K.
//
//     blockIdx.x    0 ... unsplit - 1        tiles 0 ... unsplit - 1, all of K
//                   the next tiles           tiles unsplit ... tiles - 1, split 0 of splits
//                   as many again            the same tiles, split 1, and so on
//     blockIdx.y    group
//     blockIdx.z    stride phase of a dgrad
//
// Only the tiles of the last wave, which would leave most of the device idle, are split; or all, if they are few, without
// HAS_WHOLE_TILES: then the code that stores their results stands in the reduction alone.

struct WorkTile {
    u32 tile;
    int split, splits;
};

FUNCTION WorkTile work_tile_of_block(const Work &work) {
    const u32 unsplit = (u32)work.unsplit;
    if (HAS_WHOLE_TILES && (!IS_SPLIT || blockIdx.x < unsplit)) return {blockIdx.x, 0, 1};
    const u32 block = blockIdx.x - unsplit, split = quotient(block, work.split_tiles);
    return {unsplit + block - split * (u32)work.split_tiles.number, (int)split, (int)work.splits.number};
}

// The blocks of K of a split, of so many in all: blocks * split / splits is the first.
struct BlocksOfSplit {
    int begin, end;

    METHOD BlocksOfSplit(const Work &work, const WorkTile &slice, int blocks) : begin(0), end(blocks) {
        if (HAS_WHOLE_TILES && (!IS_SPLIT || slice.splits == 1)) return;
        const u32 each = quotient((u32)blocks, work.splits), rest = (u32)blocks - each * (u32)work.splits.number;
        auto first = [&](u32 split) { return (int)(split * each + quotient(split * rest, work.splits)); };
        begin = first((u32)slice.split), end = first((u32)slice.split + 1);
    }
};

// The partial sums of a split of a tile in the workspace. `plane` is the block's number along axes 1 and 2 of the
// grid, of `planes`; see the drawing in split_k.cuh.
FUNCTION SUM *partial_tile(u8 *workspace, const Work &work, int plane, int planes, u32 tile, int split) {
    const u32 tiles = (u32)work.split_tiles.number;
    const i64 own = (i64)plane * tiles + (tile - (u32)work.unsplit);
    return (SUM *)(workspace + work.partials) + ((i64)planes * tiles * split + own) * (BM * BN);
}


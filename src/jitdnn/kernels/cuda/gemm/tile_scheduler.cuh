// Which tile a thread block computes, and which split of K.
//
//     blockIdx.x    0 ... UNSPLIT - 1        tiles 0 ... UNSPLIT - 1, all of K
//                   the next tiles           tiles UNSPLIT ... GRID_TILES - 1, split 0 of SPLITS
//                   as many again            the same tiles, split 1, and so on
//     blockIdx.y    group
//     blockIdx.z    stride phase of a dgrad
//
// Only the tiles of the last wave, which would leave most of the device idle, are split; or all, if they are few.

struct WorkTile {
    u32 tile;
    int split, splits;
};

FUNCTION WorkTile work_tile_of_block(u32 tiles) {
    if (SPLITS == 1 || blockIdx.x < UNSPLIT) return {blockIdx.x, 0, 1};
    const u32 rest = tiles - UNSPLIT, block = blockIdx.x - UNSPLIT;
    return {UNSPLIT + block % rest, (int)(block / rest), SPLITS};
}

// The partial sums of a split of a tile in the workspace. `plane` is the block's number along axes 1 and 2 of the
// grid, of `planes`; see the drawing in split_k.cuh.
FUNCTION SUM *partial_tile(u8 *workspace, u32 tiles, int plane, int planes, u32 tile, int split) {
    const i64 own = (i64)plane * (tiles - UNSPLIT) + (tile - UNSPLIT);
    return (SUM *)(workspace + PARTIALS_OFFSET) + ((i64)planes * (tiles - UNSPLIT) * split + own) * (BM * BN);
}


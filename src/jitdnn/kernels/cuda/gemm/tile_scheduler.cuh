// ---- Which tile a block has ---------------------------------------------------------------------------------------
//
// Along axis 0 the first UNSPLIT tiles have a block each. The others, which would leave the machine half empty, are
// divided along the reduction into SPLITS blocks each, all first parts first.

struct WorkTile {
    u32 tile;
    int split, splits;
};

FUNCTION WorkTile work_tile_of_block(u32 tiles) {
    if (SPLITS == 1 || blockIdx.x < UNSPLIT) return {blockIdx.x, 0, 1};
    const u32 rest = tiles - UNSPLIT, block = blockIdx.x - UNSPLIT;
    return {UNSPLIT + block % rest, (int)(block / rest), SPLITS};
}

// Where the sums of a part lie until they are added; the plane is one of those along axes 1 and 2.
FUNCTION SUM *partial_tile(u8 *workspace, u32 tiles, int plane, int planes, u32 tile, int split) {
    const i64 own = (i64)plane * (tiles - UNSPLIT) + (tile - UNSPLIT);
    return (SUM *)(workspace + PARTIALS_OFFSET) + ((i64)planes * (tiles - UNSPLIT) * split + own) * (BM * BN);
}


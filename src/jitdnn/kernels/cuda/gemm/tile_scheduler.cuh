// ---- Which tile a block has ---------------------------------------------------------------------------------------
//
// Along axis 0 the first WHOLE tiles have a block each. The others, which would leave the machine half empty, are
// divided along the reduction into PARTS blocks each, all first parts first.

struct Share {
    u32 tile;
    int part, parts;
};

FUNCTION Share share_of_block(u32 tiles) {
    if (PARTS == 1 || blockIdx.x < WHOLE) return {blockIdx.x, 0, 1};
    const u32 rest = tiles - WHOLE, block = blockIdx.x - WHOLE;
    return {WHOLE + block % rest, (int)(block / rest), PARTS};
}

// Where the sums of a part lie until they are added; the plane is one of those along axes 1 and 2.
FUNCTION SUM *partial_of(u8 *workspace, u32 tiles, int plane, int planes, u32 tile, int part) {
    const i64 own = (i64)plane * (tiles - WHOLE) + (tile - WHOLE);
    return (SUM *)(workspace + PARTS_AT) + ((i64)planes * (tiles - WHOLE) * part + own) * (BM * BN);
}


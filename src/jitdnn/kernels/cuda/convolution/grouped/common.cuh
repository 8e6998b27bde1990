// By which tap an output meets a position, and the products of a fragment of the source with all taps; see
// registers.cu.

// The tap that output e of an axis meets at position i; -1 if none.
FUNCTION constexpr int tap_h(int e, int i) {
    return IS_FORWARD ? (i % DILATION_H ? -1 : i / DILATION_H)
           : e + LEAD_H - STEP_OUT_H * (LEAST_H + i) >= 0 && e + LEAD_H - STEP_OUT_H * (LEAST_H + i) < TAPS_R
               ? e + LEAD_H - STEP_OUT_H * (LEAST_H + i)
               : -1;
}
FUNCTION constexpr int tap_w(int e, int i) {
    return IS_FORWARD ? (i % DILATION_W ? -1 : i / DILATION_W)
           : e + LEAD_W - STEP_OUT_W * (LEAST_W + i) >= 0 && e + LEAD_W - STEP_OUT_W * (LEAST_W + i) < TAPS_S
               ? e + LEAD_W - STEP_OUT_W * (LEAST_W + i)
               : -1;
}
FUNCTION constexpr bool is_used(int i) {
    for (int e = 0; e < UNIT_W; e++)
        if (tap_w(e, i) >= 0) return true;
    return false;
}

constexpr int TAPS = TAPS_R * TAPS_S;

// Adds what a row of the source at position i gives to the outputs of a lane, by all of their taps that meet it.
FUNCTION void add_products(f32 (&sums)[TILE_ROWS][UNIT_H][UNIT_W][TILE_N][4], const Factor<4> &a,
                           const Factor<2> (&filter)[TAPS][CHANNEL_STEPS][TILE_N], int row, int i, int step) {
#pragma unroll
    for (int b = 0; b < TILE_ROWS; b++) {
        const int i_h = row - b * STEP_H;
        if (i_h < 0 || i_h >= REACH_H) continue;
#pragma unroll
        for (int e = 0; e < UNIT_H * UNIT_W; e++) {
            const int r = tap_h(e / UNIT_W, i_h), s = tap_w(e % UNIT_W, i);
            if (r < 0 || s < 0) continue;
#pragma unroll
            for (int j = 0; j < TILE_N; j++)
                multiply(sums[b][e / UNIT_W][e % UNIT_W][j], a, filter[r * TAPS_S + s][step][j]);
        }
    }
}

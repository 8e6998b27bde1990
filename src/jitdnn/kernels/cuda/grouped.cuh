// Which tap of the filter an output meets where; see grouped.cu.

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

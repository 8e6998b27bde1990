// The prologue: products read prologue(x, scale[channel], shift[channel]) inside of the image, and 0 outside of it,
// where the copy engine has put zeros of x. Both parameters of all channels are kept in shared memory, side by side.
//
// fprop loads x into registers, from which wgmma takes it (prologue_rows.cuh). wgrad needs it as the second operand,
// which wgmma takes from shared memory alone: there it is written back (prologue_pixels.cuh).

// Barriers of the stages whose x is transformed in place, then the parameters.
constexpr int READY_AT = BARRIERS_AT + 16 * STAGES, PARAMETERS_AT = BARRIERS_AT + 32 * STAGES;
constexpr int BEHIND_CHANNELS = 64;  // zeros behind the last channel's parameters; as in fusion.py

FUNCTION void load_parameters(const Ring &ring, const Tables &tables, const f32 *scale, const f32 *shift) {
    const int channels = (int)tables.x_channels;
    for (int channel = threadIdx.x; channel < channels + BEHIND_CHANNELS; channel += BLOCK_THREADS) {
        const bool is_there = channel < channels;
        shared_store8(ring.behind() + PARAMETERS_AT + channel * 8,
                      __float_as_uint(is_there ? scale[channel] : 0.0f),
                      __float_as_uint(is_there ? shift[channel] : 0.0f));
    }
}

// Whether the pixel that a tap reads is in the image; `window`: where the window begins.
FUNCTION bool is_inside(const Tables &tables, const int (&window)[3], const int (&tap)[3]) {
    bool is_there = true;
#pragma unroll
    for (int n = 0; n < 3; ++n)
        is_there = is_there &&
                   (u32)(window[n] + tap[n] * (int)tables.phases[0].axes[n].dilation) < (u32)tables.x_extents[n];
    return is_there;
}

#if ELEMENT_BYTES == 2
// Two channels; `parameters`: scale and shift of the first, and of the second.
FUNCTION u32 transformed(u32 pair, const uint4 &parameters) {
    return PROLOGUE_PACK(
        prologue(PROLOGUE_LOW(pair), __uint_as_float(parameters.x), __uint_as_float(parameters.y)),
        prologue(PROLOGUE_HIGH(pair), __uint_as_float(parameters.z), __uint_as_float(parameters.w)));
}
#else
FUNCTION u32 transformed(u32 value, const uint2 &parameters) {
    return to_tf32(
        prologue(__uint_as_float(value), __uint_as_float(parameters.x), __uint_as_float(parameters.y)));
}
#endif

// Elements that are copied one by one are so in a loop: code for each would be long, and is rarely needed.
#define COPY_UNROLL(copy) ((copy) > 0 ? CHUNK : 1)

// ---- Copies into a stage -----------------------------------------------------------------------------------------

template <int BYTES>
FUNCTION void copy_async(u32 shared, const DTYPE *global, bool valid) {
    if constexpr (BYTES == 16)
        cp_async16(shared, global, valid);
    else if constexpr (BYTES == 8)
        cp_async8(shared, global, valid);
    else
        cp_async4(shared, global, valid);
}


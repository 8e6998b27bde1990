// Copies into a stage.

// How far loops over the pieces of a chunk are unrolled. Elements that are copied one by one are rare, and unrolled
// they would take much code.
#define COPY_UNROLL(copy) ((copy) > 0 ? CHUNK : 1)

template <int BYTES>
FUNCTION void copy_async(u32 shared, const DTYPE *global, bool valid) {
    if constexpr (BYTES == 16)
        cp_async16(shared, global, valid);
    else if constexpr (BYTES == 8)
        cp_async8(shared, global, valid);
    else
        cp_async4(shared, global, valid);
}


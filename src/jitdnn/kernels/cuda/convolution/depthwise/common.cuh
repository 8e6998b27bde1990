// What the kernels of depthwise convolutions share: elements, packs of neighbouring channels, and positions on an axis.
//
// Macros: DTYPE_f32, DTYPE_f16 or DTYPE_bf16, and for each axis A = D, H, W (see geometry.py):
//
//     A_TAPS, A_TAP_STEP, A_STRIDE, A_SCATTERED      taps, elements from tap to tap in w, stride, whether scattered
//     READS_ONCE                                     whether what is loaded is kept out of the first cache; 0 if undefined
//     A_PHASES                                       dilation phases
//     A_START, A_COUNT                               the first position with a result, and the number of positions
//     A_IN_PITCH, _ORIGIN, _SLOPE, _EXTENT, _STEP    where positions of the input are: see Line; A_OUT_* of the output

#if defined(DTYPE_f32)
typedef f32 element;
FUNCTION f32 widen(element e) { return e; }
FUNCTION element narrow(f32 f) { return f; }
#else
typedef u16 element;
#if defined(DTYPE_f16)
FUNCTION f32 widen(element e) { return to_f32_f16(e); }
FUNCTION element narrow(f32 f) { return to_f16(f); }
FUNCTION f32 widen_low(u32 pair) { return f16_low(pair); }
FUNCTION f32 widen_high(u32 pair) { return f16_high(pair); }
FUNCTION u32 narrow_pair(f32 low, f32 high) { return pack_f16(low, high); }
FUNCTION void multiply(f32 (&d)[4], const u32 (&a)[4], const u32 (&b)[2]) { mma_f16(d, a, b); }
#else
FUNCTION f32 widen(element e) { return to_f32_bf16(e); }
FUNCTION element narrow(f32 f) { return to_bf16(f); }
FUNCTION f32 widen_low(u32 pair) { return bf16_low(pair); }
FUNCTION f32 widen_high(u32 pair) { return bf16_high(pair); }
FUNCTION u32 narrow_pair(f32 low, f32 high) { return pack_bf16(low, high); }
FUNCTION void multiply(f32 (&d)[4], const u32 (&a)[4], const u32 (&b)[2]) { mma_bf16(d, a, b); }
#endif
#endif

#ifndef READS_ONCE
#define READS_ONCE 0
#endif
#ifndef READS_WIDE
#define READS_WIDE 0
#endif

// `count` neighbouring elements in registers, 16 bytes at most. Aligned memory is read and written in one access.
template <int count>
struct Pack {
    static constexpr int words = count * (int)sizeof(element) / 4;
    static_assert(words == 1 || words == 2 || words == 4, "4, 8 or 16 bytes");
    u32 word[words];

    template <bool aligned>
    __device__ __forceinline__ void load(const element *p) {
        if (!aligned) {
            load_elements(p);
        } else if (words == 4) {
            uint4 v = READS_ONCE ? load16_once(p) : READS_WIDE ? load16_wide(p) : load16(p);
            word[0] = v.x;
            word[1 % words] = v.y;
            word[2 % words] = v.z;
            word[3 % words] = v.w;
        } else if (words == 2) {
            uint2 v = READS_ONCE ? load8_once(p) : READS_WIDE ? load8_wide(p) : load8(p);
            word[0] = v.x;
            word[1 % words] = v.y;
        } else {
            word[0] = load4(p);
        }
    }
    template <bool aligned>
    __device__ __forceinline__ void store(element *p) const {
        if (!aligned) {
            store_elements(p);
        } else if (words == 4) {
            store16(p, make_uint4(word[0], word[1 % words], word[2 % words], word[3 % words]));
        } else if (words == 2) {
            store8(p, make_uint2(word[0], word[1 % words]));
        } else {
            store4(p, word[0]);
        }
    }
    __device__ __forceinline__ void zero() {
#pragma unroll
        for (int i = 0; i < words; i++) word[i] = 0;
    }
#if defined(DTYPE_f32)
    __device__ __forceinline__ void load_elements(const element *p) {
#pragma unroll
        for (int i = 0; i < words; i++) word[i] = __float_as_uint(p[i]);
    }
    __device__ __forceinline__ void store_elements(element *p) const {
#pragma unroll
        for (int i = 0; i < words; i++) p[i] = __uint_as_float(word[i]);
    }
    __device__ __forceinline__ void get(f32 (&f)[count]) const {
#pragma unroll
        for (int i = 0; i < words; i++) f[i] = __uint_as_float(word[i]);
    }
    __device__ __forceinline__ void put(const f32 (&f)[count]) {
#pragma unroll
        for (int i = 0; i < words; i++) word[i] = __float_as_uint(f[i]);
    }
#else
    __device__ __forceinline__ void load_elements(const element *p) {
#pragma unroll
        for (int i = 0; i < words; i++) word[i] = p[2 * i] | (u32)p[2 * i + 1] << 16;
    }
    __device__ __forceinline__ void store_elements(element *p) const {
#pragma unroll
        for (int i = 0; i < words; i++) {
            p[2 * i] = (u16)word[i];
            p[2 * i + 1] = (u16)(word[i] >> 16);
        }
    }
    __device__ __forceinline__ void get(f32 (&f)[count]) const {
#pragma unroll
        for (int i = 0; i < words; i++) {
            f[2 * i] = widen_low(word[i]);
            f[2 * i + 1] = widen_high(word[i]);
        }
    }
    __device__ __forceinline__ void put(const f32 (&f)[count]) {
#pragma unroll
        for (int i = 0; i < words; i++) word[i] = narrow_pair(f[2 * i], f[2 * i + 1]);
    }
#endif
};

#if !defined(DTYPE_f32)
template <>
struct Pack<1> {
    u16 half;

    template <bool aligned>
    __device__ __forceinline__ void load(const element *p) { half = *p; }
    template <bool aligned>
    __device__ __forceinline__ void store(element *p) const { *p = half; }
    __device__ __forceinline__ void zero() { half = 0; }
    __device__ __forceinline__ void get(f32 (&f)[1]) const { f[0] = widen(half); }
    __device__ __forceinline__ void put(const f32 (&f)[1]) { half = narrow(f[0]); }
};
#endif

// Element i of a pack, alone.
template <int count>
FUNCTION void pick(const Pack<count> &pack, int i, Pack<1> &one) {
#if defined(DTYPE_f32)
    one.word[0] = pack.word[i];
#else
    one.half = (u16)(pack.word[i / 2] >> 16 * (i % 2));
#endif
}

// The position of the input that `tap` of `result` reads, both counted from the tile's first. On a scattered axis the
// tile's first result is at a position of remainder `stride_phase` modulo the stride; NO_COORDINATE if the tap meets no
// element.
constexpr int NO_COORDINATE = -1000000;

static constexpr __device__ int floor_divide(int a, int b) { return a >= 0 ? a / b : -((b - 1 - a) / b); }

static constexpr __device__ int coordinate_of(bool scattered, int stride, int stride_phase, int result, int tap) {
    if (!scattered) return stride * result + tap;
    int m = stride_phase + result - tap;
    return m - floor_divide(m, stride) * stride == 0 ? floor_divide(m, stride) : NO_COORDINATE;
}
static constexpr __device__ int first_coordinate(bool scattered, int stride, int stride_phase, int results, int taps) {
    int first = -NO_COORDINATE;
    for (int q = 0; q < results; q++)
        for (int s = 0; s < taps; s++) {
            int m = coordinate_of(scattered, stride, stride_phase, q, s);
            if (m != NO_COORDINATE && m < first) first = m;
        }
    return first == -NO_COORDINATE ? 0 : first;
}
static constexpr __device__ int last_coordinate(bool scattered, int stride, int stride_phase, int results, int taps) {
    int last = NO_COORDINATE;
    for (int q = 0; q < results; q++)
        for (int s = 0; s < taps; s++) {
            int m = coordinate_of(scattered, stride, stride_phase, q, s);
            if (m != NO_COORDINATE && m > last) last = m;
        }
    return last == NO_COORDINATE ? 0 : last;
}
static constexpr __device__ bool is_read(bool scattered, int stride, int stride_phase, int results, int taps,
                                         int location) {
    for (int q = 0; q < results; q++)
        for (int s = 0; s < taps; s++)
            if (coordinate_of(scattered, stride, stride_phase, q, s) == location) return true;
    return false;
}

// Where axis A of the input and the output has position k of dilation phase f, and whether that is inside.
#define IN_POSITION(A, k, f) (A##_IN_PITCH * (k) + A##_IN_ORIGIN + A##_IN_SLOPE * (f))
#define OUT_POSITION(A, k, f) (A##_OUT_PITCH * (k) + A##_OUT_ORIGIN + A##_OUT_SLOPE * (f))
#define IN_HAS(A, position) ((u32)(position) < (u32)A##_IN_EXTENT)
#define OUT_HAS(A, position) ((u32)(position) < (u32)A##_OUT_EXTENT)

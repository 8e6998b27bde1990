// What forward.cu and backward.cu have in common beside the product of a step.

#if TENSOR && PASSES == 1
// Where products round to 11 bits, within 2^-20, in a few instructions.
FUNCTION f32 sigmoid(f32 x) { return reciprocal_approximate(1 + exp2_approximate(-1.44269504f * x)); }
FUNCTION f32 hyperbolic_tangent(f32 x) {
    const f32 size = x < 0 ? -x : x, square = x * x;
    const f32 near = x + x * square * (-0.333333333f + square * (0.133333333f - 0.053968254f * square));
    const f32 far = 1 - 2 * reciprocal_approximate(1 + exp2_approximate(2.88539008f * size));
    return size < 0.3f ? near : x < 0 ? -far : x > 0 ? far : x;  // the last is a NaN
}
#else
FUNCTION REAL sigmoid(REAL x) { return (REAL)1 / ((REAL)1 + exp(-x)); }
FUNCTION REAL hyperbolic_tangent(REAL x) { return tanh(x); }
#endif

// ---- Which sequences there are: counts and first rows of each step, -1 and `steps` being steps without sequences ------

struct Steps {
    const i32 *counts, *starts;
};
FUNCTION Steps steps_of(const i32 *tables, i64 steps) { return {tables + 1, tables + steps + 3}; }

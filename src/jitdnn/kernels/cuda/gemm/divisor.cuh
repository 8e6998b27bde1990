// A number that others are divided by: numbers of 32 bits by a multiplication with `magic` (`magic_of`). Filled by `divisor`
// of gemm/shape.py; with KNOWN_SHAPE it is a constant, and so is what a division takes.
struct Divisor {
    i64 number, magic, shift;
};

// n / d, n not negative.
FUNCTION u32 quotient(u32 n, const Divisor &d) {
#ifdef KNOWN_SHAPE
    return n / (u32)d.number;
#endif
    return ((u32)((u64)n * (u32)d.magic >> 32) + n) >> (u32)d.shift;
}
FUNCTION int quotient(int n, const Divisor &d) {
#ifdef KNOWN_SHAPE
    return n / (int)d.number;
#endif
    return (int)quotient((u32)n, d);
}
FUNCTION i64 quotient(i64 n, const Divisor &d) { return d.number == 1 ? n : n / d.number; }

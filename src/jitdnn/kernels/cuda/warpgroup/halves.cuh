// Of f32 operands that are multiplied as numbers of 16 bits, one each, two or three: what is known of their numbers, in the workspace.

constexpr int AS_IT_IS = DIVIDES_ROWS ? A_MN_MAJOR : -1;  // the operand that is divided where it is multiplied
constexpr int MAXIMA = 256;  // blocks of find_maxima for each operand; as in operands.py

// A power of two, as a product of two that f32 has. Below 2^-252 any of them makes zero of a sum.
struct Power {
    f32 first, second;

    METHOD explicit Power(int exponent) {
        exponent = max(exponent, -252);
        const int half = exponent / 2;
        first = __uint_as_float((u32)(half + 127) << 23);
        second = __uint_as_float((u32)(exponent - half + 127) << 23);
    }
    METHOD f32 times(f32 value) const { return value * first * second; }
};

// By what power of two the operands are multiplied, and whether all of their numbers are finite.
struct Header {
    i32 shifts[2];
    bool is_finite;

    METHOD static u32 *maxima(const Tables &tables, u8 *workspace) { return (u32 *)(workspace + tables.header) + 4; }

    // By a block of 256 threads, out of what find_maxima left.
    METHOD Header(const Tables &tables, u8 *workspace) {
        __shared__ u32 found[2][8];
        const u32 *from = maxima(tables, workspace);
#pragma unroll
        for (int operand = 0; operand < 2; ++operand) {
            if (operand == AS_IT_IS) continue;
            const u32 one = from[operand * MAXIMA + threadIdx.x];
            const u32 most = warp_max(one & 0x7fffffffu) | (warp_any(one >> 31) ? 0x80000000u : 0u);
            if (threadIdx.x % 32 == 0) found[operand][threadIdx.x / 32] = most;
        }
        __syncthreads();
        is_finite = true;
        shifts[0] = shifts[1] = 0;
#pragma unroll
        for (int operand = 0; operand < 2; ++operand) {
            if (operand == AS_IT_IS) continue;
            u32 most = 0;
            for (int warp = 0; warp < 8; ++warp) {
                most = max(most, found[operand][warp] & 0x7fffffffu);
                is_finite = is_finite && !(found[operand][warp] >> 31);
            }
            // 2^13 is what the largest becomes; of subnormal numbers the exponent is that of the least normal one
            const int exponent = max((int)(most >> 23), 1) - 127;
            shifts[operand] = most ? 13 - exponent : 0;
        }
    }
    METHOD int shift(int operand) const { return operand ? shifts[1] : shifts[0]; }
    METHOD void publish(const Tables &tables, u8 *workspace) const {
        i32 *to = (i32 *)(workspace + tables.header);
        to[0] = shifts[0], to[1] = shifts[1], to[2] = is_finite;
    }
};

// What the kernels behind find out of it: by what the sums are to be multiplied.
struct Scales {
    int exponent;  // of what both operands together were multiplied by
    Power power;
    bool is_finite;

    METHOD Scales(const Tables &tables, const u8 *workspace)
        : exponent(((const i32 *)(workspace + tables.header))[0] + ((const i32 *)(workspace + tables.header))[1]),
          power(-exponent), is_finite(((const i32 *)(workspace + tables.header))[2]) {}
};

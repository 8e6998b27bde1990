// Prelude of the sources of the "cuda" dialect: the instructions that CUDA C++ has no operator for, one small function
// each. gpu/prelude/plain.h follows it and adds the types of storage, LOAD and STORE by dtype, and what kernels share.
// NVRTC has no include path here, so conversions of half precision are PTX instead of cuda_fp16.h.
//
// Kernels use no inline assembly and no warp intrinsics of their own: the emulator in tests/gpu/emulation replaces this
// file by plain C++, and whatever bypasses it could not be tested without a GPU. Kernels' arguments that are macros
// come before this text, so parameters here have long lower-case names.

#pragma nv_diag_suppress 177  // a source uses some of these functions, never all

typedef signed char i8;
typedef unsigned char u8;
typedef short i16;
typedef unsigned short u16;
typedef int i32;
typedef unsigned int u32;
typedef long long i64;
typedef unsigned long long u64;
typedef float f32;
typedef double f64;

#define JITDNN_INSTRUCTIONS  // gpu/prelude/dialects.h leaves alone what is defined here

// KERNEL(threads) void name(...): `threads` must be Launch.threads.
#define KERNEL(threads) extern "C" __global__ __launch_bounds__(threads)
#define KERNEL2(threads, min_blocks) extern "C" __global__ __launch_bounds__(threads, min_blocks)
// What kernels can have as their first argument: one block of bytes that is the same in each of their calls.
#define TABLES(type, name) const __grid_constant__ type name
#define FUNCTION static __device__ __forceinline__
#define GLOBAL
#define RESTRICT __restrict__

// ---- Addresses in shared memory: 32 bits, as the instructions take them ------------------------------------------

FUNCTION u32 smem_address(const void *shared) { return (u32)__cvta_generic_to_shared(shared); }

// The pointer in a register: the compiler then adds an offset to it in one instruction, and does not recompute it.
template <class T>
FUNCTION T *in_register(T *pointer) {
    asm("" : "+l"(pointer));
    return pointer;
}

// ---- Launches that begin early (programmatic dependent launches, of sm_90 and later) --------------------------------
// A launch that asks for it (`Launch.is_early`) may begin once all thread blocks of the launch before it in the stream
// have called let_next_begin or are done. A thread neither reads nor writes memory before its wait_for_launch_before;
// behind it everything that was launched before is done, and seen. Of other launches both do nothing.

FUNCTION void wait_for_launch_before() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}
FUNCTION void let_next_begin() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}
// The first statement of a kernel that prepares nothing before.
FUNCTION void begin_launch() {
    wait_for_launch_before();
    let_next_begin();
}

// ---- Asynchronous copies from global to shared memory ------------------------------------------------------------
// Both addresses are aligned to the size. Where `valid` is false the destination is filled with zeros and `global` is
// not read, though it must still be a pointer. A copy has arrived when the thread that started it has waited for its
// group; other threads see it after a barrier behind that wait.

FUNCTION void cp_async16(u32 shared, const void *global, bool valid = true) {
    asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;"
                 ::"r"(shared), "l"(global), "r"(valid ? 16 : 0) : "memory");
}
FUNCTION void cp_async8(u32 shared, const void *global, bool valid = true) {
    asm volatile("cp.async.ca.shared.global [%0], [%1], 8, %2;"
                 ::"r"(shared), "l"(global), "r"(valid ? 8 : 0) : "memory");
}
FUNCTION void cp_async4(u32 shared, const void *global, bool valid = true) {
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;"
                 ::"r"(shared), "l"(global), "r"(valid ? 4 : 0) : "memory");
}
FUNCTION void cp_async16(void *shared, const void *global, bool valid = true) {
    cp_async16(smem_address(shared), global, valid);
}
FUNCTION void cp_async8(void *shared, const void *global, bool valid = true) {
    cp_async8(smem_address(shared), global, valid);
}
FUNCTION void cp_async4(void *shared, const void *global, bool valid = true) {
    cp_async4(smem_address(shared), global, valid);
}
// Ends a group: all copies of this thread since the last commit.
FUNCTION void cp_async_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }
// Waits until at most `pending` of the newest groups of this thread are in flight.
template <int pending>
FUNCTION void cp_async_wait() { asm volatile("cp.async.wait_group %0;" ::"n"(pending) : "memory"); }

// ---- Matrices from shared memory into the fragments of mma -------------------------------------------------------
// A matrix is 8 rows of 16 bytes. Lanes 0-7 give the addresses of the rows of the first, 8-15 of the second, ... (x2
// reads only those of lanes 0-15, but every lane's must be a valid one). Lane l gets the 4 bytes at row l / 4, bytes
// 4 * (l % 4) of each; with _trans, of 2-byte elements, those at rows 2 * (l % 4) and + 1 of column l / 4.

FUNCTION void ldmatrix_x4(u32 (&r)[4], u32 row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(row) : "memory");
}
FUNCTION void ldmatrix_x4_trans(u32 (&r)[4], u32 row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(row) : "memory");
}
FUNCTION void ldmatrix_x2(u32 (&r)[2], u32 row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x2.shared.b16 {%0, %1}, [%2];"
                 : "=r"(r[0]), "=r"(r[1]) : "r"(row) : "memory");
}
FUNCTION void ldmatrix_x2_trans(u32 (&r)[2], u32 row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x2.trans.shared.b16 {%0, %1}, [%2];"
                 : "=r"(r[0]), "=r"(r[1]) : "r"(row) : "memory");
}
FUNCTION void ldmatrix_x4(u32 (&r)[4], const void *row) { ldmatrix_x4(r, smem_address(row)); }
FUNCTION void ldmatrix_x4_trans(u32 (&r)[4], const void *row) { ldmatrix_x4_trans(r, smem_address(row)); }
FUNCTION void ldmatrix_x2(u32 (&r)[2], const void *row) { ldmatrix_x2(r, smem_address(row)); }
FUNCTION void ldmatrix_x2_trans(u32 (&r)[2], const void *row) { ldmatrix_x2_trans(r, smem_address(row)); }

// ---- d += a * b on the tensor cores, by all 32 lanes of a warp ---------------------------------------------------
// g = lane / 4, t = lane % 4. A is M x K by rows, B is K x N; two elements of a register: the lower half first.
//   bf16, f16 (m16n8k16)  a: A[g][2t, 2t+1], A[g+8][2t, ..], A[g][2t+8, ..], A[g+8][2t+8, ..]
//                         b: B[2t, 2t+1][g], B[2t+8, ..][g]
//   tf32      (m16n8k8)   a: A[g][t], A[g+8][t], A[g][t+4], A[g+8][t+4]   b: B[t][g], B[t+4][g]
//   s8        (m16n8k32)  a: A[g][4t to 4t+3], A[g+8][4t to ..], A[g][4t+16 to ..], A[g+8][4t+16 to ..]
//                         b: B[4t to 4t+3][g], B[4t+16 to ..][g]
//   f64       (m8n8k4)    a: A[g][t]   b: B[t][g]   d: D[g][2t, 2t+1]
// All but f64: d: D[g][2t, 2t+1], D[g+8][2t, 2t+1].

FUNCTION void mma_bf16(f32 (&d)[4], const u32 (&a)[4], const u32 (&b)[2]) {
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
                 "{%0, %1, %2, %3};"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}
FUNCTION void mma_f16(f32 (&d)[4], const u32 (&a)[4], const u32 (&b)[2]) {
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
                 "{%0, %1, %2, %3};"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}
// Operands are the bits of f32 values; the lowest 13 bits are ignored, so round with to_tf32 first.
FUNCTION void mma_tf32(f32 (&d)[4], const u32 (&a)[4], const u32 (&b)[2]) {
    asm volatile("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
                 "{%0, %1, %2, %3};"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}
FUNCTION void mma_s8(i32 (&d)[4], const u32 (&a)[4], const u32 (&b)[2]) {
    asm volatile("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
                 "{%0, %1, %2, %3};"
                 : "+r"(d[0]), "+r"(d[1]), "+r"(d[2]), "+r"(d[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}
FUNCTION void mma_f64(f64 (&d)[2], f64 a, f64 b) {
    asm volatile("mma.sync.aligned.m8n8k4.row.col.f64.f64.f64.f64 {%0, %1}, {%2}, {%3}, {%0, %1};"
                 : "+d"(d[0]), "+d"(d[1]) : "d"(a), "d"(b));
}

// ---- Exchanges between the lanes of a warp; all of its lanes must call them together ------------------------------

#define EXCHANGES(type)                                                                                               \
    FUNCTION type shuffle(type value, int lane) { return __shfl_sync(0xffffffffu, value, lane); }                     \
    FUNCTION type shuffle_down(type value, int lanes) { return __shfl_down_sync(0xffffffffu, value, lanes); }         \
    FUNCTION type shuffle_up(type value, int lanes) { return __shfl_up_sync(0xffffffffu, value, lanes); }             \
    FUNCTION type shuffle_xor(type value, int mask) { return __shfl_xor_sync(0xffffffffu, value, mask); }
EXCHANGES(f32)
EXCHANGES(f64)
EXCHANGES(i32)
EXCHANGES(u32)
EXCHANGES(i64)
EXCHANGES(u64)
#undef EXCHANGES

// Every lane gets the result over all 32; the order of the sum is fixed, and the same in every lane.
template <typename value_type>
FUNCTION value_type warp_sum(value_type value) {
#pragma unroll
    for (int mask = 16; mask > 0; mask /= 2) value += shuffle_xor(value, mask);
    return value;
}
template <typename value_type>
FUNCTION value_type warp_max(value_type value) {
#pragma unroll
    for (int mask = 16; mask > 0; mask /= 2) value = max(value, shuffle_xor(value, mask));
    return value;
}
template <typename value_type>
FUNCTION value_type warp_min(value_type value) {
#pragma unroll
    for (int mask = 16; mask > 0; mask /= 2) value = min(value, shuffle_xor(value, mask));
    return value;
}
FUNCTION u32 warp_ballot(bool value) { return __ballot_sync(0xffffffffu, value); }
FUNCTION bool warp_any(bool value) { return __any_sync(0xffffffffu, value); }
FUNCTION bool warp_all(bool value) { return __all_sync(0xffffffffu, value); }

// ---- A barrier among thread blocks that are all resident (Launch.is_cooperative) -----------------------------------
// Every block adds 1 to `arrived` and then waits until it is `target`, which grows by the number of blocks from one barrier
// to the next. What a block wrote before it arrived is seen by the others when they have waited. A block that waits for ten
// seconds ends the kernel with an error: nothing hangs.

// Of one thread: what threads wrote that it has waited for is seen by whoever waits until `arrived` has counted this.
FUNCTION void signal_blocks(u32 *arrived) {
    asm volatile("red.release.gpu.global.add.u32 [%0], 1;" ::"l"(arrived) : "memory");
}
FUNCTION void wait_for_signals(const u32 *arrived, u32 target) {
    u32 seen;
    u64 begin = 0, now;
    for (u32 turn = 1;; ++turn) {
        asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(seen) : "l"(arrived) : "memory");
        if ((i32)(seen - target) >= 0) break;
        if (turn % 1024u == 0) {
            asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
            if (!begin) begin = now;
            if (now - begin > 10000000000ull) __trap();
        }
    }
}

FUNCTION void arrive_among_blocks(u32 *arrived) {
    __syncthreads();
    if (threadIdx.x == 0) signal_blocks(arrived);
}
FUNCTION void wait_among_blocks(u32 *arrived, u32 target) {
    if (threadIdx.x == 0) wait_for_signals(arrived, target);
    __syncthreads();
}

// *most is the larger of itself and the value, whoever comes first.
FUNCTION void largest_among_blocks(u32 *most, u32 value) {
    asm volatile("red.relaxed.gpu.global.max.u32 [%0], %1;" ::"l"(most), "r"(value) : "memory");
}

// ---- Half precision: rounded to nearest, ties to even -------------------------------------------------------------

FUNCTION u16 to_bf16(f32 value) {
    u16 half;
    asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(half) : "f"(value));
    return half;
}
FUNCTION u16 to_f16(f32 value) {
    u16 half;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(half) : "f"(value));
    return half;
}
FUNCTION f32 to_f32_bf16(u16 half) { return __uint_as_float((u32)half << 16); }
FUNCTION f32 to_f32_f16(u16 half) {
    f32 value;
    asm("cvt.f32.f16 %0, %1;" : "=f"(value) : "h"(half));
    return value;
}
FUNCTION u32 pack_bf16(f32 low, f32 high) {
    u32 pair;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
    return pair;
}
FUNCTION u32 pack_f16(f32 low, f32 high) {
    u32 pair;
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
    return pair;
}
FUNCTION f32 bf16_low(u32 pair) { return __uint_as_float(pair << 16); }
FUNCTION f32 bf16_high(u32 pair) { return __uint_as_float(pair & 0xffff0000u); }
FUNCTION f32 f16_low(u32 pair) { return to_f32_f16((u16)pair); }
FUNCTION f32 f16_high(u32 pair) { return to_f32_f16((u16)(pair >> 16)); }
// The bits of an f32 rounded to the 10 bits of mantissa that mma_tf32 reads; ties away from zero.
FUNCTION u32 to_tf32(f32 value) {
    u32 bits;
    asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(bits) : "f"(value));
    return bits;
}

// ---- Wide loads and stores of global memory, aligned to their size ------------------------------------------------
// load*: the read-only path, for memory that this kernel never writes. _streaming: used once, so the first to leave
// the caches. Shared memory is read and written through ordinary pointers to uint4.

FUNCTION u32 load4(const void *p) { return __ldg((const u32 *)p); }
FUNCTION uint2 load8(const void *p) { return __ldg((const uint2 *)p); }
FUNCTION uint4 load16(const void *p) { return __ldg((const uint4 *)p); }
FUNCTION uint4 load16_streaming(const void *p) { return __ldcs((const uint4 *)p); }
// _wide: in L2 with its neighbours. _once: the same past the first cache, of much that is read once.
#define WIDE_LOADS(suffix, modifiers)                                                                                 \
    FUNCTION uint2 load8_##suffix(const void *p) {                                                                    \
        uint2 v;                                                                                                      \
        asm volatile("ld.global.nc" modifiers ".v2.u32 {%0, %1}, [%2];" : "=r"(v.x), "=r"(v.y) : "l"(p));             \
        return v;                                                                                                     \
    }                                                                                                                 \
    FUNCTION uint4 load16_##suffix(const void *p) {                                                                   \
        uint4 v;                                                                                                      \
        asm volatile("ld.global.nc" modifiers ".v4.u32 {%0, %1, %2, %3}, [%4];"                                       \
                     : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)                                                     \
                     : "l"(p));                                                                                       \
        return v;                                                                                                     \
    }
WIDE_LOADS(wide, ".L2::256B")
WIDE_LOADS(once, ".L1::no_allocate.L2::256B")
#undef WIDE_LOADS
// _shared_cache: past the first cache, for what other thread blocks of this kernel write.
FUNCTION uint4 load16_shared_cache(const void *p) { return __ldcg((const uint4 *)p); }
FUNCTION void store4(void *p, u32 value) { *(u32 *)p = value; }
FUNCTION void store8(void *p, uint2 value) { *(uint2 *)p = value; }
FUNCTION void store16(void *p, uint4 value) { *(uint4 *)p = value; }
FUNCTION void store16_streaming(void *p, uint4 value) { __stcs((uint4 *)p, value); }
// In one access always: the compiler may take the others apart, into two or four.
FUNCTION void store8_whole(void *p, uint2 value) {
    asm volatile("st.global.v2.u32 [%0], {%1, %2};" ::"l"(p), "r"(value.x), "r"(value.y) : "memory");
}
FUNCTION void store16_whole(void *p, uint4 value) {
    asm volatile("st.global.v4.u32 [%0], {%1, %2, %3, %4};" ::"l"(p), "r"(value.x), "r"(value.y), "r"(value.z),
                 "r"(value.w)
                 : "memory");
}

// ---- Bits, approximations, dot products ---------------------------------------------------------------------------

// Four bytes of the eight of (low, high): nibble i of `selector` is the index of the byte that goes to byte i.
FUNCTION u32 byte_permute(u32 low, u32 high, u32 selector) { return __byte_perm(low, high, selector); }
// sum + the four products of signed bytes.
FUNCTION i32 dot4_s8(u32 a, u32 b, i32 sum) { return __dp4a((i32)a, (i32)b, sum); }
// The larger and the smaller of two; NaN if either is.
FUNCTION f32 maximum_rough(f32 a, f32 b) {
    f32 larger;
    asm("max.NaN.f32 %0, %1, %2;" : "=f"(larger) : "f"(a), "f"(b));
    return larger;
}
FUNCTION f32 minimum_rough(f32 a, f32 b) {
    f32 smaller;
    asm("min.NaN.f32 %0, %1, %2;" : "=f"(smaller) : "f"(a), "f"(b));
    return smaller;
}
// 2 to the power x within 2 units in the last place; results below 2^-126 are zero.
FUNCTION f32 exp2_approximate(f32 x) {
    f32 power;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(power) : "f"(x));
    return power;
}
// 1 / x within 1 unit in the last place; of a number beyond 2^126 it is zero.
FUNCTION f32 reciprocal_approximate(f32 x) {
    f32 inverse;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(inverse) : "f"(x));
    return inverse;
}

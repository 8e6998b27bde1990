// Behind instructions.cuh in the prelude of the "hopper" dialect: the instructions that only sm_90a has, one small
// function each. Copies of boxes of a tensor (TMA) fill shared memory, barriers there (mbarrier) say when they have
// arrived and when their memory may be filled again, and a warpgroup of 128 threads multiplies matrices in shared
// memory (wgmma).

// What the driver makes of a `TensorMap` of devices/tensor_map.py: an opaque description of a tensor in memory.
struct __align__(64) TensorMap {
    char opaque[128];
};

// ---- Barriers in shared memory -----------------------------------------------------------------------------------
// A barrier counts arrivals, and the bytes that copies bring; its phase ends, and the next begins, when both are
// complete. A thread waits for the end of the phase of a parity: 0 for the first, 1 for the second, 0 for the third.
// Waiting for parity 1 of a new barrier returns at once.

FUNCTION void mbarrier_init(u32 barrier, u32 arrivals) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals));
}
// Behind all mbarrier_init of a thread, before the barrier of the block that lets others use them.
FUNCTION void mbarrier_init_fence() { asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory"); }
// One arrival, and the promise of `bytes` that copies bring in this phase.
FUNCTION void mbarrier_arrive_expect(u32 barrier, u32 bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes) : "memory");
}
FUNCTION void mbarrier_arrive(u32 barrier) {
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}
FUNCTION void mbarrier_wait(u32 barrier, u32 parity) {
    u32 is_over;
    do {
        asm volatile("{\n.reg .pred over;\n"
                     "mbarrier.try_wait.parity.shared::cta.b64 over, [%1], %2;\n"
                     "selp.u32 %0, 1, 0, over;\n}"
                     : "=r"(is_over) : "r"(barrier), "r"(parity) : "memory");
    } while (!is_over);
}

// A barrier of the 128 threads of a warpgroup: `number` is 1 to 15, another one for each warpgroup.
FUNCTION void warpgroup_barrier(int number) { asm volatile("bar.sync %0, 128;" ::"r"(number) : "memory"); }

// ---- Copies of boxes of a tensor into shared memory (TMA) --------------------------------------------------------
// One thread starts a copy; its bytes count at `barrier`, those of elements outside of the tensor too, which are zero.
// Coordinates are those of the box's first element, innermost axis first. Rows are 128, 64 or 32 bytes, as the map says,
// and their 16-byte pieces are permuted (the swizzle of the same name) within 1024, 512 or 256 bytes, of which `shared`
// is a multiple: where a byte lies is its place in rows one behind the other, of whose address bits 7 and up, as many as
// a row has bits of pieces, are added without carry to bits 4 and up: in rows of 128 bytes, piece p of row r lies at
// p ^ r % 8; in rows of 64 at p ^ r / 2 % 4; in rows of 32 at p ^ r / 4 % 2.

FUNCTION void tma_load_3d(u32 shared, const TensorMap &map, u32 barrier, int a, int b, int c) {
    asm volatile("cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes"
                 " [%0], [%1, {%3, %4, %5}], [%2];"
                 ::"r"(shared), "l"(&map), "r"(barrier), "r"(a), "r"(b), "r"(c) : "memory");
}
FUNCTION void tma_load_4d(u32 shared, const TensorMap &map, u32 barrier, int a, int b, int c, int d) {
    asm volatile("cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes"
                 " [%0], [%1, {%3, %4, %5, %6}], [%2];"
                 ::"r"(shared), "l"(&map), "r"(barrier), "r"(a), "r"(b), "r"(c), "r"(d) : "memory");
}
FUNCTION void tma_load_5d(u32 shared, const TensorMap &map, u32 barrier, int a, int b, int c, int d, int e) {
    asm volatile("cp.async.bulk.tensor.5d.shared::cluster.global.mbarrier::complete_tx::bytes"
                 " [%0], [%1, {%3, %4, %5, %6, %7}], [%2];"
                 ::"r"(shared), "l"(&map), "r"(barrier), "r"(a), "r"(b), "r"(c), "r"(d), "r"(e) : "memory");
}
// im2col: the box is a run of pixels, along w, then h (then d), then the images, within the corners that the map
// holds and in its steps; (c, w, h, n) is where the first pixel's window begins, (s, r) is the tap: where in each
// window.
FUNCTION void tma_load_im2col_3d(u32 shared, const TensorMap &map, u32 barrier, int c, int w, int n, int s) {
    asm volatile("cp.async.bulk.tensor.3d.shared::cluster.global.im2col.mbarrier::complete_tx::bytes"
                 " [%0], [%1, {%3, %4, %5}], [%2], {%6};"
                 ::"r"(shared), "l"(&map), "r"(barrier), "r"(c), "r"(w), "r"(n), "h"((short)s)
                 : "memory");
}
FUNCTION void tma_load_im2col_4d(u32 shared, const TensorMap &map, u32 barrier, int c, int w, int h, int n, int s,
                                 int r) {
    asm volatile("cp.async.bulk.tensor.4d.shared::cluster.global.im2col.mbarrier::complete_tx::bytes"
                 " [%0], [%1, {%3, %4, %5, %6}], [%2], {%7, %8};"
                 ::"r"(shared), "l"(&map), "r"(barrier), "r"(c), "r"(w), "r"(h), "r"(n), "h"((short)s), "h"((short)r)
                 : "memory");
}
FUNCTION void tma_load_im2col_5d(u32 shared, const TensorMap &map, u32 barrier, int c, int w, int h, int d, int n,
                                 int s, int r, int t) {
    asm volatile("cp.async.bulk.tensor.5d.shared::cluster.global.im2col.mbarrier::complete_tx::bytes"
                 " [%0], [%1, {%3, %4, %5, %6, %7}], [%2], {%8, %9, %10};"
                 ::"r"(shared), "l"(&map), "r"(barrier), "r"(c), "r"(w), "r"(h), "r"(d), "r"(n), "h"((short)s),
                   "h"((short)r), "h"((short)t)
                 : "memory");
}
// The same as far as the L2 cache; shared memory and barrier are left alone. What another kernel still writes may be asked for.
struct ToCache {};
FUNCTION void tma_load_3d(u32, const TensorMap &map, u32, int a, int b, int c, ToCache) {
    asm volatile("cp.async.bulk.prefetch.tensor.3d.L2.global.tile [%0, {%1, %2, %3}];"
                 ::"l"(&map), "r"(a), "r"(b), "r"(c) : "memory");
}
FUNCTION void tma_load_4d(u32, const TensorMap &map, u32, int a, int b, int c, int d, ToCache) {
    asm volatile("cp.async.bulk.prefetch.tensor.4d.L2.global.tile [%0, {%1, %2, %3, %4}];"
                 ::"l"(&map), "r"(a), "r"(b), "r"(c), "r"(d) : "memory");
}
FUNCTION void tma_load_5d(u32, const TensorMap &map, u32, int a, int b, int c, int d, int e, ToCache) {
    asm volatile("cp.async.bulk.prefetch.tensor.5d.L2.global.tile [%0, {%1, %2, %3, %4, %5}];"
                 ::"l"(&map), "r"(a), "r"(b), "r"(c), "r"(d), "r"(e) : "memory");
}
FUNCTION void tma_load_im2col_3d(u32, const TensorMap &map, u32, int c, int w, int n, int s, ToCache) {
    asm volatile("cp.async.bulk.prefetch.tensor.3d.L2.global.im2col [%0, {%1, %2, %3}], {%4};"
                 ::"l"(&map), "r"(c), "r"(w), "r"(n), "h"((short)s) : "memory");
}
FUNCTION void tma_load_im2col_4d(u32, const TensorMap &map, u32, int c, int w, int h, int n, int s, int r, ToCache) {
    asm volatile("cp.async.bulk.prefetch.tensor.4d.L2.global.im2col [%0, {%1, %2, %3, %4}], {%5, %6};"
                 ::"l"(&map), "r"(c), "r"(w), "r"(h), "r"(n), "h"((short)s), "h"((short)r) : "memory");
}
FUNCTION void tma_load_im2col_5d(u32, const TensorMap &map, u32, int c, int w, int h, int d, int n, int s, int r, int t,
                                 ToCache) {
    asm volatile("cp.async.bulk.prefetch.tensor.5d.L2.global.im2col [%0, {%1, %2, %3, %4, %5}], {%6, %7, %8};"
                 ::"l"(&map), "r"(c), "r"(w), "r"(h), "r"(d), "r"(n), "h"((short)s), "h"((short)r), "h"((short)t)
                 : "memory");
}
// The other way: a box of shared memory, in rows and pieces as above, into a tensor; what lies behind its end along an
// axis is left out, in whole pieces of 16 bytes, and no coordinate may be negative. Behind writes by threads, async_proxy_fence in each of them and a barrier come first. The thread that stores
// ends groups of stores by tma_store_commit, and waits until at most `pending` of the newest are still to be read.
FUNCTION void tma_store_3d(u32 shared, const TensorMap &map, int a, int b, int c) {
    asm volatile("cp.async.bulk.tensor.3d.global.shared::cta.bulk_group [%0, {%2, %3, %4}], [%1];"
                 ::"l"(&map), "r"(shared), "r"(a), "r"(b), "r"(c) : "memory");
}
FUNCTION void tma_store_commit() { asm volatile("cp.async.bulk.commit_group;" ::: "memory"); }
template <int pending>
FUNCTION void tma_store_wait_read() { asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(pending) : "memory"); }
// What this thread wrote to shared memory is seen by copies and products behind it.
FUNCTION void async_proxy_fence() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }
FUNCTION void tma_prefetch_map(const TensorMap &map) {
    asm volatile("prefetch.tensormap [%0];" ::"l"(&map) : "memory");
}

// ---- Clusters: `blocks` thread blocks next to each other, which are resident together ------------------------------
// They read and write each other's shared memory. cluster_wait lets a thread go on when all threads of the cluster have
// arrived; what these had written before, there and in memory, is seen then.

#define KERNEL_OF_CLUSTERS(threads, blocks)                                                                       \
    extern "C" __global__ __cluster_dims__(blocks, 1, 1) __launch_bounds__(threads, 1)
// The same for as many blocks as a launch says (`Launch.sets_cluster`).
#define KERNEL_OF_ANY_CLUSTERS(threads) extern "C" __global__ __launch_bounds__(threads, 1)
// The address, for cluster_load and cluster_store, of what lies at `shared` in the shared memory of the cluster's block `rank`.
FUNCTION u32 cluster_address(u32 shared, int rank) {
    u32 there;
    asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(shared), "r"(rank));
    return there;
}
FUNCTION void cluster_store4(u32 there, u32 value) {
    asm volatile("st.shared::cluster.b32 [%0], %1;" ::"r"(there), "r"(value) : "memory");
}
FUNCTION void cluster_store8(u32 there, u32 low, u32 high) {
    asm volatile("st.shared::cluster.v2.b32 [%0], {%1, %2};" ::"r"(there), "r"(low), "r"(high) : "memory");
}
FUNCTION uint4 cluster_load16(u32 there) {
    uint4 value;
    asm volatile("ld.shared::cluster.v4.b32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(value.x), "=r"(value.y), "=r"(value.z), "=r"(value.w) : "r"(there) : "memory");
    return value;
}
// The same as cluster_arrive for a thread that has written nothing for others, but has read what they wrote.
FUNCTION void cluster_arrive_relaxed() { asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory"); }
FUNCTION void cluster_arrive() { asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory"); }
FUNCTION void cluster_wait() { asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory"); }

// ---- d += a * b by a warpgroup (wgmma) ---------------------------------------------------------------------------
// Both matrices lie in shared memory as copies left them. K-major: rows of 128, 64 or 32 bytes along K; MN-major: rows
// of 64 elements along M or N, one for each k. Thread t of the warpgroup holds, in d[4 * j ... 4 * j + 3], the sums
// D[g][8 * j + 2 * i, + 1] and D[g + 8][the same], with g = 16 * (t / 32) + t % 32 / 4 and i = t % 4.
//
// wgmma<...> only begins a product; wgmma_wait<n> waits until at most n of the groups that wgmma_commit ended are in
// flight. Until then neither d nor the shared memory may be touched. wgmma_fence comes before the first product that
// takes registers which were written otherwise.

// The descriptor of a matrix whose first byte is at `address`. `repeat`: bytes from 64 elements along M or N to the
// next 64, of an MN-major matrix. `row`: bytes of its rows.
FUNCTION u64 wgmma_descriptor(u32 address, u32 repeat = 16, u32 row = 128) {
    const u64 swizzle = row == 128 ? 1 : row == 64 ? 2 : 3;
    return (u64)((address & 0x3ffff) >> 4) | (u64)(repeat >> 4) << 16 | (u64)(8 * row >> 4) << 32 | swizzle << 62;
}
FUNCTION void wgmma_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
FUNCTION void wgmma_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
template <int pending>
FUNCTION void wgmma_wait() { asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(pending) : "memory"); }

// Sums are read behind this alone, and written otherwise before it alone (CUTLASS's warpgroup_fence_operand): it stands behind
// the wait, and before the first product of sums that were something else. For all that the compiler knows, the sums of a
// product are there once it has begun. Where their bits become integers, it has copied them behind each product of a loop, and
// ptxas, which adds a wait then (C7517), waits for groups that are committed: not for the products that have just begun.
FUNCTION void wgmma_fence_operand(f32 &sum) { asm volatile("" : "+f"(sum)::"memory"); }
FUNCTION void wgmma_fence_operand(i32 &sum) { asm volatile("" : "+r"(sum)::"memory"); }
template <class T, int count>
FUNCTION void wgmma_fence_operand(T (&sums)[count]) {
#pragma unroll
    for (int n = 0; n < count; ++n) wgmma_fence_operand(sums[n]);
}

#define W8(a, b, c, d, e, f, g, h) "%" #a ",%" #b ",%" #c ",%" #d ",%" #e ",%" #f ",%" #g ",%" #h
#define WREGS_16 W8(0, 1, 2, 3, 4, 5, 6, 7) "," W8(8, 9, 10, 11, 12, 13, 14, 15)
#define WREGS_32                                                                                                  \
    WREGS_16 "," W8(16, 17, 18, 19, 20, 21, 22, 23) "," W8(24, 25, 26, 27, 28, 29, 30, 31)
#define WREGS_48                                                                                                  \
    WREGS_32 "," W8(32, 33, 34, 35, 36, 37, 38, 39) "," W8(40, 41, 42, 43, 44, 45, 46, 47)
#define WREGS_64                                                                                                  \
    WREGS_48 "," W8(48, 49, 50, 51, 52, 53, 54, 55) "," W8(56, 57, 58, 59, 60, 61, 62, 63)
#define WREGS_72 WREGS_64 "," W8(64, 65, 66, 67, 68, 69, 70, 71)
#define WREGS_80                                                                                                  \
    WREGS_64 "," W8(64, 65, 66, 67, 68, 69, 70, 71) "," W8(72, 73, 74, 75, 76, 77, 78, 79)
#define WREGS_112                                                                                                 \
    WREGS_96 "," W8(96, 97, 98, 99, 100, 101, 102, 103) "," W8(104, 105, 106, 107, 108, 109, 110, 111)
#define WREGS_96                                                                                                  \
    WREGS_64 "," W8(64, 65, 66, 67, 68, 69, 70, 71) "," W8(72, 73, 74, 75, 76, 77, 78, 79) ","                    \
    W8(80, 81, 82, 83, 84, 85, 86, 87) "," W8(88, 89, 90, 91, 92, 93, 94, 95)
#define WREGS_128                                                                                                 \
    WREGS_96 "," W8(96, 97, 98, 99, 100, 101, 102, 103) "," W8(104, 105, 106, 107, 108, 109, 110, 111) ","        \
    W8(112, 113, 114, 115, 116, 117, 118, 119) "," W8(120, 121, 122, 123, 124, 125, 126, 127)
#define WSUMS_8(kind, n)                                                                                          \
    kind(d[n]), kind(d[n + 1]), kind(d[n + 2]), kind(d[n + 3]), kind(d[n + 4]), kind(d[n + 5]), kind(d[n + 6]),   \
        kind(d[n + 7])
#define WSUMS_16(kind) WSUMS_8(kind, 0), WSUMS_8(kind, 8)
#define WSUMS_32(kind) WSUMS_16(kind), WSUMS_8(kind, 16), WSUMS_8(kind, 24)
#define WSUMS_48(kind) WSUMS_32(kind), WSUMS_8(kind, 32), WSUMS_8(kind, 40)
#define WSUMS_64(kind) WSUMS_48(kind), WSUMS_8(kind, 48), WSUMS_8(kind, 56)
#define WSUMS_72(kind) WSUMS_64(kind), WSUMS_8(kind, 64)
#define WSUMS_80(kind) WSUMS_64(kind), WSUMS_8(kind, 64), WSUMS_8(kind, 72)
#define WSUMS_112(kind) WSUMS_96(kind), WSUMS_8(kind, 96), WSUMS_8(kind, 104)
#define WSUMS_96(kind) WSUMS_64(kind), WSUMS_8(kind, 64), WSUMS_8(kind, 72), WSUMS_8(kind, 80), WSUMS_8(kind, 88)
#define WSUMS_128(kind) WSUMS_96(kind), WSUMS_8(kind, 96), WSUMS_8(kind, 104), WSUMS_8(kind, 112), WSUMS_8(kind, 120)

// d is 64 x n, a is 64 x 16 and b 16 x n (tf32: 8 instead of 16 along K; elements of one byte: 32). `is_added`: d += a *
// b, else d = a * b. Integers are added exactly; of products of 8-bit reals each addition keeps about 14 bits.
#define WGMMA_HALF(n, type, count, a_at, b_at, p_at, a_major_at, b_major_at)                                      \
    template <bool is_a_mn_major, bool is_b_mn_major>                                                             \
    FUNCTION void wgmma_##type(f32(&d)[count], u64 a, u64 b, bool is_added) {                                     \
        asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %" #p_at ", 0;\n"                                          \
                     "wgmma.mma_async.sync.aligned.m64n" #n "k16.f32." #type "." #type " {" WREGS_##count "}, "   \
                     "%" #a_at ", %" #b_at ", p, 1, 1, %" #a_major_at ", %" #b_major_at ";\n}"                    \
                     : WSUMS_##count("+f")                                                                        \
                     : "l"(a), "l"(b), "r"((int)is_added), "n"((int)is_a_mn_major), "n"((int)is_b_mn_major));     \
    }
#define WGMMA_TF32(n, count, a_at, b_at, p_at)                                                                    \
    template <bool is_a_mn_major, bool is_b_mn_major>                                                             \
    FUNCTION void wgmma_tf32(f32(&d)[count], u64 a, u64 b, bool is_added) {                                       \
        static_assert(!is_a_mn_major && !is_b_mn_major, "tf32 is K-major");                                       \
        asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %" #p_at ", 0;\n"                                          \
                     "wgmma.mma_async.sync.aligned.m64n" #n "k8.f32.tf32.tf32 {" WREGS_##count "}, "              \
                     "%" #a_at ", %" #b_at ", p, 1, 1;\n}"                                                        \
                     : WSUMS_##count("+f")                                                                        \
                     : "l"(a), "l"(b), "r"((int)is_added));                                                       \
    }
#define WGMMA_BYTES(n, count, name, sum, kind, types, factors, a_at, b_at, p_at)                                  \
    template <bool is_a_mn_major, bool is_b_mn_major>                                                             \
    FUNCTION void wgmma_##name(sum(&d)[count], u64 a, u64 b, bool is_added) {                                     \
        static_assert(!is_a_mn_major && !is_b_mn_major, "elements of one byte are K-major");                      \
        asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %" #p_at ", 0;\n"                                          \
                     "wgmma.mma_async.sync.aligned.m64n" #n "k32." types " {" WREGS_##count "}, "                 \
                     "%" #a_at ", %" #b_at ", p" factors ";\n}"                                                   \
                     : WSUMS_##count(kind)                                                                        \
                     : "l"(a), "l"(b), "r"((int)is_added));                                                       \
    }
#define WGMMA(n, count, a_at, b_at, p_at, a_major_at, b_major_at)                                                 \
    WGMMA_HALF(n, bf16, count, a_at, b_at, p_at, a_major_at, b_major_at)                                          \
    WGMMA_HALF(n, f16, count, a_at, b_at, p_at, a_major_at, b_major_at)                                           \
    WGMMA_TF32(n, count, a_at, b_at, p_at)                                                                        \
    WGMMA_BYTES(n, count, s8, i32, "+r", "s32.s8.s8", "", a_at, b_at, p_at)                                       \
    WGMMA_BYTES(n, count, e4m3_e4m3, f32, "+f", "f32.e4m3.e4m3", ", 1, 1", a_at, b_at, p_at)                      \
    WGMMA_BYTES(n, count, e4m3_e5m2, f32, "+f", "f32.e4m3.e5m2", ", 1, 1", a_at, b_at, p_at)                      \
    WGMMA_BYTES(n, count, e5m2_e4m3, f32, "+f", "f32.e5m2.e4m3", ", 1, 1", a_at, b_at, p_at)                      \
    WGMMA_BYTES(n, count, e5m2_e5m2, f32, "+f", "f32.e5m2.e5m2", ", 1, 1", a_at, b_at, p_at)
WGMMA(32, 16, 16, 17, 18, 19, 20)
WGMMA(64, 32, 32, 33, 34, 35, 36)
WGMMA(96, 48, 48, 49, 50, 51, 52)
WGMMA(128, 64, 64, 65, 66, 67, 68)
WGMMA(144, 72, 72, 73, 74, 75, 76)
WGMMA(160, 80, 80, 81, 82, 83, 84)
WGMMA(192, 96, 96, 97, 98, 99, 100)
WGMMA(224, 112, 112, 113, 114, 115, 116)
WGMMA(256, 128, 128, 129, 130, 131, 132)
#undef WGMMA
#undef WGMMA_HALF
#undef WGMMA_TF32
#undef WGMMA_BYTES

// The same with a in registers, K-major: thread t holds, with g and i as above and 32 bytes of K, A[g][bytes 4 * i to
// 4 * i + 3] in a[0], A[g + 8][the same] in a[1], and both 16 bytes further along K in a[2] and a[3], which is what
// ldmatrix_x4 brings. Until the product is waited for, a may not be touched.
#define WGMMA_A_HALF(n, type, count, a0, a1, a2, a3, b_at, p_at, b_major_at)                                      \
    template <bool is_b_mn_major>                                                                                 \
    FUNCTION void wgmma_a_##type(f32(&d)[count], const u32(&a)[4], u64 b, bool is_added) {                        \
        asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %" #p_at ", 0;\n"                                          \
                     "wgmma.mma_async.sync.aligned.m64n" #n "k16.f32." #type "." #type " {" WREGS_##count "}, "   \
                     "{%" #a0 ", %" #a1 ", %" #a2 ", %" #a3 "}, %" #b_at ", p, 1, 1, %" #b_major_at ";\n}"        \
                     : WSUMS_##count("+f")                                                                         \
                     : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"((int)is_added),                    \
                       "n"((int)is_b_mn_major));                                                                  \
    }
#define WGMMA_A_TF32(n, count, a0, a1, a2, a3, b_at, p_at)                                                        \
    template <bool is_b_mn_major>                                                                                 \
    FUNCTION void wgmma_a_tf32(f32(&d)[count], const u32(&a)[4], u64 b, bool is_added) {                          \
        static_assert(!is_b_mn_major, "tf32 is K-major");                                                         \
        asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %" #p_at ", 0;\n"                                          \
                     "wgmma.mma_async.sync.aligned.m64n" #n "k8.f32.tf32.tf32 {" WREGS_##count "}, "              \
                     "{%" #a0 ", %" #a1 ", %" #a2 ", %" #a3 "}, %" #b_at ", p, 1, 1;\n}"                          \
                     : WSUMS_##count("+f")                                                                         \
                     : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"((int)is_added));                   \
    }
#define WGMMA_A(n, count, a0, a1, a2, a3, b_at, p_at, b_major_at)                                                 \
    WGMMA_A_HALF(n, bf16, count, a0, a1, a2, a3, b_at, p_at, b_major_at)                                          \
    WGMMA_A_HALF(n, f16, count, a0, a1, a2, a3, b_at, p_at, b_major_at)                                           \
    WGMMA_A_TF32(n, count, a0, a1, a2, a3, b_at, p_at)
WGMMA_A(32, 16, 16, 17, 18, 19, 20, 21, 22)
WGMMA_A(64, 32, 32, 33, 34, 35, 36, 37, 38)
WGMMA_A(96, 48, 48, 49, 50, 51, 52, 53, 54)
WGMMA_A(128, 64, 64, 65, 66, 67, 68, 69, 70)
WGMMA_A(144, 72, 72, 73, 74, 75, 76, 77, 78)
WGMMA_A(160, 80, 80, 81, 82, 83, 84, 85, 86)
WGMMA_A(192, 96, 96, 97, 98, 99, 100, 101, 102)
WGMMA_A(224, 112, 112, 113, 114, 115, 116, 117, 118)
WGMMA_A(256, 128, 128, 129, 130, 131, 132, 133, 134)
#undef WGMMA_A
#undef WGMMA_A_HALF
// A copy in a register of its own, made where it stands: an operand of products whose source is overwritten while they run.
FUNCTION u32 in_own_register(u32 word) {
    u32 copy;
    asm volatile("mov.b32 %0, %1;" : "=r"(copy) : "r"(word) : "memory");
    return copy;
}
#undef WGMMA_A_TF32
// The bits of a result, in a register that is not the sum's: the compiler keeps no sum as an integer for their sake.
FUNCTION u32 bits_in_own_register(f32 value) {
    u32 bits;
    asm("mov.b32 %0, %1;" : "=r"(bits) : "f"(value));
    return bits;
}

// 16 bytes of memory that this kernel may write, and to the L2 cache the 256 bytes around them.
FUNCTION uint4 load16_among_256(const void *from) {
    uint4 value;
    asm volatile("ld.global.L2::256B.v4.b32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(value.x), "=r"(value.y), "=r"(value.z), "=r"(value.w) : "l"(from));
    return value;
}

// 128 bytes of memory that nobody reads any more: L2 need not write them to memory. `seen`: made of all that was read of them,
// so that the reads are done, whatever the assembler's order is.
FUNCTION void discard_line(const void *line, u32 seen) {
    asm volatile("{\n.reg .pred is_read;\nsetp.ne.b32 is_read, %1, 0x7fffdead;\n@is_read discard.global.L2 [%0], 128;\n}"
                 ::"l"(line), "r"(seen) : "memory");
}

// ---- Registers of a warpgroup, and the way out -------------------------------------------------------------------

template <int count>
FUNCTION void registers_release() { asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(count)); }
template <int count>
FUNCTION void registers_acquire() { asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(count)); }

// Two f32 rounded to half precision, negative numbers as 0; NaN stays NaN.
FUNCTION u32 pack_relu_bf16(f32 low, f32 high) {
    u32 pair;
    asm("cvt.rn.relu.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
    return pair;
}
FUNCTION u32 pack_relu_f16(f32 low, f32 high) {
    u32 pair;
    asm("cvt.rn.relu.f16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
    return pair;
}

// Writes four 8 x 8 matrices of 2-byte elements: lane l gives the address of row l % 8 of matrix l / 8, and holds, of
// each, the two elements at row l / 4, columns 2 * (l % 4) and + 1.
FUNCTION void stmatrix_x4(u32 row, u32 a, u32 b, u32 c, u32 d) {
    asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};"
                 ::"r"(row), "r"(a), "r"(b), "r"(c), "r"(d) : "memory");
}
// The same, of each the two elements at rows 2 * (l % 4) and + 1, column l / 4.
FUNCTION void stmatrix_x4_transposed(u32 row, u32 a, u32 b, u32 c, u32 d) {
    asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1, %2, %3, %4};"
                 ::"r"(row), "r"(a), "r"(b), "r"(c), "r"(d) : "memory");
}
// Two numbers as 8-bit reals, rounded to nearest, ties to even; what is beyond their range becomes their largest finite
// number.
FUNCTION u16 pack_f8e4m3(f32 low, f32 high) {
    u16 pair;
    asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(pair) : "f"(high), "f"(low));
    return pair;
}
FUNCTION u16 pack_f8e5m2(f32 low, f32 high) {
    u16 pair;
    asm("cvt.rn.satfinite.e5m2x2.f32 %0, %1, %2;" : "=h"(pair) : "f"(high), "f"(low));
    return pair;
}
// Reads and writes of shared memory by its address.
FUNCTION uint4 shared_load16(u32 address) {
    uint4 value;
    asm volatile("ld.shared.v4.b32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(value.x), "=r"(value.y), "=r"(value.z), "=r"(value.w) : "r"(address) : "memory");
    return value;
}
FUNCTION uint2 shared_load8(u32 address) {
    uint2 value;
    asm volatile("ld.shared.v2.b32 {%0, %1}, [%2];" : "=r"(value.x), "=r"(value.y) : "r"(address) : "memory");
    return value;
}
FUNCTION u32 shared_load4(u32 address) {
    u32 value;
    asm volatile("ld.shared.b32 %0, [%1];" : "=r"(value) : "r"(address) : "memory");
    return value;
}
FUNCTION u16 shared_load2(u32 address) {
    u16 value;
    asm volatile("ld.shared.b16 %0, [%1];" : "=h"(value) : "r"(address) : "memory");
    return value;
}
FUNCTION u8 shared_load1(u32 address) {
    u32 value;
    asm volatile("ld.shared.u8 %0, [%1];" : "=r"(value) : "r"(address) : "memory");
    return (u8)value;
}
FUNCTION void shared_store2(u32 address, u16 value) {
    asm volatile("st.shared.b16 [%0], %1;" ::"r"(address), "h"(value) : "memory");
}
FUNCTION void shared_store4(u32 address, u32 value) {
    asm volatile("st.shared.b32 [%0], %1;" ::"r"(address), "r"(value) : "memory");
}
FUNCTION void shared_store16(u32 address, uint4 value) {
    asm volatile("st.shared.v4.b32 [%0], {%1, %2, %3, %4};"
                 ::"r"(address), "r"(value.x), "r"(value.y), "r"(value.z), "r"(value.w) : "memory");
}
FUNCTION void shared_store8(u32 address, u32 low, u32 high) {
    asm volatile("st.shared.v2.b32 [%0], {%1, %2};" ::"r"(address), "r"(low), "r"(high) : "memory");
}
FUNCTION i64 shared_load_i64(u32 address) {
    i64 value;
    asm volatile("ld.shared.b64 %0, [%1];" : "=l"(value) : "r"(address) : "memory");
    return value;
}
FUNCTION void shared_store_i64(u32 address, i64 value) {
    asm volatile("st.shared.b64 [%0], %1;" ::"r"(address), "l"(value) : "memory");
}

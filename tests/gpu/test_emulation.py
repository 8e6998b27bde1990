"""The emulated CUDA device is right, so that what passes on it says something about kernels."""

from __future__ import annotations

from collections.abc import Sequence

import ml_dtypes
import numpy as np
import pytest

from emulation.device import EmulatedCudaDevice, missing  # conftest.py makes it importable
from jitdnn.devices.gpu import Launch, Source
from jitdnn.errors import CompileError, DeviceError

pytestmark = pytest.mark.skipif(missing() is not None, reason=str(missing()))

DEVICE = EmulatedCudaDevice(seconds=5)
HEAD = "(const u8 *x, const u8 *w, u8 *y, u8 *workspace, SCALE alpha, SCALE beta, i64 n)"


def run(
    body: str,
    *arrays: np.ndarray,
    threads: int = 32,
    groups: int | tuple[int, ...] = 1,
    shared: int = 0,
    extras: Sequence[int] = (0,),
    dialect: str = "cuda",
    before: str = "",
    device: EmulatedCudaDevice = DEVICE,
) -> None:
    """Run the body of a kernel of x, w and y (three arrays) and n, whose lines count from 1."""
    text = f"{before}KERNEL({threads}) void body{HEAD} {{ {body} }}"
    source = Source("body", text, dialect=dialect)
    kernel = device.kernel(source, [Launch("body", groups, threads, shared)], 3, extras)
    empty = np.zeros(1, np.float32)
    x, w, y = (*arrays, empty, empty, empty)[:3]
    kernel(None, [x.ctypes.data, w.ctypes.data, y.ctypes.data], 1.0, 0.0, 0)


# ---- mma: fragments gathered from matrices in memory, element by element, as the PTX manual lays them out -----------


def mma(
    name: str, K: int, packed: int, bits: str, A: np.ndarray, B: np.ndarray, D: np.ndarray, sums: str
) -> None:
    """D += A B with the elements of A and B as unsigned integers of type `bits`."""
    width = 32 // packed
    body = f"""
        const {bits} *A = (const {bits} *)x, *B = (const {bits} *)w;
        {sums} *D = ({sums} *)y;
        const int g = threadIdx.x / 4, t = threadIdx.x % 4;
        u32 a[4] = {{}}, b[2] = {{}};
        for (int e = 0; e < {4 * packed}; ++e) {{
            const int r = e / {packed}, part = e % {packed};
            const int row = r == 0 || r == 2 ? g : g + 8;
            const int k = {packed} * t + part + (r < 2 ? 0 : {4 * packed});
            a[r] |= (u32)A[row * {K} + k] << {width % 32} * part;
        }}
        for (int e = 0; e < {2 * packed}; ++e) {{
            const int r = e / {packed}, part = e % {packed};
            b[r] |= (u32)B[({packed} * t + part + {4 * packed} * r) * 8 + g] << {width % 32} * part;
        }}
        {sums} d[4];
        for (int r = 0; r < 4; ++r) d[r] = D[(g + (r < 2 ? 0 : 8)) * 8 + 2 * t + r % 2];
        {name}(d, a, b);
        for (int r = 0; r < 4; ++r) D[(g + (r < 2 ? 0 : 8)) * 8 + 2 * t + r % 2] = d[r];"""
    run(body, A, B, D)


@pytest.mark.parametrize(
    ("name", "dtype"), [("mma_bf16", ml_dtypes.bfloat16), ("mma_f16", np.float16)], ids=["bf16", "f16"]
)
def test_mma_of_half_precision(name: str, dtype: type) -> None:
    rng = np.random.default_rng(1)
    A, B = rng.standard_normal((16, 16)).astype(dtype), rng.standard_normal((16, 8)).astype(dtype)
    C = rng.standard_normal((16, 8)).astype(np.float32)
    D = C.copy()
    mma(name, 16, 2, "u16", A, B, D, "f32")
    assert np.allclose(D, C + A.astype(np.float64) @ B.astype(np.float64), rtol=1e-5, atol=1e-5)


def test_mma_of_tf32_ignores_the_lowest_bits() -> None:
    rng = np.random.default_rng(2)
    A, B = rng.standard_normal((16, 8)).astype(np.float32), rng.standard_normal((8, 8)).astype(np.float32)
    D = np.zeros((16, 8), np.float32)
    mma("mma_tf32", 8, 1, "u32", A, B, D, "f32")

    def cut(values: np.ndarray) -> np.ndarray:
        return (values.view(np.uint32) & 0xFFFFE000).view(np.float32).astype(np.float64)

    assert np.allclose(D, cut(A) @ cut(B), rtol=1e-5, atol=1e-5)
    assert not np.allclose(D, A.astype(np.float64) @ B, rtol=1e-5, atol=1e-5)


def test_mma_of_signed_bytes() -> None:
    rng = np.random.default_rng(3)
    A, B = rng.integers(-128, 128, (16, 32)).astype(np.int8), rng.integers(-128, 128, (32, 8)).astype(np.int8)
    C = rng.integers(-1000, 1000, (16, 8)).astype(np.int32)
    D = C.copy()
    mma("mma_s8", 32, 4, "u8", A, B, D, "i32")
    assert np.array_equal(D, C + A.astype(np.int64) @ B.astype(np.int64))


def test_mma_of_doubles() -> None:
    rng = np.random.default_rng(4)
    A, B, C = rng.standard_normal((8, 4)), rng.standard_normal((4, 8)), rng.standard_normal((8, 8))
    D = C.copy()
    body = """
        const int g = threadIdx.x / 4, t = threadIdx.x % 4;
        f64 *D = (f64 *)y, d[2] = {D[g * 8 + 2 * t], D[g * 8 + 2 * t + 1]};
        mma_f64(d, ((const f64 *)x)[g * 4 + t], ((const f64 *)w)[t * 8 + g]);
        D[g * 8 + 2 * t] = d[0];
        D[g * 8 + 2 * t + 1] = d[1];"""
    run(body, A, B, D)
    assert np.allclose(D, C + A @ B, rtol=1e-14)


# ---- ldmatrix ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("is_transposed", [False, True], ids=["plain", "trans"])
@pytest.mark.parametrize("count", [2, 4])
@pytest.mark.parametrize("by_address", [False, True], ids=["pointer", "address"])
def test_ldmatrix(count: int, is_transposed: bool, by_address: bool) -> None:
    matrices = np.arange(count * 64, dtype=np.uint16).reshape(count, 8, 8)
    fragments = np.zeros((32, count, 2), np.uint16)
    row = "tile + threadIdx.x % ROWS * 8".replace("ROWS", str(8 * count))
    body = f"""
        __shared__ __align__(16) u16 tile[{count * 64}];
        for (int i = threadIdx.x; i < {count * 64}; i += 32) tile[i] = ((const u16 *)x)[i];
        __syncthreads();
        u32 r[{count}];
        ldmatrix_x{count}{"_trans" * is_transposed}(r, {f"smem_address({row})" if by_address else row});
        for (int i = 0; i < {count}; ++i) ((u32 *)y)[threadIdx.x * {count} + i] = r[i];"""
    run(body, matrices, matrices, fragments)
    for lane in range(32):
        for index, matrix in enumerate(matrices):
            seen = matrix.T if is_transposed else matrix
            assert (fragments[lane, index] == seen[lane // 4, 2 * (lane % 4) :][:2]).all()


# ---- Shuffles and votes -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("type_name", "dtype"), [("f32", np.float32), ("u32", np.uint32), ("i32", np.int32), ("f64", np.float64)]
)
def test_shuffles(type_name: str, dtype: type) -> None:
    values = (np.arange(32) * 3 + 1).astype(dtype)
    results = np.zeros((6, 32), dtype)
    body = f"""
        const {type_name} own = ((const {type_name} *)x)[threadIdx.x];
        {type_name} *out = ({type_name} *)y + threadIdx.x;
        out[0] = shuffle(own, 5);
        out[32] = shuffle_down(own, 4);
        out[64] = shuffle_up(own, 1);
        out[96] = shuffle_xor(own, 16);
        out[128] = warp_sum(own);
        out[160] = warp_max(own);"""
    run(body, values, values, results)
    lanes = np.arange(32)
    assert (results[0] == values[5]).all()
    assert (results[1] == values[np.where(lanes < 28, lanes + 4, lanes)]).all()
    assert (results[2] == values[np.where(lanes > 0, lanes - 1, lanes)]).all()
    assert (results[3] == values[lanes ^ 16]).all()
    assert (results[4] == values.sum()).all()
    assert (results[5] == values.max()).all()


def test_votes() -> None:
    results = np.zeros(3, np.uint32)
    body = """
        ((u32 *)y)[0] = warp_ballot(threadIdx.x % 3 == 0);
        ((u32 *)y)[1] = warp_any(threadIdx.x == 40) + 2 * warp_any(threadIdx.x == 7);
        ((u32 *)y)[2] = warp_all(threadIdx.x < 32) + 2 * warp_all(threadIdx.x < 31);"""
    run(body, results, results, results)
    assert results.tolist() == [sum(1 << lane for lane in range(0, 32, 3)), 2, 1]


# ---- Asynchronous copies ------------------------------------------------------------------------------------------

COPY = """
    __shared__ __align__(16) f32 tile[2][32 * 4];
    f32 *out = (f32 *)y + threadIdx.x * 4;
    cp_async16(&tile[0][threadIdx.x * 4], x + threadIdx.x * 16, n > 0);
    cp_async_commit();
    cp_async16(&tile[1][threadIdx.x * 4], w + threadIdx.x * 16);
    {commit}
    {wait}
    const int from = threadIdx.x * 4;
    for (int i = 0; i < 4; ++i) out[i] = tile[0][from + i], out[128 + i] = tile[1][from + i];"""


@pytest.mark.parametrize(
    ("wait", "commit", "arrived"),
    [
        ("", "cp_async_commit();", (False, False)),
        ("cp_async_wait<2>();", "cp_async_commit();", (False, False)),
        ("cp_async_wait<1>();", "cp_async_commit();", (True, False)),
        ("cp_async_wait<0>();", "cp_async_commit();", (True, True)),
        ("cp_async_wait<0>();", "", (True, False)),
    ],
)
def test_a_copy_arrives_when_it_is_waited_for(wait: str, commit: str, arrived: tuple[bool, bool]) -> None:
    rng = np.random.default_rng(5)
    x, w = rng.standard_normal((2, 128)).astype(np.float32)
    y = np.zeros((2, 128), np.float32)
    run(COPY.format(wait=wait, commit=commit), x, w, y, extras=[1])
    for seen, source, is_there in zip(y, (x, w), arrived, strict=True):
        assert (seen == source).all() if is_there else np.isnan(seen).all()


def test_a_copy_that_is_not_valid_leaves_zeros_and_reads_nothing() -> None:
    y = np.ones((2, 128), np.float32)
    body = COPY.format(wait="cp_async_wait<0>();", commit="cp_async_commit();").replace(
        "x + threadIdx.x * 16", "nullptr"
    )
    w = np.full(128, 7, np.float32)
    run(body, w, w, y, extras=[0])
    assert (y[0] == 0).all()
    assert (y[1] == 7).all()


# ---- Halves --------------------------------------------------------------------------------------------------------


def test_half_precision_is_rounded_to_nearest_even() -> None:
    rng = np.random.default_rng(6)
    scales = np.float32(2.0) ** rng.integers(-30, 20, 4096)
    x = np.concatenate(
        [rng.standard_normal(4096) * scales, [0.0, -0.0, np.inf, -np.inf, 65519.9, 65520, 1 + 2**-11]]
    )
    x = np.resize(x.astype(np.float32), 4128)
    halves = np.zeros((2, x.size), np.uint16)
    back = np.zeros((2, x.size), np.float32)
    body = """
        for (i64 i = threadIdx.x; i < n; i += 32) {
            const f32 value = ((const f32 *)x)[i];
            ((u16 *)w)[i] = to_f16(value);
            ((u16 *)w)[n + i] = to_bf16(value);
            ((f32 *)y)[i] = f16_high(pack_f16(0.0f, value)) + f16_low(pack_f16(0.0f, value));
            ((f32 *)y)[n + i] = bf16_low(pack_bf16(value, 1.0f));
        }"""
    run(body, x, halves, back, extras=[x.size])
    with np.errstate(over="ignore"):
        expected = x.astype(np.float16)
    assert (halves[0] == expected.view(np.uint16)).all()
    assert (halves[1] == x.astype(ml_dtypes.bfloat16).view(np.uint16)).all()
    assert (back[0] == expected.astype(np.float32)).all()
    assert (back[1] == x.astype(ml_dtypes.bfloat16).astype(np.float32)).all()


def test_rounding_to_tf32_is_to_nearest() -> None:
    x = np.random.default_rng(7).standard_normal(32).astype(np.float32)
    y = np.zeros(32, np.float32)
    run("((u32 *)y)[threadIdx.x] = to_tf32(((const f32 *)x)[threadIdx.x]);", x, x, y)
    assert (np.abs(y - x) <= np.abs(x) * 2.0**-11).all()
    assert not (y.view(np.uint32) & 0x1FFF).any()


# ---- Blocks -------------------------------------------------------------------------------------------------------


def test_every_thread_of_every_block_runs_once() -> None:
    y = np.zeros((3, 2, 5, 40), np.int32)
    body = """
        const u32 block = (blockIdx.z * gridDim.y + blockIdx.y) * gridDim.x + blockIdx.x;
        ((i32 *)y)[block * blockDim.x + threadIdx.x] += 1 + threadIdx.x;"""
    run(body, y, y, y, threads=40, groups=(5, 2, 3))
    assert (y == 1 + np.arange(40)).all()


def test_shared_arrays_begin_as_poison_in_every_block() -> None:
    y = np.zeros((2, 2), np.float32)
    body = """
        extern __shared__ f32 dynamic[];
        ((f32 *)y)[2 * blockIdx.x] = dynamic[3];
        ((f32 *)y)[2 * blockIdx.x + 1] = fixed<4>();
        dynamic[3] = 1.0f;"""
    before = "template <int size> FUNCTION f32 fixed() { __shared__ f32 a[size]; f32 v = a[1]; a[1] = 1; return v; }\n"
    run(body, y, y, y, groups=2, threads=1, shared=64, before=before)
    assert np.isnan(y).all()


def test_dynamic_shared_memory_declared_outside_of_functions() -> None:
    y = np.zeros(32, np.float32)
    before = """
        // what { and " do in a comment does not matter
        extern __shared__ __align__(16) unsigned char storage[];
        template <int offset> FUNCTION f32 *at() { return reinterpret_cast<f32 *>(storage) + offset; }\n"""
    body = (
        "at<2>()[threadIdx.x] = 5; __syncthreads(); ((f32 *)y)[threadIdx.x] = at<1>()[1 + (threadIdx.x ^ 1)];"
    )
    run(body, y, y, y, shared=160, before=before)
    assert (y == 5).all()


def test_a_missing_barrier_shows() -> None:
    """Each thread reads what its right neighbour writes; without a barrier most read poison."""
    y = np.zeros(64, np.float32)
    body = """
        __shared__ f32 a[64];
        a[threadIdx.x] = 1.0f;
        {barrier}
        ((f32 *)y)[threadIdx.x] = a[(threadIdx.x + 1) % 64];"""
    run(body.format(barrier=""), y, y, y, threads=64)
    assert np.isnan(y).any()
    run(body.format(barrier="__syncthreads();"), y, y, y, threads=64)
    assert (y == 1).all()


def test_threads_that_have_ended_are_not_waited_for() -> None:
    y = np.zeros(64, np.float32)
    body = """if (threadIdx.x >= 50) return;
        __shared__ f32 a[64];
        a[threadIdx.x] = 1.0f;
        __syncthreads();
        ((f32 *)y)[threadIdx.x] = warp_sum(a[49 - threadIdx.x]) > 0.0f || true;"""
    run(body, y, y, y, threads=64)
    assert y.sum() == 50
    with pytest.raises(DeviceError, match="14 threads ended without this barrier"):
        run(body.replace("warp_sum", ""), y, y, y, threads=64, dialect="plain")


def test_a_tiled_product_of_matrices() -> None:
    """64 x 64 x K by 128 threads: two stages of asynchronous copies, ldmatrix and mma."""
    K = 80
    before = """
        constexpr int K = 80, STEP = 16, ROW = STEP + 8;
        struct Tiles { u16 a[64 * ROW]; u16 b[64 * ROW]; };
        FUNCTION void fetch(Tiles &to, const u16 *a, const u16 *b, int step) {
            const int row = threadIdx.x / 2, part = threadIdx.x % 2 * 8;
            cp_async16(to.a + row * ROW + part, a + row * K + step * STEP + part, step * STEP < K);
            cp_async16(to.b + row * ROW + part, b + row * K + step * STEP + part, step * STEP < K);
            cp_async_commit();
        }\n"""
    body = """
        extern __shared__ __align__(16) u8 memory[];
        Tiles *tiles = reinterpret_cast<Tiles *>(memory);
        const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
        f32 d[8][4] = {};
        fetch(tiles[0], (const u16 *)x, (const u16 *)w, 0);
        for (int step = 0; step < (K + STEP - 1) / STEP; ++step) {
            fetch(tiles[(step + 1) % 2], (const u16 *)x, (const u16 *)w, step + 1);
            cp_async_wait<1>();
            __syncthreads();
            Tiles &tile = tiles[step % 2];
            u32 a[4];
            ldmatrix_x4(a, tile.a + (warp * 16 + lane % 16) * ROW + lane / 16 * 8);
            #pragma unroll
            for (int column = 0; column < 8; ++column) {
                u32 b[2];
                ldmatrix_x2(b, tile.b + (column * 8 + lane % 8) * ROW + lane / 8 % 2 * 8);
                mma_bf16(d[column], a, b);
            }
            __syncthreads();
        }
        for (int column = 0; column < 8; ++column)
            for (int i = 0; i < 4; ++i) {
                const int row = warp * 16 + lane / 4 + i / 2 * 8;
                ((f32 *)y)[row * 64 + column * 8 + lane % 4 * 2 + i % 2] = d[column][i];
            }"""
    rng = np.random.default_rng(8)
    A, B = (rng.standard_normal((64, K)).astype(ml_dtypes.bfloat16) for _ in range(2))
    C = np.zeros((64, 64), np.float32)
    run(body, A, B, C, threads=128, shared=2 * 2 * 64 * 24 * 2, before=before)
    assert np.allclose(C, A.astype(np.float64) @ B.astype(np.float64).T, rtol=1e-4, atol=1e-4)


def test_plain_sources_run_too() -> None:
    text = """
        KERNEL(64) void scale(GLOBAL const bf16 *x, GLOBAL i8 *y, GLOBAL u8 *workspace,
                              SCALE alpha, SCALE beta, i64 n) {
            LOCAL f32 tile[64];
            const i64 i = GROUP_ID(0) * THREADS + THREAD_ID;
            tile[THREAD_ID] = i < n ? LOAD(bf16, x, i) : 0.0f;
            BARRIER();
            if (i < n) STORE(i8, y, i, alpha * exp(tile[THREAD_ID]));
        }"""
    x = np.linspace(-3, 3, 100).astype(ml_dtypes.bfloat16)
    y = np.zeros(100, np.int8)
    kernel = DEVICE.kernel(Source("scale", text), [Launch("scale", 2, 64)], 2, [100])
    kernel(None, [x.ctypes.data, y.ctypes.data], 10.0, 0.0, 0)
    assert (y == np.clip(np.rint(10 * np.exp(x.astype(np.float64))), -128, 127)).all()


# ---- Errors become exceptions -------------------------------------------------------------------------------------

ERRORS = {
    "one warp misses a barrier that others pass twice": (
        "if (threadIdx.x < 32) __syncthreads();\n__syncthreads();",
        "thread 32, line 2: barrier divergence: 32 threads wait at the barrier of line 1",
    ),
    "different barriers": (
        "if (threadIdx.x < 32) __syncthreads();\nelse __syncthreads();",
        "barrier divergence",
    ),
    "a lane misses a warp instruction": (
        "if (threadIdx.x % 32) shuffle_down(1.0f, 1);\n__syncthreads();",
        "barrier divergence: 2 threads .thread 0 and others. wait at line 2 for all of the block; "
        "62 threads .* wait at line 1 for a shuffle",
    ),
    "lanes at different instructions": (
        "if (threadIdx.x % 2) shuffle_down(1.0f, 1); else warp_ballot(true);",
        "warp divergence: this lane is at a shuffle, 1 others at a vote",
    ),
    "mma without all lanes": (
        "if (threadIdx.x % 32 == 5) return; f32 d[4] = {}; u32 a[4] = {}, b[2] = {}; mma_f16(d, a, b);",
        "needs all 32 lanes of a warp: 31",
    ),
    "cp_async misaligned in shared memory": (
        "__shared__ __align__(16) u8 a[64]; cp_async16(a + 8, x);",
        "line 1: cp_async: misaligned address .* multiple of 16",
    ),
    "cp_async misaligned in global memory": (
        "__shared__ __align__(16) u8 a[64]; cp_async16(a, x + 1);",
        "cp_async: misaligned address .* global memory",
    ),
    "cp_async to global memory": ("cp_async16(y, x);", "out of range of shared memory"),
    "ldmatrix misaligned": (
        "__shared__ __align__(16) u16 a[600]; u32 r[4]; ldmatrix_x4(r, a + threadIdx.x % 32 * 8 + (threadIdx.x == 9));",
        "thread 9, line 1: ldmatrix: misaligned",
    ),
    "ldmatrix out of range": (
        "extern __shared__ __align__(16) u16 a[]; u32 r[4]; ldmatrix_x4(r, a + (threadIdx.x % 32 + 1) * 8);",
        r"thread 31, line 1: ldmatrix: address .* out of range of shared memory \(byte 512 of the 512",
    ),
    "load16 misaligned": ("((u32 *)y)[0] = load16(x + 4).x;", "load16: misaligned address"),
    "a vector by a misaligned pointer": (
        "*(uint4 *)(y + 8) = *(const uint4 *)x;",
        "line 1: misaligned address",
    ),
    "read far behind dynamic shared memory": (
        "extern __shared__ f32 a[]; ((f32 *)y)[0] = a[128 + 32 + n];",
        "640 bytes behind the start of dynamic shared memory, which has 512",
    ),
    "write right behind dynamic shared memory": (
        "extern __shared__ f32 a[]; a[125 + n] = 0.0f;",
        "writes behind the end of dynamic shared memory, 500 bytes",
    ),
    "write in front of dynamic shared memory": (
        "extern __shared__ f32 a[]; a[n - 1] = 0.0f;",
        "in front of dynamic",
    ),
    "index of a local array": (
        "f32 d[4]; d[4 + n] = 0; ((f32 *)y)[0] = d[n];",
        "line 1: index out of the bounds",
    ),
    "overflow of 32 bits": (
        "i32 i = (i32)n + 70000; ((i32 *)y)[0] = i * i;",
        "line 1: signed overflow of a multipl",
    ),
    "a pointer to nothing": ("((f32 *)nullptr)[n] = 1.0f;", "invalid or misaligned address .* at body:1"),
    "division by zero": ("((i32 *)y)[0] = 5 / (i32)n;", "division by zero"),
    "too deep": (
        "f32 a[80000]; for (int i = 79999; i >= 0; --i) a[i] = i; ((f32 *)y)[n] = a[(u32)n];",
        "local variables",
    ),
    "part of a warp": ("__syncwarp(1);", "a part of a warp"),
}


@pytest.mark.parametrize("case", ERRORS)
def test_errors_are_reported(case: str) -> None:
    body, words = ERRORS[case]
    shared = 500 if "500" in words else 512
    buffer = np.zeros(64, np.float32)
    aligned = buffer[(-buffer.ctypes.data // 4) % 4 :]
    with pytest.raises(DeviceError, match=words):
        run(body, aligned, aligned, aligned, threads=64, shared=shared)
    # and nothing of it is left
    run("((f32 *)y)[threadIdx.x] = threadIdx.x;", buffer, buffer, buffer)
    assert (buffer[:32] == np.arange(32)).all()


def test_a_kernel_without_an_end() -> None:
    with pytest.raises(DeviceError, match="does not end within its time"):
        run("for (volatile int i = 0; i < 1; i = 0) {}", device=EmulatedCudaDevice(seconds=0.2))


def test_launches_that_do_not_fit_their_kernel() -> None:
    text = f"KERNEL2(2 * HALF, 1) void body{HEAD} {{}}"
    source = Source("body", text, (("HALF", 32),), dialect="cuda")
    DEVICE.kernel(source, [Launch("body", 1, 64)], 3, [0])
    with pytest.raises(DeviceError, match="declared for 64 threads and launched with 32"):
        DEVICE.kernel(source, [Launch("body", 1, 32)], 3, [0])
    with pytest.raises(CompileError, match="takes 7 arguments and is launched with 8"):
        DEVICE.kernel(source, [Launch("body", 1, 64)], 3, [0, 1])
    with pytest.raises(CompileError, match="no kernel other"):
        DEVICE.kernel(source, [Launch("other", 1, 64)], 3, [0])
    with pytest.raises(DeviceError, match="bytes of shared memory"):
        DEVICE.kernel(source, [Launch("body", 1, 64, 228 << 10)], 3, [0])
    with pytest.raises(CompileError, match="not_a_name"):
        run("not_a_name();")

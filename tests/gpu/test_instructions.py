"""The instructions that CUDA kernels are written with do what they say, on the GPU and emulated."""

from __future__ import annotations

import re
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from emulation.device import EmulatedCudaDevice, missing
from jitdnn.devices.gpu import Source, read_text
from one_kernel import run  # conftest.py makes it importable

# ---- mma: fragments gathered from matrices in memory, element by element, as the PTX manual lays them out ----------


def mma(
    device: Any, name: str, K: int, packed: int, bits: str, A: np.ndarray, B: np.ndarray, D: np.ndarray
) -> None:
    """D += A B; registers hold `packed` elements of A or B, taken as unsigned integers of type `bits`."""
    width, sums = 32 // packed, "i32" if name == "mma_s8" else "f32"
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
    run(device, body, A, B, D)


@pytest.mark.parametrize(
    ("name", "dtype"), [("mma_bf16", ml_dtypes.bfloat16), ("mma_f16", np.float16)], ids=["bf16", "f16"]
)
def test_mma_of_half_precision(cuda_device: Any, name: str, dtype: type) -> None:
    rng = np.random.default_rng(1)
    A, B = rng.standard_normal((16, 16)).astype(dtype), rng.standard_normal((16, 8)).astype(dtype)
    C = rng.standard_normal((16, 8)).astype(np.float32)
    D = C.copy()
    mma(cuda_device, name, 16, 2, "u16", A, B, D)
    assert np.allclose(D, C + A.astype(np.float64) @ B.astype(np.float64), rtol=1e-5, atol=3e-5)


def test_mma_of_tf32_ignores_the_lowest_bits(cuda_device: Any) -> None:
    rng = np.random.default_rng(2)
    A, B = rng.standard_normal((16, 8)).astype(np.float32), rng.standard_normal((8, 8)).astype(np.float32)
    D = np.zeros((16, 8), np.float32)
    mma(cuda_device, "mma_tf32", 8, 1, "u32", A, B, D)

    def cut(values: np.ndarray) -> np.ndarray:
        return (values.view(np.uint32) & 0xFFFFE000).view(np.float32).astype(np.float64)

    assert np.allclose(D, cut(A) @ cut(B), rtol=1e-5, atol=3e-5)
    assert not np.allclose(D, A.astype(np.float64) @ B, rtol=1e-5, atol=3e-5)


def test_mma_of_signed_bytes(cuda_device: Any) -> None:
    rng = np.random.default_rng(3)
    A, B = rng.integers(-128, 128, (16, 32)).astype(np.int8), rng.integers(-128, 128, (32, 8)).astype(np.int8)
    C = rng.integers(-1000, 1000, (16, 8)).astype(np.int32)
    D = C.copy()
    mma(cuda_device, "mma_s8", 32, 4, "u8", A, B, D)
    assert np.array_equal(D, C + A.astype(np.int64) @ B.astype(np.int64))


def test_mma_of_doubles(cuda_device: Any) -> None:
    rng = np.random.default_rng(4)
    A, B, C = rng.standard_normal((8, 4)), rng.standard_normal((4, 8)), rng.standard_normal((8, 8))
    D = C.copy()
    body = """
        const int g = threadIdx.x / 4, t = threadIdx.x % 4;
        f64 *D = (f64 *)y, d[2] = {D[g * 8 + 2 * t], D[g * 8 + 2 * t + 1]};
        mma_f64(d, ((const f64 *)x)[g * 4 + t], ((const f64 *)w)[t * 8 + g]);
        D[g * 8 + 2 * t] = d[0];
        D[g * 8 + 2 * t + 1] = d[1];"""
    run(cuda_device, body, A, B, D)
    assert np.allclose(D, C + A @ B, rtol=1e-13)


# ---- Shared memory and lanes -------------------------------------------------------------------------------------


@pytest.mark.parametrize("is_transposed", [False, True], ids=["plain", "trans"])
@pytest.mark.parametrize("count", [2, 4])
@pytest.mark.parametrize("by_address", [False, True], ids=["pointer", "address"])
def test_ldmatrix(cuda_device: Any, count: int, is_transposed: bool, by_address: bool) -> None:
    matrices = np.arange(count * 64, dtype=np.uint16).reshape(count, 8, 8)
    fragments = np.zeros((32, count, 2), np.uint16)
    row = f"tile + threadIdx.x % {8 * count} * 8"
    body = f"""
        __shared__ __align__(16) u16 tile[{count * 64}];
        for (int i = threadIdx.x; i < {count * 64}; i += 32) tile[i] = ((const u16 *)x)[i];
        __syncthreads();
        u32 r[{count}];
        ldmatrix_x{count}{"_trans" * is_transposed}(r, {f"smem_address({row})" if by_address else row});
        for (int i = 0; i < {count}; ++i) ((u32 *)y)[threadIdx.x * {count} + i] = r[i];"""
    run(cuda_device, body, matrices, matrices, fragments)
    for lane in range(32):
        for index, matrix in enumerate(matrices):
            seen = matrix.T if is_transposed else matrix
            assert (fragments[lane, index] == seen[lane // 4, 2 * (lane % 4) :][:2]).all()


@pytest.mark.parametrize(
    ("name", "dtype"),
    [("f32", np.float32), ("f64", np.float64), ("i32", np.int32), ("u32", np.uint32), ("i64", np.int64)],
)
def test_shuffles(cuda_device: Any, name: str, dtype: type) -> None:
    values = (np.arange(32) * 3 + 1).astype(dtype)
    results = np.zeros((7, 32), dtype)
    body = f"""
        const {name} own = ((const {name} *)x)[threadIdx.x];
        {name} *out = ({name} *)y + threadIdx.x;
        out[0] = shuffle(own, 5);
        out[32] = shuffle_down(own, 4);
        out[64] = shuffle_up(own, 1);
        out[96] = shuffle_xor(own, 16);
        out[128] = warp_sum(own);
        out[160] = warp_max(own);
        out[192] = warp_min(own);"""
    run(cuda_device, body, values, values, results)
    lanes = np.arange(32)
    assert (results[0] == values[5]).all()
    assert (results[1] == values[np.where(lanes < 28, lanes + 4, lanes)]).all()
    assert (results[2] == values[np.where(lanes > 0, lanes - 1, lanes)]).all()
    assert (results[3] == values[lanes ^ 16]).all()
    assert (results[4] == values.sum()).all()
    assert (results[5] == values.max()).all()
    assert (results[6] == values.min()).all()


def test_votes(cuda_device: Any) -> None:
    results = np.zeros(3, np.uint32)
    body = """
        ((u32 *)y)[0] = warp_ballot(threadIdx.x % 3 == 0);
        ((u32 *)y)[1] = warp_any(threadIdx.x == 40) + 2 * warp_any(threadIdx.x == 7);
        ((u32 *)y)[2] = warp_all(threadIdx.x < 32) + 2 * warp_all(threadIdx.x < 31);"""
    run(cuda_device, body, results)
    assert results.tolist() == [sum(1 << lane for lane in range(0, 32, 3)), 2, 1]


@pytest.mark.parametrize("size", [4, 8, 16])
@pytest.mark.parametrize("by_address", [False, True], ids=["pointer", "address"])
def test_asynchronous_copies(cuda_device: Any, size: int, by_address: bool) -> None:
    """Every third is not valid, and its source no address."""
    to = f"{'smem_address' * by_address}(tile + threadIdx.x * {size})"
    body = f"""
        __shared__ __align__(16) u8 tile[32 * {size}];
        const bool valid = threadIdx.x % 3 != 0;
        cp_async{size}({to}, valid ? x + threadIdx.x * {size} : nullptr, valid);
        cp_async_commit();
        cp_async_commit();
        cp_async_wait<1>();
        __syncthreads();
        for (int i = 0; i < {size}; ++i) y[threadIdx.x * {size} + i] = tile[threadIdx.x * {size} + i];"""
    x = np.random.default_rng(5).integers(1, 255, (32, size)).astype(np.uint8)
    y = np.full_like(x, 255)
    run(cuda_device, body, x, x, y)
    assert np.array_equal(y, np.where(np.arange(32)[:, None] % 3, x, 0))


def test_wide_loads_and_stores(cuda_device: Any) -> None:
    body = """
        const int i = threadIdx.x;
        store16(y + 64 * i, load16(x + 64 * i));
        store16_streaming(y + 64 * i + 16, load16_streaming(x + 64 * i + 16));
        store8(y + 64 * i + 32, load8(x + 64 * i + 32));
        store4(y + 64 * i + 40, load4(x + 64 * i + 40));"""
    x = np.arange(32 * 64).astype(np.uint8).reshape(32, 64)
    y = np.zeros_like(x)
    run(cuda_device, body, x, x, y)
    assert np.array_equal(y[:, :44], x[:, :44])
    assert not y[:, 44:].any()


# ---- Numbers ------------------------------------------------------------------------------------------------------


def test_half_precision_is_rounded_to_nearest_even(cuda_device: Any) -> None:
    rng = np.random.default_rng(6)
    some = rng.standard_normal(4096) * 2.0 ** rng.integers(-30, 20, 4096)
    edges = [0.0, -0.0, np.inf, -np.inf, 65519.9, 65520, 1 + 2**-11, 1 + 3 * 2**-11, 2**-25, 3 * 2**-25]
    x = np.concatenate([some, edges]).astype(np.float32)
    halves, back = np.zeros((2, x.size), np.uint16), np.zeros((2, x.size), np.float32)
    start = "for (i64 i = threadIdx.x; i < n; i += 32) { const f32 value = ((const f32 *)x)[i]; "
    to_half = "((u16 *)y)[i] = to_f16(value); ((u16 *)y)[n + i] = to_bf16(value); }"
    from_half = """
            const u32 pair = pack_f16(value, value), other = pack_bf16(value, 1.0f);
            ((f32 *)y)[i] = f16_high(pair) == f16_low(pair) ? to_f32_f16((u16)pair) : -1.0f;
            ((f32 *)y)[n + i] = bf16_high(other) == 1.0f ? bf16_low(other) : -1.0f; }"""
    run(cuda_device, start + to_half, x, x, halves, n=x.size)
    run(cuda_device, start + from_half, x, x, back, n=x.size)
    with np.errstate(over="ignore"):
        expected = x.astype(np.float16)
    assert np.array_equal(halves[0], expected.view(np.uint16))
    assert np.array_equal(halves[1], x.astype(ml_dtypes.bfloat16).view(np.uint16))
    assert np.array_equal(back[0], expected.astype(np.float32))
    assert np.array_equal(back[1], x.astype(ml_dtypes.bfloat16).astype(np.float32))


def test_every_number_of_half_precision_is_read(cuda_device: Any) -> None:
    x = np.arange(65536).astype(np.uint16)
    y = np.zeros((2, x.size), np.float32)
    body = """
        for (i64 i = threadIdx.x; i < n; i += 32) {
            ((f32 *)y)[i] = to_f32_f16(((const u16 *)x)[i]);
            ((f32 *)y)[n + i] = to_f32_bf16(((const u16 *)x)[i]);
        }"""
    run(cuda_device, body, x, x, y, n=x.size)
    assert np.array_equal(y[0], x.view(np.float16).astype(np.float32), equal_nan=True)
    assert np.array_equal(y[1], x.view(ml_dtypes.bfloat16).astype(np.float32), equal_nan=True)


def test_rounding_to_tf32_is_to_nearest(cuda_device: Any) -> None:
    x = np.random.default_rng(7).standard_normal(32).astype(np.float32)
    y = np.zeros(32, np.float32)
    run(cuda_device, "((u32 *)y)[threadIdx.x] = to_tf32(((const f32 *)x)[threadIdx.x]);", x, x, y)
    assert (np.abs(y - x) <= np.abs(x) * 2.0**-11).all()
    assert not (y.view(np.uint32) & 0x1FFF).any()


def test_powers_of_two(cuda_device: Any) -> None:
    x = np.linspace(-125, 127, 32).astype(np.float32)
    x[0] = -200
    y = np.zeros(32, np.float32)
    run(cuda_device, "((f32 *)y)[threadIdx.x] = exp2_approximate(((const f32 *)x)[threadIdx.x]);", x, x, y)
    assert np.allclose(y, np.exp2(x.astype(np.float64)), rtol=1e-6, atol=2.0**-126)


def test_approximate_reciprocal(cuda_device: Any) -> None:
    x = np.linspace(-9, 9, 32).astype(np.float32)
    x[:2] = np.inf, 1e-30
    y = np.full(32, np.nan, np.float32)
    run(
        cuda_device,
        "((f32 *)y)[threadIdx.x] = reciprocal_approximate(((const f32 *)x)[threadIdx.x]);",
        x,
        x,
        y,
    )
    assert np.allclose(y, 1 / x.astype(np.float64), rtol=2.0**-22)


def test_largest_among_blocks(cuda_device: Any) -> None:
    x = np.random.default_rng(0).integers(0, 2**32, 32, np.uint32)
    y = np.zeros(32, np.uint32)
    run(cuda_device, "largest_among_blocks((u32 *)y, ((const u32 *)x)[threadIdx.x]);", x, x, y)
    assert y[0] == x.max()


def test_bytes(cuda_device: Any) -> None:
    y = np.zeros(3, np.int32)
    body = """
        ((u32 *)y)[0] = byte_permute(0x33221100u, 0x77665544u, 0x0527u);
        ((u32 *)y)[1] = byte_permute(0x00008000u, 0u, 0x0001u) & 0xffu;
        ((i32 *)y)[2] = dot4_s8(0x80017f02u, 0x03fffe05u, 100);"""
    run(cuda_device, body, y)
    assert y.tolist() == [0x00552277, 0x80, 100 + 2 * 5 - 127 * 2 - 1 - 128 * 3]


# ---- Together -----------------------------------------------------------------------------------------------------


def test_a_tiled_product_of_matrices(cuda_device: Any) -> None:
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
    run(cuda_device, body, A, B, C, threads=128, shared=2 * 2 * 64 * 24 * 2, before=before)
    assert np.allclose(C, A.astype(np.float64) @ B.astype(np.float64).T, rtol=1e-4, atol=1e-4)


EVERY = """
KERNEL2(128, 2) void every(const u8 *x, u8 *y, u8 *workspace, SCALE alpha, SCALE beta, i64 n) {
    extern __shared__ __align__(16) u8 memory[];
    wait_for_launch_before(), let_next_begin(), begin_launch();
    const u8 *row = memory + threadIdx.x % 32 * 16;
    cp_async16(memory, x, n > 3), cp_async8(memory + 16, x), cp_async4(smem_address(memory) + 32, x);
    cp_async_commit();
    cp_async_wait<0>();
    __syncthreads();
    u32 a[4], b[2], a_trans[4], b_trans[2];
    ldmatrix_x4(a, row), ldmatrix_x2(b, row);
    ldmatrix_x4_trans(a_trans, smem_address(row)), ldmatrix_x2_trans(b_trans, row);
    f32 d[4] = {};
    i32 whole[4] = {};
    f64 exact[2] = {};
    mma_bf16(d, a, b), mma_f16(d, a_trans, b_trans), mma_tf32(d, a, b_trans);
    mma_s8(whole, a, b), mma_f64(exact, alpha, d[0]);
    f32 sum = warp_sum(d[1]) + warp_max(d[2]) + shuffle(d[3], 3) + shuffle_down(d[0], 1);
    sum += warp_min(whole[0]) + shuffle_up(exact[0], 1) + shuffle_xor(whole[1], 1) + warp_sum(exact[1]);
    sum += warp_ballot(sum > 0) + warp_any(sum > 4) + warp_all(sum > 5) + exp2_approximate(sum);
    sum += reciprocal_approximate(minimum_rough(sum, 4)), sum = maximum_rough(sum, -4);
    largest_among_blocks((u32 *)workspace + 1, 7);
    sum += to_f32_bf16(to_bf16(sum)) + to_f32_f16(to_f16(sum));
    sum += bf16_low(a[0]) + bf16_high(a[0]) + f16_low(a[1]) + f16_high(a[1]) + to_tf32(sum);
    store16_streaming(y, load16(x)), store16(y + 16, load16_streaming(x + 16));
    store16(y, load16_shared_cache(x)), store16(y, load16_once(x)), store8(y, load8_once(x));
    arrive_among_blocks((u32 *)workspace), wait_among_blocks((u32 *)workspace, 1);
    signal_blocks((u32 *)workspace), wait_for_signals((u32 *)workspace, 2);
    store8(y + 32, load8(x)), store4(y + 40, load4(x));
    store8_whole(y, load8_wide(x)), store16_whole(y + 16, load16_wide(x));
    ((u32 *)y)[20] = byte_permute(a[0], a[1], 0x3210) + dot4_s8(a[0], a[1], 3);
    ((u32 *)y)[21] = pack_bf16(sum, d[1]) + pack_f16(sum, d[2]);
    STORE(bf16, (bf16 *)y, n, sum), STORE(f16, (f16 *)y, n, LOAD(f16, (const f16 *)x, n));
    STORE(i8, (i8 *)y, n, sum);
}"""


def test_every_instruction_compiles(any_architecture: Any) -> None:
    assert any_architecture.compile(Source("every", EVERY, dialect="cuda"))


def test_the_emulator_knows_every_instruction() -> None:
    if reason := missing():
        pytest.skip(reason)
    assert EmulatedCudaDevice().compile(Source("every", EVERY, dialect="cuda"))
    instructions = read_text("cuda/prelude", "instructions.cuh")
    declared = set(re.findall(r"^ *FUNCTION \w+ (\w+)\(", instructions, re.MULTILINE))
    assert declared <= set(re.findall(r"\w+", EVERY))

"""The instructions of sm_90a on the emulated CUDA device: copies of boxes, mbarriers, products of warpgroups.

What computes numbers is checked against NumPy, and runs on a real device of that kind, too.
"""

from __future__ import annotations

import math
import re
from itertools import product
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from emulation.device import EmulatedCudaDevice, missing  # conftest.py makes it importable
from jitdnn.devices.tensor_map import TensorMap
from jitdnn.errors import DeviceError
from one_hopper_kernel import DTYPES, row_major, run, unswizzled

pytestmark = pytest.mark.skipif(missing() is not None, reason=str(missing()))

DEVICE = EmulatedCudaDevice(seconds=5, finds_races=False)


def element(x: np.ndarray, extents: tuple[int, ...], position: tuple[int, ...]) -> Any:
    is_inside = all(0 <= at < extent for at, extent in zip(position, extents, strict=True))
    return x[position[::-1]] if is_inside else 0


# ---- Copies of boxes ----------------------------------------------------------------------------------------------

COPY = """
    const u32 bytes = (u32)tables.numbers[0], barrier = shared + bytes;
    if (threadIdx.x == 0) {
        tma_prefetch_map(tables.maps[0]);
        mbarrier_init(barrier, 1);
        mbarrier_init_fence();
    }
    __syncthreads();
    if (threadIdx.x == 0) {
        mbarrier_arrive_expect(barrier, bytes);
        LOAD_A_BOX
    }
    mbarrier_wait(barrier, 0);
    for (u32 i = threadIdx.x * 16; i < bytes; i += 16 * blockDim.x) store16(y + i, shared_load16(shared + i));
"""


def copied(device: Any, x: np.ndarray, tensor_map: TensorMap, load: str) -> np.ndarray:
    y = np.zeros(math.prod(tensor_map.box), x.dtype)
    body = COPY.replace("LOAD_A_BOX", load)
    run(device, body, x, x, y, (tensor_map,), shared=y.nbytes + 8, numbers=(y.nbytes,))
    return unswizzled(y, tensor_map.row_bytes)


@pytest.mark.parametrize("start", [(0, 0, 0), (8, -3, 1), (72, 6, 2), (-16, 20, 0)])
@pytest.mark.parametrize(
    ("dtype", "row"), [("bf16", 128), ("f32", 128), ("f32", 64), ("bf16", 32), ("i8", 64), ("f8e4m3", 128)]
)
def test_a_tiled_copy_is_zero_outside_of_the_tensor(
    hopper: Any, dtype: str, row: int, start: tuple[int, ...]
) -> None:
    rng = np.random.default_rng(3)
    x = (16 * rng.standard_normal((3, 9, 112))).astype(DTYPES[dtype])
    start = (-(-start[0] * x.itemsize // 16) * 16 // x.itemsize, *start[1:])  # a multiple of 16 bytes
    box = (row // x.itemsize, 8, 2)
    tensor_map = row_major(0, x, box, extents=(100, 9, 3))
    y = copied(
        hopper, x, tensor_map, f"tma_load_3d(shared, tables.maps[0], barrier, {', '.join(map(str, start))});"
    )
    places = product(*(range(at, at + extent) for at, extent in zip(start[::-1], box[::-1], strict=True)))
    expected = [element(x, (100, 9, 3), place[::-1]) for place in places]
    assert np.array_equal(y.ravel(), np.array(expected, x.dtype))


def test_a_tiled_copy_of_five_axes(hopper: Any) -> None:
    x = np.arange(2 * 3 * 4 * 5 * 64).reshape(2, 3, 4, 5, 64).astype(np.float16)
    tensor_map = row_major(0, x, (64, 4, 2, 2, 1))
    y = copied(hopper, x, tensor_map, "tma_load_5d(shared, tables.maps[0], barrier, 0, 2, 3, 1, 1);")
    expected = np.zeros((2, 2, 4, 64), np.float16)
    expected[:, :1, :3] = x[1, 1:3, 3:4, 2:5]
    assert np.array_equal(y, expected.reshape(-1, 64))


def im2col(x: np.ndarray, tensor_map: TensorMap, start: tuple[int, ...], taps: tuple[int, ...]) -> np.ndarray:
    """Pixels of an array (n, ..., w, c) as the copy engine walks along them."""
    assert tensor_map.corners is not None
    extents, rows = tensor_map.extents, []
    bases = [
        range(lower, extent + upper, step)
        for lower, upper, extent, step in zip(
            *tensor_map.corners, extents[1:-1], tensor_map.steps[1:-1], strict=True
        )
    ]
    channel, *first, image = start
    n = np.ravel_multi_index(
        [axis.index(at) for axis, at in zip(bases, first, strict=True)][::-1],
        [len(axis) for axis in bases][::-1],
    )
    windows = [(*place[::-1],) for place in product(*bases[::-1])]
    for count in range(n, n + tensor_map.box[1]):
        place = [at + tap for at, tap in zip(windows[count % len(windows)], taps, strict=True)]
        place.append(image + count // len(windows))
        rows.append([element(x, extents, (c, *place)) for c in range(channel, channel + tensor_map.box[0])])
    return np.array(rows, x.dtype)


@pytest.mark.parametrize("channels", [32, 16, 8])
@pytest.mark.parametrize("start", [(0, -1, -1, 0), (24, 3, 1, 1), (0, 1, 3, 2)])
def test_im2col_of_images_with_stride_and_padding(hopper: Any, start: tuple[int, ...], channels: int) -> None:
    """A filter of 3 x 3 over 6 x 7 pixels with stride 2 and padding 1; tile ends run into the next image and behind."""
    x = np.random.default_rng(1).standard_normal((2, 6, 7, 40)).astype(np.float32)
    tensor_map = row_major(0, x, (channels, 24), steps=(1, 2, 2, 1), corners=((-1, -1), (-1, -1)))
    for taps in [(0, 0), (2, 1), (1, 2)]:
        places = ", ".join(map(str, (*start, *taps)))
        y = copied(hopper, x, tensor_map, f"tma_load_im2col_4d(shared, tables.maps[0], barrier, {places});")
        assert np.array_equal(y, im2col(x, tensor_map, start, taps))


def test_im2col_of_lines(hopper: Any) -> None:
    """Two taps far apart, with padding as wide."""
    x = np.random.default_rng(1).standard_normal((2, 500, 64)).astype(np.float16)
    tensor_map = row_major(0, x, (64, 64), steps=(1, 2, 1), corners=((-300,), (-300,)))
    for start, tap in [((0, -300, 0), 300), ((0, 180, 1), 600), ((0, 100, 0), 0)]:
        places = ", ".join(map(str, (*start, tap)))
        y = copied(hopper, x, tensor_map, f"tma_load_im2col_3d(shared, tables.maps[0], barrier, {places});")
        assert np.array_equal(y, im2col(x, tensor_map, start, (tap,)))


def test_im2col_of_volumes(hopper: Any) -> None:
    x = np.random.default_rng(1).standard_normal((2, 4, 5, 6, 64)).astype(ml_dtypes.bfloat16)
    tensor_map = row_major(0, x, (64, 64), steps=(1, 1, 2, 1, 1), corners=((-2, -1, 0), (0, -1, -1)))
    start, taps = (0, 1, 1, 0, 0), (2, 0, 1)
    places = ", ".join(map(str, (*start, *taps)))
    y = copied(hopper, x, tensor_map, f"tma_load_im2col_5d(shared, tables.maps[0], barrier, {places});")
    assert np.array_equal(y, im2col(x, tensor_map, start, taps))


# ---- Products -----------------------------------------------------------------------------------------------------

MULTIPLY = """
    const u32 barrier = shared + 8192 + N * 128, from = shared + 8192;
    if (threadIdx.x == 0) {
        mbarrier_init(barrier, 1);
        mbarrier_init_fence();
    }
    __syncthreads();
    if (threadIdx.x == 0) {
        mbarrier_arrive_expect(barrier, 8192 + N * 128);
        tma_load_3d(shared, tables.maps[0], barrier, 0, 0, 0);
        if (IS_B_MN_MAJOR)
            for (int n = 0; n < N; n += 64) tma_load_3d(from + n * 128, tables.maps[1], barrier, n, 0, 0);
        else
            tma_load_3d(from, tables.maps[1], barrier, 0, 0, 0);
    }
    mbarrier_wait(barrier, 0);
    f32 d[N / 2];
    for (int i = 0; i < N / 2; ++i) d[i] = 100.0f;
    wgmma_fence();
    for (int k = 0; k < 4; ++k)
        wgmma_TYPE<IS_A_MN_MAJOR, IS_B_MN_MAJOR>(d, wgmma_descriptor(shared + k * (IS_A_MN_MAJOR ? 2048 : 32), 8192),
            wgmma_descriptor(from + k * (IS_B_MN_MAJOR ? 2048 : 32), 8192), k > 0 || IS_ADDED);
    wgmma_commit();
    wgmma_wait<0>();
    f32 *out = (f32 *)y + (16 * (threadIdx.x / 32) + threadIdx.x % 32 / 4) * N + 2 * (threadIdx.x % 4);
    for (int i = 0; i < N / 2; ++i) out[i % 4 / 2 * 8 * N + i / 4 * 8 + i % 2] = d[i];
"""


@pytest.mark.parametrize(
    ("kind", "n", "is_a_mn_major", "is_b_mn_major"),
    [
        ("bf16", 64, False, False), ("bf16", 128, False, True), ("bf16", 256, True, False), ("f16", 192, True, True),
        ("f16", 96, False, False), ("tf32", 128, False, False), ("tf32", 96, False, False),
        ("bf16", 160, True, False), ("tf32", 160, False, False), ("f16", 224, True, False), ("tf32", 224, False, False),
    ],
)  # fmt: skip
def test_products(hopper: Any, kind: str, n: int, is_a_mn_major: bool, is_b_mn_major: bool) -> None:
    rng = np.random.default_rng(n)
    dtype = DTYPES["f32" if kind == "tf32" else kind]
    depth = 128 // np.dtype(dtype).itemsize
    a = rng.integers(-8, 9, (64, depth)).astype(dtype)
    b = rng.integers(-8, 9, (n, depth)).astype(dtype)
    x = (a.T if is_a_mn_major else a).reshape(1, -1, 64 if is_a_mn_major else depth).copy()
    w = (b.T if is_b_mn_major else b).reshape(1, -1, n if is_b_mn_major else depth).copy()
    if kind == "tf32":
        x += np.float32(2**-12)  # bits that tf32 has no room for are dropped
    maps = (
        row_major(0, x, (depth, 64, 1)),
        row_major(1, w, (depth, depth if is_b_mn_major else n, 1)),
    )
    for is_added in (False, True):
        body = MULTIPLY.replace("IS_ADDED", str(is_added).lower()).replace("TYPE", kind)
        body = body.replace("IS_A_MN_MAJOR", str(is_a_mn_major).lower())
        body = re.sub(r"\bN\b", str(n), body.replace("IS_B_MN_MAJOR", str(is_b_mn_major).lower()))
        y = np.zeros((64, n), np.float32)
        run(hopper, body, x, w, y, maps)
        if kind == "tf32":
            a = (x.view(np.uint32) & ~np.uint32(0x1FFF)).view(np.float32)[0]
        expected = a.astype(np.float64) @ b.astype(np.float64).T + 100 * is_added
        assert np.allclose(y, expected, rtol=1e-6, atol=1e-2 if kind == "tf32" else 0)


@pytest.mark.parametrize("n", [64, 192, 256])
@pytest.mark.parametrize(
    ("first", "second"),
    [("i8", "i8"), ("f8e4m3", "f8e4m3"), ("f8e4m3", "f8e5m2"), ("f8e5m2", "f8e4m3"), ("f8e5m2", "f8e5m2")],
)
def test_products_of_bytes(hopper: Any, first: str, second: str, n: int) -> None:
    """Integers over their whole range; reals whose sums need no more than the 14 bits that are kept."""
    rng, is_integer = np.random.default_rng(n), first == "i8"
    most = 128 if is_integer else 4
    a, b = (
        rng.integers(-most, most, (rows, 128)).astype(DTYPES[dtype])
        for rows, dtype in ((64, first), (n, second))
    )
    maps = (
        row_major(0, a.reshape(1, 64, 128), (128, 64, 1)), row_major(1, b.reshape(1, n, 128), (128, n, 1))
    )  # fmt: skip
    name = "s8" if is_integer else f"{first.removeprefix('f8')}_{second.removeprefix('f8')}"
    for is_added in (False, True):
        body = MULTIPLY.replace("IS_ADDED", str(is_added).lower()).replace("TYPE", name)
        body = re.sub(r"\bN\b", str(n), re.sub("IS_[AB]_MN_MAJOR", "false", body))
        body = body.replace("f32", "i32").replace("100.0f", "100") if is_integer else body
        y = np.zeros((64, n), np.int32 if is_integer else np.float32)
        run(hopper, body, a, b, y, maps)
        assert np.array_equal(y, a.astype(np.float64) @ b.astype(np.float64).T + 100 * is_added)


def test_sums_of_8_bit_reals_keep_14_bits(hopper: Any) -> None:
    """What is 2^14 times smaller than the largest of a product and the sum is lost, and truncated, not rounded."""
    a, b = np.zeros((64, 128), DTYPES["f8e5m2"]), np.zeros((64, 128), DTYPES["f8e5m2"])
    a[:, 0], a[:, 1:3], b[:, 0], b[:, 1:3] = 128, 1 / 64, 1, 1  # 2^7 and twice 2^-6
    a[1, 1:3] = 1 / 128  # twice 2^-7, which have no place beside 2^7
    maps = (
        row_major(0, a.reshape(1, 64, 128), (128, 64, 1)), row_major(1, b.reshape(1, 64, 128), (128, 64, 1))
    )  # fmt: skip
    body = MULTIPLY.replace("IS_ADDED", "false").replace("TYPE", "e5m2_e5m2")
    body = re.sub(r"\bN\b", "64", re.sub("IS_[AB]_MN_MAJOR", "false", body))
    y = np.zeros((64, 64), np.float32)
    run(hopper, body, a, b, y, maps)
    assert (y[0] == 128 + 2 / 64).all()
    assert (y[1] == 128).all()


NARROW = """
    const u32 a_bytes = 64 * A_ROW, b_bytes = N * B_ROW, from = shared + DEPTH / A_ROW * a_bytes;
    const u32 barrier = from + DEPTH / B_ROW * b_bytes;
    if (threadIdx.x == 0) {
        mbarrier_init(barrier, 1);
        mbarrier_init_fence();
        mbarrier_arrive_expect(barrier, barrier - shared);
        for (u32 at = 0; at < DEPTH; at += A_ROW)
            tma_load_3d(shared + at / A_ROW * a_bytes, tables.maps[0], barrier, at / SIZE, 0, 0);
        for (u32 at = 0; at < DEPTH; at += B_ROW)
            tma_load_3d(from + at / B_ROW * b_bytes, tables.maps[1], barrier, at / SIZE, 0, 0);
    }
    __syncthreads();
    mbarrier_wait(barrier, 0);
    f32 d[N / 2];
    wgmma_fence();
    for (u32 at = 0; at < DEPTH; at += 32)
        wgmma_TYPE<false, false>(
            d, wgmma_descriptor(shared + at / A_ROW * a_bytes + at % A_ROW, 16, A_ROW),
            wgmma_descriptor(from + at / B_ROW * b_bytes + at % B_ROW, 16, B_ROW), at > 0);
    wgmma_commit();
    wgmma_wait<0>();
    f32 *out = (f32 *)y + (16 * (threadIdx.x / 32) + threadIdx.x % 32 / 4) * N + 2 * (threadIdx.x % 4);
    for (int i = 0; i < N / 2; ++i) out[i % 4 / 2 * 8 * N + i / 4 * 8 + i % 2] = d[i];
"""


@pytest.mark.parametrize(
    ("kind", "n", "a_row", "b_row"),
    [("bf16", 64, 64, 64), ("f16", 160, 32, 32), ("tf32", 96, 64, 32), ("bf16", 224, 128, 64), ("f16", 128, 32, 128)],
)  # fmt: skip
def test_products_of_rows_of_128_64_and_32_bytes(
    hopper: Any, kind: str, n: int, a_row: int, b_row: int
) -> None:
    """Along K each operand is as many boxes as its rows need for 128 bytes."""
    rng = np.random.default_rng(n)
    dtype = np.dtype(DTYPES["f32" if kind == "tf32" else kind])
    a, b = (rng.integers(-8, 9, (1, rows, 128 // dtype.itemsize)).astype(dtype) for rows in (64, n))
    values = {"A_ROW": a_row, "B_ROW": b_row, "DEPTH": 128, "SIZE": dtype.itemsize, "N": n}
    body = NARROW.replace("TYPE", kind)
    for name, value in values.items():
        body = re.sub(rf"\b{name}\b", str(value), body)
    y = np.zeros((64, n), np.float32)
    maps = (
        row_major(0, a, (a_row // dtype.itemsize, 64, 1)),
        row_major(1, b, (b_row // dtype.itemsize, n, 1)),
    )
    run(hopper, body, a, b, y, maps)
    assert np.array_equal(y, a[0].astype(np.float32) @ b[0].astype(np.float32).T)


RING = """
    constexpr u32 A = 128 * 128, B = 256 * 128, STAGE = A + B;
    const u32 full = shared + 2 * STAGE, empty = full + 16;
    const int blocks = (int)tables.numbers[0], group = threadIdx.x / 128;
    if (threadIdx.x == 0) {
        for (int stage = 0; stage < 2; ++stage) {
            mbarrier_init(full + 8 * stage, 1);
            mbarrier_init(empty + 8 * stage, 2);
        }
        mbarrier_init_fence();
    }
    __syncthreads();
    if (group == 0) {
        registers_release<40>();
        if (threadIdx.x == 0)
            for (int k = 0; k < blocks; ++k) {
                const u32 stage = k % 2, at = shared + stage * STAGE;
                mbarrier_wait(empty + 8 * stage, (k / 2 + 1) % 2);
                mbarrier_arrive_expect(full + 8 * stage, STAGE);
                tma_load_3d(at, tables.maps[0], full + 8 * stage, 64 * k, 0, 0);
                tma_load_3d(at + A, tables.maps[1], full + 8 * stage, 64 * k, 0, 0);
            }
        return;
    }
    registers_acquire<232>();
    f32 d[128];
    const int t = threadIdx.x % 128;
    for (int k = 0; k < blocks; ++k) {
        const u32 stage = k % 2, a = shared + stage * STAGE + (group - 1) * (A / 2), b = shared + stage * STAGE + A;
        mbarrier_wait(full + 8 * stage, k / 2 % 2);
        wgmma_fence();
        for (int i = 0; i < 4; ++i)
            wgmma_bf16<false, false>(d, wgmma_descriptor(a + 32 * i), wgmma_descriptor(b + 32 * i), k + i > 0);
        wgmma_commit();
        wgmma_wait<PENDING>();
        if (k >= RELEASED && t == 0) mbarrier_arrive(empty + 8 * ((k - RELEASED) % 2));
    }
    wgmma_wait<0>();
    f32 *out = (f32 *)y + (64 * (group - 1) + 16 * (t / 32) + t % 32 / 4) * 256 + 2 * (t % 4);
    for (int i = 0; i < 128; ++i) out[i % 4 / 2 * 8 * 256 + i / 4 * 8 + i % 2] = d[i];
"""


def ring(device: Any, pending: int, released: int, body: str = RING) -> bool:
    """Whether the product of a ring of two stages is right."""
    rng = np.random.default_rng(0)
    a, b = (rng.integers(-8, 9, (1, n, 8 * 64 - 24)).astype(ml_dtypes.bfloat16) for n in (128, 256))
    y = np.zeros((128, 256), np.float32)
    maps = row_major(0, a, (64, 128, 1)), row_major(1, b, (64, 256, 1))
    body = body.replace("PENDING", str(pending)).replace("RELEASED", str(released))
    run(device, body, a, b, y, maps, threads=384, shared=2 * 384 * 128 + 32, numbers=(8,))
    return np.array_equal(y, a[0].astype(np.float32) @ b[0].astype(np.float32).T)


@pytest.mark.parametrize("pending", [0, 1])
def test_a_ring_of_two_stages(hopper: Any, pending: int) -> None:
    assert ring(hopper, pending, released=pending)


def test_a_stage_that_is_released_while_products_read_it_shows() -> None:
    message = (
        "line 20: tma_load: the product of line 33, which warpgroup [12] has yet to wait for, reads this"
    )
    with pytest.raises(DeviceError, match=message):
        ring(DEVICE, pending=1, released=0)
    early = RING.replace("mbarrier_arrive(empty", "(void)(empty")
    early = early.replace(
        "wgmma_wait<PENDING>();", "if (t == 0) mbarrier_arrive(empty + 8 * stage); wgmma_wait<0>();"
    )
    with pytest.raises(DeviceError, match=message):
        ring(DEVICE, pending=0, released=0, body=early)


def test_a_stage_that_is_read_before_its_copy_was_waited_for_shows() -> None:
    hasty = RING.replace("mbarrier_wait(full", "if (k > 0 || group == 2) mbarrier_wait(full")
    with pytest.raises(DeviceError, match="line 33: wgmma: the copy of line 20, which nobody has waited for"):
        ring(DEVICE, pending=0, released=0, body=hasty)


def test_shared_memory_overwritten_before_the_wait_shows() -> None:
    """By a store between the product and its wait, which is no error, but changes the product."""
    x = np.ones((1, 64, 64), ml_dtypes.bfloat16)
    body = (
        MULTIPLY.replace("IS_A_MN_MAJOR", "false").replace("IS_B_MN_MAJOR", "false").replace("TYPE", "bf16")
    )
    body = re.sub(r"\bN\b", "64", body.replace("IS_ADDED", "false"))
    store = "shared_store8(shared + threadIdx.x * 64, 0, 0);"
    y = np.zeros((64, 64), np.float32)
    maps = row_major(0, x, (64, 64, 1)), row_major(1, x, (64, 64, 1))
    run(DEVICE, body.replace("wgmma_wait<0>();", "wgmma_wait<0>();" + store), x, x, y, maps)
    assert (y == 64).all()
    run(DEVICE, body.replace("wgmma_wait<0>();", store + "wgmma_wait<0>();"), x, x, y, maps)
    assert (y == 56).all()


# ---- The way out --------------------------------------------------------------------------------------------------


def test_registers_to_shared_memory_and_on(hopper: Any) -> None:
    """Each warp writes 16 x 16 elements, its warpgroup reads what another warp wrote."""
    body = """
        const u32 t = threadIdx.x, lane = t % 32, own = shared + t / 32 * 512;
        const u32 row = lane / 4, column = 2 * (lane % 4);
        u32 pair[4];
        for (u32 m = 0; m < 4; ++m) {
            const u32 at = t / 32 * 256 + (row + 8 * (m % 2)) * 16 + column + 8 * (m / 2);
            pair[m] = at | (at + 1) << 16;
        }
        stmatrix_x4(own + (lane % 16) * 32 + lane / 16 * 16, pair[0], pair[1], pair[2], pair[3]);
        warpgroup_barrier(1 + t / 128);
        const u32 other = shared + t / 128 * 2048 + (127 - t % 128) * 16;
        const uint4 value = shared_load16(other);
        shared_store8(shared + 8192 + t * 8, shared_load4(other), shared_load2(other + 4));
        shared_store_i64(shared + 16384 + t * 8, shared_load_i64(shared + 8192 + t * 8) + tables.numbers[0]);
        store16(y + t * 32, value);
        *(i64 *)(y + t * 32 + 16) = shared_load_i64(shared + 16384 + t * 8);
        *(i64 *)(y + t * 32 + 24) = (i64)workspace;"""
    y = np.zeros((256, 16), np.uint16)
    x = np.zeros((1, 8, 64), np.float16)
    run(hopper, body, x, x, y, (row_major(0, x, (64, 8, 1)),), threads=256, numbers=(3,))
    expected = np.arange(2048, dtype=np.uint16).reshape(2, 128, 8)[:, ::-1].reshape(256, 8)
    assert np.array_equal(y[:, :8], expected)
    sums = expected[:, :3].astype(np.int64) @ [1, 1 << 16, 1 << 32] + 3
    assert np.array_equal(y[:, 8:12].copy().view(np.int64)[:, 0], sums)


def test_matrices_are_transposed_on_the_way(hopper: Any) -> None:
    """Each warp writes four 8 x 8 matrices, of which a lane has two neighbours of a column."""
    body = """
        const u32 t = threadIdx.x, lane = t % 32, own = shared + t / 32 * 512;
        u32 pair[4];
        for (u32 m = 0; m < 4; ++m) {
            const u32 at = t / 32 * 256 + m * 64 + 2 * (lane % 4) * 8 + lane / 4;
            pair[m] = at | (at + 8) << 16;
        }
        stmatrix_x4_transposed(own + lane * 16, pair[0], pair[1], pair[2], pair[3]);
        warpgroup_barrier(1 + t / 128);
        store16(y + t * 16, shared_load16(shared + t * 16));"""
    y = np.zeros((256, 8), np.uint16)
    x = np.zeros((1, 8, 64), np.float16)
    run(hopper, body, x, x, y, (row_major(0, x, (64, 8, 1)),), threads=256)
    assert np.array_equal(y, np.arange(2048, dtype=np.uint16).reshape(256, 8))

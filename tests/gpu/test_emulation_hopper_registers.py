"""Products of sm_90a with their first operand in registers, and other instructions of a prologue.

What computes numbers is checked against NumPy, and runs on a real device of that kind, too.
"""

from __future__ import annotations

import re
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from emulation.device import EmulatedCudaDevice, missing  # conftest.py makes it importable
from jitdnn.devices.gpu import Source
from jitdnn.errors import DeviceError
from one_hopper_kernel import DTYPES, HEAD, row_major, run

pytestmark = pytest.mark.skipif(missing() is not None, reason=str(missing()))

DEVICE = EmulatedCudaDevice(seconds=5, finds_races=False)

MULTIPLY = """
    const u32 from = shared + 8192, barrier = from + N * 128, lane = threadIdx.x % 32;
    if (threadIdx.x == 0) {
        mbarrier_init(barrier, 1);
        mbarrier_init_fence();
        mbarrier_arrive_expect(barrier, barrier - shared);
        tma_load_3d(shared, tables.maps[0], barrier, 0, 0, 0);
        for (int n = 0; n < N; n += IS_B_MN_MAJOR ? 64 : N)
            tma_load_3d(from + n * 128, tables.maps[1], barrier, IS_B_MN_MAJOR ? n : 0, 0, 0);
    }
    __syncthreads();
    mbarrier_wait(barrier, 0);
    f32 d[N / 2] = {};
    u32 a[4][4];
    for (int k = 0; k < 4; ++k) {
        const u32 row = threadIdx.x / 32 * 16 + lane % 16;
        ldmatrix_x4(a[k], shared + row * 128 + ((2 * k + lane / 16) ^ row % 8) * 16);
    }
    wgmma_fence();
    for (int k = 0; k < 4; ++k)
        wgmma_a_TYPE<IS_B_MN_MAJOR>(d, a[k], wgmma_descriptor(from + k * (IS_B_MN_MAJOR ? 2048 : 32), 8192), k > 0);
    wgmma_commit();
    wgmma_wait<0>();
    f32 *out = (f32 *)y + (16 * (threadIdx.x / 32) + lane / 4) * N + 2 * (threadIdx.x % 4);
    for (int i = 0; i < N / 2; ++i) out[i % 4 / 2 * 8 * N + i / 4 * 8 + i % 2] = d[i];
"""


def body_of(kind: str, n: int, is_b_mn_major: bool) -> str:
    body = MULTIPLY.replace("TYPE", kind).replace("IS_B_MN_MAJOR", str(is_b_mn_major).lower())
    return re.sub(r"\bN\b", str(n), body)


@pytest.mark.parametrize(
    ("kind", "n", "is_b_mn_major"),
    [("bf16", 64, False), ("f16", 128, True), ("tf32", 96, False), ("bf16", 256, True), ("f16", 160, False)],
)
def test_products_of_registers(hopper: Any, kind: str, n: int, is_b_mn_major: bool) -> None:
    rng = np.random.default_rng(n)
    dtype = DTYPES["f32" if kind == "tf32" else kind]
    depth = 128 // np.dtype(dtype).itemsize
    a, b = (rng.integers(-8, 9, (1, rows, depth)).astype(dtype) for rows in (64, n))
    w = b[:, :, :].transpose(0, 2, 1).copy() if is_b_mn_major else b
    maps = row_major(0, a, (depth, 64, 1)), row_major(1, w, (depth, depth if is_b_mn_major else n, 1))
    y = np.zeros((64, n), np.float32)
    run(hopper, body_of(kind, n, is_b_mn_major), a, w, y, maps)
    assert np.array_equal(y, a[0].astype(np.float32) @ b[0].astype(np.float32).T)


def test_registers_that_are_written_before_the_wait_show() -> None:
    """It is no error, but changes the product."""
    x = np.ones((1, 64, 64), ml_dtypes.bfloat16)
    y = np.zeros((64, 64), np.float32)
    maps = row_major(0, x, (64, 64, 1)), row_major(1, x, (64, 64, 1))
    body, change = body_of("bf16", 64, False), "a[3][0] = 0;"
    run(DEVICE, body.replace("wgmma_wait<0>();", "wgmma_wait<0>();" + change), x, x, y, maps)
    assert (y == 64).all()
    run(DEVICE, body.replace("wgmma_wait<0>();", change + "wgmma_wait<0>();"), x, x, y, maps)
    assert (y[np.arange(64) % 16 < 8] == 56).all()


def test_what_threads_write_is_fenced_before_products_read_it() -> None:
    x = np.ones((1, 64, 64), ml_dtypes.bfloat16)
    y = np.zeros((64, 64), np.float32)
    maps = row_major(0, x, (64, 64, 1)), row_major(1, x, (64, 64, 1))
    write = "shared_store16(from + threadIdx.x * 16, uint4{}); FENCE __syncthreads(); f32 d"
    body = body_of("bf16", 64, False).replace("f32 d", write, 1)
    run(DEVICE, body.replace("FENCE", "async_proxy_fence();"), x, x, y, maps)
    assert (y[:, :16] == 0).all()
    assert (y[:, 16:] == 64).all()
    with pytest.raises(
        DeviceError, match=r"wgmma: thread 0 wrote to 8192 at line .*, with no async_proxy_fence"
    ):
        run(DEVICE, body.replace("FENCE", ""), x, x, y, maps)


def test_pairs_and_pieces_of_shared_memory(hopper: Any) -> None:
    body = """
        const u32 at = shared + threadIdx.x * 16;
        const f32 v = (f32)(int)threadIdx.x - 63.5f;
        shared_store16(at, uint4{pack_relu_bf16(v, -v), pack_relu_f16(v, -v), threadIdx.x, 7});
        shared_store4(at + 12, shared_load8(at + 8).x + 1);
        __syncthreads();
        store16(y + threadIdx.x * 16, shared_load16(at));"""
    x, y = np.zeros((1, 8, 64), np.float16), np.zeros((128, 4), np.uint32)
    run(hopper, body, x, x, y, (row_major(0, x, (64, 8, 1)),))
    v = np.arange(128, dtype=np.float32) - np.float32(63.5)
    pairs = np.maximum(np.stack([v, -v], 1), 0)
    assert np.array_equal(y[:, 0], pairs.astype(ml_dtypes.bfloat16).view(np.uint32)[:, 0])
    assert np.array_equal(y[:, 1], pairs.astype(np.float16).view(np.uint32)[:, 0])
    assert np.array_equal(y[:, 2:], np.arange(128)[:, None] + np.array([0, 1]))


def test_relu_keeps_nan(hopper: Any) -> None:
    body = """
        const f32 nan = __uint_as_float(0x7fc00000u);
        if (threadIdx.x == 0) store8(y, uint2{pack_relu_bf16(nan, -1), pack_relu_f16(-0.5f, nan)});"""
    x, y = np.zeros((1, 8, 64), np.float16), np.zeros(2, np.uint32)
    run(hopper, body, x, x, y, (row_major(0, x, (64, 8, 1)),))
    found = [*y[:1].view(ml_dtypes.bfloat16).astype(np.float32), *y[1:].view(np.float16).astype(np.float32)]
    assert np.isnan(found[0])
    assert np.isnan(found[3])
    assert found[1:3] == [0, 0]


def test_every_width_compiles(architecture: Any) -> None:
    if architecture.arch != "sm_90a":
        pytest.skip("wgmma is an instruction of sm_90a")
    calls = "".join(
        f"{{ f32 d[{n // 2}]; wgmma_a_{kind}<false>(d, a, 5, true); wgmma_commit(); wgmma_wait<0>(); out += d[1]; }}"
        for kind in ("bf16", "f16", "tf32")
        for n in (32, 64, 96, 128, 160, 192, 224, 256)
    )
    text = "struct Tables { TensorMap maps[1]; }; KERNEL2(128, 1) void body" + HEAD
    text += f"{{ u32 a[4] = {{}}; f32 out = 0; wgmma_fence(); {calls} *(f32 *)y = out; }}"
    assert architecture.compile(Source("body", text, dialect="hopper", spills=True))

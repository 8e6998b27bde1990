"""Copies from shared memory into a tensor on the emulated CUDA device, and what it says of those that are wrong.

What computes numbers is checked against NumPy, and runs on a real device of that kind, too.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from emulation.device import EmulatedCudaDevice, missing  # conftest.py makes it importable
from jitdnn.errors import DeviceError
from one_hopper_kernel import DTYPES, row_major, run, unswizzled

pytestmark = pytest.mark.skipif(missing() is not None, reason=str(missing()))

DEVICE = EmulatedCudaDevice(seconds=5, finds_races=False)


# ---- Numbers ------------------------------------------------------------------------------------------------------

STORE = """
    const u32 bytes = (u32)tables.numbers[0];
    for (u32 i = threadIdx.x * 8; i < bytes; i += 8 * blockDim.x)
        shared_store_i64(shared + i, *(const i64 *)(x + i));
    async_proxy_fence();
    __syncthreads();
    if (threadIdx.x == 0) {
        tma_store_3d(shared, tables.maps[0], PLACE);
        tma_store_commit();
        tma_store_wait_read<0>();
    }
"""


@pytest.mark.parametrize("start", [(0, 0, 0), (8, 3, 1), (72, 6, 2), (16, 20, 0), (128, 2, 1)])
@pytest.mark.parametrize(
    ("dtype", "row"), [("bf16", 128), ("f32", 128), ("f32", 64), ("bf16", 64), ("f16", 32)]
)
def test_a_store_leaves_out_what_is_outside_of_the_tensor(
    hopper: Any, dtype: str, row: int, start: tuple[int, ...]
) -> None:
    y = np.full((3, 9, 104), 9).astype(DTYPES[dtype])
    box = (row // y.itemsize, 8, 2)
    x = np.random.default_rng(4).standard_normal(box[::-1]).astype(y.dtype)
    tensor_map = row_major(2, y, box, extents=(96, 9, 3))
    expected = y.copy()
    for index, value in np.ndenumerate(x):
        place = [at + begin for at, begin in zip(index, start[::-1], strict=True)]
        if all(0 <= at < extent for at, extent in zip(place, (3, 9, 96), strict=True)):
            expected[tuple(place)] = value
    body = STORE.replace("PLACE", ", ".join(map(str, start)))
    run(hopper, body, unswizzled(x, row), x, y, (tensor_map,), numbers=(x.nbytes,))
    assert np.array_equal(y, expected)


BUFFERS = """
    const int t = threadIdx.x, lane = t % 32, row = t / 32 * 16 + lane % 16;
    for (int n = 0; n < 6; ++n) {
        const u32 buffer = shared + n % 2 * 8192;
        if (t == 0) tma_store_wait_read<PENDING>();
        warpgroup_barrier(1);
        for (int j = 0; j < 8; j += 2) {
            u32 pair[4];
            for (int m = 0; m < 4; ++m) {
                const u32 r = t / 32 * 16 + m % 2 * 8 + lane / 4, c = 8 * (j + m / 2) + 2 * (lane % 4);
                pair[m] = (n * 4096 + r * 64 + c) | (n * 4096 + r * 64 + c + 1) << 16;
            }
            stmatrix_x4(buffer + row * 128 + ((j + lane / 16) ^ (row & 7)) * 16, pair[0], pair[1], pair[2], pair[3]);
        }
        async_proxy_fence();
        warpgroup_barrier(1);
        if (t == 0) {
            tma_store_3d(buffer, tables.maps[0], 0, 0, n);
            tma_store_commit();
        }
    }
    if (t == 0) tma_store_wait_read<0>();
"""


def staged(device: Any, body: str) -> bool:
    """Whether six boxes come through two buffers. Elements are 16 bits, which are moved and never computed with."""
    y = np.zeros((6, 64, 64), np.float16)
    run(device, body, y, y, y, (row_major(2, y, (64, 64, 1)),))
    return np.array_equal(y.view(np.uint16).ravel(), np.arange(6 * 4096, dtype=np.uint16))


@pytest.mark.parametrize("pending", [0, 1])
def test_two_buffers_in_turn(hopper: Any, pending: int) -> None:
    assert staged(hopper, BUFFERS.replace("PENDING", str(pending)))


def test_the_last_stores_happen_without_a_wait() -> None:
    assert staged(
        DEVICE, BUFFERS.replace("PENDING", "1").replace("if (t == 0) tma_store_wait_read<0>();", "")
    )


def test_a_buffer_that_is_overwritten_too_early_shows() -> None:
    with pytest.raises(
        DeviceError, match="stmatrix: the store of line 18, which thread 0 has yet to wait for"
    ):
        staged(DEVICE, BUFFERS.replace("PENDING", "2"))


def test_a_buffer_that_others_do_not_know_to_be_read_shows() -> None:
    """Only the thread that stores waits, and the others go on without a barrier."""
    body = BUFFERS.replace("PENDING", "1").replace("warpgroup_barrier(1);", "", 1)
    with pytest.raises(DeviceError, match="stmatrix: the store of line 18"):
        staged(DEVICE, body)


def test_a_store_reads_as_late_as_it_may() -> None:
    """Writes through pointers are not looked at, but stores read them."""
    x = np.full((1, 64, 64), 5, np.float16)
    for wait, written in [("", 0), ("tma_store_wait_read<1>();", 0), ("tma_store_wait_read<0>();", 5)]:
        y = np.zeros((1, 64, 64), np.float16)
        body = STORE.replace("PLACE", "0, 0, 0").replace("tma_store_wait_read<0>();", wait)
        body += "__syncthreads(); for (int i = threadIdx.x; i < 8192; i += 128) storage[i] = 0;"
        run(DEVICE, body, x, x, y, (row_major(2, y, (64, 64, 1)),), numbers=(8192,))
        assert (y == written).all()


# ---- Errors -------------------------------------------------------------------------------------------------------

ONE = "if (threadIdx.x == 0) "
WRITE = "shared_store8(shared + 8 * threadIdx.x, 0, 0);"
FENCE = "async_proxy_fence();"
BARRIER = "__syncthreads();"
BEGIN = "tma_store_3d(shared, tables.maps[0], 0, 0, 0);"
COMMITTED = f"{BEGIN} tma_store_commit();"
WAIT = "tma_store_wait_read<0>();"
LOAD = """
    const u32 barrier = shared + 32768;
    if (threadIdx.x == 0) {
        mbarrier_init(barrier, 1); mbarrier_init_fence(); mbarrier_arrive_expect(barrier, 8192);
        BEFORE tma_load_3d(shared, tables.maps[0], barrier, 0, 0, 0); BEHIND
    }
""".replace("\n", " ")
ERRORS = {
    "no fence": (
        WRITE + BARRIER + ONE + f"{{ {COMMITTED} }}",
        "thread 0, line 1: tma_store: thread 0 wrote to 0 at line 1, with no async_proxy_fence behind that",
    ),
    "a fence of the storing thread alone": (
        f"{WRITE} {BARRIER} {ONE} {{ {FENCE} {COMMITTED} }}",
        "tma_store: thread 1 wrote to 8 at line 1, with no async_proxy_fence behind that",
    ),
    "a fence in front of the write": (FENCE + WRITE + BARRIER + ONE + BEGIN, "with no async_proxy_fence behind that"),
    "stmatrix without a fence": (
        "stmatrix_x4(shared + threadIdx.x * 16, 0, 0, 0, 0);" + BARRIER + ONE + BEGIN,
        "thread 0 wrote to 0 at line 1, with no async_proxy_fence behind that",
    ),
    "no barrier": (
        f"{WRITE} {FENCE} if (threadIdx.x == 127) {{ {COMMITTED} }}",
        "tma_store: thread 0 wrote to 0 at line 1, with no barrier behind its async_proxy_fence",
    ),
    "a fence behind the barrier": (
        f"{WRITE} {BARRIER} {FENCE} if (threadIdx.x == 64) {{ {COMMITTED} }}",
        "thread 64, line 1: tma_store: thread 0 wrote to 0 at line 1, with no barrier behind its async_proxy_fence",
    ),
    "a barrier of another warpgroup": (
        f"{WRITE} {FENCE} warpgroup_barrier(1 + threadIdx.x / 128); if (threadIdx.x == 128) {{ {COMMITTED} }}",
        "thread 128, line 1: tma_store: thread 0 wrote to 0 at line 1, with no barrier",
    ),
    "a wait without a group": (ONE + BEGIN + WAIT, "tma_store_wait_read: 1 stores in no group: tma_store_commit is"),
    "an end without a group": (
        ONE + BEGIN, "thread 0, line 1: the thread ends with 1 stores in no group: tma_store_commit is missing",
    ),
    "a write before the wait": (
        ONE + f"{{ {COMMITTED} }}" + BARRIER + "shared_store_i64(shared + 8184, 0);",
        "shared_store_i64: the store of line 1, which thread 0 has yet to wait for, reads this",
    ),
    "a wait by another thread": (
        ONE + f"{{ {COMMITTED} }} else {{ {WAIT} }}" + BARRIER + WRITE,
        "shared_store8: the store of line 1, which thread 0 has yet to wait for, reads this",
    ),
    "a write without a barrier behind the wait": (
        ONE + f"{{ {COMMITTED} {WAIT} }}" + WRITE,
        "thread 1, line 1: shared_store8: the store of line 1 has read this, but no barrier came behind",
    ),
    "a load before the wait": (
        LOAD.replace("BEFORE", COMMITTED), "tma_load: the store of line 1, which thread 0 has yet to wait for, reads",
    ),
    "a store before a load was waited for": (
        LOAD.replace("BEHIND", COMMITTED), "tma_store: the copy of line 1, which nobody has waited for, fills what",
    ),
    "a misaligned address": (
        ONE + BEGIN.replace("shared", "shared + 256").replace("maps[0]", "maps[1]"),
        "tma_store: shared address 256 must be a multiple of 512",
    ),
    "out of range": (
        ONE + BEGIN.replace("shared", "shared + 59392"),
        "tma_store: 8192 bytes at 59392 are out of range of dynamic shared memory, which has 65536",
    ),
    "steps": (ONE + BEGIN.replace("maps[0]", "maps[2]"), "tma_store: a step of 2 along axis 1"),
    "another rank": (ONE + BEGIN.replace("maps[0]", "maps[3]"), "is tiled of rank 4, the copy tiled of rank 3"),
    "no tensor map": ("TensorMap none = {}; " + BEGIN.replace("tables.maps[0]", "none"), "no tensor map at"),
}  # fmt: skip


@pytest.mark.parametrize("name", ERRORS)
def test_errors_are_told(name: str) -> None:
    body, message = ERRORS[name]
    y, image = np.zeros((1, 64, 64), np.float16), np.zeros((1, 4, 4, 64), np.float16)
    maps = (
        row_major(2, y, (64, 64, 1)),
        row_major(2, y, (32, 64, 1)),
        row_major(2, y, (64, 8, 1), steps=(1, 2, 1)),
        row_major(0, image, (64, 4, 4, 1)),
    )
    body = body.replace("BEFORE", "").replace("BEHIND", "")
    with pytest.raises(DeviceError, match=message):
        run(DEVICE, body, image, y, y, maps, threads=256 if "another warpgroup" in name else 128)


def test_what_is_no_error() -> None:
    y = np.zeros((1, 64, 64), np.float16)
    for body in [
        f"{ONE} {{ {WRITE} {FENCE} {COMMITTED} {WAIT} {WRITE} }}",  # one thread, so no barrier
        f"{WRITE} {FENCE} warpgroup_barrier(1); if (threadIdx.x == 9) {{ {COMMITTED} {WAIT} }} {BARRIER} {WRITE}",
        f"{ONE} {{ {COMMITTED} tma_store_commit(); tma_store_wait_read<1>(); {WRITE} }}",  # an empty group
        f"{ONE} {{ {COMMITTED} }} {BARRIER} shared_store8(shared + 8192 + 8 * threadIdx.x, 0, 0);",
        # what a copy brought is no write by a thread
        WRITE
        + BARRIER
        + LOAD.replace("BEHIND", f"mbarrier_wait(barrier, 0); {COMMITTED}").replace("BEFORE", ""),
        # an mbarrier tells that a store has read
        LOAD.replace("BEFORE", COMMITTED + WAIT).replace("BEHIND", "")
        + f"{BARRIER} mbarrier_wait(barrier, 0); {WRITE}",
    ]:
        run(DEVICE, body, y, y, y, (row_major(2, y, (64, 64, 1)),))

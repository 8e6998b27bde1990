"""Thread blocks of a cluster that read each other's shared memory: on the emulated device as on a GPU."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from emulation.device import EmulatedCudaDevice, missing  # conftest.py makes it importable
from jitdnn.errors import DeviceError
from one_hopper_kernel import row_major, run

DEVICE = EmulatedCudaDevice(seconds=5, finds_races=False)
X = np.zeros((2, 8, 8), np.float32)
BEGIN = "const u32 rank = blockIdx.x % 4, number = threadIdx.x; "
LEAVE = "shared_store16(shared + number * 16, uint4{rank, number, 7, 100 * rank + blockIdx.x}); "
MEET = "cluster_arrive(); cluster_wait(); "
READ = (
    "for (int from = 0; from < 4; ++from) { "
    "const uint4 got = cluster_load16(cluster_address(shared + (number ^ 1) * 16, from)); "
    "const u32 all[4] = {got.x, got.y, got.z, got.w}; "
    "for (int n = 0; n < 4; ++n) ((u32 *)y)[((blockIdx.x * 4 + from) * 64 + number) * 4 + n] = all[n]; } "
)
PART = "cluster_arrive_relaxed(); cluster_wait(); "


def read(body: str, device: Any, blocks: int = 8) -> np.ndarray:
    y = np.full((blocks, 4, 64, 4), 0xFFFFFFFF, np.uint32)
    run(device, body, X, X, y, (row_major(0, X, (8, 8, 1)),), threads=64, blocks=blocks, cluster=4)
    return y


def test_every_block_reads_what_the_others_left(cuda_device: Any) -> None:
    if cuda_device.arch != "sm_90a":
        pytest.skip("clusters are of sm_90a")
    block, origin, number = np.ogrid[:8, :4, :64]
    expected = [origin, number ^ 1, 7 + 0 * block, 100 * origin + block // 4 * 4 + origin]
    y = read(BEGIN + LEAVE + MEET + READ + PART, cuda_device)
    np.testing.assert_array_equal(y, np.stack(np.broadcast_arrays(*expected), -1))


def test_what_was_read_may_be_left_for_others(cuda_device: Any) -> None:
    """Each block adds what its neighbour had, twice."""
    if cuda_device.arch != "sm_90a":
        pytest.skip("clusters are of sm_90a")
    add = (
        "{ const u32 of = cluster_load16(cluster_address(shared + number * 16, (rank + 1) % 4)).x; "
        "cluster_arrive_relaxed(); cluster_wait(); mine += of; shared_store16(shared + number * 16, uint4{mine}); } "
    )
    body = (
        BEGIN + "u32 mine = blockIdx.x; shared_store16(shared + number * 16, uint4{mine}); " + MEET + add + MEET + add
        + "if (number == 0) ((u32 *)y)[blockIdx.x * 1024] = mine;"
    )  # fmt: skip
    y = read(body, cuda_device)
    numbers = np.arange(8).reshape(2, 4)
    for _ in range(2):
        numbers = numbers + np.roll(numbers, -1, 1)
    assert y[:, 0, 0, 0].tolist() == numbers.ravel().tolist()


ERRORS = {
    "read before the others are there": (BEGIN + LEAVE + READ, "cluster_load16: no cluster_wait before"),
    "no such block": (
        BEGIN + LEAVE + MEET + READ.replace("from < 4", "from < 5"),
        "block 4 of a cluster of 4",
    ),
    "left without a barrier behind": (
        BEGIN + LEAVE + MEET + READ,
        "block . of the cluster ends while others read its memory",
    ),
    "read behind the barrier": (
        BEGIN + LEAVE + MEET + "cluster_arrive(); " + READ,
        "cluster_load16: behind cluster_arrive",
    ),
    "a block that does not come": (
        BEGIN + LEAVE + "if (rank < 3) { " + MEET + READ + PART + "}",
        "cluster_load16: block 3 does not come to barrier 1",
    ),
    "misaligned": (BEGIN + MEET + READ.replace("* 16", "* 16 + 4"), "cluster_load16: misaligned address"),
    "out of range": (BEGIN + MEET + READ.replace("* 16", "* 16 + 65536"), "cluster_load16: .* out of range"),
    "a wait without an arrival": ("cluster_wait();", "cluster_wait: no cluster_arrive before"),
    "two arrivals": ("cluster_arrive(); cluster_arrive();", "cluster_arrive: twice, without cluster_wait"),
    "a thread that does not come": (
        "if (threadIdx.x) { cluster_arrive(); cluster_wait(); } else { mbarrier_init(shared, 1); "
        "mbarrier_init_fence(); mbarrier_wait(shared, 0); }",
        "deadlock.*all of the cluster",
    ),
    "a store to another block": (
        BEGIN + MEET + "cluster_store4(cluster_address(shared, rank ^ 1), 1);",
        "cluster_store4: writes to other blocks of a cluster are not emulated",
    ),
}


@pytest.mark.skipif(missing() is not None, reason=str(missing()))
@pytest.mark.parametrize("name", ERRORS)
def test_errors(name: str) -> None:
    body, message = ERRORS[name]
    with pytest.raises(DeviceError, match=f"(?s){message}"):
        read(body, DEVICE)


@pytest.mark.skipif(missing() is not None, reason=str(missing()))
def test_launches_are_whole_clusters() -> None:
    with pytest.raises(DeviceError, match="launched with 6 blocks, in clusters of 4"):
        read(BEGIN, DEVICE, blocks=6)

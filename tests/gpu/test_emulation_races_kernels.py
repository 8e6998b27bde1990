"""Hopper kernels of the library under the emulator's race detector, as they are and with a line left out."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

import emulation.device  # conftest.py makes it importable
from cases import make_case
from convolution_cases import convolution
from harness import run_algorithm
from jitdnn.devices.gpu import Source
from jitdnn.errors import DeviceError
from jitdnn.kernels.cuda.convolution.warpgroup_gemm.algorithm import WarpgroupGemmInPlace, WarpgroupWgrad
from jitdnn.kernels.cuda.convolution.warpgroup_gemm.halves import WarpgroupWgradDivided, WarpgroupWgradHalves
from jitdnn.kernels.cuda.gemm.plan import TILES
from jitdnn.kernels.cuda.warpgroup.tile import Tile
from test_convolution_gemm import algorithms_of
from test_warpgroup_brought import residual
from warpgroup_cases import SMALL, aligned  # noqa: F401

pytestmark = pytest.mark.skipif(
    emulation.device.missing() is not None, reason=str(emulation.device.missing())
)

DEVICE = emulation.device.EmulatedCudaDevice(finds_races=True)


def brought(device: Any) -> None:
    """Results by way of shared memory, and an operand of the epilogue that copies bring into the stages."""
    problem: Any = convolution("conv_fwd n1 c72 h21 w14 k136 r1 s1 bf16 nhwc")
    algorithm = WarpgroupGemmInPlace((Tile(2, 1, 1, 64),))
    run_algorithm(algorithm, make_case(problem, residual(problem.output)), device, ((1.0, 0.0),))


def divided(device: Any) -> None:
    """f32 that threads divide into halves."""
    problem = convolution("conv_bwd_filter n2 c128 h7 w9 k128 r1 s1 f32 nhwc")
    run_algorithm(WarpgroupWgradDivided((SMALL,)), make_case(problem), device, ((1.0, 0.0),))


def packed(device: Any) -> None:
    """f32 that is packed as halves, with what both operands were multiplied by."""
    problem = convolution("conv_bwd_filter n2 c40 h7 w9 k40 r1 s1 f32 nhwc")
    run_algorithm(WarpgroupWgradHalves((SMALL,)), make_case(problem), device, ((1.0, 0.0),))


def columns_of_96(device: Any) -> None:
    """Tiles by `mma.sync` whose columns do not divide the threads that copy them."""
    for words in (
        "conv_bwd_data n1 c96 h5 w7 k32 r1 s1 f32 nhwc",
        "conv_bwd_filter n1 c96 h5 w7 k32 r1 s1 f32 nhwc",
    ):
        problem = convolution(words)
        (tile,) = (tile for tile in TILES if tile.n == 96)
        run_algorithm(algorithms_of(problem, (tile,))[0], make_case(problem), device, ((1.0, 0.0),))


def clustered(device: Any) -> None:
    """A split of K for each thread block of a cluster, which read each other's sums."""
    problem = convolution("conv_bwd_filter n3 c64 h7 w9 k128 r1 s1 bf16 nhwc")
    algorithm = WarpgroupWgrad((Tile(1, 2, 1, 64, 2),))
    run_algorithm(algorithm, make_case(problem), device, ((1.0, 0.0),))


# what runs, what of its text is left out, what is put in its place, and what is said then
KERNELS = {
    "a buffer that is stored": (
        brought,
        "if (is_leader) tma_store_wait_read<RESULT_BUFFERS - 1>();",
        "",
        r"race at byte \d+ of dynamic shared memory: thread \d+ writes .*tma_store of thread 0 reads",
    ),
    "one thread of a warp waits for a stage": (
        brought,
        "{ mbarrier_wait(ring.full(place.stage), place.parity); }",
        "{ if (threadIdx.x % 32 == 0) mbarrier_wait(ring.full(place.stage), place.parity); shuffle(1, 0); }",
        "race at .*: wgmma of warpgroup 0 reads .*, and before that tma_load of mbarrier .* writes",
    ),
    "numbers that are divided for the other warps": (
        divided,
        "mbarrier_wait(known(stage), ahead.parity);",
        "",
        r"race at .*: thread \d+ reads .*, and before that thread \d+ writes",
    ),
    "halves that products read": (
        divided,
        "async_proxy_fence();\n        __syncwarp();",
        "async_proxy_fence();",
        r"(race|no async_proxy_fence behind a write) at .*: wgmma of warpgroup \d reads .*thread \d+ writes",
    ),
    "two thread blocks leave what operands were multiplied by": (
        packed,
        "if (blockIdx.x == 0 && threadIdx.x == 0) header.publish",
        "if (block == 0 && threadIdx.x == 0) header.publish",
        r"race at byte \d+ of .* in global memory: thread 0 writes .* thread 0 writes in block \(0, 0, 0\)",
    ),
    "threads that copy what others do: a filter": (
        columns_of_96,
        "if (BLOCK_THREADS % B_CHUNKS != 0 && first == B_STEP) return;",
        "",
        r"race at .*: (cp_async of )?thread \d+ writes .*, and before that (cp_async of )?thread 0 writes",
    ),
    "threads that copy what others do: x of a filter gradient": (
        columns_of_96,
        "if (BLOCK_THREADS % CHUNKS_N != 0 && row == STEP_B) return;",
        "",
        r"race at .*: (cp_async of )?thread \d+ writes .*, and before that (cp_async of )?thread 0 writes",
    ),
    "sums in a cluster": (
        clustered,
        "exchange.wait_for_products();",
        "",
        "race at .*: thread .* writes .*wgmma of warpgroup",
    ),
}  # fmt: skip


@pytest.mark.parametrize("runs", [brought, divided, packed, columns_of_96, clustered])
def test_kernels_have_no_races(runs: Any) -> None:
    runs(DEVICE)


@pytest.mark.parametrize("name", KERNELS)
def test_a_line_that_is_missing_is_found(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    runs, line, other, message = KERNELS[name]
    changed = 0
    build = emulation.device.built_source

    def without(source: Source, *more: Any) -> Any:
        nonlocal changed
        changed += source.text.count(line)
        return build(replace(source, text=source.text.replace(line, other)), *more)

    monkeypatch.setattr(emulation.device, "built_source", without)
    with pytest.raises(DeviceError, match=message):
        runs(DEVICE)
    assert changed

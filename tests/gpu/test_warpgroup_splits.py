"""Filter gradients by warpgroups whose K is split: in runs of stages, or in turns."""

from __future__ import annotations

from typing import Any

import pytest

import harness
from cases import CANARY, Workspace, make_case
from convolution_cases import convolution
from harness import run_algorithm
from jitdnn.kernels.cuda.convolution.warpgroup_gemm import wgrad
from jitdnn.kernels.cuda.convolution.warpgroup_gemm.algorithm import WarpgroupWgrad, WarpgroupWgradInLines
from jitdnn.kernels.cuda.convolution.warpgroup_gemm.halves import WarpgroupWgradHalves
from jitdnn.kernels.cuda.convolution.warpgroup_gemm.plan import Plan
from jitdnn.kernels.cuda.convolution.warpgroup_gemm.scaled import (
    WarpgroupWgradScaled,
)
from jitdnn.kernels.cuda.warpgroup.plan import Blocking, KernelTraits, Products
from jitdnn.kernels.cuda.warpgroup.tile import STAGE_ROW, Tile
from warpgroup_cases import aligned, blocked_by, on_hopper, split_into  # noqa: F401

#: words: the family, the tile, splits, the multiple of STAGE_ROW; stages are no multiple of the splits
CASES = {
    "conv_bwd_filter n3 c72 h13 w15 k72 r3 s2 pad1 bf16 nhwc": (WarpgroupWgrad, Tile(1, 1, 1, 64), 4, 1),
    "conv_bwd_filter n3 c72 h13 w15 k64 r1 s1 f16 nhwc": (WarpgroupWgrad, Tile(1, 1, 1, 128), 3, 2),
    "conv_bwd_filter n2 c64 d3 h9 w11 k128 t2 r1 s3 stride2 pad1x0x1 g2 bf16 nhwc": (
        WarpgroupWgrad, Tile(2, 1, 1, 64), 2, 1,
    ),
    "conv_bwd_filter n1 c64 h5 w7 k64 r1 s1 bf16 nhwc": (WarpgroupWgrad, Tile(1, 1, 1, 64), 5, 1),
    "conv_bwd_filter n2 c40 h13 w15 k40 r3 s3 pad1 f32 nhwc": (WarpgroupWgradScaled, Tile(1, 1, 1, 64), 3, 1),
    "conv_bwd_filter n2 c40 h13 w15 k40 r3 s1 f32 nhwc": (WarpgroupWgradHalves, Tile(1, 1, 1, 64), 3, 1),
    "conv_bwd_filter n2 c64 h7 w32 k64 r3 s3 pad1 bf16 nhwc": (WarpgroupWgradInLines, Tile(1, 1, 1, 192), 3, 1),
}  # fmt: skip


@pytest.mark.parametrize("words", CASES)
def test_splits(words: str, cuda_device: Any) -> None:
    family, tile, splits, depth = CASES[words]

    def blocking(products: Products, traits: KernelTraits, *_: Any, **__: Any) -> tuple[Blocking, float]:
        length = -(-products.in_stages(depth).longest // splits)
        return Blocking(
            tile, 3, splits, length, traits.parts, traits.result_bytes, row=depth * STAGE_ROW, is_across=True
        ), 1e-5

    problem, algorithm = convolution(words), family((tile,))
    with blocked_by(blocking):
        plan = algorithm.sizes(problem, cuda_device)
        assert isinstance(plan, Plan), plan
        assert plan.blocking.is_split
        run_algorithm(algorithm, make_case(problem), cuda_device)


@pytest.mark.parametrize("tiles", [1, 300])
def test_splits_take_turns_where_all_run_at_once(tiles: int, cuda_device: Any) -> None:
    """Where thread blocks have several splits, each is a run of stages: else the data would be read again for each."""
    words = f"conv_bwd_filter n1 c{64 * tiles} h9 w16 k64 r1 s1 bf16 nhwc"

    def blocking(*_: Any, **__: Any) -> tuple[Blocking, float]:
        return Blocking(Tile(1, 1, 1, 64), 3, 3, 1, 1, 2, is_across=True), 1e-5

    with blocked_by(blocking):
        plan = WarpgroupWgrad((Tile(1, 1, 1, 64),)).sizes(convolution(words), cuda_device)
        assert isinstance(plan, Plan)
        assert plan.tables.numbers[-2] == (3 if plan.works <= cuda_device.multiprocessors else 1)
        run_algorithm(WarpgroupWgrad((Tile(1, 1, 1, 64),)), make_case(convolution(words)), cuda_device)


@pytest.mark.parametrize("words", ["conv_bwd_filter n2 c72 h9 w7 k72 r3 s3 pad1 bf16 nhwc"])
def test_results_are_scaled_before_they_are_rounded(words: str, cuda_device: Any) -> None:
    def blocking(products: Products, *_: Any, **__: Any) -> tuple[Blocking, float]:
        return Blocking(Tile(2, 1, 1, 64), 3, 1, products.longest, 1, 2, is_across=True), 1e-5

    with blocked_by(blocking):
        run_algorithm(
            WarpgroupWgrad((Tile(2, 1, 1, 64),)), make_case(convolution(words)), cuda_device,
            scales=((1.0, 0.0), (-0.75, 0.0), (1.0, 0.5)),
        )  # fmt: skip


class Behind(Workspace):
    """One that begins so many bytes behind a multiple of 64, of the host."""

    begin = 0

    def __init__(self, size: int) -> None:
        super().__init__(size + 128)
        self.start += self.begin
        self.end = self.start + size
        self.memory[: self.start] = self.memory[self.end :] = CANARY


@pytest.mark.parametrize("splits", [2, 10, 40])
def test_partial_sums_are_discarded(splits: int, cuda_device: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where operands push them out of L2, and they are whole lines: none is read behind that."""
    monkeypatch.setattr(harness, "Workspace", Behind)
    problem = convolution("conv_bwd_filter n10 c24 h16 w16 k40 r1 s1 bf16 nhwc")
    monkeypatch.setattr(wgrad, "_SWEPT", 0.0)
    with split_into(splits):
        plan = WarpgroupWgrad().sizes(problem, cuda_device)
        assert isinstance(plan, Plan)
        assert plan.tables.numbers[-1] == 1
        # with one of them lines are whole, wherever the device's memory begins
        for begin in range(0, 128, 16):
            monkeypatch.setattr(Behind, "begin", begin)
            run_algorithm(WarpgroupWgrad(), make_case(problem), cuda_device)

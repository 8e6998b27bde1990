"""Data gradients of f32 whose filter is the first operand of the tensor cores, which threads bring as it lies."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from cases import make_case
from convolution_cases import convolution, fused
from harness import run_algorithm
from jitdnn.kernels.cuda.convolution.warpgroup_gemm.algorithm import (
    WarpgroupGemmSwapped,
    WarpgroupGemmSwappedInLines,
)
from jitdnn.kernels.cuda.convolution.warpgroup_gemm.plan import Plan
from jitdnn.kernels.cuda.warpgroup.plan import Blocking
from jitdnn.kernels.cuda.warpgroup.tile import SWAPPED, Tile
from jitdnn.tensor import TensorDescriptor
from warpgroup_cases import aligned, blocked_by, on_hopper  # noqa: F401

LAYERS = [
    "n2 c72 h6 w5 k68 r3 s3 pad1",  # pixels, channels and K end inside of a tile or a stage
    "n3 c132 h7 w7 k36 r1 s1",
    "n1 c40 h9 w6 k32 r3 s3 pad1 stride2",  # stride phases
    "n2 c64 h5 w7 k64 r1 s1 stride2",  # some of which no tap meets
    "n1 c12 d4 h3 w5 k36 t2 r3 s3 pad1 stride1x2x1",
    "n1 c8 w70 k16 s4 pad1:2",  # short rows
    "n1 c8 h12 w11 k8 r3 s3 pad1",
    "n2 c64 h4 w5 k64 r3 s3 pad1 g2",
    "n1 c36 h8 w9 k40 r3 s3 pad2 dil2",
]


def of(words: str, direction: str = "bwd_data") -> Any:
    return convolution(f"conv_{direction} {words} f32 nhwc")


def planned(tile: Tile, splits: int = 1, keeps_b: bool = False) -> Any:
    """A blocking of such a tile, whatever the product."""

    def blocking(products: Any, traits: Any, space: Any, *_: Any, **__: Any) -> tuple[Blocking, float]:
        row, lines = space.row, traits.lines
        length = -(-products.longest // splits)
        kept = products.longest * tile.b_bytes(1, row, lines, True) if keeps_b else 0
        return Blocking(
            tile, 3, -(-products.longest // length), length, 1, 4, row=row, lines=lines, is_across=True,
            kept_bytes=kept,
        ), 1e-6  # fmt: skip

    return blocked_by(blocking)


def check(problem: Any, device: Any, algorithm: Any = None) -> None:
    algorithm = algorithm or WarpgroupGemmSwapped()
    plan = algorithm.sizes(problem, device)
    assert isinstance(plan, Plan), plan
    assert not any(plan.packs)
    assert plan.blocking.tile.swaps
    run_algorithm(algorithm, make_case(problem), device)


@pytest.mark.parametrize("words", LAYERS)
def test_layers(words: str, cuda_device: Any) -> None:
    check(of(words), cuda_device)


@pytest.mark.parametrize("tile", SWAPPED, ids=str)
def test_tiles(tile: Tile, cuda_device: Any) -> None:
    with planned(tile):
        check(of("n2 c264 h9 w15 k68 r1 s2"), cuda_device)


@pytest.mark.parametrize("tile", [Tile(2, 1, 2, 64, swaps=True), Tile(1, 2, 1, 32, swaps=True)], ids=str)
@pytest.mark.parametrize("splits", [2, 9])
def test_parts_of_k(splits: int, tile: Tile, cuda_device: Any) -> None:
    with planned(tile, splits):
        check(of("n2 c136 h6 w7 k68 r3 s3 pad1"), cuda_device)


def test_a_filter_that_stays(cuda_device: Any) -> None:
    with planned(Tile(2, 1, 1, 64, swaps=True), keeps_b=True):
        check(of("n4 c68 h7 w17 k40 r1 s2"), cuda_device)


@pytest.mark.parametrize(
    "words",
    ["n2 c72 h6 w5 k68 r3 s3 pad1", "n1 c36 h8 w9 k40 r3 s3 pad2 dil2", "n1 c8 h12 w11 k8 r3 s5 pad2"],
)
@pytest.mark.parametrize("rows", [1, 2])
def test_lines(rows: int, words: str, cuda_device: Any) -> None:
    with planned(Tile(3 - rows, 1, rows, 64, swaps=True)):
        check(of(words), cuda_device, WarpgroupGemmSwappedInLines())


def test_refusals(cuda_device: Any) -> None:
    def reason(problem: Any, epilogue: Any = None) -> str:
        return str(WarpgroupGemmSwapped().refuse(problem, cuda_device, epilogue))

    words = "n2 c72 h6 w5 k68 r3 s3 pad1"
    assert "operands of bf16" in reason(convolution(f"conv_bwd_data {words} bf16 nhwc"))
    assert "innermost in a filter of f32" in reason(of(words, "fwd"))
    assert "innermost in a filter of f32" in reason(convolution(f"conv_bwd_data {words} f32"))
    problem = of(words)
    other = replace(problem, x=TensorDescriptor.packed(problem.x.shape, "f32"))
    assert "by 16 bytes of channels" in reason(other)
    assert "apply it to the result" in reason(problem, fused(problem, "bias"))

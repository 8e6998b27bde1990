"""Filter gradients of few channels by warpgroups: tiles of 32 columns, and x in the place of dy."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from cases import make_case
from convolution_cases import convolution
from harness import run_algorithm
from jitdnn.kernels.cuda.convolution.warpgroup_gemm import algorithm as algorithms
from jitdnn.kernels.cuda.convolution.warpgroup_gemm.algorithm import WarpgroupWgrad
from jitdnn.kernels.cuda.convolution.warpgroup_gemm.exchanged import exchanged
from jitdnn.kernels.cuda.convolution.warpgroup_gemm.plan import Plan
from jitdnn.kernels.cuda.warpgroup.tile import Tile
from warpgroup_cases import aligned, on_hopper  # noqa: F401

NARROW = (Tile(2, 1, 2, 32), Tile(1, 1, 1, 32))


@pytest.mark.parametrize("tile", NARROW, ids=str)
@pytest.mark.parametrize(
    "words",
    [
        "n2 c32 h9 w8 k72 r1 s1 bf16",
        "n1 c24 h7 w9 k40 r3 s3 pad1 stride1x2 f16",
        "n1 c16 d2 h5 w6 k64 t1 r2 s3 pad0x1x1 bf16",
        "n2 c32 h6 w7 k16 r3 s1 dil2x1 flip bf16",
    ],
)
def test_columns_of_half_a_block(words: str, tile: Tile, cuda_device: Any) -> None:
    """The channels of a tap are whole tiles of 32, whatever there are."""
    problem, algorithm = convolution(f"{words} nhwc", "bwd_filter"), WarpgroupWgrad((tile,))
    plan = algorithm.sizes(problem, cuda_device)
    assert isinstance(plan, Plan), plan
    assert plan.blocking.tile == tile
    run_algorithm(algorithm, make_case(problem), cuda_device)


@pytest.mark.parametrize("words", ["n2 c136 h9 w8 k32 r1 s1 bf16", "n1 c72 h7 w9 k8 r3 s2 pad1x0 f16"])
def test_few_channels_of_dy_are_columns(
    words: str, cuda_device: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(algorithms, "_FASTER", 1e9)
    problem, algorithm = (
        convolution(f"{words} nhwc", "bwd_filter"),
        WarpgroupWgrad((NARROW[0], Tile(1, 1, 1, 64))),
    )
    plan = algorithm.sizes(problem, cuda_device)
    assert isinstance(plan, Plan), plan
    assert [one.operand for one in plan.tables.maps[:2]] == [0, 1]  # x is the first factor, and dy the second
    run_algorithm(algorithm, make_case(problem), cuda_device)


@pytest.mark.parametrize(("x", "dy"), [("nchw", "nhwc"), ("nhwc", "nchw"), ("nchw", "nchw")])
def test_what_is_packed_keeps_its_place(
    x: str, dy: str, cuda_device: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Kernels that pack take the operands by their place among the arguments."""
    monkeypatch.setattr(algorithms, "_FASTER", 1e9)
    of_x, of_dy = (convolution(f"n2 c136 h9 w8 k32 r1 s1 bf16 {one}", "bwd_filter") for one in (x, dy))
    problem = replace(of_x, y=of_dy.y)
    run_algorithm(WarpgroupWgrad((NARROW[0], Tile(1, 1, 1, 64))), make_case(problem), cuda_device)


def test_other_gradients_are_taken_as_they_are() -> None:
    for words in ("n2 c32 h9 w8 k32 r1 s1", "n2 c64 h9 w8 k48 r1 s1", "n2 c64 h9 w8 k32 r1 s1 stride2"):
        assert exchanged(convolution(f"{words} bf16 nhwc", "bwd_filter")) is None

"""Filter gradients by warpgroups whose taps along the last axis share what is copied of x."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from cases import make_case
from convolution_cases import convolution
from harness import run_algorithm
from jitdnn.devices.cuda import offline
from jitdnn.kernels.cuda.convolution.warpgroup_gemm import choose, wgrad
from jitdnn.kernels.cuda.convolution.warpgroup_gemm.algorithm import (
    WarpgroupGemm,
    WarpgroupWgrad,
    WarpgroupWgradInLines,
)
from jitdnn.kernels.cuda.convolution.warpgroup_gemm.code import source_of
from jitdnn.kernels.cuda.convolution.warpgroup_gemm.halves import WarpgroupWgradDividedInLines
from jitdnn.kernels.cuda.convolution.warpgroup_gemm.plan import Plan
from jitdnn.kernels.cuda.convolution.warpgroup_gemm.scaled import (
    WarpgroupWgradScaledDividedInLines,
)
from jitdnn.kernels.cuda.warpgroup.tile import TILES, Tile
from warpgroup_cases import DATA, aligned, check_not_finite, normal, on_hopper  # noqa: F401

TWO, THREE, FOUR = Tile(1, 1, 1, 128), Tile(1, 1, 1, 192), Tile(2, 1, 1, 256)
"""How many taps share a line."""
# with the pixels of a segment
LAYERS: dict[str, tuple[Tile, int]] = {
    "n2 c64 h9 w16 k64 r3 s3 pad1 bf16": (THREE, 16),
    "n2 c72 h9 w21 k72 r3 s5 pad1 stride2x1 f16": (Tile(2, 1, 1, 192), 32),
    "n1 c80 h4 w62 k64 r1 s2 bf16": (Tile(1, 2, 1, 128), 64),
    "n1 c16 d3 h5 w33 k64 t2 r1 s4 pad1 dil2x1x1 g2 bf16 flip": (FOUR, 32),
    "n3 c5 h5 w1 k9 r3 s3 pad1 bf16": (TWO, 16),
    "n2 c24 h3 w30 k136 r2 s9 pad4 bf16": (THREE, 32),
}

# those of f32, as halves: of many pieces of work, of several for a thread block, of one
HALVES: dict[str, tuple[Tile, int]] = {
    "n2 c64 h9 w16 k64 r3 s3 pad1": (THREE, 16),
    "n2 c72 h9 w33 k136 r3 s5 pad1 stride2x1": (Tile(2, 1, 1, 128), 32),
    "n1 c80 h4 w62 k64 r1 s2": (Tile(1, 2, 1, 128), 64),
    "n1 c16 d3 h5 w33 k64 t2 r1 s3 pad1 dil2x1x1 g2 flip": (THREE, 32),
    "n2 c24 h3 w70 k136 r2 s9 pad4": (TWO, 64),
}
OF_F32 = (
    WarpgroupWgradDividedInLines,
    WarpgroupWgradScaledDividedInLines,
)
DIVIDING = (
    replace(THREE, dividers=2),
    replace(TWO, dividers=1),
    Tile(2, 1, 1, 128, dividers=1),
    Tile(2, 1, 1, 192),
)


def planned(
    words: str, device: Any, tiles: tuple[Tile, ...], kind: type[WarpgroupGemm] = WarpgroupWgradInLines
) -> tuple[Any, Any, Plan]:
    problem, algorithm = convolution(f"conv_bwd_filter {words} nhwc"), kind(tiles)
    plan = algorithm.sizes(problem, device)
    assert isinstance(plan, Plan), plan
    return problem, algorithm, plan


@contextmanager
def in_segments_of(pixels: int) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(wgrad, "SEGMENTS", (pixels,))
        choose.plan_of.cache_clear()
        yield
    choose.plan_of.cache_clear()


@pytest.mark.parametrize("words", LAYERS)
def test_every_kind_of_line(words: str, cuda_device: Any) -> None:
    """Lines that are no whole segments, more taps than share one, strides and dilations of the other axes."""
    tile, segment = LAYERS[words]
    with in_segments_of(segment):
        problem, algorithm, plan = planned(words, cuda_device, (tile,))
        assert plan.segment == segment
        run_algorithm(algorithm, make_case(problem), cuda_device)


@pytest.mark.parametrize("kind", OF_F32)
@pytest.mark.parametrize("words", HALVES)
def test_halves(words: str, kind: type[WarpgroupGemm], cuda_device: Any) -> None:
    """Divided in shared memory, where stages have room for more pixels of x than there are."""
    tile, segment = HALVES[words]
    with in_segments_of(segment):
        problem, algorithm, plan = planned(f"{words} f32", cuda_device, (tile,), kind)
        assert plan.segment == segment
        run_algorithm(algorithm, make_case(problem), cuda_device)


@pytest.mark.parametrize("value", [0.0, np.inf, np.nan])
@pytest.mark.parametrize("tile", DIVIDING, ids=str)
def test_warpgroups_that_divide(tile: Tile, value: float, cuda_device: Any) -> None:
    """Lines that end inside of a segment, also where something is not finite."""
    with in_segments_of(32):
        problem, algorithm, _ = planned(
            "n3 c136 h5 w39 k72 r2 s3 pad1 f32", cuda_device, (tile,), WarpgroupWgradDividedInLines
        )
        if value == 0.0:
            run_algorithm(algorithm, make_case(problem), cuda_device, scales=((-0.75, 0.5),))
        else:
            check_not_finite(problem, algorithm, cuda_device, value, 1e-4)


@pytest.mark.parametrize("kind", OF_F32)
@pytest.mark.parametrize("data", DATA)
def test_halves_are_as_exact_as_declared(data: str, kind: type[WarpgroupGemm], cuda_device: Any) -> None:
    problem, rng = (
        convolution("conv_bwd_filter n2 c16 h9 w21 k24 r3 s3 pad1 f32 nhwc"),
        np.random.default_rng(7),
    )
    other = normal if data in ("tiny", "subnormal", "huge") else DATA[data]
    inputs = [
        make(rng, operand.descriptor.shape).astype(np.float32)
        for make, operand in zip((DATA[data], other), problem.inputs, strict=True)
    ]
    run_algorithm(kind(), make_case(problem, None, 0, inputs), cuda_device, scales=((1.0, 0.0),))


def test_refusals(cuda_device: Any) -> None:
    def reason(words: str) -> str:
        return str(WarpgroupWgradInLines().refuse(convolution(f"conv_bwd_filter {words} nhwc"), cuda_device))

    assert "stride and dilation are 1" in reason("n1 c64 h9 w16 k64 r3 s3 stride1x2 bf16")
    assert "stride and dilation are 1" in reason("n1 c64 h9 w16 k64 r3 s3 dil1x2 bf16")
    assert "shares its line with no other" in reason("n1 c64 h9 w16 k64 r3 s1 bf16")
    assert "read along K alone" in reason("n1 c64 h9 w16 k64 r3 s3 f32")


@pytest.mark.parametrize(
    "words",
    ["n2 c64 d64 h64 w64 k64 t3 r3 s3", "n16 c64 d16 h56 w56 k64 t3 r3 s3", "n64 c64 h224 w224 k64 r3 s3"],
)
def test_few_channels_are_expected_to_gain(words: str) -> None:
    """What limits them is the copy engine, which has fewer rows of x to copy; deeper stages do not make up for that."""
    problem = convolution(f"conv_bwd_filter {words} pad1 bf16 nhwc")
    device = offline("sm_90a")
    plain, lines = WarpgroupWgrad().sizes(problem, device), WarpgroupWgradInLines().sizes(problem, device)
    assert isinstance(plain, Plan)
    assert isinstance(lines, Plan)
    assert lines.seconds < plain.seconds


def test_compiles(architecture: Any) -> None:
    """The tiles of most registers, without spilling them."""
    for tile in (TILES[0], TILES[1], THREE):
        problem, _, plan = planned("n64 c128 h28 w28 k256 r3 s3 pad1 bf16", architecture, (tile,))
        architecture.compile(source_of(plan, problem.output, None))

"""Convolutions by warpgroups that leave out the products of taps that read padding alone, in phases of their own."""

from __future__ import annotations

import math
from typing import Any

import pytest

from cases import make_case
from convolution_cases import convolution
from harness import run_algorithm
from jitdnn.kernels.algorithm import Epilogue
from jitdnn.kernels.cuda.convolution.warpgroup_gemm import edges
from jitdnn.kernels.cuda.convolution.warpgroup_gemm.algorithm import WarpgroupGemm, WarpgroupGemmInLines
from jitdnn.kernels.cuda.convolution.warpgroup_gemm.choose import plan_of
from jitdnn.kernels.cuda.convolution.warpgroup_gemm.plan import Plan
from jitdnn.kernels.cuda.warpgroup.plan import Blocking, Products
from jitdnn.kernels.cuda.warpgroup.tile import Tile
from jitdnn.problems.convolution import Convolution
from jitdnn.rtcg.expression import trace
from jitdnn.rtcg.functions import maximum
from jitdnn.tensor import TensorDescriptor
from warpgroup_cases import SMALL, aligned, blocked_by, on_hopper  # noqa: F401

# by problem: the tile, and taps of each phase along the axis that is divided, in the order of the phases
LAYERS = {
    "conv_fwd n2 c72 d4 h5 w6 k72 t3 r3 s3 pad1 bf16": (SMALL, [3, 2, 2]),
    "conv_bwd_data n2 c72 d4 h5 w6 k40 t3 r3 s3 pad1 bf16": (SMALL, [3, 2, 2]),
    "conv_fwd n3 c64 d2 h5 w7 k64 t3 r3 s3 pad1 f16": (Tile(1, 2, 1, 64), [2, 2]),
    "conv_fwd n2 c64 h15 w9 k72 r3 s1 pad6x0 dil6x1 bf16": (SMALL, [3, 2, 2]),
    "conv_fwd n2 c64 h13 w9 k72 r3 s1 pad9x0 dil9x1 bf16 flip": (SMALL, [2, 2, 1]),
    "conv_bwd_data n2 c64 h3 w9 k64 r5 s3 pad2x1 bf16": (Tile(2, 1, 2, 64), [3, 3, 3]),
    "conv_fwd n2 c64 h7 w9 k64 r7 s3 pad3x1 stride2x1 bf16": (SMALL, [6, 6, 4, 4]),
    "conv_fwd n1 c64 h5 w21 k64 r1 s9 pad0x4 bf16": (SMALL, [9, 8, 8, 7, 7, 6, 6, 5]),
    "conv_fwd n2 c64 h4 w9 k64 r3 s3 pad5x1 bf16": (SMALL, [3, 2, 2, 1, 1, 0, 0]),
    "conv_fwd n2 c36 h4 w9 k72 r3 s3 pad1 f32": (SMALL, [3, 2, 2]),
    "conv_fwd n2 c64 h4 w9 k128 r3 s3 pad1 g2 bf16": (SMALL, [3, 2, 2]),
    "conv_fwd n2 c64 h4 w9 k20 r3 s3 pad1 bf16": (SMALL, [3, 2, 2]),
}


@pytest.fixture(autouse=True)
def however_little_is_saved(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(edges, "LEAST_SAVED", 0.01)


class Inside(WarpgroupGemm):
    axes = 1

    def sizes(self, problem: Convolution, device: Any, epilogue: Any = None) -> Plan | str:
        return plan_of(problem, device, self._tiles, True, skips_padding=self.axes)


@pytest.mark.parametrize("words", LAYERS)
def test_taps_that_read_padding_alone(words: str, cuda_device: Any) -> None:
    tile, taps = LAYERS[words]
    problem, algorithm = convolution(f"{words} nhwc"), Inside((tile,))
    plan = algorithm.sizes(problem, cuda_device)
    assert isinstance(plan, Plan), plan
    assert plan.phases == len(taps)
    of_phase = [plan.tables.numbers[29 * phase :][5:29:9] for phase in range(plan.phases)]
    assert [math.prod(one) * max(taps) for one in of_phase] == [one * math.prod(of_phase[0]) for one in taps]
    run_algorithm(algorithm, make_case(problem), cuda_device)


class InsideOfTwo(Inside):
    axes = 2


TWO = {
    "conv_fwd n2 c64 h5 w6 k72 r3 s3 pad1 bf16": 6,
    "conv_bwd_data n2 c64 h9 w8 k64 r5 s3 bf16": 8,
    "conv_fwd n2 c64 d2 h5 w4 k64 t3 r1 s3 pad1x0x1 f16": 6,
}


@pytest.mark.parametrize("words", TWO)
def test_taps_along_two_axes(words: str, cuda_device: Any) -> None:
    """No more phases than there is code for: runs that nearly the same taps meet are one."""
    problem, algorithm = convolution(f"{words} nhwc"), InsideOfTwo((SMALL,))
    plan = algorithm.sizes(problem, cuda_device)
    assert isinstance(plan, Plan), plan
    assert plan.phases == TWO[words]
    run_algorithm(algorithm, make_case(problem), cuda_device)


LINES = {
    "conv_fwd n2 c64 h5 w16 k64 r3 s3 pad1 bf16": 3,
    "conv_bwd_data n1 c32 d3 h5 w33 k32 t3 r3 s3 pad1 f16": 3,
    "conv_fwd n2 c32 h9 w23 k32 r3 s6 pad1x2 stride2 bf16": 3,
    "conv_fwd n2 c32 h8 w22 k32 r3 s3 pad1 stride2 bf16": 2,
    "conv_fwd n1 c64 h7 w30 k64 r1 s5 pad0x2 f16": None,
}


@pytest.mark.parametrize("words", LINES)
def test_taps_of_lines(words: str, cuda_device: Any) -> None:
    """Along another axis than that whose taps share pixels."""

    class InLines(WarpgroupGemmInLines):
        def sizes(self, problem: Convolution, device: Any, epilogue: Any = None) -> Plan | str:
            return plan_of(problem, device, self._tiles, True, is_in_lines=True, skips_padding=1)

    problem, algorithm = convolution(f"{words} nhwc"), InLines((Tile(2, 1, 2, 32), SMALL))
    plan = algorithm.sizes(problem, cuda_device)
    if LINES[words] is None:
        assert plan == "few taps read nothing but padding, of any result"
        return
    assert isinstance(plan, Plan), plan
    assert plan.phases == LINES[words]
    assert plan.blocking.lines.taps > 1
    run_algorithm(algorithm, make_case(problem), cuda_device)


def test_with_an_epilogue(cuda_device: Any) -> None:
    """Whose operands lie as the results do: each row is one of another phase."""
    problem, algorithm = convolution("conv_fwd n2 c64 h5 w6 k72 r3 s3 pad1 f16 nhwc"), InsideOfTwo((SMALL,))
    residual = TensorDescriptor.packed(problem.output.shape, "f16", "nhwc")
    bias = TensorDescriptor(problem.output.shape, (0, 1, 0, 0), "f16")
    epilogue = Epilogue(trace(lambda acc, b, r: maximum(acc + b + r, 0.0)), (bias, residual))
    run_algorithm(algorithm, make_case(problem, epilogue), cuda_device)


SPLIT = {
    "conv_fwd n3 c72 d2 h5 w7 k72 t3 r3 s3 pad1 bf16": True,
    "conv_bwd_data n3 c72 h9 w11 k72 r4 s4 pad1 stride2 bf16": False,
}


@pytest.mark.parametrize("words", SPLIT)
def test_phases_of_as_many_products_are_split(words: str, cuda_device: Any) -> None:
    """Parts of K of phases, of stride phases too: the last part of each has fewer stages."""

    def blocking(products: Products, *_: Any, **__: Any) -> tuple[Blocking, float]:
        assert len(set(products.blocks)) == 1
        length = -(-products.longest // 5)
        return Blocking(SMALL, 3, 5, length, 1, 2, is_across=products.is_across), 1e-5

    algorithm: WarpgroupGemm = Inside() if SPLIT[words] else WarpgroupGemm()
    problem = convolution(f"{words} nhwc")
    with blocked_by(blocking):
        plan = algorithm.sizes(problem, cuda_device)
        assert isinstance(plan, Plan), plan
        assert plan.phases > 1
        assert plan.blocking.is_split
        run_algorithm(algorithm, make_case(problem), cuda_device)

"""What epilogues are expected to cost, and that tiles are chosen by it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from convolution_cases import convolution
from jitdnn.devices import cuda
from jitdnn.kernels.algorithm import Epilogue
from jitdnn.kernels.cuda.convolution.warpgroup_gemm.algorithm import WarpgroupGemm
from jitdnn.kernels.cuda.convolution.warpgroup_gemm.finish import finish_of
from jitdnn.kernels.cuda.convolution.warpgroup_gemm.plan import Plan
from jitdnn.kernels.cuda.warpgroup.plan import NO_FINISH, Products
from jitdnn.kernels.cuda.warpgroup.tile import TILES, WHOLE, Tile
from jitdnn.rtcg.expression import trace
from jitdnn.rtcg.functions import erf, maximum
from jitdnn.tensor import TensorDescriptor

FORMULAS: dict[str, Any] = {
    "relu": lambda acc, b: maximum(acc + b, 0.0),
    "gelu": lambda acc, b: (acc + b) * (erf((acc + b) / 2.0**0.5) + 1.0) * 0.5,
    "residual": lambda acc, b, r: maximum(acc + b + r, 0.0),
}


def epilogue(problem: Any, name: str) -> Epilogue:
    shape, strides = problem.y.shape, [(0, 1, 0, 0), problem.y.strides]
    expression = trace(FORMULAS[name])
    operands = tuple(TensorDescriptor(shape, one, "f16") for one in strides[: expression.arity - 1])
    return Epilogue(expression, operands)


def test_more_costs_more() -> None:
    problem = convolution("conv_fwd n1 c96 h1 w6272 k384 r1 s1 f16 nhwc")
    assert finish_of(None, "f16") == NO_FINISH
    costs = {name: finish_of(epilogue(problem, name), "f16") for name in FORMULAS}
    assert costs["relu"].instructions < costs["residual"].instructions < costs["gelu"].instructions
    assert costs["relu"].nbytes == costs["gelu"].nbytes == 0
    assert costs["residual"].nbytes == problem.y.nbytes
    # in f32 erf is computed, and a division
    assert finish_of(epilogue(problem, "gelu"), "f32").instructions > costs["gelu"].instructions + 10


def test_what_the_copy_engine_brings_costs_threads_less() -> None:
    """One operand that lies as the results do, of their type; not where thread blocks share the K of all tiles."""
    problem, device = convolution("conv_fwd n1 c96 h1 w6272 k384 r1 s1 f16 nhwc"), cuda.offline("sm_90a")
    own = epilogue(problem, "residual")
    finish = finish_of(own, "f16")
    assert 0 < finish.read < finish.instructions
    assert finish_of(epilogue(problem, "relu"), "f16").read == finish_of(own, "f32").read == 0
    plan: Any = WarpgroupGemm((Tile(2, 1, 1, 128),)).sizes(problem, device, own)
    products = Products((6272,), (2,), 384, 1)
    assert plan.blocking.brings(finish, products)
    assert not plan.blocking.brings(NO_FINISH, products)
    assert not replace(plan.blocking, sharers=128).brings(finish, products)
    assert not plan.blocking.brings(finish, replace(products, rows=(3136, 3136), blocks=(2, 2)))


def test_large_tiles_take_epilogues_for_which_they_have_registers() -> None:
    problem, device = convolution("conv_fwd n1 c1536 h1 w12544 k384 r1 s1 f16 nhwc"), cuda.offline("sm_90a")
    for name in FORMULAS:
        plan: Any = WarpgroupGemm((*TILES, *WHOLE)).sizes(problem, device, epilogue(problem, name))
        assert plan.blocking.tile == Tile(3, 1, 1, 192)
        assert isinstance(
            WarpgroupGemm((Tile(2, 1, 2, 192),)).sizes(problem, device, epilogue(problem, name)), str
        )
    assert isinstance(WarpgroupGemm((Tile(2, 1, 2, 192),)).sizes(problem, device), Plan)
    two = Epilogue(trace(lambda acc, r, s: acc + r * s), (problem.y, problem.y))
    assert isinstance(WarpgroupGemm(WHOLE).sizes(problem, device, two), str)


def test_one_buffer_of_results_where_a_stage_takes_the_place_of_the_other() -> None:
    assert {tile for tile in (*TILES, *WHOLE) if tile.buffers(2) == 1} == {Tile(3, 1, 1, 192)}
    assert Tile(3, 1, 1, 192).stages(227 << 10, 1, False, 2) == 4


@pytest.mark.parametrize("name", FORMULAS)
def test_estimates_are_compared_without_epilogues(name: str) -> None:
    problem, device = convolution("conv_fwd n1 c96 h1 w100352 k384 r1 s1 f16 nhwc"), cuda.offline("sm_90a")
    algorithm, own = WarpgroupGemm(), epilogue(problem, name)
    assert algorithm.estimate(problem, device, own) == algorithm.estimate(problem, device)
    plan: Any = algorithm.sizes(problem, device, own)
    bare: Any = algorithm.sizes(problem, device)
    assert plan.seconds > bare.seconds


def test_columns_of_few_tiles_lie_outside() -> None:
    """Where memory is the limit, tiles of 128 columns are as fast by their estimate."""
    problem = convolution("conv_fwd n1 c384 h1 w100352 k96 r1 s1 f16 nhwc")
    plan: Any = WarpgroupGemm().sizes(problem, cuda.offline("sm_90a"))
    assert plan.blocking.tile.n == 96

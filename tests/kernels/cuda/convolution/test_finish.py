"""What epilogues are expected to cost, and that tiles are chosen by it."""

from __future__ import annotations

from typing import Any

import pytest

from convolution_cases import convolution
from jitdnn.devices import cuda
from jitdnn.kernels.algorithm import Epilogue
from jitdnn.kernels.cuda.convolution.warpgroup_gemm.algorithm import WarpgroupGemm
from jitdnn.kernels.cuda.convolution.warpgroup_gemm.finish import finish_of
from jitdnn.kernels.cuda.warpgroup.plan import NO_FINISH
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

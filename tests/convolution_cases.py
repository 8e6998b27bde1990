"""What the tests of convolutions share: problems from their words, and epilogues."""

from __future__ import annotations

from jitdnn.kernels.algorithm import Epilogue
from jitdnn.problems import Convolution, parse
from jitdnn.rtcg.expression import apply, trace
from jitdnn.tensor import TensorDescriptor


def convolution(words: str, direction: str | None = None) -> Convolution:
    """The convolution of a problem string, or of its words alone in this direction."""
    problem = parse(words if direction is None else f"conv_{direction} {words}")
    assert isinstance(problem, Convolution)
    return problem


def bias_of(problem: Convolution) -> TensorDescriptor:
    """One number a channel, broadcast over the output of the problem."""
    shape = problem.output.shape
    return TensorDescriptor(shape, (0, 1, *([0] * (len(shape) - 2))), problem.dtype)


def fused(problem: Convolution, expression: str) -> Epilogue:
    """An epilogue by its name: of the sum alone, or with a bias, a residual or a scalar."""
    bias, residual = bias_of(problem), TensorDescriptor.packed(problem.output.shape, problem.dtype, "nhwc")
    scalar = TensorDescriptor(problem.output.shape, (0,) * len(problem.output.shape), problem.dtype)
    return {
        "activation": Epilogue(trace(lambda acc: apply("relu", acc))),
        "bias": Epilogue(trace(lambda acc, bias: acc + bias), (bias,)),
        "residual": Epilogue(
            trace(lambda acc, bias, residual: apply("relu", acc + bias) + residual), (bias, residual)
        ),
        "scalar": Epilogue(trace(lambda acc, scalar: apply("tanh", acc) + scalar), (scalar,)),
    }[expression]

"""What the tests of convolutions share: problems from their words, and epilogues."""

from __future__ import annotations

from typing import Any

from jitdnn.kernels.algorithm import Epilogue
from jitdnn.problems import Convolution, Problem, parse
from jitdnn.rtcg.expression import Expression, apply, trace
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


def sizes_of(operands: int) -> Expression:
    """The sum of the sizes of the result and one to three operands: nothing in it cancels."""

    def size(value: Any) -> Any:
        return apply("absolute", value)

    return {
        1: trace(lambda acc, a: size(acc) + size(a)),
        2: trace(lambda acc, a, b: size(acc) + size(a) + size(b)),
        3: trace(lambda acc, a, b, c: size(acc) + size(a) + size(b) + size(c)),
    }[operands]


def operand_of(problem: Problem, kind: str) -> TensorDescriptor:
    """An operand of an epilogue, of the result's shape: a bias, a residual in some order, or a broadcast one."""
    result = problem.output
    dense = TensorDescriptor.packed(result.shape, result.dtype).strides
    strides = {
        "bias": (0, 1, *([0] * (len(result.shape) - 2))),
        "nchw": dense,
        "nhwc": TensorDescriptor.packed(result.shape, result.dtype, "nhwc").strides,
        "gaps": tuple(2 * stride for stride in dense),
        "row": (*([0] * (len(result.shape) - 1)), 1),
        "image": (0, *dense[1:]),
    }
    return TensorDescriptor(result.shape, strides[kind], result.dtype)


def sum_of_sizes(problem: Problem, *kinds: str) -> Epilogue:
    """An epilogue of as many operands as there are `kinds`; see `operand_of`."""
    return Epilogue(sizes_of(len(kinds)), tuple(operand_of(problem, kind) for kind in kinds))

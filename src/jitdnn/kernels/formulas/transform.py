"""Copies into other layouts, with borders, folded or joined, as elementwise loops over parts of the tensors."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Sequence

from jitdnn.kernels.algorithm import (
    UNIT_ROUNDOFF,
    Device,
    Epilogue,
    Kernel,
    OwnProblem,
    PlannedAlgorithm,
)
from jitdnn.kernels.formulas.elementwise import ElementwiseGenerator
from jitdnn.kernels.formulas.parts_kernel import PartsKernel
from jitdnn.problems.transform import Concatenate, Transform
from jitdnn.rtcg.expression import Expression, Graph, finish, trace
from jitdnn.tensor import DTYPES, REAL_DTYPES, TensorDescriptor, compute_dtype

COPY = trace(lambda a: a)
_CALL_SECONDS = 1e-7  # of a problem without elements
# an expression, and the operands it is about with the part of each: the last one is the output
Part = tuple[Expression, list[tuple[int, TensorDescriptor]]]


def constant(value: float) -> Expression:
    """The expression of no inputs that is always `value`."""
    graph = Graph(())
    return finish(graph, graph.constant(value))


def transform_parts(transform: Transform) -> Iterator[Part]:
    """One pass over the elements, and one over each side of the border."""
    x, y = transform.x, transform.y
    if transform.how != "transform":
        many, few = (x, y) if transform.how == "fold" else (y, x)
        views = {id(many): split_space(many, transform.factors), id(few): split_channels(few, transform)}
        yield COPY, [(0, views[id(x)]), (1, views[id(y)])]
        return
    ranges = [
        slice(before, before + extent) for extent, (before, _) in zip(x.shape, transform.padding, strict=True)
    ]
    yield COPY, [(0, x), (1, y.slice(*ranges))]
    value = constant(transform.value)
    for axis, (before, after) in enumerate(transform.padding):
        # of axes that are done already only the inside is left
        inside: list[slice | None] = [*ranges[:axis]]
        for side in (slice(0, before), slice(y.shape[axis] - after, y.shape[axis])):
            if side.stop > side.start:
                yield value, [(1, y.slice(*inside, side))]


def split_space(tensor: TensorDescriptor, factors: Sequence[int]) -> TensorDescriptor:
    """(N, C, blocks of each axis, elements in a block of each axis)."""
    shape, strides = tensor.shape, tensor.strides
    blocks = [extent // factor for extent, factor in zip(shape[2:], factors, strict=True)]
    steps = [stride * factor for stride, factor in zip(strides[2:], factors, strict=True)]
    return TensorDescriptor(
        (*shape[:2], *blocks, *factors), (*strides[:2], *steps, *strides[2:]), tensor.dtype
    )


def split_channels(tensor: TensorDescriptor, transform: Transform) -> TensorDescriptor:
    """The same axes of a tensor whose channels hold the elements of the blocks."""
    factors, (batch, step, *space) = transform.factors, tensor.strides
    channels = tensor.shape[1]
    for factor in factors:
        channels //= factor
    inner = step if transform.order == "crd" else step * channels
    steps: list[int] = []
    for factor in reversed(factors):
        steps.insert(0, inner)
        inner *= factor
    own = inner if transform.order == "crd" else step
    return TensorDescriptor(
        (tensor.shape[0], channels, *tensor.shape[2:], *factors), (batch, own, *space, *steps), tensor.dtype
    )


def concatenate_parts(joined: Concatenate) -> Iterator[Part]:
    """One pass over each part."""
    start = 0
    for number, part in enumerate(joined.parts):
        stop = start + part.shape[joined.axis]
        ranges: list[slice | None] = [*(None,) * joined.axis, slice(start, stop)]
        yield COPY, [(number, part), (len(joined.parts), joined.out.slice(*ranges))]
        start = stop


def _computing(expression: Expression, tensors: Sequence[TensorDescriptor]) -> str:
    dtypes = {tensor.dtype for tensor in tensors}
    is_integer_copy = expression is COPY and len(dtypes) == 1 and not dtypes & set(REAL_DTYPES)
    return tensors[-1].dtype if is_integer_copy else compute_dtype(*dtypes)


class _Copies(PlannedAlgorithm[OwnProblem, list[Part], Device]):
    """Elementwise loops one after the other, each over parts of the operands."""

    name = "elementwise"
    deterministic = True
    takes_no_epilogue = "copies take no epilogue: use jd.elementwise instead"

    def __init__(self, generator: ElementwiseGenerator) -> None:
        self.generator = generator

    @abstractmethod
    def parts(self, problem: OwnProblem) -> Iterator[Part]:
        """The loops, in order."""

    def refusal(self, problem: OwnProblem, device: Device, epilogue: Epilogue | None) -> str | None:
        return self.generator.refuse([operand.descriptor for operand in problem.operands], device)

    def plan(self, problem: OwnProblem, device: Device, epilogue: Epilogue | None) -> list[Part]:
        return [(e, tensors) for e, tensors in self.parts(problem) if tensors[-1][1].size]

    def seconds_of(self, plan: list[Part], device: Device) -> float:
        loops = (self.generator.estimate(e, [d for _, d in tensors], device) for e, tensors in plan)
        return _CALL_SECONDS + sum(loops)

    def error_of(self, problem: OwnProblem) -> float:
        return 2.0 * UNIT_ROUNDOFF[problem.dtype]

    def kernel_of(self, plan: list[Part], device: Device) -> Kernel:
        kernels = []
        for expression, tensors in plan:
            flat = [TensorDescriptor(d.shape, d.strides, d.dtype) for _, d in tensors]
            addresses = [(number, d.offset * DTYPES[d.dtype]) for number, d in tensors]
            kernel = self.generator.build(expression, flat, device, computing=_computing(expression, flat))
            kernels.append((kernel, addresses))
        return PartsKernel(kernels)


class CopyTransform(_Copies[Transform]):
    """One pass over the elements, and one over each side of the border."""

    problem = Transform

    def parts(self, problem: Transform) -> Iterator[Part]:
        return transform_parts(problem)


class CopyConcatenate(_Copies[Concatenate]):
    """One pass over each part."""

    problem = Concatenate

    def parts(self, problem: Concatenate) -> Iterator[Part]:
        return concatenate_parts(problem)

"""Copies into other layouts, with borders, folded or joined, as elementwise loops over parts of the tensors."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from jitdnn.kernels.algorithm import Kernel
from jitdnn.problems.transform import Concatenate, Transform
from jitdnn.rtcg.expression import Expression, Graph, finish, trace
from jitdnn.tensor import DTYPES, REAL_DTYPES, TensorDescriptor, compute_dtype

COPY = trace(lambda a: a)
# an expression, and the operands it is about with the part of each: the last one is the output
Part = tuple[Expression, list[tuple[int, TensorDescriptor]]]


class PartsKernel:
    """Kernels that follow each other, each on parts of some of the operands."""

    def __init__(self, parts: Sequence[tuple[Kernel, Sequence[tuple[int, int]]]]) -> None:
        self._parts = parts

    def __call__(
        self, stream: Any, pointers: Sequence[int], alpha: float, beta: float, workspace: int
    ) -> None:
        for kernel, places in self._parts:
            kernel(stream, [pointers[number] + offset for number, offset in places], alpha, beta, workspace)


def build_parts(
    parts: Iterator[Part], build: Callable[[Expression, Sequence[TensorDescriptor], str], Kernel]
) -> PartsKernel:
    """The kernel of all parts; `build` makes that of an expression over tensors in arithmetic of a type."""
    kernels = []
    for expression, tensors in parts:
        if tensors[-1][1].size == 0:
            continue
        flat = [TensorDescriptor(d.shape, d.strides, d.dtype) for _, d in tensors]
        places = [(number, d.offset * DTYPES[d.dtype]) for number, d in tensors]
        kernels.append((build(expression, flat, _computing(expression, flat)), places))
    return PartsKernel(kernels)


def _computing(expression: Expression, tensors: Sequence[TensorDescriptor]) -> str:
    dtypes = {tensor.dtype for tensor in tensors}
    is_whole = expression is COPY and len(dtypes) == 1 and not dtypes & set(REAL_DTYPES)
    return tensors[-1].dtype if is_whole else compute_dtype(*dtypes)


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

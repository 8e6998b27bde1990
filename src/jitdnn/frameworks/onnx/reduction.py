"""Reductions over axes, positions of extremes, running sums."""

from __future__ import annotations

from typing import Any

import numpy as np

from jitdnn.frameworks.onnx.operator import Array, Function, Site, table
from jitdnn.frameworks.onnx.pointwise import is_real, pointwise
from jitdnn.frameworks.onnx.spatial import Ints
from jitdnn.frameworks.onnx.views import chosen_axes
from jitdnn.graph import primitives as jd

_EXACT_IN_F64 = 2**53


def reduced(x: Array, op: str, over: tuple[int, ...], keepdims: bool, site: Site) -> Any:
    """One of the library's reductions over at least one axis; integers are reduced in float64 where that is
    exact."""
    shape = tuple(1 if axis in over else n for axis, n in enumerate(x.shape))
    if not keepdims:
        shape = tuple(n for axis, n in enumerate(x.shape) if axis not in over)
    if x.size == 0 and op in {"min", "max"}:
        # of a row without elements: the end of the type's range
        return np.full(shape, _end_of(x.dtype, op == "min"), x.dtype)
    if is_real(x):
        return jd.reduce(x, op, over).reshape(shape)
    if x.dtype == bool and op not in {"min", "max"}:
        raise site.refuse("truth values have no sum")
    y = reduced(x.astype(np.float64), op, over, keepdims, site)
    if x.dtype.itemsize > 4 and x.size and max(np.abs(y).max(), _largest(x)) >= _EXACT_IN_F64:
        raise site.refuse("integers beyond 2^53 are not covered")
    return y.astype(x.dtype)


def _largest(x: Array) -> int:
    return max(abs(int(x.min())), abs(int(x.max())))


def _end_of(dtype: np.dtype[Any], highest: bool) -> Any:
    if dtype.kind == "b":
        return highest
    if dtype.kind not in "iu":
        return np.inf if highest else -np.inf
    return np.iinfo(dtype).max if highest else np.iinfo(dtype).min


def _reduction(op: str, before: Any = None, after: Any = None) -> Function:
    """ONNX's form of a reduction, with a function of every element before and of every result after it."""

    def run(
        x: Array,
        given: Array | None = None,
        /,
        *,
        axes: Ints | None = None,
        keepdims: int = 1,
        noop_with_empty_axes: int = 0,
        site: Site,
    ) -> Array:
        over = _over(x, given if given is not None else axes, noop_with_empty_axes)
        y = x if before is None else pointwise(before, x)
        if over:
            y = reduced(y, op, over, bool(keepdims), site)
        elif op in {"norm1", "norm2"}:
            y = pointwise(abs, y)  # of a single element
        return y if after is None else pointwise(after, y)

    return run


def _over(x: Array, axes: Any, noop: int) -> tuple[int, ...]:
    """The axes that are reduced: all, where none are named, unless that is to mean none."""
    named = () if axes is None else chosen_axes(axes, x.ndim)
    return named if named or noop else tuple(range(x.ndim))


def log_sum_exp(
    x: Array,
    given: Array | None = None,
    /,
    *,
    axes: Ints | None = None,
    keepdims: int = 1,
    noop_with_empty_axes: int = 0,
    site: Site,
) -> Array:
    """log(sum(exp(x - m))) + m, m the greatest of the row, so that nothing overflows."""
    over = _over(x, given if given is not None else axes, noop_with_empty_axes)
    if not over:
        return x
    greatest = reduced(x, "max", over, True, site)
    # of rows without elements, or whose greatest is infinite, nothing is subtracted
    shift = pointwise(lambda m: jd.where(abs(m) < np.inf, m, 0.0), greatest)
    total = reduced(pointwise(lambda v, m: jd.exp(v - m), x, shift), "add", over, True, site)
    y = pointwise(lambda s, m: np.log(s) + m, total, shift)
    if keepdims:
        return y
    return y.reshape([n for axis, n in enumerate(y.shape) if axis not in over])


def _position(op: str) -> Function:
    def run(x: Array, /, *, axis: int = 0, keepdims: int = 1, select_last_index: int = 0) -> Any:
        """Of equals the last is the first one in a view from the end."""
        axis %= x.ndim
        data = x if is_real(x) else x.astype(np.float64)
        if select_last_index:
            data = np.flip(data, axis)
        _, found = jd.reduce(data, op, axis, keepdims=True, indices=True)
        if select_last_index:
            found = pointwise(lambda i: x.shape[axis] - 1.0 - i, found)
        return found if keepdims else found.reshape(x.shape[:axis] + x.shape[axis + 1 :])

    return run


def _running(reduce: str) -> Function:
    def run(x: Array, axis: Array, /, *, exclusive: int = 0, reverse: int = 0) -> Any:
        return jd.scan(reduce=reduce, exclusive=bool(exclusive), dtype=x.dtype)(
            x, axis=int(axis.item()), reverse=bool(reverse)
        )

    return run


OPERATORS = table(
    ArgMax=_position("max"),
    ArgMin=_position("min"),
    CumProd=_running("multiply"),
    CumSum=_running("add"),
    ReduceL1=_reduction("norm1"),
    ReduceL2=_reduction("norm2"),
    ReduceLogSum=_reduction("add", after=np.log),
    ReduceLogSumExp=log_sum_exp,
    ReduceMax=_reduction("max"),
    ReduceMean=_reduction("avg"),
    ReduceMin=_reduction("min"),
    ReduceProd=_reduction("mul"),
    ReduceSum=_reduction("add"),
    ReduceSumSquare=_reduction("add", before=lambda v: v * v),
)

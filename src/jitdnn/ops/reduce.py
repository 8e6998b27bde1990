"""Reductions over anybody's arrays."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from jitdnn.arguments import index_dtype, numbers, optional, settled_before, word, yes
from jitdnn.handle import Handle
from jitdnn.ops.call import Op, Recipe, call
from jitdnn.problems.reduce import INDEX_DTYPES, OPS, Reduce
from jitdnn.tensor import TensorDescriptor

Outs = TensorDescriptor | None | tuple[TensorDescriptor | None, ...]


def reduce(
    x: Any,
    op: str = "add",
    axes: int | Sequence[int] | None = None,
    keepdims: bool = False,
    indices: bool | str = False,
    propagate_nan: bool = True,
    alpha: float = 1.0,
    beta: float = 0.0,
    out: Any = None,
    handle: Handle | None = None,
) -> Any:
    """Return y = alpha * op(x) + beta * out, over `axes` (None: all), of x's dtype: float16, bfloat16, 32 or 64.

    `op`: "add", "mul", "min", "max", "amax" (the greatest size), "avg", "norm1", "norm2", "mul_no_zeros". The axes
    are left out of y's shape, or stay with extent 1 if `keepdims`; where no axis would be left y has shape (1,).
    Half-precision numbers are summed in float32, and long sums as if in more.

    With `indices` (True: "i64", or "u32", "i32", "i64"), for "min" and "max", returns (y, indices): where among the
    reduced elements each result stands, counted in the order of the axes, the first one of equals. `out` is then a
    pair. With `propagate_nan` min, max and amax are NaN where there is one; without it, NaN counts as absent.

    Raises InvalidShape, InvalidType, and InvalidArgument for an op or an axis that there is not, for indices of
    another op.
    """
    found = None if indices is False else index_dtype(indices, "indices", INDEX_DTYPES)
    return call(
        _REDUCE if found is None else _INDEXED, ("x",), (x,), (op, axes, keepdims, found, propagate_nan),
        out, alpha, beta, handle, results=1 if found is None else 2,
    )  # fmt: skip


def _make(
    inputs: Sequence[TensorDescriptor], outs: Outs, op: str, axes: int | Sequence[int] | None, keepdims: bool,
    found: str | None, propagate_nan: bool,
) -> Recipe:  # fmt: skip
    (x,) = inputs
    y, indices = outs if isinstance(outs, tuple) else (outs, None)
    return Recipe(Reduce.make(op, x, axes, keepdims, indices or found, propagate_nan, y=y))


_TAKES = (
    word("op", OPS),
    optional(numbers("axes")),
    yes("keepdims"),
    settled_before("indices"),
    yes("propagate_nan"),
)
_REDUCE = Op(_make, _TAKES)
_INDEXED = Op(_make, _TAKES)

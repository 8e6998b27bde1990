"""Rows of a table by their numbers over anybody's arrays, and the gradient by the table."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from jitdnn.arguments import integer_number, settled_before
from jitdnn.errors import InvalidArgument, InvalidType
from jitdnn.handle import Handle
from jitdnn.ops.call import Op, Recipe, call
from jitdnn.problems.embedding import INDEX_DTYPES, Embedding
from jitdnn.tensor import TensorDescriptor, borrow


def embedding(
    indices: Any,
    weight: Any,
    alpha: float = 1.0,
    beta: float = 0.0,
    out: Any = None,
    handle: Handle | None = None,
) -> Any:
    """Return y = alpha * weight[indices] + beta * out, of the shape (*indices.shape, columns).

    `weight`: (rows, columns), a real dtype. `indices`: int32 or int64, 1 to 7 dims, each from 0 to rows - 1. Raises
    InvalidArgument for an index that is not, with its place, but on a GPU, where the host looks at none; InvalidShape
    and InvalidType.
    """
    _check(indices, borrow(weight, False, "weight").descriptor.shape[0])
    return call(_FORWARD, ("weight", "indices"), (weight, indices), (), out, alpha, beta, handle)


def embedding_backward(
    dy: Any,
    indices: Any,
    rows: int,
    padding_idx: int | None = None,
    alpha: float = 1.0,
    beta: float = 0.0,
    out: Any = None,
    handle: Handle | None = None,
) -> Any:
    """Return dweight = alpha * (the sums of dy's rows by their index) + beta * out, of the shape (rows, columns).

    `dy`: (*indices.shape, columns). The row `padding_idx` gets nothing (negative: from the end). The sums are in
    float32 (float64 for float64) in a fixed order, however many threads there are. Raises as `embedding` does.
    """
    rows = integer_number(rows, "rows", 1)
    padding = None
    if padding_idx is not None:
        padding = integer_number(padding_idx, "padding_idx")
        if not -rows <= padding < rows:
            raise InvalidArgument(f"padding_idx is {padding}: it must be {-rows} to {rows - 1}, or None")
        padding %= rows
    _check(indices, rows)
    return call(_BACKWARD, ("dy", "indices"), (dy, indices), (rows, padding), out, alpha, beta, handle)


def _check(indices: Any, rows: int) -> None:
    """Every index is a row of the table."""
    array = borrow(indices, False, "indices")
    if array.descriptor.dtype not in INDEX_DTYPES:
        raise InvalidType(f"indices is {array.descriptor.dtype}: it must be i32 or i64 (int32 or int64)")
    if array.device_id is not None:
        return  # the host would have to wait for the GPU: its kernels read no row beyond the table
    values = array.numpy()
    if values.size == 0 or (values.min() >= 0 and values.max() < rows):
        return
    wrong = (values < 0) | (values >= rows)
    place = tuple(int(axis[0]) for axis in wrong.nonzero())
    raise InvalidArgument(
        f"indices{list(place)} is {values[place]}: the table has {rows} rows, so it must be 0 to {rows - 1}"
    )


def _make_forward(inputs: Sequence[TensorDescriptor], out: TensorDescriptor | None) -> Recipe:
    weight, indices = inputs
    return Recipe(Embedding.make("fwd", weight, indices, y=out))


def _make_backward(
    inputs: Sequence[TensorDescriptor], out: TensorDescriptor | None, rows: int, padding: int | None
) -> Recipe:
    dy, indices = inputs
    weight = out or TensorDescriptor.packed((rows, dy.shape[-1]), dy.dtype)
    return Recipe(Embedding("bwd", weight, indices, dy, padding))


_FORWARD = Op(_make_forward)
_BACKWARD = Op(_make_backward, (settled_before("rows"), settled_before("padding_idx")))

"""Operators that only move elements: put together, picked, padded, repeated, rearranged."""

from __future__ import annotations

from typing import Any

import numpy as np

from jitdnn.frameworks.onnx.operator import Array, Site, table
from jitdnn.frameworks.onnx.pointwise import is_real, pointwise
from jitdnn.frameworks.onnx.text import is_text
from jitdnn.frameworks.onnx.views import bounded, checked_indices, chosen_axes, whole
from jitdnn.graph import primitives as jd
from jitdnn.graph.tracer import operands_in


def concat(first: Array, /, *others: Array, axis: int) -> Any:
    if is_text(first):
        return np.concatenate((first, *others), axis)
    return jd.concat((first, *others), axis)


def gather(x: Array, indices: Array, /, *, axis: int = 0, site: Site) -> Any:
    """Rows of a table of real numbers are picked by the library, all else by NumPy."""
    rows = checked_indices(indices, x.shape[axis], site)
    if next(operands_in([x]), None) is not None:
        return np.take(x, rows, axis)
    if axis == 0 and x.ndim > 1 and is_real(x) and x.size and rows.size:
        y = jd.embedding(rows.reshape(-1), x.reshape(len(x), -1))
        return y.reshape(*rows.shape, *x.shape[1:])
    return np.take(x, rows, axis)


def gather_elements(x: Array, indices: Array, /, *, axis: int = 0, site: Site) -> Array:
    index: list[Any] = list(np.indices(indices.shape, sparse=True))
    index[axis] = checked_indices(indices, x.shape[axis], site)
    picked: Array = x[tuple(index)]
    return picked


def gather_nd(x: Array, indices: Array, /, *, batch_dims: int = 0, site: Site) -> Array:
    depth = indices.shape[-1]
    places = [
        checked_indices(indices[..., position], x.shape[batch_dims + position], site)
        for position in range(depth)
    ]
    batch = np.indices(indices.shape[:batch_dims], sparse=True)
    more = indices.ndim - 1 - batch_dims
    outer = [axis.reshape(*axis.shape, *(1,) * more) for axis in batch]
    picked: Array = x[(*outer, *places)]
    return picked


def pad(
    x: Array,
    amounts: Array | None = None,
    fill: Array | None = None,
    along: Array | None = None,
    /,
    *,
    mode: str = "constant",
    pads: Any = None,
    value: float = 0.0,
    site: Site,
) -> Any:
    """Negative amounts take elements away."""
    given = whole(amounts if amounts is not None else pads)
    axes = chosen_axes(along, x.ndim) if along is not None else tuple(range(x.ndim))
    pairs = [(0, 0)] * x.ndim
    for position, axis in enumerate(axes):
        pairs[axis] = (given[position], given[position + len(axes)])
    kept = x[tuple(slice(max(-a, 0), n - max(-b, 0)) for n, (a, b) in zip(x.shape, pairs, strict=True))]
    widths = [(max(a, 0), max(b, 0)) for a, b in pairs]
    bounded(tuple(n + a + b for n, (a, b) in zip(kept.shape, widths, strict=True)), x)
    if mode == "constant":
        constant = value if fill is None else fill.item()
        if is_real(x):
            return jd.transform(kept, pad=widths, value=constant)
        return np.pad(kept, widths, constant_values=constant)
    if mode not in {"edge", "reflect", "wrap"}:
        raise site.refuse(f"mode {mode!r} is not covered")
    return np.pad(kept, widths, mode=mode)  # type: ignore[call-overload]


def tile(x: Array, repeats: Array, /) -> Array:
    times = whole(repeats)
    if len(times) == x.ndim:
        bounded(tuple(n * max(count, 0) for n, count in zip(x.shape, times, strict=True)), x)
    return np.tile(x, times)


def trilu(x: Array, diagonal: Array | None = None, /, *, upper: int = 1) -> Array:
    k = 0 if diagonal is None else int(diagonal.item())
    return np.triu(x, k) if upper else np.tril(x, k)


def depth_to_space(x: Array, /, *, blocksize: int, mode: str = "DCR") -> Any:
    return jd.unfold(x, blocksize, mode.lower())


def space_to_depth(x: Array, /, *, blocksize: int, mode: str = "DCR") -> Any:
    return jd.fold(x, blocksize, mode.lower())


def reverse_sequence(x: Array, lengths: Array, /, *, batch_axis: int = 1, time_axis: int = 0) -> Array:
    moved = np.moveaxis(x, (batch_axis, time_axis), (0, 1))
    result = moved.copy()
    for row, length in enumerate(whole(lengths)):
        result[row, :length] = moved[row, :length][::-1]
    return np.moveaxis(result, (0, 1), (batch_axis, time_axis))


def one_hot(indices: Array, depth: Array, values: Array, /, *, axis: int = -1) -> Any:
    """Negative indices count from the end; those that are outside have no place."""
    count = int(depth.item())
    bounded((*indices.shape, max(count, 0)), values)
    axis = axis % (indices.ndim + 1)
    places = np.arange(count).reshape(-1, *(1,) * (indices.ndim - axis))
    where_ = np.expand_dims(indices.astype(np.int64, copy=False), axis)
    off, on = np.split(values, 2)
    return pointwise(
        lambda i, p, no, yes: jd.where((i == p) | (i + count == p), yes, no),
        where_, places, off, on, dtype=values.dtype,
    )  # fmt: skip


OPERATORS = table(
    Concat=concat,
    DepthToSpace=depth_to_space,
    Gather=gather,
    GatherElements=gather_elements,
    GatherND=gather_nd,
    OneHot=one_hot,
    Pad=pad,
    ReverseSequence=reverse_sequence,
    SpaceToDepth=space_to_depth,
    Tile=tile,
    Trilu=trilu,
)

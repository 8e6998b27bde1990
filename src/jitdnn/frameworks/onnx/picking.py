"""Operators that pick elements by what they are, put some in places that are data, or work on bits: all by NumPy."""

from __future__ import annotations

from typing import Any

import numpy as np

from jitdnn.errors import InvalidArgument
from jitdnn.frameworks.onnx.operator import Array, Site, table
from jitdnn.frameworks.onnx.views import bounded, checked_indices

_COMBINED = {"add": np.add, "mul": np.multiply, "min": np.minimum, "max": np.maximum}


def compress(x: Array, condition: Array, /, *, axis: int | None = None) -> Array:
    if axis is None:
        x, axis = x.reshape(-1), 0
    kept = np.flatnonzero(condition[: x.shape[axis]])
    return np.take(x, kept, axis)


def non_zero(x: Array, /) -> Array:
    found = np.nonzero(np.atleast_1d(x))
    return np.array(found[: x.ndim], np.int64).reshape(x.ndim, found[0].size)


def top_k(
    x: Array,
    wanted: Array | None = None,
    /,
    *,
    axis: int = -1,
    k: int | None = None,
    largest: int = 1,
    sorted: int = 1,
    site: Site,
) -> tuple[Array, Array]:
    """The greatest or smallest along an axis, in order; of equals the one with the lower index comes first."""
    if wanted is None and k is None:
        raise site.refuse("neither an input nor an attribute k, as before version 10, is given")
    count = int(wanted.item()) if wanted is not None else int(k or 0)
    if not 0 <= count <= x.shape[axis]:
        raise InvalidArgument(f"{site.operator}: k is {count}, and the axis has {x.shape[axis]} elements")
    # the stable order of the reversed array, reversed, keeps the first of equals in front
    if largest:
        order = x.shape[axis] - 1 - np.flip(np.argsort(np.flip(x, axis), axis, kind="stable"), axis)
    else:
        order = np.argsort(x, axis, kind="stable")
    chosen = np.take(order, np.arange(count), axis)
    return np.take_along_axis(x, chosen, axis), chosen.astype(np.int64)


def scatter_elements(
    data: Array, indices: Array, updates: Array, /, *, axis: int = 0, reduction: str = "none", site: Site
) -> Array:
    places: list[Any] = list(np.indices(indices.shape, sparse=True))
    places[axis] = checked_indices(indices, data.shape[axis], site)
    return _scattered(data, tuple(places), updates, reduction, site)


def scatter_nd(
    data: Array, indices: Array, updates: Array, /, *, reduction: str = "none", site: Site
) -> Array:
    places = tuple(
        checked_indices(indices[..., number], data.shape[number], site) for number in range(indices.shape[-1])
    )
    return _scattered(data, places, updates, reduction, site)


def _scattered(data: Array, places: tuple[Any, ...], updates: Array, reduction: str, site: Site) -> Array:
    result = data.copy()
    if reduction == "none":
        result[places] = updates
    elif reduction in _COMBINED:
        _COMBINED[reduction].at(result, places, updates)
    else:
        raise site.refuse(f"reduction {reduction!r} is not covered")
    return result


def tensor_scatter(
    past: Array,
    update: Array,
    begins: Array | None = None,
    /,
    *,
    axis: int = -2,
    mode: str = "linear",
    site: Site,
) -> Array:
    """A cache with an update written into each sequence from a place on; a circular one goes on at its beginning."""
    if mode not in {"linear", "circular"}:
        raise site.refuse(f"mode {mode!r} is not covered")
    axis %= past.ndim
    length, room = update.shape[axis], past.shape[axis]
    firsts = np.zeros(len(past), np.int64) if begins is None else begins
    fits = (*past.shape[:axis], length, *past.shape[axis + 1 :]) == update.shape
    if axis == 0 or not fits or length > room or firsts.shape != past.shape[:1]:
        raise InvalidArgument(
            f"{site.operator}: an update of {update.shape} at {firsts.shape} places does not fit {past.shape} along "
            f"axis {axis}"
        )
    last = room - (length if mode == "linear" else 1)
    if firsts.size and not 0 <= firsts.min() <= firsts.max() <= last:
        raise InvalidArgument(
            f"{site.operator}: places {firsts.min()} to {firsts.max()} must be within 0 to {last}"
        )
    result = past.copy()
    places = (firsts[:, None] + np.arange(length)) % max(room, 1)
    np.moveaxis(result, axis, 1)[np.arange(len(past))[:, None], places] = np.moveaxis(update, axis, 1)
    return result


def bit_shift(x: Array, count: Array, /, *, direction: str, site: Site) -> Array:
    if direction not in ("LEFT", "RIGHT"):
        raise site.refuse(f"direction {direction!r} is not covered")
    return _pairwise(np.left_shift if direction == "LEFT" else np.right_shift, x, count)


def bitwise_and(a: Array, b: Array, /) -> Array:
    return _pairwise(np.bitwise_and, a, b)


def bitwise_or(a: Array, b: Array, /) -> Array:
    return _pairwise(np.bitwise_or, a, b)


def bitwise_xor(a: Array, b: Array, /) -> Array:
    return _pairwise(np.bitwise_xor, a, b)


def bitwise_not(x: Array, /) -> Array:
    return np.asarray(np.bitwise_not(x))


def unique(x: Array, /, *, axis: int | None = None, sorted: int = 1) -> tuple[Array, ...]:
    """Each element, or slice along an axis, once; unsorted in the order in which they first appear."""
    values, first, inverse, counts = np.unique(
        x, return_index=True, return_inverse=True, return_counts=True, axis=axis
    )
    inverse = inverse.reshape(-1)
    if not sorted:
        order = np.argsort(first)
        place = np.argsort(order)
        values = np.take(values, order, 0 if axis is None else axis)
        first, inverse, counts = first[order], place[inverse], counts[order]
    return values, *(part.astype(np.int64) for part in (first, inverse, counts))


def _pairwise(function: Any, a: Array, b: Array) -> Array:
    bounded(np.broadcast_shapes(a.shape, b.shape), a)
    return np.asarray(function(a, b))


OPERATORS = table(
    BitShift=bit_shift,
    BitwiseAnd=bitwise_and,
    BitwiseNot=bitwise_not,
    BitwiseOr=bitwise_or,
    BitwiseXor=bitwise_xor,
    Compress=compress,
    NonZero=non_zero,
    Scatter=scatter_elements,
    ScatterElements=scatter_elements,
    ScatterND=scatter_nd,
    TensorScatter=tensor_scatter,
    TopK=top_k,
    Unique=unique,
)

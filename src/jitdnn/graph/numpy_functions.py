"""NumPy's functions that move elements, over operands: views, or nodes that copy."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from jitdnn.graph.operand import NeedsValue, Operand, Untraceable, hollow
from jitdnn.rtcg.expression import trace
from jitdnn.rtcg.functions import where as chosen


def expand_dims(a: Any, axis: Any) -> Any:
    return a.reshape(np.expand_dims(hollow(a.shape, a.dtype), axis).shape)


def moveaxis(a: Any, source: Any, destination: Any) -> Any:
    sources = [s % a.ndim for s in np.atleast_1d(source).tolist()]
    targets = [d % a.ndim for d in np.atleast_1d(destination).tolist()]
    axes = [axis for axis in range(a.ndim) if axis not in sources]
    for target, origin in sorted(zip(targets, sources, strict=True)):
        axes.insert(target, origin)
    return a.transpose(axes)


def split(ary: Any, indices_or_sections: Any, axis: int = 0) -> list[Any]:
    parts = np.split(np.arange(ary.shape[axis]), indices_or_sections)
    before = (slice(None),) * (axis % ary.ndim)
    ends = np.cumsum([0, *(len(part) for part in parts)]).tolist()
    return [ary[(*before, slice(a, b))] for a, b in itertools.pairwise(ends)]


def concatenate(arrays: Sequence[Any], axis: int = 0, **options: Any) -> Any:
    if options:
        raise Untraceable("NumPy computes it (numpy.concatenate with options)")
    tracer = next(a.tracer for a in arrays if isinstance(a, Operand))
    return tracer.concat(arrays, axis)


def stack(arrays: Sequence[Any], axis: int = 0, **options: Any) -> Any:
    if options:
        raise Untraceable("NumPy computes it (numpy.stack with options)")
    rank = len(arrays[0].shape) + 1
    return concatenate([np.expand_dims(a, axis % rank) for a in arrays], axis % rank)


def take(a: Any, indices: Any, axis: int | None = None, **options: Any) -> Any:
    """By known indices: a slice where they are evenly spaced, else pieces put together."""
    if isinstance(indices, Operand):
        raise NeedsValue(indices)
    if options or axis is None:
        raise Untraceable("NumPy computes it (numpy.take with options)")
    axis %= a.ndim
    where = np.asarray(indices)
    extent = a.shape[axis]
    flat = np.where(where < 0, where + extent, where).reshape(-1)
    if flat.size and not (flat.min() >= 0 and flat.max() < extent):
        raise IndexError(f"indices are outside of an extent of {extent}")
    before = (slice(None),) * axis
    if where.ndim == 0:
        return a[(*before, int(flat[0]))]
    runs = _runs(flat.tolist())
    if len(runs) > _MOST_RUNS:
        raise Untraceable("many elements are picked")
    parts = [a[(*before, run)] for run in runs] or [a[(*before, slice(0, 0))]]
    joined = parts[0] if len(parts) == 1 else concatenate(parts, axis)
    return joined.reshape(a.shape[:axis] + where.shape + a.shape[axis + 1 :])


_MOST_RUNS = 16


def _runs(places: list[int]) -> list[slice]:
    """Slices that list the places in order."""
    runs, start = [], 0
    while start < len(places):
        end, step = start + 1, 0
        if end < len(places) and places[end] != places[start]:
            step = places[end] - places[start]
            while end < len(places) and places[end] - places[end - 1] == step:
                end += 1
        last = places[end - 1]
        step = step or 1
        stop = last + (1 if step > 0 else -1)
        runs.append(slice(places[start], stop if stop >= 0 else None, step))
        start = end
    return runs


def flip(m: Any, axis: Any = None) -> Any:
    axes = range(m.ndim) if axis is None else [n % m.ndim for n in np.atleast_1d(axis).tolist()]
    return m[tuple(slice(None, None, -1) if n in axes else slice(None) for n in range(m.ndim))]


def tile(A: Any, reps: Any) -> Any:
    times = tuple(int(n) for n in np.atleast_1d(reps))
    rank = max(len(times), A.ndim)
    times = (1,) * (rank - len(times)) + times
    x = A.reshape((1,) * (rank - A.ndim) + A.shape)
    wide = tuple(n for pair in zip(times, x.shape, strict=True) for n in pair)
    spread = tuple(n for extent in x.shape for n in (1, extent))
    return x.reshape(spread).broadcast_to(wide).reshape([t * n for t, n in zip(times, x.shape, strict=True)])


def repeat(a: Any, repeats: Any, axis: int | None = None) -> Any:
    if axis is None or not isinstance(repeats, (int, np.integer)):
        raise Untraceable("NumPy computes it (numpy.repeat by several numbers)")
    axis %= a.ndim
    shape = a.shape
    spread = a.reshape((*shape[: axis + 1], 1, *shape[axis + 1 :]))
    wide = spread.broadcast_to((*shape[: axis + 1], int(repeats), *shape[axis + 1 :]))
    return wide.reshape((*shape[:axis], shape[axis] * int(repeats), *shape[axis + 1 :]))


def pad(array: Any, pad_width: Any, mode: str = "constant", **options: Any) -> Any:
    if mode == "edge" or mode == "reflect" or mode == "wrap":
        x = array
        for axis, (before, after) in enumerate(pad_width):
            if before or after:
                places = np.pad(np.arange(x.shape[axis]), (before, after), mode=mode)  # type: ignore[call-overload]
                x = take(x, places, axis)
        return x
    if mode != "constant":
        raise Untraceable(f"NumPy computes it (numpy.pad by {mode})")
    fill = np.asarray(options.get("constant_values", 0), array.dtype)
    if fill.ndim:
        raise Untraceable("NumPy computes it (numpy.pad by several values)")
    x = array
    for axis, (before, after) in enumerate(pad_width):
        parts = [
            np.broadcast_to(fill, (*x.shape[:axis], count, *x.shape[axis + 1 :]))
            if isinstance(count, int)
            else x
            for count in (int(before), None, int(after))
            if count != 0
        ]
        x = concatenate(parts, axis) if len(parts) > 1 else x
    return x


def triangle(upper: bool) -> Callable[..., Any]:
    def run(m: Any, k: int = 0) -> Any:
        mask = (np.triu if upper else np.tril)(np.ones(m.shape[-2:], bool), k)
        return m.tracer.pointwise(trace(lambda c, x: chosen(c != 0.0, x, 0.0)), (mask, m), m.dtype)

    return run


def zeros_like(a: Any, dtype: Any = None, **options: Any) -> Any:
    return np.zeros(a.shape, a.dtype if dtype is None else dtype)


FUNCTIONS: dict[Any, Callable[..., Any]] = {
    np.broadcast_to: lambda array, shape: array.broadcast_to(shape),
    np.concatenate: concatenate,
    np.expand_dims: expand_dims,
    np.flip: flip,
    np.moveaxis: moveaxis,
    np.ndim: lambda a: a.ndim,
    np.pad: pad,
    np.ravel: lambda a: a.reshape(-1),
    np.repeat: repeat,
    np.reshape: lambda a, *shape, **more: a.reshape(*shape, **more),
    np.shape: lambda a: a.shape,
    np.size: lambda a: a.size,
    np.split: split,
    np.squeeze: lambda a, axis=None: a.squeeze(axis),
    np.stack: stack,
    np.swapaxes: lambda a, one, other: a.swapaxes(one, other),
    np.take: take,
    np.tile: tile,
    np.transpose: lambda a, axes=None: a.transpose(axes),
    np.tril: triangle(False),
    np.triu: triangle(True),
    np.zeros_like: zeros_like,
}

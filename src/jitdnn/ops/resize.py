"""Resizing of images and its gradient over anybody's arrays."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from jitdnn.arguments import (
    LAYOUT,
    MOST_EXTENT,
    Argument,
    as_key,
    extents,
    numbers,
    optional,
    per_axis,
    real,
    real_numbers,
    word,
)
from jitdnn.errors import InvalidArgument
from jitdnn.handle import Handle
from jitdnn.ops.call import Op, Recipe, call, callers_axes, logical, logical_shape, packed_like
from jitdnn.problems.problem import check_spatial_rank
from jitdnn.problems.resize import COORDINATES, CUBIC, MODES, ROUNDINGS, Resize
from jitdnn.tensor import TensorDescriptor

Size = int | Sequence[int] | None
Scale = float | Sequence[float] | None


def resize(
    x: Any,
    size: Size = None,
    scale: Scale = None,
    mode: str = "linear",
    coordinates: str = "half_pixel",
    rounding: str = "round_prefer_floor",
    cubic: float = CUBIC,
    layout: str | None = None,
    alpha: float = 1.0,
    beta: float = 0.0,
    out: Any = None,
    handle: Handle | None = None,
) -> Any:
    """Return y = alpha * (x resized along all axes of space) + beta * out.

    `x`: (N, C, space) with 1 to 3 axes of space and a real dtype; `layout="NHWC"` takes and gives (N, space, C). Give
    `size`, the extents of the result, or `scale`, by which they are multiplied (and rounded down), or both: then the
    outputs stand where `scale` says. `mode`: "nearest", "linear" or "cubic" (with the coefficient `cubic`).
    `coordinates`: "half_pixel", "pytorch_half_pixel", "align_corners" or "asymmetric". `rounding`, for "nearest":
    "round_prefer_floor", "round_prefer_ceil", "floor" or "ceil". These are the names and the formulas of ONNX. In
    PyTorch "nearest" is asymmetric with floor, "nearest-exact" half_pixel with round_prefer_ceil.

    Raises InvalidShape, InvalidType, and InvalidArgument for names and numbers that do not fit.
    """
    arguments = (mode, as_key(size), as_key(scale), coordinates, rounding, cubic, layout)
    return call(_FORWARD, ("x",), (x,), arguments, out, alpha, beta, handle)


def resize_backward(
    dy: Any,
    x_shape: Sequence[int],
    scale: Scale = None,
    mode: str = "linear",
    coordinates: str = "half_pixel",
    rounding: str = "round_prefer_floor",
    cubic: float = CUBIC,
    layout: str | None = None,
    alpha: float = 1.0,
    beta: float = 0.0,
    out: Any = None,
    handle: Handle | None = None,
) -> Any:
    """Return dx = alpha * (the gradient of `resize` by x) + beta * out, of the shape `x_shape`.

    `dy` has the shape of the forward result; the other arguments are those of the forward call (`scale` only if it
    was given there).
    """
    arguments = (as_key(x_shape), mode, as_key(scale), coordinates, rounding, cubic, layout)
    return call(_BACKWARD, ("dy",), (dy,), arguments, out, alpha, beta, handle)


def _each(scale: float | tuple[float, ...] | None, rank: int) -> tuple[float, ...] | None:
    return (scale,) * rank if isinstance(scale, float) else scale


def _make_forward(
    inputs: Sequence[TensorDescriptor],
    out: TensorDescriptor | None,
    mode: str,
    size: Size,
    scale: float | tuple[float, ...] | None,
    coordinates: str,
    rounding: str,
    cubic: float,
    layout: str | None,
) -> Recipe:
    x = logical(inputs[0], layout)
    rank = check_spatial_rank(x.shape, "x")
    scales = _each(scale, rank)
    if size is None:
        if scales is None:
            raise InvalidArgument(
                "neither size nor scale is given: one of them must say how large the result is"
            )
        if len(scales) != rank or not all(0 < s < math.inf for s in scales):
            raise InvalidArgument(f"scale is {scale}: it must be positive, one number or {rank}")
        size = tuple(math.floor(extent * s) for extent, s in zip(x.shape[2:], scales, strict=True))
    space = per_axis(size, rank, "size", 0, MOST_EXTENT)
    shape = (*x.shape[:2], *space)
    y = packed_like(x, shape) if out is None else logical(out, layout)
    problem = Resize.make("fwd", mode, x, space, coordinates, rounding, scales, cubic, y=y)
    return Recipe(problem, None, callers_axes(layout, len(x.shape)))


def _make_backward(
    inputs: Sequence[TensorDescriptor],
    out: TensorDescriptor | None,
    x_shape: tuple[int, ...],
    mode: str,
    scale: float | tuple[float, ...] | None,
    coordinates: str,
    rounding: str,
    cubic: float,
    layout: str | None,
) -> Recipe:
    dy = logical(inputs[0], layout)
    shape = logical_shape(x_shape, layout)
    rank = check_spatial_rank(shape, "x_shape")
    dx = packed_like(dy, shape) if out is None else logical(out, layout)
    x, y = (TensorDescriptor.packed(extents, dy.dtype) for extents in (shape, dy.shape))
    problem = Resize.make(
        "bwd", mode, x, y.shape[2:], coordinates, rounding, _each(scale, rank), cubic, y=y, dx=dx, dy=dy
    )
    return Recipe(problem, None, callers_axes(layout, len(shape)))


_HOW = (word("mode", MODES), optional(numbers("size", 0)), optional(Argument("scale", real_numbers)))
_LAST = (word("coordinates", COORDINATES), word("rounding", ROUNDINGS), real("cubic"), LAYOUT)

_FORWARD = Op(_make_forward, (*_HOW, *_LAST))
_BACKWARD = Op(_make_backward, (extents("x_shape"), _HOW[0], _HOW[2], *_LAST))

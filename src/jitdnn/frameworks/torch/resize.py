"""`torch.nn.functional.interpolate` by ours."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from torch import Tensor
from torch.nn import functional as F  # noqa: N812

from jitdnn.frameworks.torch.eager import Eager, is_taken
from jitdnn.ops.resize import resize, resize_backward

#: modes of torch by the axes of space: ours, where outputs stand, and how a place is rounded
_MODES = {
    "nearest": ((1, 2, 3), "nearest", "asymmetric", "floor"),
    "nearest-exact": ((1, 2, 3), "nearest", "half_pixel", "round_prefer_ceil"),
    "linear": ((1,), "linear", "half_pixel", "round_prefer_floor"),
    "bilinear": ((2,), "linear", "half_pixel", "round_prefer_floor"),
    "trilinear": ((3,), "linear", "half_pixel", "round_prefer_floor"),
    "bicubic": ((2,), "cubic", "half_pixel", "round_prefer_floor"),
}


def _forward(handle: Any, settings: Any, is_training: bool, tensors: Any) -> Any:
    size, scale, _, mode, coordinates, rounding = settings
    return (resize(tensors[0], size, scale, mode, coordinates, rounding, handle=handle),), ()


def _backward(handle: Any, settings: Any, grads: Any, tensors: Any, outputs: Any, saved: Any) -> Any:
    _, scale, _, mode, coordinates, rounding = settings
    dx = resize_backward(grads[0], tensors[0].shape, scale, mode, coordinates, rounding, handle=handle)
    return (dx,)


def _stock(settings: Any, tensors: Any) -> Any:
    size, scale, mode, _, coordinates, _ = settings
    align = None if mode.startswith("nearest") else coordinates == "align_corners"
    size = None if scale is not None else size
    return (F.interpolate(tensors[0], size, scale, mode, align),)


_EAGER = Eager(_forward, _backward, _stock, needs_outputs=False, is_linear=True)


def route(
    input: Tensor, size: Any = None, scale_factor: Any = None, mode: str = "nearest", align_corners: bool | None = None,
    recompute_scale_factor: bool | None = None, antialias: bool = False, *, options: str = "",
) -> Any:  # fmt: skip
    """Of images with a batch, without antialiasing."""
    space = input.dim() - 2
    if (
        mode not in _MODES
        or space not in _MODES[mode][0]
        or antialias
        or (size is None) == (scale_factor is None)
    ):
        return NotImplemented
    if (mode.startswith("nearest") and align_corners is not None) or not is_taken(input):
        return NotImplemented
    sizes, scales = _each(size, space, int), _each(scale_factor, space, float)
    if (size is not None and sizes is None) or (scale_factor is not None and scales is None):
        return NotImplemented
    if scales is not None and recompute_scale_factor:
        sizes = tuple(math.floor(float(n) * s) for n, s in zip(input.shape[2:], scales, strict=True))
        scales = None
    _, ours, coordinates, rounding = _MODES[mode]
    coordinates = "align_corners" if align_corners else coordinates
    return _EAGER(options, (sizes, scales, mode, ours, coordinates, rounding), input)[0]


def _each(value: Any, space: int, kind: Any) -> tuple[Any, ...] | None:
    """A number for each axis of space; None if it is no such thing."""
    numbers = tuple(value) if isinstance(value, Sequence) else (value,) * space
    if len(numbers) != space or not all(isinstance(one, (int, kind)) and one > 0 for one in numbers):
        return None
    return tuple(kind(one) for one in numbers)

"""Convolutions with few output channels as convolutions with few input channels: x and y are swapped.

Without a stride a dgrad is a convolution, too, and the other way round:

    y[n, k, o]  = sum over c, t of w[k, c, t] * x[n, c, o - before + dilation * t]
    dx[n, c, i] = sum over k, t of w[k, c, t] * dy[n, k, i + before - dilation * t]

so the fprop of a layer is the dgrad of the layer that has its y as x, its x as y, the filter's two axes of channels
swapped, its taps flipped, and the padding that is missing to `dilation * (taps - 1)`. The wgrad is the other layer's.
Nothing is copied; operands keep their order, except x and dy of the wgrad. So a last layer, of many channels to few,
becomes a first layer.
"""

from __future__ import annotations

from dataclasses import replace

from jitdnn.problems.convolution import MODES, Convolution
from jitdnn.tensor import TensorDescriptor

_OTHER = {"fwd": "bwd_data", "bwd_data": "fwd", "bwd_filter": "bwd_filter"}


def swapped(problem: Convolution) -> Convolution | None:
    """The same products with x and y in each other's places; None with a stride, groups, or more padding than taps."""
    if problem.groups != 1 or max(problem.stride) > 1:
        return None
    padding = []
    for taps, dilation, pair in zip(problem.filter_spatial, problem.dilation, problem.padding, strict=True):
        reach = dilation * (taps - 1)
        if max(pair) > reach:
            return None
        padding.append((reach - pair[0], reach - pair[1]))
    w = problem.w
    (k, c, *taps_), (k_stride, c_stride, *tap_strides) = w.shape, w.strides
    return replace(
        problem,
        direction=_OTHER[problem.direction],
        x=problem.y,
        w=TensorDescriptor((c, k, *taps_), (c_stride, k_stride, *tap_strides), w.dtype, w.offset),
        y=problem.x,
        padding=tuple(padding),
        mode=MODES[1 - MODES.index(problem.mode)],
    )

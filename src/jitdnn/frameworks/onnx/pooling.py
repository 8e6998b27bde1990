"""MaxPool, MaxUnpool, AveragePool, LpPool and the global ones."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from jitdnn.frameworks.onnx.operator import Array, Site, table
from jitdnn.frameworks.onnx.pointwise import pointwise
from jitdnn.frameworks.onnx.spatial import Ints, Pairs, ones, padding
from jitdnn.frameworks.onnx.views import whole
from jitdnn.graph import primitives as jd


class _Windows(NamedTuple):
    """Where the windows lie, with a number or a pair for every axis of space."""

    window: tuple[int, ...]
    stride: tuple[int, ...]
    dilation: tuple[int, ...]
    pairs: Pairs
    rounding: str

    @classmethod
    def of(
        cls,
        x: Array,
        auto_pad: str,
        ceil_mode: int,
        dilations: Ints | None,
        kernel_shape: Ints,
        pads: Ints | None,
        strides: Ints | None,
    ) -> _Windows:
        rank = x.ndim - 2
        window, stride, dilation = tuple(kernel_shape), ones(strides, rank), ones(dilations, rank)
        pairs = padding(auto_pad, pads, x.shape[2:], window, stride, dilation)
        return cls(window, stride, dilation, pairs, "ceil" if ceil_mode else "floor")

    def reach(self, space: Ints) -> Pairs:
        """The padding, longer at the end where windows that are rounded up reach beyond it."""
        if self.rounding == "floor":
            return self.pairs
        rows = zip(space, self.window, self.stride, self.dilation, self.pairs, strict=True)
        pairs = []
        for n, k, s, d, (before, after) in rows:
            whole_, taps = n + before + after, d * (k - 1) + 1
            count = -(-(whole_ - taps) // s) + 1
            # the last window starts inside of the image or of the padding before it
            count -= (count - 1) * s >= n + before
            pairs.append((before, after + max((count - 1) * s + taps - whole_, 0)))
        return tuple(pairs)

    def keywords(self) -> dict[str, Any]:
        """The arguments of the library's pooling."""
        return {
            "window": self.window,
            "stride": self.stride,
            "padding": self.pairs,
            "dilation": self.dilation,
            "rounding": self.rounding,
        }


def max_pool(
    x: Array,
    /,
    *,
    auto_pad: str = "NOTSET",
    ceil_mode: int = 0,
    dilations: Ints | None = None,
    kernel_shape: Ints,
    pads: Ints | None = None,
    storage_order: int = 0,
    strides: Ints | None = None,
    site: Site,
) -> Any:
    windows = _Windows.of(x, auto_pad, ceil_mode, dilations, kernel_shape, pads, strides)
    if not site.wants(1):
        return jd.max_pool(x, **windows.keywords())
    y, inside = jd.max_pool(x, **windows.keywords(), return_indices=True)
    return y, _flat_indices(inside, x.shape, bool(storage_order))


def _flat_indices(inside: Array, shape: tuple[int, ...], by_columns: bool) -> Array:
    """Positions in the whole tensor from positions in each image; `by_columns` counts an image by columns."""
    planes = np.arange(shape[0] * shape[1], dtype=np.int64).reshape(shape[:2] + (1,) * (len(shape) - 2))
    position = inside.astype(np.int64)
    if by_columns:
        position = np.ravel_multi_index(np.unravel_index(position, shape[2:]), shape[2:], order="F")
    return position + planes * int(np.prod(shape[2:]))


def max_unpool(
    x: Array,
    indices: Array,
    output_shape: Array | None = None,
    /,
    *,
    kernel_shape: Ints,
    pads: Ints | None = None,
    strides: Ints | None = None,
) -> Any:
    """The positions count in a tensor of the shape that the window gives, whatever `output_shape` is."""
    rank = x.ndim - 2
    stride = ones(strides, rank)
    pairs = padding("NOTSET", pads, x.shape[2:], kernel_shape, stride, (1,) * rank)
    space = tuple(
        (n - 1) * s + k - sum(pair)
        for n, s, k, pair in zip(x.shape[2:], stride, kernel_shape, pairs, strict=True)
    )
    target = whole(output_shape)[2:] if output_shape is not None else space
    inside = np.unravel_index(indices % int(np.prod(space)), space)
    return jd.max_unpool(x, np.ravel_multi_index(inside, target).astype(np.int64), target)


def average_pool(
    x: Array,
    /,
    *,
    auto_pad: str = "NOTSET",
    ceil_mode: int = 0,
    count_include_pad: int = 0,
    dilations: Ints | None = None,
    kernel_shape: Ints,
    pads: Ints | None = None,
    strides: Ints | None = None,
) -> Any:
    windows = _Windows.of(x, auto_pad, ceil_mode, dilations, kernel_shape, pads, strides)
    return jd.avg_pool(x, **windows.keywords(), count_include_pad=bool(count_include_pad))


def lp_pool(
    x: Array,
    /,
    *,
    auto_pad: str = "NOTSET",
    ceil_mode: int = 0,
    dilations: Ints | None = None,
    kernel_shape: Ints,
    p: int = 2,
    pads: Ints | None = None,
    strides: Ints | None = None,
) -> Any:
    """(sum |x|^p)^(1/p): the sum is a convolution of each channel by ones, padded as far as windows reach."""
    windows = _Windows.of(x, auto_pad, ceil_mode, dilations, kernel_shape, pads, strides)
    powers = pointwise(lambda v: abs(v) ** p, x)
    channels = x.shape[1]
    ones_ = np.ones((channels, 1, *windows.window), x.dtype)
    sums = jd.conv(
        powers, ones_, stride=windows.stride, padding=windows.reach(x.shape[2:]), dilation=windows.dilation,
        groups=channels,
    )  # fmt: skip
    return pointwise(lambda v: v ** (1.0 / p), sums)


def global_lp_pool(x: Array, /, *, p: int = 2) -> Any:
    powers = pointwise(lambda v: abs(v) ** p, x)
    sums = jd.reduce(powers, "add", tuple(range(2, x.ndim)), keepdims=True)
    return pointwise(lambda v: v ** (1.0 / p), sums)


def global_average_pool(x: Array, /) -> Any:
    return jd.global_avg_pool(x)


def global_max_pool(x: Array, /) -> Any:
    return jd.global_max_pool(x)


OPERATORS = table(
    AveragePool=average_pool,
    GlobalAveragePool=global_average_pool,
    GlobalLpPool=global_lp_pool,
    GlobalMaxPool=global_max_pool,
    LpPool=lp_pool,
    MaxPool=max_pool,
    MaxUnpool=max_unpool,
)

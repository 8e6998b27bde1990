"""DeformConv: a convolution whose taps each look up the image at a place of their own (Dai et al. 2017)."""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np

from jitdnn.errors import InvalidShape
from jitdnn.frameworks.onnx.operator import Array, Site, table
from jitdnn.frameworks.onnx.pointwise import pointwise
from jitdnn.frameworks.onnx.spatial import Ints, ones, pad_pairs
from jitdnn.frameworks.onnx.views import bounded
from jitdnn.graph import primitives as jd


def deform_conv(
    x: Array,
    w: Array,
    offset: Array,
    bias: Array | None = None,
    mask: Array | None = None,
    /,
    *,
    dilations: Ints | None = None,
    group: int = 1,
    kernel_shape: Ints | None = None,
    offset_group: int = 1,
    pads: Ints | None = None,
    strides: Ints | None = None,
    site: Site,
) -> Array:
    """Sampled taps (N, C, taps, pixels) times the mask, then one matrix product a group of channels."""
    rank = x.ndim - 2
    if rank not in {2, 3} or w.ndim != x.ndim or offset.ndim != x.ndim:
        raise site.refuse(
            f"x of shape {x.shape} with w {w.shape} is not covered: two and three axes of space are"
        )
    n, channels, *space = x.shape
    window, taps = w.shape[2:], math.prod(w.shape[2:])
    stride, dilation, pairs = ones(strides, rank), ones(dilations, rank), pad_pairs(pads, rank)
    out = tuple(
        (extent + sum(pair) - d * (k - 1) - 1) // s + 1
        for extent, pair, k, s, d in zip(space, pairs, window, stride, dilation, strict=True)
    )
    expected = (n, offset_group * taps * rank, *out)
    if (
        offset.shape != expected
        or channels % offset_group
        or len(w) % group
        or w.shape[1] * group != channels
    ):
        raise InvalidShape(
            f"{site.operator}: x {x.shape}, w {w.shape}, offset {offset.shape} with group {group} and offset_group "
            f"{offset_group}: offset must be {expected}, and groups divide the channels"
        )
    if mask is not None and mask.shape != (n, offset_group * taps, *out):
        raise InvalidShape(
            f"{site.operator}: mask is {mask.shape} and must be {(n, offset_group * taps, *out)}"
        )
    wide = np.dtype(np.float64 if x.dtype == np.float64 else np.float32)
    pixels = math.prod(out)
    bounded((n, channels, taps, pixels), np.empty(0, wide))
    image = x.reshape(n * offset_group, channels // offset_group, *space).astype(wide, copy=False)
    moves = offset.reshape(n * offset_group, *window, rank, *out)
    places = [
        _places(moves, axis, rank, dilation[axis], stride[axis], pairs[axis][0], wide) for axis in range(rank)
    ]
    sampled = _sampled(image, places, taps, pixels).reshape(n, offset_group, -1, taps, pixels)
    if mask is not None:
        factors = mask.reshape(n, offset_group, 1, taps, pixels)
        sampled = pointwise(lambda v, m: v * m, sampled, factors)
    columns = sampled.reshape(n, group, -1, pixels)
    filters = w.reshape(group, len(w) // group, -1).astype(wide, copy=False)
    y = jd.matmul(filters, columns).reshape(n, len(w), *out)
    if bias is not None:
        jd.add(bias.reshape(-1, *(1,) * rank).astype(wide, copy=False), beta=1.0, out=y)
    return np.asarray(y).astype(x.dtype, copy=False)


def _places(
    moves: Array, axis: int, rank: int, dilation: int, stride: int, before: int, dtype: np.dtype[Any]
) -> Array:
    """Where each tap of each pixel stands on one axis: (N, window, out)."""
    window, out = moves.shape[1 + axis], moves.shape[2 + rank + axis]
    shape = [1] * (2 * rank)
    shape[axis] = window
    first = (np.arange(window) * dilation - before).reshape(shape)
    shape[axis], shape[rank + axis] = 1, out
    base = first + (np.arange(out) * stride).reshape(shape)
    return pointwise(lambda m, b: m + b, np.take(moves, axis, 1 + rank), base.astype(dtype), dtype=dtype)


def _sampled(x: Array, places: list[Array], taps: int, pixels: int) -> Array:
    """Linear interpolation, of zeros outside. Each corner is looked up alone at a whole place: the places from -1 to
    1 of `jd.grid_sample` would round fractions."""
    rank, count = len(places), len(x)
    lows = [pointwise(jd.floor, place) for place in places]
    total: Array | None = None
    for corner in itertools.product((0.0, 1.0), repeat=rank):
        grid = np.empty((*places[0].shape, rank), x.dtype)
        weight: Array | None = None
        for axis, step in enumerate(corner):
            extent = float(x.shape[2 + axis])
            grid[..., rank - 1 - axis] = pointwise(
                lambda low, step=step, extent=extent: (2.0 * (low + step) + 1.0) / extent - 1.0, lows[axis]
            )
            share = pointwise(
                lambda p, low, step=step: p - low if step else 1.0 - (p - low), places[axis], lows[axis]
            )
            weight = share if weight is None else pointwise(lambda a, b: a * b, weight, share)
        assert weight is not None
        grid = grid.reshape(count, *((1,) * (rank - 2)), taps, pixels, rank)
        found = jd.grid_sample(x, grid, "nearest", "zeros").reshape(count, -1, taps, pixels)
        weight = weight.reshape(count, 1, taps, pixels)
        if total is None:
            total = pointwise(lambda v, w: v * w, found, weight)
        else:
            total = pointwise(lambda t, v, w: t + v * w, total, found, weight)
    assert total is not None
    return total


OPERATORS = table(DeformConv=deform_conv)

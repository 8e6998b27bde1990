"""AffineGrid and GridSample."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np

from jitdnn.frameworks.onnx.operator import Array, Site, table
from jitdnn.frameworks.onnx.pointwise import pointwise
from jitdnn.frameworks.onnx.views import bounded, whole
from jitdnn.graph import primitives as jd

_A = -0.75  # of Keys' cubic


def affine_grid(theta: Array, size: Array, /, *, align_corners: int = 0) -> Any:
    return jd.affine_grid(theta, whole(size)[2:], bool(align_corners))


def grid_sample(
    x: Array,
    grid: Array,
    /,
    *,
    align_corners: int = 0,
    mode: str = "linear",
    padding_mode: str = "zeros",
    site: Site,
) -> Any:
    if mode in {"cubic", "bicubic"}:
        return _cubic(x, grid, padding_mode, bool(align_corners), site)
    if mode not in {"linear", "bilinear", "nearest"}:
        raise site.refuse(f"mode {mode!r} is not covered")
    return jd.grid_sample(x, grid, mode, padding_mode, bool(align_corners))


def _cubic(x: Array, grid: Array, padding: str, aligned: bool, site: Site) -> Array:
    """Four neighbours an axis, weighted by the cubic of their distance: rows of the innermost axis one after
    another."""
    if padding not in {"zeros", "border", "reflection"}:
        raise site.refuse(f"padding_mode {padding!r} is not covered")
    n, channels, *space = x.shape
    out, rank = grid.shape[1:-1], len(space)
    wide = np.dtype(np.float64 if x.dtype == np.float64 else np.float32)
    y = np.zeros(bounded((n, channels, int(np.prod(out))), np.empty(0, wide)), wide)
    indices, weights = [], []
    for axis, extent in enumerate(space):
        place = grid[..., rank - 1 - axis].reshape(n, -1).astype(wide)
        place = (place + 1) / 2 * (extent - 1) if aligned else ((place + 1) * extent - 1) / 2
        place = np.where(np.isfinite(place), place, -2.0 * extent)
        low, high = (0.0, extent - 1.0) if aligned else (-0.5, extent - 0.5)
        if padding == "reflection":
            place = _mirrored(place, low, high)
        base = np.floor(np.clip(place, -3 - extent, 2 * extent + 3))
        taps = [base.astype(np.int64) + step for step in (-1, 0, 1, 2)]
        weights.append(_coefficients((place - base).astype(wide)))
        indices.append([_tap(tap, extent, low, high, padding) for tap in taps])
    for outer in itertools.product(range(4), repeat=rank - 1):
        row, scale = np.zeros((n, y.shape[2]), np.int64), np.ones((n, y.shape[2]), wide)
        inside = np.ones((n, y.shape[2]), bool)
        for axis, tap in enumerate(outer):
            row = row * space[axis] + indices[axis][tap][0]
            inside = inside & indices[axis][tap][1]
            scale = scale * weights[axis][tap]
        values, factors = [], []
        for tap in range(4):
            index, here = indices[-1][tap]
            place = row * space[-1] + index
            flat = x.reshape(n, channels, -1)
            values.append(np.take_along_axis(flat, place[:, None], 2))
            factors.append(np.where(inside & here, scale * weights[-1][tap], 0)[:, None].astype(wide))
        y = pointwise(
            lambda total, a, b, c, d, p, q, r, s: total + (a * p + b * q + c * r + d * s),
            y,
            *values,
            *factors,
        )
    return y.reshape(n, channels, *out).astype(x.dtype, copy=False)


def _mirrored(place: Array, low: float, high: float) -> Any:
    span = high - low
    if span <= 0:
        return np.zeros_like(place)
    turn = np.abs(np.remainder(place - low, 2 * span))
    return np.where(
        (place >= low) & (place <= high), place, low + np.where(turn > span, 2 * span - turn, turn)
    )


def _tap(index: Array, extent: int, low: float, high: float, padding: str) -> tuple[Array, Array]:
    """Indices of elements, and whether there is one."""
    is_inside = (index >= 0) & (index < extent)
    if padding == "reflection":
        index = _mirrored(index.astype(np.float64), low, high).astype(np.int64)
    return np.clip(index, 0, extent - 1), np.ones_like(is_inside) if padding != "zeros" else is_inside


def _coefficients(share: Array) -> list[Array]:
    """Keys' weights of the four neighbours of a place `share` behind the second one."""

    def far(d: Array) -> Array:
        return ((_A * d - 5 * _A) * d + 8 * _A) * d - 4 * _A

    def near(d: Array) -> Array:
        return ((_A + 2) * d - (_A + 3)) * d * d + 1

    return [far(share + 1), near(share), near(1 - share), far(2 - share)]


OPERATORS = table(AffineGrid=affine_grid, GridSample=grid_sample)

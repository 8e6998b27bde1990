"""AffineGrid and GridSample."""

from __future__ import annotations

from typing import Any

import numpy as np

import jitdnn as jd
from jitdnn.frameworks.onnx.operator import Site, table
from jitdnn.frameworks.onnx.views import whole

Array = np.ndarray[Any, Any]


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
    if mode not in {"linear", "bilinear", "nearest"}:
        raise site.refuse(f"mode {mode!r} is not covered")
    return jd.grid_sample(x, grid, mode, padding_mode, bool(align_corners))


OPERATORS = table(AffineGrid=affine_grid, GridSample=grid_sample)

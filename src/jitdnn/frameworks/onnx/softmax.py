"""Softmax and LogSoftmax."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from jitdnn.frameworks.onnx.operator import Array, Function, Site, table
from jitdnn.frameworks.onnx.pointwise import pointwise
from jitdnn.graph import primitives as jd


def _softmax(algorithm: str) -> Function:
    def run(x: Array, /, *, axis: int | None = None, site: Site) -> Any:
        """Before version 13 all axes from `axis` on sum to 1 together, and the default is 1."""
        if site.version < 13:
            first = (1 if axis is None else axis) % x.ndim
            return jd.softmax(x, tuple(range(first, x.ndim)), algorithm)
        return jd.softmax(x, -1 if axis is None else axis, algorithm)

    return run


def hardmax(x: Array, /, *, axis: int | None = None, site: Site) -> Any:
    """1 at the first of the greatest along the axis, else 0."""
    if site.version < 13:
        first = (1 if axis is None else axis) % x.ndim
        flat = hardmax(x.reshape(*x.shape[:first], -1), axis=-1, site=replace(site, version=13))
        return flat.reshape(x.shape)
    which = (-1 if axis is None else axis) % x.ndim
    _, found = jd.reduce(x, "max", which, keepdims=True, indices=True)
    places = np.arange(x.shape[which]).reshape(-1, *(1,) * (x.ndim - 1 - which))
    return pointwise(lambda p, f: jd.where(p == f, 1.0, 0.0), places, found, dtype=x.dtype)


OPERATORS = table(Hardmax=hardmax, LogSoftmax=_softmax("log"), Softmax=_softmax("accurate"))

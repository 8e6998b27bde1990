"""Softmax and LogSoftmax."""

from __future__ import annotations

from typing import Any

import numpy as np

import jitdnn as jd
from jitdnn.frameworks.onnx.operator import Function, Site, table

Array = np.ndarray[Any, Any]


def _softmax(algorithm: str) -> Function:
    def run(x: Array, /, *, axis: int | None = None, site: Site) -> Any:
        """Before version 13 all axes from `axis` on sum to 1 together, and the default is 1."""
        if site.version < 13:
            first = (1 if axis is None else axis) % x.ndim
            return jd.softmax(x, tuple(range(first, x.ndim)), algorithm)
        return jd.softmax(x, -1 if axis is None else axis, algorithm)

    return run


OPERATORS = table(LogSoftmax=_softmax("log"), Softmax=_softmax("accurate"))

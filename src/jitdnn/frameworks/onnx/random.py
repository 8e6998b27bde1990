"""Dropout."""

from __future__ import annotations

from typing import Any

import numpy as np

import jitdnn as jd
from jitdnn.frameworks.onnx.operator import Site, table

Array = np.ndarray[Any, Any]


def dropout(
    x: Array,
    rate: Array | None = None,
    training: Array | None = None,
    /,
    *,
    ratio: float = 0.5,
    seed: int | None = None,
    is_test: int = 1,
    site: Site,
) -> Any:
    """Nothing happens but in training. There the numbers are this library's own, of the `seed` (0 without one): a
    graph has no state, so that every run drops the same elements."""
    share = ratio if rate is None else float(rate.item())
    if site.version < 12 or training is None or not bool(training.item()) or share == 0.0:
        return x, np.ones(x.shape, bool)
    y, _, mask = jd.dropout(x, share, jd.DropoutState(seed or 0), return_mask=True)
    return y, mask


OPERATORS = table(Dropout=dropout)

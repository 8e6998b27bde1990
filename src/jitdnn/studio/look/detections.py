"""Boxes that a net found against boxes that are there: which belong together, and the average precision of each
class."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from jitdnn.studio.look.metrics import average_precision_of_hits, box_overlap

Array = NDArray[Any]


@dataclass(frozen=True)
class Matched:
    """The boxes of one image that were found: of each its class, its confidence, and whether it is a true one."""

    classes: NDArray[np.int64]
    sure: Array
    is_hit: NDArray[np.bool_]


def match(found: Array, true: Array, least: float = 0.5) -> Matched:
    """Give each true box to the surest box of its class that overlaps it by `least` (intersection over union), once.

    `found` is (M, 6): class, confidence, left, top, right, bottom; `true` (N, 5): class, left, top, right, bottom,
    class -1 where there is none.
    """
    found = found[np.argsort(-found[:, 1], kind="stable")]
    true = true[true[:, 0] >= 0]
    overlap = box_overlap(found[:, 2:], true[:, 1:])
    overlap[found[:, :1] != true[None, :, 0]] = -1.0
    is_hit = np.zeros(len(found), bool)
    is_taken = np.zeros(len(true), bool)
    for row in range(len(found) if len(true) else 0):
        best = int(overlap[row].argmax())
        if overlap[row, best] >= least and not is_taken[best]:
            is_hit[row] = is_taken[best] = True
    return Matched(found[:, 0].astype(np.int64), found[:, 1], is_hit)


def average_precisions(matched: list[Matched], support: Array) -> Array:
    """The average precision of each class over all images; `support` is how many boxes of each class there are."""
    classes = np.concatenate([each.classes for each in matched]) if matched else np.empty(0, np.int64)
    sure = np.concatenate([each.sure for each in matched]) if matched else np.empty(0)
    is_hit = np.concatenate([each.is_hit for each in matched]) if matched else np.empty(0, bool)
    found = []
    for k, count in enumerate(support):
        mine = classes == k
        found.append(average_precision_of_hits(sure[mine], is_hit[mine], int(count)))
    return np.array(found)

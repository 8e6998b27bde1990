"""How good answers are: of one class an image, of labels that are there or not, of numbers, of pixels.

All of it is NumPy over predictions; nothing here knows a net or a file. Shares lie between 0 and 1, NaN where there is
nothing to divide by.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from jitdnn.errors import InvalidArgument, InvalidShape

Array = NDArray[Any]
Counts = NDArray[np.int64]
CALIBRATION_BINS = 15


def confusion(true: Array, said: Array, classes: int) -> Counts:
    """Count pairs: entry (i, j), of `classes` x `classes`, is how often class i was taken for class j.

    `true` and `said` are integers of one shape. Entries of `true` outside of the classes (255 of a segmentation's
    border, -1) are left out. Raises InvalidShape, InvalidArgument.
    """
    if true.shape != said.shape:
        raise InvalidShape(
            f"true classes have shape {true.shape}, predicted ones {said.shape}: they must agree"
        )
    if classes < 1:
        raise InvalidArgument(f"there are {classes} classes: at least 1 is needed")
    true, said = true.reshape(-1).astype(np.int64), said.reshape(-1).astype(np.int64)
    known = (true >= 0) & (true < classes)
    true, said = true[known], said[known]
    if said.size and not 0 <= said.min() <= said.max() < classes:
        raise InvalidArgument(
            f"predicted classes are {said.min()} to {said.max()}: 0 to {classes - 1} are there"
        )
    return np.bincount(true * classes + said, minlength=classes * classes).reshape(classes, classes)


@dataclass(frozen=True)
class PerClass:
    """Of each class: precision (of what was called it), recall (of what is it), F1, and how many there are."""

    precision: Array
    recall: Array
    f1: Array
    support: Counts


def per_class(counts: Counts) -> PerClass:
    """Precision, recall and F1 of each class of a confusion matrix.

    A class that is nowhere has recall NaN, one that was never said precision NaN; F1 is NaN only if both are.
    """
    hits = counts.diagonal().astype(np.float64)
    support, called = counts.sum(1), counts.sum(0)
    return PerClass(_share(hits, called), _share(hits, support), _share(2 * hits, support + called), support)


def balanced_accuracy(counts: Counts) -> float:
    """The mean recall of the classes that are there: of a class with few images it tells as much as of a large one."""
    return finite_mean(per_class(counts).recall)


def finite_mean(values: Array) -> float:
    """The mean of what is finite, NaN where nothing is."""
    finite = values[np.isfinite(values)]
    return float(finite.mean()) if finite.size else float("nan")


def worst_pairs(counts: Counts, most: int) -> list[tuple[int, int, int]]:
    """The pairs (true, said, count) that were confused most often, the most frequent first."""
    wrong = counts.copy()
    np.fill_diagonal(wrong, 0)
    flat = wrong.reshape(-1)
    places = np.flatnonzero(flat)
    places = places[np.argsort(-flat[places], kind="stable")][:most]
    return [(int(place // len(counts)), int(place % len(counts)), int(flat[place])) for place in places]


@dataclass(frozen=True)
class Calibration:
    """How far confidence can be believed: bins of equal width of the surest probability.

    `confidence` and `accuracy` are means in each bin (NaN where it is empty), `error` the expected calibration error:
    the mean distance of the two, weighted by `counts` (Guo et al. 2017).
    """

    counts: Counts
    confidence: Array
    accuracy: Array
    error: float


def calibration(sure: Array, is_right: Array, bins: int = CALIBRATION_BINS) -> Calibration:
    """Compare the probabilities of the classes that were said with how often these were right."""
    if sure.shape != is_right.shape or sure.ndim != 1:
        raise InvalidShape(
            f"probabilities have shape {sure.shape}, hits {is_right.shape}: one of each an image"
        )
    sure = sure.astype(np.float64)
    finite = np.isfinite(sure)
    sure, is_right = sure[finite], is_right[finite]
    # a bin has its upper end, as in the paper: (low, high]
    number = np.clip(np.ceil(sure * bins).astype(np.int64) - 1, 0, bins - 1)
    counts = np.bincount(number, minlength=bins)
    confidence = _share(np.bincount(number, weights=sure, minlength=bins), counts)
    accuracy = _share(np.bincount(number, weights=is_right.astype(np.float64), minlength=bins), counts)
    distance = np.nan_to_num(np.abs(confidence - accuracy))
    error = float((distance * counts).sum() / counts.sum()) if counts.sum() else float("nan")
    return Calibration(counts, confidence, accuracy, error)


def average_precision(scores: Array, is_there: Array) -> float:
    """The area under the curve of precision over recall, as a sum of steps: sum (R_n - R_n-1) P_n; scores that are
    equal count as one step. NaN if no image has the label.
    """
    return average_precision_of_hits(scores, is_there > 0, int((is_there > 0).sum()))


def average_precision_of_hits(scores: Array, is_hit: Array, wanted: int) -> float:
    """The same where not all of the `wanted` are among the candidates: those that are missing have recall 0."""
    if not wanted:
        return float("nan")
    if not len(scores):
        return 0.0
    order = np.argsort(-scores, kind="stable")
    last = np.append(np.flatnonzero(np.diff(scores[order])), len(scores) - 1)  # of each run of equal scores
    hits = np.cumsum(is_hit[order])[last]
    return float((np.diff(hits / wanted, prepend=0.0) * hits / (last + 1)).sum())


@dataclass(frozen=True)
class PerLabel:
    """Of each label that may be there or not: average precision, and precision, recall and F1 at a threshold."""

    average_precision: Array
    precision: Array
    recall: Array
    f1: Array
    support: Counts


def per_label(scores: Array, is_there: Array, threshold: float = 0.5) -> PerLabel:
    """Compare probabilities (N, K) with labels (N, K), 0 or 1; a label is said where it is at least `threshold`."""
    if scores.shape != is_there.shape or scores.ndim != 2:
        raise InvalidShape(
            f"scores have shape {scores.shape}, labels {is_there.shape}: both (N, K) is needed"
        )
    wanted, said = is_there > 0, scores >= threshold
    hits = (wanted & said).sum(0).astype(np.float64)
    support, called = wanted.sum(0).astype(np.int64), said.sum(0)
    found = [average_precision(scores[:, k], wanted[:, k]) for k in range(scores.shape[1])]
    return PerLabel(
        np.array(found),
        _share(hits, called),
        _share(hits, support),
        _share(2 * hits, support + called),
        support,
    )


@dataclass(frozen=True)
class Regression:
    """Of each number: mean absolute error, root of the mean square, share of the variance explained (R²), and a
    histogram
    of the errors (said - true) with its edges, the same bins for all."""

    mae: Array
    rmse: Array
    r2: Array
    edges: Array
    histogram: Counts


def regression(said: Array, true: Array, bins: int = 41) -> Regression:
    """Compare numbers (N, K). Errors that are not finite are in no bin, and make the means NaN or infinite."""
    if said.shape != true.shape or said.ndim != 2 or not len(said):
        raise InvalidShape(
            f"predictions have shape {said.shape}, targets {true.shape}: both (N, K), N > 0, is needed"
        )
    error = said.astype(np.float64) - true
    spread = np.square(true - true.mean(0, dtype=np.float64)).sum(0)
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        r2 = np.where(spread > 0, 1 - np.square(error).sum(0) / spread, np.nan)
        rmse = np.sqrt(np.square(error).mean(0))
    finite = error[np.isfinite(error)]
    widest = float(np.quantile(np.abs(finite), 0.995)) if finite.size else 0.0
    edges = np.linspace(-1, 1, bins + 1) * (widest or 1.0)
    clipped = np.clip(error, edges[0], edges[-1])
    histogram = np.stack([np.histogram(column[np.isfinite(column)], edges)[0] for column in clipped.T])
    return Regression(np.abs(error).mean(0), rmse, r2, edges, histogram.astype(np.int64))


def intersection_over_union(counts: Counts) -> Array:
    """Of each class the pixels that both say over those that either says, from a confusion matrix of pixels."""
    hits = counts.diagonal().astype(np.float64)
    return _share(hits, counts.sum(0) + counts.sum(1) - hits)


def box_overlap(a: Array, b: Array) -> Array:
    """Intersection over union of boxes (N, 4) and (M, 4), left, top, right, bottom: (N, M)."""
    low = np.maximum(a[:, None, :2], b[None, :, :2])
    high = np.minimum(a[:, None, 2:], b[None, :, 2:])
    common = np.clip(high - low, 0, None).prod(2)
    areas = [np.clip(boxes[:, 2:] - boxes[:, :2], 0, None).prod(1) for boxes in (a, b)]
    return _share(common, areas[0][:, None] + areas[1][None] - common, nothing=0.0)


def _share(part: Array, whole: Array, nothing: float = float("nan")) -> Array:
    part, whole = np.asarray(part, np.float64), np.asarray(whole, np.float64)
    found: Array = np.divide(
        part, whole, out=np.full(np.broadcast_shapes(part.shape, whole.shape), nothing), where=whole > 0
    )
    return found

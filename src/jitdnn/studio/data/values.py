"""What the numbers of the training images are: their mean and deviation at each place, and how often each occurs."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np

from jitdnn.studio.data.dataset import Array, Dataset

#: images that are looked at, spread over the part
MOST_IMAGES: Final = 4096
#: bins of numbers that are no bytes, and of bytes, of which four share one
BINS: Final = 64
_PIECE = 16 << 20  # bytes at a time


class Values(NamedTuple):
    """Of `looked` images: `mean` and `std` of each place, float64 (C, H, W); for each channel the numbers in `BINS`
    equal stretches from `low` to `high`, (C, BINS); and how many are not finite, which nothing else counts."""

    looked: int
    mean: Array
    std: Array
    histogram: Array
    low: float
    high: float
    not_finite: int


def values_of(dataset: Dataset, most: int = MOST_IMAGES) -> Values:
    """Look at up to `most` training images; arrays never change, so the last few data sets are remembered."""
    return _looked(dataset.folder, dataset.task, tuple(dataset.classes), most)


@lru_cache(16)
def _looked(folder: Path, task: str, classes: tuple[str, ...], most: int) -> Values:
    images = Dataset(folder, task, list(classes)).images("train")
    chosen = np.unique(np.linspace(0, len(images) - 1, min(most, len(images))).astype(np.int64))
    step = max(1, _PIECE // max(1, images[0].nbytes))
    pieces = [chosen[start : start + step] for start in range(0, len(chosen), step)]
    low, high = (0.0, 256.0) if images.dtype == np.uint8 else _ends(images, pieces)
    count, total, square = (np.zeros(images.shape[1:]) for _ in range(3))
    histogram = np.zeros((images.shape[1], BINS), np.int64)
    middle = np.asarray(images[chosen[0]], np.float64)  # sums of squares are of what is left, for exactness
    middle = np.where(np.isfinite(middle), middle, 0.0)
    missing = 0
    for piece in pieces:
        given = np.asarray(images[piece], np.float64)
        is_finite = np.isfinite(given)
        missing += int(given.size - is_finite.sum())
        off = np.where(is_finite, given - middle, 0.0)
        count += is_finite.sum(0)
        total += off.sum(0)
        square += np.square(off).sum(0)
        for channel, row in enumerate(histogram):
            values = given[:, channel][is_finite[:, channel]]
            row += np.histogram(values, BINS, (low, high))[0]
    some = np.maximum(count, 1)
    std = np.sqrt(np.maximum(square / some - np.square(total / some), 0.0))
    return Values(len(chosen), middle + total / some, std, histogram, low, high, missing)


def _ends(images: Array, pieces: list[Array]) -> tuple[float, float]:
    """The least and the greatest finite number; apart where there is only one."""
    low, high = np.inf, -np.inf
    for piece in pieces:
        given = np.asarray(images[piece], np.float64)
        finite = given[np.isfinite(given)]
        if finite.size:
            low, high = min(low, finite.min()), max(high, finite.max())
    if not low < high:
        middle = float(low) if np.isfinite(low) else 0.0
        return middle - 0.5, middle + 0.5
    return float(low), float(high)

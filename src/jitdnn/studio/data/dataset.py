"""A data set on disk, memory-mapped: what trains, looks and shows sees of it.

The folder `home/data/ID` holds for each part (train, val, test) two arrays of NumPy,

    PART_data.npy    N x C x H x W; bytes, channels blue, green, red or one grey one, or float32 for tables and signals
    PART_label.npy   by the task, see tasks.py

beside `items.sqlite` (names, hashes, index.py), `mean.npy` (float32 C x H x W, of the training part) and
`about.json`. A Data layer of jitdnn.caffe reads a part in place: `source: "HOME/data/ID#train"`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from jitdnn.caffe.arrays import map_npy, read_npy
from jitdnn.errors import InvalidArgument
from jitdnn.studio.store import data_folder

Array = NDArray[Any]
Row = dict[str, Any]

#: the file of the mean of the training part
MEAN: Final = "mean.npy"
PARTS: Final = ("train", "val", "test")


class Dataset:
    """The arrays of one data set; nothing is read before it is asked for."""

    def __init__(self, folder: Path, task: str, classes: list[str]) -> None:
        self.folder, self.task, self.classes = folder, task, classes
        self._maps: dict[str, Array] = {}

    def images(self, part: str) -> Array:
        """N x C x H x W, read-only. Raises InvalidArgument for a part that is not there or has no images."""
        return self._map(part, "data")

    def labels(self, part: str) -> Array:
        """The labels of a part, read-only, by the task."""
        return self._map(part, "label")

    def count(self, part: str) -> int:
        """How many images a part has; 0 for one that is not there."""
        return len(self.images(part)) if part in self.parts else 0

    @cached_property
    def parts(self) -> tuple[str, ...]:
        """The parts that have images."""
        return tuple(part for part in PARTS if (self.folder / f"{part}_data.npy").is_file())

    @property
    def evaluation_part(self) -> str:
        """What a trained net is judged by: test, or val where there is no test."""
        return next((part for part in ("test", "val", "train") if part in self.parts), "train")

    @cached_property
    def shape(self) -> tuple[int, int, int]:
        """(C, H, W) of the images."""
        channels, height, width = self.images(self.parts[0]).shape[1:]
        return channels, height, width

    @cached_property
    def mean(self) -> Array:
        """The mean image of the training part, float32 (C, H, W), as it is kept; where it is gone, made again."""
        kept = self.folder / MEAN
        return read_npy(kept) if kept.is_file() else mean_image(self)

    @property
    def mean_pixel(self) -> list[float]:
        """The mean of each channel."""
        return [round(float(value), 4) for value in self.mean.mean((1, 2))]

    def source(self, part: str) -> str:
        """What `data_param.source` says to read a part."""
        return f"{self.folder}#{part}"

    def histogram(self, part: str) -> list[int]:
        """Images of each class of a part: those that have it for multi-label, pixels for segmentation, boxes for
        detection; an empty list for regression.
        """
        if part not in self.parts or self.task == "regression":
            return []
        labels = self.labels(part)
        if self.task == "multi-label":
            return [int(value) for value in (labels > 0.5).sum(0)]
        if self.task == "detection":
            labels = labels[..., 0]
        counts = np.zeros(256 if labels.dtype == np.uint8 else len(self.classes), np.int64)
        for start in range(0, len(labels), 4096):
            found = np.asarray(labels[start : start + 4096]).astype(np.int64).ravel()
            counts += np.bincount(found[found >= 0], minlength=len(counts))[: len(counts)]
        return [int(value) for value in counts[: len(self.classes)]]

    def _map(self, part: str, kind: str) -> Array:
        name = f"{part}_{kind}.npy"
        if name not in self._maps:
            if part not in self.parts:
                shown = ", ".join(self.parts) or "none"
                raise InvalidArgument(f"the data set has no part {part!r} with images; it has {shown}")
            self._maps[name] = map_npy(self.folder / name)
        return self._maps[name]


def mean_image(dataset: Dataset) -> Array:
    """The mean of the training part, float32 (C, H, W)."""
    images = dataset.images("train")
    total = np.zeros(images.shape[1:], np.float64)
    step = max(1, (16 << 20) // max(1, images[0].nbytes))
    for start in range(0, len(images), step):
        total += images[start : start + step].sum(0, dtype=np.float64)
    return (total / len(images)).astype(np.float32)


def open_dataset(home: Path, row: Mapping[str, Any]) -> Dataset:
    """The data set of a row of the store. Raises InvalidArgument where it is not made, or not any more."""
    folder = data_folder(home, int(row["id"]))
    if not folder.is_dir():
        raise InvalidArgument(
            f"data set {row['id']} has no folder {folder}: it is {row.get('state') or 'gone'}"
        )
    return Dataset(folder, row.get("task") or "classification", list(row["classes"]))


def read_about(folder: Path) -> Row:
    """What `about.json` of a data set says."""
    found: Row = json.loads((folder / "about.json").read_text("utf-8"))
    return found

"""Readers: from an entry to the array and the label that are stored."""

from __future__ import annotations

from typing import Any

import numpy as np

from jitdnn.errors import InvalidArgument
from jitdnn.studio.data.containers import Container
from jitdnn.studio.data.dataset import Array
from jitdnn.studio.data.entries import Entry
from jitdnn.studio.data.options import Options
from jitdnn.studio.data.pictures import open_picture, to_array


class Pictures:
    """Image files, with a class or some numbers as label."""

    is_parallel = True
    dtype = "u1"
    shape: tuple[int, ...]
    label_shape: tuple[int, ...] = ()
    label_dtype = "i8"

    def __init__(self, container: Container, options: Options, columns: int = 0) -> None:
        """`columns` is how many numbers a label has, 0 for a class."""
        self.container, self.options = container, options
        self.shape = (1 if options.grey else 3, options.height, options.width)
        if columns:
            self.label_shape, self.label_dtype = (columns,), "f4"

    def read(self, entry: Entry) -> tuple[Array, Any]:
        image = open_picture(self.container.read(entry.key), self.options)
        return to_array(image, self.options)[0], entry.label


class Rows:
    """Arrays in memory: `data` (N, C, H, W) and `labels`, by an entry's number."""

    is_parallel = False
    shape: tuple[int, ...]
    label_shape: tuple[int, ...]

    def __init__(self, data: Array, labels: Array) -> None:
        self.data, self.labels = data, labels
        self.shape, self.dtype = data.shape[1:], data.dtype.str
        self.label_shape, self.label_dtype = labels.shape[1:], labels.dtype.str

    def read(self, entry: Entry) -> tuple[Array, Any]:
        row = self.data[entry.key]
        if row.dtype.kind == "f" and not np.isfinite(row).all():
            raise InvalidArgument("a value is not finite")
        label = self.labels[entry.key]
        if label.dtype.kind == "f" and not np.isfinite(label).all():
            raise InvalidArgument("its label is not finite")
        return row, label

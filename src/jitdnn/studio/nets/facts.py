"""What nets need to know of a data set, from its row in the store."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jitdnn.caffe.blob import Shape
from jitdnn.errors import InvalidArgument
from jitdnn.studio.tasks import TASKS

#: numbers of a box: its class (-1: none), and left, top, right, bottom
BOX = 5


@dataclass(frozen=True)
class DataFacts:
    """A data set as nets see it.

    `shape` is (C, H, W) of an image, `classes` the names of its classes (of its targets, for regression), `counts` the
    images of "train", "val" and "test", `boxes` the most boxes of an image, `class_counts` the training images of each
    class (pixels, for segmentation), where they are known.
    """

    number: int
    name: str
    task: str
    shape: Shape
    classes: tuple[str, ...]
    counts: Mapping[str, int]
    boxes: int = 1
    class_counts: tuple[int, ...] = ()

    @classmethod
    def of(cls, row: Mapping[str, Any]) -> DataFacts:
        """Read a row of the table dataset. Raises InvalidArgument for one that no net can be bound to."""
        shape = row["shape"]
        extents = tuple(int(extent) for extent in (shape.split("x") if isinstance(shape, str) else shape))
        task = row.get("task") or "classification"
        if task not in TASKS:
            raise InvalidArgument(f"the data set is for {task!r}: there are {', '.join(TASKS)}")
        if len(extents) == 2:  # signals: C x W
            extents = (extents[0], 1, extents[1])
        if len(extents) == 1:  # tables: columns
            extents = (extents[0], 1, 1)
        if len(extents) != 3 or min(extents) < 1:
            raise InvalidArgument(
                f"the images of data set {row['name']!r} have shape {shape!r}: (C, H, W) is needed"
            )
        counts = {part: int(row.get(part) or 0) for part in ("train", "val", "test")}
        if not counts["train"]:
            raise InvalidArgument(f"data set {row['name']!r} has no images to train on")
        boxes = int((row.get("settings") or {}).get("boxes") or 1)
        held = tuple(int(count) for count in (row.get("counts") or {}).get("train") or ())
        return cls(
            int(row["id"]), row["name"], task, extents, tuple(row.get("classes") or ()), counts, boxes, held
        )

    @property
    def tested(self) -> str:
        """The part that is tested while a net is trained: "val", or "test" where there is none, or "train"."""
        return next(part for part in ("val", "test", "train") if self.counts[part])

    def label_shape(self, batch: int) -> Shape:
        """The shape of a batch of labels."""
        match self.task:
            case "multi-label" | "regression":
                return (batch, max(1, len(self.classes)))
            case "segmentation":
                return (batch, *self.shape[1:])
            case "detection":
                return (batch, self.boxes, BOX)
        return (batch,)

    def source(self, part: str, home: Path, folder: Path) -> str:
        """What a Data layer in a file of `folder` names as its source for "train", "val" or "test".

        It is relative, so that a home can be moved.
        """
        return f"{os.path.relpath(home / 'data' / str(self.number), folder)}#{part}"

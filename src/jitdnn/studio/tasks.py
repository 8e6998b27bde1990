"""What a data set can be for."""

from __future__ import annotations

from typing import Final, NamedTuple


class Task(NamedTuple):
    """A task: what it is called on the pages, and what the array of labels of a part is."""

    title: str
    labels: str


TASKS: Final = {
    "classification": Task(
        "classification", "int64 N, the number of the class, -1 where nobody has said it yet"
    ),
    "multi-label": Task("several labels an image", "float32 N x K, 0 or 1"),
    "regression": Task("regression", "float32 N x K"),
    "segmentation": Task(
        "segmentation", "uint8 N x H x W, the class of each pixel, 255 where it does not count"
    ),
    "detection": Task(
        "detection", "float32 N x MAX x 5: class (-1: no box), x1, y1, x2, y2 as parts of width and height"
    ),
}

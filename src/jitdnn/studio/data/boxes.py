"""Detection: pictures with boxes, from YOLO's and KITTI's text files."""

from __future__ import annotations

import posixpath
from collections.abc import Sequence
from typing import Any, Final

import numpy as np

from jitdnn.errors import InvalidArgument
from jitdnn.studio.data.containers import Container
from jitdnn.studio.data.dataset import Array
from jitdnn.studio.data.entries import Entry, Listing
from jitdnn.studio.data.folders import group_of, is_picture, part_in
from jitdnn.studio.data.options import Options
from jitdnn.studio.data.pictures import open_picture, to_array

#: boxes that a picture may have, and what is left of one at an edge, as a share of its area, for it to be kept
MOST_BOXES: Final = 500
_LEAST_LEFT: Final = 0.1
_FOLDERS = {"labels", "label", "label_2", "annotations"}
_PICTURES = {"images", "image", "image_2", "imgs", "jpegimages"}


class Boxes:
    """Image files with boxes."""

    is_parallel = True
    dtype = "u1"
    label_dtype = "f4"
    shape: tuple[int, ...]
    label_shape: tuple[int, ...]

    def __init__(self, container: Container, options: Options, most: int) -> None:
        """`most` is the greatest number of boxes of a picture. Raises InvalidArgument if it is none, or too large."""
        if not 1 <= most <= MOST_BOXES:
            raise InvalidArgument(f"a picture has {most} boxes: 1 to {MOST_BOXES} can be kept")
        self.container, self.options = container, options
        self.shape = (1 if options.grey else 3, options.height, options.width)
        self.label_shape = (most, 5)

    def read(self, entry: Entry) -> tuple[Array, Any]:
        """Boxes go with the picture; those of which little is left are left out. -1 is the class of none."""
        image = open_picture(self.container.read(entry.key))
        width, height = image.size
        pixels, fit = to_array(image, self.options)
        unit, boxes = entry.label
        found = np.full(self.label_shape, -1, np.float32)
        if boxes:
            values = np.array(boxes, np.float64)
            corners = values[:, 1:] * ([width, height] * 2 if unit == "parts" else 1)
            placed = fit.boxes(corners)
            area = np.prod(corners[:, 2:] - corners[:, :2], axis=1)
            scale = fit.scale[0] * fit.scale[1] / (fit.width * fit.height)
            kept = np.prod(placed[:, 2:] - placed[:, :2], axis=1) >= np.maximum(
                _LEAST_LEFT * area * scale, 1e-9
            )
            found[: kept.sum(), 0] = values[kept, 0]
            found[: kept.sum(), 1:] = placed[kept]
        return pixels, found


def has_boxes(names: Sequence[str]) -> bool:
    """Whether text files of boxes lie beside the pictures, or in a folder of labels."""
    texts = {_key(name) for name in names if name.endswith(".txt") and _is_label(name)}
    pictures = {_key(name) for name in names if is_picture(name)}
    return len(texts & pictures) > 0 and len(texts & pictures) >= len(texts) // 2


def list_boxes(container: Container, names: Sequence[str], options: Options) -> Listing:
    """Each picture with the text file of its name. Pictures without one have no boxes."""
    texts = {_key(name): name for name in names if name.endswith(".txt") and _is_label(name)}
    named = _class_names(container, names)
    pattern = options.pattern()
    found: list[tuple[str, list[tuple[Any, ...]], str]] = []
    skipped: list[tuple[str, str]] = []
    for name in names:
        if not is_picture(name):
            continue
        text = texts.get(_key(name))
        try:
            boxes, unit = parse_boxes(container.text(text), text) if text else ([], "parts")
        except InvalidArgument as error:
            skipped.append((name, str(error)))
            continue
        found.append((name, boxes, unit))
    labels = {box[0] for _, boxes, _ in found for box in boxes}
    if all(isinstance(label, int) for label in labels):
        count = max([*(int(label) for label in labels), len(named) - 1], default=-1) + 1
        classes = [named[k] if k < len(named) else f"class {k}" for k in range(count)]
        place = {k: k for k in range(count)}
    else:
        classes = sorted(str(label) for label in labels)
        place = {label: classes.index(str(label)) for label in labels}
    entries = [
        Entry(
            name,
            name,
            (unit, tuple((place[box[0]], *box[1:]) for box in boxes)),
            part_in(name.split("/")[:-1]),
            group_of(name, pattern),
        )
        for name, boxes, unit in found
    ]
    most = max((len(boxes) for _, boxes, _ in found), default=0)
    kind = "pictures with boxes"
    return Listing("detection", entries, classes, Boxes(container, options, most), kind, skipped=skipped)


def parse_boxes(text: str, what: str) -> tuple[list[tuple[Any, ...]], str]:
    """Boxes (class, x1, y1, x2, y2) and their unit: KITTI's lines of 15 words, in pixels, without "DontCare";
    YOLO's of 5 numbers, class, middle, width and height in parts of the picture's. Raises InvalidArgument, naming
    the line.
    """
    boxes: list[tuple[Any, ...]] = []
    unit = "parts"
    for number, line in enumerate(text.splitlines(), start=1):
        words = line.split()
        if not words:
            continue
        try:
            if len(words) >= 15:
                unit = "pixels"
                x1, y1, x2, y2 = map(float, words[4:8])
                if words[0] == "DontCare":
                    continue
                box: tuple[Any, ...] = (words[0], x1, y1, x2, y2)
            elif len(words) in (5, 6):
                x, y, width, height = map(float, words[1:5])
                box = (int(words[0]), x - width / 2, y - height / 2, x + width / 2, y + height / 2)
                if not 0 <= box[0] < 10_000:
                    raise ValueError
            else:
                raise ValueError
            if not (all(map(np.isfinite, box[1:])) and box[3] > box[1] and box[4] > box[2]):
                raise ValueError
        except ValueError:
            raise InvalidArgument(
                f"{what}, line {number}: {line[:60]!r} is no box: a class and four numbers (YOLO), or 15 words (KITTI)"
            ) from None
        boxes.append(box)
    return boxes, unit


def _class_names(container: Container, names: Sequence[str]) -> list[str]:
    """The names of classes in YOLO's classes.txt, obj.names or data.yaml, in the order of their numbers."""
    for name in names:
        base = posixpath.basename(name).lower()
        if base in ("classes.txt", "obj.names", "names.txt"):
            return [line.strip() for line in container.text(name).splitlines() if line.strip()]
        if base in ("data.yaml", "dataset.yaml", "data.yml"):
            return _yaml_names(container.text(name))
    return []


def _yaml_names(text: str) -> list[str]:
    """`names: [a, b]`, or a list or numbered lines below `names:`."""
    _, _, rest = text.partition("names:")
    first, _, below = rest.partition("\n")
    if first.strip().startswith("["):
        return [
            word.strip(" '\"") for word in rest.partition("]")[0].strip(" [\n").split(",") if word.strip()
        ]
    found = []
    for line in below.splitlines():
        word = line.strip()
        if not line.startswith((" ", "-")):
            break
        found.append(word.removeprefix("-").split(":")[-1].strip(" '\""))
    return found


def _is_label(name: str) -> bool:
    return posixpath.basename(name).lower() not in ("classes.txt", "names.txt", "readme.txt", "labels.txt")


def _key(name: str) -> str:
    """What a picture and its text file have in common."""
    folders = name.split("/")[:-1]
    kept = [folder for folder in folders if folder.lower() not in _FOLDERS | _PICTURES]
    return "/".join([*kept, posixpath.splitext(posixpath.basename(name))[0]])

"""Segmentation: pictures, and masks of the same names that say the class of each pixel."""

from __future__ import annotations

import posixpath
from collections import Counter
from collections.abc import Sequence
from typing import Any, Final

import numpy as np
from PIL import Image

from jitdnn.errors import InvalidArgument
from jitdnn.studio.data.containers import Container
from jitdnn.studio.data.dataset import Array
from jitdnn.studio.data.entries import Entry, Listing
from jitdnn.studio.data.folders import group_of, is_picture, part_in
from jitdnn.studio.data.options import Options
from jitdnn.studio.data.pictures import fit_of, open_picture, to_array

IGNORED: Final = 255
#: masks that are looked at for the values that there are, and values that are classes at most
_LOOKED, _MOST = 400, 255
_MASKS = {
    "masks",
    "mask",
    "labels",
    "label",
    "annotations",
    "annotation",
    "segmentation",
    "segmentationclass",
    "gt",
}
_PICTURES = {"images", "image", "imgs", "jpegimages", "pictures", "photos"}
_TAILS = ("_mask", "-mask", "_label", "_seg", "_gt")


class Masks:
    """Image files with a mask each. `values` are the numbers, or colours as 256² red + 256 green + blue, of
    the classes.
    """

    is_parallel = True
    dtype = "u1"
    label_dtype = "u1"
    shape: tuple[int, ...]
    label_shape: tuple[int, ...]

    def __init__(self, container: Container, options: Options, values: list[int], has_colours: bool) -> None:
        self.container, self.options = container, options
        self.values, self.has_colours = values, has_colours
        self.shape = (1 if options.grey else 3, options.height, options.width)
        self.label_shape = (options.height, options.width)

    def read(self, entry: Entry) -> tuple[Array, Any]:
        """Where the picture does not reach, and for values that are no class, the mask is IGNORED."""
        image = open_picture(self.container.read(entry.key))
        mask = open_picture(self.container.read(entry.label))
        if mask.size != image.size:
            raise InvalidArgument(
                f"its mask {entry.label} has {mask.width} x {mask.height} pixels, and it has "
                f"{image.width} x {image.height}"
            )
        numbers = mask_numbers(mask, self.has_colours)
        order = np.argsort(self.values)
        ordered = np.array(self.values)[order]
        at = np.minimum(np.searchsorted(ordered, numbers), len(ordered) - 1)
        classes = np.where(ordered[at] == numbers, order[at], IGNORED).astype(np.uint8)
        fit = fit_of(image.size, self.options)
        placed = fit.apply(Image.fromarray(classes), IGNORED, Image.Resampling.NEAREST)
        return to_array(image, self.options)[0], np.asarray(placed)


def mask_numbers(mask: Image.Image, has_colours: bool) -> Array:
    """The number of each pixel: that of a grey value or of a palette's entry, or the colour's."""
    if not has_colours:
        found = np.asarray(mask if mask.mode in ("P", "L", "I", "I;16") else mask.convert("L"))
        return found.astype(np.int64)
    red, green, blue = np.asarray(mask.convert("RGB")).astype(np.int64).transpose(2, 0, 1)
    numbers: Array = (red << 16) + (green << 8) + blue
    return numbers


def pairs_of(names: Sequence[str]) -> dict[str, str]:
    """Pictures and their masks: of equal names in folders `images` and `masks`, or with `_mask` behind the name."""
    pictures = [name for name in names if is_picture(name)]
    masks = {_key(name): name for name in pictures if _is_mask(name)}
    return {name: masks[_key(name)] for name in pictures if not _is_mask(name) and _key(name) in masks}


def list_masks(container: Container, names: Sequence[str], options: Options) -> Listing:
    """Pictures with masks; the classes are the values that are found in masks from all over them.

    Raises InvalidArgument if there are more values than classes can be.
    """
    pairs = pairs_of(names)
    step = max(1, len(pairs) // _LOOKED)
    seen: Counter[int] = Counter()
    has_colours, skipped = False, list[tuple[str, str]]()
    for mask in list(pairs.values())[::step]:
        try:
            picture = open_picture(container.read(mask))
        except InvalidArgument as error:
            skipped.append((mask, str(error)))
            continue
        if not has_colours and picture.mode not in ("P", "L", "1", "I", "I;16"):
            has_colours, seen = True, Counter()
        numbers, counts = np.unique(mask_numbers(picture, has_colours), return_counts=True)
        if len(numbers) > _MOST + 1:
            raise InvalidArgument(
                f"{mask} has {len(numbers):,} different values: a mask has one for each class, at most {_MOST}; JPEG "
                "blurs them, so store masks as PNG"
            )
        seen.update(dict(zip(numbers.tolist(), counts.tolist(), strict=True)))
    values = sorted(seen)
    notes = []
    if IGNORED in values and not has_colours and len(values) > 2:
        values.remove(IGNORED)
        notes.append("pixels of the value 255 belong to no class and do not count")
    if len(values) > _MOST:
        raise InvalidArgument(
            f"the masks have {len(values):,} different values: at most {_MOST} classes can be"
        )
    named = _names(container, names)
    classes = [named.get(value) or _shown(value, has_colours) for value in values]
    pattern = options.pattern()
    entries = [
        Entry(picture, picture, mask, part_in(picture.split("/")[:-1]), group_of(picture, pattern))
        for picture, mask in pairs.items()
    ]
    without = sum(is_picture(name) for name in names) - 2 * len(pairs)
    if without > 0:
        notes.append(f"{without:,} pictures have no mask of their name, and are left out")
    reader = Masks(container, options, values, has_colours)
    return Listing("segmentation", entries, classes, reader, "pictures with masks", notes, skipped)


def _names(container: Container, names: Sequence[str]) -> dict[int, str]:
    """Names of classes: a line each in classes.txt or labels.txt, or with their colour in front (CamVid)."""
    for name in names:
        if posixpath.basename(name).lower() not in ("classes.txt", "labels.txt", "label_colors.txt"):
            continue
        found: dict[int, str] = {}
        for number, line in enumerate(text for text in container.text(name).splitlines() if text.strip()):
            words = line.split()
            if len(words) >= 4 and all(word.isdecimal() and int(word) < 256 for word in words[:3]):
                red, green, blue = map(int, words[:3])
                found[(red << 16) + (green << 8) + blue] = " ".join(words[3:])
            else:
                found[number] = line.strip()
        return found
    return {}


def _shown(value: int, has_colours: bool) -> str:
    if has_colours:
        return f"#{value:06x}"
    return "background" if value == 0 else f"value {value}"


def _is_mask(name: str) -> bool:
    *folders, file = name.split("/")
    stem = posixpath.splitext(file)[0].lower()
    return any(folder.lower() in _MASKS for folder in folders) or stem.endswith(_TAILS)


def _key(name: str) -> str:
    """What a picture and its mask have in common."""
    *folders, file = name.split("/")
    stem = posixpath.splitext(file)[0]
    for tail in _TAILS:
        stem = stem[: -len(tail)] if stem.lower().endswith(tail) else stem
    return "/".join([*(folder for folder in folders if folder.lower() not in _MASKS | _PICTURES), stem])

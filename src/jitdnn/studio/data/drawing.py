"""Labels drawn over their pictures: masks as colours, boxes as frames."""

from __future__ import annotations

from functools import cache
from typing import Final

import numpy as np

from jitdnn.studio.data.dataset import Array
from jitdnn.studio.data.sheets import tile

#: told apart by people who see colours differently (Okabe and Ito 2008)
_FIRST: Final = (
    (0, 0, 0), (230, 159, 0), (86, 180, 233), (0, 158, 115), (240, 228, 66), (0, 114, 178), (213, 94, 0), (204, 121,
    167),
)  # fmt: skip


def class_colour(number: int) -> tuple[int, int, int]:
    """The colour of a class, red, green, blue; the first one, usually the background, is black."""
    if number < len(_FIRST):
        return _FIRST[number]
    hue = (number * 0.61803398875) % 1.0  # steps of the golden ratio never come near each other
    red, green, blue = (
        int(255 * (0.25 + 0.6 * abs((hue + third) % 1 * 2 - 1))) for third in (0.0, 2 / 3, 1 / 3)
    )
    return red, green, blue


@cache
def palette() -> Array:
    """The colours of classes 0 to 255, bytes (256, 3)."""
    return np.array([class_colour(number) for number in range(256)], np.uint8)


def drawn(image: Array, label: Array, task: str, largest: int = 128) -> Array:
    """A picture (C, H, W) with its label as (C, H, W) in blue, green, red: the mask over it, or the boxes."""
    pixels = np.repeat(tile(image, largest), 3, axis=2)[..., :3] if len(image) == 1 else tile(image, largest)
    pixels = pixels.astype(np.uint8).copy()
    height, width = pixels.shape[:2]
    if task == "segmentation":
        rows = np.arange(height) * label.shape[0] // height
        columns = np.arange(width) * label.shape[1] // width
        mask = np.asarray(label)[np.ix_(rows, columns)]
        shown = (mask > 0) & (mask < 255)
        pixels[shown] = (0.5 * pixels[shown] + 0.5 * palette()[mask[shown]]).astype(np.uint8)
    elif task == "detection":
        for number, *corners in np.asarray(label, float):
            if number >= 0:
                _frame(pixels, corners, np.array(class_colour(int(number) + 1)))
    return pixels[..., ::-1].transpose(2, 0, 1)


def _frame(pixels: Array, corners: list[float], colour: Array) -> None:
    (x1, x2), (y1, y2) = (
        (min(round(low * size), size - 1), min(max(round(high * size) - 1, 0), size - 1))
        for low, high, size in zip(corners[:2], corners[2:], (pixels.shape[1], pixels.shape[0]), strict=True)
    )
    pixels[[y1, y2], x1 : x2 + 1] = colour
    pixels[y1 : y2 + 1, [x1, x2]] = colour

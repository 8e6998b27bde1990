"""Labels drawn over their pictures: masks as colours, boxes as frames."""

from __future__ import annotations

import colorsys
from functools import cache

import numpy as np

from jitdnn.studio.data.dataset import Array
from jitdnn.studio.data.sheets import tile


@cache
def palette() -> Array:
    """256 colours (red, green, blue) that neighbours tell apart; that of class 0 is not drawn."""
    hues = (np.arange(256) * 0.618034) % 1
    return np.array(
        [[round(255 * value) for value in colorsys.hsv_to_rgb(float(hue), 0.75, 1.0)] for hue in hues],
        np.uint8,
    )


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
                _frame(pixels, corners, palette()[int(number) % 256])
    return pixels[..., ::-1].transpose(2, 0, 1)


def _frame(pixels: Array, corners: list[float], colour: Array) -> None:
    (x1, x2), (y1, y2) = (
        (min(round(low * size), size - 1), min(max(round(high * size) - 1, 0), size - 1))
        for low, high, size in zip(corners[:2], corners[2:], (pixels.shape[1], pixels.shape[0]), strict=True)
    )
    pixels[[y1, y2], x1 : x2 + 1] = colour
    pixels[y1 : y2 + 1, [x1, x2]] = colour

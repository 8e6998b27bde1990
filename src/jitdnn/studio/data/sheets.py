"""Pages of a gallery: many small pictures as one PNG."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from PIL import Image

from jitdnn.studio.data.dataset import Array
from jitdnn.studio.png import grid, opaque, pixels_of, png

#: pictures are shown at most so large on a sheet
_TILE = 128


def sheet(images: Sequence[Array] | Array, columns: int, gap: int = 1, largest: int = _TILE) -> bytes:
    """A PNG of pictures (C, H, W), `columns` a row, `gap` transparent pixels between them; larger ones are made
    smaller.

    Floats are shown from their least (black) to their greatest value; a row of numbers as a curve.
    """
    tiles = [tile(image, largest) for image in images] or [np.zeros((1, 1, 1), np.uint8)]
    channels = max(
        each.shape[2] for each in tiles
    )  # grey pictures beside coloured ones are grey in three channels
    return png(
        grid([opaque(each.repeat(channels // each.shape[2], 2)) for each in tiles], columns, gap), level=1
    )


def tile(image: Array, largest: int = _TILE) -> Array:
    """A picture (C, H, W) as bytes (H, W, 1 or 3), red, green, blue, no side longer than `largest`."""
    image = np.asarray(image)
    if image.shape[1] == 1 and image.shape[2] > 1:
        return curve(image, min(largest, 64))
    pixels: Array = pixels_of(image)
    step = max(pixels.shape[0], pixels.shape[1]) / largest
    if step <= 1:
        return pixels
    size = (max(1, round(pixels.shape[1] / step)), max(1, round(pixels.shape[0] / step)))
    flat = pixels[..., 0] if pixels.shape[2] == 1 else pixels
    small = np.asarray(Image.fromarray(flat).resize(size, Image.Resampling.BILINEAR))
    return small[..., np.newaxis] if small.ndim == 2 else small


def curve(row: Array, side: int) -> Array:
    """A signal or a row of a table (C, 1, K) as white curves on black, bytes (side / 2, side, 1); each column goes
    from the least to the greatest value that falls into it, and to the next one's.
    """
    height = max(2, side // 2)
    found = np.zeros((height, side, 1), np.uint8)
    values = row[:, 0].astype(np.float64)
    low, high = float(values.min()), float(values.max())
    levels = (height - 1) * (1 - (values - low) / ((high - low) or 1))
    places = np.arange(height)[:, np.newaxis]
    for channel in levels:
        fine = np.interp(np.linspace(0, len(channel) - 1, 8 * side + 1), np.arange(len(channel)), channel)
        pieces = np.stack([fine[start : start + 8 * side : 8] for start in range(8)] + [fine[8::8]])
        is_on = (places >= np.floor(pieces.min(0))) & (places <= np.ceil(pieces.max(0)))
        found[is_on, 0] = 255
    return found

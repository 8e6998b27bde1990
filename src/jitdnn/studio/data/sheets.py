"""Pages of a gallery: many small pictures as one PNG."""

from __future__ import annotations

import io
from collections.abc import Sequence

import numpy as np
from PIL import Image

from jitdnn.studio.data.dataset import Array

#: pictures are shown at most so large on a sheet
_TILE = 128


def sheet(images: Sequence[Array] | Array, columns: int, gap: int = 1, largest: int = _TILE) -> bytes:
    """A PNG of pictures (C, H, W), `columns` a row, `gap` transparent pixels between them; larger ones are made
    smaller.

    Floats are shown from their least (black) to their greatest value; a row of numbers as a strip.
    """
    tiles = [tile(image, largest) for image in images]
    if not tiles:
        tiles = [np.zeros((1, 1, 1), np.uint8)]
    height, width, channels = tiles[0].shape
    rows = -(-len(tiles) // columns)
    page = np.zeros((rows * (height + gap) - gap, columns * (width + gap) - gap, channels + 1), np.uint8)
    for at, one in enumerate(tiles):
        top, left = at // columns * (height + gap), at % columns * (width + gap)
        page[top : top + height, left : left + width, :-1] = one
        page[top : top + height, left : left + width, -1] = 255
    return png(page)


def tile(image: Array, largest: int = _TILE) -> Array:
    """A picture (C, H, W) as bytes (H, W, 1 or 3), red, green, blue, no side longer than `largest`."""
    image = np.asarray(image)
    if image.dtype != np.uint8:
        low, high = float(image.min()), float(image.max())
        image = ((image - low) * (255 / ((high - low) or 1))).astype(np.uint8)
    if image.shape[1] == 1 and image.shape[2] > 1:  # a signal or a row of a table
        image = np.repeat(image[:1], max(1, min(8, image.shape[2] // 4)), axis=1)
    pixels = image[2::-1] if len(image) >= 3 else image[:1]
    pixels = pixels.transpose(1, 2, 0)
    step = max(pixels.shape[0], pixels.shape[1]) / largest
    if step <= 1:
        return pixels
    size = (max(1, round(pixels.shape[1] / step)), max(1, round(pixels.shape[0] / step)))
    flat = pixels[..., 0] if pixels.shape[2] == 1 else np.ascontiguousarray(pixels)
    small = np.asarray(Image.fromarray(flat).resize(size, Image.Resampling.BILINEAR))
    return small[..., np.newaxis] if small.ndim == 2 else small


def png(pixels: Array) -> bytes:
    """The file of pixels (H, W, C): grey, grey and alpha, colours, colours and alpha."""
    file = io.BytesIO()
    shaped = pixels[..., 0] if pixels.shape[2] == 1 else pixels
    Image.fromarray(np.ascontiguousarray(shaped)).save(file, "PNG", compress_level=1)
    return file.getvalue()

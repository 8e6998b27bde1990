"""Arrays as PNG files: images as Caffe has them to pixels, pixels to a file, many of them beside each other."""

from __future__ import annotations

import io
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from jitdnn.errors import InvalidShape

Array = NDArray[Any]
Pixels = NDArray[np.uint8]


def pixels_of(image: Array) -> Pixels:
    """An image (C, H, W), channels blue, green, red, as bytes (H, W, 3) in red, green, blue; (H, W, 1) of the first
    channel where there are fewer than three.

    Numbers that are no bytes are shown from their least (black) to their greatest finite value.
    """
    if image.ndim != 3 or not image.size:
        raise InvalidShape(f"an image has shape {image.shape}: (C, H, W) is needed")
    if image.dtype != np.uint8:
        finite = image[np.isfinite(image)]
        low, high = (float(finite.min()), float(finite.max())) if finite.size else (0.0, 1.0)
        scaled = (image.astype(np.float64) - low) * (255 / ((high - low) or 1))
        image = np.clip(np.nan_to_num(scaled, nan=0.0, posinf=255.0, neginf=0.0), 0, 255).astype(np.uint8)
    shown = image[2::-1] if len(image) >= 3 else image[:1]
    return np.ascontiguousarray(shown.transpose(1, 2, 0))


def grid(cells: Sequence[Array] | Array, columns: int, gap: int = 1, fill: Any = 0) -> Pixels:
    """Cells of one size (H, W, ...) as one page, rows of `columns`, `fill` between and behind them."""
    if not len(cells):
        return np.full((1, 1), fill, np.uint8)
    height, width = cells[0].shape[:2]
    rows = -(-len(cells) // columns)
    page = np.empty(
        (rows * (height + gap) - gap, columns * (width + gap) - gap, *cells[0].shape[2:]), np.uint8
    )
    page[...] = fill
    for at, cell in enumerate(cells):
        top, left = at // columns * (height + gap), at % columns * (width + gap)
        page[top : top + height, left : left + width] = cell
    return page


def opaque(pixels: Pixels) -> Pixels:
    """Pixels (H, W, C) with a channel more that has nothing show through; gaps of a grid are transparent then."""
    return np.dstack([pixels, np.full(pixels.shape[:2], 255, np.uint8)])


def png(
    pixels: Array, *, level: int = 6, palette: Sequence[int] = (), transparency: int | None = None
) -> bytes:
    """The file of pixels (H, W) or (H, W, C): grey, grey and alpha, colours, colours and alpha; with a `palette` of
    red, green and blue in turn they are numbers of its colours, one of which may be transparent."""
    from PIL import Image

    shaped = pixels[..., 0] if pixels.ndim == 3 and pixels.shape[2] == 1 else pixels
    picture = Image.fromarray(np.ascontiguousarray(shaped))
    options: dict[str, Any] = {}
    if palette:
        picture.putpalette(palette)
        options["transparency"] = transparency
    return saved(picture, compress_level=level, **options)


def saved(picture: Any, **options: Any) -> bytes:
    """The file of a picture of pillow's."""
    file = io.BytesIO()
    picture.save(file, "PNG", **options)
    return file.getvalue()

"""Numbers as pictures: maps as tiles, heat over an image, classes of pixels, boxes; PNG bytes come out.

Images are bytes (C, H, W), C 1 or 3, channels blue, green, red as Caffe's; maps are real numbers (N, H, W).
"""

from __future__ import annotations

import base64
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from jitdnn.errors import InvalidShape
from jitdnn.studio.data.drawing import class_colour, palette
from jitdnn.studio.png import grid, opaque, pixels_of, png, saved

Array = NDArray[Any]
Colours = tuple[tuple[int, int, int], ...]
#: from the least to the greatest: night blue to cream
HEAT: Final[Colours] = (
    (13, 16, 32), (45, 55, 120), (41, 128, 150), (110, 190, 130), (245, 220, 120), (255, 250, 235),
)  # fmt: skip
#: around 0: blue, white, orange
SIGNED: Final[Colours] = ((33, 90, 190), (140, 175, 225), (247, 245, 240), (235, 160, 115), (190, 70, 30))
_LEVELS = 255  # of a palette; the last entry is the gap between tiles, which is transparent


@dataclass(frozen=True)
class Tiles:
    """A PNG of many maps with one scale of colours for all, so that they can be compared.

    `low` and `high` are the values at the ends of the colours, `count` how many maps are shown of `of`.
    """

    png: bytes
    width: int
    height: int
    columns: int
    count: int
    of: int
    low: float
    high: float

    @property
    def url(self) -> str:
        """The picture in the page itself."""
        return data_url(self.png)


def tiles(maps: Array, signed: bool = False, most: int = 256) -> Tiles:
    """Draw the first `most` maps (N, H, W) beside each other; what is not finite is drawn as the least."""
    if maps.ndim != 3:
        raise InvalidShape(f"maps have shape {maps.shape}: (N, H, W) is needed")
    count, height, width = min(len(maps), most), *maps.shape[1:]
    shown = np.asarray(maps[:count], np.float64)
    low, high = extremes(shown, signed)
    columns = max(1, min(count, round(np.sqrt(count * 2.4 * height / max(width, 1))) or 1, 40))
    page = grid(levels(shown, low, high), columns, 0 if height == width == 1 else 1, _LEVELS)
    colours = [*_table(SIGNED if signed else HEAT).reshape(-1).tolist(), 128, 128, 128]
    file = png(page, palette=colours, transparency=_LEVELS)
    return Tiles(file, page.shape[1], page.shape[0], columns, count, len(maps),
                 low, high)  # fmt: skip


def vector_as_map(values: Array) -> Array:
    """A vector as one block (1, side, side), or as tiles of one number each where it is short."""
    values = values.reshape(-1)
    if values.size <= 40:
        return values.reshape(-1, 1, 1)
    side = int(np.ceil(np.sqrt(values.size)))
    rows = -(-values.size // side)
    return np.append(values, np.full(rows * side - values.size, np.nan)).reshape(1, rows, side)


def extremes(values: Array, signed: bool) -> tuple[float, float]:
    """The ends of the scale: the least and the greatest finite number, or the greatest magnitude around 0."""
    finite = values[np.isfinite(values)]
    if not finite.size:
        return (-1.0, 1.0) if signed else (0.0, 1.0)
    if signed:
        most = float(np.abs(finite).max()) or 1.0
        return -most, most
    return float(finite.min()), float(finite.max())


def levels(values: Array, low: float, high: float) -> NDArray[np.uint8]:
    """Numbers as places on a scale of colours, 0 to 254."""
    span = high - low
    if not span > 0:
        return np.zeros(values.shape, np.uint8)
    placed = np.nan_to_num((values - low) / span, nan=0.0, posinf=1.0, neginf=0.0)
    return (np.clip(placed, 0, 1) * (_LEVELS - 1) + 0.5).astype(np.uint8)


def image_png(image: Array) -> bytes:
    """A PNG of one image (C, H, W), C 1 or 3."""
    return png(pixels_of(image))


def images_png(images: Sequence[Array] | Array, columns: int) -> bytes:
    """A PNG of images of one size beside each other, with transparent gaps."""
    return png(grid([opaque(pixels_of(image)) for image in images], columns))


def filters_png(kernels: Array, most: int = 256) -> Tiles:
    """Filters (K, C, R, S) as tiles: those over one channel or three by what they are made of, deeper ones by each
    channel.

    Those over three channels are drawn in colour, zero as grey, each with its own scale; `low` and `high` are of all.
    """
    if kernels.ndim != 4:
        raise InvalidShape(f"filters have shape {kernels.shape}: (K, C, R, S) is needed")
    if kernels.shape[1] != 3:
        return tiles(kernels.reshape(-1, *kernels.shape[2:]), signed=True, most=most)
    shown = np.asarray(kernels[:most], np.float64)
    low, high = extremes(shown, signed=True)
    scale = np.abs(np.nan_to_num(shown)).max((1, 2, 3), keepdims=True)
    colours = (np.nan_to_num(shown) / np.where(scale > 0, scale, 1.0) * 127 + 128).astype(np.uint8)
    columns = max(1, round(np.sqrt(len(colours) * 2.4)))
    file = images_png(colours, columns)
    height, width = (
        -(-len(colours) // columns) * (kernels.shape[2] + 1) - 1,
        columns * (kernels.shape[3] + 1) - 1,
    )
    return Tiles(file, width, height, columns, len(colours), len(kernels), low, high)


def heat_over(image: Array, heat: Array, signed: bool = False, opacity: float = 0.65) -> bytes:
    """A PNG of an image with a map (H, W) over it; where the map is near 0 (or its least) the image shows through."""
    low, high = extremes(heat, signed)
    places = levels(heat, low, high)
    colour = _table(SIGNED if signed else HEAT)[places]
    strength = np.abs(places / (_LEVELS - 1) * 2 - 1) if signed else places / (_LEVELS - 1)
    weight = (opacity * strength)[..., None]
    grey = np.repeat(pixels_of(image).mean(2, keepdims=True), 3, 2)
    grey = 0.55 * grey  # darker, so that the map stands out
    return png(((1 - weight) * grey + weight * colour).astype(np.uint8))


def classes_over(image: Array, classes: Array, opacity: float = 0.55) -> bytes:
    """A PNG of an image with the class of each pixel (H, W) as a colour; class 0 and those below 0 or 255 let it
    show."""
    pixels = _coloured(image)
    shown = (classes > 0) & (classes < 255)
    weight = np.where(shown, opacity, 0.0)[..., None]
    colour = palette()[np.clip(classes, 0, 255).astype(np.int64)]
    return png(((1 - weight) * pixels + weight * colour).astype(np.uint8))


@dataclass(frozen=True)
class Box:
    """A box in pixels of its image: edges, what is written at it, and the number of its colour."""

    left: float
    top: float
    right: float
    bottom: float
    text: str = ""
    colour: int = 0
    dashed: bool = False


def boxes_over(image: Array, boxes: Sequence[Box], least: int = 320) -> bytes:
    """A PNG of an image, enlarged to at least `least` pixels, with boxes and their words; true ones are dashed."""
    from PIL import Image, ImageDraw

    scale = max(1, -(-least // max(image.shape[1:])))
    picture = Image.fromarray(np.repeat(np.repeat(_coloured(image), scale, 0), scale, 1))
    draw = ImageDraw.Draw(picture)
    for box in boxes:
        edges = [float(np.clip(e, -1e6, 1e6)) * scale for e in (box.left, box.top, box.right, box.bottom)]
        if not (np.isfinite(edges).all() and edges[0] <= edges[2] and edges[1] <= edges[3]):
            continue
        colour = class_colour(box.colour + 1)
        if box.dashed:
            _dashed(draw, edges, colour, picture.size)
        else:
            draw.rectangle(edges, outline=colour, width=2)
        if box.text:
            place = (max(edges[0], 0) + 2, max(edges[1] - 12, 0))
            draw.rectangle(draw.textbbox(place, box.text), fill=colour)
            draw.text(place, box.text, fill=(0, 0, 0) if sum(colour) > 380 else (255, 255, 255))
    return saved(picture)


def cropped(image: Array, extents: Sequence[int]) -> Array:
    """The middle of an image, as it is cropped for the net; the image itself where the answer has other extents."""
    top, left = ((have - want) // 2 for have, want in zip(image.shape[1:], extents, strict=True))
    if min(top, left) < 0:
        return image
    return image[:, top : top + extents[0], left : left + extents[1]]


def data_url(png: bytes) -> str:
    """A PNG in the place of an address."""
    return "data:image/png;base64," + base64.b64encode(png).decode()


def _dashed(draw: Any, edges: list[float], colour: tuple[int, int, int], size: tuple[int, int]) -> None:
    left, top, right, bottom = edges
    for low, high, other, is_wide in (
        (left, right, top, True), (left, right, bottom, True), (top, bottom, left, False), (top, bottom, right, False),
    ):  # fmt: skip
        limit = size[0] if is_wide else size[1]
        for start in range(max(int(low), 0), min(int(high), limit) + 1, 8):
            stop = min(start + 4, high)
            line = (start, other, stop, other) if is_wide else (other, start, other, stop)
            draw.line(line, fill=colour, width=2)


def _coloured(image: Array) -> Array:
    """An image as bytes (H, W, 3), a grey one too."""
    pixels = pixels_of(image)
    return np.repeat(pixels, 3, 2) if pixels.shape[2] == 1 else pixels


@cache
def _table(colours: Colours) -> NDArray[np.uint8]:
    """The colours of a scale, one for each level."""
    places, ends = np.linspace(0, 1, _LEVELS), np.linspace(0, 1, len(colours))
    return np.stack([np.interp(places, ends, channel) for channel in np.array(colours).T], 1).astype(np.uint8)

"""Pictures to arrays: decoded, turned as the camera says, fitted to a shape; masks and boxes go the same way."""

from __future__ import annotations

import io
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageOps, UnidentifiedImageError

from jitdnn import limits
from jitdnn.errors import InvalidArgument
from jitdnn.studio.data.options import Options

SUFFIXES: Final = (".png", ".jpg", ".jpeg", ".bmp", ".ppm", ".pgm", ".webp", ".gif", ".tif", ".tiff")
_FORMATS: Final = ("PNG", "JPEG", "BMP", "PPM", "WEBP", "GIF", "TIFF")  # no other of pillow's decoders is run
Array = NDArray[Any]


@dataclass(frozen=True)
class Fit:
    """Where a picture of `size` (width, height) lies in one of `width` x `height`: new = old · scale + offset."""

    size: tuple[int, int]
    width: int
    height: int
    scale: tuple[float, float]
    offset: tuple[float, float]

    def apply(self, image: Image.Image, background: Any, method: Image.Resampling) -> Image.Image:
        """The picture in its new place, `background` where nothing of it lies."""
        spans = [self._span(axis) for axis in (0, 1)]
        (left, right, low_x, high_x), (top, bottom, low_y, high_y) = spans
        found = image.resize((right - left, bottom - top), method, box=(low_x, low_y, high_x, high_y))
        if found.size == (self.width, self.height):
            return found
        canvas = Image.new(image.mode, (self.width, self.height), background)
        canvas.paste(found, (left, top))
        return canvas

    def boxes(self, boxes: Array) -> Array:
        """Boxes (n, 4), x1, y1, x2, y2 in pixels of the old picture, as parts of the new one's sides, cut off at its
        edges.
        """
        scale = np.array(self.scale * 2) / np.array([self.width, self.height] * 2)
        offset = np.array(self.offset * 2) / np.array([self.width, self.height] * 2)
        found: Array = np.clip(boxes * scale + offset, 0, 1)
        return found

    def _span(self, axis: int) -> tuple[int, int, float, float]:
        """Of one axis: first and last pixel of the new picture, and what of the old one comes there."""
        most, size = (self.width, self.height)[axis], self.size[axis]
        scale, offset = self.scale[axis], self.offset[axis]
        first = min(max(0, round(offset)), most - 1)
        last = max(first + 1, min(most, round(offset + size * scale)))
        low = max(0.0, -offset / scale)
        high = min(float(size), (most - offset) / scale)
        return first, last, low, max(high, low + 1e-3)


def fit_of(size: tuple[int, int], options: Options) -> Fit:
    """How a picture of `size` (width, height) is fitted: squashed to the new shape; scaled until it covers it, and cut
    off (crop); scaled until it fits inside (fill); or half of each.
    """
    width, height = options.width, options.height
    ratio_x, ratio_y = size[0] / width, size[1] / height
    if options.mode == "squash":
        return Fit(size, width, height, (1 / ratio_x, 1 / ratio_y), (0.0, 0.0))
    ratio = {
        "crop": min(ratio_x, ratio_y),
        "fill": max(ratio_x, ratio_y),
        "half": (ratio_x + ratio_y) / 2,
    }[options.mode]
    offset = ((width - size[0] / ratio) / 2, (height - size[1] / ratio) / 2)
    return Fit(size, width, height, (1 / ratio, 1 / ratio), offset)


def open_picture(content: bytes, options: Options | None = None) -> Image.Image:
    """Decode a picture, upright. Raises InvalidArgument for what is none, or is too large.

    With options a JPEG that becomes much smaller is decoded at half, a quarter or an eighth of its size.
    """
    try:
        with Image.open(io.BytesIO(content), formats=_FORMATS) as image:
            width, height = image.size
            if width * height > limits.IMAGE_PIXELS:
                raise InvalidArgument(
                    f"it has {width} x {height} pixels by its header: at most {limits.IMAGE_PIXELS:,} are decoded"
                )
            if options is not None and image.format == "JPEG":
                side = 2 * max(options.width, options.height)
                image.draft("L" if options.grey else "RGB", (side, side))
            image.load()
            return ImageOps.exif_transpose(image)
    except InvalidArgument:
        raise
    except UnidentifiedImageError:
        raise InvalidArgument(
            f"it cannot be read as a picture: it is no {', '.join(_FORMATS[:-1])} or {_FORMATS[-1]}"
        ) from None
    except Exception as error:  # a decoder may raise anything over bytes that are not what they should be
        raise InvalidArgument(f"it cannot be read as a picture: {error}") from None


def to_array(image: Image.Image, options: Options) -> tuple[Array, Fit]:
    """Bytes (C, height, width), channels blue, green, red or one grey one, and where the picture lies in it."""
    mode = "L" if options.grey else "RGB"
    if image.mode.startswith("I"):  # 16 bits: the upper 8
        values = np.asarray(image)
        image = Image.fromarray((values >> 8 if values.max(initial=0) > 255 else values).astype(np.uint8))
    if image.mode in ("RGBA", "LA", "PA") or (image.mode == "P" and "transparency" in image.info):
        over = image.convert("RGBA")
        image = Image.alpha_composite(Image.new("RGBA", over.size, (255, 255, 255, 255)), over)
    if image.mode != mode:
        image = image.convert(mode)
    fit = fit_of(image.size, options)
    background = image.resize((1, 1), Image.Resampling.BOX).getpixel((0, 0))
    pixels = np.asarray(fit.apply(image, background, Image.Resampling.BILINEAR))
    return pixels[np.newaxis] if options.grey else pixels[:, :, ::-1].transpose(2, 0, 1), fit


def picture(content: bytes, options: Options) -> Array:
    """An image file as a net of a data set made with these options sees it: bytes (C, height, width).

    Raises InvalidArgument for a file that cannot be decoded.
    """
    return to_array(open_picture(content, options), options)[0]

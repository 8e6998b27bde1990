"""Images from files and from bytes, as Caffe has them: (C, H, W), 0 to 255, channels blue, green, red or one grey one.

Pillow decodes; only a few formats are tried, and the size in the header is looked at before memory is taken.
"""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np

from jitdnn import limits
from jitdnn.caffe.blob import Array
from jitdnn.errors import InvalidArgument, needed

_FORMATS = (
    "PNG",
    "JPEG",
    "BMP",
    "PPM",
)  # pillow's names; one of its others (EPS) is a program that it has run
_GREY = ("1", "L", "LA", "I", "I;16", "F")


def read_image(path: Path, mode: str | None, size: tuple[int, int] | None = None) -> Array:
    """Read an image file, as `decode_image` does. Raises InvalidArgument, also for a file that is not there."""
    try:
        content = limits.read_bounded(path, limits.IMAGE_BYTES, "an image")
    except OSError as error:
        raise InvalidArgument(f"{path} cannot be read as an image: {error.strerror or error}") from None
    return decode_image(content, str(path), mode, size)


def decode_image(content: bytes, what: str, mode: str | None, size: tuple[int, int] | None = None) -> Array:
    """Decode an image to bytes (C, H, W); `mode` is "L" for grey, "RGB" for colour, None for what it is.

    `size` (height, width) resizes it as OpenCV's bilinear does: between the four nearest pixels, also where it becomes
    much smaller. Raises InvalidArgument for what is none, NotSupported without pillow; `what` names it.
    """
    with needed(
        f"{what} is an image, and pillow, which decodes images, is not installed: pip install 'jitdnn[caffe]'"
    ):
        from PIL import Image, UnidentifiedImageError
    try:
        with Image.open(io.BytesIO(content), formats=_FORMATS) as image:
            width, height = image.size
            if width * height > limits.IMAGE_PIXELS:
                raise InvalidArgument(
                    f"{what} has {width} x {height} pixels by its header: at most {limits.IMAGE_PIXELS:,} are decoded"
                )
            wanted = mode or ("L" if image.mode in _GREY else "RGB")
            if wanted == "L" and image.format == "JPEG":
                image.draft("L", image.size)  # its brightness as it is stored, as OpenCV takes it
            picture: Any = image
            if image.mode.startswith("I"):  # 16 bits: OpenCV keeps the upper 8, pillow cuts off at 255
                picture = Image.fromarray((np.asarray(image) >> 8).astype(np.uint8))
            pixels = _resized(picture if picture.mode == wanted else picture.convert(wanted), size)
    except InvalidArgument:
        raise
    except UnidentifiedImageError:  # whose text is the address of the bytes
        raise InvalidArgument(
            f"{what} cannot be read as an image: it is none of {', '.join(_FORMATS)}, or too damaged to tell"
        ) from None
    except Exception as error:  # a decoder may raise anything over bytes that are not what they should be
        raise InvalidArgument(f"{what} cannot be read as an image: {error}") from error
    return pixels[np.newaxis] if wanted == "L" else pixels[:, :, ::-1].transpose(2, 0, 1)


def resize_image(image: Array, size: tuple[int, int]) -> Array:
    """Resize an image of bytes (C, H, W), C 1 or 3, to (height, width) as `decode_image` does."""
    from PIL import Image

    pixels = image[0] if len(image) == 1 else np.ascontiguousarray(image.transpose(1, 2, 0))
    found = _resized(Image.fromarray(pixels), size)
    return found[np.newaxis] if len(image) == 1 else found.transpose(2, 0, 1)


def encode_image(image: Array, form: str) -> bytes:
    """The bytes of an image file of (C, H, W), C 1 or 3; `form` is "png", "jpg" or another suffix of pillow's formats.
    Raises InvalidArgument for one that it does not have.
    """
    from PIL import Image

    suffix = f".{form.lower().lstrip('.')}"
    name = Image.registered_extensions().get(suffix)
    if name not in _FORMATS:
        raise InvalidArgument(f"images are encoded as png, jpg, bmp or ppm, not {form!r}")
    pixels = image[0] if len(image) == 1 else np.ascontiguousarray(image[::-1].transpose(1, 2, 0))
    stream = io.BytesIO()
    options = {"quality": 95} if name == "JPEG" else {}  # OpenCV's
    Image.fromarray(pixels).save(stream, name, **options)
    return stream.getvalue()


def _resized(image: Any, size: tuple[int, int] | None) -> Array:
    """The pixels, (H, W) or (H, W, 3)."""
    from PIL import Image

    if size is None or (image.height, image.width) == size:
        return np.asarray(image)
    height, width = size
    # pixels are squares: the middle of a new one, half a pixel in, lies there in the old image
    scale = (image.width / width, 0.0, 0.0, 0.0, image.height / height, 0.0)
    method, filtered = Image.Transform.AFFINE, Image.Resampling.BILINEAR
    bands = [
        # in floats, as pillow would cut off what is behind the point of bytes
        np.asarray(band.convert("F").transform((width, height), method, scale, resample=filtered))
        for band in image.split()
    ]
    pixels = np.stack(bands, axis=-1) if len(bands) > 1 else bands[0]
    return (pixels + 0.5).astype(np.uint8)

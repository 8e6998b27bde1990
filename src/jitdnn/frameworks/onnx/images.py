"""ImageDecoder: pixels of an image in a file's bytes, by Pillow."""

from __future__ import annotations

import io
import warnings

import numpy as np

from jitdnn import limits
from jitdnn.errors import InvalidArgument, needed
from jitdnn.frameworks.onnx.operator import Array, Site, table

_MODES = {"RGB": "RGB", "BGR": "RGB", "Grayscale": "L"}
_FORMATS = ("BMP", "JPEG", "JPEG2000", "TIFF", "PNG", "WEBP", "PPM")  # those that ONNX names


def image_decoder(encoded: Array, /, *, pixel_format: str = "RGB", site: Site) -> Array:
    """(height, width, channels) in uint8. Raises InvalidArgument for what is no image, or one beyond
    `limits.IMAGE_PIXELS`."""
    mode = _MODES.get(pixel_format)
    if mode is None:
        raise site.refuse(f"pixel_format {pixel_format!r} is not covered")
    with needed(f'{site.operator} needs the package pillow: pip install "jitdnn[caffe]"'):
        from PIL import Image  # only models with this operator need it
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", Image.DecompressionBombWarning)
            with Image.open(io.BytesIO(encoded.tobytes()), formats=_FORMATS) as image:
                if image.width * image.height > limits.IMAGE_PIXELS:
                    raise InvalidArgument(
                        f"{site.operator}: {image.width} x {image.height} pixels are more than {limits.IMAGE_PIXELS:,}"
                    )
                pixels = np.array(image.convert(mode))
    except InvalidArgument:
        raise
    except Exception as error:  # Pillow's decoders raise what they like
        raise InvalidArgument(f"{site.operator}: no image that can be read: {error}") from error
    if pixels.ndim == 2:
        return pixels[:, :, None]
    return pixels[:, :, ::-1] if pixel_format == "BGR" else pixels


OPERATORS = table(ImageDecoder=image_decoder)

"""Datum, the record of Caffe's databases: an image as bytes, as floats, or encoded as JPEG or PNG, and its label."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from jitdnn import limits
from jitdnn.caffe.blob import Array
from jitdnn.caffe.images import decode_image
from jitdnn.caffe.wire import FIXED32, LENGTH, VARINT, Reader, key, prefixed, signed, varint
from jitdnn.errors import InvalidArgument, InvalidShape

_CHANNELS, _HEIGHT, _WIDTH, _DATA, _LABEL, _FLOATS, _ENCODED = range(1, 8)


class Datum(NamedTuple):
    """A record: `content` is an image file if `is_encoded`, else (C, H, W) bytes or floats of that shape."""

    shape: tuple[int, int, int]
    content: memoryview
    label: int
    is_float: bool
    is_encoded: bool


def read_datum(record: bytes, what: str) -> Datum:
    """Read a record. Raises InvalidArgument for bytes that are none; `what` names it."""
    reader = Reader(what)
    shape, label, is_encoded = [0, 0, 0], 0, False
    data = memoryview(b"")
    floats: list[memoryview] = []
    for number, kind, value, content in reader.fields(memoryview(record)):
        if number == _DATA and kind == LENGTH:
            data = content
        elif number == _FLOATS and kind in (FIXED32, LENGTH):
            floats.append(content)
        elif kind != VARINT:
            continue
        elif number <= _WIDTH:
            shape[number - 1] = signed(value)
        elif number == _LABEL:
            label = signed(value)
        elif number == _ENCODED:
            is_encoded = value != 0
    if not -(1 << 31) <= label < 1 << 31:
        raise InvalidArgument(f"{what} has the label {label}, which is beyond 32 bits")
    is_float = not len(data) and bool(floats)
    if is_float:
        data = floats[0] if len(floats) == 1 else memoryview(b"".join(floats))
    return Datum((shape[0], shape[1], shape[2]), data, label, is_float, is_encoded)


def datum_image(datum: Datum, what: str, mode: str | None) -> Array:
    """The image of a record, (C, H, W): uint8, or float32 from float_data. `mode` is that of `decode_image`.

    Raises InvalidArgument for an image that cannot be decoded, InvalidShape for values that do not fill the shape.
    """
    if datum.is_encoded:
        if len(datum.content) > limits.IMAGE_BYTES:
            raise InvalidArgument(
                f"{what} is an image of {len(datum.content):,} bytes: at most {limits.IMAGE_BYTES:,}"
            )
        return decode_image(bytes(datum.content), what, mode)
    dtype = np.dtype("<f4" if datum.is_float else np.uint8)
    size = math.prod(datum.shape) * dtype.itemsize
    if min(datum.shape) < 0 or size != len(datum.content):
        raise InvalidShape(
            f"{what} says {' x '.join(map(str, datum.shape))} values and has {len(datum.content) / dtype.itemsize:g}"
        )
    return np.frombuffer(datum.content, dtype).reshape(datum.shape)


def image_datum(image: Array, label: int) -> bytes:
    """The record of an image (C, H, W), bytes, or floats of single precision."""
    parts = [key(number + 1, VARINT) + varint(extent) for number, extent in enumerate(image.shape)]
    if image.dtype == np.uint8:
        parts.append(prefixed(_DATA, image.tobytes()))
    parts.append(key(_LABEL, VARINT) + varint(label))
    if image.dtype != np.uint8:
        values = np.ascontiguousarray(image, "<f4").reshape(-1, 1).view(np.uint8)
        keyed = np.empty((len(values), 5), np.uint8)  # a list that is not packed: each value has its key
        keyed[:, 0] = key(_FLOATS, FIXED32)[0]
        keyed[:, 1:] = values
        parts.append(keyed.tobytes())
    parts.append(key(_ENCODED, VARINT) + varint(0))
    return b"".join(parts)


def encoded_datum(content: bytes, label: int) -> bytes:
    """The record of an image file."""
    return b"".join(
        [
            prefixed(_DATA, content),
            key(_LABEL, VARINT) + varint(label),
            key(_ENCODED, VARINT) + varint(1),
        ]
    )

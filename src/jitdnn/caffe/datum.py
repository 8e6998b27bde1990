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
from jitdnn.tensor.array import address_of

_MOST_TAILS = 1 << 16  # kept: there is one for each label
_CHANNELS, _HEIGHT, _WIDTH, _DATA, _LABEL, _FLOATS, _ENCODED = range(1, 8)


class Datum(NamedTuple):
    """A record: `content` is an image file if `is_encoded`, else (C, H, W) bytes or floats of that shape."""

    shape: tuple[int, int, int]
    content: memoryview
    label: int
    is_float: bool
    is_encoded: bool


def read_datum(record: bytes | memoryview, what: str) -> Datum:
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


class RawRecords:
    """Reads records of bytes that are laid out as one before: as many bytes in front of the pixels, the same ones, and
    behind them what was there before. What a record says follows from these alone, so its fields are not read again.
    """

    def __init__(self) -> None:
        self._form: tuple[bytes, int, tuple[int, int, int], dict[bytes, int]] | None = None

    def learn(self, record: bytes | memoryview, datum: Datum) -> None:
        """Note how the record that `datum` was read from is laid out, if that is an image of bytes."""
        size = math.prod(datum.shape)
        if datum.is_encoded or datum.is_float or not size or size != len(datum.content):
            return
        whole, content = (np.frombuffer(each, np.uint8) for each in (record, datum.content))
        first = address_of(content) - address_of(whole)
        head, tail = bytes(record[:first]), bytes(record[first + size :])
        form = self._form
        if form is None or form[:3] != (head, size, datum.shape) or len(form[3]) >= _MOST_TAILS:
            form = self._form = (head, size, datum.shape, {})
        form[3][tail] = datum.label

    def read(self, record: bytes | memoryview) -> tuple[Array, int] | None:
        """The image of a record, (C, H, W), where it lies, and its label; None for one that is laid out anew."""
        form = self._form
        if form is None:
            return None
        head, size, shape, tails = form
        first = len(head)
        if record[:first] != head:
            return None
        label = tails.get(bytes(record[first + size :]))
        if label is None or len(record) < first + size:
            return None
        return np.frombuffer(record, np.uint8, size, first).reshape(shape), label


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
    shape = (int(image.shape[0]), int(image.shape[1]), int(image.shape[2]))
    if image.dtype == np.uint8:
        return datum_bytes(shape, image.tobytes(), None, label, False)
    return datum_bytes(shape, b"", np.ascontiguousarray(image, "<f4"), label, False)


def datum_bytes(
    shape: tuple[int, int, int], data: bytes, floats: Array | None, label: int, is_encoded: bool
) -> bytes:
    """The record with these fields; `floats` are of single precision."""
    parts = [key(number, VARINT) + varint(extent) for number, extent in enumerate(shape, _CHANNELS)]
    if data or floats is None:
        parts.append(prefixed(_DATA, data))
    parts.append(key(_LABEL, VARINT) + varint(label))
    if floats is not None:
        values = floats.reshape(-1, 1).view(np.uint8)
        keyed = np.empty((len(values), 5), np.uint8)  # a list that is not packed: each value has its key
        keyed[:, 0] = key(_FLOATS, FIXED32)[0]
        keyed[:, 1:] = values
        parts.append(keyed.tobytes())
    parts.append(key(_ENCODED, VARINT) + varint(is_encoded))
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

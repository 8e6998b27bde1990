"""BlobProto, Caffe's array in a binary file: weights, gradients, histories of solvers, mean images, matrices.

The shape is a list of extents, or, in old files, the four numbers num, channels, height and width. Values are floats,
or doubles from a net in double precision.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import numpy as np

from jitdnn import limits
from jitdnn.caffe.blob import Array, Shape
from jitdnn.caffe.wire import (
    FIXED32,
    FIXED64,
    LENGTH,
    MOST_BYTES,
    VARINT,
    Reader,
    key,
    prefixed,
    signed,
    varint,
)
from jitdnn.errors import InvalidArgument
from jitdnn.files import write_whole
from jitdnn.settings import current

_NUM, _CHANNELS, _HEIGHT, _WIDTH = 1, 2, 3, 4
_DATA, _DIFF, _SHAPE, _DOUBLE_DATA, _DOUBLE_DIFF = 5, 6, 7, 8, 9
_DTYPES = {_DATA: "<f4", _DIFF: "<f4", _DOUBLE_DATA: "<f8", _DOUBLE_DIFF: "<f8"}

#: bytes of a file, in order: an array's are not copied on the way
Parts = list[bytes | memoryview]


class StoredBlob(NamedTuple):
    """An array of a file: packed values in its shape; `is_legacy` if that is num, channels, height, width."""

    data: Array
    is_legacy: bool

    def fits(self, shape: Shape) -> bool:
        """Whether this is an array of that shape, as Caffe compares: an old one may have 1 in front of the extents."""
        if self.is_legacy:
            return len(shape) <= 4 and (1,) * (4 - len(shape)) + shape == self.data.shape
        return shape == self.data.shape


def read_whole(path: Path, what: str) -> memoryview:
    """The content of a file, within the setting load_limit. Raises InvalidArgument."""
    most = current().load_limit
    try:
        return memoryview(
            limits.read_bounded(path, MOST_BYTES if most is None else most, f"{what} (setting load_limit)")
        )
    except OSError as error:
        raise InvalidArgument(f"{path} cannot be read: {error.strerror or error}") from error


def read_blob(content: memoryview, reader: Reader, what: str) -> StoredBlob:
    """Read a BlobProto; `what` names it in errors. Its array views the file's bytes where they are in one piece.

    Raises InvalidArgument if it is damaged, or if its shape does not have as many values as there are.
    """
    old: dict[int, int] = {}
    shape: list[int] = []
    values: dict[int, list[Array]] = {}
    for number, kind, value, data in reader.fields(content):
        if number in (_NUM, _CHANNELS, _HEIGHT, _WIDTH) and kind == VARINT:
            old[number] = signed(value)
        elif number == _SHAPE and kind == LENGTH:
            for inner, inner_kind, extent, packed in reader.fields(data):
                if inner == 1 and inner_kind == VARINT:
                    shape.append(signed(extent))
                elif inner == 1 and inner_kind == LENGTH:
                    shape += [signed(entry) for entry in reader.varints(packed)]
        elif number in (_DATA, _DOUBLE_DATA) and kind in (LENGTH, FIXED32 if number == _DATA else FIXED64):
            values.setdefault(number, []).append(reader.array(data, _DTYPES[number]))
    found = [old.get(number, 0) for number in (_NUM, _CHANNELS, _HEIGHT, _WIDTH)] if old else shape
    parts = values.get(_DOUBLE_DATA) or values.get(_DATA) or [np.zeros(0, np.float32)]
    array = parts[0] if len(parts) == 1 else np.concatenate(parts)
    if (
        any(extent < 0 for extent in found)
        or len(found) > limits.ARRAY_AXES
        or math.prod(found) != array.size
    ):
        raise InvalidArgument(
            f"{reader.what}: {what} has the shape {tuple(found[: limits.ARRAY_AXES])} and {array.size:,} values"
        )
    try:
        return StoredBlob(array.reshape(found), bool(old))
    except ValueError as error:  # extents beside a 0 that no array can have
        raise InvalidArgument(f"{reader.what}: {what} has the shape {tuple(found)}: {error}") from None


def blob_parts(array: Array, diff: Array | None = None, *, is_legacy: bool = False) -> Parts:
    """The bytes of a BlobProto: float64 as doubles, all else as floats; `diff` is its gradient. With `is_legacy` the
    shape, of four axes, is written as num, channels, height and width.
    """
    numbered: list[tuple[int, Parts]] = []
    if is_legacy:
        numbers = (_NUM, _CHANNELS, _HEIGHT, _WIDTH)
        for number, extent in zip(numbers, array.shape, strict=True):
            numbered.append((number, [key(number, VARINT) + varint(extent)]))
    else:
        extents = b"".join(varint(extent) for extent in array.shape)
        shape = prefixed(1, extents) if extents else b""
        numbered.append((_SHAPE, [prefixed(_SHAPE, shape)]))
    is_double = array.dtype == np.float64
    for number, values in (
        (_DOUBLE_DATA if is_double else _DATA, array),
        (_DOUBLE_DIFF if is_double else _DIFF, diff),
    ):
        if values is not None and values.size:
            content = np.ascontiguousarray(values, _DTYPES[number]).reshape(-1).view(np.uint8).data
            numbered.append((number, [key(number, LENGTH) + varint(len(content)), content]))
    numbered.sort(key=lambda entry: entry[0])
    return [part for _, parts in numbered for part in parts]


def field_parts(number: int, parts: Parts) -> Parts:
    """A field that is the message of these parts."""
    return [key(number, LENGTH) + varint(size_of(parts)), *parts]


def size_of(parts: Iterable[bytes | memoryview]) -> int:
    """Their bytes together."""
    return sum(len(part) for part in parts)


def write_parts(path: Path, parts: Parts, what: str) -> None:
    """Write a message, whole or not at all. Raises InvalidArgument, also for more than a message may have."""
    if size_of(parts) > MOST_BYTES:
        raise InvalidArgument(
            f"{what} of {size_of(parts):,} bytes is more than the {MOST_BYTES:,} of a binary file of Caffe: "
            "write it as HDF5 (.caffemodel.h5, snapshot_format: HDF5)"
        )

    def write(file: BinaryIO) -> None:
        for part in parts:
            file.write(part)

    try:
        write_whole(path, write)
    except OSError as error:
        raise InvalidArgument(f"cannot write {path}: {error}") from error


def read_binaryproto(path: Path) -> Array:
    """The array of a .binaryproto file, as a mean image (1, C, H, W): float32 or float64. Raises InvalidArgument."""
    reader = Reader(str(path))
    return read_blob(read_whole(path, "an array"), reader, "its array").data


def write_binaryproto(path: Path, array: Array) -> None:
    """Write an array as a .binaryproto file, whole or not at all. One of four axes is written with num, channels,
    height and width, which every version of Caffe reads. Raises InvalidArgument.
    """
    values = np.asarray(array)
    write_parts(path, blob_parts(values, is_legacy=values.ndim == 4), "an array")


def real_array(array: Any) -> Array:
    """The array as Caffe's files hold one: float64 stays, everything else becomes float32."""
    given = np.asarray(array)
    return given if given.dtype == np.float64 else np.asarray(given, np.float32)

"""Two messages of Caffe's files under the names and with the methods that scripts know: BlobProto, of mean images, and
Datum, of databases. Nets and solvers as messages are `jitdnn.caffe.parse` and `to_text`.
"""

from __future__ import annotations

from typing import Self

import numpy as np

from jitdnn.caffe.blob import Array
from jitdnn.caffe.blob_proto import blob_parts, read_blob, real_array
from jitdnn.caffe.datum import datum_bytes, read_datum
from jitdnn.caffe.wire import Reader
from jitdnn.errors import InvalidArgument, InvalidShape


class BlobShape:
    """The extents of a blob."""

    def __init__(self) -> None:
        self.dim: list[int] = []


class BlobProto:
    """An array of any shape: `data` and `diff` are lists of numbers, or arrays, in the order of C. The shape is
    `shape.dim`, or num, channels, height and width where that is empty.
    """

    def __init__(self) -> None:
        self.num = self.channels = self.height = self.width = 0
        self.shape = BlobShape()
        self.data: list[float] | Array = []
        self.diff: list[float] | Array = []

    @property
    def extents(self) -> tuple[int, ...]:
        """The shape."""
        return tuple(self.shape.dim) or (self.num, self.channels, self.height, self.width)

    def array(self, name: str = "data") -> Array:
        """`data` or `diff` in the shape. Raises InvalidShape if there are more or fewer numbers."""
        values = np.asarray(getattr(self, name))
        if values.dtype.kind not in "buif":
            raise InvalidArgument(
                f"{name} of a BlobProto has values of {values.dtype}: real numbers are needed"
            )
        if values.size != int(np.prod(self.extents, dtype=np.int64)) or min(self.extents, default=0) < 0:
            raise InvalidShape(
                f"{name} of a BlobProto has {values.size:,} values, and its shape is {self.extents}"
            )
        return values.reshape(self.extents)

    def ParseFromString(self, serialized: bytes) -> int:
        """Take up the content of a .binaryproto file. Raises InvalidArgument for bytes that are no such message."""
        reader = Reader("a BlobProto")
        found = read_blob(memoryview(serialized), reader, "its array")
        self.__init__()  # type: ignore[misc]
        if found.is_legacy:
            self.num, self.channels, self.height, self.width = found.data.shape
        else:
            self.shape.dim = list(found.data.shape)
        self.data = found.data.reshape(-1)
        return len(serialized)

    def SerializeToString(self) -> bytes:
        """The bytes of a .binaryproto file; numbers of double precision stay such."""
        diff = real_array(self.array("diff")) if len(self.diff) else None
        is_legacy = not self.shape.dim
        return b"".join(blob_parts(real_array(self.array()), diff, is_legacy=is_legacy))

    @classmethod
    def FromString(cls, serialized: bytes) -> Self:
        """A new one of these bytes."""
        made = cls()
        made.ParseFromString(serialized)
        return made


class Datum:
    """A record of a database: an image of `channels` x `height` x `width` as bytes `data` or numbers `float_data`, or a
    file of an image as `data` where `encoded`; and its `label`.
    """

    def __init__(self) -> None:
        self.channels = self.height = self.width = self.label = 0
        self.data = b""
        self.float_data: list[float] | Array = []
        self.encoded = False

    def ParseFromString(self, serialized: bytes) -> int:
        """Take up a record. Raises InvalidArgument for bytes that are none."""
        found = read_datum(serialized, "a Datum")
        self.__init__()  # type: ignore[misc]
        self.channels, self.height, self.width = found.shape
        self.label, self.encoded = found.label, found.is_encoded
        if found.is_float:
            if len(found.content) % 4:
                raise InvalidArgument(f"a Datum has {len(found.content):,} bytes of floats: four are one")
            self.float_data = np.frombuffer(found.content, "<f4")
        else:
            self.data = bytes(found.content)
        return len(serialized)

    def SerializeToString(self) -> bytes:
        """The bytes of the record."""
        shape = (self.channels, self.height, self.width)
        floats = real_array(self.float_data).astype("<f4")
        return datum_bytes(shape, self.data, floats, self.label, self.encoded)

    @classmethod
    def FromString(cls, serialized: bytes) -> Self:
        """A new one of these bytes."""
        made = cls()
        made.ParseFromString(serialized)
        return made

"""The binary format of protocol buffers: messages of known fields from bytes, and bytes from messages.

A file is a sequence of fields: a key (the field's number and one of six wire types), then the value. `Reader` walks
over the fields of one message after the other, within bounds: how many fields a file has in all (limits.WIRE_FIELDS),
and no deeper than the messages of the schema are. `decode` and `encode` know the messages of schema.py by the numbers
of their fields. Fields that nobody knows are skipped, groups too, as protocol buffers do.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Any, Final, TypeVar

import numpy as np

from jitdnn import limits
from jitdnn.caffe.message import Field, Message
from jitdnn.errors import InvalidArgument, InvalidType

M = TypeVar("M", bound=Message)

VARINT, FIXED64, LENGTH, GROUP, END_GROUP, FIXED32 = range(6)
#: the most bytes of a message: its size is a signed number of 32 bits in every implementation
MOST_BYTES: Final = (1 << 31) - 1

_WIDTHS: Final = {FIXED64: 8, FIXED32: 4}
_KINDS: Final = {"real": FIXED32, "string": LENGTH, "message": LENGTH}  # all others: VARINT
_PACKED: Final = {("BlobShape", "dim")}  # which Caffe writes so; both ways are read


class Reader:
    """Walks over the fields of messages in one file; `what` names it in errors."""

    def __init__(self, what: str) -> None:
        self.what = what
        self._count = 0

    def fields(self, data: memoryview) -> Iterator[tuple[int, int, int, memoryview]]:
        """Yield number, wire type, value and bytes of each field of a message.

        The value is that of a VARINT, 0 for others; the bytes are the content of a LENGTH field, or the values of
        fixed-size fields with the same key that follow one another (lists that are not packed), one behind the other.

        Raises InvalidArgument for bytes that are no message, or for too many fields.
        """
        at, end = 0, len(data)
        while at < end:
            key, at = self._varint(data, at)
            number, kind = key >> 3, key & 7
            self.count()
            if number == 0 or number >= 1 << 29:
                raise self.damaged(f"a field has the number {number}")
            if kind == VARINT:
                value, at = self._varint(data, at)
                yield number, kind, value, data[:0]
            elif kind == LENGTH:
                size, at = self._varint(data, at)
                if size > end - at:
                    raise self.damaged(f"field {number} has {size:,} bytes, and {end - at:,} are left")
                yield number, kind, 0, data[at : at + size]
                at += size
            elif kind in _WIDTHS:
                values, at = self._fixed(data, at, key, _WIDTHS[kind], number)
                yield number, kind, 0, values
            elif kind == GROUP:
                at = self._skip_group(data, at, number)
            else:
                raise self.damaged(f"field {number} has the wire type {kind}")

    def count(self, values: int = 1) -> None:
        """So many fields or entries of lists more."""
        self._count += values
        if self._count > limits.WIRE_FIELDS:
            raise InvalidArgument(f"{self.what} has more than {limits.WIRE_FIELDS:,} fields")

    def varints(self, data: memoryview) -> list[int]:
        """The numbers of a packed list."""
        at, found = 0, list[int]()
        while at < len(data):
            value, at = self._varint(data, at)
            self.count()
            found.append(value)
        return found

    def array(self, data: memoryview, dtype: str) -> np.ndarray[Any, np.dtype[Any]]:
        """A view of the values of a packed list of floats or doubles, or of unpacked ones in a row."""
        width = np.dtype(dtype).itemsize
        if len(data) % width:
            raise self.damaged(f"a list of {len(data):,} bytes holds no whole numbers of {width} bytes")
        return np.frombuffer(data, dtype)

    def text(self, data: memoryview, what: str) -> str:
        """A string. Raises InvalidArgument if it is no UTF-8 or too long."""
        if len(data) > 4 * limits.PROTOTXT_STRING:
            raise InvalidArgument(f"{self.what}: {what} has {len(data):,} bytes, too many for a string")
        try:
            return str(data, "utf-8")
        except UnicodeDecodeError as error:
            raise self.damaged(f"{what} is no text in UTF-8: {error}") from None

    def damaged(self, message: str) -> InvalidArgument:
        return InvalidArgument(f"{self.what} is no message of protocol buffers, or damaged: {message}")

    def _varint(self, data: memoryview, at: int) -> tuple[int, int]:
        value = shift = 0
        try:
            while True:
                byte = data[at]
                at += 1
                value |= (byte & 0x7F) << shift
                if byte < 0x80:
                    return value & 0xFFFF_FFFF_FFFF_FFFF, at
                shift += 7
                if shift > 63:
                    raise self.damaged("a number has more than ten bytes")
        except IndexError:
            raise self.damaged("it ends inside of a number") from None

    def _fixed(self, data: memoryview, at: int, key: int, width: int, number: int) -> tuple[memoryview, int]:
        """The values of fields with this key from here on, joined; each key but the first is in front of its value."""
        if at + width > len(data):
            raise self.damaged(f"it ends inside of field {number}")
        first = data[at : at + width]
        at += width
        if key >= 0x80 or at >= len(data) or data[at] != key:
            return first, at  # keys of several bytes: one by one
        step = width + 1
        most, looked = (len(data) - at) // step, 16
        rows = np.frombuffer(data[at : at + most * step], np.uint8).reshape(most, step)
        count = 0
        while count < most:  # in parts that grow, so that a look costs in proportion to what it finds
            part = rows[count : count + looked, 0] != key
            if part.any():
                count += int(part.argmax())
                break
            count += len(part)
            looked *= 4
        joined = np.concatenate([np.frombuffer(first, np.uint8), rows[:count, 1:].reshape(-1)])
        return memoryview(joined.data), at + count * step

    def _skip_group(self, data: memoryview, at: int, number: int) -> int:
        """The end of a group, whatever is in it; groups inside of it are counted, not followed."""
        opened = [number]
        while opened:
            if at >= len(data):
                raise self.damaged(f"group {opened[-1]} does not end")
            key, at = self._varint(data, at)
            inner, kind = key >> 3, key & 7
            self.count()
            if kind == GROUP:
                opened.append(inner)
            elif kind == END_GROUP:
                if opened.pop() != inner:
                    raise self.damaged(f"group {inner} ends where another one is open")
            elif kind == VARINT:
                _, at = self._varint(data, at)
            elif kind == LENGTH:
                size, at = self._varint(data, at)
                at += size
            elif kind in _WIDTHS:
                at += _WIDTHS[kind]
            else:
                raise self.damaged(f"field {inner} has the wire type {kind}")
        return at


def signed(value: int) -> int:
    """The whole number with sign that a VARINT means."""
    return value - (1 << 64) if value >= 1 << 63 else value


def decode(data: memoryview, message: type[M], reader: Reader) -> M:
    """Read one message of the class `message`. Raises InvalidArgument, naming the file and the field."""
    known = _known(message)
    result = message()
    for number, kind, value, content in reader.fields(data):
        field = known.get(number)
        if field is None:
            continue
        wanted = _KINDS.get(field.kind, VARINT)
        values: list[object]
        if kind == LENGTH and wanted in (VARINT, FIXED32) and field.is_repeated:  # packed
            values = _unpacked(field, content, reader)
        elif kind != wanted:
            continue  # as protocol buffers do with what is of another type than they know
        elif field.message is not None:
            values = [decode(content, field.message, reader)]
        elif field.kind == "string":
            values = [reader.text(content, field.name)]
        elif field.kind == "real":
            values = _reals(content, reader)
        else:
            values = _whole(field, [value])
        _set(result, field, values, reader)
    return result


def encode(message: Message) -> bytes:
    """The bytes of a message, fields in the order of their numbers; those without a number are left out."""
    parts: list[tuple[int, bytes]] = []
    for field, value in message.present():
        number = message.numbers.get(field.name)
        if number is None:
            continue
        values = value if field.is_repeated else [value]
        if (type(message).__name__, field.name) in _PACKED:
            parts.append((number, prefixed(number, b"".join(varint(entry) for entry in values))))
            continue
        for entry in values:
            parts.append((number, _encoded(field, number, entry)))
    return b"".join(part for _, part in sorted(parts, key=lambda part: part[0]))


def varint(value: int) -> bytes:
    """A whole number as its bytes; a negative one takes ten."""
    value &= 0xFFFF_FFFF_FFFF_FFFF
    found = bytearray()
    while value > 0x7F:
        found.append(value & 0x7F | 0x80)
        value >>= 7
    found.append(value)
    return bytes(found)


def key(number: int, kind: int) -> bytes:
    """What stands in front of a field's value."""
    return varint(number << 3 | kind)


def prefixed(number: int, content: bytes) -> bytes:
    """A field of bytes, text or a message."""
    return key(number, LENGTH) + varint(len(content)) + content


def _known(message: type[Message]) -> dict[int, Field[Any]]:
    return {number: message.fields[name] for name, number in message.numbers.items()}


def _unpacked(field: Field[Any], content: memoryview, reader: Reader) -> list[object]:
    return _reals(content, reader) if field.kind == "real" else _whole(field, reader.varints(content))


def _reals(content: memoryview, reader: Reader) -> list[object]:
    values = reader.array(content, "<f4")
    reader.count(len(values))
    return list(values.astype(np.float64).tolist())


def _whole(field: Field[Any], values: list[int]) -> list[object]:
    if field.kind == "boolean":
        return [value != 0 for value in values]
    if field.kind == "enum":
        names = {number: name for name, number in field.values.items()}
        return [
            names[signed(value)] for value in values if signed(value) in names
        ]  # others are unknown fields
    return [signed(value) for value in values]


def _set(message: Message, field: Field[Any], values: list[object], reader: Reader) -> None:
    try:
        if field.is_repeated:
            getattr(message, field.name).extend(field.checked(value) for value in values)
        elif values and field.message is not None and message.has(field.name):
            getattr(message, field.name).merge(values[-1])  # a message in two pieces is one
        elif values:
            setattr(message, field.name, values[-1])
    except (InvalidArgument, InvalidType) as error:
        raise InvalidArgument(f"{reader.what}: {error}") from None


def _encoded(field: Field[Any], number: int, value: Any) -> bytes:
    if field.message is not None:
        return prefixed(number, encode(value))
    if field.kind == "string":
        return prefixed(number, value.encode())
    if field.kind == "real":
        return key(number, FIXED32) + struct.pack("<f", np.float32(value))
    if field.kind == "enum":
        value = field.values[value]
    return key(number, VARINT) + varint(int(value))

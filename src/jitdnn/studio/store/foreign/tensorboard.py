"""Event files of TensorBoard: records with a length and checksums around messages of protocol buffers.

length uint64, its masked CRC32C uint32, data, masked CRC32C of the data uint32    (record_writer.h)
Event: 1 wall_time, 2 step, 5 summary; Summary: 1 value; Value: 1 tag, 2 simple_value, 8 tensor
TensorProto: 1 dtype, 4 tensor_content, 5 float_val, 6 double_val                      tensorboard/compat/proto
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import numpy as np

from jitdnn.caffe.wire import FIXED32, FIXED64, LENGTH, VARINT, Reader
from jitdnn.errors import InvalidArgument
from jitdnn.studio.store.foreign.found import MOST_POINTS, Found, series_name

NAMES: Final = "events.out.tfevents."
_MOST_RECORD = 64 << 20
#: numbers of types in TensorProto, of values that are one number
_FLOAT, _DOUBLE = 1, 2


def read_tensorboard(folder: Path, name: str) -> Found:
    """The run whose event files lie in a folder, all of them together. A file that ends inside of a record, as one
    that is being written does, is read up to there. Raises InvalidArgument for a damaged one."""
    found = Found(name, "TensorBoard")
    others: set[str] = set()
    for file in sorted(path for path in folder.iterdir() if NAMES in path.name and path.is_file()):
        reader = Reader(file.name)
        for record in _records(file):
            _event(reader, record, found, others)
            if len(found.points) > MOST_POINTS:
                raise InvalidArgument(f"{folder} has more than {MOST_POINTS:,} points")
    if others:
        found.notes.append(f"not numbers, and left out: {', '.join(sorted(others)[:20])}")
    return found


def _records(path: Path) -> Iterator[memoryview]:
    with open(path, "rb") as file:
        while len(head := file.read(12)) == 12:
            (length,) = struct.unpack("<Q", head[:8])
            if length > _MOST_RECORD:
                raise InvalidArgument(
                    f"{path.name} is no event file, or damaged: a record of {length:,} bytes"
                )
            data = file.read(length + 4)
            if len(data) < length + 4:
                return
            yield memoryview(data)[:length]


def _event(reader: Reader, record: memoryview, found: Found, others: set[str]) -> None:
    step, summaries = 0, []
    for number, kind, value, data in reader.fields(record):
        if number == 2 and kind == VARINT:
            step = value
        elif number == 5 and kind == LENGTH:
            summaries.append(data)
    for summary in summaries:
        for number, kind, _, data in reader.fields(summary):
            if number != 1 or kind != LENGTH:
                continue
            tag, scalar = _value(reader, data)
            if scalar is None:
                others.add(tag[:60])
            elif step < 1 << 53:
                found.points.append((series_name(tag), step, scalar))


def _value(reader: Reader, data: memoryview) -> tuple[str, float | None]:
    tag, scalar = "", None
    for number, kind, _, value in reader.fields(data):
        if number == 1 and kind == LENGTH:
            tag = reader.text(value, "a tag")
        elif number == 2 and kind == FIXED32:
            scalar = float(reader.array(value, "<f4")[0])
        elif number == 8 and kind == LENGTH:
            scalar = _tensor(reader, value)
    return tag, scalar


def _tensor(reader: Reader, data: memoryview) -> float | None:
    """A tensor of one real number, as newer programs write scalars."""
    dtype, values = 0, np.empty(0)
    for number, kind, value, content in reader.fields(data):
        if number == 1 and kind == VARINT:
            dtype = value
        elif number == 4 and kind == LENGTH and dtype in (_FLOAT, _DOUBLE):
            values = reader.array(content, "<f4" if dtype == _FLOAT else "<f8")
        elif number == 5 and kind in (LENGTH, FIXED32):
            values = reader.array(content, "<f4")
        elif number == 6 and kind in (LENGTH, FIXED64):
            values = reader.array(content, "<f8")
    return float(values[0]) if values.size == 1 else None

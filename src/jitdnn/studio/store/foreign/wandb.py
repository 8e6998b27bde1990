"""Runs that W&B kept on this machine: `run-*.wandb` in `wandb/run-...` or `offline-run-...`.

A file is a log of LevelDB behind seven bytes, `:W&B`, a number, a version: blocks of 32 KiB with records of a checksum,
a length, and a type (whole, first, middle, last). A record is a message of protocol buffers (wandb_internal.proto):
2 history (1 item: 1 key, 2 nested key, 16 value as JSON; 2 step: 1 number), 17 run (4 config, 8 display name),
5 config (1 update, as an item).
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from jitdnn.caffe.wire import LENGTH, VARINT, Reader
from jitdnn.errors import InvalidArgument
from jitdnn.studio.store.foreign.found import MOST_POINTS, Found, is_point, series_name

_BLOCK: Final = 32768
_HEAD: Final = 7  # of the file, and of each record
_WHOLE, _FIRST, _MIDDLE, _LAST = 1, 2, 3, 4
_MOST_RECORD: Final = 64 << 20


def read_wandb(path: Path, name: str) -> Found:
    """The run of a .wandb file. Raises InvalidArgument for a damaged one."""
    found = Found(name, "W&B")
    reader = Reader(path.name)
    step = 0
    for record in _records(path):
        for number, kind, _, data in reader.fields(memoryview(record)):
            if kind != LENGTH:
                continue
            if number == 2:
                step = _history(reader, data, found, step)
            elif number == 17:
                _run(reader, data, found)
            elif number == 5:
                _config(reader, data, found)
        if len(found.points) > MOST_POINTS:
            raise InvalidArgument(f"{path.name} has more than {MOST_POINTS:,} points")
    return found


def _records(path: Path) -> Iterator[bytes]:
    """The records of a log, put together. What comes behind a place where it was cut off is not there."""
    with open(path, "rb") as file:
        if file.read(4) != b":W&B":
            raise InvalidArgument(f"{path.name} is no file of W&B: it does not begin with :W&B")
        file.read(3)
        at, parts, size = _HEAD, list[bytes](), 0
        while True:
            left = _BLOCK - at % _BLOCK
            if left < _HEAD:
                file.read(left)
                at += left
                continue
            head = file.read(_HEAD)
            if len(head) < _HEAD:
                return
            _, length, kind = struct.unpack("<IHB", head)
            data = file.read(length)
            at += _HEAD + length
            if len(data) < length or kind not in (_WHOLE, _FIRST, _MIDDLE, _LAST):
                return
            if kind in (_WHOLE, _FIRST):
                parts, size = [], 0
            parts.append(data)
            size += length
            if size > _MOST_RECORD:
                raise InvalidArgument(f"{path.name} has a record of more than {_MOST_RECORD:,} bytes")
            if kind in (_WHOLE, _LAST):
                yield b"".join(parts)


def _item(reader: Reader, data: memoryview, value_number: int, nested: int) -> tuple[str, Any]:
    """A key, or the keys of a value within others joined by a full stop, and its value."""
    keys, value = list[str](), None
    for number, kind, _, content in reader.fields(data):
        if kind != LENGTH:
            continue
        if number in (1, nested):
            keys.append(reader.text(content, "a key"))
        elif number == value_number:
            try:
                value = json.loads(reader.text(content, "a value"))
            except ValueError:
                value = None
    return ".".join(key for key in keys if key), value


def _history(reader: Reader, data: memoryview, found: Found, before: int) -> int:
    step, values = before, dict[str, Any]()
    for number, kind, _, content in reader.fields(data):
        if number == 1 and kind == LENGTH:
            key, value = _item(reader, content, 16, 2)
            values[key] = value
        elif number == 2 and kind == LENGTH:
            step = next((v for n, k, v, _ in reader.fields(content) if n == 1 and k == VARINT), 0)
    own = values.get("_step")
    step = int(own or 0) if is_point(own, 0.0) else step
    for key, value in values.items():
        if not key.startswith("_") and is_point(step, value):
            found.points.append((series_name(key), step, float(value)))
    return step


def _run(reader: Reader, data: memoryview, found: Found) -> None:
    for number, kind, _, content in reader.fields(data):
        if number == 8 and kind == LENGTH and len(content):
            found.name = reader.text(content, "a name")[:120]
        elif number == 4 and kind == LENGTH:
            _config(reader, content, found)


def _config(reader: Reader, data: memoryview, found: Found) -> None:
    for number, kind, _, content in reader.fields(data):
        if number == 1 and kind == LENGTH:
            key, value = _item(reader, content, 16, 2)
            if key and not key.startswith("_") and isinstance(value, str | int | float | bool):
                found.options[key[:60]] = value[:200] if isinstance(value, str) else value

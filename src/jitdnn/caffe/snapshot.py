"""Snapshots: one file with all that a run needs to go on, written whole or not at all.

    bytes           what
    0 .. 7          "JDSNAP1\\n"
    8 .. 15         length of the header, little-endian
    then            header, JSON: `meta`, and for each array its name, dtype, shape and number of bytes
    then            the arrays, C order, little-endian, one behind the other
    last 32         SHA-256 of everything before

Such a file is written as files.py says: a process that dies half-way leaves the old file, or none. A file
whose checksum does not fit is never used.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
import sys
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import numpy as np

from jitdnn import limits
from jitdnn.caffe.blob import Array
from jitdnn.errors import InvalidArgument, SnapshotError
from jitdnn.files import write_whole
from jitdnn.limits import read_bounded
from jitdnn.settings import current

SUFFIX = ".jdsnap"
_MAGIC = b"JDSNAP1\n"
_DIGEST = 32
_DTYPES = ("<f4", "<f8")


class Snapshot(NamedTuple):
    """What a file holds: `meta`, plain JSON values, and the arrays by name."""

    meta: dict[str, Any]
    arrays: dict[str, Array]


class DamagedSnapshotError(SnapshotError):
    """A snapshot that cannot be used; `previous` is the newest good one of the same run, or None."""

    def __init__(self, message: str, previous: Path | None = None) -> None:
        super().__init__(message)
        self.previous = previous


def path_of(prefix: str, iteration: int) -> Path:
    """Return the file of an iteration, PREFIX_iter_N.jdsnap."""
    return Path(f"{prefix}_iter_{iteration}{SUFFIX}")


def write(path: Path, meta: Mapping[str, Any], arrays: Mapping[str, Array]) -> None:
    """Write a snapshot, whole or not at all; arrays are float32 or float64. Raises SnapshotError."""
    prepared(path, meta, arrays)()


def prepared(path: Path, meta: Mapping[str, Any], arrays: Mapping[str, Array]) -> Callable[[], None]:
    """What `write` does, with `meta` as it is now, when it is called; the arrays are read then."""
    entries = []
    for name, array in arrays.items():
        dtype = np.dtype(array.dtype).newbyteorder("<").str
        entries.append({"name": name, "dtype": dtype, "shape": list(array.shape), "bytes": array.nbytes})
    header = json.dumps({"meta": meta, "arrays": entries}).encode()

    def write_parts(file: BinaryIO) -> None:
        digest = hashlib.sha256()
        for part in _parts(header, entries, arrays):
            digest.update(part)
            file.write(part)
        file.write(digest.digest())

    def write_now() -> None:
        try:
            write_whole(path, write_parts)
        except OSError as error:
            raise SnapshotError(f"cannot write {path}: {error}") from error

    return write_now


def read(path: Path) -> Snapshot:
    """Read a snapshot. Raises DamagedSnapshotError, which offers the newest good one of the same run if there
    is any.
    """
    try:
        return _read(path)
    except DamagedSnapshotError as error:
        error.previous = _newest(path.parent, _prefix_of(path), but=path)
        advice = f"; the newest good one is {error.previous}" if error.previous else ""
        raise DamagedSnapshotError(f"{error}{advice}", error.previous) from None


def newest(prefix: str, run: Collection[str] | None = None) -> Path | None:
    """Return the newest snapshot PREFIX_iter_N that can be read, None if there is none.

    `run`: names of a run, as `Solver` takes them; only snapshots that have one of them count.
    """
    path = Path(prefix)
    return _newest(path.parent, path.name, run=run)


def _parts(
    header: bytes, entries: list[dict[str, Any]], arrays: Mapping[str, Array]
) -> list[memoryview | bytes]:
    contents = [
        np.ascontiguousarray(array, entry["dtype"])
        for array, entry in zip(arrays.values(), entries, strict=True)
    ]
    return [
        _MAGIC,
        len(header).to_bytes(8, "little"),
        header,
        *(content.reshape(-1).view(np.uint8).data for content in contents),
    ]


def _read(path: Path) -> Snapshot:
    most = current().load_limit
    try:
        content = read_bounded(path, sys.maxsize if most is None else most, "a snapshot (setting load_limit)")
    except OSError as error:
        raise DamagedSnapshotError(f"cannot read snapshot {path}: {error.strerror}") from error
    except (InvalidArgument, MemoryError) as error:
        raise DamagedSnapshotError(f"cannot read snapshot {path}: {error}") from error
    if not content.startswith(_MAGIC):
        raise DamagedSnapshotError(f"{path} is no snapshot: it does not start with {_MAGIC!r}")
    body = memoryview(content)[:-_DIGEST]
    if len(content) < len(_MAGIC) + 8 + _DIGEST or hashlib.sha256(body).digest() != content[-_DIGEST:]:
        raise DamagedSnapshotError(
            f"snapshot {path} is damaged: its checksum does not fit its {len(content)} bytes"
        )
    start = len(_MAGIC) + 8
    end = start + int.from_bytes(body[len(_MAGIC) : start], "little")
    try:
        if end - start > limits.SNAPSHOT_HEADER:
            raise ValueError(f"it has {end - start:,} bytes, and at most {limits.SNAPSHOT_HEADER:,} are read")
        header = json.loads(bytes(body[start:end]))
        meta, entries = header["meta"], header["arrays"]
        if not isinstance(meta, dict) or not isinstance(entries, list):
            raise ValueError("it does not say what the arrays are")
        if len(entries) > limits.ARCHIVE_MEMBERS:
            raise ValueError(
                f"it has {len(entries):,} arrays, and at most {limits.ARCHIVE_MEMBERS:,} are read"
            )
        arrays: dict[str, Array] = {}
        for entry in entries:
            name, shape = entry["name"], entry["shape"]
            if not isinstance(name, str) or name in arrays:
                raise ValueError(f"array {name!r} has no name of its own")
            if entry["dtype"] not in _DTYPES:
                raise ValueError(f"array {name!r} has dtype {entry['dtype']!r}")
            if not all(type(extent) is int and extent >= 0 for extent in shape):
                raise ValueError(f"array {name!r} has shape {shape!r}")
            size = math.prod(shape) * np.dtype(entry["dtype"]).itemsize
            if entry["bytes"] != size or size > len(body) - end:
                raise ValueError(f"array {name!r} of shape {shape!r} does not fit into its bytes")
            arrays[name] = np.frombuffer(body[end : end + size], entry["dtype"]).reshape(shape)
            end += size
        if end != len(body):
            raise ValueError(f"{len(body) - end:,} bytes belong to no array")
        return Snapshot(meta, arrays)
    # text that nests too deeply ends in a RecursionError, with nothing done
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise DamagedSnapshotError(
            f"snapshot {path} has a header that does not fit its content: {error}"
        ) from error


def _prefix_of(path: Path) -> str:
    return re.sub(rf"_iter_\d+{re.escape(SUFFIX)}$", "", path.name)


def _newest(
    folder: Path, prefix: str, but: Path | None = None, run: Collection[str] | None = None
) -> Path | None:
    pattern = re.compile(rf"{re.escape(prefix)}_iter_(\d+){re.escape(SUFFIX)}")
    found: list[tuple[int, Path]] = []
    if folder.is_dir():
        for path in folder.iterdir():
            match = pattern.fullmatch(path.name)
            if match and path != but:
                found.append((int(match[1]), path))
    for _, path in sorted(found, reverse=True):
        try:
            found_run = _read(path).meta.get("run")
        except DamagedSnapshotError:
            continue
        if run is None or (isinstance(found_run, list) and not set(run).isdisjoint(map(str, found_run))):
            return path
    return None

"""Arrays from NumPy's files: .npy, and .npz archives of them.

Nothing in such a file is run: arrays of Python objects, which NumPy would unpickle, are refused. Nothing in it is
believed: dtype, shape and size are compared with the bytes that are there before memory is taken for them, so that a
small file cannot ask for a large one's.
"""

from __future__ import annotations

import math
import os
import re
import struct
import zipfile
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np

from jitdnn import limits
from jitdnn.caffe.blob import Array
from jitdnn.errors import InvalidArgument
from jitdnn.limits import shortened
from jitdnn.settings import check_bytes

_METHODS: Final = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)  # those that NumPy writes
_MAGIC: Final = b"\x93NUMPY"
_LENGTHS: Final = {b"\1\0": "<H", b"\2\0": "<I", b"\3\0": "<I"}
_VALUE = r"""(?:['"](?P<text>[^'"]{0,20})['"]|(?P<truth>True|False)|\((?P<extents>[0-9L,\s]{0,500})\))"""
_ENTRY = re.compile(rf"""\s*['"](?P<name>descr|fortran_order|shape)['"]\s*:\s*{_VALUE}\s*,?""")
_DICTIONARY = re.compile(rf"\{{(?:{re.sub(r'[?]P<[a-z]+>', '?:', _ENTRY.pattern)}){{3}}\s*\}}")
_DTYPE = re.compile(r"[<>|=]?(?:b1|[iu][1248]|f[248]|c(?:8|16))")
# what is raised on the way where bytes are not what they should be
_DAMAGE: Final = (
    OSError, ValueError, TypeError, KeyError, IndexError, EOFError, AttributeError, MemoryError,
    NotImplementedError, RuntimeError, OverflowError, struct.error, zlib.error, zipfile.BadZipFile,
)  # fmt: skip


def read_npy(path: Path) -> Array:
    """Read the array of an .npy file. Raises InvalidArgument if it is damaged, holds no numbers or is too large."""
    try:
        with open(path, "rb") as file:
            size = os.fstat(file.fileno()).st_size
            _check_size(path, size)
            return _read(file, size, str(path))
    except InvalidArgument:
        raise
    except _DAMAGE as error:
        raise InvalidArgument(f"{path} cannot be read as an .npy file: {error}") from error


def map_npy(path: Path) -> Array:
    """The array of an .npy file as a read-only memory map: pages are read when they are looked at. The file must not be
    cut short while it is mapped.

    Raises InvalidArgument if it is damaged, empty or holds no numbers.
    """
    try:
        with open(path, "rb") as file:
            size = os.fstat(file.fileno()).st_size
            shape, is_fortran, dtype, start = _header(file.read(limits.ARRAY_HEADER + 12))
        if math.prod(shape) * dtype.itemsize != size - start:
            raise ValueError(f"it is {dtype} of shape {shape} by its header, and has {size - start} bytes")
        if size == start:
            raise ValueError(f"its shape {shape} is that of an empty array")
        return np.memmap(path, dtype, "r", start, shape, "F" if is_fortran else "C")
    except _DAMAGE as error:
        raise InvalidArgument(f"{path} cannot be mapped as an .npy file: {error}") from error


def read_npz(path: Path, only: Sequence[str] | None = None, hint: str = "") -> dict[str, Array]:
    """Read the arrays of an .npz file: all of them, or those named in `only`, of which the first must be there.

    Raises InvalidArgument if it is not (`hint` ends the message), if the file is damaged, if what is read is no array
    of numbers, or if that unpacks to more than the setting `load_limit` allows.
    """
    try:
        with open(path, "rb") as opened, zipfile.ZipFile(opened) as archive:
            members = archive.infolist()
            if len(members) > limits.ARCHIVE_MEMBERS:
                raise InvalidArgument(
                    f"{path} has {len(members):,} arrays: at most {limits.ARCHIVE_MEMBERS:,} are read"
                )
            names = [member.filename.removesuffix(".npy") for member in members]
            chosen = [
                (member, name)
                for member, name in zip(members, names, strict=True)
                if only is None or name in only
            ]
            if only and only[0] not in names:
                shown = ", ".join(sorted(names)[:20]) or "none"
                raise InvalidArgument(f"{path} has no array {only[0]}; it has {shown}{hint}")
            _check_size(path, sum(member.file_size for member, _ in chosen))
            arrays: dict[str, Array] = {}
            for member, name in chosen:
                if name in arrays:
                    raise ValueError(f"there are two arrays {name!r}")
                if member.compress_type not in _METHODS:
                    raise ValueError(f"array {name!r} is packed in a way that NumPy does not write")
                with archive.open(member) as stream:
                    arrays[name] = _read(stream, member.file_size, f"{path}, array {name!r}")
            return arrays
    except InvalidArgument:
        raise
    except _DAMAGE as error:
        raise InvalidArgument(f"{path} cannot be read as an .npz file: {error}") from error


def _check_size(path: Path, size: int) -> None:
    check_bytes(f"{path}, unpacked,", size)


def _read(stream: Any, size: int, what: str) -> Array:
    """One array of `size` bytes with its header, from where the stream stands."""
    head = stream.read(min(size, limits.ARRAY_HEADER + 12))
    shape, is_fortran, dtype, start = _header(head)
    if math.prod(shape) * dtype.itemsize != size - start:
        raise ValueError(f"{what} is {dtype} of shape {shape} by its header, and has {size - start} bytes")
    content = np.empty(size - start, np.uint8)
    head = head[start:]
    content[: len(head)] = np.frombuffer(head, np.uint8)
    _fill(stream, content[len(head) :])
    return content.view(dtype).reshape(shape, order="F" if is_fortran else "C")


def _header(head: bytes) -> tuple[tuple[int, ...], bool, np.dtype[Any], int]:
    """Shape, whether the first axis is innermost, dtype, and where the elements begin.

    The header is the text of a dictionary. NumPy reads it by Python's parser; here it is matched, so that it is text
    and nothing else.
    """
    if not head.startswith(_MAGIC) or len(head) < 12:
        raise ValueError(f"it does not start with {_MAGIC!r}")
    if head[6:8] not in _LENGTHS:
        raise ValueError(f"version {head[6]}.{head[7]} of the format is not known")
    code = _LENGTHS[head[6:8]]
    start = 8 + struct.calcsize(code)
    end = start + struct.unpack_from(code, head, 8)[0]
    if end > len(head):
        raise ValueError(
            f"the header says that it has {end - start} bytes, and {len(head) - start} can be read"
        )
    text = head[start:end].decode("latin-1").strip()
    found: dict[str, re.Match[str]] = {match["name"]: match for match in _ENTRY.finditer(text)}
    if not _DICTIONARY.fullmatch(text) or len(found) != 3:
        raise ValueError(f"its header is {shortened(text)}")
    name, order, extents = found["descr"]["text"], found["fortran_order"]["truth"], found["shape"]["extents"]
    if name is None or order is None or extents is None:
        raise ValueError(f"its header is {shortened(text)}")
    if not _DTYPE.fullmatch(name):
        raise ValueError(f"dtype {name!r}: only numbers are read, and no Python objects")
    shape = tuple(int(extent) for extent in re.findall(r"[0-9]+", extents))
    if len(shape) > limits.ARRAY_AXES:
        raise ValueError(f"{len(shape)} axes: at most {limits.ARRAY_AXES} are read")
    return shape, order == "True", np.dtype(name), end


def _fill(stream: Any, place: Array) -> None:
    done = 0
    while done < place.size:
        part = stream.read(min(place.size - done, 1 << 24))
        if not part:
            raise EOFError(f"it ends {place.size - done} bytes too early")
        place[done : done + len(part)] = np.frombuffer(part, np.uint8)
        done += len(part)
    if stream.read(1):  # and an archive's checksum is looked at when its end is read
        raise ValueError("there is more behind it")

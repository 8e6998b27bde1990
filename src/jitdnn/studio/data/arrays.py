"""Arrays on disk that processes fill row by row, and that may become shorter at the end."""

from __future__ import annotations

import math
import os
from pathlib import Path

import numpy as np

from jitdnn.studio.data.dataset import Array

_HEADER = 128


def _header(dtype: str, shape: tuple[int, ...]) -> bytes:
    """Of a version 1.0 file of NumPy, always of one length, so that it can be written anew."""
    text = f"{{'descr': '{np.dtype(dtype).str}', 'fortran_order': False, 'shape': {shape}, }}"
    return (
        b"\x93NUMPY\x01\x00"
        + (_HEADER - 10).to_bytes(2, "little")
        + text.ljust(_HEADER - 11).encode()
        + b"\n"
    )


def allocate(path: Path, dtype: str, shape: tuple[int, ...]) -> None:
    """A new file of zeros, with its space on the disk taken at once: raises OSError where there is not enough."""
    size = _HEADER + math.prod(shape) * np.dtype(dtype).itemsize
    with open(path, "xb") as file:
        file.write(_header(dtype, shape))
        file.flush()
        if hasattr(os, "posix_fallocate"):
            os.posix_fallocate(file.fileno(), 0, size)  # a full disk would otherwise be a SIGBUS later
        else:
            file.truncate(size)


def writable(path: Path) -> Array:
    """The array of such a file, to be written."""
    found: Array = np.load(path, mmap_mode="r+", allow_pickle=False)
    return found


def shorten(path: Path, count: int) -> None:
    """Keep the first `count` rows."""
    with open(path, "rb") as file:
        np.lib.format.read_magic(file)
        shape, _, dtype = np.lib.format.read_array_header_1_0(file)
    if shape[0] == count:
        return
    with open(path, "r+b") as file:
        file.truncate(_HEADER + count * math.prod(shape[1:]) * dtype.itemsize)
        file.write(_header(dtype.str, (count, *shape[1:])))


def flush(path: Path) -> None:
    """Wait until a file is on the disk."""
    with open(path, "rb") as file:
        os.fsync(file.fileno())

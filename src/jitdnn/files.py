"""Files that are written whole or not at all."""

from __future__ import annotations

import hashlib
import os
import re
import secrets
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

# a number means a process only on the host that it was given on, and hosts may share a folder
_HOST = os.uname().nodename if hasattr(os, "uname") else ""
_UNFINISHED = re.compile(rf"\..+\.{re.escape(_HOST)}\.(\d+)(\.[0-9a-f]+)?\.unfinished")


def write_whole(path: Path, write: Callable[[BinaryIO], object]) -> None:
    """Write a file by `write(file)` so that `path` holds all of it, or what it held before. Raises OSError.

    The content goes to another name in the same folder, is flushed to the disk, and is renamed over `path`.
    What dead processes of this host have left in that folder under such names is removed first.
    """
    with whole(path) as unfinished, open(unfinished, "xb") as file:
        write(file)


def sha256(path: Path) -> str:
    """The SHA-256 of a file's content in hexadecimal digits. Raises OSError."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def write_secret(path: Path, content: bytes) -> None:
    """As `write_whole`, for what the file's owner alone may read. Raises OSError."""

    def write(file: BinaryIO) -> None:
        os.fchmod(file.fileno(), 0o600)  # before there is anything to read
        file.write(content)

    write_whole(path, write)


@contextmanager
def whole(path: Path) -> Iterator[Path]:
    """As `write_whole`, for libraries that open files themselves: what is written to the path given, new and not there
    yet, becomes `path` where the block ends without an error.
    """
    _remove_left_over(path.parent)
    # a name that no other thread has, and that nobody can have laid a link under
    unfinished = path.with_name(f".{path.name}.{_HOST}.{os.getpid()}.{secrets.token_hex(4)}.unfinished")
    try:
        yield unfinished
        with open(unfinished, "rb") as file:
            os.fsync(file.fileno())
        os.replace(unfinished, path)
    except BaseException:
        unfinished.unlink(missing_ok=True)
        raise
    _sync_folder(path.parent)


def _remove_left_over(folder: Path) -> None:
    if not folder.is_dir():
        return
    for left in folder.iterdir():
        match = _UNFINISHED.fullmatch(left.name)
        if match and not _is_running(int(match[1])):
            left.unlink(missing_ok=True)


def _is_running(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except (PermissionError, OverflowError):
        return True
    return True


def _sync_folder(folder: Path) -> None:
    """Make the rename itself last; not every file system lets a folder be flushed."""
    try:
        descriptor = os.open(folder, os.O_RDONLY)
    except OSError:
        return
    try:
        os.fsync(descriptor)
    except OSError:
        return
    finally:
        os.close(descriptor)

"""The databases of Caffe: LMDB by the package lmdb, LevelDB by plyvel. Records are read in the order of their keys.

A database is only read, and nothing is written beside it. Who writes it meanwhile spoils what is read. New ones are
written by database_writers.py.
"""

from __future__ import annotations

import gc
import os
import struct
import time
import weakref
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from threading import RLock
from typing import Any, Final

from jitdnn.errors import InvalidArgument, needed
from jitdnn.locks import lock

Record = tuple[bytes, bytes | memoryview]
"""A key and its value."""

# of LMDB's file: two pages with meta data, each behind a header of 16 bytes
_MAGIC, _VERSION = 0xBEEFC0DE, 1
_META: Final = struct.Struct("<II16x")  # magic, version, and two fields of no interest
_TREE: Final = struct.Struct(
    "<IHH5Q"
)  # pad (in the first tree: bytes of a page), flags, depth, pages, entries, root
_LAST: Final = struct.Struct("<QQ")  # last page, transaction


class Database(ABC):
    """A database that is open; `path` is its folder, `process` the number of the process that may use it."""

    path: Path
    process: int

    @abstractmethod
    def records(self, place: int = 0, is_lent: bool = False) -> Iterator[Record]:
        """The records from the place-th on, to the end. Values that are lent may be views of the file in memory:
        nothing has been read from the disk then, and nobody may look at them when this object is gone. Raises
        InvalidArgument for a damaged database.
        """

    @abstractmethod
    def close(self) -> None:
        """Let go of it."""

    @property
    @abstractmethod
    def size(self) -> int | None:
        """The number of records, None where it is not known without reading all."""


def kind_of(path: Path) -> str | None:
    """LMDB or LEVELDB, by the files in a folder; None for a folder that is neither."""
    if (path / "data.mdb").is_file():
        return "LMDB"
    return "LEVELDB" if (path / "CURRENT").is_file() else None


def open_database(path: Path) -> Database:
    """Open the database in a folder; one that is open already in this process is shared, unless another one took its
    place meanwhile. Behind a fork it is opened anew (a LevelDB one only if the other process has let go of it).

    Raises NotSupported without the package that reads it, InvalidArgument if it is damaged, empty or none.
    """
    kind = kind_of(path)
    if kind is None:  # LevelDB would make the folder, with files of its own in it
        why = (
            "one is a folder with data.mdb (LMDB) or CURRENT (LevelDB)"
            if path.exists()
            else "it does not exist"
        )
        raise InvalidArgument(f"{path} is no database: {why}")
    with _lock:
        key = _identity(path)
        found = _open.get(key)
        if found is not None and found.process != os.getpid():
            found.close()
            found = None
        if found is None:
            found = LMDB(path) if kind == "LMDB" else LevelDB(path)
            _open[key] = found
    if next(found.records(), None) is None:
        raise InvalidArgument(f"{path} is a database without records")
    return found


_open: weakref.WeakValueDictionary[tuple[str, int, int], Database] = weakref.WeakValueDictionary()
_lock = lock()


def _identity(path: Path) -> tuple[str, int, int]:
    """The folder's name, and the file that is kept open while the database is: no other file has its number so long."""
    file = path / ("data.mdb" if kind_of(path) == "LMDB" else "LOCK")
    try:
        found = file.stat()
    except OSError:  # opening it says what is wrong
        return str(path.resolve()), 0, 0
    return str(path.resolve()), found.st_dev, found.st_ino


# held around calls of the libraries: a fork waits until no thread is inside one, whose own locks would stay held in the
# child, where closing the database waits for them
_inside = RLock()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(
        before=_inside.acquire, after_in_parent=_inside.release, after_in_child=_inside.release
    )


def _opened(lmdb: Any, path: Path) -> Any:
    """An environment for reading. One that nobody refers to any more may still be open: another thread is about to let
    go of it, or it is part of a cycle."""
    for left in range(_TRIES, -1, -1):
        try:
            # no lock file: it would be written beside the data, and one of somebody else's could stop us
            return lmdb.open(str(path), readonly=True, lock=False, readahead=True, max_dbs=0)
        except lmdb.Error as error:
            if not left or "already open" not in str(error):
                raise
            gc.collect()
            time.sleep(_PAUSE)
    raise AssertionError("the last try returns or raises")


_TRIES, _PAUSE = 20, 0.05  # to open a database that is being closed, and seconds between them


class LMDB(Database):
    """A folder with data.mdb."""

    def __init__(self, path: Path) -> None:
        lmdb = lmdb_module(path)
        self.path, self.process = path, os.getpid()
        _check_size(path / "data.mdb")
        try:
            self._environment = _opened(lmdb, path)
            self._entries = int(self._environment.stat()["entries"])
        except lmdb.Error as error:
            raise InvalidArgument(f"{path} cannot be opened as an LMDB database: {error}") from error
        self._error = lmdb.Error

    def close(self) -> None:
        self._environment.close()

    @property
    def size(self) -> int:
        return self._entries

    def records(self, place: int = 0, is_lent: bool = False) -> Iterator[Record]:
        try:
            with ExitStack() as stack:
                with _inside:
                    begun = self._environment.begin(buffers=is_lent)
                    transaction = stack.enter_context(_closed_inside(begun, "abort"))
                    cursor = stack.enter_context(_closed_inside(transaction.cursor(), "close"))
                    is_there = cursor.first()
                while is_there:
                    if place:  # one to skip
                        place -= 1
                    else:
                        with _inside:
                            key, value = cursor.item()
                        yield bytes(key), value
                    with _inside:
                        is_there = cursor.next()
        except self._error as error:
            raise InvalidArgument(f"{self.path} is damaged: {error}") from error


class LevelDB(Database):
    """A folder with CURRENT."""

    def __init__(self, path: Path) -> None:
        plyvel = plyvel_module(path)
        self.path, self.process = path, os.getpid()
        try:
            self._database = plyvel.DB(self._spelling(), create_if_missing=False, paranoid_checks=True)
        except (plyvel.Error, OSError) as error:
            message = f"{path} cannot be opened as a LevelDB database: {error}"
            if "LOCK: Resource temporarily unavailable" in str(error):
                message += (
                    "; another process has it open, and LevelDB lets one at a time: end that one, or make an LMDB "
                    "database, which any number may read: jitdnn convert-imageset"
                )
            raise InvalidArgument(message) from error
        self._error = plyvel.Error

    def _spelling(self) -> str:
        """A name for the folder by which LevelDB has none open: by their names it tells whether one is open already,
        and one that was replaced by this may still be.
        """
        self.name = str(self.path)
        folder = self.path.resolve()
        taken = {
            each.name
            for each in list(_open.values())
            if isinstance(each, LevelDB) and each.process == self.process and each.path.resolve() == folder
        }
        while self.name in taken:
            self.name += "/."
        return self.name

    def close(self) -> None:
        self._database.close()

    @property
    def size(self) -> None:
        return None

    def records(self, place: int = 0, is_lent: bool = False) -> Iterator[Record]:
        try:
            with ExitStack() as stack:
                with _inside:
                    iterator = self._database.iterator(verify_checksums=True, fill_cache=False)
                    stack.enter_context(_closed_inside(iterator, "close"))
                while True:
                    with _inside:
                        record = next(iterator, None)
                    if record is None:
                        return
                    if place:  # one to skip
                        place -= 1
                    else:
                        yield record
        except self._error as error:
            raise InvalidArgument(f"{self.path} is damaged: {error}") from error


@contextmanager
def _closed_inside(what: Any, end: str) -> Iterator[Any]:
    """A block with something of a library's that is ended, by its method of that name, behind it."""
    try:
        yield what
    finally:
        with _inside:
            getattr(what, end)()


def lmdb_module(path: Path) -> Any:
    """The package lmdb, for the database `path`. Raises NotSupported if it is not installed."""
    with needed(
        f"{path} is an LMDB database, and lmdb, which reads and writes it, is not installed: pip install "
        "'jitdnn[caffe]'"
    ):
        import lmdb
    return lmdb


def plyvel_module(path: Path) -> Any:
    """The package plyvel, for the database `path`. Raises NotSupported if it is not installed."""
    with needed(
        f"{path} is a LevelDB database, and plyvel, which reads and writes it, is not installed: pip install "
        "'jitdnn[leveldb]'; or make an LMDB database of the images: jitdnn convert-imageset"
    ):
        import plyvel
    return plyvel


def _check_size(file: Path) -> None:
    """Raises InvalidArgument for a file that is shorter than what its header says: LMDB maps it into memory, and a page
    that is not there would end the process.
    """
    try:
        with open(file, "rb") as opened:
            head = opened.read(1 << 17)
            size = os.fstat(opened.fileno()).st_size
    except OSError as error:
        raise InvalidArgument(f"{file} cannot be read: {error.strerror}") from error
    try:
        metas = [_meta(head, 0)]
        metas.append(_meta(head, metas[0][0]))
    except struct.error:
        raise InvalidArgument(f"{file} is no database of LMDB: it has {size:,} bytes") from None
    except ValueError as error:
        raise InvalidArgument(f"{file} is no database of LMDB: {error}") from None
    page, last, _ = max(metas, key=lambda meta: meta[2])
    if (last + 1) * page > size:
        raise InvalidArgument(
            f"{file} is cut off: it has {size:,} bytes, and {last + 1:,} pages of {page:,} by its header"
        )


def _meta(head: bytes, at: int) -> tuple[int, int, int]:
    """Bytes of a page, number of the last page, and number of the transaction."""
    magic, version = _META.unpack_from(head, at + 16)
    if (magic, version) != (_MAGIC, _VERSION):
        raise ValueError(f"it starts with {magic:#x}, version {version}")
    trees = at + 16 + _META.size
    page = _TREE.unpack_from(head, trees)[0]
    if not 256 <= page <= 1 << 16 or page & (page - 1):
        raise ValueError(f"its pages have {page} bytes")
    last, transaction = _LAST.unpack_from(head, trees + 2 * _TREE.size)
    return page, last, transaction

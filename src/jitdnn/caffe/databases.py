"""The databases of Caffe: LMDB by the package lmdb, LevelDB by plyvel. Records are read in the order of their keys.

A database is only read, and nothing is written beside it. Who writes it meanwhile spoils what is read.
"""

from __future__ import annotations

import os
import shutil
import struct
import weakref
from abc import ABC, abstractmethod
from collections.abc import Iterator
from pathlib import Path
from threading import Lock
from typing import Any, Final

from jitdnn.errors import InvalidArgument, NotSupported

Record = tuple[bytes, bytes]
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
    def records(self, place: int = 0) -> Iterator[Record]:
        """The records from the place-th on, to the end. Raises InvalidArgument for a damaged database."""

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
    """Open the database in a folder; one that is open already in this process is shared. Behind a fork it is opened
    anew (a LevelDB one only if the other process has let go of it).

    Raises NotSupported without the package that reads it, InvalidArgument if it is damaged or empty.
    """
    key = str(path.resolve())
    with _lock:
        found = _open.get(key)
        if found is not None and found.process != os.getpid():
            found.close()
            found = None
        if found is None:
            found = LMDB(path) if kind_of(path) == "LMDB" else LevelDB(path)
            _open[key] = found
    if next(found.records(), None) is None:
        raise InvalidArgument(f"{path} is a database without records")
    return found


_open: weakref.WeakValueDictionary[str, Database] = weakref.WeakValueDictionary()
_lock = Lock()


def _new_lock() -> None:
    """Behind a fork: a thread that is not there may have held it."""
    global _lock
    _lock = Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_new_lock)


class LMDB(Database):
    """A folder with data.mdb."""

    def __init__(self, path: Path) -> None:
        lmdb = _lmdb(path)
        self.path, self.process = path, os.getpid()
        _check_size(path / "data.mdb")
        try:
            # no lock file: it would be written beside the data, and one of somebody else's could stop us
            self._environment = lmdb.open(str(path), readonly=True, lock=False, readahead=True, max_dbs=0)
            self._entries = int(self._environment.stat()["entries"])
        except lmdb.Error as error:
            raise InvalidArgument(f"{path} cannot be opened as an LMDB database: {error}") from error
        self._error = lmdb.Error

    def close(self) -> None:
        self._environment.close()

    @property
    def size(self) -> int:
        return self._entries

    def records(self, place: int = 0) -> Iterator[Record]:
        try:
            with self._environment.begin() as transaction, transaction.cursor() as cursor:
                # behind the end the cursor would begin anew
                if cursor.first() and all(cursor.next() for _ in range(place)):
                    yield from cursor.iternext()
        except self._error as error:
            raise InvalidArgument(f"{self.path} is damaged: {error}") from error


class LevelDB(Database):
    """A folder with CURRENT."""

    def __init__(self, path: Path) -> None:
        try:
            import plyvel
        except ImportError:
            raise NotSupported(
                f"{path} is a LevelDB database, and plyvel, which reads it, is not installed: pip install "
                "'jitdnn[leveldb]'; or make an LMDB database of the images: jitdnn convert-imageset"
            ) from None
        self.path, self.process = path, os.getpid()
        try:
            self._database = plyvel.DB(str(path), create_if_missing=False, paranoid_checks=True)
        except (plyvel.Error, OSError) as error:
            raise InvalidArgument(f"{path} cannot be opened as a LevelDB database: {error}") from error
        self._error = plyvel.Error

    def close(self) -> None:
        self._database.close()

    @property
    def size(self) -> None:
        return None

    def records(self, place: int = 0) -> Iterator[Record]:
        try:
            with self._database.iterator(verify_checksums=True, fill_cache=False) as iterator:
                for index, record in enumerate(iterator):
                    if index >= place:
                        yield record
        except self._error as error:
            raise InvalidArgument(f"{self.path} is damaged: {error}") from error


class Writer:
    """Writes records into a new LMDB database, which is there whole, or not at all, when the block ends."""

    def __init__(self, path: Path, every: int = 1000) -> None:
        """`path` must not exist; `every` so many records are a transaction."""
        self._lmdb = _lmdb(path)
        if path.exists():
            raise InvalidArgument(f"{path} exists already: remove it, or give another name")
        self.path, self._every = path, every
        self._unfinished = path.with_name(f".{path.name}.{os.getpid()}.unfinished")
        self._waiting: list[Record] = []

    def __enter__(self) -> Writer:
        try:
            shutil.rmtree(self._unfinished, ignore_errors=True)  # of a process that was killed
            self._unfinished.mkdir(parents=True)
            self._environment = self._lmdb.open(str(self._unfinished), map_size=1 << 26)
        except (OSError, self._lmdb.Error) as error:
            shutil.rmtree(self._unfinished, ignore_errors=True)
            raise InvalidArgument(f"{self.path} cannot be written: {error}") from error
        return self

    def put(self, key: bytes, value: bytes) -> None:
        """Add a record. Raises InvalidArgument where the disk is full, or a key is empty or too long."""
        self._waiting.append((key, value))
        if len(self._waiting) >= self._every:
            self._commit()

    def _commit(self) -> None:
        while self._waiting:
            try:
                with self._environment.begin(write=True) as transaction:
                    for key, value in self._waiting:
                        transaction.put(key, value)
            except self._lmdb.MapFullError:
                self._environment.set_mapsize(2 * self._environment.info()["map_size"])
                continue
            except self._lmdb.Error as error:
                raise InvalidArgument(f"{self.path} cannot be written: {error}") from error
            self._waiting = []

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        try:
            if error is None:
                self._commit()
                self._environment.sync(True)
            self._environment.close()
            if error is None:
                os.rename(self._unfinished, self.path)
        except (OSError, self._lmdb.Error) as failure:
            raise InvalidArgument(f"{self.path} cannot be written: {failure}") from failure
        finally:
            self._environment.close()
            shutil.rmtree(self._unfinished, ignore_errors=True)


def _lmdb(path: Path) -> Any:
    try:
        import lmdb
    except ImportError:
        raise NotSupported(
            f"{path} is an LMDB database, and lmdb, which reads it, is not installed: pip install 'jitdnn[caffe]'"
        ) from None
    return lmdb


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

"""New databases of Caffe, LMDB by the package lmdb, LevelDB by plyvel: there whole, or not at all."""

from __future__ import annotations

import os
import shutil
from abc import ABC, abstractmethod
from pathlib import Path
from typing import Any

from jitdnn.caffe.databases import Record, lmdb_module, plyvel_module
from jitdnn.errors import InvalidArgument

#: of the option --backend, as Caffe's tools name them
BACKENDS = ("lmdb", "leveldb")


def new_database(path: Path, backend: str = "lmdb") -> Writer:
    """What writes the database `path`, a folder that must not exist; `backend` is "lmdb" or "leveldb".

    Raises InvalidArgument for another backend or if `path` exists, NotSupported without the package that writes it.
    """
    if backend.lower() not in BACKENDS:
        raise InvalidArgument(f"backend is {backend!r}: there are {' and '.join(BACKENDS)}")
    return (LMDBWriter if backend.lower() == "lmdb" else LevelDBWriter)(path)


class Writer(ABC):
    """Writes records into a new database, which is there whole, or not at all, when the block ends."""

    def __init__(self, path: Path, every: int = 1000) -> None:
        """`path` must not exist; `every` so many records are written at once."""
        if path.exists():
            raise InvalidArgument(f"{path} exists already: remove it, or give another name")
        self.path, self._every = path, every
        self._unfinished = path.with_name(f".{path.name}.{os.getpid()}.unfinished")
        self._waiting: list[Record] = []

    def __enter__(self) -> Writer:
        try:
            shutil.rmtree(self._unfinished, ignore_errors=True)  # of a process that was killed
            self._unfinished.mkdir(parents=True)
            self._open(self._unfinished)
        except (OSError, self._error) as error:
            shutil.rmtree(self._unfinished, ignore_errors=True)
            raise InvalidArgument(f"{self.path} cannot be written: {error}") from error
        return self

    def put(self, key: bytes, value: bytes) -> None:
        """Add a record. Raises InvalidArgument where the disk is full, or a key is empty or too long."""
        self._waiting.append((key, value))
        if len(self._waiting) >= self._every:
            self._commit()

    def _commit(self) -> None:
        try:
            self._write(self._waiting)
        except self._error as error:
            raise InvalidArgument(f"{self.path} cannot be written: {error}") from error
        self._waiting = []

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        try:
            if error is None:
                self._commit()
            self._close(is_kept=error is None)
            if error is None:
                os.rename(self._unfinished, self.path)
        except (OSError, self._error) as failure:
            raise InvalidArgument(f"{self.path} cannot be written: {failure}") from failure
        finally:
            self._close(is_kept=False)
            shutil.rmtree(self._unfinished, ignore_errors=True)

    #: what the package raises
    _error: type[Exception]

    @abstractmethod
    def _open(self, folder: Path) -> None:
        """Open a new database in an empty folder."""

    @abstractmethod
    def _write(self, records: list[Record]) -> None:
        """Write records, all or none of them."""

    @abstractmethod
    def _close(self, *, is_kept: bool) -> None:
        """Let go of the database, once it is on the disk if it is kept; of one that is closed do nothing."""


class LMDBWriter(Writer):
    """A folder with data.mdb."""

    def __init__(self, path: Path, every: int = 1000) -> None:
        self._lmdb = lmdb_module(path)
        self._error = self._lmdb.Error
        self._environment: Any = None
        super().__init__(path, every)

    def _open(self, folder: Path) -> None:
        self._environment = self._lmdb.open(str(folder), map_size=1 << 26)

    def _write(self, records: list[Record]) -> None:
        while True:
            try:
                with self._environment.begin(write=True) as transaction:
                    for key, value in records:
                        transaction.put(key, value)
                return
            except self._lmdb.MapFullError:
                self._environment.set_mapsize(2 * self._environment.info()["map_size"])

    def _close(self, *, is_kept: bool) -> None:
        if self._environment is None:
            return
        if is_kept:
            self._environment.sync(True)
        self._environment.close()
        self._environment = None


class LevelDBWriter(Writer):
    """A folder with CURRENT."""

    def __init__(self, path: Path, every: int = 1000) -> None:
        self._plyvel = plyvel_module(path)
        self._error = self._plyvel.Error
        self._database: Any = None
        super().__init__(path, every)

    def _open(self, folder: Path) -> None:
        self._database = self._plyvel.DB(str(folder), create_if_missing=True, error_if_exists=True)

    def _write(self, records: list[Record]) -> None:
        if any(not key for key, _ in records):
            raise InvalidArgument(f"{self.path}: a key is empty")
        with self._database.write_batch(transaction=True, sync=True) as batch:
            for key, value in records:
                batch.put(key, value)

    def _close(self, *, is_kept: bool) -> None:
        if self._database is not None:
            self._database.close()
            self._database = None

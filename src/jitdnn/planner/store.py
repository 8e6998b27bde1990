"""The tuning store: measured times that outlive the process, in one SQLite file for all processes of a user.

What it guarantees:

- Any number of processes may read and write at once (WAL mode, one short transaction a call); one killed in
  the middle of a write leaves the store as it was before.
- A damaged file is moved aside, with one warning, and a new one begun.
- No call raises because of the disk. Where nothing can be written, times are kept in this process's memory,
  with one warning; a store on a read-only disk is still read.

A time is filed under everything that it depends on: the problem, the epilogue, the device (with its
instruction set and threads), this library's version, the algorithm and the algorithm's version.
"""

from __future__ import annotations

import json
import math
import os
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jitdnn import log
from jitdnn.errors import StoreError
from jitdnn.settings import current

if TYPE_CHECKING:
    import sqlite3

SCHEMA = 1
_BUSY_SECONDS = 10.0
_REPAIR_SECONDS = 15.0  # longer than looking for damage can take
_COLUMNS = "problem, epilogue, device, library, algorithm, algorithm_version, seconds, workspace, measured_at"

_CREATE = """
CREATE TABLE IF NOT EXISTS measurement (
  problem TEXT NOT NULL,
  epilogue TEXT NOT NULL,
  device TEXT NOT NULL,
  library TEXT NOT NULL,
  algorithm TEXT NOT NULL,
  algorithm_version INTEGER NOT NULL,
  seconds REAL NOT NULL,
  workspace INTEGER NOT NULL,
  measured_at REAL NOT NULL,
  PRIMARY KEY (problem, epilogue, device, library, algorithm, algorithm_version)
) WITHOUT ROWID
"""
# of two measurements the later one stays: merging rows twice, or in another order, changes nothing
_INSERT = """
INSERT INTO measurement VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)
ON CONFLICT DO UPDATE SET
  seconds = excluded.seconds, workspace = excluded.workspace, measured_at = excluded.measured_at
WHERE excluded.measured_at >= measured_at
"""


@dataclass(frozen=True, slots=True)
class Measurement:
    """One row: what was measured, its time in seconds, its workspace in bytes, and when (Unix time)."""

    problem: str
    epilogue: str
    device: str
    library: str
    algorithm: str
    algorithm_version: int
    seconds: float
    workspace: int
    measured_at: float

    @property
    def key(self) -> tuple[str, str, str, str, str, int]:
        return (
            self.problem,
            self.epilogue,
            self.device,
            self.library,
            self.algorithm,
            self.algorithm_version,
        )

    def values(self) -> tuple[Any, ...]:
        return tuple(getattr(self, row.name) for row in fields(self))

    def is_sane(self) -> bool:
        """Whether this can be a measurement (a flipped bit, or an edited file, may say anything)."""
        words = (self.problem, self.epilogue, self.device, self.library, self.algorithm)
        whole = (self.algorithm_version, self.workspace)
        real = (self.seconds, self.measured_at)
        return (
            all(isinstance(value, str) for value in words)
            and all(isinstance(value, int) and value >= 0 for value in whole)
            and all(isinstance(value, float) and math.isfinite(value) for value in real)
            and self.seconds > 0.0
        )


@dataclass(frozen=True, slots=True)
class StoreStats:
    """What is in a store. `path` is None if it lives in memory only."""

    path: Path | None
    measurements: int
    bytes: int


class Store:
    """Measured times by problem, epilogue, device and algorithm. Safe to share by threads and processes.

    `path=None` keeps everything in memory.
    """

    def __init__(self, path: Path | None) -> None:
        self.path = path
        self._memory: dict[tuple[str, str, str, str, str, int], Measurement] = {}

    @staticmethod
    def default() -> Store:
        """The store that the settings in force ask for; the same object for the same settings."""
        values = current()
        path = values.cache_dir / f"tuning-{SCHEMA}.sqlite" if values.cache else None
        found = _stores.get(path)
        return _stores.setdefault(path, Store(path)) if found is None else found

    def look_up(self, problem: str, epilogue: str, device: str) -> dict[tuple[str, int], Measurement]:
        """What was measured by this version of the library, by algorithm and algorithm version."""
        wanted = (problem, epilogue, device, _library_version())
        found = self._read("WHERE problem = ? AND epilogue = ? AND device = ? AND library = ?", wanted)
        found += [row for row in self._memory.values() if row.key[:4] == wanted]
        return {(row.algorithm, row.algorithm_version): row for row in found}

    def record(
        self, problem: str, epilogue: str, device: str, times: Iterable[tuple[str, int, float, int]]
    ) -> None:
        """Keep times just measured: (algorithm, algorithm version, seconds, workspace in bytes)."""
        now, library = time.time(), _library_version()
        self.add([Measurement(problem, epilogue, device, library, *row, now) for row in times])

    def add(self, rows: Sequence[Measurement]) -> None:
        """Keep rows; where there is one of the same key already, the later measured stays."""
        if self.path is not None and self._write(rows):
            return
        for row in rows:
            known = self._memory.get(row.key)
            if known is None or row.measured_at >= known.measured_at:
                self._memory[row.key] = row

    def rows(self) -> list[Measurement]:
        """Everything that is stored, of all devices and library versions, in a stable order."""
        found = {row.key: row for row in self._read("", ())}
        return sorted((found | self._memory).values(), key=lambda row: row.key)

    def export(self, path: Path) -> int:
        """Write every row to `path` as lines of JSON, to keep, to edit or to ship. Returns their number.

        Raises StoreError if the file cannot be written.
        """
        rows = self.rows()
        try:
            path.write_text("".join(json.dumps(asdict(row)) + "\n" for row in rows), encoding="utf-8")
        except OSError as error:
            raise StoreError(f"{path} cannot be written: {error}") from error
        return len(rows)

    def merge(self, path: Path) -> int:
        """Add the rows of an exported file; the later of two measurements stays. Returns their number.

        Raises StoreError, with the line, for a file that is no export or cannot be read; nothing is added
        then.
        """
        try:
            lines = path.read_text(encoding="utf-8").splitlines()
        except (OSError, ValueError) as error:
            raise StoreError(f"{path} cannot be read: {error}") from error
        rows = []
        for number, line in enumerate(lines, 1):
            try:
                row = Measurement(**json.loads(line))
            except (ValueError, TypeError) as error:
                raise StoreError(f"{path}, line {number}: not a row of a tuning store: {error}") from error
            if not row.is_sane():
                raise StoreError(f"{path}, line {number}: {row} is no measurement")
            rows.append(row)
        self.add(rows)
        return len(rows)

    def stats(self) -> StoreStats:
        """Count what is there now."""
        size = 0
        for file in self._files():
            with suppress(OSError):
                size += file.stat().st_size
        return StoreStats(self.path, len(self.rows()), size)

    def clear(self) -> None:
        """Forget everything."""
        self._memory.clear()
        for file in self._files():
            with suppress(OSError):
                file.unlink()

    def _files(self) -> list[Path]:
        """The database, then what SQLite keeps beside it."""
        return (
            []
            if self.path is None
            else [self.path.with_name(self.path.name + end) for end in ("", "-wal", "-shm")]
        )

    def _read(self, condition: str, values: Sequence[str]) -> list[Measurement]:
        if self.path is None or not self.path.exists():
            return []
        import sqlite3

        query = f"SELECT {_COLUMNS} FROM measurement {condition}"
        try:
            connection = sqlite3.connect(self.path, timeout=_BUSY_SECONDS)
            try:
                rows = connection.execute(query, values).fetchall()
            finally:
                connection.close()
        except sqlite3.Error as error:
            if _is_damage(error):
                self._move_aside(error)
            is_unreachable = error.sqlite_errorname.startswith(("SQLITE_CANTOPEN", "SQLITE_READONLY"))
            rows = self._read_immutable(query, values) if is_unreachable else []
        return [row for row in (Measurement(*values) for values in rows) if row.is_sane()]

    def _read_immutable(self, query: str, values: Sequence[str]) -> list[Any]:
        """Read where SQLite may not make the files that it shares with other processes: a read-only disk."""
        import sqlite3

        assert self.path is not None
        try:
            connection = sqlite3.connect(f"{self.path.absolute().as_uri()}?mode=ro&immutable=1", uri=True)
            try:
                return connection.execute(query, values).fetchall()
            finally:
                connection.close()
        except sqlite3.Error:
            return []

    def _write(self, rows: Sequence[Measurement]) -> bool:
        """Write rows to the disk; False if that is impossible."""
        import sqlite3

        assert self.path is not None
        problem: Exception | None = None
        for _ in range(3):
            try:
                self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
                self._insert(rows)
                return True
            except OSError as error:
                problem = error
                break
            except sqlite3.Error as error:
                problem = error
                if not _is_damage(error):
                    break
                self._move_aside(error)
        log.fallback_once(
            ("unwritable store", self.path),
            f"the tuning store {self.path} cannot be written ({problem}): measured times are kept in "
            "memory, and the next process measures again; set JITDNN_CACHE_DIR to a folder that has room",
        )
        return False

    def _insert(self, rows: Sequence[Measurement]) -> None:
        """One transaction on a connection of its own: none is carried over a fork or to another thread."""
        import sqlite3

        assert self.path is not None
        connection = sqlite3.connect(self.path, timeout=_BUSY_SECONDS, isolation_level=None)
        try:
            # SQLite may refuse the switch while others are at work; the older journal is as safe
            with suppress(sqlite3.OperationalError):
                connection.execute("PRAGMA journal_mode = WAL")
            connection.execute("PRAGMA synchronous = NORMAL")
            connection.execute("BEGIN IMMEDIATE")
            connection.execute(_CREATE)
            connection.executemany(_INSERT, [row.values() for row in rows])
            connection.execute("COMMIT")
        finally:
            connection.close()

    def _move_aside(self, error: Exception) -> None:
        """Rename a damaged database; the next write begins a new one."""
        assert self.path is not None
        database, *companions = self._files()
        aside = database.with_name(f"{database.name}.damaged-{time.time_ns()}")
        with _alone(database.with_name(f"{database.name}.repair")):
            if not _is_damaged(database):
                return  # another process was faster, and this is the new one already
            with suppress(OSError):
                # first the journal, which must never meet the new database
                for file in companions:
                    file.unlink(missing_ok=True)
                database.rename(aside)
        log.fallback_once(
            ("damaged store", self.path),
            f"the tuning store {self.path} is damaged ({error}): it was moved to {aside.name} and begun anew",
        )


@contextmanager
def _alone(lock: Path) -> Iterator[None]:
    """Hold a lock file, so that of several processes that find the same damage one repairs it.

    A lock older than a repair can last was left by a process that died. Where no file can be made, nothing can
    be repaired either.
    """
    deadline = time.monotonic() + _REPAIR_SECONDS
    while True:
        try:
            os.close(os.open(lock, os.O_CREAT | os.O_EXCL | os.O_WRONLY))
            break
        except FileExistsError:
            if time.monotonic() > deadline:
                break
            time.sleep(0.01)
        except OSError:
            break
    try:
        yield
    finally:
        with suppress(OSError):
            lock.unlink(missing_ok=True)


def _is_damage(error: sqlite3.Error) -> bool:
    """Whether an error of SQLite means that the file is no database, or one with holes."""
    return error.sqlite_errorname.startswith(("SQLITE_CORRUPT", "SQLITE_NOTADB", "SQLITE_IOERR_SHORT_READ"))


def _is_damaged(path: Path) -> bool:
    import sqlite3

    try:
        connection = sqlite3.connect(path, timeout=_BUSY_SECONDS)
        try:
            return bool(connection.execute("PRAGMA quick_check(1)").fetchall() != [("ok",)])
        finally:
            connection.close()
    except sqlite3.Error as error:
        return _is_damage(error)


_stores: dict[Path | None, Store] = {}


def _library_version() -> str:
    from jitdnn import __version__

    return __version__

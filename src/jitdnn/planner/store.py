"""The tuning store: measured times that outlive the process, in one SQLite file for all processes of a user.

What it guarantees:

- Any number of processes may read and write at once (WAL mode, one short transaction a call); one killed in
  the middle of a write leaves the store as it was before.
- A damaged file is moved aside, with one warning, and a new one begun.
- No call raises because of the disk. Where nothing can be written, times are kept in this process's memory,
  with one warning; a store on a read-only disk is still read.
- A file that belongs to another user is neither read nor written, and one warning says so. That is asked before
  SQLite opens it, so it keeps times apart and is no lock: what is read is numbers, which are checked, and the
  worst that they can do is to choose a slower algorithm.

- The file holds at most `limit` bytes, give or take what is being written at the moment. Problems whose last use is
  longest ago go first; a use is noted to within a day.

A time is filed under everything that it depends on: the problem, the epilogue, the device (with its
instruction set and threads), this library's version, the algorithm and the algorithm's version.
"""

from __future__ import annotations

import json
import math
import os
import re
import stat
import time
from collections.abc import Iterable, Sequence
from contextlib import closing, suppress
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jitdnn import limits, log
from jitdnn.errors import StoreError
from jitdnn.files import write_whole
from jitdnn.planner.store_damage import BUSY_SECONDS, alone, error_name, is_damage, is_damaged
from jitdnn.retention import Recent
from jitdnn.rtcg.cache import refusal
from jitdnn.settings import current

if TYPE_CHECKING:
    import sqlite3

SCHEMA = 1
#: how names begin of what is no problem of ours, but a choice between a call of ours and one of PyTorch's
CHOICES = "torch "
_SURROGATE = re.compile("[\ud800-\udfff]")  # half a character: JSON can say it, a database cannot keep it
_DAY = 86400.0
_NOTE_SECONDS = 0.1  # longer than that nobody waits to note a use
_ROW_BYTES = 1024  # of memory, about, that a row takes in this process
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
# when a problem was last looked up, in days since 1970: only where its times are older than that
_CREATE_USES = """
CREATE TABLE IF NOT EXISTS last_use (
  problem TEXT NOT NULL,
  epilogue TEXT NOT NULL,
  device TEXT NOT NULL,
  library TEXT NOT NULL,
  day INTEGER NOT NULL,
  PRIMARY KEY (problem, epilogue, device, library)
) WITHOUT ROWID
"""
_NOTE_USE = """
INSERT INTO last_use VALUES (?, ?, ?, ?, ?)
ON CONFLICT DO UPDATE SET day = excluded.day WHERE excluded.day > day
"""
_LONGEST_UNUSED = """
SELECT problem, epilogue, device, library FROM measurement LEFT JOIN last_use USING (problem, epilogue, device, library)
GROUP BY problem, epilogue, device, library ORDER BY max(max(measured_at), 86400.0 * coalesce(max(day), 0)) LIMIT ?
"""
_IS_PROBLEM = "problem = ? AND epilogue = ? AND device = ? AND library = ?"
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
        return self.problem, self.epilogue, self.device, self.library, self.algorithm, self.algorithm_version

    def values(self) -> tuple[Any, ...]:
        return tuple(getattr(self, row.name) for row in fields(self))

    def is_sane(self) -> bool:
        """Whether this can be a measurement (a flipped bit, or an edited file, may say anything)."""
        words = (self.problem, self.epilogue, self.device, self.library, self.algorithm)
        whole = (self.algorithm_version, self.workspace)
        real = (self.seconds, self.measured_at)
        return (
            all(isinstance(value, str) and not _SURROGATE.search(value) for value in words)
            and all(type(value) is int and 0 <= value < 1 << 63 for value in whole)  # that SQLite can keep
            and all(isinstance(value, float) and math.isfinite(value) for value in real)
            and self.seconds > 0.0
        )


def _is_of_problem(row: Measurement) -> bool:
    """Whether a plan may depend on a row."""
    return not row.problem.startswith(CHOICES)


@dataclass(frozen=True, slots=True)
class StoreStats:
    """What is in a store. `path` is None if it lives in memory only."""

    path: Path | None
    measurements: int
    bytes: int
    limit: int


class Store:
    """Measured times by problem, epilogue, device and algorithm. Safe to share by threads and processes.

    `path=None` keeps everything in memory. `limit` is in bytes.
    """

    def __init__(self, path: Path | None, limit: int = 2**28) -> None:
        self.path = path
        self.limit = limit
        # those that were not used for longest first
        self._memory: dict[tuple[str, str, str, str, str, int], Measurement] = {}
        self._notes_uses = True

    @staticmethod
    def default() -> Store:
        """The store that the settings in force ask for; the same object for the same settings."""
        values = current()
        path = values.cache_dir / f"tuning-{SCHEMA}.sqlite" if values.cache else None
        found = _stores.recall(path)
        if found is None:
            found = _stores.put(path, Store(path))
        found.limit = values.store_limit
        return found

    def look_up(self, problem: str, epilogue: str, device: str) -> dict[tuple[str, int], Measurement]:
        """What was measured by this version of the library, by algorithm and algorithm version."""
        wanted = (problem, epilogue, device, _library_version())
        found = self._read(f"WHERE {_IS_PROBLEM}", wanted)
        if found and time.time() - max(row.measured_at for row in found) > _DAY:
            self._note_use(wanted)
        remembered = [row for row in tuple(self._memory.values()) if row.key[:4] == wanted]
        for row in remembered:
            self._remember(row)
        found += remembered
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
            if any(map(_is_of_problem, rows)):
                self._note_change()
            return
        for row in rows:
            known = self._memory.get(row.key)
            if known is None or row.measured_at >= known.measured_at:
                self._remember(row)

    def _remember(self, row: Measurement) -> None:
        """Keep a row in memory, as the last one used."""
        self._memory.pop(row.key, None)
        self._memory[row.key] = row
        while len(self._memory) > max(1, self.limit // _ROW_BYTES):
            with suppress(StopIteration, RuntimeError):  # another thread is at it
                self._memory.pop(next(iter(self._memory)), None)

    def rows(self) -> list[Measurement]:
        """Everything that is stored, of all devices and library versions, in a stable order."""
        found = {row.key: row for row in self._read("", ())}
        return sorted((found | self._memory).values(), key=lambda row: row.key)

    def export(self, path: Path) -> int:
        """Write every row to `path` as lines of JSON, to keep, to edit or to ship. Returns their number.

        Raises StoreError if the file cannot be written.
        """
        rows = self.rows()
        lines = "".join(json.dumps(asdict(row)) + "\n" for row in rows)
        try:
            write_whole(path, lambda file: file.write(lines.encode()))
        except OSError as error:
            raise StoreError(f"{path} cannot be written: {error}") from error
        return len(rows)

    def merge(self, path: Path) -> int:
        """Add the rows of an exported file; the later of two measurements stays. Returns their number.

        Raises StoreError, with the line, for a file that is no export or cannot be read; nothing is added
        then.
        """
        try:
            text = limits.read_bounded(path, limits.EXPORT_BYTES, "an export of the tuning store").decode(
                "utf-8"
            )
        except (OSError, ValueError) as error:
            raise StoreError(f"{path} cannot be read: {error}") from error
        rows = []
        for number, line in enumerate(text.splitlines(), 1):
            if len(line) > limits.EXPORT_LINE:
                raise StoreError(
                    f"{path}, line {number}: it has {len(line):,} characters, and at most {limits.EXPORT_LINE:,} are "
                    "read"
                )
            try:
                row = Measurement(**json.loads(line))
            # text that nests too deeply ends in a RecursionError, with nothing done
            except (ValueError, TypeError, RecursionError) as error:
                raise StoreError(f"{path}, line {number}: not a row of a tuning store: {error}") from error
            if not row.is_sane():
                raise StoreError(
                    f"{path}, line {number}: {limits.shortened(repr(row), 500)} is no measurement"
                )
            rows.append(row)
        self.add(rows)
        return len(rows)

    def state(self) -> tuple[Any, ...]:
        """What differs when other times are stored that plans depend on: those of choices between calls are none.

        Of the file it is when such times were last written: that of a small file beside it, which SQLite leaves alone.
        """
        rows = [row.measured_at for row in tuple(self._memory.values()) if _is_of_problem(row)]
        found: list[Any] = [len(rows), max(rows, default=0.0)]
        for file in self._files()[-1:]:
            with suppress(OSError):
                found.append(file.stat().st_mtime_ns)
        return tuple(found)

    def state_of(self, problem: str, epilogue: str, device: str) -> tuple[tuple[str, int, float], ...]:
        """What differs when other times of one problem are stored: its times, by algorithm and algorithm version."""
        if self.state() == (0, 0.0):  # of no problem at all: nothing is read
            return ()
        known = self.look_up(problem, epilogue, device)
        return tuple(sorted((*key, row.seconds) for key, row in known.items()))

    def _note_change(self) -> None:
        """Write down that times were stored that plans depend on."""
        with suppress(OSError):
            file = os.open(self._files()[-1], os.O_CREAT | os.O_WRONLY | os.O_TRUNC, 0o600)
            try:
                os.write(file, str(time.time_ns()).encode())
            finally:
                os.close(file)

    def stats(self) -> StoreStats:
        """Count what is there now."""
        size = 0
        for file in self._files():
            with suppress(OSError):
                size += file.stat().st_size
        return StoreStats(self.path, len(self.rows()), size, self.limit)

    def clear(self) -> None:
        """Forget everything."""
        self._memory.clear()
        for file in self._files():
            with suppress(OSError):
                file.unlink()

    def _files(self) -> list[Path]:
        """The database, what SQLite keeps beside it, and last what tells that plans are to be made anew."""
        return (
            []
            if self.path is None
            else [self.path.with_name(self.path.name + end) for end in ("", "-wal", "-shm", "-changed")]
        )

    def _read(self, condition: str, values: Sequence[str]) -> list[Measurement]:
        if self.path is None or not self._is_own(self.path):
            return []
        import sqlite3

        query = f"SELECT {_COLUMNS} FROM measurement {condition}"
        try:
            with closing(sqlite3.connect(self.path, timeout=BUSY_SECONDS)) as connection:
                connection.text_factory = _text
                rows = connection.execute(query, values).fetchall()
        except sqlite3.Error as error:
            if is_damage(error):
                self._move_aside(error)
            is_unreachable = error_name(error).startswith(("SQLITE_CANTOPEN", "SQLITE_READONLY"))
            rows = self._read_immutable(query, values) if is_unreachable else []
        return [row for row in (Measurement(*values) for values in rows) if row.is_sane()]

    def _read_immutable(self, query: str, values: Sequence[str]) -> list[Any]:
        """Read where SQLite may not make the files that it shares with other processes: a read-only disk."""
        import sqlite3

        assert self.path is not None
        try:
            address = f"{self.path.absolute().as_uri()}?mode=ro&immutable=1"
            with closing(sqlite3.connect(address, uri=True)) as connection:
                connection.text_factory = _text
                return connection.execute(query, values).fetchall()
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
                if not self._is_own(self.path, is_made=True):
                    return False
                self._insert(rows)
                return True
            except OSError as error:
                problem = error
                break
            except sqlite3.Error as error:
                problem = error
                if not is_damage(error):
                    break
                self._move_aside(error)
        log.fallback_once(
            ("unwritable store", self.path),
            f"the tuning store {self.path} cannot be written ({problem}): measured times are kept in "
            "memory, and the next process measures again; set JITDNN_CACHE_DIR to a folder that has room",
        )
        return False

    def _is_own(self, path: Path, is_made: bool = False) -> bool:
        """Whether there is a store of this user's (one is begun if `is_made`). Raises OSError if none can be begun."""
        flags = os.O_CREAT | os.O_EXCL | os.O_WRONLY
        try:
            if is_made:
                with suppress(FileExistsError):
                    os.close(os.open(path, flags, 0o600))  # SQLite would let others read it, maybe write
            status = path.lstat()
        except OSError:
            if is_made:
                raise
            return False
        reason = "it is a link" if stat.S_ISLNK(status.st_mode) else refusal(status, writers=0)
        if reason is not None:
            log.fallback_once(
                ("refused store", path),
                f"the tuning store {path} is not used: {reason}. Measured times are kept in memory, and the next "
                "process measures again; set JITDNN_CACHE_DIR to a folder of this user's own",
            )
        return reason is None

    def _insert(self, rows: Sequence[Measurement]) -> None:
        """One transaction on a connection of its own: none is carried over a fork or to another thread."""
        import sqlite3

        assert self.path is not None
        with closing(sqlite3.connect(self.path, timeout=BUSY_SECONDS, isolation_level=None)) as connection:
            # SQLite may refuse the switch while others are at work; the older journal is as safe
            with suppress(sqlite3.OperationalError):
                connection.execute("PRAGMA journal_mode = WAL")
            connection.execute("PRAGMA synchronous = NORMAL")
            connection.execute("BEGIN IMMEDIATE")
            connection.execute(_CREATE)
            connection.executemany(_INSERT, [row.values() for row in rows])
            self._evict(connection)
            connection.execute("COMMIT")
            if _pages(connection, "page_count") > self.limit + self.limit // 4:
                # the limit was larger once; what others keep us from doing now is done another time
                with suppress(sqlite3.OperationalError):
                    connection.execute("VACUUM")

    def _evict(self, connection: sqlite3.Connection) -> None:
        """Delete the problems that were not used for longest, if there is more than may be; the last one stays."""
        for _ in range(4):
            used = _pages(connection, "page_count") - _pages(connection, "freelist_count")
            if used <= self.limit:
                return
            connection.execute(_CREATE_USES)
            distinct = "SELECT DISTINCT problem, epilogue, device, library FROM measurement"
            (count,) = connection.execute(f"SELECT count(*) FROM ({distinct})").fetchone()
            # a sixteenth more, so that not every write has to do this
            surplus = math.ceil(count * (1 - 15 / 16 * self.limit / used))
            unused = connection.execute(_LONGEST_UNUSED, (min(surplus, count - 1),)).fetchall()
            for table in ("measurement", "last_use"):
                connection.executemany(f"DELETE FROM {table} WHERE {_IS_PROBLEM}", unused)
            if not unused:
                return

    def _note_use(self, wanted: Sequence[str]) -> None:
        """Write down that a problem was looked up today, unless somebody has done so already."""
        import sqlite3

        if not self._notes_uses or self.path is None:
            return
        today = int(time.time() / _DAY)
        try:
            opened = sqlite3.connect(self.path, timeout=_NOTE_SECONDS, isolation_level=None)
            with closing(opened) as connection:
                with suppress(sqlite3.OperationalError):  # no such table yet
                    query = f"SELECT day FROM last_use WHERE {_IS_PROBLEM}"
                    known = connection.execute(query, wanted).fetchone()
                    if known is not None and known[0] >= today:
                        return
                connection.execute("PRAGMA synchronous = NORMAL")
                connection.execute("BEGIN IMMEDIATE")
                connection.execute(_CREATE_USES)
                connection.execute(_NOTE_USE, (*wanted, today))
                connection.execute("COMMIT")
        except sqlite3.Error:  # a read-only disk, or others who write all the time
            self._notes_uses = False

    def _move_aside(self, error: Exception) -> None:
        """Rename a damaged database; the next write begins a new one."""
        assert self.path is not None
        database, *companions = self._files()
        aside = database.with_name(f"{database.name}.damaged-{time.time_ns()}")
        with alone(database.with_name(f"{database.name}.repair")):
            if not is_damaged(database):
                return  # another process was faster, and this is the new one already
            with suppress(OSError):
                for earlier in database.parent.glob(f"{database.name}.damaged-*"):
                    earlier.unlink()  # one of them is enough to see what happened
            with suppress(OSError):
                # first the journal, which must never meet the new database
                for file in companions:
                    file.unlink(missing_ok=True)
                database.rename(aside)
        log.fallback_once(
            ("damaged store", self.path),
            f"the tuning store {self.path} is damaged ({error}): it was moved to {aside.name} and begun anew",
        )


def _text(content: bytes) -> str:
    """Text of the database. Damaged text becomes what `is_sane` refuses, and the other rows are read."""
    return content.decode("utf-8", "surrogateescape")


def _pages(connection: sqlite3.Connection, which: str) -> int:
    """The bytes of the pages that a pragma of SQLite counts."""
    (count,) = connection.execute(f"PRAGMA {which}").fetchone()
    (size,) = connection.execute("PRAGMA page_size").fetchone()
    return int(count) * int(size)


_stores: Recent[Path | None, Store] = Recent(128)


def _library_version() -> str:
    from jitdnn import __version__

    return __version__

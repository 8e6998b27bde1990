"""Store: rows as dictionaries, short transactions, one connection a thread."""

from __future__ import annotations

import json
import sqlite3
import threading
import time
import weakref
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from jitdnn.errors import InvalidArgument, StoreError
from jitdnn.locks import lock
from jitdnn.studio.store import folders, schema
from jitdnn.studio.store import series as curves
from jitdnn.studio.store.authors import author

Row = dict[str, Any]
FILE = "studio.sqlite"
_BUSY_SECONDS = 30.0
# pages of the file that a connection keeps; each thread of a server has one, and the system keeps them all anyway
_CACHE_KIB = 512
_JSON = {name for names in schema.JSON_COLUMNS.values() for name in names}


class Store:
    """The store of a home folder, made if it is not there.

    One object may be shared by the threads of a process: each has its own connection. Processes make their own.
    Raises StoreError where the file cannot be opened, or was written by a newer version.
    """

    def __init__(self, home: Path) -> None:
        self.home = Path(home)
        try:
            self.home.mkdir(parents=True, exist_ok=True, mode=0o700)
        except OSError as error:
            raise StoreError(f"the studio's folder {self.home} cannot be made: {error}") from error
        self.path = self.home / FILE
        schema.prepare(self.path)
        self._lock = lock()
        self._connections: dict[int, tuple[weakref.ref[threading.Thread], sqlite3.Connection]] = {}
        self._columns: dict[str, frozenset[str]] = {}
        self._series: dict[str, int] = {}

    @property
    def db(self) -> sqlite3.Connection:
        """The connection of this thread; rows of it can be read by name."""
        thread = threading.current_thread()
        with self._lock:
            found = self._connections.get(thread.ident or 0)
            if found is not None and found[0]() is thread:
                return found[1]
            for number, (owner, db) in tuple(self._connections.items()):
                alive = owner()
                if alive is None or not alive.is_alive() or number == thread.ident:
                    db.close()
                    del self._connections[number]
            made = self._connect()
            self._connections[thread.ident or 0] = weakref.ref(thread), made
            return made

    def _connect(self) -> sqlite3.Connection:
        try:
            made = sqlite3.connect(
                self.path, timeout=_BUSY_SECONDS, isolation_level=None, check_same_thread=False
            )
            made.row_factory = sqlite3.Row
            made.execute("PRAGMA synchronous = NORMAL")
            made.execute("PRAGMA foreign_keys = ON")
            made.execute(f"PRAGMA cache_size = -{_CACHE_KIB}")
        except sqlite3.Error as error:
            raise StoreError(f"{self.path} cannot be opened: {error}") from error
        return made

    def close(self) -> None:
        """Close the connections of all threads; the next use opens one again."""
        with self._lock:
            for _, db in self._connections.values():
                db.close()
            self._connections.clear()

    def __enter__(self) -> Store:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # ---- rows

    def rows(self, sql: str, *values: object) -> list[Row]:
        """The rows of a query as dictionaries, columns that hold JSON decoded."""
        found = [dict(row) for row in self.db.execute(sql, values)]
        if found:
            for name in found[0].keys() & _JSON:
                for row in found:
                    if isinstance(row[name], str):
                        row[name] = json.loads(row[name])
        return found

    def one(self, table: str, number: int) -> Row | None:
        """The row with this id, None if there is none."""
        self._columns_of(table)
        return next(iter(self.rows(f"SELECT * FROM {table} WHERE id = ?", number)), None)

    def insert(self, table: str, **values: Any) -> int:
        """Add a row and return its id; lists and dictionaries are kept as JSON, `made` is now, and `author` who this
        works for."""
        columns = self._checked(table, values)
        if "made" in columns:
            values = {"made": time.time()} | values
        if "author" in columns:
            values = {"author": author()} | values
        sql = f"INSERT INTO {table} ({', '.join(values)}) VALUES ({', '.join('?' * len(values))})"
        return int(self.db.execute(sql, [_plain(value) for value in values.values()]).lastrowid or 0)

    def update(self, table: str, number: int, **values: Any) -> bool:
        """Change columns of the row with this id; return whether there is such a row."""
        return self.update_where(table, values, "id = ?", number)

    def update_where(self, table: str, values: Row, where: str, *arguments: object) -> bool:
        """Change columns of the rows that fit the condition; return whether any does."""
        self._checked(table, values)
        if not values:
            return bool(self.db.execute(f"SELECT 1 FROM {table} WHERE {where}", arguments).fetchone())
        names = ", ".join(f"{name} = ?" for name in values)
        sql = f"UPDATE {table} SET {names} WHERE {where}"
        return self.db.execute(sql, [*map(_plain, values.values()), *arguments]).rowcount > 0

    def _checked(self, table: str, values: Row) -> frozenset[str]:
        columns = self._columns_of(table)
        if unknown := sorted(values.keys() - columns):
            raise InvalidArgument(
                f"{table} has no column {', '.join(map(repr, unknown))}: {', '.join(sorted(columns))}"
            )
        return columns

    def _columns_of(self, table: str) -> frozenset[str]:
        if table not in self._columns:
            found = self.db.execute("SELECT name FROM pragma_table_info(?)", (table,))
            names = frozenset(row[0] for row in found)
            if not names:
                raise InvalidArgument(f"the store has no table {table!r}")
            self._columns[table] = names
        return self._columns[table]

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """A block whose writes are kept together, or not at all where it raises; one inside of another joins it."""
        if self._is_in_transaction():
            yield
            return
        self.db.execute("BEGIN IMMEDIATE")
        try:
            yield
            self.db.execute("COMMIT")
        except BaseException:
            if self._is_in_transaction():  # SQLite ends one itself where the disk is full
                self.db.execute("ROLLBACK")
            raise

    def _is_in_transaction(self) -> bool:
        return self.db.in_transaction

    @contextmanager
    def lasting(self) -> Iterator[None]:
        """A block whose transactions outlast a loss of power at their end, not only the death of the process."""
        db = self.db
        db.execute("PRAGMA synchronous = FULL")
        try:
            yield
        finally:
            db.execute("PRAGMA synchronous = NORMAL")

    def version(self) -> tuple[int, int]:
        """A value that differs when anything was written since, by this connection or another: asked before queries."""
        return int(self.db.execute("PRAGMA data_version").fetchone()[0]), self.db.total_changes

    # ---- places on the disk, marks, settings

    def folder(self, run: int) -> Path:
        """The folder of a run: its prototxts, weights, snapshots and log."""
        return folders.run_folder(self.home, run)

    def data_folder(self, dataset: int) -> Path:
        """The folder of a data set's arrays."""
        return folders.data_folder(self.home, dataset)

    def mark(self, run: int, iteration: int, text: str) -> None:
        """Note what happened to a run, or what its user has to say about it."""
        with self.transaction():
            self.db.execute(
                "INSERT INTO mark (run, seq, time, iteration, text, author) VALUES (?, ?, ?, ?, ?, ?)",
                (run, curves.next_seq(self.db), time.time(), iteration, text, author()),
            )

    def setting(self, name: str, default: Any = None) -> Any:
        """A value of the settings, `default` where there is none."""
        found = self.db.execute("SELECT value FROM setting WHERE key = ?", (name,)).fetchone()
        return default if found is None else json.loads(found[0])

    def set_setting(self, name: str, value: Any) -> None:
        """Keep a plain JSON value among the settings."""
        sql = "INSERT INTO setting VALUES (?, ?) ON CONFLICT DO UPDATE SET value = excluded.value"
        self.db.execute(sql, (name, json.dumps(value)))

    # ---- curves

    def add_points(self, run: int, points: Iterable[tuple[str, int, float]]) -> None:
        """Keep points (series, iteration, value); a run that went back to a snapshot writes over what it had told."""
        with self.transaction():
            curves.add(self.db, run, [(self._series_id(name), at, value) for name, at, value in points])

    def since(self, run: int, seq: int = 0, most: int = 100_000) -> curves.Since:
        """What was written after `seq`, at most `most` points: iterations and values by series, and the new `seq`."""
        return curves.since(self.db, run, seq, most)

    def series_names(self, run: int) -> list[str]:
        """The names of a run's series."""
        sql = (
            "SELECT DISTINCT name FROM level JOIN series ON series.id = series WHERE run = ? AND level = ? "
            "ORDER BY name"
        )
        return [row[0] for row in self.db.execute(sql, (run, curves.LEVELS[-1]))]

    def series(
        self,
        run: int,
        name: str,
        low: int = 0,
        high: int | None = None,
        most: int = 1500,
        smooth: float = 0.0,
    ) -> list[list[Any]]:
        """[iterations, values] of the curve from `low` to `high` with about `most` points or fewer.

        Where there are more, the least and the greatest of each stretch are kept, so that no spike is lost. With
        `smooth` (the nearest of `series.WEIGHTS` is taken) it is the running mean with exponential weights over all
        points from the first, whatever part is asked for. Values that are no finite numbers are None.
        """
        number = self._known_series(name)
        if number is None:
            return [[], []]
        return curves.curve(self.db, run, number, low, high, most, smooth)

    def spark(self, run: int, most: int = 80, name: str = "loss") -> list[float]:
        """Some values of a series for a small picture, a little smoothed, from few rows."""
        number = self._known_series(name)
        return [] if number is None else curves.spark(self.db, run, number, most)

    def forget_run(self, run: int) -> None:
        """Remove a run's row and all that is kept about it in the store; its folder is the caller's."""
        with self.transaction():
            for table in ("point", "level", "mark", "evaluation"):
                self.db.execute(f"DELETE FROM {table} WHERE run = ?", (run,))
            self.db.execute("UPDATE run SET parent = NULL WHERE parent = ?", (run,))
            self.db.execute("DELETE FROM run WHERE id = ?", (run,))

    def _known_series(self, name: str) -> int | None:
        if name not in self._series:
            found = self.db.execute("SELECT id FROM series WHERE name = ?", (name,)).fetchone()
            if found is None or self.db.in_transaction:  # which may be rolled back: not remembered yet
                return None if found is None else int(found[0])
            self._series[name] = found[0]
        return self._series[name]

    def _series_id(self, name: str) -> int:
        found = self._known_series(name)
        if found is None:
            return int(self.db.execute("INSERT INTO series (name) VALUES (?)", (name,)).lastrowid or 0)
        return found


def _plain(value: Any) -> Any:
    return json.dumps(value) if isinstance(value, dict | list | tuple) else value

"""What a worker writes down about its run, and what it is asked there: straight in the store, or over the network.

Every start of a run has a number of its own, its lease. Each write says which, and is refused where another one began
meanwhile: of two workers with one run, the older one learns it at its next write and ends.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from jitdnn.errors import JitdnnError
from jitdnn.studio.file_locks import try_to_lock
from jitdnn.studio.store import Row, Store

_LOCK_SECONDS = 60.0  # an orphan reads the store at the end of its iteration, and ends

Point = tuple[str, int, float]


class LeaseLost(JitdnnError):
    """The run was started again elsewhere, or is gone: this worker must write nothing more and end."""


class Report(NamedTuple):
    """What is written at once: points of curves, columns of the run, and notes (iteration, text)."""

    points: Sequence[Point] = ()
    values: Row = {}  # noqa: RUF012 - never changed
    marks: Sequence[tuple[int, str]] = ()


class RunAccess(Protocol):
    """Where a worker reports; `folder` holds the files of its run."""

    folder: Path

    def run(self) -> Row:
        """The run, with `device`, the name of what it shall compute on. Raises LeaseLost."""

    def tell(self, report: Report, *, is_lasting: bool = False) -> str:
        """Write all of the report or nothing, and return the intent of the user: "", "pause" or "stop".

        With `is_lasting` it outlasts a loss of power. Raises LeaseLost.
        """

    def history(self, series: str, last: int) -> list[tuple[int, float]]:
        """The points of a series up to and with an iteration."""

    def saved(self, file: Path) -> None:
        """A file of the folder was written: weights or a snapshot."""

    def removed(self, file: Path) -> None:
        """A file of the folder was removed."""

    def again(self) -> tuple[list[str], dict[str, str]]:
        """Arguments and environment by which another process of this machine has the same access."""


class StoreRunAccess:
    """The access of a worker on the machine of the store."""

    def __init__(self, store: Store, run: int, lease: int) -> None:
        self.store, self._run, self._lease = store, run, lease
        self.folder = store.folder(run)

    def run(self) -> Row:
        found = self.store.rows(
            "SELECT run.*, place.device AS device FROM run LEFT JOIN place ON place.id = run.place "
            "WHERE run.id = ? AND lease = ?",
            *(self._run, self._lease),
        )
        if not found:
            raise LeaseLost(f"run {self._run} was started again, or is gone: lease {self._lease} is over")
        return found[0]

    def tell(self, report: Report, *, is_lasting: bool = False) -> str:
        if is_lasting:
            with self.store.lasting():
                return self.tell(report)
        store = self.store
        with store.transaction():
            values = {"beat": time.time(), **report.values}
            if not store.update_where("run", values, "id = ? AND lease = ?", self._run, self._lease):
                raise LeaseLost(f"run {self._run} was started again, or is gone: lease {self._lease} is over")
            store.add_points(self._run, report.points)
            for iteration, text in report.marks:
                store.mark(self._run, iteration, text)
            found = store.db.execute("SELECT intent FROM run WHERE id = ?", (self._run,)).fetchone()
        return str(found[0])

    def history(self, series: str, last: int) -> list[tuple[int, float]]:
        sql = (
            "SELECT iteration, value FROM point JOIN series ON series.id = series "
            "WHERE run = ? AND name = ? AND iteration <= ? AND value IS NOT NULL ORDER BY iteration"
        )
        return [(row[0], row[1]) for row in self.store.db.execute(sql, (self._run, series, last))]

    def saved(self, file: Path) -> None:
        """The folder is the store's own."""

    def removed(self, file: Path) -> None:
        """The folder is the store's own."""

    def again(self) -> tuple[list[str], dict[str, str]]:
        return [str(self.store.home.resolve()), str(self._run), str(self._lease)], {}


@contextmanager
def locked(file: Path, seconds: float = _LOCK_SECONDS) -> Iterator[None]:
    """Hold the lock of a file, which ends with the process however that ends. Raises LeaseLost if another keeps it."""
    with open(file, "ab") as opened:
        deadline = time.monotonic() + seconds
        while not try_to_lock(opened.fileno()):
            if time.monotonic() > deadline:
                raise LeaseLost(f"{file} is held by another process, for {seconds:g} seconds now")
            time.sleep(0.05)
        yield


def identity() -> dict[str, Any]:
    """What a run's row says about the process that works on it."""
    return {"pid": os.getpid(), "host": socket.gethostname()}

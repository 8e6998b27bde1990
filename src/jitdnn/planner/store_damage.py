"""Damage of the tuning store's file: what tells it, and the lock under which one process repairs it."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import sqlite3

BUSY_SECONDS = 10.0  # for another process's transaction
_REPAIR_SECONDS = 15.0  # longer than looking for damage can take


@contextmanager
def alone(lock: Path) -> Iterator[None]:
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


def error_name(error: sqlite3.Error) -> str:
    """SQLite's name of an error, "" for one that Python's module has found itself: text that is no UTF-8."""
    return getattr(error, "sqlite_errorname", "")


def is_damage(error: sqlite3.Error) -> bool:
    """Whether an error of SQLite means that the file is no database, or one with holes."""
    return error_name(error).startswith(("SQLITE_CORRUPT", "SQLITE_NOTADB", "SQLITE_IOERR_SHORT_READ"))


def is_damaged(path: Path) -> bool:
    """Whether SQLite finds a database damaged, reading all of it."""
    import sqlite3

    try:
        with closing(sqlite3.connect(path, timeout=BUSY_SECONDS)) as connection:
            return bool(connection.execute("PRAGMA quick_check(1)").fetchall() != [("ok",)])
    except sqlite3.Error as error:
        return is_damage(error)

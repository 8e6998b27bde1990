"""The making of a data set as a row of the store and a process of its own, which may be looked at, cancelled and
killed.

States of the row: making -> ready | failed | cancelled | interrupted. While it is made there is a folder
`home/data/.ID.unfinished`, in which `progress` tells how far it is, `cancel` asks it to end, and `lock` is locked
by the process that makes it: when that is gone, so is the lock, and what it left is removed.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

from jitdnn.errors import InvalidArgument, JitdnnError
from jitdnn.studio import texts
from jitdnn.studio.data.built_in import DIGITS
from jitdnn.studio.data.decode import Cancelled
from jitdnn.studio.data.make import Made, make
from jitdnn.studio.data.options import Options, options_of
from jitdnn.studio.data.sources import list_source
from jitdnn.studio.file_locks import is_locked
from jitdnn.studio.store import Row, Store, data_folder

MAKING: Final = "making"


def unfinished_folder(home: Path, number: int) -> Path:
    """Where a data set is while it is made."""
    return home / "data" / f".{number}.unfinished"


def begin(store: Store, name: str, path: str, options: Options, told: str = "") -> int:
    """Insert the row and start its process; return its number. `told` is how the source is shown."""
    number, lock = claimed(store, lambda: _insert(store, name, path, options, told))
    try:
        command = [sys.executable, "-m", "jitdnn.studio.data", str(store.home), str(number), str(lock)]
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
            pass_fds=[lock], start_new_session=True,
        )  # fmt: skip
    finally:
        os.close(lock)  # the process has its own
    threading.Thread(target=process.wait, daemon=True, name="jitdnn data set").start()  # or it stays a zombie
    return number


def create(store: Store, name: str, path: str, options: Options, told: str = "") -> int:
    """Make a data set here and now; return its number. Raises InvalidArgument where it cannot be made; no row
    is left.
    """
    number, lock = claimed(store, lambda: _insert(store, name, path, options, told))
    try:
        run(store, number, is_raising=True)
    except BaseException:
        with store.transaction():
            store.rows("DELETE FROM dataset WHERE id = ?", number)
        raise
    finally:
        os.close(lock)
    return number


def run(store: Store, number: int, is_raising: bool = False) -> None:
    """Make the data set of a row whose lock this process holds; the row tells how it ended."""
    folder = unfinished_folder(store.home, number)
    try:
        row = store.one("dataset", number)
        if row is None:
            return
        settings = row["settings"]
        options = options_of(settings)
        _tell(folder, 0, 0, texts.mark("looking at the source"))
        listing = list_source(settings["path"], options)
        inner = folder / "made"
        inner.mkdir()
        made = make(inner, listing, options, lambda *told: _tell(folder, *told), (folder / "cancel").exists)
        target = data_folder(store.home, number)
        os.rename(inner, target)
        store.update("dataset", number, **values_of(made, listing.kind, row))
    except Cancelled:
        store.update("dataset", number, state="cancelled", message="")
    except Exception as error:
        known = isinstance(error, JitdnnError | OSError)
        text = str(error) if known else f"{type(error).__name__}: {error}"
        store.update("dataset", number, state="failed", message=text[:1000])
        if is_raising:
            raise
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def cancel(store: Store, number: int) -> None:
    """Ask the process that makes a data set to end; nothing happens where none does."""
    folder = unfinished_folder(store.home, number)
    if folder.is_dir():
        (folder / "cancel").touch()


def progress(home: Path, number: int) -> dict[str, Any]:
    """How far a data set is: `done` of `total`, and `text`."""
    try:
        found: dict[str, Any] = json.loads((unfinished_folder(home, number) / "progress").read_text())
    except (OSError, ValueError):
        return {"done": 0, "total": 0, "text": texts.mark("starting")}
    return found


def tidy(store: Store) -> None:
    """Rows whose process has ended without a word become interrupted; what it left is removed."""
    for row in store.rows("SELECT id FROM dataset WHERE state = ?", MAKING):
        folder = unfinished_folder(store.home, row["id"])
        if is_locked(folder / "lock"):
            continue
        now = store.one("dataset", row["id"])  # it may have ended well since the list was read
        if now is not None and now["state"] == MAKING:
            text = "what made it was ended in the middle; nothing of it is left"
            store.update("dataset", row["id"], state="interrupted", message=text)
            shutil.rmtree(data_folder(store.home, row["id"]), ignore_errors=True)
        shutil.rmtree(folder, ignore_errors=True)


def delete(store: Store, number: int) -> None:
    """Remove a data set and its files. Raises InvalidArgument while runs have it, naming them, or while it is made."""
    row = store.one("dataset", number)
    if row is None:
        raise InvalidArgument(f"there is no data set {number}")
    found = dependents(store, number)
    if found:
        shown = ", ".join(f"{run['id']} ({run['name']})" for run in found[:5])
        raise InvalidArgument(f"{len(found)} runs were trained on it: delete them first: {shown}")
    tidy(store)
    if unfinished_folder(store.home, number).is_dir():
        raise InvalidArgument("it is being made: cancel that first")
    folder = data_folder(store.home, number)
    gone = folder.with_name(f".{number}.deleted")
    if folder.is_dir():
        os.rename(folder, gone)
    try:
        store.rows("DELETE FROM dataset WHERE id = ?", number)
    except BaseException as error:  # a training of it may have been queued a moment ago
        if gone.is_dir():
            os.rename(gone, folder)
        if isinstance(error, sqlite3.IntegrityError):
            raise InvalidArgument(
                f"data set {number} has runs since a moment ago: delete them first"
            ) from None
        raise
    shutil.rmtree(gone, ignore_errors=True)


def dependents(store: Store, number: int) -> list[Row]:
    """The runs that were trained on a data set, newest first."""
    return store.rows("SELECT id, name, state FROM run WHERE dataset = ? ORDER BY id DESC", number)


def _insert(store: Store, name: str, path: str, options: Options, told: str) -> int:
    if not name.strip():
        raise InvalidArgument("the data set needs a name")
    settings = {"path": path, **options.plain()}
    values: dict[str, Any] = {
        "name": name.strip()[:120], "path": path, "source": told or path, "settings": settings,
        "split_seed": options.seed, "state": MAKING, "task": options.task or "classification",
    }  # fmt: skip
    return store.insert("dataset", **values)


def insert_version(store: Store, row: Row, name: str) -> int:
    """The row of a data set that is made from another one by changes of its labels."""
    settings = row["settings"] | {"version_of": row["id"]}
    return store.insert(
        "dataset", name=(name.strip() or f"{row['name']}, mended")[:120], path=row["path"], source=row["source"],
        settings=settings, split_seed=row["split_seed"], state=MAKING, task=row["task"],
    )  # fmt: skip


def values_of(made: Made, kind: str, row: Mapping[str, Any]) -> dict[str, Any]:
    """What a row tells of a data set that is made."""
    return {
        "task": made.about["task"], "shape": made.about["shape"], "classes": made.about["classes"],
        "counts": made.histogram, **made.counts, "notes": made.notes, "state": "ready", "message": "",
        "digest": made.digest, "bytes": made.size, "source": row["source"] if row["source"] != row["path"] else kind,
    }  # fmt: skip


def claimed(store: Store, insert: Callable[[], int]) -> tuple[int, int]:
    """Insert a row that is being made; return its number, and the descriptor that holds its lock.

    Nobody sees the row before the lock is held: without it, it would be taken for one whose process has ended.
    """
    number, lock = 0, -1
    try:
        with store.transaction():
            number = insert()
            lock = lock_folder(store.home, number)
    except BaseException:
        if lock >= 0:
            os.close(lock)
        if number:
            shutil.rmtree(unfinished_folder(store.home, number), ignore_errors=True)
        raise
    return number, lock


def lock_folder(home: Path, number: int) -> int:
    """Make the unfinished folder, and lock it; return the descriptor that holds the lock."""
    folder = unfinished_folder(home, number)
    folder.mkdir(parents=True)
    descriptor = os.open(folder / "lock", os.O_RDWR | os.O_CREAT, 0o600)
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    return descriptor


def _tell(folder: Path, done: int, total: int, text: str) -> None:
    new = folder / "progress.new"
    new.write_text(json.dumps({"done": done, "total": total, "text": text}))
    os.replace(new, folder / "progress")


def digits(store: Store) -> int:
    """The data set of handwritten digits, made if it is not there; its number."""
    sql = "SELECT id FROM dataset WHERE path = ? AND state = 'ready' ORDER BY id"
    for row in store.rows(sql, DIGITS):
        full = store.one("dataset", row["id"])
        if full is not None and "version_of" not in full["settings"]:
            return int(row["id"])
    return create(store, "Handwritten digits", DIGITS, Options(grey=True))

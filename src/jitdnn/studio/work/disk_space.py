"""Disk: what takes it up, what is free, what can be removed, and what depends on that."""

from __future__ import annotations

import secrets
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

from jitdnn.errors import InvalidArgument
from jitdnn.studio import texts
from jitdnn.studio.store import Row, Store
from jitdnn.studio.work.control import OVER

#: bytes of the setting `least_free` where there is none
LEAST_FREE = 1 << 30
_SNAPSHOTS = 4  # the last two, one that is being written, and the best weights
_GONE = ".removed-"


#: why a trial depends on its sweep
TRIAL: Final = texts.mark("is one of its trials")


class Dependent(NamedTuple):
    """A run that would not be whole without another one."""

    id: int
    name: str
    why: str


class Spare(NamedTuple):
    """Something that takes up room and that nobody needs: `key` names it to `tidy`."""

    key: str
    what: str
    bytes: int


def missing_room(store: Store, run: Row) -> str:
    """Why a run should not start now for want of disk, "" if there is room for its snapshots and a reserve."""
    sizes = [file.stat().st_size for file in _files(store.folder(run["id"])) if file.suffix == ".jdsnap"]
    needed = int(store.setting("least_free", LEAST_FREE)) + _SNAPSHOTS * max(sizes, default=0)
    free = shutil.disk_usage(store.home).free
    if free >= needed:
        return ""
    return f"waits for room on the disk: {free >> 20:,} MiB are free, and {needed >> 20:,} MiB should be"


def usage(store: Store) -> dict[str, Any]:
    """Bytes: `runs` and `datasets` by id, `store`, `total`, `free`, `quota` (None: none); `warning`, "" if none."""
    runs = {row["id"]: _size(store.folder(row["id"])) for row in store.rows("SELECT id FROM run")}
    datasets = {
        row["id"]: _size(store.data_folder(row["id"])) for row in store.rows("SELECT id FROM dataset")
    }
    own = sum(file.stat().st_size for file in store.home.glob("studio.sqlite*"))
    total, free = sum(runs.values()) + sum(datasets.values()) + own, shutil.disk_usage(store.home).free
    quota = store.setting("quota")
    warning = ""
    if quota and total > quota:
        warning = texts.text(
            "the studio takes up %(taken)s MiB, and its quota is %(quota)s MiB",
            taken=f"{total >> 20:,}",
            quota=f"{quota >> 20:,}",
        )
    elif free < int(store.setting("least_free", LEAST_FREE)):
        warning = texts.text(
            "only %(free)s MiB are free on this disk: no training starts", free=f"{free >> 20:,}"
        )
    return {
        "runs": runs,
        "datasets": datasets,
        "store": own,
        "total": total,
        "free": free,
        "quota": quota,
        "warning": warning,
    }


def dependents(store: Store, run: int) -> list[Dependent]:
    """What depends on a run: runs that began from its weights, and the trials of a sweep."""
    found = []
    sql = "SELECT id, name, parent, options FROM run WHERE id != ? ORDER BY id"
    kind = (store.one("run", run) or {}).get("kind")
    for row in store.rows(sql, run):
        if row["options"].get("weights") == f"run:{run}":
            found.append(Dependent(row["id"], row["name"], texts.mark("began from its weights")))
        elif row["parent"] == run and kind == "sweep":
            found.append(Dependent(row["id"], row["name"], TRIAL))
    return found


def remove_run(store: Store, run: int, *, with_trials: bool = False) -> None:
    """Remove a run, its points and its files; of a sweep also its trials, where `with_trials` says so.

    Runs that began from its weights keep theirs. Raises InvalidArgument for one that trains or is queued.
    """
    row = store.one("run", run)
    if row is None:
        raise InvalidArgument(f"there is no run {run}")
    trials = [each.id for each in dependents(store, run) if each.why == TRIAL]
    if trials and not with_trials:
        raise InvalidArgument(f"run {run} is a sweep of {len(trials)} trials: they must be removed with it")
    _remove_runs(store, [*trials, run])


def _remove_runs(store: Store, runs: Sequence[int]) -> None:
    for run in runs:
        row = store.one("run", run)
        if row is not None and row["state"] not in OVER:
            raise InvalidArgument(f"run {run} is {row['state']}: stop it first")
    for run in runs:
        _remove(store.folder(run), lambda run=run: store.forget_run(run))


def _remove(folder: Path, forget: Any) -> None:
    """The folder leaves its name first: whatever happens, nothing that is new finds files of what is gone."""
    gone = folder.with_name(f"{_GONE}{folder.name}-{secrets.token_hex(4)}")
    if folder.exists():
        folder.rename(gone)
    try:
        forget()
    except BaseException:
        if gone.exists():
            gone.rename(folder)
        raise
    shutil.rmtree(gone, ignore_errors=True)


def spares(store: Store) -> list[Spare]:
    """What could go: snapshots of runs that are done, what is left of removed things, folders that no row names, old
    copies of the store."""
    found = []
    for row in store.rows("SELECT id, name FROM run WHERE state = 'done' ORDER BY id"):
        if size := sum(file.stat().st_size for file in _snapshots(store.folder(row["id"]))):
            found.append(
                Spare(
                    f"snapshots/{row['id']}",
                    texts.text("snapshots of %(name)s, which is done", name=row["name"]),
                    size,
                )
            )
    for folder in ("runs", "data"):
        table = "run" if folder == "runs" else "dataset"
        known = {str(row["id"]) for row in store.rows(f"SELECT id FROM {table}")}
        for path in sorted((store.home / folder).glob("*")) if (store.home / folder).is_dir() else []:
            if (
                path.is_dir()
                and (path.name.startswith(_GONE) or path.name.isdecimal())
                and path.name not in known
            ):
                found.append(
                    Spare(f"{folder}/{path.name}", texts.text("left over from what was removed"), _size(path))
                )
    for path in sorted(store.home.glob("studio.sqlite.schema-*.copy")):
        found.append(
            Spare(path.name, texts.text("a copy of the store from before an upgrade"), path.stat().st_size)
        )
    return found


def tidy(store: Store, keys: Sequence[str]) -> int:
    """Remove spare things by their keys; return the bytes. InvalidArgument for what is not spare (any more)."""
    known = {spare.key: spare for spare in spares(store)}
    if unknown := [key for key in keys if key not in known]:
        raise InvalidArgument(f"{unknown[0]!r} is nothing that can go: look again")
    for key in keys:
        kind, _, name = key.partition("/")
        if kind == "snapshots":
            for file in _snapshots(store.folder(int(name))):
                file.unlink(missing_ok=True)
        elif name:
            shutil.rmtree(store.home / kind / name, ignore_errors=True)
        else:
            (store.home / key).unlink(missing_ok=True)
    return sum(known[key].bytes for key in keys)


def _snapshots(folder: Path) -> list[Path]:
    return [file for file in _files(folder) if file.suffix == ".jdsnap"]


def _size(folder: Path) -> int:
    return sum(file.stat().st_size for file in _files(folder))


def _files(folder: Path) -> list[Path]:
    """Files of a folder and those inside of it, none behind links."""
    if not folder.is_dir():
        return []
    return [file for file in folder.rglob("*") if file.is_file() and not file.is_symlink()]

"""Finds what other programs wrote below a folder, and makes runs of it."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, Final

from jitdnn.errors import InvalidArgument
from jitdnn.studio.store.folders import ORIGINAL
from jitdnn.studio.store.foreign.found import MOST_SERIES, Found
from jitdnn.studio.store.foreign.logs import MOST_BYTES, read_log, read_table
from jitdnn.studio.store.foreign.tensorboard import NAMES, read_tensorboard
from jitdnn.studio.store.foreign.wandb import read_wandb
from jitdnn.studio.store.store import Store

Read = Callable[[], Found]
#: runs that are brought at once, and folders that are looked into
MOST_RUNS: Final = 1000
_MOST_FOLDERS: Final = 20_000
_PIECE: Final = 20_000  # points a transaction
#: of a job of DIGITS or Caffe, what is kept beside its curves; its state is a pickle, which is not read
_KEPT: Final = ("train_val.prototxt", "solver.prototxt", "deploy.prototxt", "original.prototxt", "labels.txt")
_MOST_KEPT: Final = 4 << 20
_LOGS: Final = ("caffe_output.log", "torch_output.log", "tensorflow_output.log")


def look(path: Path) -> list[dict[str, Any]]:
    """What can be brought from a folder or a file: name, kind, points and series of each run; InvalidArgument if
    nothing can."""
    return [
        {
            "name": f.name,
            "kind": f.kind,
            "points": len(f.points),
            "series": sorted({s for s, _, _ in f.points})[:50],
        }
        for f in _read(path)
    ]


def bring(store: Store, path: Path) -> list[int]:
    """Make a run, over and without a data set, of each that is found; return their numbers. All or none come.

    Raises InvalidArgument where there are none, or one is damaged.
    """
    made: list[int] = []
    try:
        for found in _read(path):
            made.append(_kept(store, found, path))
    except BaseException:
        for number in made:
            store.forget_run(number)
            shutil.rmtree(store.folder(number), ignore_errors=True)
        raise
    return made


def _read(path: Path) -> Iterator[Found]:
    count = 0
    for count, (where, read) in enumerate(_sources(path), 1):
        if count > MOST_RUNS:
            raise InvalidArgument(f"{path} has more than {MOST_RUNS:,} runs: bring a part of it at a time")
        try:
            found = read()
        except OSError as error:
            raise InvalidArgument(f"{where} cannot be read: {error}") from None
        if len({series for series, _, _ in found.points}) > MOST_SERIES:
            raise InvalidArgument(f"{where} has more than {MOST_SERIES:,} series")
        yield found
    if not count:
        raise InvalidArgument(
            f"{path} has no runs: event files of TensorBoard, .wandb files, jobs of DIGITS, logs of Caffe, or tables "
            "(.csv, .jsonl) are read"
        )


def _sources(path: Path) -> Iterator[tuple[Path, Read]]:
    if path.is_file():
        read = _of_file(path)
        if read is not None:
            yield path, read
        return
    for seen, (folder, inner, files) in enumerate(os.walk(path), 1):
        if seen > _MOST_FOLDERS:
            raise InvalidArgument(f"{path} has more than {_MOST_FOLDERS:,} folders: choose one below it")
        inner[:] = sorted(name for name in inner if not (Path(folder) / name).is_symlink())
        here = Path(folder)
        name = here.name if here == path else str(here.relative_to(path))
        if any(NAMES in file for file in files):
            yield here, partial(read_tensorboard, here, name[:120])
        for file in sorted(files):
            if file.endswith(".wandb"):
                yield here / file, partial(read_wandb, here / file, name[:120])
            elif file in _LOGS:
                yield here / file, partial(_job, here, file, name[:120])
            elif file.endswith((".log", ".jsonl")) and here == path and not (here / file).is_symlink():
                read = _of_file(here / file)
                if read is not None and (one := _told(read)) is not None:
                    yield here / file, lambda one=one: one  # type: ignore[misc]


def _told(read: Read) -> Found | None:
    """What a file holds that lies beside others; None for one of another kind, which nobody named."""
    try:
        return read()
    except InvalidArgument:
        return None


def _of_file(path: Path) -> Read | None:
    """How a file is read that was named itself; None for one of another kind."""
    if path.is_symlink() or path.stat().st_size > MOST_BYTES:
        raise InvalidArgument(f"{path.name} is a link, or has more than {MOST_BYTES:,} bytes")
    suffix = path.suffix.lower()
    if suffix == ".wandb":
        return partial(read_wandb, path, path.stem)
    if NAMES in path.name:
        return partial(read_tensorboard, path.parent, path.parent.name)
    if suffix in (".log", ".txt") or path.name in _LOGS:
        return partial(read_log, path, path.stem)
    if suffix in (".csv", ".jsonl", ".ndjson"):
        return partial(read_table, path, path.stem)
    return None


def _job(folder: Path, log: str, name: str) -> Found:
    """A job of DIGITS: its log, and the texts of its net."""
    found = read_log(folder / log, name, "DIGITS")
    for file in _KEPT:
        path = folder / file
        if path.is_file() and not path.is_symlink() and path.stat().st_size <= _MOST_KEPT:
            found.files.append((file, path.read_bytes()))
    return found


def _kept(store: Store, found: Found, source: Path) -> int:
    best = max((v for s, _, v in found.points if s == "val accuracy"), default=None)
    best_at = next((at for s, at, v in found.points if s == "val accuracy" and v == best), None)
    losses = [(at, v) for s, at, v in found.points if s == "loss"]
    with store.transaction():
        number = store.insert(
            "run", name=found.name or found.kind, net_name=found.kind, state="done", dataset=None,
            options={"source": f"{found.kind}: {source}"[:500], **found.options}, iteration=found.last,
            max_iter=found.last, loss=max(losses)[1] if losses else None, best=best, best_at=best_at,
            best_of="val accuracy" if best is not None else "",
        )  # fmt: skip
    try:
        folder = store.folder(number)
        folder.mkdir(parents=True)
        for name, content in found.files:
            (folder / (ORIGINAL if name == "train_val.prototxt" else name)).write_bytes(content)
        for start in range(0, len(found.points), _PIECE):
            with store.transaction():
                store.add_points(number, found.points[start : start + _PIECE])
        for note in [f"brought from {found.kind}", *found.notes]:
            store.mark(number, found.last, note[:500])
    except BaseException:
        store.forget_run(number)
        shutil.rmtree(store.folder(number), ignore_errors=True)
        raise
    return number

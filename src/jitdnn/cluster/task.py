"""What a Dask worker does for one start of `jitdnn train --on`: a process in a folder of its own, watched and asked.

The task waits until the client has handed over its files and says `go`. So a task that Dask itself starts again after
a worker has gone, which the client knows nothing of, never runs. Whatever the client wants to know or to have it asks
for by the other functions here; the folder lasts until it says `forget`, or the worker ends.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import signal
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from jitdnn.cluster.engine import is_wanted
from jitdnn.cluster.places import Start
from jitdnn.errors import InvalidArgument
from jitdnn.parents import ENDS_WITH_PARENT
from jitdnn.settings import available_cores

_PERIOD = 0.1
_GRACE = 30.0  # seconds that a process has to take a snapshot when nobody waits for it any more
_LINES = 1000  # in one answer
_NAME = re.compile(r"[^/\\\0]{1,255}")


class File(NamedTuple):
    """A file that the process has written."""

    size: int
    sha256: str


class News(NamedTuple):
    """What became of a start: "waiting" for its files, "running" or "ended", with an exit code; the lines that came
    since those already told, and all files that there are."""

    state: str
    code: int | None
    lines: list[str]
    files: dict[str, File]


@dataclass
class _Running:
    folder: Path
    state: str = "waiting"
    code: int | None = None
    lines: list[str] = field(default_factory=list)
    files: dict[str, File] = field(default_factory=dict)
    seen: dict[str, tuple[int, int]] = field(default_factory=dict)
    given: set[str] = field(default_factory=set)
    go: threading.Event = field(default_factory=threading.Event)
    process: subprocess.Popen[str] | None = None


_running: dict[Start, _Running] = {}


def work(start: Start, arguments: Sequence[str], where: str) -> int:
    """The task: run `python -m jitdnn ARGUMENTS`, with {folder} in them replaced, in the folder `where` if there is
    such a one here, and return the exit code; -1 if nobody wants it any more.
    """
    import distributed

    worker = distributed.get_worker()
    key = distributed.worker.thread_state.key
    folder = Path(worker.local_directory) / f"jitdnn-{start.run}-{start.lease}"
    folder.mkdir(mode=0o700)  # where there is one, this very start was here before
    running = _running[start] = _Running(folder.resolve())
    while not running.go.wait(_PERIOD):
        if not is_wanted(key):
            forget(start)
            return -1
    command = [each.replace("{folder}", str(running.folder)) for each in arguments]
    running.process = process = subprocess.Popen(
        [sys.executable, "-u", "-m", "jitdnn", *command],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        env=_environment(worker.state.total_resources.get("cpu", 1)),
        cwd=where if Path(where).is_dir() else running.folder,
        start_new_session=True,
    )
    running.state = "running"
    reader = threading.Thread(target=_read, args=(running, process), daemon=True)
    reader.start()
    ends = None
    while process.poll() is None:
        _look_for_files(running)
        if ends is None and not is_wanted(key):
            ends = time.monotonic() + _GRACE
            process.send_signal(signal.SIGINT)
        if ends is not None and time.monotonic() > ends:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
        time.sleep(_PERIOD)
    reader.join(_GRACE)
    _look_for_files(running)
    running.code, running.state = process.returncode, "ended"
    if ends is not None:
        forget(start)
    return process.returncode


def _environment(slots: float) -> dict[str, str]:
    """That of the process: trainings that a worker has at a time on its processor share the cores."""
    found = {**os.environ, ENDS_WITH_PARENT: "1"}
    if slots > 1:
        found.setdefault("JITDNN_THREADS", str(max(1, int(available_cores() // slots))))
    return found


def _read(running: _Running, process: subprocess.Popen[str]) -> None:
    assert process.stdout is not None
    with process.stdout:
        for line in process.stdout:
            running.lines.append(line.rstrip("\n"))


def _look_for_files(running: _Running) -> None:
    """What appears under its own name is whole: files are renamed into place (jitdnn/files.py)."""
    for path in sorted(running.folder.iterdir()):
        if path.name in running.given or path.name.startswith("."):
            continue
        with suppress(OSError):  # removed meanwhile
            status = path.lstat()
            seen = (status.st_mtime_ns, status.st_size)
            if stat.S_ISREG(status.st_mode) and running.seen.get(path.name) != seen:
                running.seen[path.name] = seen
                with open(path, "rb") as opened:
                    digest = hashlib.file_digest(opened, "sha256").hexdigest()
                    running.files[path.name] = File(opened.tell(), digest)


# ---- what the client asks


def is_here(start: Start) -> bool:
    """Whether the task of this start runs at this worker, or has run."""
    return start in _running


def folder_of(start: Start) -> str:
    """Where its files are."""
    return str(_running[start].folder)


def give(start: Start, name: str, offset: int, content: bytes) -> None:
    """Write a piece of a file, before `go`."""
    running = _running[start]
    if not _NAME.fullmatch(name) or name in (".", ".."):
        raise InvalidArgument(f"{name!r} is no name of a file")
    running.given.add(name)
    with open(running.folder / name, "r+b" if offset else "wb") as file:
        file.seek(offset)
        file.write(content)


def go(start: Start) -> None:
    """All files are there: begin."""
    _running[start].go.set()


def news(start: Start, told: int) -> News | None:
    """What became of it; `told`: how many lines are known. None if it is not here."""
    running = _running.get(start)
    if running is None:
        return None
    state, code = running.state, running.code  # before the lines: behind "ended" none come
    lines = running.lines[told : told + _LINES]
    if state == "ended" and len(running.lines) > told + len(lines):
        state, code = "running", None
    return News(state, code, lines, dict(running.files))


def read(start: Start, name: str, offset: int, size: int) -> bytes:
    """A piece of a file that it wrote."""
    running = _running[start]
    if name not in running.files:
        raise InvalidArgument(f"run {start.run} has written no file {name!r}")
    with open(running.folder / name, "rb") as file:
        file.seek(offset)
        return file.read(size)


def tell(start: Start, number: int) -> bool:
    """Send a signal to the process; False while there is none."""
    process = _running[start].process
    if process is not None:
        process.send_signal(number)
    return process is not None


def forget(start: Start) -> None:
    """Remove its files."""
    running = _running.pop(start, None)
    if running is not None:
        shutil.rmtree(running.folder, ignore_errors=True)

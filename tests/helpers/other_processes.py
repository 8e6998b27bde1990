"""Processes of this machine, as /proc tells of them. One that ends meanwhile has nothing to tell, and is no error."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path


def _told(process: int, file: str) -> bytes:
    """That file of it; empty once it has ended, when opening the file fails, or reading one that was opened before."""
    try:
        return Path(f"/proc/{process}/{file}").read_bytes()
    except OSError:
        return b""


def _fields(process: int) -> list[bytes]:
    """proc(5)'s stat from the state on: behind the command's name, which may have spaces."""
    return _told(process, "stat").rpartition(b")")[2].split()


def is_running(process: int) -> bool:
    """Whether it has not ended; one that nobody has waited for yet has."""
    fields = _fields(process)
    return bool(fields) and fields[0] != b"Z"


def children(process: int) -> list[int]:
    """Those that it started and that run."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        fields = _fields(int(entry.name))
        if fields and fields[0] != b"Z" and int(fields[1]) == process:
            found.append(int(entry.name))
    return sorted(found)


def command(process: int) -> bytes:
    """What it was started by, its words behind each other with a zero byte after each; empty once it has ended."""
    return _told(process, "cmdline")


def wait_until(what: Callable[[], object], seconds: float = 300) -> None:
    """Until `what()` is true."""
    ends = time.monotonic() + seconds
    while not what():
        assert time.monotonic() < ends, f"{what} within {seconds} s"
        time.sleep(0.05)

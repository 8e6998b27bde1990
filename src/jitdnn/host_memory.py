"""The memory of the machine that this process may use."""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path

_UNKNOWN = 1 << 62
# of control groups, versions 2 and 1, as a container sees its own
_LIMITS = (Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"))


@cache
def host_memory() -> int:
    """Bytes of memory that this process can ever have: what the machine has, with its swap, or what its container may
    use of that; a very large number where the system does not say."""
    found = _physical()
    for path in _LIMITS:
        try:
            found = min(found, int(path.read_text()))
        except (OSError, ValueError):  # no such file, or "max"
            continue
    return found


def return_free_memory() -> None:
    """Have the C library's allocator give free pages back to the system, where it can (glibc)."""
    trim = _trim()
    if trim is not None:
        trim(0)


@cache
def _trim() -> Callable[[int], int] | None:
    if not sys.platform.startswith("linux"):
        return None
    try:
        function = ctypes.CDLL(None).malloc_trim
    except (OSError, AttributeError):
        return None
    function.argtypes, function.restype = (ctypes.c_size_t,), ctypes.c_int
    return function


def _physical() -> int:
    try:
        pages, size = os.sysconf("SC_PHYS_PAGES"), os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, OSError, ValueError):  # not on Windows
        return _UNKNOWN
    return pages * size + _swap() if pages > 0 and size > 0 else _UNKNOWN


def _swap() -> int:
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
    except OSError:
        return 0
    return sum(int(line.split()[1]) * 1024 for line in lines if line.startswith("SwapTotal:"))

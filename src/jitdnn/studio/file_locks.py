"""Locks that are held on files: they end with the process that holds them, however that ends."""

from __future__ import annotations

import fcntl
from pathlib import Path


def try_to_lock(descriptor: int) -> bool:
    """Take the lock of an open file, and return whether no other process has it."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def is_locked(file: Path) -> bool:
    """Whether some process holds the lock of the file now; nobody does where there is no file."""
    try:
        with open(file, "rb") as opened:
            return not try_to_lock(opened.fileno())
    except FileNotFoundError:
        return False

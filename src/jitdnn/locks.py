"""Locks that survive a fork and a signal handler.

A forked child has only the thread that forked. A lock that another thread held at that moment is held for ever
there, by nobody; and a handler that runs in the middle of a `with lock:` of its own thread waits for itself. So
every lock around more than a few instructions is made here: it may be taken again by the thread that holds it,
and in a forked child it is free. What it guards must be whole at every step (dictionaries are).
"""

from __future__ import annotations

import os
import threading
import weakref
from typing import Any

_known: weakref.WeakSet[Any] = weakref.WeakSet()


def lock() -> threading.RLock:
    """A re-entrant lock, to be taken by `with`: no exception can come between taking it and the block."""
    made = threading.RLock()
    _known.add(made)
    return made


def _free_all() -> None:
    for one in tuple(_known):
        one._at_fork_reinit()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_free_all)

"""Who of the test processes may use a GPU's memory: many that need little, or one that needs most of it.

Locks of files, which the system takes back from a process that ends.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

_HOLDER = "JITDNN_TEST_GPU_HOLDER"  # the process whose block those that it starts are in
_KEPT = 1 << 30  # bytes that a process may keep for its next test

#: this process's share of the memory, if it has one
_shares: list[ExitStack] = []


@contextmanager
def beside_others_on_the_gpu() -> Iterator[None]:
    """A block that any number of processes are in, but none while one is alone.

    A program that a test starts is in its test's block: if it waited for one of its own, the test would wait for it.
    """
    if os.environ.get(_HOLDER, own := str(os.getpid())) != own:
        yield
        return
    os.environ[_HOLDER] = own
    _enter()
    try:
        yield
    finally:
        _shares.pop().close()
        free_unused(_KEPT)


@contextmanager
def alone_on_the_gpu() -> Iterator[None]:
    """A block that no other process is in, nor beside it. Inside the other block it leaves that one meanwhile."""
    is_inside = bool(_shares)
    if is_inside:
        _shares.pop().close()
    free_unused(0)
    try:
        with _locked("door", is_alone=True), _locked("memory", is_alone=True):
            yield
    finally:
        free_unused(0)
        if is_inside:
            _enter()


def free_unused(most: int) -> None:
    """Give the driver back what libraries keep of a GPU's memory, if it is more than so many bytes."""
    import sys

    torch, cupy = sys.modules.get("torch"), sys.modules.get("cupy")
    if torch is not None and torch.cuda.is_initialized() and torch.cuda.memory_reserved() > most:
        torch.cuda.empty_cache()
    if cupy is not None:
        with suppress(cupy.cuda.runtime.CUDARuntimeError):
            pool = cupy.get_default_memory_pool()
            if pool.total_bytes() > most:
                pool.free_all_blocks()
    if most == 0:
        from jitdnn.handle import current_handle

        current_handle().trim()


def _enter() -> None:
    """Who wants to be alone holds the door: nobody comes in behind him while he waits for those inside."""
    with ExitStack() as stack:
        with _locked("door", is_alone=False):
            stack.enter_context(_locked("memory", is_alone=False))
        _shares.append(stack.pop_all())


@contextmanager
def _locked(name: str, is_alone: bool) -> Iterator[Any]:
    import fcntl  # which Windows lacks

    with (Path(tempfile.gettempdir()) / f"jitdnn-gpu-{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX if is_alone else fcntl.LOCK_SH)
        yield lock

"""A lock for tests that need most of a GPU's memory, and for those that start programs beside them."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def alone_on_the_gpu() -> Iterator[None]:
    """A block that one process at a time is in, whatever the number of test processes."""
    import fcntl  # which Windows lacks

    with (Path(tempfile.gettempdir()) / "jitdnn-large-tests.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield

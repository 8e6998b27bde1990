"""The process that started this one: it is known by name, and its end is noticed."""

from __future__ import annotations

import os
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Final

#: exit code of a process that ends because the one that started it has gone
ORPHANED: Final = 75
#: a variable of the environment: who started this process wants it to end with itself
ENDS_WITH_PARENT: Final = "JITDNN_ENDS_WITH_PARENT"
_PERIOD = 0.25  # seconds


def end_with_parent() -> None:
    """Have this process end at once, with ORPHANED, when the one that started it has, however that ended."""
    parent = os.getppid()

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(_PERIOD)
        os._exit(ORPHANED)

    threading.Thread(target=watch, name="end with parent", daemon=True).start()


def end_with_parent_if_told() -> None:
    """Do so where ENDS_WITH_PARENT is set; processes that this one starts are not told."""
    if os.environ.pop(ENDS_WITH_PARENT, ""):
        end_with_parent()


def process_name(process: int) -> str | None:
    """A name that no other process has, of this host or another, now or later; None where the system does not tell
    when a process began.
    """
    with suppress(OSError, ValueError, IndexError):
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        # behind the command's name, which may have spaces, field 22 of proc(5): clock ticks from boot to its start
        began = Path(f"/proc/{process}/stat").read_text().rsplit(")", 1)[1].split()[19]
        return f"{boot}/{process}/{began}"
    return None

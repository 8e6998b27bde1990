"""Who records the launches of which thread (`devices/launch_list.py`), for the parts that a recording concerns."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from threading import get_ident
from typing import Any, Protocol

from jitdnn.errors import JitdnnError


class NotRecordable(JitdnnError):
    """Work of a call that is no launch of a kernel on memory known to the recording, so that replaying the launches
    would leave it out."""


class Recorder(Protocol):
    """What notes launches in place of running them."""

    def takes(self, addresses: Any) -> bool:
        """Whether any of these addresses lies in memory that moves: then launches on them are noted."""

    def scratch(self, size: int) -> int:
        """The address that a launch is given as its workspace of so many bytes."""

    def keep(self, owner: object) -> None:
        """Have an object live as long as what is recorded."""

    def constant(self, address: int, size: int, owner: object) -> None:
        """Memory that stays where it is and as it is."""

    def passing(self, addresses: Sequence[int]) -> AbstractContextManager[None]:
        """In the block, launches are given these addresses and read nothing there."""

    def require_no_view(self, address: int) -> None:
        """Refuse Python code that is about to read or write memory that is another one in a replay."""

    def add(self, owner: object, phases: Any, count: int, block: bytes, threads: int, anchors: Any) -> bool:
        """Note a launch; False if it concerns no memory that moves, so that it is to run now."""


#: by the number of the thread; empty at nearly all times
recorders: dict[int, Recorder] = {}


def recorder_here() -> Recorder | None:
    """Who records the launches of this thread, if anybody does."""
    return recorders.get(get_ident()) if recorders else None

"""Calls between processes that stand between captured pieces of a GPU's calls.

An iteration as a graph cannot hold what the host does, and a call of NCCL is the host's. So where one comes while
calls are captured, the graph ends, the call is noted, and another graph begins: an iteration is graphs and calls in
turn, on the same stream, and what a call waits for is in its order.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from jitdnn.groups import Group, Work

Action = Callable[[], None]


class _Later:
    """Something that is started and waited for when what was captured runs."""

    def __init__(self, group: SplitGroup, start: Callable[[], Work]) -> None:
        self._group, self._start = group, start
        self._work: Work | None = None

    def begin(self) -> None:
        self._work = self._start()

    def wait(self) -> None:
        self._group.note(self._end)

    def _end(self) -> None:
        work, self._work = self._work, None
        assert work is not None
        work.wait()


class SplitGroup:
    """A group whose calls on arrays go through `note` while calls are captured, and are left out while code is compiled
    ahead, when nothing runs.
    """

    def __init__(self, group: Group) -> None:
        self._group = group
        self._split: Callable[[Action], None] | None = None

    @property
    def rank(self) -> int:
        return self._group.rank

    @property
    def size(self) -> int:
        return self._group.size

    @contextmanager
    def splitting(self, split: Callable[[Action], None]) -> Iterator[None]:
        """Hand calls to `split` in this block."""
        self._split = split
        try:
            yield
        finally:
            self._split = None

    def note(self, action: Action) -> None:
        """Do this now, or when what is captured runs."""
        (self._split or _now)(action)

    def sum(self, array: Any) -> None:
        self.note(lambda: self._group.sum(array))

    def gather_parts(self, array: Any) -> None:
        self.note(lambda: self._group.gather_parts(array))

    def broadcast(self, array: Any) -> None:
        self.note(lambda: self._group.broadcast(array))

    def broadcast_all(self, arrays: Iterable[Any]) -> None:
        self.note(lambda: self._group.broadcast_all(arrays))

    def start_sum(self, array: Any, wire: str = "f32") -> Work:
        return self._started(lambda: self._group.start_sum(array, wire))

    def start_scatter(self, array: Any, wire: str = "f32") -> Work:
        return self._started(lambda: self._group.start_scatter(array, wire))

    def gather(self, data: bytes) -> list[bytes]:
        return self._group.gather(data)

    def share(self, data: bytes) -> bytes:
        return self._group.share(data)

    def _started(self, start: Callable[[], Work]) -> Work:
        if self._split is None:
            return start()
        later = _Later(self, start)
        self.note(later.begin)
        return later


def _now(action: Action) -> None:
    action()


def left_out(action: Action) -> None:
    """What `splitting` is given where nothing runs."""

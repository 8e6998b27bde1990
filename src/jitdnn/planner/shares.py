"""One budget of workspace for all handles of a device: how much of it each may use.

A handle runs its calls one after another in one arena, so as long as it is alone it may use the whole budget. Handles
that work beside each other have arenas of their own: the budget is divided among them so that the sum of the times of
all their convolutions is least, and anew whenever one of them meets another convolution.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Hashable, Sequence
from typing import Protocol

from jitdnn.locks import lock
from jitdnn.planner import budget
from jitdnn.planner.fronts import Point


class Owner(Protocol):
    """What has an arena."""

    def forget(self) -> None:
        """Plan anew."""

    def trim(self) -> None:
        """Free the arena."""


class _Wanted:
    """A problem of a handle, and the front of its partitions, which is computed when it is needed."""

    def __init__(self, partitions: Callable[[], Sequence[Point]]) -> None:
        self._partitions = partitions
        self._front: Sequence[Point] | None = None
        #: the plan that was made for it, once it is
        self.plan: weakref.ref[object] | None = None

    @property
    def front(self) -> Sequence[Point]:
        if self._front is None:
            self._front = self._partitions()
        return self._front


class Shares:
    """The handles that divide one budget of `total` bytes, and what each has to run."""

    def __init__(self, total: int) -> None:
        self._total = total
        self._lock = lock()
        self._wanted: weakref.WeakKeyDictionary[Owner, dict[Hashable, _Wanted]] = weakref.WeakKeyDictionary()
        self._shares: weakref.WeakKeyDictionary[Owner, int] = weakref.WeakKeyDictionary()

    def limit(
        self, owner: Owner, key: Hashable, partitions: Callable[[], Sequence[Point]], most: int = 4096
    ) -> int:
        """How many bytes a handle may use, now that it is to run what `key` names, too.

        `partitions` gives the front of running that in up to the whole budget; it must not refer to the handle. Of
        what a handle has to run `most` problems count: with more, those that it has no plan of any more are forgotten.
        Handles whose share changes forget their plans. Raises InvalidArgument if the budget is too small for all.
        """
        with self._lock:
            wanted = self._wanted.setdefault(owner, {})
            is_new = key not in wanted
            if is_new:
                if len(wanted) >= most:
                    _drop(wanted)
                wanted[key] = _Wanted(partitions)
            if len(self._wanted) == 1:
                self._set(owner, self._total)
            elif is_new:
                self._divide()
            return self._shares[owner]

    def made(self, owner: Owner, key: Hashable, plan: object) -> None:
        """Say which plan was made for `key`: as long as it lives, the handle has it to run."""
        with self._lock:
            wanted = self._wanted.get(owner, {}).get(key)
            if wanted is not None:
                wanted.plan = weakref.ref(plan)

    @property
    def owners(self) -> int:
        """Handles that live and have something to run."""
        return len(self._wanted)

    def _divide(self) -> None:
        owners = list(self._wanted.items())
        members = [(owner, wanted) for owner, all_wanted in owners for wanted in all_wanted.values()]
        points = budget.divide(
            [wanted.front for _, wanted in members], self._total, [id(owner) for owner, _ in members]
        )
        arenas = {id(owner): 0 for owner, _ in owners}
        for (owner, _), point in zip(members, points, strict=True):
            arenas[id(owner)] = max(arenas[id(owner)], point.workspace)
        for owner, _ in owners:
            self._set(owner, arenas[id(owner)])

    def _set(self, owner: Owner, share: int) -> None:
        before = self._shares.get(owner)
        self._shares[owner] = share
        if before is not None and before != share:
            owner.forget()
            owner.trim()


def _drop(wanted: dict[Hashable, _Wanted]) -> None:
    """Forget the problems without a plan; where all have one, that which came first."""
    gone = [key for key, each in wanted.items() if each.plan is not None and each.plan() is None]
    for key in gone or [next(iter(wanted))]:
        del wanted[key]


_MOST_BUDGETS = 64  # before those that no handle uses any more are forgotten
_all: dict[tuple[str, int], Shares] = {}


def shares(device_name: str, total: int) -> Shares:
    """Those of a device and a budget, the same object for the same."""
    key = (device_name, total)
    found = _all.get(key)
    if found is None and len(_all) >= _MOST_BUDGETS:
        for other, budget_of in tuple(_all.items()):
            if not budget_of.owners:
                _all.pop(other, None)
    return _all.setdefault(key, Shares(total)) if found is None else found

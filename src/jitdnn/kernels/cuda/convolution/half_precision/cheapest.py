"""Choosing among many plans: a plan is made only once it is known to be the cheapest."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from math import inf
from typing import Any, Generic, TypeVar

T = TypeVar("T")


class Cheapest(Generic[T]):
    """The plan of the fewest `seconds` of those that were offered, of equals the one with the least `order`.

    Macros of a plan take as long to write down as what it costs takes to find. Who offers plans leaves out those that
    cannot come below `seconds`.
    """

    def __init__(self) -> None:
        self.seconds = inf
        self._order: tuple[int, ...] = ()
        self._make: Callable[[], T] | None = None

    def offer(self, seconds: float, order: tuple[int, ...], make: Callable[[], T]) -> None:
        if seconds < self.seconds or (seconds == self.seconds and order < self._order):
            self.seconds, self._order, self._make = seconds, order, make

    def plan(self) -> T | None:
        return self._make() if self._make else None


def by_bound(bounds: Sequence[float], cheapest: Cheapest[Any]) -> Iterator[int]:
    """Numbers of families of plans, none of which takes less than its bound, as long as one may have the cheapest."""
    for bound, number in sorted(zip(bounds, range(len(bounds)), strict=True)):
        if bound > cheapest.seconds:
            return
        yield number


class All(Cheapest[T]):
    """All that are offered: none takes too long."""

    def __init__(self) -> None:
        super().__init__()
        self.plans: list[T] = []

    def offer(self, seconds: float, order: tuple[int, ...], make: Callable[[], T]) -> None:
        self.plans.append(make())

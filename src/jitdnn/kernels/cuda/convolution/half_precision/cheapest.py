"""Choosing among many plans: each is made only once it is known to be the one."""

from __future__ import annotations

from collections.abc import Callable
from math import inf
from typing import Generic, TypeVar

T = TypeVar("T")

ROUNDED = 1 - 1e-9
"""A factor on what no plan comes below: so rounding does not count."""


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


class All(Cheapest[T]):
    """All that are offered: none takes too long."""

    def __init__(self) -> None:
        super().__init__()
        self.plans: list[T] = []

    def offer(self, seconds: float, order: tuple[int, ...], make: Callable[[], T]) -> None:
        self.plans.append(make())

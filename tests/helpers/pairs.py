"""Some of a product of axes instead of all of it: every pair of values of any two axes is met."""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from typing import Any


def pairwise(*axes: Iterable[Any]) -> list[tuple[Any, ...]]:
    """Combinations of one value of each axis, so that any two values of different axes are met together at least once.

    For tests where a combination costs a compilation, and where what may be wrong depends on two of the axes at most.
    The same ones each time: each is the first of those that meet the most new pairs.
    """
    values = [list(axis) for axis in axes]
    every = list(itertools.product(*(range(len(axis)) for axis in values)))

    def pairs(places: tuple[int, ...]) -> set[tuple[tuple[int, int], ...]]:
        return set(itertools.combinations(enumerate(places), 2))

    left = set().union(*map(pairs, every))
    chosen = []
    while left:
        best = max(every, key=lambda places: len(pairs(places) & left))
        left -= pairs(best)
        chosen.append(best)
    return [
        tuple(axis[place] for axis, place in zip(values, places, strict=True)) for places in sorted(chosen)
    ]

"""Limits of what lives as long as the process: dictionaries that forget what is not used, accounts of bytes.

Repeated calls are to cost one look-up in a dictionary, so nothing is noted when something is found. What is least
recently used is known to within a generation: entries are young, then old, then gone, unless they are asked for when
they are old, which makes them young again.
"""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Hashable, Iterator
from typing import Generic, Protocol, TypeVar

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class Recent(Generic[K, V]):
    """At most `limit` entries (2 at least), of which those go that were not used for longest, about.

    There is a young generation, of at most half as many, and an old one. `get` looks into the young one, and is that of
    its dictionary; whoever does not find a key asks `older`. When the young generation is full it becomes the old one,
    and what was old is dropped: nothing that is used is lost before half of `limit` others were added since its last
    use. Threads may share it, so long as an entry that is lost is only made again.
    """

    __slots__ = ("get", "limit", "old", "young")

    def __init__(self, limit: int) -> None:
        self.limit = limit
        # no subclass of dict, whose `get` takes longer to call; the same one always, as that is kept
        self.young: dict[K, V] = {}
        self.old: dict[K, V] = {}
        self.get = self.young.get

    def older(self, key: K) -> V | None:
        """What the old generation has under the key, which is young from now on; None if there is nothing."""
        found = self.old.pop(key, None)
        if found is not None:
            self.put(key, found)
        return found

    def recall(self, key: K) -> V | None:
        """What there is under the key in either generation, or None."""
        found = self.get(key)
        return self.older(key) if found is None else found

    def put(self, key: K, value: V, limit: int | None = None) -> V:
        """Keep a value, and from now on at most `limit` of them, if that is given; returns the value."""
        if limit is not None:
            self.limit = limit
        if len(self.young) >= max(1, self.limit // 2):
            self.age()
        self.young[key] = value
        return value

    def age(self) -> None:
        """Drop the old generation; the young one becomes the old one."""
        # in this order: whoever looks meanwhile finds the entries in one of the two
        self.old = self.young.copy()
        self.young.clear()

    def halve(self) -> bool:
        """Drop the half of the old generation that came first; False if there is nothing in it."""
        oldest = list(self.old)
        for key in oldest[: (len(oldest) + 1) // 2]:
            self.old.pop(key, None)
        return bool(oldest)

    def clear(self) -> None:
        """Drop everything."""
        self.young.clear()
        self.old = {}

    def __len__(self) -> int:
        """Entries of both generations."""
        return len(self.young) + len(self.old)


class Account:
    """Bytes that are in use, each part of them as long as its `Charge` lives."""

    def __init__(self) -> None:
        # by number, so that to add and to remove is atomic also where the collector of cycles does it in between
        self._parts: dict[int, int] = {}
        self._numbers = itertools.count()

    @property
    def bytes(self) -> int:
        return sum(tuple(self._parts.values()))

    @property
    def count(self) -> int:
        """Charges that there are."""
        return len(self._parts)

    def charge(self, size: int) -> Charge:
        """Count `size` bytes until the result is no longer referred to."""
        return Charge(self._parts, next(self._numbers), size)


class Charge:
    """A part of an `Account`."""

    __slots__ = ("_number", "_parts")

    def __init__(self, parts: dict[int, int], number: int, size: int) -> None:
        self._parts, self._number = parts, number
        parts[number] = size

    def __del__(self) -> None:
        self._parts.pop(self._number, None)


class Keeper(Protocol):
    """Who keeps loaded code from being freed, by generations."""

    def age(self) -> None:
        """Drop what was not used since the last time: what was is old from now on."""

    def halve(self) -> bool:
        """Drop half of what is old, the oldest; False if there is nothing."""


class CodeLimit:
    """Bounds the machine code that is loaded in this process: asks all who keep some to drop what they do not use.

    Only what is kept is dropped. Code that somebody runs, or holds a plan of, stays until he lets go of it.
    """

    def __init__(self) -> None:
        self.account = Account()
        self._keepers: dict[int, weakref.ref[Keeper]] = {}
        self._since = 0  # bytes loaded since the last ageing

    def register(self, keeper: Keeper) -> None:
        """Ask this one too, as long as it lives."""
        key = id(keeper)
        keepers = self._keepers
        keepers[key] = weakref.ref(keeper, lambda _: keepers.pop(key, None))

    def charge(self, size: int, limit: int) -> Charge:
        """Count `size` bytes of code that is about to be loaded, after making room for it.

        A generation is what was loaded while half of the limit was filled. If two are too much, for old code that is
        used again counts to the young one, the oldest of the old one goes.
        """
        if 2 * (self._since + size) > limit:
            self.age()
        is_all_old = False
        while self.account.bytes + size > limit:
            had_some = [keeper.halve() for keeper in self._living()]
            if not any(had_some):
                if is_all_old:
                    break
                self.age()
                is_all_old = True
        self._since += size
        return self.account.charge(size)

    def age(self) -> None:
        """Have everybody drop what was not used since the last time."""
        self._since = 0
        for keeper in self._living():
            keeper.age()

    def _living(self) -> Iterator[Keeper]:
        for reference in tuple(self._keepers.values()):
            keeper = reference()
            if keeper is not None:
                yield keeper


code = CodeLimit()

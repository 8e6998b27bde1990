"""Random choices that can be repeated and made simpler: each is a whole number on a tape, 0 the simplest one."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import TypeVar

Item = TypeVar("Item")

REALS = ("f32", "f16", "bf16", "f64")
INTEGERS = ("i32", "i64", "u8", "i8", "i16", "u16", "u32", "u64")
BYTES = {
    "f16": 2, "bf16": 2, "f32": 4, "f64": 8, "i8": 1, "u8": 1, "i16": 2, "u16": 2, "i32": 4, "u32": 4, "i64": 8,
    "u64": 8, "bool": 1,
}  # fmt: skip
# primes, powers of two and their neighbours, widths of vectors of all types and their neighbours
_EXTENTS = (1, 2, 3, 5, 7, 4, 8, 11, 13, 6, 9, 16, 17, 10, 12, 15, 31, 19, 32, 33, 23, 47, 63, 64, 65)
_CHANCES = 1000
_BITS = 32


class Draw:
    """Choices from a generator of random numbers, or from a tape of earlier ones.

    `tape`: the choices to make again, modulo what there is to choose from; behind its end everything is 0.
    """

    def __init__(self, name: str, tape: Sequence[int] | None = None) -> None:
        self._random = random.Random(name) if tape is None else None
        self._given = list(tape or ())
        self.tape: list[int] = []

    @staticmethod
    def blank_tape(name: str, count: int) -> list[int]:
        """The first choices of a generator before it is known what there is to choose from."""
        generator = random.Random(name)
        return [generator.getrandbits(_BITS) for _ in range(count)]

    def below(self, count: int) -> int:
        """A number from 0 to count - 1."""
        if self._random is not None:
            number = self._random.getrandbits(_BITS)
        else:
            number = self._given[len(self.tape)] if len(self.tape) < len(self._given) else 0
        number %= count
        self.tape.append(number)
        return number

    def pick(self, items: Sequence[Item]) -> Item:
        """One of the items; the first is the simplest."""
        return items[self.below(len(items))]

    def weighted(self, *pairs: tuple[int, Item]) -> Item:
        """One of the items of (weight, item)."""
        number = self.below(sum(weight for weight, _ in pairs))
        for weight, item in pairs:
            if number < weight:
                return item
            number -= weight
        raise AssertionError

    def chance(self, probability: float) -> bool:
        """True with this probability; the simplest answer is False."""
        return self.below(_CHANCES) >= _CHANCES * (1 - probability)

    def whole(self, low: int, high: int) -> int:
        """A whole number from low to high, low the simplest."""
        return low + self.below(high - low + 1)

    def real(self, low: float, high: float) -> float:
        """One of a thousand real numbers from low to high, with few digits."""
        return round(low + (high - low) * self.below(_CHANCES) / (_CHANCES - 1), 4)

    def extent(self, most: int = 65, empty: bool = False) -> int:
        """An extent of at most `most`; 0 now and then if it may be `empty`."""
        if empty and self.chance(0.03):
            return 0
        return self.pick([n for n in _EXTENTS if n <= most] or [1])

    def shape(self, rank: int, elements: int = 2000, empty: bool = True) -> tuple[int, ...]:
        """Extents of a tensor of about `elements` elements at most."""
        extents: list[int] = []
        room = elements
        for _ in range(rank):
            extents.append(self.extent(max(1, room), empty))
            room //= max(1, extents[-1])
        if self.chance(0.5):  # so that it is not always the first axes that are long
            extents.reverse()
        return tuple(extents)

    def dtype(self, dtypes: Sequence[str] = REALS) -> str:
        return self.pick(dtypes)

    def permutation(self, count: int) -> tuple[int, ...]:
        """An order of 0 to count - 1."""
        left = list(range(count))
        return tuple(left.pop(self.below(len(left))) for _ in range(count))

    def strides(self, shape: Sequence[int], is_output: bool = False, itemsize: int = 4) -> tuple[int, ...]:
        """Strides in elements: packed in some order, with gaps, negative; of inputs also repeated or overlapping."""
        rank = len(shape)
        kinds = ["packed", "packed", "packed", "last", "permuted", "gaps", "gaps", "negative"]
        kind = self.pick(kinds if is_output else [*kinds, "repeated", "overlapping"])
        order = tuple(range(rank))
        if kind == "last" and rank > 2:
            order = (0, *range(2, rank), 1)
        elif kind not in ("packed", "last") and self.chance(0.6):
            order = self.permutation(rank)
        if kind == "overlapping":
            return tuple(self.whole(-2, 3) for _ in shape)
        strides, step = [0] * rank, 1
        for axis in reversed(order):
            if kind in ("gaps", "negative", "repeated") and self.chance(0.5):
                step *= self.whole(1, 3)
            strides[axis] = step
            step *= max(1, shape[axis])
            if kind == "gaps" and self.chance(0.4):
                step += self.whole(1, 5)
        if kind == "negative":
            strides = [-stride if self.chance(0.5) else stride for stride in strides]
        if kind == "repeated":
            strides = [0 if self.chance(0.5) else stride for stride in strides]
        if step * itemsize > (1 << 20):
            return packed(shape)
        return tuple(strides)


def packed(shape: Sequence[int], order: Sequence[int] | None = None) -> tuple[int, ...]:
    """Strides, in elements, of a dense tensor with its axes in `order`, outermost first."""
    strides, step = [0] * len(shape), 1
    for axis in reversed(order or range(len(shape))):
        strides[axis] = step
        step *= max(1, shape[axis])
    return tuple(strides)

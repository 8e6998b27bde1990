"""What of a row stays in a buffer from one pass of a program to a later one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from jitdnn.kernels.formulas.row_programs import Program


class Item(NamedTuple):
    """Elements' values of a row in the buffer: an input or a keep, by the number that expressions have for it.

    `row_pass` puts it there, `start` is the first element, and `last` the last pass that looks for it.
    """

    number: int
    row_pass: int
    last: int
    start: int = 0


@dataclass(frozen=True)
class RowBuffer:
    """A buffer for what later passes take up again."""

    items: tuple[Item, ...] = ()
    size: int = 0  # elements

    def find(self, number: int) -> Item | None:
        return next((item for item in self.items if item.number == number), None)


def buffered_items(program: Program, inputs: Sequence[int], count: int) -> list[Item]:
    """What is worth a place: the keeps, and those of the `inputs` (of `count`) that several passes load."""
    found: dict[int, Item] = {}
    before = count + program.position
    keeps = [(number, e) for number, row_pass in enumerate(program.passes) for e in row_pass.keeps]
    made = {before + n: row_pass for n, (row_pass, _) in enumerate(keeps)}
    for number, row_pass in enumerate(program.passes):
        if not row_pass.loops:
            continue
        used = {i for _, e in (*row_pass.loop_reductions, *row_pass.writes) for i in e.used()}
        used |= {before + n for n, (s, _) in enumerate(keeps) if s == number}
        for n in reversed(range(len(keeps))):
            # a keep of this pass is made of what it depends on, an earlier one lies in the buffer
            if before + n in used and keeps[n][0] == number:
                used |= keeps[n][1].used()
        for i in used & ({*inputs} | made.keys()):
            item = found.get(i, Item(i, made.get(i, number), number))
            found[i] = item._replace(last=number)
    return sorted((i for i in found.values() if i.last > i.row_pass), key=lambda item: item.row_pass)


def allocated(items: Sequence[Item], capacity: int) -> RowBuffer:
    """The items in a buffer of `capacity` elements for each; one may follow another that is not needed any more."""
    ends: list[int] = []  # for each place, the last pass that needs what is in it
    result = []
    for item in items:
        free = next((n for n, last in enumerate(ends) if last <= item.row_pass), len(ends))
        ends[free : free + 1] = [item.last]
        result.append(item._replace(start=free * capacity))
    return RowBuffer(tuple(result), len(ends) * capacity)

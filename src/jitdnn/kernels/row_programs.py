"""Programs over rows: the values that `sweeps` makes kernels of. The language is described there."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from jitdnn.rtcg.expression import Expression
from jitdnn.rtcg.folds import Fold, Reduction

ARGS = ("argmax", "argmin")  # they give two row values
REDUCTIONS = ("add", "multiply", "max", "min", "max_number", "min_number", "first", *ARGS)


@dataclass(frozen=True)
class Sweep:
    """One pass over a row: `reductions` as (name, expression), then `scalars` of what is known of the row.

    `writes` are (output position, expression) of elements; `keeps` are elements' values for later sweeps.
    """

    reductions: tuple[tuple[Reduction, Expression], ...] = ()
    scalars: tuple[Expression, ...] = ()
    writes: tuple[tuple[int, Expression], ...] = ()
    keeps: tuple[Expression, ...] = ()

    @property
    def loops(self) -> bool:
        """True if the elements are gone through."""
        return bool(self.writes) or any(name != "first" for name, _ in self.reductions)

    @property
    def folds(self) -> tuple[tuple[Reduction, Expression], ...]:
        """The reductions that need the loop."""
        return tuple(item for item in self.reductions if item[0] != "first")

    @property
    def key(self) -> str:
        """What is compiled in, as text."""
        reductions = [(name, expression.key) for name, expression in self.reductions]
        writes = [(output, expression.key) for output, expression in self.writes]
        return f"{reductions} {[e.key for e in self.scalars]} {writes} {[e.key for e in self.keeps]}"


@dataclass(frozen=True)
class Program:
    """Sweeps over each row, and the row values that are written: (output position, number of the row value).

    `parameters` are the first row values; they are no part of the compiled code, so that kernels for many sizes
    share it. With `position` the element's place in the row is a number that expressions see behind the inputs.
    """

    sweeps: tuple[Sweep, ...]
    row_outputs: tuple[tuple[int, int], ...] = ()
    parameters: tuple[float, ...] = ()
    position: bool = False

    def __post_init__(self) -> None:
        for sweep in self.sweeps:
            for name, _ in sweep.reductions:
                assert isinstance(name, Fold) or name in REDUCTIONS, f"there is no reduction {name!r}"

    @property
    def outputs(self) -> int:
        """Number of outputs."""
        written = [output for sweep in self.sweeps for output, _ in sweep.writes]
        return 1 + max(written + [output for output, _ in self.row_outputs])

    @property
    def places(self) -> bool:
        """True if the kernel must know where in its row an element is."""
        return self.position or any(name in ARGS for s in self.sweeps for name, _ in s.reductions)

    @property
    def key(self) -> str:
        """What is compiled in, as text."""
        sweeps = " | ".join(sweep.key for sweep in self.sweeps)
        return f"{sweeps} {self.row_outputs} {len(self.parameters)} {self.position}"


class Phase(NamedTuple):
    """Sweeps that one launch of tasks does, of a kernel that splits its rows; or the end, which has whole rows."""

    first: int
    end: int
    writes_rows: bool


def phases_of(program: Program) -> Iterator[Phase]:
    """The phases of a program over split rows.

    Each ends with a sweep that loops, for its partial results must be complete before they are used. What a
    sweep that writes takes from the first element is read in a phase before, where nothing is written yet.
    """
    first = 0
    for number, sweep in enumerate(program.sweeps):
        if not sweep.loops:
            continue
        reads = any(s.reductions for s in program.sweeps[first:number])
        if sweep.writes and (reads or len(sweep.folds) < len(sweep.reductions)):
            assert len(sweep.folds) == len(sweep.reductions), "a sweep that writes takes no first element"
            yield Phase(first, number, False)
            first = number
        yield Phase(first, number + 1, False)
        first = number + 1
    if program.row_outputs:
        yield Phase(first, len(program.sweeps), True)


class Item(NamedTuple):
    """Elements' values of a row in the stage: an input or a keep, by the number that expressions have for it.

    `sweep` puts it there, `start` is the first element, and `last` the last sweep that looks for it.
    """

    number: int
    sweep: int
    last: int
    start: int = 0


@dataclass(frozen=True)
class Stage:
    """A buffer for what later sweeps take up again."""

    items: tuple[Item, ...] = ()
    size: int = 0  # elements

    def find(self, number: int) -> Item | None:
        return next((item for item in self.items if item.number == number), None)


def stage_of(program: Program, inputs: Sequence[int], count: int) -> list[Item]:
    """What is worth a place: the keeps, and those of the `inputs` (of `count`) that several sweeps load."""
    found: dict[int, Item] = {}
    before = count + program.position
    keeps = [(number, e) for number, sweep in enumerate(program.sweeps) for e in sweep.keeps]
    made = {before + n: sweep for n, (sweep, _) in enumerate(keeps)}
    for number, sweep in enumerate(program.sweeps):
        if not sweep.loops:
            continue
        used = {i for _, e in (*sweep.folds, *sweep.writes) for i in e.used()}
        used |= {before + n for n, (s, _) in enumerate(keeps) if s == number}
        for n in reversed(range(len(keeps))):
            # a keep of this sweep is made of what it depends on, an earlier one lies in the stage
            if before + n in used and keeps[n][0] == number:
                used |= keeps[n][1].used()
        for i in used & ({*inputs} | made.keys()):
            item = found.get(i, Item(i, made.get(i, number), number))
            found[i] = item._replace(last=number)
    return sorted((i for i in found.values() if i.last > i.sweep), key=lambda item: item.sweep)


def placed(items: Sequence[Item], capacity: int) -> Stage:
    """The items in a buffer of `capacity` elements for each; one may follow another that is not needed any more."""
    ends: list[int] = []  # for each place, the last sweep that needs what is in it
    result = []
    for item in items:
        free = next((n for n, last in enumerate(ends) if last <= item.sweep), len(ends))
        ends[free : free + 1] = [item.last]
        result.append(item._replace(start=free * capacity))
    return Stage(tuple(result), len(ends) * capacity)

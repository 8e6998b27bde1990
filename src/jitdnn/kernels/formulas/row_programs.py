"""Programs that reduce: what a row of elements comes down to, and what is made of every element with it.

A *row* is all elements over the reduced axes for one index of the kept axes. A `Program` is a list of passes
over each row. Softmax, for instance, is

    Pass(reductions=[("max", x)])
    Pass(reductions=[("add", exp(x - max))], scalars=[1 / sum])
    Pass(writes=[(0, exp(x - max) * scale)])

What an expression sees, in this order (one with fewer inputs sees the first ones):

    of reductions, writes, keeps   element of each input, [position], keeps so far, row values
    of scalars                     row values

The row values are the program's `parameters`, then the results of each pass: its reductions, then its scalars one
after the other, each of which sees those before it. A keep is an element's intermediate value that later passes
(and the other expressions of its own pass) take up again; whether it is stored or computed anew is the kernel's
choice.

Reductions: "add", "multiply", "max", "min" (NaN if any element is), "max_number", "min_number" (which pass over NaN),
a `Fold` of the user's, "first" (the value at index 0 of the row, before the loops of its pass), and two that give two
row values, "argmax" and "argmin": the extreme value and its position, the first one of equals. A position counts the
row's elements in the order of the axes, the last axis fastest. Kernels for GPUs know two more of two values, which
need one pass for what otherwise takes two: "moments", the mean and the sum of squared distances from it, and
"powers", the greatest number and the sum of exp(x - greatest).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from jitdnn.rtcg.expression import Expression
from jitdnn.rtcg.folds import Fold, Reduction

ARGS = ("argmax", "argmin")
JOINT = ("moments", "powers")
PAIRS = (*ARGS, *JOINT)  # they give two row values
REDUCTIONS = ("add", "multiply", "max", "min", "max_number", "min_number", "first", *PAIRS)


@dataclass(frozen=True)
class Pass:
    """One pass over a row: `reductions` as (name, expression), then `scalars` of what is known of the row.

    `writes` are (output position, expression) of elements; `keeps` are elements' values for later passes.
    """

    reductions: tuple[tuple[Reduction, Expression], ...] = ()
    scalars: tuple[Expression, ...] = ()
    writes: tuple[tuple[int, Expression], ...] = ()
    keeps: tuple[Expression, ...] = ()

    @property
    def loops(self) -> bool:
        """True if there is a loop over the elements."""
        return bool(self.writes) or any(name != "first" for name, _ in self.reductions)

    @property
    def loop_reductions(self) -> tuple[tuple[Reduction, Expression], ...]:
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
    """Passes over each row, and the row values that are written: (output position, number of the row value).

    `parameters` are the first row values; they are no part of the compiled code, so that kernels for many sizes
    share it. With `position` the element's place in the row is a number that expressions see behind the inputs.
    """

    passes: tuple[Pass, ...]
    row_outputs: tuple[tuple[int, int], ...] = ()
    parameters: tuple[float, ...] = ()
    position: bool = False

    def __post_init__(self) -> None:
        for row_pass in self.passes:
            for name, _ in row_pass.reductions:
                assert isinstance(name, Fold) or name in REDUCTIONS, f"there is no reduction {name!r}"

    @property
    def outputs(self) -> int:
        """Number of outputs."""
        written = [output for row_pass in self.passes for output, _ in row_pass.writes]
        return 1 + max(written + [output for output, _ in self.row_outputs])

    @property
    def needs_positions(self) -> bool:
        """True if the kernel must know where in its row an element is."""
        return self.position or any(name in ARGS for s in self.passes for name, _ in s.reductions)

    @property
    def key(self) -> str:
        """What is compiled in, as text."""
        passes = " | ".join(row_pass.key for row_pass in self.passes)
        return f"{passes} {self.row_outputs} {len(self.parameters)} {self.position}"


class Phase(NamedTuple):
    """Passes that one launch of tasks does, of a kernel that splits its rows; or the end, which has whole rows."""

    first: int
    end: int
    writes_rows: bool


def phases_of(program: Program) -> Iterator[Phase]:
    """The phases of a program over split rows.

    Each ends with a pass that loops, for its partial results must be complete before they are used. What a
    pass that writes takes from the first element is read in a phase before, where nothing is written yet.
    """
    first = 0
    for number, row_pass in enumerate(program.passes):
        if not row_pass.loops:
            continue
        reads = any(s.reductions for s in program.passes[first:number])
        if row_pass.writes and (reads or len(row_pass.loop_reductions) < len(row_pass.reductions)):
            assert len(row_pass.loop_reductions) == len(row_pass.reductions), (
                "a sweep that writes takes no first element"
            )
            yield Phase(first, number, False)
            first = number
        yield Phase(first, number + 1, False)
        first = number + 1
    if program.row_outputs:
        yield Phase(first, len(program.passes), True)

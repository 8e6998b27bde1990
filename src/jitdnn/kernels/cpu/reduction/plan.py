"""The sizes of a program over rows on processors: the loops, what stays of a row in a buffer, what is compiled in.

    unit, over elements    one row: a vector holds elements of it
    unit, over rows        a few vectors of neighbouring rows: each lane has a row for itself
    step                   a block of the innermost reduced axis, for one index of the other reduced axes
    part                   some steps of a unit, where there are fewer units than can be shared

The loops:

    for each unit (and part)             tasks share these
      for each pass of the program
        for each step                    index of the outer reduced axes, and block of the inner one
          for each `unroll` elements     over elements: vectors; each has an accumulator
            for each of `vectors`        over rows: vectors of the unit; over elements one
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import NamedTuple

from jitdnn.kernels.cpu.schedule.parallel import Slots
from jitdnn.kernels.formulas.row_programs import ARGS, Program, phases_of

Axis = tuple[int, tuple[int, ...]]
"""An extent, and the stride along it of each tensor and of the position in the row."""

UNIT, REPEATED, STRIDED = "unit", "repeated", "strided"
# strides from lane to lane that are compiled in; those beyond 1 are loaded and stored by shuffles
CONSTANT_STRIDES = {REPEATED: 0, UNIT: 1, "2": 2, "3": 3, "4": 4}


@dataclass(frozen=True)
class Layout:
    """The loops. `kept` and `reduced` are the outer axes, `lane` has the lanes if `over_rows`, else `inner`."""

    over_rows: bool
    kept: tuple[Axis, ...]
    lane: Axis
    reduced: tuple[Axis, ...]
    inner: Axis
    bases: tuple[int, ...]
    firsts: tuple[
        int, ...
    ]  # from where a row begins in memory to its index 0: not 0 where it is iterated backwards
    vectors: int  # of a unit over rows
    unroll: int  # accumulators for each of them
    block: int  # of the inner axis
    per_part: int  # steps
    parts: int
    flush: int  # steps after which sums go to wider accumulators; 0 if they do not

    @property
    def row(self) -> int:
        """Elements of a row."""
        return prod(extent for extent, _ in (*self.reduced, self.inner))

    @property
    def blocks(self) -> int:
        return -(-self.inner[0] // self.block) if self.block else 0

    @property
    def steps(self) -> int:
        return prod(extent for extent, _ in self.reduced) * self.blocks

    def lane_blocks(self, lanes: int) -> int:
        """Units side by side, over rows."""
        return -(-self.lane[0] // (lanes * self.vectors)) if self.over_rows else 1

    def units(self, lanes: int) -> int:
        return prod(extent for extent, _ in self.kept) * self.lane_blocks(lanes)

    @property
    def lane_strides(self) -> tuple[int, ...]:
        return (self.lane if self.over_rows else self.inner)[1]

    def moves(self) -> tuple[str, ...]:
        """How each tensor moves from lane to lane."""
        names = {stride: move for move, stride in CONSTANT_STRIDES.items()}
        return tuple(names.get(stride, STRIDED) for stride in self.lane_strides)


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


@dataclass(frozen=True)
class RowCode:
    """What is compiled in. Lists of tensors have the inputs first, then the outputs."""

    program: Program
    dtypes: tuple[str, ...]
    operands: tuple[int, ...]  # the number of each tensor's pointer
    pointers: int
    plain: tuple[int, ...]  # outputs, by position, that alpha and beta do not touch
    compute: str
    position_dtype: str  # the type of positions
    over_rows: bool
    kept: int
    reduced: int
    moves: tuple[str, ...]  # from lane to lane; the last one is the position's
    of_rows: tuple[bool, ...]  # tensors that do not move along the row
    vectors: int
    unroll: int
    has_whole: bool  # units of whole vectors
    has_masked: bool  # units with lanes that stand still
    is_single: bool  # rows of one step
    is_split: bool
    is_long: bool  # sums go to wider accumulators
    streams: tuple[int, ...]  # outputs, by position, that are written past the caches
    has_head: bool  # elements before the first aligned vector are stored otherwise
    fixed: int  # elements of the inner axis, where they are few; else 0
    buffer: RowBuffer  # what later passes find in a buffer

    @property
    def inputs(self) -> int:
        return len(self.dtypes) - self.program.outputs

    def __repr__(self) -> str:
        values = [getattr(self, name) for name in self.__dataclass_fields__ if name != "program"]
        return f"{self.program.key} {values}"


def slots_of(code: RowCode) -> Slots:
    """The integers that the code takes."""
    tensors = range(len(code.dtypes) + 1)
    digits = [*(f"kept{a}" for a in range(code.kept)), "lane_blocks"]
    steps = [*(f"reduced{a}" for a in range(code.reduced)), "blocks"]
    names = ["units", "per_task", "row_per_task", "parts", "steps", "per_part", "flush", "inner", "block"]
    names += ["lanes", "row", *digits, *steps]
    for t in tensors:
        names += [f"base.{t}", f"inner.{t}", f"lane.{t}", f"first.{t}"]
        names += [f"{digit}.{t}" for digit in (*digits, *steps)]
    return Slots(*names, *(f"parameter{i}" for i in range(len(code.program.parameters))))


def functions_of(code: RowCode) -> list[tuple[str, bool]]:
    """The functions of the kernel in order, and whether each is over the parts of rows."""
    if not code.is_split:
        return [("rows", True)]
    return [(f"phase{n}", not phase.writes_rows) for n, phase in enumerate(phases_of(code.program))]


def partial_values(code: RowCode) -> int:
    """Numbers of 8 bytes that a part of a unit leaves for the phases after it."""
    names = [name for row_pass in code.program.passes for name, _ in row_pass.reductions]
    return sum(2 if name in ARGS else 1 for name in names) * (code.vectors if code.over_rows else 1)

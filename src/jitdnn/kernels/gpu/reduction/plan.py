"""The sizes of a program over rows on a GPU: how rows are distributed over threads, and what is compiled in.

    over elements    neighbouring threads have neighbouring elements: 1 to 32 threads, or a whole thread block, a row
    over rows        neighbouring threads have neighbouring rows: a thread block is columns of threads, and the threads
                     of a column share the elements of their rows

The loops, for each thread:

    for each part of a row                      (thread blocks; several parts where rows are too few for the device)
      for each chunk of steps * vector elements (one chunk where the row is in registers)
        load `steps` vectors                    (all before any is used)
        for each vector
          for each element of it                (over rows: for each row of the vector)
    combine the results of the row's threads    (in the warp, then through shared memory)
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from jitdnn.kernels.formulas.row_programs import Program
from jitdnn.rtcg.folds import Fold

Axis = tuple[int, tuple[int, ...]]
"""An extent, and the stride of each tensor and of the position."""

WARP = 32
SHORT_BLOCK = 128  # threads of a thread block, where rows are so short that it has several
_MANY_PARTS = 64  # from here on many threads combine the parts of a row
_MANY_THREADS = 256


@dataclass(frozen=True)
class Layout:
    """Extents and strides, and how many threads do what. Strides are in elements, for each tensor and the position."""

    over_rows: bool
    kept: tuple[Axis, ...]  # from the outermost; over rows without the lanes
    reduced: tuple[Axis, ...]
    lanes: Axis  # over rows: neighbouring rows; over elements: one
    vector: int
    steps: int  # vectors of a thread, loaded together
    columns: int  # threads side by side over the lanes; over elements 1
    row_threads: int  # threads of a row, or over rows of a column
    threads: int  # of a thread block
    in_registers: bool  # a row is loaded once and stays in registers
    parts: int
    per_part: int
    wide: bool  # offsets within a row need 64 bits
    is_even: bool = False  # over elements: rows are whole vectors, at multiples of them if the first is

    @property
    def row(self) -> int:
        """Elements of a row."""
        return prod(extent for extent, _ in self.reduced)

    @property
    def units(self) -> int:
        """Rows; over rows, runs of lanes."""
        return prod(extent for extent, _ in self.kept)

    @property
    def lane_blocks(self) -> int:
        """Thread blocks over the lanes."""
        return max(1, -(-self.lanes[0] // (self.columns * self.vector)))

    @property
    def blocks(self) -> int:
        """Thread blocks for all rows, or for one part of each."""
        if self.over_rows:
            return max(1, self.units * self.lane_blocks)
        return max(1, -(-self.units * self.row_threads // self.threads))

    @property
    def rows(self) -> int:
        return self.units * self.lanes[0]

    @property
    def combine_threads_a_row(self) -> int:
        """Threads that put the parts of a row together."""
        return _MANY_THREADS if self.parts > _MANY_PARTS and self.threads >= _MANY_THREADS else WARP

    @property
    def combine_block_threads(self) -> int:
        return max(SHORT_BLOCK, self.combine_threads_a_row)

    @property
    def combine_blocks(self) -> int:
        """Thread blocks that put the parts of all rows together."""
        return max(1, -(-self.rows * self.combine_threads_a_row // self.combine_block_threads))


def keeps_order(program: Program) -> bool:
    """Whether elements must be put together in their order: reductions of the user's need not commute."""
    return any(isinstance(name, Fold) for row_pass in program.passes for name, _ in row_pass.reductions)


@dataclass(frozen=True)
class RowCode:
    """What is compiled in. Lists of tensors have the inputs first, then the outputs."""

    program: Program
    dtypes: tuple[str, ...]
    operands: tuple[int, ...]  # the number of each tensor's pointer
    pointers: int
    plain: tuple[int, ...]  # outputs, by position, that alpha and beta do not touch
    compute: str
    layout: Layout

    @property
    def inputs(self) -> int:
        return len(self.dtypes) - self.program.outputs

    @property
    def index(self) -> str:
        return "i64" if self.layout.wide else "i32"

    @property
    def is_split(self) -> bool:
        return self.layout.parts > 1

    @property
    def is_short(self) -> bool:
        """Whether all elements of rows are numbers of 16 bits."""
        axes = [*self.layout.reduced, self.layout.lanes]
        moving = {dtype for t, dtype in enumerate(self.dtypes) if any(steps[t] for _, steps in axes)}
        return self.compute == "f32" and moving <= {"f16", "bf16"}

    @property
    def extras(self) -> list[tuple[str, int]]:
        """The integers that every function takes, by name."""
        layout, tensors = self.layout, range(len(self.dtypes))
        found = [
            ("rows", layout.rows),
            ("units", layout.units),
            ("n", layout.row),
            ("lanes", layout.lanes[0]),
        ]
        found += [("lane_blocks", layout.lane_blocks), ("parts", layout.parts), ("per_part", layout.per_part)]
        found += [("region", region_bytes(layout))]
        for name, axes in (("kept", layout.kept), ("reduced", layout.reduced), ("lane", (layout.lanes,))):
            for a, (extent, steps) in enumerate(axes):
                if name != "lane":
                    found.append((f"{name}{a}", extent))
                if name == "reduced" and a and not layout.wide:
                    magic, shift = magic_of(max(1, extent))
                    found += [(f"magic{a}", magic), (f"shift{a}", shift)]
                found += [(f"{name}{a}_{t}", steps[t]) for t in (*tensors, len(self.dtypes))]
        return found


def magic_of(divisor: int) -> tuple[int, int]:
    """What `quotient_u32` divides by a number with."""
    shift = (divisor - 1).bit_length()
    return (2**32 * (2**shift - divisor)) // divisor + 1, shift


def region_bytes(layout: Layout) -> int:
    """Bytes of the workspace for one number of every part and of every row."""
    return layout.rows * (layout.parts + 1) * 8

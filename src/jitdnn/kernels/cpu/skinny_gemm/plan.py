"""The sizes of a product with few rows, c[m, n] = sum over k of a[m, k] b[k, n], in which b is large and read once.

    for a unit: group, block of columns
      for kc of the depth                              all of it, if one tile has all rows
        copy b [kc][block] to the stack                "columns" with several row tiles only
        for a row tile
          for k in kc                                  "columns": sums[row][vector] += broadcast a * vector of b
          for a vector of kc                           "dots":    sums[row][column] += vector of a * vector of b
      store rows x block of columns

Where the columns of b are neighbours in memory they are the lanes, and where its depth is, as in the weights of a
linear layer, every sum is a vector of partial sums. Nothing is packed ahead: with one row a multiply-add is all that
an element of b is read for, and copying it would take longer. The matrices may change places: a tall one times a
column is a row times its transpose. Several steps of the depth have sums of their own (``unroll``), where one step's
are too few to hide the latency of a multiply-add.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal

from jitdnn.kernels.cpu import cost
from jitdnn.kernels.cpu.correlation import Correlation, View
from jitdnn.kernels.cpu.extents import stride_extent
from jitdnn.kernels.cpu.schedule.offsets import ceil_div
from jitdnn.kernels.cpu.schedule.work_units import WorkUnits
from jitdnn.rtcg.extents import Extents
from jitdnn.rtcg.isa import ITEM_BYTES, Isa

MOST_ROWS = 64
Form = Literal["columns", "dots"]


@dataclass(frozen=True)
class Matrix:
    """Where a matrix lies: strides of groups, rows and columns in elements; its type as `stored_dtype` states it."""

    dtype: str
    groups: tuple[int, ...]
    rows: int
    columns: int
    offset: int = 0

    def turned(self) -> Matrix:
        return replace(self, rows=self.columns, columns=self.rows)


@dataclass(frozen=True)
class Product:
    """c [m, n] = a [m, k] b [k, n] in each group; ``is_turned`` if a is the second operand of the problem."""

    dtype: str
    groups: tuple[int, ...]
    m: int
    k: int
    n: int
    a: Matrix
    b: Matrix
    c: Matrix
    operands: tuple[Matrix, ...] = ()
    is_turned: bool = False

    @staticmethod
    def of(c: Correlation) -> Product | None:
        """A correlation with one tap that reads every position; None if it is another one."""
        if not all(axis.is_plain and axis.positions == axis.results for axis in c.axes):
            return None
        extents = (c.batch, *(axis.results for axis in c.axes))
        # the longest axis of positions has the rows; of the others each index is a group with the same filter
        row = max(range(4), key=lambda i: (extents[i], i))
        others = [i for i in range(4) if i != row and extents[i] != 1]

        def of(view: View) -> Matrix:
            strides = (view.batch, *view.space)
            groups = (*view.groups, *(strides[i] for i in others))
            return Matrix(view.dtype, groups, strides[row], view.channels, view.offset)

        w = Matrix(c.w.dtype, (*c.w.groups, *(0 for _ in others)), c.w.channels, c.w.results)
        groups = (*c.groups, *(extents[i] for i in others))
        return Product(
            c.dtype, groups, extents[row], c.depth, c.width, of(c.x), w, of(c.y), tuple(map(of, c.operands))
        )

    def with_extents(self, made: Product, extents: Extents) -> Product:
        """The same with groups, columns and strides of groups that are known when the code runs only."""

        def matrix(name: str, given: Matrix) -> Matrix:
            strides = (
                stride_extent(extents, f"{name}.group{i}", stride) for i, stride in enumerate(given.groups)
            )
            return replace(given, groups=tuple(strides))

        return replace(
            made,
            groups=tuple(extents.extent(f"group{i}", extent) for i, extent in enumerate(self.groups)),
            n=extents.extent("columns", self.n),
            a=matrix("a", self.a),
            b=matrix("b", self.b),
            c=matrix("c", self.c),
            operands=tuple(matrix(f"operand{i}", operand) for i, operand in enumerate(self.operands)),
        )

    def turned(self) -> Product:
        """The transposed product, whose matrices have changed places."""
        operands = tuple(operand.turned() for operand in self.operands)
        return replace(
            self, m=self.n, n=self.m, a=self.b.turned(), b=self.a.turned(), c=self.c.turned(), operands=operands,
            is_turned=not self.is_turned,
        )  # fmt: skip

    def forms(self) -> Sequence[Form]:
        """How b can be read in vectors."""
        forms: list[Form] = []
        if self.b.columns == 1 or self.n == 1:
            forms.append("columns")
        if (self.b.rows == 1 and self.a.columns == 1) or self.k == 1:
            forms.append("dots")
        return forms


@dataclass(frozen=True)
class Tile:
    """``rows`` x ``columns`` sums in registers, of each of ``unroll`` steps: vectors of columns, or single ones."""

    rows: int
    columns: int
    unroll: int = 1


@dataclass(frozen=True)
class SkinnyPlan:
    """How a product is computed. ``kc`` is the depth of a pass; all of it where one tile has all rows."""

    product: Product
    isa: Isa
    form: Form
    tile: Tile
    kc: int

    @property
    def sizes(self) -> str:
        """All that was chosen for the product."""
        return f"{self.form} {self.tile} {self.kc} {self.is_far} {self.rows_ahead} {self.product.is_turned}"

    @cached_property
    def lanes(self) -> int:
        return self.isa.lanes(self.product.dtype)

    @property
    def item(self) -> int:
        return ITEM_BYTES[self.product.dtype]

    @property
    def width(self) -> int:
        """Columns of a block."""
        return self.tile.columns * (self.lanes if self.form == "columns" else 1)

    @property
    def blocks(self) -> int:
        return ceil_div(self.product.n, self.width)

    @property
    def row_tiles(self) -> int:
        return ceil_div(self.product.m, self.tile.rows)

    @property
    def is_blocked(self) -> bool:
        """Whether several row tiles take turns, for a part of the depth at a time; sums are in memory meanwhile."""
        return self.row_tiles > 1

    @property
    def copies_b(self) -> bool:
        """Whether the row tiles read a copy of b: its rows lie far apart, and would evict each other."""
        return self.is_blocked and self.form == "columns"

    @property
    def sum_elements(self) -> int:
        """Elements of the sums of a block in memory: a vector for each sum of ``dots``."""
        return self.product.m * self.tile.columns * self.lanes

    @property
    def stack_bytes(self) -> int:
        panel = self.kc * self.width if self.copies_b else 0
        return (panel + self.sum_elements) * self.item

    @property
    def fits(self) -> bool:
        return self.stack_bytes <= self.isa.processor.l2(cost.SKINNY_STACK_L2)

    @property
    def b_bytes(self) -> int:
        return math.prod(self.product.groups) * self.product.k * self.product.n * self.item

    @property
    def is_far(self) -> bool:
        """Whether b comes from beyond the L2 cache."""
        return self.b_bytes > self.isa.processor.l2(cost.SKINNY_L2)

    @property
    def rows_ahead(self) -> int:
        """How many rows of a block of b are prefetched, where it is read in place."""
        return max(1, self.isa.processor.l1(cost.SKINNY_AHEAD_L1) // (self.width * self.item))

    @cached_property
    def units(self) -> WorkUnits:
        axes = [(f"group{i}", extent) for i, extent in enumerate(self.product.groups)]
        return WorkUnits((*axes, ("block", self.blocks)))

"""The sizes of products of a gathered operand and a plain one, for any strides and types; `gemm.c` is their kernel.

for each tile of rows x columns          thread blocks: batches, stride phases and splits of the terms, too
  for each `depth` terms                 both operands through shared memory, the next ones in registers meanwhile
    thread_rows x thread_columns sums    in the registers of a thread
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from jitdnn.kernels.algorithm import Epilogue
from jitdnn.tensor import DTYPES, TensorDescriptor, compute_dtype


@dataclass(frozen=True)
class Axis:
    """One axis of space; `gemm.c` says what becomes of the numbers.

    `stride_phases`: (stride, before, dilation, results, period) where rows go by stride phases.
    """

    grid: int
    g_mul: int
    g_off: int
    taps: int
    g_step: int
    extent: int
    g_stride: int
    p_stride: int
    y_stride: int
    t_start: int = 0
    t_step: int = 1
    y_mul: int = 1
    y_off: int = 0
    stride_phases: tuple[int, int, int, int, int] | None = None


@dataclass(frozen=True)
class Batch:
    """An axis of independent contractions: groups, or a batch of matrices."""

    extent: int
    g: int
    p: int
    y: int


@dataclass(frozen=True)
class Contraction:
    """Strides are in elements. `rows` and `terms` name the free digits (extent, step in g, step in y or p), `columns`
    (extent, step in p, step in y). `place` are the indices of an element of y in the names of `gemm.c`."""

    operands: tuple[TensorDescriptor, TensorDescriptor, TensorDescriptor]
    rows: tuple[int, int, int]
    terms: tuple[int, int, int]
    columns: tuple[int, int, int]
    axes: tuple[Axis, ...]
    batches: tuple[Batch, ...]
    place: tuple[str, ...]
    dtype: str  # of the arithmetic
    p_base: int = 0
    y_base: int = 0
    sums: str = ""

    @property
    def has_stride_phases(self) -> bool:
        return any(axis.stride_phases for axis in self.axes)

    @property
    def sum_dtype(self) -> str:
        return self.sums or compute_dtype(self.dtype)

    @property
    def results(self) -> int:
        """Elements of y, of all batches; with stride phases as many as the largest has."""
        return self.batch_count * self.row_count * self.columns[0]

    @property
    def row_count(self) -> int:
        return self.rows[0] * math.prod(axis.grid for axis in self.axes)

    @property
    def term_count(self) -> int:
        """Terms of a sum; of the stride phase with the most taps."""
        taps = (
            -(-axis.taps // axis.stride_phases[4]) if axis.stride_phases else axis.taps for axis in self.axes
        )
        return self.terms[0] * math.prod(taps)

    @property
    def batch_count(self) -> int:
        return math.prod(batch.extent for batch in self.batches)

    @property
    def stride_phase_count(self) -> int:
        return math.prod(axis.stride_phases[0] for axis in self.axes if axis.stride_phases)


@dataclass(frozen=True)
class Tiling:
    """Rows and columns of a thread block, terms at a time, rows and columns of a thread."""

    rows: int
    columns: int
    depth: int
    thread_rows: int
    thread_columns: int

    @property
    def shared(self) -> int:
        """Elements of shared memory."""
        return 2 * self.depth * (self.rows + self.columns + 8)


@dataclass(frozen=True)
class GemmPlan:
    """A contraction, how it is cut, how long that should take, and what is done to its results."""

    contraction: Contraction
    tiling: Tiling
    splits: int  # parts of the terms, added by a second kernel
    split_steps: int
    seconds: float
    epilogue: Epilogue | None

    @property
    def workspace(self) -> int:
        """Bytes for the partial sums."""
        if self.splits == 1:
            return 0
        c = self.contraction
        return self.splits * c.results * DTYPES[c.sum_dtype]

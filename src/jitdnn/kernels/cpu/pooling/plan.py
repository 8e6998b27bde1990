"""The frozen sizes that the code of pooling is generated from; every other size is an integer passed at run time.

A kernel pools N x C planes with the windows of ``geometry.Geometry``. Each of three plans vectorizes over another axis:

    ChannelPlan   over C: all lanes have the same window          for n u in units, c in groups of vectors: taps
    RowPlan       over W: lanes are neighbouring outputs          for u in units, o2 in blocks of lanes: rows, taps
    WindowPlan    over the window: lanes are neighbouring taps    for u in units, o2 in outputs: rows, vectors of taps

A unit is what a task computes at least: forward one row of outputs, backward one plane of dx, which belongs to one
task, so that overlapping windows are added up in one fixed order. ``UnpoolingPlan`` is that of unpooling.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from math import prod

from jitdnn.kernels.cpu.pooling.geometry import AXES, Axis, Geometry, arithmetic_of
from jitdnn.kernels.cpu.schedule.parallel import Slots
from jitdnn.problems.pooling import Pooling
from jitdnn.problems.unpooling import Unpooling
from jitdnn.rtcg.isa import ITEM_BYTES
from jitdnn.tensor import compute_dtype

_ACCUMULATOR_SLOTS = ("accumulator_rows", "accumulator_row", "pitch")


@dataclass(frozen=True, kw_only=True)
class PoolingPlan:
    """What all pooling kernels are generated from."""

    direction: str
    mode: str
    counts_padding: bool
    dtype: str
    computing: str  # the type of sums and maxima
    indices: str | None  # the type of the indices that a maximum returns too
    is_partition: bool  # every element of x belongs to exactly one window
    is_dilated: bool  # along any axis
    is_adaptive: bool

    @property
    def tensors(self) -> int:
        """Operands: x and y (and the indices), or dy (and x, y) and dx."""
        if self.direction == "bwd" and self.mode == "max":
            return 4
        return 2 + (self.indices is not None)

    @property
    def slots(self) -> Slots:
        """The integers that the code takes at run time."""
        return Geometry.slots(self.tensors, "units", "per_task")


def common_fields(problem: Pooling, geometry: Geometry) -> dict[str, object]:
    """The fields of a ``PoolingPlan`` for a problem."""
    return {
        "direction": problem.direction,
        "mode": problem.mode,
        "counts_padding": problem.count_include_pad,
        "dtype": problem.dtype,
        "computing": arithmetic_of(problem),
        "indices": None if problem.indices is None else problem.indices.dtype,
        "is_partition": geometry.is_partition,
        "is_dilated": geometry.is_dilated,
        "is_adaptive": geometry.is_adaptive,
    }


@dataclass(frozen=True, kw_only=True)
class ChannelPlan(PoolingPlan):
    """Vectorized over channels."""

    vectors: int  # of channels that go through a window together
    has_tail: bool  # the last of them is not full, and they are all channels of the group
    accumulates_rows: bool  # in a ``RowAccumulator``
    nontemporal: bool  # stores
    prefetches: bool  # a later window of x
    is_contiguous: tuple[bool, ...]  # for each tensor: neighbouring channels are neighbours in memory

    @property
    def slots(self) -> Slots:
        return Geometry.slots(self.tensors, "units", "per_task", "group", "groups", *_ACCUMULATOR_SLOTS)


@dataclass(frozen=True, kw_only=True)
class RowPlan(PoolingPlan):
    """Vectorized over a row of outputs."""

    stride: int
    window: int
    dilation: int
    is_clipped: bool  # along the row
    row: tuple[int, int, int] | None  # of a short row: extents of input and output, padding before
    unrolled: tuple[int, int]  # rows of a window along axes 0 and 1; 0 if there are many
    clips: tuple[bool, bool]  # whether windows are clipped along axes 0 and 1
    has_empty_windows: bool
    is_contiguous: bool  # outputs of a row are neighbours in memory
    nontemporal: bool  # stores

    @property
    def slots(self) -> Slots:
        return Geometry.slots(self.tensors, "units", "per_task", *_ACCUMULATOR_SLOTS)

    @property
    def tap_groups(self) -> tuple[int, ...]:
        """The sets of ``stride`` vectors of columns that taps are selected from, by number."""
        return tap_groups(self.window, self.stride, self.dilation)

    def column_vectors(self, lanes: int) -> int:
        """The vectors of columns that the windows of one block reach."""
        return ((lanes - 1) * self.stride + (self.window - 1) * self.dilation) // lanes + 1


@dataclass(frozen=True, kw_only=True)
class WindowPlan(PoolingPlan):
    """Vectorized over the window."""


def tap_groups(window: int, stride: int, dilation: int) -> tuple[int, ...]:
    """The numbers of the sets of ``stride`` vectors of a row that the taps of a block of outputs are in."""
    return tuple(sorted({tap * dilation // stride for tap in range(window)}))


def row_vectors(axis: Axis) -> int:
    """Vectors of a row that are in registers at once."""
    return len(tap_groups(axis.window, axis.stride, axis.dilation)) * axis.stride


# ---- the rows in which overlapping windows are added up (row_accumulator.py)


def accumulator_sizes(axis: Axis, extent: int, pitch: int) -> dict[str, int]:
    """Values of the slots: a power of two of rows, each of ``extent`` runs of ``pitch`` elements."""
    rows = 1 << (min(axis.span, axis.extent) - 1).bit_length()
    return {"accumulator_rows": rows, "accumulator_row": extent * pitch, "pitch": pitch}


def accumulator_over_channels(geometry: Geometry, width: int) -> dict[str, int]:
    """A row has the axes 1 and 2 of x, ``width`` channels for each position."""
    a0, a1, a2 = geometry.axes
    return accumulator_sizes(a0, a1.extent, a2.extent * width)


def accumulator_over_rows(geometry: Geometry, lanes: int) -> dict[str, int]:
    """A row has the axes 1 and 2 of x, with columns around axis 2 for all that the blocks of outputs reach."""
    a0, a1, a2 = geometry.axes
    blocks = -(-a2.out // lanes)
    reach = (blocks * lanes - 1) * a2.stride + a2.span
    vectors = max(reach, a2.before + a2.extent) // lanes + 2
    return accumulator_sizes(a0, a1.extent, vectors * lanes)


def accumulator_bytes(sizes: dict[str, int], dtype: str, threads: int) -> int:
    """Bytes of the accumulators of all threads."""
    return threads * sizes["accumulator_rows"] * sizes["accumulator_row"] * ITEM_BYTES[dtype]


# ---- unpooling

UNPOOLING_TENSORS = 3  # the one that is read, the indices, the result
UNPOOLING_SLOTS = Slots(
    "units", "per_task", "blocks", "channels", "pitch", "size",
    *(f"{name}{a}" for name in ("small", "large") for a in range(AXES)),
    *(f"stride{t}.{a}" for t in range(UNPOOLING_TENSORS) for a in range(2 + AXES)),
)  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class UnpoolingPlan:
    """Unpooling, vectorized over channels or over a row of the small tensor; ``planes`` of them are a unit."""

    direction: str
    dtype: str
    indices: str
    over_channels: bool
    planes: int
    is_contiguous: tuple[bool, ...]  # for each tensor: neighbouring lanes are neighbours in memory
    is_uniform: bool  # one stride leads through all elements of a plane of the large tensor
    nontemporal: bool  # stores

    @property
    def computing(self) -> str:
        """The type of the arithmetic."""
        return compute_dtype(self.dtype)


def unpooling_plan(problem: Unpooling, lanes: int, nontemporal: bool) -> UnpoolingPlan:
    tensors = [operand.descriptor for operand in problem.operands]
    small, large = problem.small, problem.large
    over_channels = small.shape[1] > 1 and all(t.strides[1] == 1 for t in (small, large))
    axes = list(zip(large.shape[2:], large.strides[2:], strict=True))
    return UnpoolingPlan(
        direction=problem.direction,
        dtype=problem.dtype,
        indices=problem.indices.dtype,
        over_channels=over_channels,
        planes=lanes if over_channels else 1,
        is_contiguous=tuple(t.strides[1 if over_channels else -1] == 1 for t in tensors),
        is_uniform=all(outer == extent * inner for (_, outer), (extent, inner) in pairwise(axes)),
        nontemporal=nontemporal,
    )


def unpooling_pitch(plan: UnpoolingPlan, problem: Unpooling, lanes: int) -> int:
    """Elements of workspace of a thread: the planes of a unit, one element more each, rounded up to vectors."""
    return (prod(problem.large.shape[2:]) * plan.planes // lanes + 2) * lanes

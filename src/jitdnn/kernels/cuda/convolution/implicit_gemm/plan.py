"""Frozen sizes of the implicit products: the geometry, which operands are packed, the blocking, and the copies."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from jitdnn.kernels.cuda.convolution.implicit_gemm.geometry import (
    MASK_BITS,
    Batch,
    Geometry,
    TensorStrides,
    geometry_of,
)
from jitdnn.kernels.cuda.gemm.plan import Blocking, GemmSize, Pack
from jitdnn.problems.convolution import Convolution
from jitdnn.tensor import DTYPES, TensorDescriptor

PIXEL_BYTES = 32
"""Of wgrad's `Pixel` in shared memory, at most: it has two tables of BK pixels each."""


@dataclass(frozen=True)
class Plan:
    """fprop or dgrad. A is the data, B the filter.

    `copy_a`, `copy_b`: bytes of an asynchronous copy of each, 0 where elements are copied one by one.
    `is_mn_major`: B is (A always is K-major). `width`: results that are stored at once. `rows_first`: threads of a
    warp store neighbouring pixels, not channels. `filter_in_channels`, `filter_out_channels`: those that may be read,
    with what packing adds. `index`: the type of offsets. `seconds`: expected time.
    """

    geometry: Geometry
    dtype: str
    data_pack: Pack | None
    filter_pack: Pack | None
    blocking: Blocking
    copy_a: int
    copy_b: int
    is_mn_major: bool
    width: int
    rows_first: bool
    filter_in_channels: int
    filter_out_channels: int
    index: str
    seconds: float

    @property
    def packs(self) -> tuple[Pack, ...]:
        return tuple(pack for pack in (self.data_pack, self.filter_pack) if pack)

    @property
    def partials_offset(self) -> int:
        """The byte of the workspace at which the partial sums begin."""
        return sum(pack.bytes for pack in self.packs)

    @property
    def workspace(self) -> int:
        return self.partials_offset + self.blocking.partial_bytes(self.geometry.gemms)

    @property
    def unaligned(self) -> Plan:
        """The same for operands at any address: elements of what is not packed are copied one by one."""
        copy_a = self.copy_a if self.data_pack else 0
        copy_b = self.copy_b if self.filter_pack else 0
        return replace(self, copy_a=copy_a, copy_b=copy_b, width=1)

    @property
    def alignments(self) -> tuple[int, int, int]:
        """What the addresses of the operands must be multiples of, in bytes."""
        data = 1 if self.data_pack else self.copy_a
        weights = 1 if self.filter_pack else self.copy_b
        result = min(16, self.width * DTYPES[self.dtype]) if self.width > 1 else 1
        return max(1, data), max(1, weights), result


@dataclass(frozen=True)
class WgradPlan:
    """wgrad. A is dy, B is x, both MN-major.

    `in_channels`, `out_channels`: channels of x and dy in a group, with what packing adds. `copy_a`, `copy_b`,
    `is_vector`: eight results are stored at once. `index`, `seconds`: as in `Plan`.
    """

    problem: Convolution
    batch: Batch | None
    x: TensorStrides
    dy: TensorStrides
    in_channels: int
    out_channels: int
    x_pack: Pack | None
    dy_pack: Pack | None
    blocking: Blocking
    copy_a: int
    copy_b: int
    is_vector: bool
    index: str
    seconds: float

    @property
    def partials_offset(self) -> int:
        """The byte of the workspace at which the partial sums begin."""
        return sum(pack.bytes for pack in (self.x_pack, self.dy_pack) if pack)

    @property
    def gemm(self) -> GemmSize:
        return wgrad_gemm(self.problem, self.in_channels, self.groups)

    @property
    def groups(self) -> int:
        return self.batch.count if self.batch else self.problem.groups

    @property
    def workspace(self) -> int:
        return self.partials_offset + self.blocking.partial_bytes([self.gemm])

    @property
    def unaligned(self) -> WgradPlan:
        """The same for operands at any address: elements of what is not packed are copied one by one."""
        copy_a = self.copy_a if self.dy_pack else 0
        copy_b = self.copy_b if self.x_pack else 0
        return replace(self, copy_a=copy_a, copy_b=copy_b, is_vector=False)

    @property
    def alignments(self) -> tuple[int, int, int]:
        """What the addresses of x, dy and dw must be multiples of, in bytes."""
        x = 1 if self.x_pack else self.copy_b
        dy = 1 if self.dy_pack else self.copy_a
        return max(1, x), max(1, dy), 16 if self.is_vector else 1


def wgrad_gemm(problem: Convolution, in_channels: int, groups: int) -> GemmSize:
    pixels = problem.n * math.prod(problem.output_spatial)
    taps = math.prod(problem.filter_spatial)
    return GemmSize(problem.k // problem.groups, taps * in_channels, pixels, groups)


def leaves_input(problem: Convolution) -> list[bool]:
    """For each axis of space, whether some tap of some pixel of dy meets no pixel of x."""
    # dy is an input here, which may overlap itself, as no result may
    y = TensorDescriptor.packed(problem.y.shape, problem.y.dtype)
    forward = geometry_of(replace(problem, direction="fwd", y=y))
    return [axis.is_masked for axis in forward.axes[3 - len(problem.spatial) :]]


def is_masked(problem: Convolution) -> bool:
    """True if the taps that may lie outside of x fit into the bits of a mask."""
    taps = [n for n, outside in zip(problem.filter_spatial, leaves_input(problem), strict=True) if outside]
    return sum(taps) <= MASK_BITS

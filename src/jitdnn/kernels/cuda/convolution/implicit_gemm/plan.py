"""Frozen sizes of the implicit products: the geometry, which operands are packed, the blocking, and the copies."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from jitdnn.kernels.cuda.convolution.implicit_gemm.geometry import MASK_BITS, Batch, Form, View, form_of
from jitdnn.kernels.cuda.gemm.plan import Cut, Pack, Work
from jitdnn.problems.convolution import Convolution
from jitdnn.tensor import TensorDescriptor

PIXEL_BYTES = 32  # at most, of what is known of a pixel; two blocks of them lie in shared memory


@dataclass(frozen=True)
class Plan:
    """How a problem is computed: the form, what is packed, how it is cut, and how wide copies are."""

    form: Form
    dtype: str
    data_pack: Pack | None
    filter_pack: Pack | None
    cut: Cut
    copy_a: int
    copy_b: int
    is_across: bool
    is_vector: bool
    rows_first: bool
    filter_depth: int
    filter_columns: int
    index: str
    seconds: float

    @property
    def packs(self) -> tuple[Pack, ...]:
        return tuple(pack for pack in (self.data_pack, self.filter_pack) if pack)

    @property
    def parts_at(self) -> int:
        """Where in the workspace the sums of the parts begin."""
        return sum(pack.bytes for pack in self.packs)

    @property
    def workspace(self) -> int:
        return self.parts_at + self.cut.partial_bytes(self.form.works)

    @property
    def elementwise(self) -> Plan:
        """The same for operands at any address."""
        copy_a = self.copy_a if self.data_pack else 0
        copy_b = self.copy_b if self.filter_pack else 0
        return replace(self, copy_a=copy_a, copy_b=copy_b, is_vector=False)

    @property
    def alignments(self) -> tuple[int, int, int]:
        """What the addresses of the operands must be multiples of."""
        data = 1 if self.data_pack else self.copy_a
        weights = 1 if self.filter_pack else self.copy_b
        return max(1, data), max(1, weights), 16 if self.is_vector else 1


@dataclass(frozen=True)
class WgradPlan:
    """How a problem is computed. `depth` and `height` are the channels of x and dy in a group, packed ones extended."""

    problem: Convolution
    batch: Batch | None
    data: View
    outer: View
    depth: int
    height: int
    data_pack: Pack | None
    outer_pack: Pack | None
    cut: Cut
    copy_a: int
    copy_b: int
    is_vector: bool
    index: str
    seconds: float

    @property
    def parts_at(self) -> int:
        """Where in the workspace the sums of the parts begin."""
        return sum(pack.bytes for pack in (self.data_pack, self.outer_pack) if pack)

    @property
    def work(self) -> Work:
        return wgrad_gemm(self.problem, self.depth, self.groups)

    @property
    def groups(self) -> int:
        return self.batch.count if self.batch else self.problem.groups

    @property
    def workspace(self) -> int:
        return self.parts_at + self.cut.partial_bytes([self.work])

    @property
    def elementwise(self) -> WgradPlan:
        """The same for operands at any address."""
        copy_a = self.copy_a if self.outer_pack else 0
        copy_b = self.copy_b if self.data_pack else 0
        return replace(self, copy_a=copy_a, copy_b=copy_b, is_vector=False)

    @property
    def alignments(self) -> tuple[int, int, int]:
        """What the addresses of x, dy and dw must be multiples of."""
        data = 1 if self.data_pack else self.copy_b
        outer = 1 if self.outer_pack else self.copy_a
        return max(1, data), max(1, outer), 16 if self.is_vector else 1


def wgrad_gemm(problem: Convolution, depth: int, groups: int) -> Work:
    pixels = problem.n * math.prod(problem.output_spatial)
    taps = math.prod(problem.filter_spatial)
    return Work(problem.k // problem.groups, taps * depth, pixels, groups)


def leaves_input(problem: Convolution) -> list[bool]:
    """For each axis of space, whether some tap of some pixel of dy meets no pixel of x."""
    # dy is an input here, which may overlap itself, as no result may
    y = TensorDescriptor.packed(problem.y.shape, problem.y.dtype)
    forward = form_of(replace(problem, direction="fwd", y=y))
    return [axis.is_masked for axis in forward.axes[3 - len(problem.spatial) :]]


def is_masked(problem: Convolution) -> bool:
    """True if the taps that may lie outside of x fit into the bits of a mask."""
    taps = [n for n, outside in zip(problem.filter_spatial, leaves_input(problem), strict=True) if outside]
    return sum(taps) <= MASK_BITS

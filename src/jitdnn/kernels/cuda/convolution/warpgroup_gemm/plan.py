"""Frozen sizes of implicit products by warpgroups: the blocking, packed operands, the tensor maps and the tables.

A is the data and B the filter, or dy and x of a wgrad. The loops, with the names of the sizes:

    for each thread block of the device            (persistent)
        for each of its work tiles                 a tile, `Blocking.splits` of its K: tile.m x tile.n
            for each stage                         a tap and 128 bytes of channels, mostly; of wgrad, of pixels
                for each consumer                  64 * tile.rows rows, sums in registers
                    for each wgmma                 64 x tile.n x 32 bytes of K
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from jitdnn.devices.tensor_map import ALIGNMENT, Tables
from jitdnn.kernels.cuda.convolution.warpgroup_gemm.fusion import NOTHING, Fusion
from jitdnn.kernels.cuda.convolution.warpgroup_gemm.operands import Pack
from jitdnn.kernels.cuda.warpgroup.plan import Blocking
from jitdnn.tensor import FLOAT8_DTYPES

DIVISION_BYTES = 8 * (16 + 8 * 3 * 4)
"""Shared memory of what divides numbers into halves: barriers and maxima of each stage; as in divide.cuh."""


MAX_PHASES = 8


def phases_of_code(phases: int) -> int:
    """For how many stride phases the code is that takes so many: of images, of volumes, or for none.

    Eight in place of four cost images 1 to 3 %.
    """
    return phases if phases == 1 else 4 if phases <= 4 else MAX_PHASES


@dataclass(frozen=True)
class Plan:
    """A product that is ready to be launched.

    `dtypes`, `result`: of the two operands and of the result. `rank`: of the maps of pixels. `phases`: stride phases,
    each with maps of A. `is_b_mn_major`: neighbours of B in memory are columns.
    `is_a_mn_major`: those of A are rows, though it is no wgrad. `is_vector`: 16 bytes of a row are
    stored at once. `rows_first`: neighbouring threads store neighbouring rows. `is_in_boxes`: the copy engine stores
    the results. `row_bytes`: of channels that one copy brings of each pixel. `fusion`: a prologue and sums by channel;
    `channels`: of the result, over all groups. `is_wide`: an epilogue may read its operands by whole sectors.
    `is_divided`: f32 is divided into halves in shared memory.
    `segment`: pixels of a line that a wgrad in lines takes at a time, 0 of others. `used_steps`: of the four products
    along K of a stage, those that have channels of f32 that is divided in registers. `pixels_are_columns`: of
    the product, whose rows are channels of the result. `is_paired`: two stride phases are halves of the columns.
    """

    is_wgrad: bool
    dtypes: tuple[str, str]
    result: str
    rank: int
    phases: int
    is_b_mn_major: bool
    is_vector: bool
    rows_first: bool
    is_in_boxes: bool
    row_bytes: int
    blocking: Blocking
    works: int
    packs: tuple[Pack | None, Pack | None]
    tables: Tables
    workspace: int
    seconds: float
    fusion: Fusion = NOTHING
    channels: int = 0
    is_wide: bool = True
    is_divided: bool = False
    segment: int = 0
    is_a_mn_major: bool = False
    used_steps: int = 4
    pixels_are_columns: bool = False
    is_paired: bool = False

    @property
    def shared(self) -> int:
        """Bytes of shared memory of a thread block."""
        return self.blocking.shared + self.fusion.shared + (DIVISION_BYTES if self.is_divided else 0)

    @property
    def divides_rows(self) -> bool:
        """Whether f32 of A is divided into halves in registers."""
        return self.blocking.divides_rows

    @property
    def takes_ring(self) -> bool:
        """Whether stages, and whether all of B is kept, are arguments of the kernels.

        Not where few kernels differ in nothing else: a thread that copies by stride phases has no registers for them.
        """
        is_whole = self.blocking.is_whole and self.phases == 1 and not self.blocking.sharers
        return is_whole and not (self.is_wgrad or self.fusion.has_prologue)

    @property
    def is_integer(self) -> bool:
        return self.dtypes[0] == "i8"

    @property
    def is_widened(self) -> bool:
        """Whether 8-bit reals are multiplied as f16."""
        return any(pack and pack.is_widened for pack in self.packs)

    @property
    def is_scaled(self) -> bool:
        """Whether f32 numbers are multiplied as f16, or as parts of bf16, times a power of two."""
        return any(pack and pack.is_scaled for pack in self.packs)

    @property
    def is_blockwise(self) -> bool:
        """Whether they are, in blocks of pixels and channels that are scaled by themselves."""
        return any(pack and pack.shifts >= 0 for pack in self.packs)

    @property
    def is_promoted(self) -> bool:
        """Whether the sums of each stage are moved to other registers."""
        return (
            self.blocking.parts > 1
            or self.is_blockwise
            or (self.dtypes[0] in FLOAT8_DTYPES and not self.is_widened)
        )

    @property
    def multiplied(self) -> tuple[str, str]:
        """The types of what the tensor cores multiply."""
        if self.blocking.parts == 3:
            return "bf16", "bf16"
        return ("f16", "f16") if self.is_scaled or self.is_widened or self.is_divided else self.dtypes

    @property
    def alignments(self) -> tuple[int, int, int]:
        """What the operands' addresses must be multiples of, in bytes."""
        first, second = (1 if pack else ALIGNMENT for pack in self.packs)
        return first, second, ALIGNMENT if self.is_vector or self.is_in_boxes else 1

    @property
    def with_any_result(self) -> Plan:
        """The same for results at any address."""
        maps = self.tables.maps[:-1] if self.is_in_boxes else self.tables.maps
        return replace(self, is_vector=False, is_in_boxes=False, tables=replace(self.tables, maps=maps))

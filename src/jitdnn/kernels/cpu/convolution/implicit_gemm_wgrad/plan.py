"""The sizes of a wgrad as an implicit GEMM over pixels.

    dw[k, c, tap] = sum over images n and pixels p of  dy[n, k, p] * x[n, c, step * p + offset of tap]

Rows of this product are pairs (channel c, tap), its columns are k, and the reduction runs over images and pixels of dy.
``blocking`` holds the sizes that end in c, ``tile`` those that end in r, in the words of GotoBLAS:

    for group                                                              a task
      for channels of x        blocking.channels at a time           Mc    a task
        for split              of blocking.split_k                         a task: some blocks of pixels
          for partition        of blocking.partitions                Nc    a task: panels_per_partition panels of k
            for block          of the split: blocking.block pixels   Kc
              pack x           input tile, zeros for padding               packing.py; stays in the L2 cache
              for panel        of the partition: panel_width of k    Nr
                pack dy        panel, [pixel][panel_width]                 packing.py; stays in the L2 cache
                for channel, d, h, w of taps: a box of tile.rows     Mr    sums in registers, Mr x tile.vectors
                  for pixel    of the block, clipped                       microkernel/gemm.py
                    sums[row][lanes of k] += broadcast of x * vector of dy
              last block       store dw                                    store.py, if split_k is 1
    for group, channels, panel                                             a task of the second phase
      add the sums of all splits in their order, store dw                  store.py, if split_k is above 1

Between blocks the sums wait in memory, [panel][channel][taps][panel_width]. Partitions of one split are neighbouring
tasks: they read the same x, which the first of them leaves in the cache. *Clipping*: a tile leaves out the pixels for
which none of its taps reads inside of the image. Along an axis where tiles have one tap each and are clipped, the input
tile of a whole image needs no zeros (``is_unpadded``).

What is split depends on the problem alone, so the result is the same to the bit with any threads.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cached_property

from jitdnn.kernels.cpu.convolution.implicit_gemm_wgrad.rewrites import image_range
from jitdnn.kernels.cpu.correlation import Correlation
from jitdnn.kernels.cpu.microkernel.packing import (
    InputRange,
    InputTile,
    input_range,
    input_tile_extent,
    input_tile_step,
    plan_input_tile,
)
from jitdnn.kernels.cpu.microkernel.register_tiles import RegisterTile
from jitdnn.kernels.cpu.plan import CorrelationPlan
from jitdnn.kernels.cpu.schedule.offsets import ceil_div, whole_lines


@dataclass(frozen=True)
class Blocking:
    """How the loops are cut: channels of x in an input tile, (images, d, h, w) of dy in a block, the partitions of the
    panels, and the splits of the reduction."""

    channels: int
    block: tuple[int, int, int, int]
    partitions: int
    split_k: int


@dataclass(frozen=True)
class ImplicitGemmWgradPlan(CorrelationPlan):
    """A register tile and a blocking for one wgrad. Sizes are in elements unless said otherwise.

    ``clipped``: the axes along which tiles leave out pixels whose taps all read padding. ``is_swapped``: the
    correlation's x is the problem's dy, and its y the problem's x.
    """

    tile: RegisterTile
    clipped: tuple[bool, bool, bool]
    blocking: Blocking
    is_swapped: bool = False

    # ---- the product: rows, columns and reduction

    @cached_property
    def rows(self) -> tuple[int, int, int, int]:
        """Extents of the rows of the product: channels and the three axes of taps."""
        d, h, w = (axis.taps.count for axis in self.c.axes)
        return self.c.depth, d, h, w

    @cached_property
    def pixels(self) -> tuple[int, int, int, int]:
        """Extents of the reduction: images and the three axes of dy."""
        d, h, w = (axis.results for axis in self.c.axes)
        return self.c.batch, d, h, w

    @property
    def panel_width(self) -> int:
        """Output channels of one panel."""
        return self.tile.vectors * self.lanes

    @cached_property
    def panels(self) -> int:
        return ceil_div(self.c.width, self.panel_width)

    @cached_property
    def microkernel_calls(self) -> int:
        """Register tiles that cover all rows."""
        return math.prod(ceil_div(e, side) for e, side in zip(self.rows, self.tile.box, strict=True))

    # ---- blocking

    @property
    def channel_blocks(self) -> int:
        return ceil_div(self.c.depth, self.blocking.channels)

    @cached_property
    def pixel_blocks(self) -> tuple[int, int, int, int]:
        """Blocks along the images and the three axes of dy."""
        n, d, h, w = (
            ceil_div(of, extent) for of, extent in zip(self.pixels, self.blocking.block, strict=True)
        )
        return n, d, h, w

    @property
    def panels_per_partition(self) -> int:
        return ceil_div(self.panels, self.blocking.partitions)

    @property
    def tasks(self) -> int:
        """Tasks of the first phase."""
        return self.c.group_count * self.channel_blocks * self.blocking.partitions * self.blocking.split_k

    def phases(self) -> list[tuple[str, int]]:
        """The launch phases: names and tasks."""
        phases = [("sums", self.tasks)]
        if self.blocking.split_k > 1:
            phases.append(("split_k_reduction", self.c.group_count * self.channel_blocks * self.panels))
        return phases

    # ---- the input tile and the panel of dy

    @property
    def is_channels_last(self) -> bool:
        """True if the input tile holds channels last: see `plan_input_tile`."""
        x = self.c.x
        return x.channels == 1 and self.c.depth > 1 and x.space[2] != 1

    def is_unpadded(self, axis: int, pixels: int) -> bool:
        """True if the input tile of so many pixels along an axis needs no padding: they are all, and each tap is
        clipped for itself."""
        is_whole = pixels == self.pixels[1 + axis]
        return is_whole and self.clipped[axis] and self.tile.box[1 + axis] == 1

    def extent(self, axis: int, pixels: int) -> int:
        """Positions of x along an axis in the input tile of so many pixels."""
        own = self.c.axes[axis]
        if self.is_unpadded(axis, pixels):
            return image_range(own, pixels).extent
        return input_tile_extent(own, pixels)

    def _range(self, axis: int, pixels: int) -> InputRange:
        """Which positions they are."""
        own = self.c.axes[axis]
        return (
            image_range(own, pixels) if self.is_unpadded(axis, pixels) else input_range(own, pixels, 1, False)
        )

    @property
    def unpadded(self) -> tuple[bool, bool, bool]:
        """The axes along which the input tile holds no padding."""
        d, h, w = (self.is_unpadded(axis, pixels) for axis, pixels in enumerate(self.blocking.block[1:]))
        return d, h, w

    @property
    def block_correlation(self) -> Correlation:
        """What is computed from one input tile: the correlation with as many channels."""
        return replace(self.c, depth=self.blocking.channels)

    @cached_property
    def input_tile(self) -> InputTile:
        block = self.blocking.block
        reaches = [self._range(axis, pixels) for axis, pixels in enumerate(block[1:])]
        return plan_input_tile(self.block_correlation, block, self.lanes, ranges=reaches)

    @property
    def origin(self) -> int:
        """Offset in the input tile of what the first tap of the first pixel reads; below 0 in front of an axis without
        padding."""
        pairs = zip(self.c.axes, self.input_tile.lows, self.input_tile.space, strict=True)
        return sum((axis.taps.lowest - low) * stride for axis, low, stride in pairs)

    @property
    def input_tile_pixel_strides(self) -> tuple[int, int, int, int]:
        """Strides of the input tile along the images and the axes of dy."""
        d, h, w = (
            input_tile_step(axis) * s for axis, s in zip(self.c.axes, self.input_tile.space, strict=True)
        )
        return self.input_tile.batch, d, h, w

    @property
    def input_tile_row_strides(self) -> list[int]:
        """Strides of the input tile along the rows of the product: channels and taps."""
        taps = [axis.taps.shift * s for axis, s in zip(self.c.axes, self.input_tile.space, strict=True)]
        return [self.input_tile.channels, *taps]

    @property
    def panel_pixel_strides(self) -> tuple[int, int, int, int]:
        """Strides of a panel of dy along the images and the axes of dy."""
        _, d, h, w = self.blocking.block
        return d * h * w * self.panel_width, h * w * self.panel_width, w * self.panel_width, self.panel_width

    # ---- the sums

    @property
    def accumulates(self) -> bool:
        """True if sums wait in memory for another block."""
        return math.prod(self.pixel_blocks) > self.blocking.split_k

    @cached_property
    def rounded_rows(self) -> tuple[int, int, int, int]:
        """Channels of a block and taps, each rounded up to whole register tiles."""
        extents = (self.blocking.channels, *self.rows[1:])
        a, b, c, d = (ceil_div(e, side) * side for e, side in zip(extents, self.tile.box, strict=True))
        return a, b, c, d

    @property
    def sum_row_strides(self) -> tuple[int, int, int, int]:
        """Strides of the sums along the rows of the product: channels and taps."""
        _, d, h, w = self.rounded_rows
        return d * h * w * self.panel_width, h * w * self.panel_width, w * self.panel_width, self.panel_width

    @property
    def panel_sums(self) -> int:
        """Sums of one block of channels and one panel."""
        return math.prod(self.rounded_rows) * self.panel_width

    @property
    def split_sums(self) -> int:
        """Sums of one group and one split."""
        return self.channel_blocks * self.panels * self.panel_sums

    # ---- memory

    @cached_property
    def input_tile_elements(self) -> int:
        """Room for the input tile and for what the last register tiles read beyond it and never use."""
        elements = (self.blocking.block[0] - 1) * self.input_tile.batch + 1
        for extent, stride in zip(self.input_tile.extents, self.input_tile.space, strict=True):
            elements += (extent - 1) * stride
        for stride, rounded in zip(self.input_tile_row_strides, self.rounded_rows, strict=True):
            elements += (rounded - 1) * abs(stride)
        return whole_lines(elements + 8 * self.lanes, self.c.dtype, self.isa)

    @cached_property
    def panel_elements(self) -> int:
        """Room for a panel of dy, and for two vectors that are written beyond it."""
        return whole_lines(
            math.prod(self.blocking.block) * self.panel_width + 2 * self.lanes, self.c.dtype, self.isa
        )

    @cached_property
    def task_sum_elements(self) -> int:
        """Room for the sums of a task that no other phase reads: of all its panels, or of one after the other."""
        if self.blocking.split_k > 1:
            return 0
        return whole_lines(
            self.panel_sums * (self.panels_per_partition if self.accumulates else 1), self.c.dtype, self.isa
        )

    @cached_property
    def split_k_elements(self) -> int:
        """Room for the sums of all splits."""
        split_k = self.blocking.split_k
        return whole_lines(
            self.c.group_count * split_k * self.split_sums if split_k > 1 else 0, self.c.dtype, self.isa
        )

    @property
    def thread_elements(self) -> int:
        """Room that a thread needs for itself: an input tile, a panel, and sums."""
        return self.input_tile_elements + self.panel_elements + self.task_sum_elements

    def workspace(self, threads: int) -> int:
        """Bytes: the sums of all splits, then the room of each thread."""
        return (self.split_k_elements + threads * self.thread_elements) * self.item

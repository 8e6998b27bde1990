"""A filter's gradient with the channels of a channels-last image in the lanes: nothing is packed.

    unit : one group, a block of result channels, some vectors of channels, a run of taps
    pass : some rows of dy for one tap; the sums wait in a little memory for the next rows
    tile : sums of [result channels][vectors of channels]; dy is broadcast

A row of the filter whose taps and channels follow each other, as those of the image do, is one run of channels and
one tap. Every unit goes through all images once, some rows at a time, and owns what it writes.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property

from jitdnn.devices.cpu import Arguments, CpuDevice
from jitdnn.kernels.cpu.convolution.direct.wgrad_over_channels_code import trace_finish, trace_pass
from jitdnn.kernels.cpu.convolution.direct.wgrad_rows import POINTERS, filter_offset, row_blocks
from jitdnn.kernels.cpu.correlation import Correlation
from jitdnn.kernels.cpu.schedule.boundary import when
from jitdnn.kernels.cpu.schedule.offsets import ceil_div, scale, split_index, view_offset
from jitdnn.kernels.cpu.schedule.work_units import WorkUnits
from jitdnn.rtcg.builder import Module
from jitdnn.rtcg.isa import ITEM_BYTES, Isa

_STACK_BYTES = 16 << 10  # sums of a unit
_ROWS_BYTES = 64 << 10  # what the passes over some rows read: it stays close
_CACHE_BYTES = 1 << 20
_FAR_BYTES = 10.0  # that a cycle brings from beyond the L2 cache
_GATHERED_LANE = 5.0  # load slots (two a cycle) of one lane of a gather
_UNALIGNED = 1.75  # load slots of a vector that may touch two cache lines
_TURN = 2.0  # load slots that a turn of the loop over the pixels is worth
_PASS = 30.0  # cycles to begin and end a pass
_FINISH = 4.0  # cycles to store one vector of sums


@dataclass(frozen=True)
class WgradChannelTile:
    """Sums in registers: result channels, and vectors of channels."""

    results: int
    vectors: int


@dataclass(frozen=True)
class WgradOverChannels:
    """How the gradient of one filter is computed; ``c`` is the forward correlation, with y as dy and w as dw."""

    c: Correlation
    isa: Isa

    @property
    def lanes(self) -> int:
        return self.isa.lanes(self.c.dtype)

    @cached_property
    def is_joined(self) -> bool:
        """True if a row of the filter is one run of channels, as what it meets in the image is."""
        c, axis = self.c, self.c.axes[2]
        if c.depth % self.lanes == 0 or c.x.channels != 1 or c.w.channels != 1 or axis.taps.count < 2:
            return False
        return axis.taps.shift == 1 and c.x.space[2] == axis.taps.increment * c.w.space[2] == c.depth

    @property
    def run(self) -> int:
        """Channels of one tap, or of one row of them if joined."""
        return self.c.depth * (self.c.axes[2].taps.count if self.is_joined else 1)

    @property
    def taps(self) -> tuple[int, int, int]:
        """Taps to go through along each axis."""
        d, h, w = (axis.taps.count for axis in self.c.axes)
        return d, h, 1 if self.is_joined else w

    # ---- choice and cost

    @cached_property
    def tile(self) -> WgradChannelTile:
        return min(self._candidates(), key=self._cycles_of)

    def _candidates(self) -> Iterator[WgradChannelTile]:
        for vectors in range(1, min(4, ceil_div(self.run, self.lanes)) + 1):
            most = (self.isa.registers - 1 - vectors) // vectors
            for results in {ceil_div(self.c.width, parts) for parts in range(1, self.c.width + 1)}:
                if results <= most:
                    yield WgradChannelTile(results, vectors)

    def _cycles_of(self, tile: WgradChannelTile) -> float:
        """Cycles of one group, for all images."""
        c = self.c
        full, rest = divmod(c.width, tile.results)
        blocks = full * self._pass_cycles(tile)
        if rest:
            blocks += self._pass_cycles(replace(tile, results=rest))
        columns = ceil_div(self.run, tile.vectors * self.lanes)
        return columns * max(blocks * math.prod(self.taps), self._traffic(tile) / columns)

    def _pass_cycles(self, tile: WgradChannelTile) -> float:
        """Cycles of one tap and one block of channels, for all images."""
        c = self.c
        sums = tile.results * tile.vectors
        if c.x.channels == 1:
            slots = 1.0 if c.depth % self.lanes == 0 else _UNALIGNED
        else:
            slots = _GATHERED_LANE * self.lanes
        step = max(sums / 2, (tile.vectors * slots + tile.results + _TURN) / 2, 4.0)
        lines = c.batch * c.axes[0].results * c.axes[1].results
        walk = c.axes[2].results * step + (2.0 * sums + _PASS) / self.row_block(tile) + 6.0
        return lines * walk + sums * _FINISH

    def _traffic(self, tile: WgradChannelTile) -> float:
        """Cycles to bring what the units read from beyond the L2 cache."""
        c, item = self.c, ITEM_BYTES[self.c.dtype]
        x = c.batch * math.prod(axis.positions for axis in c.axes) * c.depth * item
        dy = c.batch * math.prod(axis.results for axis in c.axes) * c.width * item
        if x + dy < _CACHE_BYTES:
            return 0.0
        columns = ceil_div(self.run, tile.vectors * self.lanes)
        lines = min(c.width, tile.results + self.lanes) / tile.results  # whole cache lines are brought
        return (x * ceil_div(c.width, tile.results) + dy * columns * lines) / _FAR_BYTES

    def row_block(self, tile: WgradChannelTile) -> int:
        """Rows of dy of one pass."""
        c = self.c
        each = (
            tile.results * c.axes[2].results
            + tile.vectors * self.lanes * c.axes[2].positions * c.axes[1].step
        )
        return max(1, min(c.axes[1].results, _ROWS_BYTES // (each * ITEM_BYTES[c.dtype])))

    def cycles(self) -> float:
        """Cycles of one thread for the whole."""
        return self.c.group_count * self._cycles_of(self.tile)

    # ---- division

    @property
    def _sums(self) -> int:
        """Sums of one pass."""
        return self.tile.results * self.tile.vectors * self.lanes

    @cached_property
    def _taps_of_unit(self) -> int:
        room = _STACK_BYTES // (self._sums * ITEM_BYTES[self.c.dtype])
        return max(1, min(math.prod(self.taps), room))

    @cached_property
    def units(self) -> WorkUnits:
        c, tile = self.c, self.tile
        return WorkUnits((
            ("group", c.group_count), ("results", ceil_div(c.width, tile.results)),
            ("columns", ceil_div(self.run, tile.vectors * self.lanes)),
            ("taps", ceil_div(math.prod(self.taps), self._taps_of_unit)),
        ))  # fmt: skip

    def shares(self, device: CpuDevice) -> tuple[int, tuple[int]]:
        """(tasks, (units of a task,)); the kernel's extras must hold the latter."""
        tasks, per_task = self.units.split(device, self.cycles())
        return tasks, (per_task,)

    # ---- code

    def trace(self, module: Module, prefix: str, extra: int) -> None:
        """Trace the task ``<prefix>tiles`` of a kernel with pointers to x, dy and dw, whose ``extra`` holds the
        units of a task."""
        c, tile = self.c, self.tile
        full, rest = divmod(c.width, tile.results)
        width = tile.vectors * self.lanes
        columns, tail = divmod(self.run, width)
        versions = []
        for is_whole, results in ((True, tile.results if full else 0), (False, rest)):
            for is_full, channels in ((True, width if columns else 0), (False, tail)):
                if results and channels:
                    name = f"{prefix}{'all' if is_whole else 'rest'}{channels}"
                    one = trace_pass(module, name, self, results, channels)
                    end = trace_finish(module, f"{name}_finish", self, results, channels)
                    versions.append((is_whole, is_full, one, end))
        with module.task(f"{prefix}tiles") as (k, args, task, _):
            arguments = Arguments(k, args, POINTERS)
            sums = k.local(c.dtype, self._taps_of_unit * self._sums)
            for unit in self.units.each(k, task, arguments.extra(extra)):
                group, result = unit["group"], unit["results"] * tile.results
                channel = unit["columns"] * width
                first = unit["taps"] * self._taps_of_unit
                last = (first + self._taps_of_unit).min(math.prod(self.taps))
                x = arguments.pointer(0, c.x.dtype) + view_offset(c, c.x, group, channel, (0, 0, 0, 0))
                dy = arguments.pointer(1, c.y.dtype) + view_offset(c, c.y, group, result, (0, 0, 0, 0))
                dw = arguments.pointer(2, c.w.dtype)
                for at in k.range(0, self._taps_of_unit * self._sums, self.lanes):
                    sums.store(k.constant(0, c.dtype, self.lanes), at)
                for is_whole, is_full, one, end in versions:
                    results_fit, columns_fit = unit["results"] < full, unit["columns"] < columns
                    is_this = (results_fit if is_whole else ~results_fit) & (
                        columns_fit if is_full else ~columns_fit
                    )
                    with when(k, None if len(versions) == 1 else is_this):
                        for n, d, h, stop, *_ in row_blocks(k, c, self.row_block(tile)):
                            for number in k.range(first, last):
                                own = sums + (number - first) * self._sums
                                place = (d, h, stop, *split_index(number, self.taps), channel)
                                k.call(one, x + n * c.x.batch, dy + n * c.y.batch, own, *place)
                        for number in k.range(first, last):
                            i, r, s = split_index(number, self.taps)
                            at = filter_offset(c, group, result, channel, i, r)
                            at = at + s * (c.axes[2].taps.increment * c.w.space[2])
                            own = sums + (number - first) * self._sums
                            k.call(end, own, dw + at, scale(k, args, POINTERS))

"""A correlation with channels in the lanes, for channels-last images: no workspace.

    unit : one image, group, slice and row; a block of result channels; a run of tiles along the row
    tile : sums of [neighbouring pixels][vectors of result channels], all in registers

Where the filter's result channels are neighbours in memory they are the lanes, and the image is broadcast. A small
filter is brought into that order on the stack, by every unit for its block of result channels. Of a large one the
channels that are summed are the lanes: every sum is a vector of partial sums, added up at the end. There the
filter's row, if its taps and channels follow each other as the image's do, counts as one long run of channels.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property

from jitdnn.devices.cpu import Arguments, CpuDevice
from jitdnn.kernels.algorithm import Epilogue
from jitdnn.kernels.cpu.convolution.direct.over_channels_code import trace_tile
from jitdnn.kernels.cpu.correlation import Correlation
from jitdnn.kernels.cpu.microkernel.nontemporal import STREAM_BYTES
from jitdnn.kernels.cpu.microkernel.packing import plan_panels, trace_panel
from jitdnn.kernels.cpu.schedule.boundary import when
from jitdnn.kernels.cpu.schedule.offsets import ceil_div, group_offset, scale, view_offset
from jitdnn.kernels.cpu.schedule.work_units import WorkUnits, is_filter_loop_outer
from jitdnn.rtcg.builder import Function, Module
from jitdnn.rtcg.isa import ITEM_BYTES, Isa

_STORE = 3.0  # cycles to finish one vector of results
_SCATTERED_LANE = 1.5  # cycles to store one lane on its own
_GATHERED_LANE = 2.0  # load slots (two a cycle) of one lane of a gather
_UNALIGNED = 1.75  # load slots of a vector that may touch two cache lines
_REDUCE = 2.0  # cycles to add up the lanes of one sum
_TURN = 3.0  # load slots that a turn of the loop over the channels is worth
_TILE = 30.0  # cycles to begin and end a tile
_MOST_MASKS = 7  # pixels at the end of a row have a mask each: no more than there are registers for them
_L1_BYTES = 24 << 10
_FAR_FILTERS = (
    (512 << 10, 0.0),
    (2 << 20, 2.0),
    (6 << 20, 3.0),
)  # bytes, and cycles by which a vector is late
_FARTHEST = 7.0  # of a larger one
_RUN_BYTES = 96 << 10  # input that a run of tiles may read before the next channels read it again
_PANEL_BYTES = 16 << 10  # of the filter, on the stack
_PACK = 0.5  # cycles to bring one element of it there


@dataclass(frozen=True)
class ChannelTile:
    """Sums in registers: pixels along a row, and vectors of result channels (or single ones).

    ``kind`` is "broadcast" (vectors of the filter as they are), "panel" (brought to the stack first) or "dot" (the
    channels that are summed are the lanes).
    """

    pixels: int
    results: int
    kind: str

    @property
    def is_dot(self) -> bool:
        return self.kind == "dot"


@dataclass(frozen=True)
class OverChannels:
    """How one correlation is computed. Sizes are in elements of its type."""

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
        """Channels of one step of a row of the filter."""
        return self.c.depth * (self.c.axes[2].taps.count if self.is_joined else 1)

    def width(self, tile: ChannelTile) -> int:
        """Result channels of a tile."""
        return tile.results if tile.is_dot else tile.results * self.lanes

    @cached_property
    def streams(self) -> bool:
        """True if results go past the caches: they are large, and lie in whole vectors."""
        c, y = self.c, self.c.y
        if self.tile.is_dot or y.dtype != c.dtype or y.channels != 1:
            return False
        size = c.batch * c.group_count * c.width * math.prod(axis.results for axis in c.axes)
        steps = (y.batch, *y.groups, *y.space)
        return size * ITEM_BYTES[c.dtype] >= STREAM_BYTES and all(step % self.lanes == 0 for step in steps)

    # ---- choice and cost

    @cached_property
    def tile(self) -> ChannelTile:
        return min(self._candidates(), key=self._cycles_of)

    def _candidates(self) -> Iterator[ChannelTile]:
        c = self.c
        most = max(1, c.axes[2].results)
        for vectors in range(1, min(4, ceil_div(c.width, self.lanes)) + 1):
            for pixels in range(1, min(most, (self.isa.registers - 1 - vectors) // vectors) + 1):
                tile = ChannelTile(pixels, vectors, "broadcast")
                yield tile
                if c.w.results != 1 and self.panel_size(tile) * ITEM_BYTES[c.dtype] <= _PANEL_BYTES:
                    yield replace(tile, kind="panel")
        if c.x.channels != 1 or c.w.channels != 1:
            return
        for results in range(1, min(8, c.width, self.lanes) + 1):
            room = (self.isa.registers - 1 - results) // results
            for pixels in range(1, min(most, room, _MOST_MASKS) + 1):
                yield ChannelTile(pixels, results, "dot")

    def panel_size(self, tile: ChannelTile) -> int:
        """Elements of the filter that a tile meets."""
        return self.width(tile) * self.c.depth * self.c.taps

    def _cycles_of(self, tile: ChannelTile) -> float:
        """Cycles of one row of one slice of one group of one image."""
        full, rest = divmod(self.c.width, self.width(tile))
        cycles = full * self._tile_cycles(tile)
        if rest:
            cycles += self._tile_cycles(self.narrowed(tile, rest))
        cycles *= ceil_div(self.c.axes[2].results, tile.pixels)
        if tile.kind == "panel":
            blocks = ceil_div(self.c.width, self.width(tile)) * ceil_div(self._tiles(tile), self._run(tile))
            cycles += blocks * self.panel_size(tile) * _PACK / self._rows(tile)
        return cycles

    def narrowed(self, tile: ChannelTile, width: int) -> ChannelTile:
        """The tile for the last, fewer result channels."""
        return replace(tile, results=width if tile.is_dot else ceil_div(width, self.lanes))

    @cached_property
    def _late(self) -> float:
        """Cycles by which a vector of the filter comes late: its channels lie far apart, and are not foreseen."""
        held = self.c.width * self.c.depth * self.c.taps * ITEM_BYTES[self.c.dtype]
        return next((late for most, late in _FAR_FILTERS if held <= most), _FARTHEST)

    def _tile_cycles(self, tile: ChannelTile) -> float:
        c, lanes = self.c, self.lanes
        taps = c.taps // (c.axes[2].taps.count if self.is_joined else 1)
        bytes_read = self.width(tile) * c.depth * c.taps * ITEM_BYTES[c.dtype]
        far = 1.0 if bytes_read <= _L1_BYTES else 1.5
        sums = tile.pixels * tile.results
        if tile.is_dot:
            steps = taps * ceil_div(self.run, lanes)
            is_aligned = self.run % lanes == 0
            loads = (tile.pixels + far * tile.results) * (1.0 if is_aligned else _UNALIGNED)
            finish = sums * _REDUCE + tile.pixels * _STORE
        else:
            steps = c.depth * c.taps
            vector = 1.0 if tile.kind == "panel" or c.w.channels % lanes == 0 else _UNALIGNED
            if tile.kind == "broadcast" and c.w.results != 1:
                vector = _GATHERED_LANE * lanes
            loads = tile.results * vector * far + tile.pixels
            finish = sums * (_STORE if c.y.channels == 1 else _SCATTERED_LANE * lanes)
        step = max(sums / 2, (loads + _TURN) / 2, 4.0)
        if tile.kind == "broadcast" and c.w.results == 1:
            step += tile.results * self._late
        return steps * step + finish + _TILE + 4.0 * taps

    def cycles(self) -> float:
        """Cycles of one thread for the whole."""
        c = self.c
        rows = c.batch * c.group_count * c.axes[0].results * c.axes[1].results
        return rows * self._cycles_of(self.tile)

    def _tiles(self, tile: ChannelTile) -> int:
        """Tiles along a row."""
        return ceil_div(self.c.axes[2].results, tile.pixels)

    def _run(self, tile: ChannelTile) -> int:
        """Tiles along a row of one unit."""
        c, axis = self.c, self.c.axes[2]
        each = c.depth * c.axes[1].taps.count * tile.pixels * axis.step * ITEM_BYTES[c.dtype]
        return max(1, min(self._tiles(tile), _RUN_BYTES // max(1, each)))

    def _rows(self, tile: ChannelTile) -> int:
        """Rows of one unit: several where the filter is brought to the stack for them."""
        c, (_, rows, columns) = self.c, self.c.axes
        if tile.kind != "panel" or self._run(tile) < self._tiles(tile):
            return 1
        each = c.depth * rows.step * columns.positions * ITEM_BYTES[c.dtype]
        return max(1, min(rows.results, _RUN_BYTES // max(1, each)))

    @cached_property
    def units(self) -> WorkUnits:
        c = self.c
        channels = [("channels", ceil_div(c.width, self.width(self.tile)))]
        space = [
            ("slice", c.axes[0].results), ("rows", ceil_div(c.axes[1].results, self._rows(self.tile))),
            ("run", ceil_div(self._tiles(self.tile), self._run(self.tile))),
        ]  # fmt: skip
        order = channels + space if is_filter_loop_outer(c) else space + channels
        return WorkUnits((("image", c.batch), ("group", c.group_count), *order))

    def shares(self, device: CpuDevice) -> tuple[int, tuple[int]]:
        """(tasks, (units of a task,)); the kernel's extras must hold the latter."""
        tasks, per_task = self.units.split(device, self.cycles())
        return tasks, (per_task,)

    # ---- code

    def trace(
        self, module: Module, prefix: str, pointers: int, extra: int, order: tuple[int, int, int],
        epilogue: Epilogue | None,
    ) -> None:  # fmt: skip
        """Trace the task ``<prefix>tiles``. ``order`` numbers the pointers to x, w and y; the kernel's
        ``extra`` holds the units of a task."""
        c, tile = self.c, self.tile
        full, rest = divmod(c.width, self.width(tile))
        versions: list[tuple[bool, Function]] = []
        if full:
            versions.append((True, trace_tile(module, f"{prefix}tile", self, tile, False, epilogue)))
        if rest:
            last = self.narrowed(tile, rest)
            is_masked = rest != self.width(last)
            versions.append((False, trace_tile(module, f"{prefix}rest", self, last, is_masked, epilogue)))
        is_panel, rows, run = tile.kind == "panel", self._rows(tile), self._run(tile)
        pack = (
            trace_panel(module, f"{prefix}panel", c, plan_panels(c, self.width(tile))) if is_panel else None
        )
        with module.task(f"{prefix}tiles") as (k, args, task, _):
            arguments = Arguments(k, args, pointers)
            panel = k.local(c.dtype, self.panel_size(tile)) if is_panel else None
            tensors = [(arguments.pointer(order[2], c.y.dtype), c.y)]
            tensors += [(arguments.pointer(3 + i, v.dtype), v) for i, v in enumerate(c.operands)]
            for unit in self.units.each(k, task, arguments.extra(extra)):
                n, group, d = unit["image"], unit["group"], unit["slice"]
                channel = unit["channels"] * self.width(tile)
                x = arguments.pointer(order[0], c.x.dtype) + view_offset(c, c.x, group, 0, (n, 0, 0, 0))
                w = arguments.pointer(order[1], c.w.dtype) + group_offset(group, c.groups, c.w.groups)
                if pack is not None and panel is not None:
                    k.call(pack, w, panel, channel, 0, c.depth)
                    w = panel
                else:
                    w = w + channel * c.w.results
                first_row, begin = unit["rows"] * rows, unit["run"] * run
                last_row, end = (
                    (first_row + rows).min(c.axes[1].results),
                    (begin + run).min(self._tiles(tile)),
                )
                for h, number in ((a, b) for a in k.range(first_row, last_row) for b in k.range(begin, end)):
                    p = number * tile.pixels
                    places = [t + view_offset(c, v, group, channel, (n, d, h, p)) for t, v in tensors]
                    fits = unit["channels"] < full
                    for is_whole, function in versions:
                        with when(k, None if len(versions) == 1 else fits if is_whole else ~fits):
                            k.call(function, x, w, places[0], scale(k, args, pointers), *places[1:], d, h, p)

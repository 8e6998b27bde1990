"""A correlation with channels in the lanes, for channels-last images: nothing is packed.

    unit : one image, group, slice and row; a block of result channels; a run of tiles along the row
    tile : sums of [neighbouring pixels][vectors of result channels], all in registers

Where the filter's result channels are neighbours in memory they are the lanes, and the image is broadcast. Else
the channels that are summed are: every sum is a vector of partial sums, added up at the end. There the filter's
row, if its taps and channels follow each other as the image's do, counts as one long run of channels.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property

from jitdnn.devices.cpu import Arguments, CpuDevice
from jitdnn.kernels.algorithm import Epilogue
from jitdnn.kernels.cpu.blocked import group_offset, scale, view_offset
from jitdnn.kernels.cpu.borders import when
from jitdnn.kernels.cpu.channel_tile import trace_tile
from jitdnn.kernels.cpu.correlation import Correlation
from jitdnn.kernels.cpu.tiles import ceil_div
from jitdnn.kernels.cpu.units import Units
from jitdnn.rtcg.builder import Function, Module
from jitdnn.rtcg.isa import ITEM_BYTES, Isa

_STORE = 3.0  # cycles to finish one vector of results
_SCATTERED_LANE = 1.5  # cycles to store one lane on its own
_GATHERED_LANE = 2.0  # load slots (two a cycle) of one lane of a gather
_UNALIGNED = 1.75  # load slots of a vector that may touch two cache lines
_REDUCE = 2.0  # cycles to add up the lanes of one sum
_TURN = 3.0  # load slots that a turn of the loop over the channels is worth
_TILE = 30.0  # cycles to begin and end a tile
_L1_BYTES = 24 << 10
_RUN_BYTES = 96 << 10  # input that a run of tiles may read before the next channels read it again
_FILTER_BYTES = 512 << 10  # a larger filter is walked in the outer loop


@dataclass(frozen=True)
class ChannelTile:
    """Sums in registers: pixels along a row, and vectors of result channels (or single ones if ``is_dot``)."""

    pixels: int
    results: int
    is_dot: bool


@dataclass(frozen=True)
class ChannelLanes:
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

    # ---- choice and cost

    @cached_property
    def tile(self) -> ChannelTile:
        return min(self._candidates(), key=self._cycles_of)

    def _candidates(self) -> Iterator[ChannelTile]:
        c = self.c
        most = max(1, c.axes[2].results)
        for vectors in range(1, min(4, ceil_div(c.width, self.lanes)) + 1):
            for pixels in range(1, min(most, (self.isa.registers - 1 - vectors) // vectors) + 1):
                yield ChannelTile(pixels, vectors, False)
        if c.x.channels != 1 or c.w.channels != 1:
            return
        for results in range(1, min(8, c.width, self.lanes) + 1):
            for pixels in range(1, min(most, (self.isa.registers - 2) // (results + 1)) + 1):
                yield ChannelTile(pixels, results, True)

    def _cycles_of(self, tile: ChannelTile) -> float:
        """Cycles of one row of one slice of one group of one image."""
        full, rest = divmod(self.c.width, self.width(tile))
        cycles = full * self._tile_cycles(tile)
        if rest:
            cycles += self._tile_cycles(self.narrowed(tile, rest))
        return cycles * ceil_div(self.c.axes[2].results, tile.pixels)

    def narrowed(self, tile: ChannelTile, width: int) -> ChannelTile:
        """The tile for the last, fewer result channels."""
        return replace(tile, results=width if tile.is_dot else ceil_div(width, self.lanes))

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
            whole = 1.0 if c.w.channels % lanes == 0 else _UNALIGNED
            loads = tile.results * (whole * far if c.w.results == 1 else _GATHERED_LANE * lanes) + tile.pixels
            finish = sums * (_STORE if c.y.channels == 1 else _SCATTERED_LANE * lanes)
        step = max(sums / 2, (loads + _TURN) / 2, 4.0)
        return steps * step + finish + _TILE + 4.0 * taps

    def cycles(self) -> float:
        """Cycles of one thread for the whole."""
        c = self.c
        rows = c.batch * c.group_count * c.axes[0].results * c.axes[1].results
        return rows * self._cycles_of(self.tile)

    @property
    def _tiles(self) -> int:
        return ceil_div(self.c.axes[2].results, self.tile.pixels)

    @cached_property
    def _run(self) -> int:
        """Tiles of one unit."""
        c, axis = self.c, self.c.axes[2]
        each = c.depth * c.axes[1].taps.count * self.tile.pixels * axis.step * ITEM_BYTES[c.dtype]
        return max(1, min(self._tiles, _RUN_BYTES // max(1, each)))

    @cached_property
    def units(self) -> Units:
        c = self.c
        channels = [("channels", ceil_div(c.width, self.width(self.tile)))]
        space = [
            ("slice", c.axes[0].results), ("row", c.axes[1].results), ("run", ceil_div(self._tiles, self._run)),
        ]  # fmt: skip
        is_large = c.width * c.depth * c.taps * ITEM_BYTES[c.dtype] > _FILTER_BYTES
        order = channels + space if is_large else space + channels
        return Units((("image", c.batch), ("group", c.group_count), *order))

    def shares(self, device: CpuDevice) -> tuple[int, tuple[int]]:
        """(tasks, (units of a task,)); the kernel's extras must hold the latter."""
        tasks, per_task = self.units.shares(device, self.cycles())
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
        with module.task(f"{prefix}tiles") as (k, args, task, _):
            arguments = Arguments(k, args, pointers)
            tensors = [(arguments.pointer(order[2], c.dtype), c.y)]
            tensors += [(arguments.pointer(3 + i, c.dtype), v) for i, v in enumerate(c.operands)]
            for unit in self.units.each(k, task, arguments.extra(extra)):
                n, group, d, h = unit["image"], unit["group"], unit["slice"], unit["row"]
                channel = unit["channels"] * self.width(tile)
                x = arguments.pointer(order[0], c.dtype) + view_offset(c, c.x, group, 0, (n, 0, 0, 0))
                w = arguments.pointer(order[1], c.dtype) + (
                    group_offset(group, c.groups, c.w.groups) + channel * c.w.results
                )
                begin = unit["run"] * self._run
                for number in k.range(begin, (begin + self._run).min(self._tiles)):
                    p = number * tile.pixels
                    places = [t + view_offset(c, v, group, channel, (n, d, h, p)) for t, v in tensors]
                    fits = unit["channels"] < full
                    for is_whole, function in versions:
                        with when(k, None if len(versions) == 1 else fits if is_whole else ~fits):
                            k.call(function, x, w, places[0], scale(k, args, pointers), *places[1:], d, h, p)

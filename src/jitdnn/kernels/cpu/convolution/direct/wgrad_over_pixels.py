"""A filter's gradient with pixels in the lanes: nothing is packed, and every task owns what it writes.

    dw[k, c, tap] = sum over images and pixels p of  dy[n, k, p] * x[n, c, step * p + offset of tap]

    unit : one group, a block of result channels, a block of channels, a run of the filter's rows
    pass : some rows of dy for one tile of taps; the sums wait in a little memory for the next rows
    tile : sums of [result channels][channels][rows of the filter][taps of a row], each a vector of partial sums

Every unit goes through all images once, some rows at a time: what it reads stays in the cache for all its passes.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property

from jitdnn.devices.cpu import Arguments, CpuDevice
from jitdnn.kernels.cpu.convolution.direct.wgrad_over_pixels_code import trace_finish, trace_pass
from jitdnn.kernels.cpu.convolution.direct.wgrad_rows import POINTERS, filter_offset, row_blocks
from jitdnn.kernels.cpu.correlation import Correlation
from jitdnn.kernels.cpu.schedule.boundary import when
from jitdnn.kernels.cpu.schedule.offsets import ceil_div, scale, split_index, view_offset
from jitdnn.kernels.cpu.schedule.row_vectors import RowVector
from jitdnn.kernels.cpu.schedule.work_units import WorkUnits, block_sizes
from jitdnn.rtcg.builder import Module
from jitdnn.rtcg.isa import ITEM_BYTES, Isa

_SUMS_BYTES = 16 << 10  # sums of a unit, on the stack
_ROWS_BYTES = 24 << 10  # what the passes over some rows read again and again: it stays in the L1 cache
_SMALL_BYTES = 4 << 10  # planes of a group up to here are small
_AHEAD = 4096  # bytes between a small plane and the one that is asked for meanwhile
_UNITS = 16  # that there should be
_CACHE_BYTES = 1 << 20
_FAR_BYTES = 8.0  # that a cycle brings from beyond the L2 cache
_THIRD_CACHE = 16 << 20
_MEMORY_BYTES = 8.0  # that a cycle brings from beyond that
_BURST = (
    0.04  # longer for each further row of x that is asked for at once, where the memory is what takes long
)
_PICKED = (
    5.0  # slots of the load ports for each vector out of which others are picked: shuffles delay the sums
)
_GATHERED = 4.5  # slots for each lane that is gathered
_SLOWER = 1.2  # than counted: loads that cross cache lines, turns of the loops
_HEIGHTS = (1, 2, 3, 4, 7)  # rows of dy at once; many images have a multiple of seven
_STRAIGHT = 200  # multiply-adds of one step along the row
_FINISH = 4.0  # cycles to add up and store one sum
_PASS = 30.0  # cycles to begin and end a pass
_CODE = 40_000  # multiply-adds of code that are worth as much as the whole computation


@dataclass(frozen=True)
class WgradPixelTile:
    """Sums in registers, and how many rows of dy feed them at once."""

    results: int
    channels: int
    rows: int
    taps: int
    height: int

    @property
    def sums(self) -> int:
        return self.results * self.channels * self.rows * self.taps


@dataclass(frozen=True)
class WgradOverPixels:
    """How the gradient of one filter is computed; ``c`` is the forward correlation, with y as dy and w as dw."""

    c: Correlation
    isa: Isa

    @property
    def lanes(self) -> int:
        return self.isa.lanes(self.c.dtype)

    def span(self, offset: int) -> RowVector:
        """How x is read at an offset: only where there is a result."""
        axis = self.c.axes[2]
        end = min(axis.positions, (axis.results - 1) * axis.step + offset + 1)
        return RowVector(axis.step, self.c.x.space[2], max(0, end), self.lanes)

    @property
    def vectors(self) -> int:
        """Vectors along a row of dy."""
        return ceil_div(self.c.axes[2].results, self.lanes)

    # ---- choice and cost

    @cached_property
    def tile(self) -> WgradPixelTile:
        return min(self._candidates(), key=self._cycles_of)

    def _candidates(self) -> Iterator[WgradPixelTile]:
        c = self.c
        _, rows, columns = (axis.taps.count for axis in c.axes)
        least = self.span(0).registers
        for taps in {ceil_div(columns, parts) for parts in range(ceil_div(columns, self.lanes), columns + 1)}:
            for channels in (n for n in (1, 2, 3, 4) if c.depth % n == 0):
                for height in _HEIGHTS if c.width <= 2 else (1,):
                    for together in (n for n in range(1, rows + 1) if rows % n == 0):
                        room = self.isa.registers - least - channels - (2 if height > 1 else 0)
                        most = room // (channels * together * taps + height)
                        for results in block_sizes(c.width, most):
                            tile = WgradPixelTile(results, channels, together, taps, height)
                            if tile.sums * height <= _STRAIGHT and self._sums_bytes(tile) <= _SUMS_BYTES:
                                yield tile
        yield WgradPixelTile(1, 1, 1, 1, 1)

    def _sums_bytes(self, tile: WgradPixelTile) -> int:
        """Bytes of the sums of a unit that takes one tile of the filter's rows."""
        return tile.sums * ceil_div(self.c.axes[2].taps.count, tile.taps) * self.isa.vector_bytes

    def _cycles_of(self, tile: WgradPixelTile) -> float:
        """Cycles of one group, for all images."""
        c = self.c
        _, rows, columns = (axis.taps.count for axis in c.axes)
        full, rest = divmod(c.width, tile.results)
        cycles = full * self._pass_cycles(tile)
        if rest:
            cycles += self._pass_cycles(replace(tile, results=rest))
        passes = c.axes[0].taps.count * (rows // tile.rows) * ceil_div(columns, tile.taps)
        counted = max(cycles * passes, self._traffic(tile)) * (c.depth // tile.channels)
        held = (
            c.batch
            * ITEM_BYTES[c.dtype]
            * (
                c.depth * math.prod(axis.positions for axis in c.axes)
                + c.width * math.prod(axis.results for axis in c.axes)
            )
        )
        if held * c.group_count <= _THIRD_CACHE:
            return counted
        far = held / _MEMORY_BYTES  # what comes from memory is not hidden behind the products
        if 2 * far > counted:
            far *= 1 + _BURST * (tile.height - 1) * c.axes[1].step
        return counted + far

    def _traffic(self, tile: WgradPixelTile) -> float:
        """Cycles to bring what the units of one block of channels read from beyond the L2 cache."""
        c, item = self.c, ITEM_BYTES[self.c.dtype]
        x = c.batch * math.prod(axis.positions for axis in c.axes) * item
        dy = c.batch * math.prod(axis.results for axis in c.axes) * item
        if x * c.depth + dy * c.width < _CACHE_BYTES:
            return 0.0
        return (x * tile.channels * ceil_div(c.width, tile.results) + dy * c.width) / _FAR_BYTES

    def _pass_cycles(self, tile: WgradPixelTile) -> float:
        """Cycles of one tile of taps, for all images."""
        c = self.c
        per_pass = min(c.axes[1].results, self.row_block(tile))
        blocks, rest = divmod(per_pass, tile.height)  # rows that are left over are done one by one
        steps = blocks * self._step_cycles(tile) + rest * self._step_cycles(replace(tile, height=1))
        walk = self.vectors * steps + 2.0 * tile.sums + _PASS
        passes = c.batch * c.axes[0].results * c.axes[1].results / max(1, per_pass)
        return (passes * walk + tile.sums * _FINISH) * (1 + 3 * tile.sums * tile.height / _CODE)

    def _step_cycles(self, tile: WgradPixelTile) -> float:
        """Cycles of one vector of ``height`` rows of dy."""
        y, down = self.c.y.space[2], self.c.axes[1]
        lines = len({
            row * down.step + tap * down.taps.shift for row in range(tile.height) for tap in range(tile.rows)
        })  # fmt: skip
        gradient = 1.0 if y == 1 else 2.0 * self.lanes
        loads = lines * tile.channels * tile.taps * self._slots + tile.results * tile.height * gradient
        return (max(tile.sums * tile.height / 2, loads / 2, 4.0 * tile.height) + 1.0) * _SLOWER

    @cached_property
    def _slots(self) -> float:
        """Slots of the load ports that a vector of x takes."""
        span = self.span(0)
        if span.registers > 1:
            return _PICKED * span.step
        return span.slots if abs(span.step * span.stride) <= 1 else _GATHERED * self.lanes

    def row_block(self, tile: WgradPixelTile) -> int:
        """Rows of dy of one pass."""
        axis = self.c.axes[1]
        each = (tile.results + tile.channels * axis.step) * self.c.axes[2].results * ITEM_BYTES[self.c.dtype]
        block = max(1, min(axis.results, _ROWS_BYTES // max(1, each)))
        return ceil_div(block, tile.height) * tile.height

    def cycles(self) -> float:
        """Cycles of one thread for the whole."""
        return self.c.group_count * self._cycles_of(self.tile)

    # ---- division

    @cached_property
    def _run(self) -> int:
        """Tiles of the filter's rows of one unit."""
        each = self._sums_bytes(self.tile)
        tiles = self.c.axes[0].taps.count * (self.c.axes[1].taps.count // self.tile.rows)
        return max(1, min(tiles, _SUMS_BYTES // each))

    @cached_property
    def _together(self) -> int:
        """Groups of one unit: many of small planes, which then are read one behind the other in every image."""
        c, each = self.c, self._run * len(self.chunks) * self.tile.sums * self.isa.vector_bytes
        planes = c.depth * math.prod(axis.positions for axis in c.axes) * ITEM_BYTES[c.dtype]
        if planes > _SMALL_BYTES:
            return 1
        return max(1, min(_SUMS_BYTES // each, c.group_count // _UNITS))

    @cached_property
    def units(self) -> WorkUnits:
        c, tile = self.c, self.tile
        tiles = c.axes[0].taps.count * (c.axes[1].taps.count // tile.rows)
        return WorkUnits((
            ("groups", ceil_div(c.group_count, self._together)), ("results", ceil_div(c.width, tile.results)),
            ("channels", c.depth // tile.channels), ("run", ceil_div(tiles, self._run)),
        ))  # fmt: skip

    def shares(self, device: CpuDevice) -> tuple[int, tuple[int]]:
        """(tasks, (units of a task,)); the kernel's extras must hold the latter."""
        tasks, per_task = self.units.split(device, self.cycles())
        return tasks, (per_task,)

    # ---- code

    @property
    def chunks(self) -> list[range]:
        """The taps of a row, a tile's at a time."""
        columns = self.c.axes[2].taps.count
        return [range(at, min(columns, at + self.tile.taps)) for at in range(0, columns, self.tile.taps)]

    def trace(self, module: Module, prefix: str, extra: int) -> None:
        """Trace the task ``<prefix>tiles`` of a kernel with pointers to x, dy and dw, whose ``extra`` holds the
        units of a task."""
        c, tile = self.c, self.tile
        full, rest = divmod(c.width, tile.results)
        versions = []
        for is_whole, results in ((True, tile.results if full else 0), (False, rest)):
            for number, taps in enumerate(self.chunks if results else ()):
                name = f"{prefix}{'pass' if is_whole else 'rest'}{number}"
                part = replace(tile, results=results)
                versions.append((
                    is_whole, number, trace_pass(module, name, self, part, taps),
                    trace_finish(module, f"{name}_finish", self, part, taps),
                ))  # fmt: skip
        tiles = (c.axes[0].taps.count, c.axes[1].taps.count // tile.rows)
        chunk = tile.sums * self.lanes
        with module.task(f"{prefix}tiles") as (k, args, task, _):
            arguments = Arguments(k, args, POINTERS)
            size = self._run * len(self.chunks) * chunk  # of the sums of a group
            sums = k.local(c.dtype, self._together * size)
            zero = k.constant(0, c.dtype, self.lanes)
            for unit in self.units.each(k, task, arguments.extra(extra)):
                begin, fits = unit["groups"] * self._together, unit["results"] < full
                end_group = (begin + self._together).min(c.group_count)
                result, channel = unit["results"] * tile.results, unit["channels"] * tile.channels
                first = unit["run"] * self._run
                last = (first + self._run).min(math.prod(tiles))
                for sum_number in k.range(0, self._together * size, self.lanes):
                    sums.store(zero, sum_number)
                for n, d, h, end, *ahead in row_blocks(k, c, self.row_block(tile)):
                    if self._together > 1:
                        ahead = [
                            k.integer(
                                (_AHEAD // (abs(v.groups[0]) * ITEM_BYTES[c.dtype] + 1) + 1) * v.groups[0]
                            )
                            for v in (c.x, c.y)
                        ]
                    for group in k.range(begin, end_group):
                        images = (
                            arguments.pointer(0, c.x.dtype)
                            + view_offset(c, c.x, group, channel, (n, 0, 0, 0)),
                            arguments.pointer(1, c.y.dtype)
                            + view_offset(c, c.y, group, result, (n, 0, 0, 0)),
                        )
                        for place in k.range(first, last):
                            i, r = split_index(place, tiles)
                            for is_whole, j, one_pass, _ in versions:
                                own = sums + (
                                    (group - begin) * size + ((place - first) * len(self.chunks) + j) * chunk
                                )
                                with when(k, fits if is_whole else ~fits):
                                    asks = k.select(place == first, k.integer(int(j == 0)), 0)
                                    k.call(one_pass, *images, own, d, h, end, i, r * tile.rows, asks, *ahead)
                dw = arguments.pointer(2, c.w.dtype)
                for group in k.range(begin, end_group):
                    for place in k.range(first, last):
                        i, r = split_index(place, tiles)
                        at = dw + filter_offset(c, group, result, channel, i, r * tile.rows)
                        for is_whole, j, _, finish in versions:
                            own = sums + (
                                (group - begin) * size + ((place - first) * len(self.chunks) + j) * chunk
                            )
                            with when(k, fits if is_whole else ~fits):
                                k.call(finish, own, at, scale(k, args, POINTERS))

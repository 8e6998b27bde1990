"""A correlation with its pixels in the lanes: nothing is packed, every input vector is used many times.

    unit : one image, group, slice and block of rows; a block of result channels; a run of tiles along the row
    tile : sums of [result channels][rows][stride phases][vectors of neighbouring pixels], all in registers

A vector of the input is loaded once for each position of the filter's last axis and feeds every channel of the
tile and every row of the tile that the filter reaches from it; the filter's values are broadcast. So a filter
of few channels (depthwise) is fed from tall tiles, one of many from wide ones. Rows outside of the image are
skipped; vectors that reach beyond a row's ends are loaded under masks by a second version of the tile.

A strided backward data writes every second (third, ...) pixel from other taps than those between: these are the
stride phases. They read the same vectors, and their sums are interleaved before they are stored.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from jitdnn.devices.cpu import Arguments, CpuDevice
from jitdnn.kernels.algorithm import Epilogue
from jitdnn.kernels.cpu.convolution.direct.over_pixels_code import trace_tile
from jitdnn.kernels.cpu.correlation import Axis, Correlation, View, lower_convolution
from jitdnn.kernels.cpu.microkernel.nontemporal import CONVOLUTION_STREAM_BYTES
from jitdnn.kernels.cpu.schedule.offsets import ceil_div, group_offset, scale, view_offset
from jitdnn.kernels.cpu.schedule.row_vectors import RowVector
from jitdnn.kernels.cpu.schedule.work_units import WorkUnits, block_sizes, is_filter_loop_outer
from jitdnn.problems.convolution import Convolution
from jitdnn.rtcg.builder import Function, Module
from jitdnn.rtcg.isa import ITEM_BYTES, Isa
from jitdnn.tensor import TensorDescriptor

_STRAIGHT = 600  # multiply-adds of one tile in a straight line: more would take long to compile
_STRAIGHT_ROW = 200  # and of one row of the filter
_MOST_RESIDUES = 4
_MOST_VECTORS = 8
_ENDS = 3  # tiles along a row that may be versions of their own
_STORE = 0.6  # cycles to finish one vector of sums, the rest being hidden behind the next tile
_SCATTERED_LANE = 1.5  # cycles to store one lane on its own
_ROW = 0.4  # cycles to begin a row of the input
_TILE = 20.0  # cycles to begin and end a tile
_MISSES = 24  # lines of the cache that can be on their way at once
_MISS = 8.0  # cycles that a tile waits for each one more that it asks for
_CODE = 40_000  # multiply-adds of code that are worth as much as the whole computation
_RUN_BYTES = 96 << 10  # input that a run of tiles may read before the next channels read it again
_ALIASING = 4096  # addresses this far apart share the ways of one set of the L1 cache
_WAYS = 8
_FAR_WAYS, _FAR_ALIASING = 16, 64 << 10  # of the second cache
_LINE = 64
_EVICTED_LINE = 3.0  # cycles for a line of the image that the second cache could not keep
_FAR_LINE, _FARTHER_LINE = 3.0, 8.0  # cycles for a line of the filter from the second cache, and from beyond
_PLAIN_BYTES, _STRIDED_BYTES = 32 << 10, 8 << 10  # of a tile's input that the first cache has in time
_PLAIN_LINE, _STRIDED_LINE = 4.0, 7.0  # cycles for a line of a larger one
_PIECE = 4.0  # cycles to store a row of a tile, where those of all channels push each other out of the second cache
_SECOND_CACHE, _THIRD_CACHE = 768 << 10, 8 << 20  # bytes of the images that may still be there
_HIDING = 64  # products with each element of an image, up to which nothing is hidden
_STRIDED_RATE, _MEMORY_RATE = 16.0, 8.0  # bytes of them a cycle, of every other row or from memory


@dataclass(frozen=True)
class Strip:
    """Correlations that differ only in their last axis: stride phase r makes pixels r, r + stride phases, ... of a row."""

    c: Correlation
    last: tuple[Axis, ...]

    @property
    def stride_phases(self) -> int:
        return len(self.last)

    @property
    def results(self) -> int:
        """Pixels of a row of the result."""
        return sum(axis.results for axis in self.last)

    def pixel(self, view: View) -> int:
        """Distance between neighbouring pixels of a row in a tensor of results."""
        return view.space[2] // self.stride_phases


def strips(problem: Convolution, operands: Sequence[TensorDescriptor] = ()) -> Iterator[Strip]:
    """A forward or backward-data convolution, with the stride phases of one row together where that pays."""
    stride = problem.stride[-1]
    together = problem.direction == "bwd_data" and 1 < stride <= min(_MOST_RESIDUES, problem.x.shape[-1])
    together = together and problem.x.strides[-1] == 1
    parts = lower_convolution(problem, operands, separate=together)
    if not together:
        for part in parts:
            c = best_turned(part.merged())
            yield Strip(c, (c.axes[2],))
        return
    for start in range(0, len(parts), stride):
        row = parts[start : start + stride]
        yield Strip(row[0], tuple(part.axes[2] for part in row))


def best_turned(c: Correlation) -> Correlation:
    """The axes of space in the order that puts neighbours in memory into the lanes."""

    def distance(axis: int) -> tuple[bool, int, int]:
        return c.axes[axis].results == 1, abs(c.y.space[axis]) + abs(c.x.space[axis]), -axis

    return turned(c, min(range(3), key=distance))


def turned(c: Correlation, axis: int) -> Correlation:
    """The same correlation with ``axis`` of space moved to the end."""
    order = [i for i in range(3) if i != axis] + [axis]

    def three(values: Sequence[int]) -> tuple[int, int, int]:
        i, j, k = order
        return values[i], values[j], values[k]

    def of(view: View) -> View:
        return replace(view, space=three(view.space))

    i, j, k = order
    return replace(
        c, axes=(c.axes[i], c.axes[j], c.axes[k]), x=of(c.x), y=of(c.y), operands=tuple(of(o) for o in c.operands),
        w=replace(c.w, space=three(c.w.space)),
    )  # fmt: skip


@dataclass(frozen=True)
class PixelTile:
    """Sums in registers: result channels, rows, and vectors of pixels along a row (of each stride phase)."""

    channels: int
    rows: int
    vectors: int


@dataclass(frozen=True)
class OverPixels:
    """How one strip is computed. Sizes are in elements of its type."""

    strip: Strip
    isa: Isa

    @property
    def c(self) -> Correlation:
        return self.strip.c

    @property
    def lanes(self) -> int:
        return self.isa.lanes(self.c.dtype)

    @cached_property
    def reads(self) -> dict[int, list[tuple[int, int]]]:
        """(stride phase, tap) of the last axis by the offset that they read at."""
        found: dict[int, list[tuple[int, int]]] = {}
        for stride_phase, axis in enumerate(self.strip.last):
            for tap in range(axis.taps.count):
                found.setdefault(axis.taps.offset + tap * axis.taps.shift, []).append((stride_phase, tap))
        return found

    @property
    def _row_taps(self) -> int:
        """Taps of one row of the filter, of all stride phases."""
        return sum(axis.taps.count for axis in self.strip.last)

    @cached_property
    def span(self) -> RowVector:
        axis = self.c.axes[2]
        return RowVector(axis.step, self.c.x.space[2], axis.positions, self.lanes)

    def reach(self, rows: int) -> dict[int, list[tuple[int, int]]]:
        """(row of the tile, tap of the filter) by the row of the input, from the tile's first one on."""
        axis = self.c.axes[1]
        found: dict[int, list[tuple[int, int]]] = {}
        for row, tap in itertools.product(range(rows), range(axis.taps.count)):
            at = row * axis.step + axis.taps.offset + tap * axis.taps.shift
            found.setdefault(at, []).append((row, tap))
        return dict(sorted(found.items()))

    def is_straight(self, tile: PixelTile) -> bool:
        """True if the taps of the last two axes are written out."""
        taps = self.c.axes[1].taps.count * self._row_taps
        return tile.channels * tile.rows * tile.vectors * taps <= _STRAIGHT

    def is_row_straight(self, tile: PixelTile) -> bool:
        """True if the taps of the last axis are written out."""
        work = tile.channels * tile.rows * tile.vectors * self._row_taps
        return self.is_straight(tile) or work <= _STRAIGHT_ROW

    def keeps_filter(self, tile: PixelTile) -> bool:
        """True if registers are left for a whole channel of the filter."""
        taps = tile.channels * self.c.axes[1].taps.count * self._row_taps
        sums = tile.channels * tile.rows * tile.vectors * self.strip.stride_phases
        return self.is_straight(tile) and sums + tile.vectors + taps <= self.isa.registers

    def _is_sliding(self, rows: int) -> bool:
        """True if neighbouring rows of the result read neighbouring rows of the input, by at least as many taps."""
        axis = self.c.axes[1]
        return axis.step == 1 and abs(axis.taps.shift) == 1 and axis.taps.count >= rows

    @cached_property
    def is_foreseen(self) -> bool:
        """True if a tile asks for the lines that one of the next tiles reads: a row's, if it is the only one."""
        c, axis = self.c, self.c.axes[2]
        is_only = c.axes[1].positions == 1 and c.depth > 1
        return is_only and axis.step == c.x.space[2] == self.strip.stride_phases == 1

    @cached_property
    def streams(self) -> bool:
        """True if results go past the caches: they are large, and lie in whole vectors."""
        c, y = self.c, self.c.y
        if y.dtype != c.dtype or self.strip.pixel(y) != 1:
            return False
        pixels = c.axes[0].results * c.axes[1].results * self.strip.results
        steps = (y.batch, y.channels, *y.groups, *y.space[:2])
        size = c.batch * c.group_count * c.width * pixels * ITEM_BYTES[c.dtype]
        return size >= CONVOLUTION_STREAM_BYTES and all(step % self.lanes == 0 for step in steps)

    # ---- choice and cost

    def tiles(self, tile: PixelTile) -> int:
        """Tiles along a row."""
        return ceil_div(self.strip.last[0].results, tile.vectors * self.lanes)

    @cached_property
    def tile(self) -> PixelTile:
        return min(self._candidates(), key=self._cycles_of)

    def _candidates(self) -> Iterator[PixelTile]:
        c = self.c
        yield PixelTile(1, 1, 1)
        most = ceil_div(self.strip.last[0].results, self.lanes)
        for vectors in range(1, min(_MOST_VECTORS, most) + 1):
            room = (self.isa.registers - self.span.registers - vectors) // (
                vectors * self.strip.stride_phases
            )
            for rows in range(1, min(room, c.axes[1].results) + 1):
                for channels in block_sizes(c.width, room // rows):
                    tile = PixelTile(channels, rows, vectors)
                    if rows == 1 or self.is_straight(tile) or self._is_sliding(rows):
                        yield tile

    def _cycles_of(self, tile: PixelTile) -> float:
        """Cycles of one slice of one group of one image."""
        full, rest = divmod(self.c.width, tile.channels)
        cycles = full * self._tile_cycles(tile)
        if rest:
            cycles += self._tile_cycles(replace(tile, channels=rest))
        return cycles * self.tiles(tile) * ceil_div(self.c.axes[1].results, tile.rows)

    def _tile_cycles(self, tile: PixelTile) -> float:
        c = self.c
        planes, taps = c.depth * c.axes[0].taps.count, c.axes[1].taps.count * self._row_taps
        sums = tile.channels * tile.rows * tile.vectors
        lines = tile.rows - 1 + c.axes[1].taps.count
        columns = self._row_taps
        if self.is_straight(tile):
            lines, columns = len(self.reach(tile.rows)), len(self.reads)
        loads = lines * columns * tile.vectors * self.span.slots
        if not self.keeps_filter(tile):
            loads += tile.channels * tile.rows * taps * self._broadcast_slots(tile.channels)
        read = min(lines, c.axes[1].positions) * tile.vectors * abs(self.span.step)  # cache lines
        late = 0.0
        is_strided = c.axes[2].step > 1
        close = _STRIDED_BYTES if is_strided else _PLAIN_BYTES // (3 if self.is_foreseen else 1)
        if planes * read * _LINE > close:
            late = read * (_STRIDED_LINE if is_strided else _PLAIN_LINE)
        if self.is_foreseen:
            loads += read * (2 if self._row_taps == 1 and c.x.channels % self.lanes else 1)
        plane = max(sums * taps / 2, loads / 2, late, 4.0 * taps) + 0.5 + _ROW * lines
        plane += self._filter_lines(tile)
        unit = self.strip.pixel(c.y)
        store = _STORE if unit == 1 else _SCATTERED_LANE * self.lanes
        asked = tile.rows * c.axes[1].step * tile.vectors * c.axes[2].step
        if unit == 1 and tile.rows < c.axes[1].results:  # the next rows share the cache with the results
            store += max(0, asked - _MISSES) * _MISS / sums
            apart = math.gcd(c.y.channels * ITEM_BYTES[c.dtype], _FAR_ALIASING)
            if not self.streams and c.width * apart > _FAR_WAYS * _FAR_ALIASING:
                store += _PIECE / tile.vectors
        code = sums * (c.axes[1].taps.count if self.is_straight(tile) else tile.rows)
        code *= self._row_taps if self.is_row_straight(tile) else 1
        return (planes * plane + sums * self.strip.stride_phases * store + _TILE) * (1 + code / _CODE)

    def _filter_lines(self, tile: PixelTile) -> float:
        """Cycles that a plane waits for lines of the filter, where its results are neighbours and its planes apart.

        Such lines are brought for few values each, one tile after the other, and planes far apart evict each other.
        """
        c = self.c
        apart = abs(c.w.channels) * ITEM_BYTES[c.dtype]
        if abs(c.w.results) != 1 or apart < _LINE or self.keeps_filter(tile):
            return 0.0
        lines = c.depth * c.taps
        if lines <= _WAYS * min(_ALIASING // math.gcd(apart, _ALIASING), _ALIASING // _LINE):
            return 1.0
        sets = min(_FAR_ALIASING // math.gcd(apart, _FAR_ALIASING), _FAR_ALIASING // _LINE)
        return (
            c.axes[1].taps.count
            * self._row_taps
            * (_FAR_LINE if lines <= _FAR_WAYS * sets else _FARTHER_LINE)
        )

    def _broadcast_slots(self, channels: int) -> float:
        """Load slots of one value of the filter: many if the channels' values evict each other."""
        apart = abs(self.c.w.results) * ITEM_BYTES[self.c.dtype]
        sets = min(_ALIASING // math.gcd(apart, _ALIASING), 64)
        return 1.0 if channels <= _WAYS * sets else 6.0

    def cycles(self) -> float:
        """Cycles of one thread for the whole."""
        c = self.c
        return c.batch * c.group_count * c.axes[0].results * self._cycles_of(self.tile) + self._traffic()

    def _traffic(self) -> float:
        """Cycles to bring the image from afar; the more products an element is part of, the more of them are hidden."""
        c = self.c
        read = c.batch * c.group_count * c.depth * ITEM_BYTES[c.dtype]
        read *= math.prod(min(axis.positions, axis.results * max(1, axis.taps.count)) for axis in c.axes[:2])
        read *= c.axes[2].positions
        if self.strip.stride_phases > 1:  # every other row of the result is written
            read += (
                c.batch
                * c.group_count
                * c.width
                * ITEM_BYTES[c.dtype]
                * math.prod((c.axes[0].results, c.axes[1].results, self.strip.results))
            )
        is_strided = c.axes[1].step > 1 or self.strip.stride_phases > 1  # neighbouring rows are foreseen
        if not c.taps or self.is_foreseen or read <= (_SECOND_CACHE if is_strided else _THIRD_CACHE):
            return self._evicted()
        products = c.axes[0].taps.count * c.axes[1].taps.count * self._row_taps * c.width
        rate = _STRIDED_RATE if read <= _THIRD_CACHE else _MEMORY_RATE
        return max(self._evicted(), read / (rate * max(1.0, products / _HIDING)))

    def _evicted(self) -> float:
        """Cycles to bring the image again for each tile of channels, of several stride phases, where its planes lie so that
        the second cache cannot keep a line of each."""
        c, tile = self.c, self.tile
        apart = math.gcd(abs(c.x.channels) * ITEM_BYTES[c.dtype], _FAR_ALIASING)
        lines = c.depth * tile.vectors * min(tile.rows + c.axes[1].taps.count - 1, c.axes[1].positions)
        if self.strip.stride_phases == 1 or lines <= _FAR_WAYS * max(1, _FAR_ALIASING // max(apart, _LINE)):
            return 0.0
        tiles = self.tiles(tile) * ceil_div(c.axes[1].results, tile.rows) * ceil_div(c.width, tile.channels)
        count = c.batch * c.group_count * c.axes[0].results * tiles
        return count * lines * c.axes[0].taps.count * _EVICTED_LINE

    @cached_property
    def _run(self) -> int:
        """Tiles of one unit."""
        tile, axis = self.tile, self.c.axes[2]
        width = tile.vectors * self.lanes * axis.step
        each = self.c.depth * self.c.axes[1].taps.count * width * ITEM_BYTES[self.c.dtype]
        return max(1, min(self.tiles(tile), _RUN_BYTES // max(1, each)))

    @cached_property
    def units(self) -> WorkUnits:
        c, tile = self.c, self.tile
        channels = [("channels", ceil_div(c.width, tile.channels))]
        space = [
            ("slice", c.axes[0].results), ("rows", ceil_div(c.axes[1].results, tile.rows)),
            ("run", ceil_div(self.tiles(tile), self._run)),
        ]  # fmt: skip
        order = channels + space if is_filter_loop_outer(c) else space + channels
        return WorkUnits((("image", c.batch), ("group", c.group_count), *order))

    def shares(self, device: CpuDevice) -> tuple[int, tuple[int]]:
        """(tasks, (units of a task,)); the kernel's extras must hold the latter."""
        tasks, per_task = self.units.split(device, self.cycles())
        return tasks, (per_task,)

    # ---- code

    def _inner_tiles(self) -> tuple[int, int]:
        """From which to which tile of a row nothing outside of the row is read or written."""
        axis, width = self.c.axes[2], self.tile.vectors * self.lanes
        whole = min(axis.results for axis in self.strip.last) // width
        if not self.reads:
            return 0, whole
        first = ceil_div(max(0, -min(self.reads)), width * axis.step)
        last = ((axis.positions - 1 - max(self.reads)) // axis.step + 1) // width
        return first, max(first, min(last, whole))

    def _runs(self) -> list[range]:
        """The tiles of a row as runs that share a version of the code: each end alone, if it is one tile."""
        tiles, (first, last) = self.tiles(self.tile), self._inner_tiles()
        if last <= first:
            ends = [range(tile, tile + 1) for tile in range(tiles)]
            return ends if tiles <= _ENDS else [range(tiles)]
        runs = [range(first), range(first, last), range(last, tiles)]
        return [run for run in runs if len(run)]

    def trace(
        self, module: Module, prefix: str, pointers: int, extra: int, order: tuple[int, int, int],
        epilogue: Epilogue | None,
    ) -> None:  # fmt: skip
        """Trace the task ``<prefix>tiles``. ``order`` numbers the pointers to x, w and y; the kernel's
        ``extra`` holds the units of a task."""
        c, tile = self.c, self.tile
        width = tile.vectors * self.lanes
        tiles, (first, last) = self.tiles(tile), self._inner_tiles()
        full, rest = divmod(c.width, tile.channels)
        versions: list[tuple[bool, range, Function]] = []
        for is_whole in (True, False):
            part = tile if is_whole else replace(tile, channels=rest)
            for number, numbers in enumerate(self._runs()):
                if full if is_whole else rest:
                    name = f"{prefix}{'tile' if is_whole else 'rest'}{number}"
                    edge = numbers.start < first or numbers.stop > last
                    function = trace_tile(module, name, self, part, numbers, edge, epilogue)
                    versions.append((is_whole, numbers, function))
        with module.task(f"{prefix}tiles") as (k, args, task, _):
            arguments = Arguments(k, args, pointers)
            tensors = [(arguments.pointer(order[2], c.y.dtype), c.y)]
            tensors += [(arguments.pointer(3 + i, v.dtype), v) for i, v in enumerate(c.operands)]
            for unit in self.units.each(k, task, arguments.extra(extra)):
                n, group, d, h = unit["image"], unit["group"], unit["slice"], unit["rows"] * tile.rows
                channel = unit["channels"] * tile.channels
                x = arguments.pointer(order[0], c.x.dtype) + view_offset(c, c.x, group, 0, (n, 0, 0, 0))
                w = arguments.pointer(order[1], c.w.dtype) + (
                    group_offset(group, c.groups, c.w.groups) + channel * c.w.results
                )
                begin = unit["run"] * self._run
                for tile_number in k.range(begin, (begin + self._run).min(tiles)):
                    p = tile_number * width
                    places = [t + view_offset(c, v, group, channel, (n, d, h, p)) for t, v in tensors]
                    fits = unit["channels"] < full
                    for is_whole, numbers, function in versions:
                        condition = (tile_number >= numbers.start) & (tile_number < numbers.stop)
                        with k.when(condition & (fits if is_whole else ~fits)):
                            k.call(function, x, w, places[0], scale(k, args, pointers), *places[1:], d, h, p)

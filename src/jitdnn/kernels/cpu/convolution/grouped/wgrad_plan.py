"""A grouped filter's gradient over channels-last images: neighbouring channels in the lanes, whole groups at a time.

    task   : a run of units, and a share of the blocks of pixels; both tensors of a block are packed for all units
    unit   : as many whole groups as fill a vector, or one group that fills several
    pass   : a block of pixels, for one vector of a unit and one row of taps; the sums wait in a little memory
    finish : the shares added in a fixed order, then stored

Of x and dy the one with more channels in a group is *straight*: its channels are in the lanes. Channel j of the
other is *picked* for every group: spread over the lanes of its group, by a shuffle, or a broadcast if there is one
group. So no lane is idle whatever the groups' size. The pixels of one group are so far apart in memory that the
caches cannot keep them: both are copied, for neighbouring groups together, so that what is read is whole lines.

How the blocks are shared depends on the problem alone, so the result is the same to the bit with any threads.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

from jitdnn.devices.cpu import Arguments
from jitdnn.kernels.cpu.convolution.direct.wgrad_rows import POINTERS
from jitdnn.kernels.cpu.convolution.grouped.packing import GroupPacking, follow, trace_pack
from jitdnn.kernels.cpu.convolution.grouped.wgrad_code import trace_finish, trace_pass
from jitdnn.kernels.cpu.correlation import Correlation
from jitdnn.kernels.cpu.schedule.boundary import fraction_inside
from jitdnn.kernels.cpu.schedule.offsets import ceil_div, scale, split_index, whole_lines
from jitdnn.kernels.cpu.schedule.work_units import block_sizes
from jitdnn.rtcg.builder import Builder, Function, Module, Pointer, Value
from jitdnn.rtcg.isa import ITEM_BYTES, Isa

_UNIT_BYTES = 40 << 10  # of a block of one unit, packed: about the nearest cache
_TASK_BYTES = 320 << 10  # of all units of a task: they stay in the second cache
_MOST_UNITS = 16
_TASKS = 16  # that there should be
_SHARE_CYCLES = 50_000.0  # a share that takes less is not worth its sums
_SUMS_BYTES = 4 << 20  # of all shares
_PICK = 0.5  # cycles of a shuffle
_PACK = 2.5  # cycles to copy one vector
_FAR = 7.0  # bytes that a cycle brings from memory
_PASS = 16.0  # cycles to begin and end a pass
_ROW = 8.0  # and a row of it
_FINISH = 4.0  # cycles to store one vector of sums
_SCATTERED_LANE = 1.5  # and a lane of it where they are not neighbours


@dataclass(frozen=True)
class GroupedWgradPlan:
    """How the gradient of a grouped filter is computed; ``c`` is the forward correlation, with y as dy and w as
    dw."""

    c: Correlation
    isa: Isa

    @property
    def lanes(self) -> int:
        return self.isa.lanes(self.c.dtype)

    @property
    def item(self) -> int:
        return ITEM_BYTES[self.c.dtype]

    @property
    def fits(self) -> bool:
        """True if the channels of either tensor follow each other, those of a group and from group to group."""
        return follow(self.c) and self.c.groups[0] > 1 and self.c.taps > 0

    @property
    def x_is_straight(self) -> bool:
        return self.c.depth >= self.c.width

    @property
    def straight(self) -> int:
        """Channels of a group of the straight tensor."""
        return max(self.c.depth, self.c.width)

    @property
    def together(self) -> int:
        """Groups of one unit."""
        return max(1, self.lanes // self.straight)

    @property
    def units(self) -> int:
        return ceil_div(self.c.groups[0], self.together)

    @property
    def picked(self) -> int:
        """Channels of a group of the picked tensor."""
        return min(self.c.depth, self.c.width)

    @property
    def parts(self) -> int:
        """Vectors of a unit's straight channels."""
        return ceil_div(self.together * self.straight, self.lanes)

    # ---- tile and block

    @cached_property
    def tile(self) -> tuple[int, int]:
        """Sums in registers: taps of a row, and picked channels."""
        return min(self._tiles(), key=lambda tile: (self._work(tile), tile))

    def _tiles(self) -> Iterator[tuple[int, int]]:
        columns = self.c.axes[2].taps.count
        yield 1, 1
        for taps in {ceil_div(columns, parts) for parts in range(1, columns + 1)}:
            most = (self.isa.registers - 2 - taps) // taps
            for channels in {ceil_div(self.picked, parts) for parts in range(1, self.picked + 1)}:
                if channels <= most:
                    yield taps, channels

    def _work(self, tile: tuple[int, int]) -> float:
        """Cycles of one vector of a unit for one pixel of dy and a row of taps."""
        taps, channels = tile
        products = taps * channels
        pick = _PICK if self.together > 1 else 0.0
        picks = channels * (1 if self.x_is_straight else taps)
        step = max(products / 2 + picks * pick, (taps + channels + 1) / 2, 4.0) + 0.5
        return step * ceil_div(self.c.axes[2].taps.count, taps) * ceil_div(self.picked, channels)

    @cached_property
    def block(self) -> tuple[int, int]:
        """Rows and columns of dy of one block."""
        _, down, along = self.c.axes
        rows, columns = down.results, along.results

        def fits(h: int, w: int) -> bool:
            x = down.reads(h) * along.reads(w) * ceil_div(self.together * self.c.depth, self.lanes)
            y = h * w * ceil_div(self.together * self.c.width, self.lanes)
            return (x + y) * self.isa.vector_bytes <= _UNIT_BYTES

        wide = max((w for w in block_sizes(columns, columns) if fits(1, w)), default=1)
        high = max((h for h in block_sizes(rows, rows) if fits(h, wide)), default=1) if wide == columns else 1
        return high, wide

    @property
    def blocks(self) -> tuple[int, int, int, int]:
        """Images, slices, and blocks along a slice's rows and columns."""
        d, h, w = (axis.results for axis in self.c.axes)
        return self.c.batch, d, ceil_div(h, self.block[0]), ceil_div(w, self.block[1])

    @cached_property
    def x(self) -> GroupPacking:
        """How blocks of x are packed."""
        c, (rows, columns), (_, down, along) = self.c, self.block, self.c.axes
        extents = down.reads(rows), along.reads(columns)
        positions = down.positions, along.positions
        groups, together, straight = c.groups[0], self.together, self.x_is_straight
        return GroupPacking(c.dtype, self.lanes, c.x, c.depth, groups, together, positions, extents, straight)

    @cached_property
    def y(self) -> GroupPacking:
        """How blocks of dy are packed."""
        c, results = self.c, (self.c.axes[1].results, self.c.axes[2].results)
        groups, together, straight = c.groups[0], self.together, not self.x_is_straight
        return GroupPacking(
            c.dtype, self.lanes, c.y, c.width, groups, together, results, self.block, straight
        )

    # ---- division

    @cached_property
    def chunk(self) -> int:
        """Units of one task."""
        each = (self.x.elements + self.y.elements) * self.item
        most = max(1, min(_MOST_UNITS, _TASK_BYTES // each))
        return ceil_div(self.units, ceil_div(self.units, most))

    @property
    def chunks(self) -> int:
        return ceil_div(self.units, self.chunk)

    @cached_property
    def splits(self) -> int:
        """Into how many shares the blocks are split."""
        wanted = min(ceil_div(_TASKS, self.chunks), int(self.cycles_of_sums() / self.chunks / _SHARE_CYCLES))
        room = _SUMS_BYTES // (self.units * self.unit_size * self.item)
        return max(1, min(math.prod(self.blocks), wanted, room))

    @property
    def tap_tiles(self) -> int:
        return ceil_div(self.c.axes[2].taps.count, self.tile[0])

    @property
    def channel_tiles(self) -> int:
        return ceil_div(self.picked, self.tile[1])

    @property
    def tile_size(self) -> int:
        return math.prod(self.tile) * self.lanes

    @property
    def unit_size(self) -> int:
        """Sums of one unit: [slice of taps][row of taps][tile of taps][tile of picked channels][part][tile]."""
        slices, rows, _ = (axis.taps.count for axis in self.c.axes)
        return slices * rows * self.tap_tiles * self.channel_tiles * self.parts * self.tile_size

    def workspace(self, threads: int) -> int:
        """Bytes: the sums of all shares, and each thread's packed blocks."""
        return (self._sums + threads * self._thread_elements) * self.item

    @property
    def _sums(self) -> int:
        return whole_lines(self.splits * self.units * self.unit_size, self.c.dtype)

    @property
    def _thread_elements(self) -> int:
        return whole_lines(self.chunk * (self.x.elements + self.y.elements), self.c.dtype)

    @property
    def tasks(self) -> int:
        return self.chunks * self.splits

    def phases(self) -> list[tuple[str, int]]:
        return [("sums", self.tasks), ("finish", self.units)]

    # ---- cost

    def cycles_of_sums(self) -> float:
        """Cycles of one thread for all sums."""
        c = self.c
        slices, rows, _ = (axis.taps.count for axis in c.axes)
        blocks, x, y = math.prod(self.blocks), self.x, self.y
        lines = c.batch * c.axes[0].results * c.axes[1].results
        passes = slices * rows * self.tap_tiles * self.channel_tiles * self.parts
        work = lines * (c.axes[2].results * slices * rows * self.parts * self._work(self.tile))
        work *= fraction_inside(c.axes[1])
        work += passes * (lines * _ROW + blocks * (_PASS + math.prod(self.tile)))
        packed = slices * math.prod(x.extents) * x.vectors + math.prod(y.extents) * y.vectors
        moved = c.batch * c.group_count * self.item * (
            c.depth * math.prod(axis.positions for axis in c.axes)
            + c.width * math.prod(axis.results for axis in c.axes)
        )  # fmt: skip
        return self.units * (work + blocks * packed * _PACK) + moved / _FAR

    def cycles(self) -> float:
        """Cycles of one thread for the whole."""
        stored = self.units * self.unit_size / self.lanes
        stride = self.c.w.channels if self.x_is_straight else self.c.w.results
        store = _FINISH * self.together + (0.0 if stride == 1 else _SCATTERED_LANE * self.lanes)
        return self.cycles_of_sums() + stored * (store + 2.0 * self.splits)

    # ---- code

    def trace(self, module: Module) -> None:
        """Trace the phases of a kernel with pointers to x, dy and dw."""
        packs = [trace_pack(module, "pack_x", self.x), trace_pack(module, "pack_dy", self.y)]
        passes = list(self._trace_passes(module))
        with module.task("sums") as (k, args, task, thread):
            arguments = Arguments(k, args, POINTERS)
            chunk, share = split_index(task, (self.chunks, self.splits))
            first = chunk * self.chunk
            count = k.integer(self.chunk).min(k.integer(self.units) - first)
            sums = arguments.workspace(self.c.dtype) + (share * self.units + first) * self.unit_size
            for at in k.range(0, count * self.unit_size, self.lanes):
                sums.store(k.constant(0, self.c.dtype, self.lanes), at)
            own = arguments.workspace(self.c.dtype) + (self._sums + thread * self._thread_elements)
            self._blocks(k, arguments, share, (first, count), own, sums, packs, passes)
        end = trace_finish(module, "store", self)
        with module.task("finish") as (k, args, task, _):
            arguments = Arguments(k, args, POINTERS)
            sums = arguments.workspace(self.c.dtype) + task * self.unit_size
            k.call(end, sums, arguments.pointer(2, self.c.w.dtype), scale(k, args, POINTERS), task)

    def _trace_passes(self, module: Module) -> Iterator[tuple[int, int, Function]]:
        """(tile of taps, tile of picked channels, its function); equal ones are traced once."""
        taps, channels = self.tile
        known: dict[tuple[int, int, int], Function] = {}
        for i in range(self.tap_tiles):
            for j in range(self.channel_tiles):
                own_taps = min(taps, self.c.axes[2].taps.count - i * taps)
                own = min(channels, self.picked - j * channels)
                key = (own_taps, own, j * channels if self.together > 1 else 0)
                if key not in known:
                    known[key] = trace_pass(module, f"pass{len(known)}", self, *key)
                yield i, j, known[key]

    def _blocks(
        self, k: Builder, arguments: Arguments, share: Value, units: tuple[Value, Value], own: Pointer,
        sums: Pointer, packs: list[Function], passes: list[tuple[int, int, Function]],
    ) -> None:  # fmt: skip
        """All blocks of a share, for ``units`` = (the first, how many)."""
        c, (first, count), (rows, columns) = self.c, units, self.block
        x_size, y_size = self.x.elements, self.y.elements
        packed_y = own + self.chunk * x_size
        total = math.prod(self.blocks)
        depth, down, along = c.axes
        for number in k.range(share * total // self.splits, (share + 1) * total // self.splits):
            n, d, i, j = split_index(number, self.blocks)
            h, p = i * rows, j * columns
            high, wide = (k.integer(down.results) - h).min(rows), (k.integer(along.results) - p).min(columns)
            dy = arguments.pointer(1, c.y.dtype) + (n * c.y.batch + c.y.offset + d * c.y.space[0])
            k.call(packs[1], dy, packed_y, h, p, high, wide, first, count)
            row, column = h * down.step + down.taps.lowest, p * along.step + along.taps.lowest
            x_high, x_wide = down.reads(high), along.reads(wide)
            for slice_tap in k.range(depth.taps.count):
                at = d * depth.step + depth.taps.offset + slice_tap * depth.taps.shift
                with k.when((at >= 0) & (at < depth.positions)):
                    image = arguments.pointer(0, c.x.dtype) + (n * c.x.batch + c.x.offset + at * c.x.space[0])
                    k.call(packs[0], image, own, row, column, x_high, x_wide, first, count)
                    for unit in k.range(count):
                        tensors = own + unit * x_size, packed_y + unit * y_size
                        at_slice = sums + (unit * self.unit_size + slice_tap * self._slice_size)
                        self._passes(k, tensors, at_slice, row, high, wide, passes)

    @property
    def _slice_size(self) -> int:
        return self.unit_size // self.c.axes[0].taps.count

    def _passes(
        self, k: Builder, tensors: tuple[Pointer, Pointer], sums: Pointer, row: Value, high: Value, wide: Value,
        passes: list[tuple[int, int, Function]],
    ) -> None:  # fmt: skip
        """All passes over a packed block of a unit, whose x begins at ``row``."""
        (x, dy), (_, down, along) = tensors, self.c.axes
        row_size = self._slice_size // down.taps.count
        for tap in k.range(down.taps.count):
            below = tap * down.taps.shift + (down.taps.offset - down.taps.lowest)
            for part in k.range(self.parts):
                for i, j, function in passes:
                    beside = along.taps.offset + i * self.tile[0] * along.taps.shift - along.taps.lowest
                    place = below * self.x.pitches[2] + beside * self.x.pitches[1]
                    own_x, own_y = x + place, dy
                    shift = part * (self.x if self.x_is_straight else self.y).pitches[0]
                    chosen = j * self.tile[1] if self.together == 1 else 0
                    if self.x_is_straight:
                        own_x, own_y = own_x + shift, own_y + chosen
                    else:
                        own_x, own_y = own_x + chosen, own_y + shift
                    number = (i * self.channel_tiles + j) * self.parts + part
                    at = sums + (tap * row_size + number * self.tile_size)
                    k.call(function, own_x, own_y, at, row + below, high, wide)

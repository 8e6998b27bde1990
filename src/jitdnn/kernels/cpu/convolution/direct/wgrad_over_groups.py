"""The gradient of a filter of many small groups, with the groups in the lanes: channels-last, vector times vector.

    task   : some vectors of groups, and a share of the blocks of rows
    pass   : the rows of a block for one vector, channel and tile of taps; the sums wait in a little memory
    tile   : sums of [result channels of a group][rows of the filter][taps of a row], fed by a run of columns
    finish : the shares added in a fixed order, then stored

How the rows are shared depends on the problem alone, so the result is the same to the bit with any threads. With
one share the task that made the sums stores them, and there is no workspace.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

from jitdnn.devices.cpu import Arguments, CpuDevice
from jitdnn.kernels.cpu.convolution.direct.wgrad_over_groups_code import trace_finish, trace_pass
from jitdnn.kernels.cpu.convolution.direct.wgrad_rows import POINTERS, block_count, row_blocks, tap_offset
from jitdnn.kernels.cpu.correlation import Correlation
from jitdnn.kernels.cpu.schedule.offsets import ceil_div, scale, split_index
from jitdnn.kernels.cpu.schedule.row_vectors import RowVector, group_vector
from jitdnn.rtcg.builder import Builder, Module, Pointer, Value
from jitdnn.rtcg.isa import ITEM_BYTES, Isa

_STACK_BYTES = 16 << 10  # sums of a task
_ROWS_BYTES = 96 << 10  # what the passes over some rows read: it stays in the L2 cache
_STRAIGHT = 200  # multiply-adds of one step along the row
_SHARES = 16  # tasks that should be there, if the vectors of groups are fewer
_SHARE_CYCLES = 50_000.0  # a share that takes less is not worth its sums
_FINISH_LANE = 2.0  # cycles to add up and store one lane of one tap
_PICKED = 2.0  # load slots more by this factor where lanes are picked: shuffles delay the sums
_PASS = 30.0  # cycles to begin and end a pass


@dataclass(frozen=True)
class WgradGroupTile:
    """Sums in registers, of each result channel of a group, and the columns of dy that feed them at once."""

    rows: int
    taps: int
    columns: int


@dataclass(frozen=True)
class WgradOverGroups:
    """How the gradient of a grouped filter is computed; ``c`` is the forward correlation, with y as dy and w as
    dw. With ``is_shared`` the rows may be shared by tasks, for which there must be a workspace."""

    c: Correlation
    isa: Isa
    is_shared: bool

    @property
    def lanes(self) -> int:
        return self.isa.lanes(self.c.dtype)

    @property
    def vectors(self) -> int:
        return ceil_div(self.c.groups[0], self.lanes)

    @cached_property
    def x_span(self) -> RowVector:
        """How x is read: neighbouring groups are as many channels apart as a group has."""
        return group_vector(self.c.x, self.c.depth, self.c.groups[0], self.lanes)

    @cached_property
    def y_span(self) -> RowVector:
        return group_vector(self.c.y, self.c.width, self.c.groups[0], self.lanes)

    # ---- choice and cost

    @cached_property
    def tile(self) -> WgradGroupTile:
        return min(self._candidates(), key=self._cycles_of)

    def _candidates(self) -> Iterator[WgradGroupTile]:
        c = self.c
        _, rows, columns = (axis.taps.count for axis in c.axes)
        yield WgradGroupTile(1, 1, 1)
        for taps in {ceil_div(columns, parts) for parts in range(1, columns + 1)}:
            for together in (n for n in range(1, rows + 1) if rows % n == 0):
                sums = c.width * together * taps
                most = min((self.isa.registers - 3 - sums) // c.width, _STRAIGHT // sums, c.axes[2].results)
                for width in range(1, most + 1):
                    yield WgradGroupTile(together, taps, width)

    def _cycles_of(self, tile: WgradGroupTile) -> float:
        """Cycles of one vector of groups, for all images."""
        c = self.c
        slices, rows, columns = (axis.taps.count for axis in c.axes)
        sums = c.width * tile.rows * tile.taps
        reads = (tile.columns - 1) * c.axes[2].step + tile.taps
        loads = tile.rows * reads * _slots(self.x_span) + c.width * tile.columns * _slots(self.y_span)
        step = max(sums * tile.columns / 2, loads / 2, 4.0 * tile.columns) + 1.0
        walk = ceil_div(c.axes[2].results, tile.columns) * step
        walk += (2.0 * sums + _PASS) / self.row_block
        passes = c.depth * slices * (rows // tile.rows) * ceil_div(columns, tile.taps)
        lines = c.batch * c.axes[0].results * c.axes[1].results
        return passes * (lines * walk + sums * self.lanes * _FINISH_LANE)

    @cached_property
    def row_block(self) -> int:
        """Rows of dy of one pass."""
        c = self.c
        each = (c.width * c.axes[2].results + c.depth * c.axes[1].step * c.axes[2].positions) * c.groups[0]
        return max(1, min(c.axes[1].results, _ROWS_BYTES // (each * ITEM_BYTES[c.dtype])))

    def cycles(self) -> float:
        """Cycles of one thread for the whole."""
        return self.vectors * self._cycles_of(self.tile)

    # ---- division

    @property
    def chunks_of_taps(self) -> list[range]:
        """The taps of a row, a tile's at a time."""
        columns = self.c.axes[2].taps.count
        return [range(at, min(columns, at + self.tile.taps)) for at in range(0, columns, self.tile.taps)]

    @property
    def filter_size(self) -> int:
        """Sums of one vector of groups, with room for whole tiles of taps."""
        tiles = self.c.axes[0].taps.count * self.c.axes[1].taps.count * len(self.chunks_of_taps)
        return self.c.depth * self.c.width * tiles * self.tile.taps * self.lanes

    @property
    def is_on_stack(self) -> bool:
        """True if the sums of at least one vector of groups are on the stack; else there is a workspace."""
        return self.filter_size * ITEM_BYTES[self.c.dtype] <= _STACK_BYTES

    @cached_property
    def chunk(self) -> int:
        """Vectors of groups of one task."""
        return max(1, min(self.vectors, _STACK_BYTES // (self.filter_size * ITEM_BYTES[self.c.dtype])))

    @property
    def _chunks(self) -> int:
        return ceil_div(self.vectors, self.chunk)

    @cached_property
    def splits(self) -> int:
        """Into how many shares the blocks of rows are split."""
        if not self.is_shared:
            return 1
        wanted = min(_SHARES // self._chunks, int(self.cycles() / self._chunks / _SHARE_CYCLES))
        return max(1, min(block_count(self.c, self.row_block), wanted))

    def workspace(self) -> int:
        """Bytes: the sums of every share, unless they stay on the stack to the end."""
        if self.splits == 1 and self.is_on_stack:
            return 0
        return self.splits * self.vectors * self.filter_size * ITEM_BYTES[self.c.dtype]

    def shares(self, device: CpuDevice) -> tuple[int, tuple[()]]:
        """(tasks, the kernel's extras)."""
        return self._chunks * self.splits, ()

    def phases(self, prefix: str) -> list[tuple[str, int]]:
        phases = [(f"{prefix}tiles", self._chunks * self.splits)]
        return phases if self.workspace() == 0 else [*phases, (f"{prefix}finish", self.vectors)]

    # ---- code

    def trace(self, module: Module, prefix: str, extra: int) -> None:
        """Trace the phases of a kernel with pointers to x, dy and dw; no ``extra`` is needed."""
        c, tile = self.c, self.tile
        chunks = list(enumerate(self.chunks_of_taps))
        passes = [trace_pass(module, f"{prefix}pass{j}", self, taps) for j, taps in chunks]
        ends = [trace_finish(module, f"{prefix}end{j}", self, taps) for j, taps in chunks]
        tiles = (c.depth, c.axes[0].taps.count, c.axes[1].taps.count // tile.rows)
        size = c.width * tile.rows * tile.taps * self.lanes  # of the sums of one tile of taps

        def finish(k: Builder, arguments: Arguments, own: Pointer, group: Value) -> None:
            for number in k.range(math.prod(tiles)):
                channel, i, r = split_index(number, tiles)
                at = group * c.w.groups[0] + channel * c.w.channels + tap_offset(c, i, r * tile.rows)
                dw = arguments.pointer(2, c.w.dtype) + at
                for j, end in enumerate(ends):
                    k.call(
                        end,
                        own + (number * len(ends) + j) * size,
                        dw,
                        scale(k, arguments.args, POINTERS),
                        group,
                    )

        with module.task(f"{prefix}tiles") as (k, args, task, _):
            arguments = Arguments(k, args, POINTERS)
            chunk, share = split_index(task, (self._chunks, self.splits))
            first = chunk * self.chunk
            last = (first + self.chunk).min(self.vectors)
            if self.workspace():
                sums = arguments.workspace(c.dtype) + (share * self.vectors + first) * self.filter_size
            else:
                sums = k.local(c.dtype, self.chunk * self.filter_size)
            for at in k.range(0, (last - first) * self.filter_size, self.lanes):
                sums.store(k.constant(0, c.dtype, self.lanes), at)
            blocks = block_count(c, self.row_block)
            begin, stop = (share * blocks // self.splits, (share + 1) * blocks // self.splits)
            for n, d, h, end, ahead_x, ahead_y in row_blocks(k, c, self.row_block, begin, stop):
                x = arguments.pointer(0, c.x.dtype) + (n * c.x.batch + c.x.offset)
                dy = arguments.pointer(1, c.y.dtype) + (n * c.y.batch + c.y.offset)
                for vector in k.range(first, last):
                    own = sums + (vector - first) * self.filter_size
                    for number in k.range(math.prod(tiles)):
                        channel, i, r = split_index(number, tiles)
                        for j, one_pass in enumerate(passes):
                            at = own + (number * len(passes) + j) * size
                            asks = k.select(number == 0, k.integer(int(j == 0)), 0)
                            places = (d, h, end, i, r * tile.rows, vector * self.lanes, channel)
                            k.call(one_pass, x, dy, at, *places, asks, ahead_x, ahead_y)
            if not self.workspace():
                for vector in k.range(first, last):
                    finish(k, arguments, sums + (vector - first) * self.filter_size, vector * self.lanes)
        if self.workspace():
            with module.task(f"{prefix}finish") as (k, args, task, _):
                arguments = Arguments(k, args, POINTERS)
                finish(
                    k, arguments, arguments.workspace(c.dtype) + task * self.filter_size, task * self.lanes
                )


def _slots(span: RowVector) -> float:
    return span.slots * (_PICKED if span.step > 1 else 1.0)

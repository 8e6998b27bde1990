"""A correlation of many small groups with the groups in the lanes: channels-last images, vector times vector.

    task  : some vectors of groups, whose filters are turned to vectors first; a run of blocks of rows
    block : rows of one slice of one image; for each tile along the row every vector of the task
    tile  : sums of [result channels of a group][rows][columns], each a vector of groups

A vector of the input is loaded once for each row of a tile and multiplied by every value of the filter that meets
it. Columns outside of the image are left out when the code is made: tiles at the ends of a row are versions of
their own, as many as differ.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

from jitdnn.devices.cpu import Arguments, CpuDevice
from jitdnn.kernels.algorithm import Epilogue
from jitdnn.kernels.cpu.convolution.direct.over_groups_code import trace_tile
from jitdnn.kernels.cpu.correlation import Axis, Correlation
from jitdnn.kernels.cpu.microkernel.transpose import copy_transposed
from jitdnn.kernels.cpu.schedule.boundary import fraction_inside, when
from jitdnn.kernels.cpu.schedule.offsets import ceil_div, group_offset, scale, split_index
from jitdnn.kernels.cpu.schedule.row_vectors import RowVector, group_vector
from jitdnn.kernels.cpu.schedule.work_units import WorkUnits
from jitdnn.rtcg.builder import Builder, Function, Module, Pointer, Value
from jitdnn.rtcg.isa import ITEM_BYTES, Isa

_STRAIGHT = 600  # multiply-adds of one tile in a straight line: more would take long to compile
_STRAIGHT_ROWS = 1600  # and of one row of the filter, in all versions
_VERSIONS = 4  # of a tile, for the ends of a row
_STACK_BYTES = (
    16 << 10
)  # filters of a task's groups that are kept on the stack; larger ones are in the workspace
_STORE = 1.0  # cycles to finish one vector of sums
_SCATTERED_LANE = 1.5  # cycles to store one lane on its own
_STEP = 6.0  # cycles of a turn of the loop over the taps of a row
_WALK = 1.3  # how much longer its products take than those that are all written out
_TAPS = 4  # of a row that are written out in a loop over them
_LONG_ROW = 64  # taps of a row that nobody writes out
_PICKED = 3.0  # load slots more by this factor where lanes are picked: shuffles delay the sums
_FAR = 1.0  # load slots more for a vector that no run of addresses leads to
_EVICTED = 6.0  # load slots more for a vector that is in the second cache
_SETS, _WAYS = 64, 8  # of the first cache
_TILE = 20.0  # cycles to begin and end a tile
_PAGE_ROW = 6.0  # and for each of its rows, if rows are in pages of their own
_PAGE = 4096
_CACHE_BYTES = 16 << 20  # of both tensors that the third cache keeps
_MEMORY_RATE = 16.0  # bytes of larger ones that take a cycle of their own
_CODE = 40_000  # multiply-adds of code that are worth as much as the whole computation
_UNITS = 64  # that there should be: long rows are cut if there are fewer
_LINE = 64
_WRITTEN_BYTES = 4 << 20  # results that are not kept until they are written again
_BESIDE_BYTES = 128 << 10  # of the input, that correlations beside each other read one after the other


@dataclass(frozen=True)
class GroupTile:
    """Rows and columns of the result; ``straight`` says whether all taps are written out, or one row of them, or
    none ("all", "row", "none")."""

    rows: int
    columns: int
    straight: str


@dataclass(frozen=True)
class Pattern:
    """What is there for a tile: columns of the input, from the tile's first one on, and columns of the result."""

    columns: frozenset[int]
    results: int


@dataclass(frozen=True)
class OverGroups:
    """How one correlation of small groups is computed. The first axis of its groups is in the lanes."""

    c: Correlation
    isa: Isa

    @property
    def lanes(self) -> int:
        return self.isa.lanes(self.c.dtype)

    @property
    def vectors(self) -> int:
        return ceil_div(self.c.groups[0], self.lanes)

    @property
    def is_masked(self) -> bool:
        """True if the last vector has fewer groups than lanes."""
        return self.c.groups[0] % self.lanes != 0

    @property
    def taps(self) -> tuple[int, int, int]:
        d, h, w = (axis.taps.count for axis in self.c.axes)
        return d, h, w

    @cached_property
    def span(self) -> RowVector:
        """How a vector is read: neighbouring groups are as many channels apart as a group has."""
        return group_vector(self.c.x, self.c.depth, self.c.groups[0], self.lanes)

    def columns(self, count: int) -> dict[int, list[tuple[int, int]]]:
        """(column of the tile, tap) by the column of the input, from the tile's first one on."""
        return _reach(self.c.axes[2], count)

    def rows(self, count: int) -> dict[int, list[tuple[int, int]]]:
        return _reach(self.c.axes[1], count)

    def patterns(self, columns: int) -> dict[Pattern, list[tuple[int, int]]]:
        """Runs [first, last) of tiles along a row, by what is there for them."""
        axis, reach = self.c.axes[2], list(self.columns(columns))
        tiles, width = ceil_div(axis.results, columns), columns * axis.step
        first = last = 0  # the tiles for which everything is there
        if reach:
            first = min(tiles, ceil_div(max(0, -reach[0]), width))
            last = max(first, min(axis.results // columns, (axis.positions - 1 - reach[-1]) // width + 1))
        found: dict[Pattern, list[tuple[int, int]]] = {}
        if first < last:
            found[Pattern(frozenset(reach), columns)] = [(first, last)]
        for tile in (*range(first), *range(last, tiles)):
            at = tile * columns
            there = frozenset(q for q in reach if 0 <= at * axis.step + q < axis.positions)
            runs = found.setdefault(Pattern(there, min(columns, axis.results - at)), [])
            if runs and runs[-1][1] == tile:
                runs[-1] = (runs[-1][0], tile + 1)
            else:
                runs.append((tile, tile + 1))
        return found

    # ---- choice and cost

    @cached_property
    def tile(self) -> GroupTile:
        return min(self._candidates(), key=self._cycles_of)

    def _candidates(self) -> Iterator[GroupTile]:
        c = self.c
        _, h, w = self.taps
        yield GroupTile(1, 1, "none")
        most = (self.isa.registers - 3) // c.width
        for columns in range(1, min(most, c.axes[2].results, 16) + 1):
            yield GroupTile(1, columns, "none")
            if w > _LONG_ROW:
                continue
            patterns = self.patterns(columns)
            if len(patterns) > _VERSIONS:
                continue
            for rows in range(1, min(most // columns, c.axes[1].results) + 1):
                tile = GroupTile(rows, columns, "all")
                written = len(patterns) * rows * columns * h * w * c.width
                if self.keeps_filter(tile) and written <= 2 * _STRAIGHT:
                    yield tile
            if c.width * sum(map(self.products, patterns)) <= _STRAIGHT_ROWS:
                yield GroupTile(1, columns, "row")

    def products(self, pattern: Pattern) -> int:
        """Vector products of a row of the filter and one of a tile."""
        axis = self.c.axes[2]
        return sum(
            column * axis.step + axis.taps.offset + tap * axis.taps.shift in pattern.columns
            for column, tap in itertools.product(range(pattern.results), range(axis.taps.count))
        )

    def keeps_filter(self, tile: GroupTile) -> bool:
        """True if registers are left for the whole filter."""
        sums = self.c.width * tile.rows * tile.columns
        return tile.straight == "all" and sums + 2 + self.c.width * math.prod(self.taps) <= self.isa.registers

    def holds_row(self, tile: GroupTile) -> bool:
        """True if registers are left for all columns of the input that a row of the tile reads."""
        sums = self.c.width * tile.rows * tile.columns
        return sums + 4 + len(self.columns(tile.columns)) <= self.isa.registers

    @property
    def _slots(self) -> float:
        """Load slots of one vector of the input; whole cache lines need no more than one."""
        x = self.c.x
        strides = (x.groups[0] * self.lanes, x.batch, *x.space)
        is_aligned = self.span.slots > 1.0 and x.groups[0] == 1 and all(s % self.lanes == 0 for s in strides)
        picked = _PICKED if self.span.step > 1 else 1.0
        return 1.0 if is_aligned else picked * self.span.slots

    @property
    def _again(self) -> float:
        """Load slots of one vector that was read some taps before: more if a row's pixels evict each other."""
        apart = abs(self.c.x.space[2]) * ITEM_BYTES[self.c.dtype] // _LINE
        kept = _WAYS * (_SETS // math.gcd(max(1, apart), _SETS))
        return self._slots if self.taps[2] + 16 <= kept else self._slots + _EVICTED

    def _cycles_of(self, tile: GroupTile) -> float:
        """Cycles of one vector of groups in one slice of one image."""
        c = self.c
        rows = ceil_div(c.axes[1].results, tile.rows)
        store = _STORE if self._stores_whole else _SCATTERED_LANE * self.lanes
        sums = c.width * tile.rows * tile.columns
        planes = c.depth * self.taps[0]
        if tile.straight == "none":
            line = planes * self._walked_cycles(tile.columns)
            code = float(sums * (1 + self.written(tile.columns)))
        else:
            patterns = self.patterns(tile.columns)
            line = sum(
                sum(last - first for first, last in runs) * planes * self._written_cycles(tile, pattern)
                for pattern, runs in patterns.items()
            )
            code = float(c.width * tile.rows * sum(map(self.products, patterns)))
            code *= self.taps[1] if tile.straight == "all" else 1
        tiles = ceil_div(c.axes[2].results, tile.columns)
        tile_cycles = sums * store + _TILE
        if abs(c.y.space[1]) * ITEM_BYTES[c.dtype] > _PAGE:
            tile_cycles += tile.rows * _PAGE_ROW
        return rows * (line + tiles * tile_cycles) * (1 + code / _CODE)

    def _written_cycles(self, tile: GroupTile, pattern: Pattern) -> float:
        """Cycles of one tile and one slice of the filter, whose columns are written out."""
        c, (_, h, w) = self.c, self.taps
        there = fraction_inside(c.axes[1])
        products = c.width * tile.rows * h * self.products(pattern)
        lines = len(self.rows(tile.rows)) if tile.straight == "all" else h
        is_far = tile.straight == "row" and h > 1 and abs(c.x.space[2]) * ITEM_BYTES[c.dtype] > _LINE
        loads = lines * len(pattern.columns) * (self._slots + (_FAR if is_far else 0.0))
        values = 0.0
        if not self.keeps_filter(tile):
            values = float(c.width * tile.rows * h * w if self.holds_row(tile) else products)
        return there * max(products / 2, (loads + values) / 2, 4.0 * h * min(w, 4)) + 2.0 * h + values / 32

    def _walked_cycles(self, columns: int) -> float:
        """Cycles of a row of tiles and one slice of the filter, which is walked through some taps at a time."""
        c, (_, h, w) = self.c, self.taps
        sums, run = c.width * columns, self.written(columns)
        reads = {
            column * c.axes[2].step + tap * c.axes[2].taps.shift
            for column, tap in itertools.product(range(columns), range(run))
        }
        loads = len(reads) * self._again
        whole = _WALK * max(sums / 2, (loads / run + c.width) / 2, 4.0) + _STEP / run
        edge = columns * (1.0 + c.width / 2) + 2 * _STEP
        axis, tiles = c.axes[2], ceil_div(c.axes[2].results, columns)
        if not axis.is_padded or tiles > _UNITS:
            return h * w * tiles * whole
        inner = 0
        for tile in range(tiles):
            lowest = tile * columns * axis.step + axis.taps.offset
            highest = lowest + (columns - 1) * axis.step
            shifts = range(0, axis.taps.count * axis.taps.shift, axis.taps.shift)
            inner += sum(lowest + at >= 0 and highest + at < axis.positions for at in shifts)
        cycles = inner * whole + (tiles * w - inner) * edge
        return fraction_inside(c.axes[1]) * h * cycles + 2.0 * h * tiles

    def written(self, columns: int) -> int:
        """Taps of a row that are written out where not all of them are."""
        fits = self.c.width * (columns + _TAPS) < self.isa.registers
        return _TAPS if self.taps[2] >= 2 * _TAPS and fits else 1

    @property
    def _stores_whole(self) -> bool:
        """True if the sums of neighbouring groups go to neighbouring elements, woven if a group has several."""
        return self.c.y.groups[0] == 1 or self.is_woven

    @property
    def is_written_far(self) -> bool:
        """True if the results exceed the caches, and lie between those of other correlations: the processor foresees
        runs of lines by itself."""
        c = self.c
        if abs(c.y.space[2]) <= c.group_count * c.width:
            return False
        results = c.batch * c.group_count * c.width * math.prod(axis.results for axis in c.axes)
        return results * ITEM_BYTES[c.dtype] > _WRITTEN_BYTES

    @property
    def is_woven(self) -> bool:
        """True if the result's channels of a group follow each other, and those of the next group follow them."""
        c = self.c
        return 1 < c.width <= 4 and c.y.channels == 1 and c.y.groups[0] == c.width

    def cycles(self) -> float:
        """Cycles of one thread for the whole."""
        c, others = self.c, math.prod(self.c.groups[1:])
        counted = c.batch * others * c.axes[0].results * self.vectors * self._cycles_of(self.tile)
        planes = math.prod(axis.positions for axis in c.axes) * c.depth
        planes += math.prod(axis.results for axis in c.axes) * c.width
        moved = c.batch * c.group_count * planes * ITEM_BYTES[c.dtype]
        # what comes from memory is hidden only in part
        return counted + (moved / _MEMORY_RATE if moved > _CACHE_BYTES else 0.0)

    # ---- division

    @property
    def filter_size(self) -> int:
        """Elements of the filters of one vector of groups."""
        return self.c.width * self.c.depth * math.prod(self.taps) * self.lanes

    @cached_property
    def chunk(self) -> int:
        """Vectors of groups of one task."""
        room = _STACK_BYTES // (max(1, self.filter_size) * ITEM_BYTES[self.c.dtype])
        return max(1, min(self.vectors, room))

    @property
    def is_on_stack(self) -> bool:
        return self.filter_size * ITEM_BYTES[self.c.dtype] <= _STACK_BYTES

    def workspace(self, threads: int) -> int:
        """Bytes: the filters of one vector of groups for each thread, if they are too large for the stack."""
        if self.is_on_stack:
            return 0
        return threads * ceil_div(self.filter_size * ITEM_BYTES[self.c.dtype], _LINE) * _LINE

    @property
    def _residues(self) -> int:
        """Correlations that are carried as further groups."""
        return math.prod(self.c.groups[1:])

    @property
    def _chunks(self) -> int:
        return ceil_div(self.vectors, self.chunk)

    @cached_property
    def units(self) -> WorkUnits:
        """Blocks of rows of one chunk of groups."""
        c = self.c
        rows = ceil_div(c.axes[1].results, self.tile.rows)
        blocks = c.batch * c.axes[0].results * rows
        runs = max(1, min(self._tiles, _UNITS // max(1, blocks)))
        return WorkUnits((("image", c.batch), ("slice", c.axes[0].results), ("rows", rows), ("run", runs)))

    @property
    def _tiles(self) -> int:
        """Tiles along a row."""
        return ceil_div(self.c.axes[2].results, self.tile.columns)

    def shares(self, device: CpuDevice) -> tuple[int, tuple[int, int]]:
        """(tasks, (tasks of a chunk, units of a task)); the kernel's extras must hold the latter two."""
        parts = self._residues * self._chunks
        shares, per_task = self.units.split(device, self.cycles() / parts)
        return parts * shares, (shares, per_task)

    def shares_beside(self, others: Sequence[OverGroups]) -> tuple[int, tuple[int, int]] | None:
        """The same for correlations whose results lie between each other's, so that each task of one does what lies
        between the results of another's: what it reads is still near. None if they are not cut alike."""
        if any(other.units != self.units or other._chunks != self._chunks for other in others):
            return None
        if self._residues > 1 or any(other._residues > 1 for other in others):
            return None
        c, rows = self.c, self.tile.rows * self.c.axes[1].step
        unit = abs(c.x.space[1]) * rows * ITEM_BYTES[c.dtype]
        per_task = max(1, _BESIDE_BYTES // max(1, unit))
        shares = ceil_div(self.units.count, per_task)
        return self._chunks * shares, (shares, per_task)

    # ---- code

    def trace(
        self, module: Module, prefix: str, pointers: int, extra: int, order: tuple[int, int, int],
        epilogue: Epilogue | None,
    ) -> Function:  # fmt: skip
        """Trace the task ``<prefix>tiles``. ``order`` numbers the pointers to x, w and y; the kernel's extras from
        ``extra`` on hold the tasks of a chunk and the units of a task."""
        c, tile, lanes = self.c, self.tile, self.lanes
        versions = [
            (runs, trace_tile(module, f"{prefix}tile{i}", self, pattern, epilogue))
            for i, (pattern, runs) in enumerate(self.versions().items())
        ]
        turn = self.trace_filter(module, f"{prefix}filter")
        names = {"task": None, "thread": None}
        with module.function(f"{prefix}tiles", args="i64", **names) as (k, (args, task, thread), whole):
            arguments = Arguments(k, args, pointers)
            shares, per_task = arguments.extra(extra), arguments.extra(extra + 1)
            stride_phase, chunk = split_index(task // shares, (self._residues, self._chunks))
            first = chunk * self.chunk
            last = (first + self.chunk).min(self.vectors)
            filters = self._filters(k, arguments, thread)
            w = arguments.pointer(order[1], c.w.dtype) + self._residue_offset(stride_phase, c.w.groups)
            for vector in k.range(first, last):
                group = vector * lanes
                own = filters + (vector - first) * self.filter_size
                k.call(turn, w + group * c.w.groups[0], own, k.integer(c.groups[0]) - group)
            tensors = [
                (arguments.pointer(order[0], c.x.dtype), c.x),
                (arguments.pointer(order[2], c.y.dtype), c.y),
            ]
            tensors += [(arguments.pointer(3 + i, v.dtype), v) for i, v in enumerate(c.operands)]
            tensors = [(t + (self._residue_offset(stride_phase, v.groups) + v.offset), v) for t, v in tensors]
            for unit in self.units.each(k, task % shares, per_task):
                n, d, h = unit["image"], unit["slice"], unit["rows"] * tile.rows
                x = tensors[0][0] + n * c.x.batch
                rows = [t + (n * v.batch + d * v.space[0] + h * v.space[1]) for t, v in tensors[1:]]
                parts = dict(self.units.axes)["run"]
                begin, end = unit["run"] * self._tiles // parts, (unit["run"] + 1) * self._tiles // parts
                for number in k.range(begin, end):
                    p = number * tile.columns
                    pixels = [t + p * v.space[2] for t, (_, v) in zip(rows, tensors[1:], strict=True)]
                    for vector in k.range(first, last):
                        group = vector * lanes
                        places = [
                            t + group * v.groups[0] for t, (_, v) in zip(pixels, tensors[1:], strict=True)
                        ]
                        own = filters + (vector - first) * self.filter_size
                        for runs, function in versions:
                            with when(k, None if len(versions) == 1 else _in_runs(k, number, runs)):
                                k.call(
                                    function,
                                    x,
                                    own,
                                    places[0],
                                    scale(k, args, pointers),
                                    *places[1:],
                                    d,
                                    h,
                                    p,
                                    group,
                                )
        return whole

    def versions(self) -> dict[Pattern, list[tuple[int, int]]]:
        """The versions of a tile, and the runs of tiles along a row that each is for."""
        tile = self.tile
        if tile.straight == "none":
            everything = frozenset(self.columns(tile.columns))
            return {Pattern(everything, tile.columns): [(0, self._tiles)]}
        return self.patterns(tile.columns)

    def _residue_offset(self, stride_phase: Value, strides: tuple[int, ...]) -> Value:
        return group_offset(stride_phase, self.c.groups[1:], strides[1:])

    def _filters(self, k: Builder, arguments: Arguments, thread: Value) -> Pointer:
        if self.is_on_stack:
            return k.local(self.c.dtype, self.chunk * self.filter_size)
        work: Pointer = arguments.workspace(self.c.dtype)
        return work + thread * (self.workspace(1) // ITEM_BYTES[self.c.dtype])

    def trace_filter(self, module: Module, name: str) -> Function:
        """Trace ``name(w, filters, groups)``: the filters of a vector of groups as [result channel][channel][tap
        0][tap 1][tap 2][lanes]; ``w`` points to its first group's, of which at least ``groups`` are left."""
        c, lanes, (_, taps_h, taps_w) = self.c, self.lanes, self.taps
        with module.function(name, w=c.w.dtype, filters=c.dtype, groups=None) as (
            k,
            (w, filters, groups),
            function,
        ):
            strides = [axis.taps.increment * s for axis, s in zip(c.axes, c.w.space, strict=True)]
            start = sum(axis.taps.start * s for axis, s in zip(c.axes, c.w.space, strict=True))
            run = taps_h * taps_w
            plane = run * lanes
            along = strides[2] if taps_w > 1 else strides[1]
            is_run = abs(along) == 1 and run > 1
            is_run = is_run and (taps_h == 1 or taps_w == 1 or strides[1] == along * taps_w)
            number = 0
            for result, channel, tap in itertools.product(
                range(c.width), range(c.depth), range(self.taps[0])
            ):
                source = w + (start + result * c.w.results + channel * c.w.channels + tap * strides[0])
                target = filters + number * plane
                number += 1
                if is_run:
                    last = (run - 1) if along < 0 else 0
                    copy_transposed(
                        k,
                        source + -last,
                        c.w.groups[0],
                        groups,
                        run,
                        target + last * lanes,
                        along * lanes,
                        lanes,
                    )
                    continue
                mask = k.mask(groups, lanes)
                for i in k.range(taps_h):
                    for j in k.range(taps_w):
                        vector = source.load_strided(
                            i * strides[1] + j * strides[2], c.w.groups[0], lanes, mask
                        )
                        target.store(vector, (i * taps_w + j) * lanes)
        return function


def _in_runs(k: Builder, number: Value, runs: list[tuple[int, int]]) -> Value:
    """Whether the number is in one of the runs [first, last)."""
    found = k.integer(0) != 0
    for first, last in runs:
        found = found | ((number >= first) & (number < last))
    return found


def _reach(axis: Axis, count: int) -> dict[int, list[tuple[int, int]]]:
    """(result, tap) of an axis by the position that they read, from that of result 0 on."""
    found: dict[int, list[tuple[int, int]]] = {}
    for result, tap in itertools.product(range(count), range(axis.taps.count)):
        at = result * axis.step + axis.taps.offset + tap * axis.taps.shift
        found.setdefault(at, []).append((result, tap))
    return dict(sorted(found.items()))

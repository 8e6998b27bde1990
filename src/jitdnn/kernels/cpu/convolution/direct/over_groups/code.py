"""The code of a correlation vectorized over groups: a tile of sums in registers, then to the user's tensor."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from jitdnn.devices.cpu_kernel import Arguments
from jitdnn.kernels.algorithm import Epilogue
from jitdnn.kernels.cpu.convolution.direct.code import (
    interleave,
    pointer_count,
    results_of,
    store_from,
    tile_function,
)
from jitdnn.kernels.cpu.convolution.direct.over_groups.plan import Clipping, OverGroups
from jitdnn.kernels.cpu.convolution.direct.plan import reads_of
from jitdnn.kernels.cpu.correlation import View
from jitdnn.kernels.cpu.microkernel.epilogue_store import Blend
from jitdnn.kernels.cpu.microkernel.transpose import copy_transposed
from jitdnn.kernels.cpu.schedule.boundary import inside, when
from jitdnn.kernels.cpu.schedule.offsets import group_offset, scale, split_index
from jitdnn.kernels.cpu.schedule.row_vectors import Masks
from jitdnn.rtcg.builder import Builder, Function, Module, Pointer, Value

Versions = list[tuple[list[tuple[int, int]], Function]]  # runs of tiles along a row, and their code


def trace(module: Module, prefix: str, plan: OverGroups, extra: int, epilogue: Epilogue | None) -> Function:
    """Trace the task ``<prefix>tiles``.

    The kernel's extras from ``extra`` on hold the tasks of a block of vectors and the units of a task.
    """
    c, tile, lanes, pointers = plan.c, plan.tile, plan.lanes, pointer_count(plan.c)
    versions = trace_versions(module, prefix, plan, epilogue)
    transpose = trace_filter(module, f"{prefix}filter", plan)
    names = {"task": None, "thread": None}
    with module.function(f"{prefix}tiles", args="i64", **names) as (k, (args, task, thread), function):
        arguments = Arguments(k, args, pointers)
        tasks, per_task = arguments.extra(extra), arguments.extra(extra + 1)
        stride_phase, block = split_index(task // tasks, (plan.stride_phases, plan.vector_blocks))
        first = block * plan.task_vectors
        last = (first + plan.task_vectors).min(plan.vectors)
        filters = _filters(k, plan, arguments, thread)
        w = arguments.pointer(1, c.w.dtype) + _phase_offset(plan, stride_phase, c.w.groups)
        for vector in k.range(first, last):
            group = vector * lanes
            own = filters + (vector - first) * plan.filter_size
            k.call(transpose, w + group * c.w.groups[0], own, k.integer(c.groups[0]) - group)
        tensors = [(arguments.pointer(0, c.x.dtype), c.x), *results_of(arguments, c)]
        tensors = [(t + (_phase_offset(plan, stride_phase, v.groups) + v.offset), v) for t, v in tensors]
        (image, _), *results = tensors
        for unit in plan.units.each(k, task % tasks, per_task):
            n, d, h = unit["image"], unit["slice"], unit["rows"] * tile.rows
            x = image + n * c.x.batch
            rows = [(t + (n * v.batch + d * v.space[0] + h * v.space[1]), v) for t, v in results]
            runs, tiles = dict(plan.units.axes)["run"], plan.row_tiles
            begin, end = unit["run"] * tiles // runs, (unit["run"] + 1) * tiles // runs
            for number in k.range(begin, end):
                p = number * tile.columns
                pixels = [(t + p * v.space[2], v) for t, v in rows]
                for vector in k.range(first, last):
                    group = vector * lanes
                    y, *operands = (t + group * v.groups[0] for t, v in pixels)
                    own = filters + (vector - first) * plan.filter_size
                    for numbers, version in versions:
                        with when(k, None if len(versions) == 1 else _is_in_runs(k, number, numbers)):
                            k.call(version, x, own, y, scale(k, args, pointers), *operands, d, h, p, group)
    return function


def trace_versions(module: Module, prefix: str, plan: OverGroups, epilogue: Epilogue | None) -> Versions:
    """Trace all versions of a tile."""
    return [
        (runs, _trace_tile(module, f"{prefix}tile{i}", plan, clipping, epilogue))
        for i, (clipping, runs) in enumerate(plan.versions.items())
    ]


def trace_filter(module: Module, name: str, plan: OverGroups) -> Function:
    """Trace ``name(w, filters, groups)``: the filters of a vector of groups as [result channel][channel][tap
    0][tap 1][tap 2][lanes]; ``w`` points to its first group's, of which at least ``groups`` are left."""
    c, lanes, (taps_d, taps_h, taps_w) = plan.c, plan.lanes, plan.taps
    with module.function(name, w=c.w.dtype, filters=c.dtype, groups=None) as (
        k, (w, filters, groups), function,
    ):  # fmt: skip
        strides = [axis.taps.increment * s for axis, s in zip(c.axes, c.w.space, strict=True)]
        start = sum(axis.taps.start * s for axis, s in zip(c.axes, c.w.space, strict=True))
        run = taps_h * taps_w
        plane = run * lanes
        step = strides[2] if taps_w > 1 else strides[1]
        is_run = abs(step) == 1 and run > 1
        is_run = is_run and (taps_h == 1 or taps_w == 1 or strides[1] == step * taps_w)
        for number, (result, channel, tap) in enumerate(
            itertools.product(range(c.width), range(c.depth), range(taps_d))
        ):
            source = w + (start + result * c.w.results + channel * c.w.channels + tap * strides[0])
            target = filters + number * plane
            if is_run:
                last = (run - 1) if step < 0 else 0
                source, target = source + -last, target + last * lanes
                copy_transposed(k, source, c.w.groups[0], groups, run, target, step * lanes, lanes)
                continue
            mask = k.mask(groups, lanes)
            for i in k.range(taps_h):
                for j in k.range(taps_w):
                    vector = source.load_strided(i * strides[1] + j * strides[2], c.w.groups[0], lanes, mask)
                    target.store(vector, (i * taps_w + j) * lanes)
    return function


def _phase_offset(plan: OverGroups, stride_phase: Value, strides: tuple[int, ...]) -> Value:
    return group_offset(stride_phase, plan.c.groups[1:], strides[1:])


def _filters(k: Builder, plan: OverGroups, arguments: Arguments, thread: Value) -> Pointer:
    """Where a task has its filters: on the stack or in the workspace."""
    if plan.is_on_stack:
        return k.local(plan.c.dtype, plan.task_vectors * plan.filter_size)
    work: Pointer = arguments.workspace(plan.c.dtype)
    return work + thread * (plan.workspace(1) // plan.item)


def _is_in_runs(k: Builder, number: Value, runs: list[tuple[int, int]]) -> Value:
    """Whether the number is in one of the runs [first, last)."""
    found = k.integer(0) != 0
    for first, last in runs:
        found = found | ((number >= first) & (number < last))
    return found


def _trace_tile(
    module: Module, name: str, plan: OverGroups, clipping: Clipping, epilogue: Epilogue | None
) -> Function:
    """Trace ``name(x, filters, y, scale, operands..., d, h, p, group)``: the tile whose first result is (d, h, p) of
    the vector of groups that begins with ``group``.

    ``x`` points to the first channel of the image, ``filters`` to the vector's filters, ``y`` and the operands to
    the tile's first result, ``scale`` to alpha and beta.
    """
    dtype = plan.c.dtype
    tensors = {"x": plan.c.x.dtype, "filters": dtype}
    with tile_function(module, name, plan.c, tensors, ("d", "h", "p", "group")) as (
        k, (x, filters, y, scale, *operands), (d, h, p, group), function,
    ):  # fmt: skip
        code = _Tile(k, plan, clipping, (d, h, p), group)
        if plan.prefetches_results:
            code.prefetch_results(y)
        code.sum_up(x, filters)
        code.store(Blend.of(k, scale, dtype, y, epilogue), [y, *operands])
    return function


class _Tile:
    """Tracing one version of a tile."""

    def __init__(
        self,
        k: Builder,
        plan: OverGroups,
        clipping: Clipping,
        first: tuple[Value, Value, Value],
        group: Value,
    ) -> None:
        self.d, self.h, self.p = first
        self.k, self.plan, self.clipping, self.tile, self.c = k, plan, clipping, plan.tile, plan.c
        self.group, self.lanes = group, plan.lanes
        if self.tile.rows >= self.c.axes[1].results:
            self.h = self.k.integer(0)  # a constant: tests of it fold away
        zero = self.k.constant(0, self.c.dtype, self.lanes)
        index = (self.c.width, self.tile.rows, self.tile.columns)
        self.sums = {at: self.k.register(zero) for at in itertools.product(*map(range, index))}
        self.weights: dict[tuple[int, int, int], Value] = {}

    # ---- sums

    def prefetch_results(self, y: Pointer) -> None:
        """Prefetch the lines of the results, to be written."""
        for row, column in itertools.product(range(self.tile.rows), range(self.clipping.results)):
            y.prefetch(row * self.c.y.space[1] + column * self.c.y.space[2], write=True)

    def sum_up(self, x: Pointer, filters: Pointer) -> None:
        """All channels of a group, and all slices."""
        k, c, (taps_d, taps_h, taps_w) = self.k, self.c, self.plan.taps
        span, axis = self.plan.span, c.axes[0]
        end = (self.plan.vectors - 1) * self.lanes * span.step
        for channel in range(c.depth):
            skipped = (
                channel if span.step > 1 else 0
            )  # channels of a group are neighbours: one is shuffled out
            image = x + (channel - skipped) * c.x.channels
            first = self.group * span.step + skipped
            masks = span.masks(k, first, skipped, end + skipped)
            for tap in k.range(taps_d):
                at = self.d * axis.step + axis.taps.offset + tap * axis.taps.shift
                with when(k, inside(axis, at, 1)):
                    plane = image + at * c.x.space[0]
                    # [result channel][channel][slice][row][column][lanes]
                    own = filters + (tap + channel * taps_d) * (taps_h * taps_w * self.lanes)
                    self._plane(plane, own, first, masks)

    def _weight(self, filters: Pointer, result: int, row: int | Value, column: int | Value) -> Value:
        if self.weights:
            assert isinstance(row, int)
            assert isinstance(column, int)
            return self.weights[result, row, column]
        taps_d, taps_h, taps_w = self.plan.taps
        number = row * taps_w + column + result * (self.c.depth * taps_d * taps_h * taps_w)
        return filters.load(number * self.lanes, self.lanes)

    def _plane(self, plane: Pointer, filters: Pointer, first: Value, masks: Masks) -> None:
        """All rows of one slice of one channel."""
        k, plan, axis, (_, taps_h, taps_w) = self.k, self.plan, self.c.axes[1], self.plan.taps
        self.weights = {}
        if plan.filter_fits_registers:
            index = itertools.product(range(self.c.width), range(taps_h), range(taps_w))
            self.weights = {at: self._weight(filters, *at) for at in list(index)}
        self._prefetch(plane, first)
        if self.tile.unrolled == "all":
            for offset, pairs in plan.row_reads.items():
                at = self.h * axis.step + offset
                with when(k, inside(axis, at, self.tile.rows)):
                    self._row(plane + at * self.c.x.space[1], filters, pairs, first, masks)
            return
        for tap in k.range(taps_h):
            at = self.h * axis.step + axis.taps.offset + tap * axis.taps.shift
            with when(k, inside(axis, at, 1)):
                row = plane + at * self.c.x.space[1]
                if self.tile.unrolled == "row":
                    self._row(row, filters, [(0, tap)], first, masks)
                else:
                    self._row_in_loop(row, filters, tap, first, masks)

    def _prefetch(self, plane: Pointer, first: Value) -> None:
        """Prefetch what the next tile along the row is the first to read.

        One vector of a pixel is read at a time, so that the hardware prefetcher sees no run of addresses.
        """
        rows, columns, x = self.c.axes[1], self.c.axes[2], self.c.x
        lowest = rows.taps.lowest + rows.taps.span
        count = self.tile.rows * rows.step if self.tile.unrolled == "all" else 1
        if self.tile.unrolled == "all":
            lowest -= rows.step - 1
        distance = columns.taps.lowest + columns.reads(self.tile.columns)
        corner = plane + ((self.h * rows.step + lowest) * x.space[1] + first * self.plan.span.stride)
        corner = corner + (self.p * columns.step + distance) * x.space[2]
        for row, column in itertools.product(range(count), range(self.tile.columns * columns.step)):
            corner.prefetch(row * x.space[1] + column * x.space[2])

    def _row(
        self, row: Pointer, filters: Pointer, pairs: Sequence[tuple[int, int | Value]], first: Value, masks: Masks
    ) -> None:  # fmt: skip
        """One row of the input, its columns unrolled; it feeds rows of the tile, each by a tap."""
        step = self.c.axes[2].step
        reads = {
            q: [(column, s) for column, s in uses if column < self.clipping.results]
            for q, uses in self.plan.column_reads.items()
            if q in self.clipping.columns
        }

        def load(q: int) -> Value:
            pixel = row + (self.p * step + q) * self.c.x.space[2]
            return self.plan.span.load(pixel, first, masks)

        if not self.plan.row_fits_registers:
            for q, uses in reads.items():
                vector = load(q)
                for (r, tap), (column, s) in itertools.product(pairs, uses):
                    self._multiply(filters, vector, r, column, tap, s)
            return
        vectors = {q: load(q) for q in reads}
        for (r, tap), s in itertools.product(pairs, range(self.plan.taps[2])):
            for q, uses in reads.items():
                for column, other in uses:
                    if other == s:
                        self._multiply(filters, vectors[q], r, column, tap, s)

    def _multiply(
        self, filters: Pointer, vector: Value, row: int, column: int, tap: int | Value, s: int | Value
    ) -> None:
        for result in range(self.c.width):
            register = self.sums[result, row, column]
            register.set(self.k.fma(vector, self._weight(filters, result, tap, s), register.get()))

    def _row_in_loop(self, row: Pointer, filters: Pointer, tap: Value, first: Value, masks: Masks) -> None:
        """One row of the input and of the filter, some taps at a time; columns outside of the row are skipped."""
        k, axis, count = self.k, self.c.axes[2], self.plan.loop_taps
        last = (self.tile.columns - 1) * axis.step
        for begin in k.range(0, axis.taps.count, count):
            at = self.p * axis.step + axis.taps.offset + begin * axis.taps.shift
            ends = (count - 1) * axis.taps.shift
            whole = (at + min(0, ends) >= 0) & (at + (last + max(0, ends)) < axis.positions)
            whole = whole & (begin + count <= axis.taps.count)
            with k.when(whole):
                self._several_taps(row + at * self.c.x.space[2], filters, (tap, begin, count), first, masks)
            with k.when(~whole):
                for s in k.range(begin, (begin + count).min(axis.taps.count)):
                    self._one_tap(row, filters, (tap, s), first, masks)

    def _several_taps(
        self, row: Pointer, filters: Pointer, taps: tuple[Value, Value, int], first: Value, masks: Masks
    ) -> None:
        """Some taps of a row, for all columns; ``row`` points to what the first of them reads for column 0."""
        (tap, begin, count), axis = taps, self.c.axes[2]
        weights = {
            (result, s): self._weight(filters, result, tap, begin + s)
            for result, s in itertools.product(range(self.c.width), range(count))
        }
        for q, uses in reads_of(axis, self.tile.columns, count).items():
            vector = self.plan.span.load(row + q * self.c.x.space[2], first, masks)
            for (column, s), result in itertools.product(uses, range(self.c.width)):
                register = self.sums[result, 0, column]
                register.set(self.k.fma(vector, weights[result, s], register.get()))

    def _one_tap(
        self, row: Pointer, filters: Pointer, taps: tuple[Value, Value], first: Value, masks: Masks
    ) -> None:
        """One tap, for the columns whose read is inside of the row."""
        (tap, s), k, axis = taps, self.k, self.c.axes[2]
        weights = [self._weight(filters, result, tap, s) for result in range(self.c.width)]
        at = self.p * axis.step + axis.taps.offset + s * axis.taps.shift
        whole = (at >= 0) & (at + (self.tile.columns - 1) * axis.step < axis.positions)
        for are_all in (True, False):
            with k.when(whole if are_all else ~whole):
                for column in range(self.tile.columns):
                    position = at + column * axis.step
                    is_inside = (position >= 0) & (position < axis.positions)
                    with when(k, None if are_all else is_inside):
                        vector = self.plan.span.load(row + position * self.c.x.space[2], first, masks)
                        for result, weight in enumerate(weights):
                            register = self.sums[result, 0, column]
                            register.set(k.fma(vector, weight, register.get()))

    # ---- results

    def store(self, blend: Blend, pointers: Sequence[Pointer]) -> None:
        """The sums to y."""
        k, c, lanes, interleaves = self.k, self.c, self.lanes, self.plan.interleaves_results
        left = (k.integer(c.groups[0]) - self.group) * (c.width if interleaves else 1)
        masks = [k.mask(left - j * lanes, lanes) if self.plan.is_masked else None for j in range(c.width)]
        if not interleaves:
            masks = [masks[0]] * c.width
        if blend.epilogue is not None:
            self._store_buffered(blend, pointers, masks)
            return
        step = 1 if interleaves else c.y.groups[0]
        overwrites = blend.overwrites
        with k.when(overwrites):
            for row in range(self.tile.rows):
                with when(k, self._has_row(row)):
                    y = pointers[0] + row * c.y.space[1]
                    for column in range(self.tile.columns):
                        with when(k, self._has_column(column)):
                            for j, vector in enumerate(self._pixel_vectors(row, column)):
                                at = column * c.y.space[2] + self._channel(c.y, j)
                                scaled = vector * k.splat(blend.alpha, lanes)
                                y.store_strided(scaled, at, step, masks[j])
        with k.when(~overwrites):
            self._store_buffered(blend, pointers, masks)

    def _channel(self, view: View, number: int) -> int:
        """Offset of vector ``number`` of a pixel's results: a run of interleaved channels, or one of each group."""
        return number * view.channels * (self.lanes if self.plan.interleaves_results else 1)

    def _pixel_vectors(self, row: int, column: int) -> list[Value]:
        """The sums of one pixel, in the order of y's channels if these interleave."""
        sums = [self.sums[result, row, column].get() for result in range(self.c.width)]
        return interleave(self.k, sums) if self.plan.interleaves_results else sums

    def _has_row(self, row: int) -> Value | None:
        results = self.c.axes[1].results
        return None if row == 0 or results % self.tile.rows == 0 else self.h + row < results

    def _has_column(self, column: int) -> Value | None:
        """Whether the result has a column; versions that are clipped need no test."""
        results = self.c.axes[2].results
        if self.tile.unrolled == "none":
            return None if column == 0 or results % self.tile.columns == 0 else self.p + column < results
        return None if column < self.clipping.results else self.k.integer(0) != 0

    def _store_buffered(
        self, blend: Blend, pointers: Sequence[Pointer], masks: Sequence[Value | None]
    ) -> None:
        """By way of a buffer and a loop, so that an epilogue is in the code once for each result channel."""
        k, c, tile, lanes = self.k, self.c, self.tile, self.lanes
        buffer = k.local(c.dtype, c.width * tile.rows * tile.columns * lanes)
        for row, column in itertools.product(range(tile.rows), range(tile.columns)):
            for j, vector in enumerate(self._pixel_vectors(row, column)):
                buffer.store(vector, ((row * tile.columns + column) * c.width + j) * lanes)
        rows = (k.integer(c.axes[1].results) - self.h).min(tile.rows) if tile.rows > 1 else 1
        columns = (k.integer(c.axes[2].results) - self.p).min(tile.columns) if tile.columns > 1 else 1
        views = (c.y, *c.operands)
        steps = [v.channels if self.plan.interleaves_results else v.groups[0] for v in views]
        for this_row in k.range(rows):
            for this_column in k.range(columns):
                own = buffer + (this_row * tile.columns + this_column) * (c.width * lanes)
                starts = [
                    p + (this_row * v.space[1] + this_column * v.space[2])
                    for p, v in zip(pointers, views, strict=True)
                ]
                for j in range(c.width):
                    targets = [p + self._channel(v, j) for p, v in zip(starts, views, strict=True)]
                    store_from(blend, own, j * lanes, targets, steps, lanes, masks[j])

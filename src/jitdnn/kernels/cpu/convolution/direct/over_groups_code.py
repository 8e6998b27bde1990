"""The code of one tile of `group_lanes`: sums in registers, then to the user's tensor."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import TYPE_CHECKING

from jitdnn.kernels.algorithm import Epilogue
from jitdnn.kernels.cpu.convolution.direct.over_pixels_code import interleave
from jitdnn.kernels.cpu.correlation import View
from jitdnn.kernels.cpu.microkernel.epilogue_store import Blend
from jitdnn.kernels.cpu.schedule.boundary import inside, when
from jitdnn.kernels.cpu.schedule.row_vectors import Masks
from jitdnn.rtcg.builder import Builder, Function, Module, Pointer, Value

if TYPE_CHECKING:
    from jitdnn.kernels.cpu.convolution.direct.over_groups import OverGroups, Pattern


def trace_tile(
    module: Module, name: str, plan: OverGroups, pattern: Pattern, epilogue: Epilogue | None
) -> Function:
    """Trace ``name(x, filters, y, scale, operands..., d, h, p, group)``: the tile whose first result is (d, h, p) of
    the vector of groups that begins with ``group``.

    ``x`` points to the first channel of the image, ``filters`` to the vector's filters, ``y`` and the operands to
    the tile's first result, ``scale`` to alpha and beta.
    """
    c, dtype = plan.c, plan.c.dtype
    operands = {f"operand{i}": v.dtype for i, v in enumerate(c.operands)}
    with module.function(
        name,
        x=c.x.dtype,
        filters=dtype,
        y=c.y.dtype,
        scale="f64",
        **operands,
        d=None,
        h=None,
        p=None,
        group=None,
    ) as (k, (x, filters, y, scale, *rest), function):
        *pointers, d, h, p, group = rest
        code = _Tile(k, plan, pattern, (d, h, p), group)
        if plan.is_written_far:
            code.ask(y)
        code.sum_up(x, filters)
        code.finish(Blend.of(k, scale, dtype, y, epilogue), [y, *pointers])
    return function


class _Tile:
    def __init__(
        self, k: Builder, plan: OverGroups, pattern: Pattern, place: tuple[Value, Value, Value], group: Value
    ) -> None:
        self.k, self.plan, self.pattern, self.tile, self.c = k, plan, pattern, plan.tile, plan.c
        self.d, self.h, self.p = place
        self.group, self.lanes = group, plan.lanes
        if self.tile.rows >= self.c.axes[1].results:
            self.h = k.integer(0)  # what is known is not tested
        zero = k.constant(0, self.c.dtype, self.lanes)
        index = (self.c.width, self.tile.rows, self.tile.columns)
        self.sums = {at: k.register(zero) for at in itertools.product(*map(range, index))}
        self.weights: dict[tuple[int, int, int], Value] = {}

    # ---- sums

    def ask(self, y: Pointer) -> None:
        """Ask for the lines of the results, which are to be written."""
        for row, column in itertools.product(range(self.tile.rows), range(self.pattern.results)):
            y.prefetch(row * self.c.y.space[1] + column * self.c.y.space[2], write=True)

    def sum_up(self, x: Pointer, filters: Pointer) -> None:
        """All channels of a group, and all slices."""
        k, c, (taps_d, taps_h, taps_w) = self.k, self.c, self.plan.taps
        span, axis = self.plan.span, c.axes[0]
        end = (self.plan.vectors - 1) * self.lanes * span.step
        for channel in range(c.depth):
            place = channel if span.step > 1 else 0  # channels of a group are neighbours: they are picked
            image = x + (channel - place) * c.x.channels
            first = self.group * span.step + place
            masks = span.masks(k, first, place, end + place)
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
        if plan.keeps_filter(self.tile):
            index = itertools.product(range(self.c.width), range(taps_h), range(taps_w))
            self.weights = {at: self._weight(filters, *at) for at in list(index)}
        self._prefetch(plane, first)
        if self.tile.straight == "all":
            for at, pairs in plan.rows(self.tile.rows).items():
                place = self.h * axis.step + at
                with when(k, inside(axis, place, self.tile.rows)):
                    self._row(plane + place * self.c.x.space[1], filters, pairs, first, masks)
            return
        for tap in k.range(taps_h):
            place = self.h * axis.step + axis.taps.offset + tap * axis.taps.shift
            with when(k, inside(axis, place, 1)):
                row = plane + place * self.c.x.space[1]
                if self.tile.straight == "row":
                    self._row(row, filters, [(0, tap)], first, masks)
                else:
                    self._walk(row, filters, tap, first, masks)

    def _prefetch(self, plane: Pointer, first: Value) -> None:
        """Ask for what the next tile along the row is the first to read.

        One vector of a pixel is at a time read, so that the processor sees no run of addresses to follow.
        """
        rows, columns, x = self.c.axes[1], self.c.axes[2], self.c.x
        lowest = rows.taps.lowest + rows.taps.span
        count = self.tile.rows * rows.step if self.tile.straight == "all" else 1
        if self.tile.straight == "all":
            lowest -= rows.step - 1
        ahead = columns.taps.lowest + columns.reads(self.tile.columns)
        corner = plane + ((self.h * rows.step + lowest) * x.space[1] + first * self.plan.span.stride)
        corner = corner + (self.p * columns.step + ahead) * x.space[2]
        for row, column in itertools.product(range(count), range(self.tile.columns * columns.step)):
            corner.prefetch(row * x.space[1] + column * x.space[2])

    def _row(
        self,
        row: Pointer,
        filters: Pointer,
        pairs: Sequence[tuple[int, int | Value]],
        first: Value,
        masks: Masks,
    ) -> None:
        """One row of the input, its columns written out; it feeds rows of the tile, each by a tap."""
        step = self.c.axes[2].step
        there = self.pattern.columns
        reach = {
            q: [(column, s) for column, s in uses if column < self.pattern.results]
            for q, uses in self.plan.columns(self.tile.columns).items()
            if q in there
        }

        def load(q: int) -> Value:
            pixel = row + (self.p * step + q) * self.c.x.space[2]
            return self.plan.span.load(pixel, first, masks)

        if not self.plan.holds_row(self.tile):
            for q, uses in reach.items():
                vector = load(q)
                for (r, tap), (column, s) in itertools.product(pairs, uses):
                    self._multiply(filters, vector, r, column, tap, s)
            return
        vectors = {q: load(q) for q in reach}
        for (r, tap), s in itertools.product(pairs, range(self.plan.taps[2])):
            for q, uses in reach.items():
                for column, other in uses:
                    if other == s:
                        self._multiply(filters, vectors[q], r, column, tap, s)

    def _multiply(
        self, filters: Pointer, vector: Value, row: int, column: int, tap: int | Value, s: int | Value
    ) -> None:
        for result in range(self.c.width):
            register = self.sums[result, row, column]
            register.set(self.k.fma(vector, self._weight(filters, result, tap, s), register.get()))

    def _walk(self, row: Pointer, filters: Pointer, tap: Value, first: Value, masks: Masks) -> None:
        """One row of the input and of the filter, some taps at a time; columns outside of the row are skipped."""
        k, axis, run = self.k, self.c.axes[2], self.plan.written(self.tile.columns)
        last = (self.tile.columns - 1) * axis.step
        for begin in k.range(0, axis.taps.count, run):
            at = self.p * axis.step + axis.taps.offset + begin * axis.taps.shift
            ends = (run - 1) * axis.taps.shift
            whole = (at + min(0, ends) >= 0) & (at + (last + max(0, ends)) < axis.positions)
            whole = whole & (begin + run <= axis.taps.count)
            with k.when(whole):
                self._run(row + at * self.c.x.space[2], filters, (tap, begin, run), first, masks)
            with k.when(~whole):
                for s in k.range(begin, (begin + run).min(axis.taps.count)):
                    self._tap(row, filters, (tap, s), first, masks)

    def _run(
        self, row: Pointer, filters: Pointer, taps: tuple[Value, Value, int], first: Value, masks: Masks
    ) -> None:
        """Some taps of a row, for all columns; ``row`` points to what the first of them reads for column 0."""
        (tap, begin, run), axis = taps, self.c.axes[2]
        weights = {
            (result, s): self._weight(filters, result, tap, begin + s)
            for result, s in itertools.product(range(self.c.width), range(run))
        }
        reach: dict[int, list[tuple[int, int]]] = {}
        for column, s in itertools.product(range(self.tile.columns), range(run)):
            reach.setdefault(column * axis.step + s * axis.taps.shift, []).append((column, s))
        for q, uses in sorted(reach.items()):
            vector = self.plan.span.load(row + q * self.c.x.space[2], first, masks)
            for (column, s), result in itertools.product(uses, range(self.c.width)):
                register = self.sums[result, 0, column]
                register.set(self.k.fma(vector, weights[result, s], register.get()))

    def _tap(
        self, row: Pointer, filters: Pointer, taps: tuple[Value, Value], first: Value, masks: Masks
    ) -> None:
        """One tap, for the columns that it finds in the row."""
        (tap, s), k, axis = taps, self.k, self.c.axes[2]
        weights = [self._weight(filters, result, tap, s) for result in range(self.c.width)]
        at = self.p * axis.step + axis.taps.offset + s * axis.taps.shift
        whole = (at >= 0) & (at + (self.tile.columns - 1) * axis.step < axis.positions)
        for are_all in (True, False):
            with k.when(whole if are_all else ~whole):
                for column in range(self.tile.columns):
                    position = at + column * axis.step
                    is_there = (position >= 0) & (position < axis.positions)
                    with when(k, None if are_all else is_there):
                        vector = self.plan.span.load(row + position * self.c.x.space[2], first, masks)
                        for result, weight in enumerate(weights):
                            register = self.sums[result, 0, column]
                            register.set(k.fma(vector, weight, register.get()))

    # ---- results

    def finish(self, blend: Blend, pointers: Sequence[Pointer]) -> None:
        """The sums to their places."""
        k, c, lanes, woven = self.k, self.c, self.lanes, self.plan.is_woven
        many = c.width if woven else 1
        left = (k.integer(c.groups[0]) - self.group) * many
        masks = [k.mask(left - j * lanes, lanes) if self.plan.is_masked else None for j in range(c.width)]
        if not woven:
            masks = [masks[0]] * c.width
        if blend.epilogue is not None:
            self._finish_kept(blend, pointers, masks)
            return
        step = 1 if woven else c.y.groups[0]
        is_new = blend.overwrites
        with k.when(is_new):
            for row in range(self.tile.rows):
                with when(k, self._is_row(row)):
                    for column in range(self.tile.columns):
                        with when(k, self._is_column(column)):
                            for j, vector in enumerate(self._woven(row, column)):
                                at = row * c.y.space[1] + column * c.y.space[2] + self._channel(c.y, j)
                                pointers[0].store_strided(
                                    vector * k.splat(blend.alpha, lanes), at, step, masks[j]
                                )
        with k.when(~is_new):
            self._finish_kept(blend, pointers, masks)

    def _channel(self, view: View, number: int) -> int:
        """Where vector ``number`` of a pixel's results is: a run of channels if woven, else one of each group."""
        return number * view.channels * (self.lanes if self.plan.is_woven else 1)

    def _woven(self, row: int, column: int) -> list[Value]:
        sums = [self.sums[result, row, column].get() for result in range(self.c.width)]
        return interleave(self.k, sums) if self.plan.is_woven else sums

    def _is_row(self, row: int) -> Value | None:
        results = self.c.axes[1].results
        return None if row == 0 or results % self.tile.rows == 0 else self.h + row < results

    def _is_column(self, column: int) -> Value | None:
        """Whether the result has a column; the versions of a tile know without a test."""
        results = self.c.axes[2].results
        if self.tile.straight == "none":
            return None if column == 0 or results % self.tile.columns == 0 else self.p + column < results
        return None if column < self.pattern.results else self.k.integer(0) != 0

    def _finish_kept(self, blend: Blend, pointers: Sequence[Pointer], masks: Sequence[Value | None]) -> None:
        """Through a little memory and a loop, so that an epilogue is in the code once for each result channel."""
        k, c, tile, lanes = self.k, self.c, self.tile, self.lanes
        kept = k.local(c.dtype, c.width * tile.rows * tile.columns * lanes)
        for row, column in itertools.product(range(tile.rows), range(tile.columns)):
            for j, vector in enumerate(self._woven(row, column)):
                kept.store(vector, ((row * tile.columns + column) * c.width + j) * lanes)
        rows = (k.integer(c.axes[1].results) - self.h).min(tile.rows) if tile.rows > 1 else 1
        columns = (k.integer(c.axes[2].results) - self.p).min(tile.columns) if tile.columns > 1 else 1
        views = (c.y, *c.operands)
        steps = [v.channels if self.plan.is_woven else v.groups[0] for v in views]
        for this_row in k.range(rows):
            for this_column in k.range(columns):
                own = kept + (this_row * tile.columns + this_column) * (c.width * lanes)
                places = [
                    p + (this_row * v.space[1] + this_column * v.space[2])
                    for p, v in zip(pointers, views, strict=True)
                ]
                for j in range(c.width):
                    at = [p + self._channel(v, j) for p, v in zip(places, views, strict=True)]
                    others = [
                        o.load_strided(0, step, lanes, masks[j])
                        for o, step in zip(at[1:], steps[1:], strict=True)
                    ]
                    blend.store(at[0], steps[0], own.load(j * lanes, lanes), others, masks[j])

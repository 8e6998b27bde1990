"""The code of one tile of `pixel_lanes`: sums in registers, then to the user's tensor."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from jitdnn.kernels.algorithm import Epilogue
from jitdnn.kernels.cpu.correlation import Axis
from jitdnn.kernels.cpu.spans import Masks
from jitdnn.kernels.cpu.stores import Blend
from jitdnn.rtcg.builder import Builder, Function, Module, Pointer, Value

if TYPE_CHECKING:
    from jitdnn.kernels.cpu.pixel_lanes import PixelLanes, PixelTile

Pairs = Sequence[tuple[int, "int | Value"]]


def trace_tile(
    module: Module, name: str, plan: PixelLanes, tile: PixelTile, edge: bool, epilogue: Epilogue | None
) -> Function:
    """Trace ``name(x, w, y, scale, operands..., d, h, p)``: the tile whose first result is (d, h, p).

    ``x`` and ``w`` point to the group's first channel (``w`` to the tile's first result channel), ``y`` and the
    operands to the tile's first result, ``scale`` to alpha and beta. With ``edge`` the tile may reach over the
    ends of a row.
    """
    dtype = plan.c.dtype
    operands = {f"operand{i}": dtype for i in range(len(plan.c.operands))}
    with module.function(
        name, x=dtype, w=dtype, y=dtype, scale="f64", **operands, d=None, h=None, p=None
    ) as (k, (x, w, y, scale, *rest), function):  # fmt: skip
        *pointers, d, h, p = rest
        code = _Tile(k, plan, tile, edge, (d, h, p))
        code.sum_up(x, w)
        alpha, beta = (k.convert(scale.load(i), dtype) for i in range(2))
        code.finish(Blend(k, alpha, beta, epilogue), [y, *pointers])
    return function


class _Tile:
    def __init__(
        self, k: Builder, plan: PixelLanes, tile: PixelTile, edge: bool, place: tuple[Value, Value, Value]
    ) -> None:
        self.k, self.plan, self.tile, self.edge, self.c = k, plan, tile, edge, plan.c
        self.d, self.h, self.p = place
        self.lanes = plan.lanes
        self.span = plan.span(edge, tile)
        zero = k.constant(0, self.c.dtype, self.lanes)
        index = (tile.channels, tile.rows, plan.strip.residues, tile.vectors)
        self.sums = {at: k.register(zero) for at in itertools.product(*map(range, index))}
        self.masks: dict[int, list[Masks]] = {}
        if edge and plan.is_row_straight(tile):
            self.masks = {offset: self._masks(offset) for offset in plan.reads}

    def _first(self, vector: int, offset: int | Value) -> Value:
        """The position that lane 0 of a vector reads."""
        return self.p * self.span.step + (vector * self.lanes * self.span.step) + offset

    def _masks(self, offset: int | Value) -> list[Masks]:
        return [self.span.masks(self.k, self._first(v, offset)) for v in range(self.tile.vectors)]

    # ---- sums

    def sum_up(self, x: Pointer, w: Pointer) -> None:
        """All channels and slices."""
        k, c = self.k, self.c
        slices, rows = c.axes[0], c.axes[1]
        w = w + (slices.taps.start * c.w.space[0] + rows.taps.start * c.w.space[1])
        for channel in k.range(c.depth):
            image, weights = x + channel * c.x.channels, w + channel * c.w.channels
            for tap in k.range(slices.taps.count):
                at = self.d * slices.step + slices.taps.offset + tap * slices.taps.shift
                for _ in self._guard(slices, at, 1):
                    plane = image + at * c.x.space[0]
                    self._plane(plane, weights + tap * (slices.taps.increment * c.w.space[0]))

    def _guard(self, axis: Axis, at: Value, block: int) -> Iterator[None]:
        """One turn, under the condition that the position is inside of the image if it may be outside."""
        taps = axis.taps
        last = (-(-axis.results // block) * block - 1) * axis.step + taps.lowest + taps.span
        if taps.lowest >= 0 and last < axis.positions:
            yield
            return
        with self.k.when((at >= 0) & (at < axis.positions)):
            yield

    def _plane(self, plane: Pointer, w: Pointer) -> None:
        """All rows of one slice of one channel."""
        axis, rows = self.c.axes[1], self.tile.rows
        if self.plan.is_straight(self.tile):
            reach = self.plan.reach(rows)
            for at, pairs in reach.items():
                if at > max(reach) - rows * axis.step:
                    self._prefetch(plane, at)
                self._row(plane, w, self.h * axis.step + at, [(row, tap) for row, tap in pairs])
        elif rows == 1:
            for tap in self.k.range(axis.taps.count):
                at = self.h * axis.step + axis.taps.offset + tap * axis.taps.shift
                self._row(plane, w, at, [(0, tap)])
        else:
            self._slide(plane, w)

    def _prefetch(self, plane: Pointer, at: int) -> None:
        axis, c = self.c.axes[1], self.c
        import os
        ahead = int(os.environ.get('AHEAD', '1')) * self.tile.rows * axis.step
        row = plane + (self.h * axis.step + (at + ahead)) * c.x.space[1]
        for v in range(self.tile.vectors * self.span.step):
            row.prefetch(self.p * self.span.step + v * self.lanes)

    def _slide(self, plane: Pointer, w: Pointer) -> None:
        """Row t of the input, counted in the direction of the taps, feeds row r of the tile by tap t - r.

        Most rows feed them all; some at both ends, which are written out, only a part.
        """
        axis, rows = self.c.axes[1], self.tile.rows
        taps, shift = axis.taps.count, axis.taps.shift
        start = self.h + (axis.taps.offset + (0 if shift > 0 else rows - 1))

        def row(t: int | Value, used: Iterator[int]) -> None:
            at = start + (t * shift if isinstance(t, Value) else self.k.integer(t * shift))
            self._row(plane, w, at, [(r if shift > 0 else rows - 1 - r, t - r) for r in used])

        for t in range(rows - 1):
            row(t, iter(range(t + 1)))
        for middle in self.k.range(rows - 1, taps):
            row(middle, iter(range(rows)))
        for t in range(taps, taps + rows - 1):
            row(t, iter(range(t - taps + 1, rows)))

    def _row(self, plane: Pointer, w: Pointer, at: Value, pairs: Pairs) -> None:
        """One row of the input; ``pairs`` are the rows of the tile that it feeds, each by which tap."""
        c = self.c
        for _ in self._guard(c.axes[1], at, self.tile.rows):
            row = plane + at * c.x.space[1]
            lines = [(r, w + tap * (c.axes[1].taps.increment * c.w.space[1])) for r, tap in pairs]
            if self.plan.is_row_straight(self.tile):
                for offset, taps in self.plan.reads.items():
                    uses = [(residue, self._place(residue, tap)) for residue, tap in taps]
                    self._multiply(row, lines, offset, self.masks.get(offset), uses)
                continue
            for residue, axis in enumerate(self.plan.strip.last):
                for tap in self.k.range(axis.taps.count):
                    reads = tap * axis.taps.shift + axis.taps.offset
                    masks = self._masks(reads) if self.edge else None
                    self._multiply(row, lines, reads, masks, [(residue, self._place(residue, tap))])

    def _place(self, residue: int, tap: int | Value) -> int | Value:
        """Where a tap of the last axis is in the filter's row."""
        taps, stride = self.plan.strip.last[residue].taps, self.c.w.space[2]
        return tap * (taps.increment * stride) + taps.start * stride

    def _multiply(
        self, row: Pointer, lines: Sequence[tuple[int, Pointer]], offset: int | Value,
        masks: list[Masks] | None, uses: Sequence[tuple[int, int | Value]],
    ) -> None:  # fmt: skip
        """The vectors at one offset times every value of the filter that meets them."""
        k, c = self.k, self.c
        nothing: Masks = (None,) * 4
        vectors = [
            self.span.load(row, self._first(v, offset), masks[v] if masks else nothing)
            for v in range(self.tile.vectors)
        ]
        for r, line in lines:
            for channel in range(self.tile.channels):
                for residue, place in uses:
                    weight = (line + channel * c.w.results).splat(place, self.lanes)
                    for v, vector in enumerate(vectors):
                        register = self.sums[channel, r, residue, v]
                        register.set(k.fma(vector, weight, register.get()))

    # ---- results

    def finish(self, blend: Blend, pointers: Sequence[Pointer]) -> None:
        """The sums to their places: through a little memory, so that the code does not grow with the tile."""
        k, c, tile, strip, lanes = self.k, self.c, self.tile, self.plan.strip, self.lanes
        count = strip.residues * tile.vectors
        kept = k.local(c.dtype, tile.channels * tile.rows * count * lanes)
        for (channel, row, residue, v), register in self.sums.items():
            kept.store(register.get(), (((channel * tile.rows + row) * tile.vectors + v) * strip.residues + residue) * lanes)
        views = (c.y, *c.operands)
        left = strip.results - self.p * strip.residues
        masks = [k.mask(left - j * lanes, lanes) if self.edge else None for j in range(count)]
        rows = k.integer(tile.rows)
        if c.axes[1].results % tile.rows:
            rows = (k.integer(c.axes[1].results) - self.h).min(tile.rows)
        for channel in k.range(tile.channels):
            for row in k.range(rows if tile.rows > 1 else 1):
                own = kept + (channel * tile.rows + row) * (count * lanes)
                places = [
                    p + (channel * v.channels + row * v.space[1]) for p, v in zip(pointers, views, strict=True)
                ]
                for v in range(tile.vectors):
                    parts = [own.load((v * strip.residues + i) * lanes, lanes) for i in range(strip.residues)]
                    for i, vector in enumerate(interleave(k, parts)):
                        j = v * strip.residues + i
                        steps = [strip.pixel(view) for view in views]
                        at = [place + j * lanes * step for place, step in zip(places, steps, strict=True)]
                        others = [
                            o.load_strided(0, step, lanes, masks[j])
                            for o, step in zip(at[1:], steps[1:], strict=True)
                        ]
                        blend.store(at[0], steps[0], vector, others, masks[j])


def interleave(k: Builder, parts: Sequence[Value]) -> list[Value]:
    """As many vectors as there are parts: lane 0 of each part, then lane 1 of each, and so on."""
    lanes, count = parts[0].lanes, len(parts)
    if count == 1:
        return list(parts)
    woven = []
    for number in range(count):
        places = [number * lanes + lane for lane in range(lanes)]
        vector = parts[0]
        for other in range(1, count):
            pattern = []
            for lane, place in enumerate(places):
                if place % count == other:
                    pattern.append(lanes + place // count)
                else:
                    pattern.append(place // count if other == 1 and place % count == 0 else lane)
            vector = k.shuffle(vector, parts[other], pattern)
        woven.append(vector)
    return woven

"""Rows of outputs in blocks of one vector, and the columns of the input that their windows see.

Lane l of a block sees the columns l * stride + t * dilation, t < window. A row of x is loaded as it lies in
memory, in ``stride`` vectors for every ``stride`` taps, and the taps are picked out of them by shuffles:

    columns   0 1 2 3 4 5 6 7 | 8 9 10 11 12 13 14 15       two vectors, stride 2
    tap 0     0 2 4 6 8 10 12 14
    tap 1     1 3 5 7 9 11 13 15

Columns outside of the image are masked where a block may meet them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from jitdnn.devices.cpu import Arguments
from jitdnn.kernels.cpu.microkernel.scale import Scale
from jitdnn.kernels.cpu.pooling.geometry import INDEX, Bounds, Geometry, Windows, is_better
from jitdnn.kernels.cpu.pooling.row_accumulator import RING_SLOTS
from jitdnn.kernels.cpu.schedule.parallel import Slots
from jitdnn.rtcg.builder import Builder, Pointer, Register, Value
from jitdnn.rtcg.vector_math import element_of


@dataclass(frozen=True)
class RowCode:
    """What is compiled in."""

    direction: str
    mode: str
    counts_padding: bool
    dtype: str
    computing: str  # the type of sums and maxima
    indices: str | None  # the type of the indices that the maximum gives too
    stride: int
    window: int
    dilation: int
    is_clipped: bool  # along the row
    row: tuple[int, int, int] | None  # of a short row: extents of input and output, padding before
    unrolled: tuple[int, int]  # rows of a window along axes 0 and 1; 0 if there are many
    clips: tuple[bool, bool]  # whether windows are clipped along axes 0 and 1
    is_dilated: bool  # along any axis
    has_empty_windows: bool
    tiles: bool
    is_unit: bool  # outputs of a row are neighbours in memory
    streams: bool

    @property
    def groups(self) -> tuple[int, ...]:
        """The sets of ``stride`` column vectors that taps are picked from, by number."""
        return tuple(sorted({tap * self.dilation // self.stride for tap in range(self.window)}))

    def spread(self, lanes: int) -> int:
        """The vectors of columns that the windows of one block reach."""
        return ((lanes - 1) * self.stride + (self.window - 1) * self.dilation) // lanes + 1


@dataclass(frozen=True)
class Lanes:
    """Which lanes of a vector may be touched: all of them (the default), those of a mask, or none."""

    mask: Value | None = None
    is_nothing: bool = False


@dataclass(frozen=True)
class Block:
    """Where the outputs of one block lie, and which lanes of what may be touched."""

    output: int | Value  # the first one in its row
    column: int | Value  # of tap 0 of lane 0
    outputs: Lanes
    loads: Sequence[Lanes]
    stores: Sequence[Lanes]


class RowBlocks:
    """What both directions trace alike."""

    def __init__(self, k: Builder, arguments: Arguments, code: RowCode, tensors: int) -> None:
        self.k, self.code, self.mode = k, code, code.mode
        self.dtype = code.computing
        self.index = INDEX[self.dtype]
        self.lanes = k.lanes(self.dtype)
        self.windows = w = Windows(
            k, arguments, row_slots(tensors), tensors, code.counts_padding, code.is_dilated
        )
        self.scale = Scale(k, arguments, self.dtype)
        self.spread = code.spread(self.lanes)
        # of the tensor of outputs: y forward, dy backward
        self.output_steps = w.strides[1 if code.direction == "fwd" else 0]
        self.output_step: int | Value = 1 if code.is_unit else self.output_steps[4]
        self.whole = k.splat(k.convert(w["window0"] * w["window1"] * w["window2"], self.dtype), self.lanes)

    # ---- blocks of a row

    def _load_offsets(self) -> list[int]:
        s = self.code.stride
        return [j * s + m * self.lanes for j in self.code.groups for m in range(s)]

    def _inside(self, column: int | Value, extent: int | Value) -> Lanes:
        """The lanes whose column is in the row, when lane 0 has ``column``."""
        k, lanes = self.k, self.lanes
        if isinstance(column, int) and isinstance(extent, int):
            if 0 <= column <= extent - lanes:
                return Lanes()
            if column <= -lanes or column >= extent:
                return Lanes(is_nothing=True)
            above = k.mask(extent - column, lanes)
            return Lanes(above & ~k.mask(-column, lanes) if column < 0 else above)
        mask = k.mask(extent - column, lanes)
        return Lanes(mask & ~k.mask(0 - column, lanes) if self.code.is_clipped else mask)

    def _masked(
        self, output: int | Value, column: int | Value, extent: int | Value, out: int | Value
    ) -> Block:
        return Block(
            output, column, self._inside(output, out),
            [self._inside(column + o, extent) for o in self._load_offsets()],
            [self._inside(column + m * self.lanes, extent) for m in range(self.spread)],
        )  # fmt: skip

    def _blocks(self) -> Iterator[Block]:
        """The blocks of a row. Those of a long one are traced twice: masked, or whole and in the image."""
        k, w, code = self.k, self.windows, self.code
        if code.row is not None:
            extent, out, before = code.row
            for first in range(0, out, self.lanes):
                yield self._masked(first, first * code.stride - before, extent, out)
            return
        reach = max(self._load_offsets()[-1] + self.lanes, self.spread * self.lanes)
        for output in k.range(0, w["out2"], self.lanes):
            column = output * code.stride - w["before2"]
            fits = (column + reach <= w["extent2"]) & (output + self.lanes <= w["out2"])
            if code.is_clipped:
                fits = fits & (column >= 0)
            with k.when(fits):
                everything = [Lanes()]
                loads, stores = everything * len(self._load_offsets()), everything * self.spread
                yield Block(output, column, Lanes(), loads, stores)
            with k.when(~fits):
                yield self._masked(output, column, w["extent2"], w["out2"])

    # ---- windows

    @property
    def is_whole(self) -> bool:
        """Every window has all of its rows, few enough to be traced one by one."""
        return all(self.code.unrolled) and not any(self.code.clips)

    def _rows(self, bounds: Sequence[Bounds]) -> Iterator[tuple[Value, Value, int | Value]]:
        """The rows of a window that are in the image: positions on axes 0 and 1, and the number of the first tap.

        Taps are numbered through the window in the order of the indices.
        """
        k, w = self.k, self.windows
        for n0, t0 in self._along(0, bounds[0]):
            for n1, t1 in self._along(1, bounds[1]):
                if isinstance(n0, int) and isinstance(n1, int):
                    yield t0, t1, (n0 * self.code.unrolled[1] + n1) * self.code.window
                else:
                    yield t0, t1, (k.integer(n0) * w["window1"] + n1) * self.code.window

    def _along(self, axis: int, bounds: Bounds) -> Iterator[tuple[int | Value, Value]]:
        k, w, code = self.k, self.windows, self.code
        if not code.unrolled[axis]:
            for t in w.taps(axis, bounds):
                yield w.tap_number(axis, bounds, t), t
            return
        for n in range(code.unrolled[axis]):
            t = bounds.start + (w[f"dilation{axis}"] * n if code.is_dilated else n)
            if code.clips[axis]:
                with k.when((t >= 0) & (t < w[f"extent{axis}"])):
                    yield n, t
            else:
                yield n, t

    def _columns(self, row: Pointer, block: Block) -> list[Value]:
        """The vectors of one row that taps are picked from; what is outside of the image changes nothing."""
        k, columns = self.k, []
        outside = 0.0 if self.mode == "avg" else -float("inf")
        for offset, lanes in zip(self._load_offsets(), block.loads, strict=True):
            if lanes.is_nothing:
                columns.append(k.constant(outside, self.dtype, self.lanes))
                continue
            value = (row + (block.column + offset)).load(0, self.lanes, lanes.mask)
            if lanes.mask is not None and self.mode == "max" and self.code.is_clipped:
                value = k.select(lanes.mask, value, outside)
            columns.append(value)
        return columns

    def _tap(self, columns: Sequence[Value], tap: int) -> Value:
        s = self.code.stride
        group, place = divmod(tap * self.code.dilation, s)
        first = self.code.groups.index(group) * s
        return pick(self.k, columns[first : first + s], place)

    def _count(self, bounds: Sequence[Bounds], block: Block) -> Value:
        """What the sums of a block are divided by."""
        k = self.k
        if self.is_whole and not self.code.is_clipped:
            return self.whole
        across: Value = bounds[0].count * bounds[1].count
        if not self.code.is_clipped:
            return k.splat(k.convert(across * self.windows["window2"], self.dtype), self.lanes)
        columns = self.windows.bounds(2, k.iota(self.lanes) + block.output).count
        return k.convert(columns, self.dtype) * k.splat(k.convert(across, self.dtype), self.lanes)

    # ---- maxima

    def _maxima(
        self,
        bounds: Sequence[Bounds],
        plane: Pointer,
        steps: Sequence[Value],
        block: Block,
        as_positions: bool,
    ) -> tuple[Value, Value]:
        """The first maximum of each lane, and where it is: as a position in the plane, or a tap's number."""
        k, w, code = self.k, self.windows, self.code
        best = k.register(k.constant(-float("inf"), self.dtype, self.lanes))
        place = k.register(self._first_place(bounds, block, as_positions))
        # where nothing is clipped the first tap is the best so far without a comparison
        is_first = self.is_whole and not code.is_clipped
        for t0, t1, number in self._rows(bounds):
            row = plane + (t0 * steps[2] + t1 * steps[3])
            columns = self._columns(row, block)
            base = number
            if as_positions:
                base = (t0 * w["extent1"] + t1) * w["extent2"] + block.column
            for tap in range(code.window):
                value, label = self._tap(columns, tap), self._label(base, tap, as_positions)
                if is_first:
                    best.set(value)
                    place.set(label)
                    is_first = False
                else:
                    self._take_better(best, place, value, label)
        return best.get(), place.get()

    def _take_better(self, best: Register, place: Register, value: Value, label: Value) -> None:
        k = self.k
        wins = is_better(value, best.get())
        best.set(k.select(wins, value, best.get()))
        place.set(k.select(wins, label, place.get()))

    def _label(self, base: int | Value, tap: int, is_position: bool) -> Value:
        if is_position:
            return self._positions(base) + tap * self.code.dilation
        if isinstance(base, int):
            return self.k.constant(base + tap, self.index, self.lanes)
        return self.k.splat(self.k.convert(base, self.index), self.lanes) + tap

    def _first_place(self, bounds: Sequence[Bounds], block: Block, is_position: bool) -> Value:
        """The first tap of each lane that is in the image: the place of a maximum of nothing but -infinity."""
        k, w, code = self.k, self.windows, self.code
        taps = k.constant(0, self.index, self.lanes)
        if code.is_clipped:
            columns, one = self._positions(block.column), k.constant(1, self.index, self.lanes)
            for tap in range(code.window - 1):
                taps = taps + k.select(columns + tap * code.dilation < 0, one, 0)
        if is_position:
            row = (bounds[0].low * w["extent1"] + bounds[1].low) * w["extent2"]
            return self._positions(row + block.column) + taps * code.dilation
        if self.is_whole:
            return taps
        n0, n1 = (w.tap_number(axis, bounds[axis], bounds[axis].low) for axis in range(2))
        first = (n0 * w["window1"] + n1) * code.window
        return k.splat(k.convert(first, self.index), self.lanes) + taps

    def _positions(self, first: int | Value) -> Value:
        """first + lane * stride, as narrow integers."""
        k = self.k
        steps = k.convert(k.iota(self.lanes) * self.code.stride, self.index)
        return k.splat(k.convert(k.integer(first), self.index), self.lanes) + steps


def pick(k: Builder, vectors: Sequence[Value], first: int) -> Value:
    """Every len(vectors)-th lane of the vectors laid end to end, from lane ``first`` on."""
    stride, lanes, result = len(vectors), vectors[0].lanes, vectors[0]
    if stride == 1:
        return result
    wanted = [first + lane * stride for lane in range(lanes)]
    for m in range(1, stride):
        have = [place if m == 1 else lane for lane, place in enumerate(wanted)]
        pattern = [
            lanes + place - m * lanes if m * lanes <= place < (m + 1) * lanes
            else (h if place < m * lanes else 0)
            for h, place in zip(have, wanted, strict=True)
        ]  # fmt: skip
        result = k.shuffle(result, vectors[m], pattern)
    return result


def sum_of_columns(k: Builder, taps: Sequence[Value], code: RowCode, vector: int) -> Value:
    """Vector ``vector`` of the columns, where lane l of tap t belongs to column l * stride + t * dilation.

    Taps that have no column in common are put side by side by one shuffle, two at a time.
    """
    lanes = taps[0].lanes
    zero = k.constant(0.0, element_of(taps[0]), lanes)
    parts: list[tuple[Value, list[int | None]]] = []
    for t, tap in enumerate(taps):
        places = [divmod(vector * lanes + lane - t * code.dilation, code.stride) for lane in range(lanes)]
        sources = [q if r == 0 and 0 <= q < lanes else None for q, r in places]
        if any(source is not None for source in sources):
            parts.append((tap, sources))
    total: Value | None = None
    while parts:
        tap, sources = parts.pop(0)
        other = next(
            (p for p in parts if not any(a is not None and b is not None for a, b in zip(sources, p[1], strict=True))),
            None,
        )  # fmt: skip
        second, pattern = zero, [lanes if source is None else source for source in sources]
        if other is not None:
            parts.remove(other)
            second = other[0]
            pattern = [lanes + b if b is not None else a or 0 for a, b in zip(sources, other[1], strict=True)]
        part = tap if pattern == list(range(lanes)) else k.shuffle(tap, second, pattern)
        if other is not None:
            empty = [a is None and b is None for a, b in zip(sources, other[1], strict=True)]
            if any(empty):
                part = k.shuffle(part, zero, [lanes if nothing else i for i, nothing in enumerate(empty)])
        total = part if total is None else total + part
    return zero if total is None else total


def row_slots(tensors: int) -> Slots:
    return Geometry.slots(tensors, "units", "per_task", *RING_SLOTS)

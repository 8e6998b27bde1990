"""Pooling with vectors along a row of outputs: the way for channels-first tensors.

Lane l of a block sees the columns l * stride + t * dilation, t < window. A row of x is loaded as it lies in memory, in
``stride`` vectors for every ``stride`` taps, and the taps are picked out of them by shuffles:

    columns   0 1 2 3 4 5 6 7 | 8 9 10 11 12 13 14 15       two vectors, stride 2
    tap 0     0 2 4 6 8 10 12 14
    tap 1     1 3 5 7 9 11 13 15

Forward, the rows of a window are combined before the taps are picked: a unit is one row of outputs. Backward,
a unit is one plane of dx, which it owns; what the taps of a block give to a row is spread over its columns
and added in one go. Columns outside of the image are masked where a block may meet them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import cast

from jitdnn.devices.cpu import Arguments, CpuDevice, CpuKernel
from jitdnn.kernels.algorithm import Device, Epilogue, Kernel
from jitdnn.kernels.cpu.loops import Counter, Scale, Slots, share
from jitdnn.kernels.cpu.pooling_geometry import (
    INDEX,
    Axis,
    Bounds,
    Geometry,
    PoolingAlgorithm,
    Windows,
    combiner,
    is_better,
)
from jitdnn.kernels.cpu.timing import seconds_of
from jitdnn.problems.pooling import EMPTY_WINDOW_MAX, Pooling
from jitdnn.problems.problem import Problem
from jitdnn.rtcg.builder import Builder, Module, Pointer, Value
from jitdnn.rtcg.compile import load
from jitdnn.rtcg.vector_math import element_of

_MOST_COLUMNS = 8  # vectors of one row that are held in registers
_MOST_UNROLLED = 4  # rows of a window
_SHORT_ROW = 4  # vectors of outputs: up to here a row's extents are compiled in, and its masks are constants


@dataclass(frozen=True)
class _Code:
    """What is compiled in."""

    direction: str
    mode: str
    counts_padding: bool
    dtype: str
    stride: int
    window: int
    is_clipped: bool  # along the row
    row: tuple[int, int, int] | None  # of a short row: extents of input and output, padding before
    unrolled: tuple[int, int]  # rows of a window along axes 0 and 1 where no window is clipped; else 0
    has_empty_windows: bool
    tiles: bool
    is_unit: bool  # outputs of a row are neighbours in memory
    dilation: int  # along the row
    is_dilated: bool  # along any axis

    @property
    def groups(self) -> tuple[int, ...]:
        """The sets of ``stride`` column vectors that taps are picked from, by number."""
        return tuple(sorted({tap * self.dilation // self.stride for tap in range(self.window)}))


@dataclass(frozen=True)
class _Lanes:
    """Which lanes of a vector may be touched: all of them (the default), those of a mask, or none."""

    mask: Value | None = None
    is_nothing: bool = False


@dataclass(frozen=True)
class _Block:
    """Where the outputs of one block lie, and which lanes of what may be touched."""

    output: int | Value  # the first one in its row
    column: int | Value  # of tap 0 of lane 0
    outputs: _Lanes
    loads: Sequence[_Lanes]
    stores: Sequence[_Lanes]


class _Rows:
    """Traces one kernel."""

    def __init__(self, module: Module, code: _Code) -> None:
        self.code, self.dtype, self.mode = code, code.dtype, code.mode
        self.tensors = 4 if (code.direction, code.mode) == ("bwd", "max") else 2
        with module.task("pooling") as (k, args, task, _):
            self.k, self.lanes = k, k.lanes(code.dtype)
            arguments = Arguments(k, args, self.tensors)
            self.windows = w = Windows(
                k, arguments, _slots(self.tensors), self.tensors, code.counts_padding, code.is_dilated
            )
            self.scale = Scale(k, arguments, code.dtype)
            self.pointers = [arguments.pointer(t, code.dtype) for t in range(self.tensors)]
            # of the tensor of outputs: y forward, dy backward
            small = w.strides[1 if code.direction == "fwd" else 0]
            self.output_steps = small
            self.output_step: int | Value = 1 if code.is_unit else small[4]
            last_column = (self.lanes - 1) * code.stride + (code.window - 1) * code.dilation
            self.spread = last_column // self.lanes + 1
            self.whole = k.splat(
                k.convert(w["window0"] * w["window1"] * w["window2"], code.dtype), self.lanes
            )
            first = task * w["per_task"]
            last = (first + w["per_task"]).min(w["units"])
            if code.direction == "fwd":
                self._forward(first, last)
            else:
                self._backward(first, last)

    # ---- blocks of a row

    def _load_offsets(self) -> list[int]:
        s = self.code.stride
        return [j * s + m * self.lanes for j in self.code.groups for m in range(s)]

    def _inside(self, column: int | Value, extent: int | Value) -> _Lanes:
        """The lanes whose column is in the row, when lane 0 has ``column``."""
        k, lanes = self.k, self.lanes
        if isinstance(column, int) and isinstance(extent, int):
            if 0 <= column <= extent - lanes:
                return _Lanes()
            if column <= -lanes or column >= extent:
                return _Lanes(is_nothing=True)
            above = k.mask(extent - column, lanes)
            return _Lanes(above & ~k.mask(-column, lanes) if column < 0 else above)
        mask = k.mask(extent - column, lanes)
        return _Lanes(mask & ~k.mask(0 - column, lanes) if self.code.is_clipped else mask)

    def _masked(
        self, output: int | Value, column: int | Value, extent: int | Value, out: int | Value
    ) -> _Block:
        return _Block(
            output, column, self._inside(output, out),
            [self._inside(column + o, extent) for o in self._load_offsets()],
            [self._inside(column + m * self.lanes, extent) for m in range(self.spread)],
        )  # fmt: skip

    def _blocks(self) -> Iterator[_Block]:
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
                everything = [_Lanes()]
                loads, stores = everything * len(self._load_offsets()), everything * self.spread
                yield _Block(output, column, _Lanes(), loads, stores)
            with k.when(~fits):
                yield self._masked(output, column, w["extent2"], w["out2"])

    def _row_taps(
        self, o0: Value, o1: Value, bounds: Sequence[Bounds], planes: Sequence[tuple[int, Pointer]]
    ) -> Iterator[tuple[list[Pointer], Value]]:
        """The rows of a window: pointers to column 0 in each plane, and the position of column 0."""
        w = self.windows
        for t0 in self._along(0, o0, bounds[0]):
            at0 = [p + t0 * w.strides[t][2] for t, p in planes]
            for t1 in self._along(1, o1, bounds[1]):
                at1 = [p + t1 * w.strides[t][3] for (t, _), p in zip(planes, at0, strict=True)]
                yield at1, (t0 * w["extent1"] + t1) * w["extent2"]

    def _along(self, axis: int, output: Value, bounds: Bounds) -> Iterator[Value]:
        count = self.code.unrolled[axis]
        if not count:
            yield from self.windows.taps(axis, bounds)
            return
        for t in range(count):
            yield bounds.start + (self.windows[f"dilation{axis}"] * t if self.code.is_dilated else t)

    def _is_unrolled(self) -> bool:
        return all(self.code.unrolled)

    def _columns(self, row: Pointer, block: _Block) -> list[Value]:
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
        return _pick(self.k, columns[first : first + s], place)

    def _count(self, bounds: Sequence[Bounds], block: _Block) -> Value:
        """What the sums of a block are divided by."""
        k = self.k
        if self._is_unrolled() and not self.code.is_clipped:
            return self.whole
        across: Value = bounds[0].count * bounds[1].count
        if not self.code.is_clipped:
            return k.splat(k.convert(across * self.windows["window2"], self.dtype), self.lanes)
        columns = self.windows.bounds(2, k.iota(self.lanes) + block.output).count
        return k.convert(columns, self.dtype) * k.splat(k.convert(across, self.dtype), self.lanes)

    # ---- forward

    def _forward(self, first: Value, last: Value) -> None:
        k, w = self.k, self.windows
        zero = k.integer(0)
        x, y = w.strides
        counter = Counter(
            k, first, w.extents("images", "channels", "out0", "out1"), [[x[0], x[1], zero, zero], y[:4]]
        )
        for _unit in k.range(first, last):
            plane, target = (p + o.get() for p, o in zip(self.pointers, counter.offsets, strict=True))
            o0, o1 = (digit.get() for digit in counter.digits[2:])
            bounds = (w.bounds(0, o0), w.bounds(1, o1))
            for block in self._blocks():
                result = self._window(o0, o1, bounds, plane, block)
                there = target + self.k.integer(block.output) * self.output_step
                self.scale.store(there, self.output_step, result, block.outputs.mask)
            counter.advance()

    def _window(self, o0: Value, o1: Value, bounds: Sequence[Bounds], plane: Pointer, block: _Block) -> Value:
        k, combine = self.k, combiner(self.mode)
        columns = self._combined_rows(o0, o1, bounds, plane, block)
        result = self._tap(columns, 0)
        for tap in range(1, self.code.window):
            result = combine(k, result, self._tap(columns, tap))
        if self.mode == "avg":
            return result / self._count(bounds, block)
        if not self.code.has_empty_windows:
            return result
        row = self.windows.bounds(2, k.iota(self.lanes) + block.output)
        is_empty = row.is_empty | k.splat(bounds[0].is_empty | bounds[1].is_empty, self.lanes)
        return k.select(is_empty, EMPTY_WINDOW_MAX, result)

    def _combined_rows(
        self, o0: Value, o1: Value, bounds: Sequence[Bounds], plane: Pointer, block: _Block
    ) -> list[Value]:
        k, combine = self.k, combiner(self.mode)
        rows = self._row_taps(o0, o1, bounds, [(0, plane)])
        if self._is_unrolled():
            columns: list[Value] = []
            for (row,), _ in rows:
                loaded = self._columns(row, block)
                pairs = zip(columns or loaded, loaded, strict=True)
                columns = [combine(k, c, v) for c, v in pairs] if columns else loaded
            return columns
        start = k.constant(0.0 if self.mode == "avg" else -float("inf"), self.dtype, self.lanes)
        totals = [k.register(start) for _ in block.loads]
        for (row,), _ in rows:
            for total, value in zip(totals, self._columns(row, block), strict=True):
                total.set(combine(k, total.get(), value))
        return [total.get() for total in totals]

    # ---- backward

    def _backward(self, first: Value, last: Value) -> None:
        k, w = self.k, self.windows
        counter = Counter(k, first, w.extents("images", "channels"), [s[:2] for s in w.strides])
        dy = self.output_steps
        for _unit in k.range(first, last):
            planes = [p + o.get() for p, o in zip(self.pointers, counter.offsets, strict=True)]
            begun = k.register(k.integer(0))  # rows of dx, along axis 0, that hold beta * dx already
            for o0 in k.range(w["out0"]):
                b0 = w.bounds(0, o0)
                if not self.code.tiles:
                    self._begin(planes[-1], begun.get(), b0.high)
                    begun.set(begun.get().max(b0.high))
                for o1 in k.range(w["out1"]):
                    bounds = (b0, w.bounds(1, o1))
                    source = planes[0] + (o0 * dy[2] + o1 * dy[3])
                    for block in self._blocks():
                        self._give(o0, o1, bounds, source, planes, block)
            if not self.code.tiles:
                self._begin(planes[-1], begun.get(), w["extent0"])
            counter.advance()

    def _begin(self, gradient: Pointer, first: Value, last: Value) -> None:
        k, w = self.k, self.windows
        steps, width = w.strides[-1], w["extent2"]
        for t0 in k.range(first, last):
            for t1 in k.range(w["extent1"]):
                row = gradient + (t0 * steps[2] + t1 * steps[3])
                whole = (width // self.lanes) * self.lanes
                for c in k.range(0, whole, self.lanes):
                    self.scale.start(row + c, 1, self.lanes)
                with k.when(whole < width):
                    self.scale.start(row + whole, 1, self.lanes, k.mask(width - whole, self.lanes))

    def _give(
        self,
        o0: Value,
        o1: Value,
        bounds: Sequence[Bounds],
        source: Pointer,
        planes: Sequence[Pointer],
        block: _Block,
    ) -> None:
        """Add to dx what the outputs of one block give to it."""
        k, code = self.k, self.code
        there = source + k.integer(block.output) * self.output_step
        dy = there.load_strided(0, self.output_step, self.lanes, block.outputs.mask)
        if not code.tiles:
            dy = dy * k.splat(self.scale.alpha, self.lanes)
        if self.mode == "avg":
            each = dy / self._count(bounds, block)
            given = self._spread([each] * code.window)
            for (row,), _ in self._row_taps(o0, o1, bounds, [(1, planes[1])]):
                self._add(row, block, given)
            return
        places = self._maxima(o0, o1, bounds, planes[1], block)
        for (row,), position in self._row_taps(o0, o1, bounds, [(3, planes[3])]):
            here = self._positions(position + block.column)
            taps = [k.select(places == here + tap * code.dilation, dy, 0.0) for tap in range(code.window)]
            self._add(row, block, self._spread(taps))

    def _add(self, row: Pointer, block: _Block, given: Sequence[Value]) -> None:
        for m, (value, lanes) in enumerate(zip(given, block.stores, strict=True)):
            there = row + (block.column + m * self.lanes)
            if lanes.is_nothing:
                continue
            if self.code.tiles:
                self.scale.store(there, 1, value, lanes.mask)
            else:
                there.store(there.load(0, self.lanes, lanes.mask) + value, 0, lanes.mask)

    def _spread(self, taps: Sequence[Value]) -> list[Value]:
        """What the lanes of each tap give, as vectors over the columns of a row."""
        code = self.code
        return [_sum_of_columns(self.k, taps, code.stride, code.dilation, m) for m in range(self.spread)]

    def _maxima(self, o0: Value, o1: Value, bounds: Sequence[Bounds], plane: Pointer, block: _Block) -> Value:
        """The position of the first maximum in each lane."""
        k, w = self.k, self.windows
        best = k.register(k.constant(-float("inf"), self.dtype, self.lanes))
        first_row = (bounds[0].low * w["extent1"] + bounds[1].low) * w["extent2"]
        first = self._positions(k.integer(block.column))
        if self.code.is_clipped:  # the first tap that is in the image
            for _ in range(self.code.window - 1 if self.code.dilation > 1 else 0):
                first = k.select(first < 0, first + self.code.dilation, first)
            first = first.max(k.constant(0, INDEX[self.dtype], self.lanes))
        place = k.register(first + k.convert(first_row, INDEX[self.dtype]))
        for (row,), position in self._row_taps(o0, o1, bounds, [(1, plane)]):
            columns = self._columns(row, block)
            here = self._positions(position + block.column)
            for tap in range(self.code.window):
                value = self._tap(columns, tap)
                wins = is_better(value, best.get())
                best.set(k.select(wins, value, best.get()))
                place.set(k.select(wins, here + tap * self.code.dilation, place.get()))
        return place.get()

    def _positions(self, first: Value) -> Value:
        """first + lane * stride, as narrow integers."""
        k, kind = self.k, INDEX[self.dtype]
        return k.splat(k.convert(first, kind), self.lanes) + k.convert(
            k.iota(self.lanes) * self.code.stride, kind
        )


def _trace(module: Module, code: _Code) -> None:
    _Rows(module, code)


def _pick(k: Builder, vectors: Sequence[Value], first: int) -> Value:
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


def _sum_of_columns(k: Builder, taps: Sequence[Value], stride: int, dilation: int, vector: int) -> Value:
    """Vector ``vector`` of the columns, where lane l of tap t belongs to column l * stride + t * dilation."""
    lanes = taps[0].lanes
    total: Value | None = None
    zero = k.constant(0.0, element_of(taps[0]), lanes)
    for t, tap in enumerate(taps):
        sources = [divmod(vector * lanes + lane - t * dilation, stride) for lane in range(lanes)]
        pattern = [q if r == 0 and 0 <= q < lanes else lanes for q, r in sources]
        if all(place == lanes for place in pattern):
            continue
        part = tap if pattern == list(range(lanes)) else k.shuffle(tap, zero, pattern)
        total = part if total is None else total + part
    return zero if total is None else total


def _slots(tensors: int) -> Slots:
    return Geometry.slots(tensors, "units", "per_task")


class PoolingRows(PoolingAlgorithm):
    """Vectors along rows of outputs, for inputs whose rows lie in one piece: channels-first tensors."""

    name = "rows"

    def refuse_geometry(self, problem: Pooling, geometry: Geometry, device: Device) -> str | None:
        axis = geometry.axes[2]
        for operand, strides in zip(problem.operands, geometry.strides, strict=True):
            if operand.name in ("x", "dx") and strides[4] != 1:
                return (
                    f"neighbours in a row of {operand.name} are {strides[4]} elements apart: they must be "
                    "adjacent, as in the layout nchw"
                )
        columns = _columns(axis)
        if columns > _MOST_COLUMNS:
            return (
                f"window {axis.window}, stride {axis.stride} and dilation {axis.dilation} need {columns} vectors "
                f"of a row at once, at most {_MOST_COLUMNS} are kept"
            )
        if problem.mode == "max" and problem.direction == "bwd" and geometry.inputs >= 2**31:
            return f"a plane of x has {geometry.inputs} elements: positions in it must fit 31 bits"
        return None

    def estimate(self, problem: Problem, device: Device) -> float:
        pooling, lanes = cast(Pooling, problem), cast(CpuDevice, device).isa.lanes(problem.dtype)
        geometry = Geometry.of(pooling)
        cycles = _cycles(pooling, geometry, lanes)
        return seconds_of(problem, cast(CpuDevice, device), cycles, max(1, int(cycles / 5e4)))

    def build(self, problem: Problem, device: Device, epilogue: Epilogue | None = None) -> Kernel:
        pooling, processor = cast(Pooling, problem), cast(CpuDevice, device)
        geometry, lanes = Geometry.of(pooling), processor.isa.lanes(problem.dtype)
        a0, a1, a2 = geometry.axes
        small = geometry.strides[1 if pooling.direction == "fwd" else 0]
        code = _Code(
            pooling.direction, pooling.mode, pooling.count_include_pad, problem.dtype, a2.stride, a2.window,
            a2.is_clipped, (a2.extent, a2.out, a2.before) if a2.out <= _SHORT_ROW * lanes else None,
            (_unrolled(a0), _unrolled(a1)), geometry.has_empty_windows, geometry.tiles, small[4] == 1,
            a2.dilation, geometry.is_dilated,
        )  # fmt: skip
        library = load("pooling_rows", code, processor.isa, lambda module: _trace(module, code))
        units = geometry.images * geometry.channels
        if pooling.direction == "fwd":
            units *= a0.out * a1.out
        seconds = self.estimate(problem, device) * device.threads
        tasks, per_task = share(units, device, seconds)
        tensors = len(geometry.strides)
        return CpuKernel(
            library, [("pooling", tasks)], tensors, device.threads if tasks > 1 else 1,
            _slots(tensors).pack(geometry.values(units=units, per_task=per_task)),
        )  # fmt: skip


def _columns(axis: Axis) -> int:
    """How many vectors of a row the taps are picked from."""
    return len({tap * axis.dilation // axis.stride for tap in range(axis.window)}) * axis.stride


def _unrolled(axis: Axis) -> int:
    return axis.window if not axis.is_clipped and axis.window <= _MOST_UNROLLED else 0


def _cycles(problem: Pooling, geometry: Geometry, lanes: int) -> float:
    """Cycles of one thread."""
    a0, a1, a2 = geometry.axes
    blocks = a0.out * a1.out * -(-a2.out // lanes)
    rows, columns = a0.window * a1.window, _columns(a2)
    if problem.direction == "fwd":
        block = 20 + rows * columns * (3 if problem.mode == "max" else 1.5) + 3 * a2.window
    elif problem.mode == "avg":
        block = 25 + 4 * a2.window * a2.stride + 3 * rows * (a2.stride + 1)
    else:
        block = 30 + rows * (columns + 10 * a2.window + 3 * (a2.stride + 1))
    start = geometry.inputs / lanes if problem.direction == "bwd" else 0
    return geometry.images * geometry.channels * (blocks * block + start)

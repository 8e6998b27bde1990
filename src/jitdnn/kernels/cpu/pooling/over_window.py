"""Pooling with vectors along the window itself: the way for few, large windows of channels-first tensors.

Global pooling is the usual case; there the geometry has joined the spatial axes to one, and a window is one
run of memory. Forward, a unit is a row of outputs; each output is a reduction into several vectors, and over
their lanes at the end. Backward, a unit is one plane of dx, which it owns.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import cast

from jitdnn.devices.cpu import Arguments, CpuDevice, CpuKernel
from jitdnn.kernels.algorithm import Device, Epilogue, Kernel
from jitdnn.kernels.cpu.microkernel.scale import Scale
from jitdnn.kernels.cpu.pooling.geometry import (
    INDEX,
    Bounds,
    Geometry,
    PoolingAlgorithm,
    Windows,
    arithmetic_of,
    combiner,
    fold,
    is_better,
)
from jitdnn.kernels.cpu.schedule.cost import seconds_of
from jitdnn.kernels.cpu.schedule.parallel import Counter, Slots, split_units
from jitdnn.problems.pooling import EMPTY_WINDOW_MAX, Pooling
from jitdnn.problems.problem import Problem
from jitdnn.rtcg.builder import Builder, Module, Pointer, Value
from jitdnn.rtcg.compile import load
from jitdnn.rtcg.isa import HALVES

_VECTORS = 4  # independent accumulators, so that no addition waits for the one before


@dataclass(frozen=True)
class _Code:
    """What is compiled in."""

    direction: str
    mode: str
    counts_padding: bool
    dtype: str
    computing: str  # the type of sums and maxima
    indices: str | None  # the type of the indices that the maximum gives too
    tiles: bool
    is_dilated: bool
    is_adaptive: bool


class _Window:
    """Traces one kernel."""

    def __init__(self, module: Module, code: _Code) -> None:
        self.code, self.dtype, self.mode = code, code.computing, code.mode
        self.tensors = 4 if (code.direction, code.mode) == ("bwd", "max") else 2 + (code.indices is not None)
        self.outside = 0.0 if code.mode == "avg" else -float("inf")
        with module.task("pooling") as (k, args, task, _):
            self.k, self.lanes = k, k.lanes(self.dtype)
            arguments = Arguments(k, args, self.tensors)
            self.windows = w = Windows(
                k, arguments, _slots(self.tensors), self.tensors, code.counts_padding, code.is_dilated,
                code.is_adaptive,
            )  # fmt: skip
            self.scale = Scale(k, arguments, self.dtype)
            real = self.tensors if code.indices is None else 2
            self.pointers = [arguments.pointer(t, code.dtype).as_real(self.dtype) for t in range(real)]
            if code.indices is not None:
                self.pointers.append(arguments.pointer(2, code.indices))
            first = task * w["per_task"]
            last = (first + w["per_task"]).min(w["units"])
            if code.direction == "fwd":
                self._forward(first, last)
            else:
                self._backward(first, last)

    def _rows(
        self, bounds: Sequence[Bounds], planes: Sequence[tuple[int, Pointer]]
    ) -> Iterator[tuple[list[Pointer], Value]]:
        """The rows of a window: pointers to column 0 in each plane, and the position of column 0."""
        w = self.windows
        for t0 in w.taps(0, bounds[0]):
            at0 = [p + t0 * w.strides[t][2] for t, p in planes]
            for t1 in w.taps(1, bounds[1]):
                at1 = [p + t1 * w.strides[t][3] for (t, _), p in zip(planes, at0, strict=True)]
                yield at1, (t0 * w["extent1"] + t1) * w["extent2"]

    def _columns(self, low: Value, high: Value, vectors: int) -> Iterator[list[tuple[Value, Value | None]]]:
        """The columns of a row as vectors, ``vectors`` at once and then one at a time, masked."""
        k, wide = self.k, self.lanes * vectors
        whole = low + ((high - low).max(0) // wide) * wide
        for column in k.range(low, whole, wide):
            yield [(column + v * self.lanes, None) for v in range(vectors)]
        for column in k.range(whole, high, self.lanes):
            yield [(column, k.mask(high - column, self.lanes))]

    def _value(self, row: Pointer, column: Value, mask: Value | None) -> Value:
        value = (row + column).load(0, self.lanes, mask)
        return value if mask is None or self.mode == "avg" else self.k.select(mask, value, self.outside)

    def _count(self, bounds: Sequence[Bounds]) -> Value:
        return self.k.convert(bounds[0].count * bounds[1].count * bounds[2].count, self.dtype)

    # ---- forward

    def _forward(self, first: Value, last: Value) -> None:
        k, w = self.k, self.windows
        zero = k.integer(0)
        x, y, *indices = w.strides
        counter = Counter(
            k, first, w.extents("images", "channels", "out0", "out1"),
            [[x[0], x[1], zero, zero], y[:4], *(steps[:4] for steps in indices)],
        )  # fmt: skip
        for _unit in k.range(first, last):
            plane, target, *places = (
                p + o.get() for p, o in zip(self.pointers, counter.offsets, strict=True)
            )
            b0, b1 = (w.bounds(a, counter.digits[2 + a].get()) for a in range(2))
            for o2 in k.range(w["out2"]):
                bounds = (b0, b1, w.bounds(2, o2))
                if not places:
                    count = self._count(bounds) if self.mode == "avg" else None
                    self.scale.store(target + o2 * y[4], 1, self._reduced(bounds, plane), divisor=count)
                    continue
                best, place = self._maximum(bounds, plane, tensor=0)
                is_empty = b0.is_empty | b1.is_empty | bounds[2].is_empty
                self.scale.store(target + o2 * y[4], 1, k.select(is_empty, EMPTY_WINDOW_MAX, best))
                index = k.convert(k.select(is_empty, -1, place), places[0].dtype)
                (places[0] + o2 * indices[0][4]).store(index)
            counter.advance()

    def _reduced(self, bounds: Sequence[Bounds], plane: Pointer) -> Value:
        """The maximum or the sum of a window."""
        k, combine = self.k, combiner(self.mode)
        start = k.constant(self.outside, self.dtype, self.lanes)
        totals = [k.register(start) for _ in range(_VECTORS)]
        for (row,), _ in self._rows(bounds, [(0, plane)]):
            for columns in self._columns(bounds[2].low, bounds[2].high, _VECTORS):
                for total, (column, mask) in zip(totals, columns, strict=False):
                    total.set(combine(k, total.get(), self._value(row, column, mask)))
        values = [total.get() for total in totals]
        while len(values) > 1:
            half = len(values) // 2
            values = [combine(k, a, b) for a, b in zip(values[:half], values[half:], strict=True)]
        result = fold(k, self.mode, values[0])
        if self.mode == "avg":
            return result
        is_empty = bounds[0].is_empty | bounds[1].is_empty | bounds[2].is_empty
        return k.select(is_empty, EMPTY_WINDOW_MAX, result)

    # ---- backward

    def _backward(self, first: Value, last: Value) -> None:
        k, w = self.k, self.windows
        counter = Counter(k, first, w.extents("images", "channels"), [s[:2] for s in w.strides])
        dy = w.strides[0]
        for _unit in k.range(first, last):
            planes = [p + o.get() for p, o in zip(self.pointers, counter.offsets, strict=True)]
            if not self.code.tiles:
                self._begin(planes[-1])
            for o0 in k.range(w["out0"]):
                for o1 in k.range(w["out1"]):
                    for o2 in k.range(w["out2"]):
                        gradient = (planes[0] + (o0 * dy[2] + o1 * dy[3] + o2 * dy[4])).load()
                        bounds = (w.bounds(0, o0), w.bounds(1, o1), w.bounds(2, o2))
                        self._give(bounds, gradient, planes)
            counter.advance()

    def _begin(self, gradient: Pointer) -> None:
        k, w, steps = self.k, self.windows, self.windows.strides[-1]
        for t0 in k.range(w["extent0"]):
            for t1 in k.range(w["extent1"]):
                row = gradient + (t0 * steps[2] + t1 * steps[3])
                for columns in self._columns(k.integer(0), w["extent2"], _VECTORS):
                    for column, mask in columns:
                        self.scale.start(row + column, 1, self.lanes, mask)

    def _give(self, bounds: Sequence[Bounds], gradient: Value, planes: Sequence[Pointer]) -> None:
        """Add to dx what one output gives to it."""
        k, target = self.k, planes[-1]
        if self.mode == "max":
            is_empty = bounds[0].is_empty | bounds[1].is_empty | bounds[2].is_empty
            with k.when(~is_empty):
                there = target + self._offset(self._maximum(bounds, planes[1], tensor=1)[1])
                there.store(there.load() + gradient * self.scale.alpha)
            return
        each = k.splat(gradient / self._count(bounds), self.lanes)
        scaled = each * k.splat(self.scale.alpha, self.lanes)
        for (row,), _ in self._rows(bounds, [(self.tensors - 1, target)]):
            for columns in self._columns(bounds[2].low, bounds[2].high, _VECTORS):
                for column, mask in columns:
                    there = row + column
                    if self.code.tiles:
                        self.scale.store(there, 1, each, mask)
                    else:
                        there.store(there.load(0, self.lanes, mask) + scaled, 0, mask)

    def _offset(self, position: Value) -> Value:
        """Where the element of dx at a position in the plane is."""
        w, steps = self.windows, self.windows.strides[-1]
        row, column = position // w["extent2"], position % w["extent2"]
        return (row // w["extent1"]) * steps[2] + (row % w["extent1"]) * steps[3] + column * steps[4]

    def _maximum(self, bounds: Sequence[Bounds], plane: Pointer, tensor: int) -> tuple[Value, Value]:
        """The first maximum of a window, and its position."""
        k, w, kind = self.k, self.windows, INDEX[self.dtype]
        first = (bounds[0].low * w["extent1"] + bounds[1].low) * w["extent2"] + bounds[2].low
        best = k.register(k.constant(-float("inf"), self.dtype, self.lanes))
        place = k.register(k.splat(k.convert(first, kind), self.lanes))
        steps = k.convert(k.iota(self.lanes), kind)
        for (row,), position in self._rows(bounds, [(tensor, plane)]):
            for ((column, mask),) in self._columns(bounds[2].low, bounds[2].high, 1):
                value = self._value(row, column, mask)
                here = k.splat(k.convert(position + column, kind), self.lanes) + steps
                wins = is_better(value, best.get())
                best.set(k.select(wins, value, best.get()))
                place.set(k.select(wins, here, place.get()))
        value, first_place = _first_of_lanes(k, best.get(), place.get())
        return value, k.convert(first_place, "i64")


def _trace(module: Module, code: _Code) -> None:
    _Window(module, code)


def _first_of_lanes(k: Builder, best: Value, place: Value) -> tuple[Value, Value]:
    """The greatest lane (NaN above all) and its place, the lowest place where several are."""
    lanes = best.lanes
    while lanes > 1:
        lanes //= 2

        def halves(value: Value, half: int = lanes) -> tuple[Value, Value]:
            if half == 1:
                return k.extract(value, 0), k.extract(value, 1)
            return k.shuffle(value, value, range(half)), k.shuffle(value, value, range(half, 2 * half))

        (a, b), (at_a, at_b) = halves(best), halves(place)
        is_tie = (a == b) | ((a != a) & (b != b))
        wins = is_better(b, a) | (is_tie & (at_b < at_a))
        best, place = k.select(wins, b, a), k.select(wins, at_b, at_a)
    return best, place


def _slots(tensors: int) -> Slots:
    return Geometry.slots(tensors, "units", "per_task")


class PoolingWindow(PoolingAlgorithm):
    """Vectors along the window, for inputs whose rows lie in one piece: global pooling of nchw tensors."""

    name = "window"

    def refuse_geometry(self, problem: Pooling, geometry: Geometry, device: Device) -> str | None:
        for operand, strides in zip(problem.operands, geometry.strides, strict=True):
            if operand.name in ("x", "dx") and strides[4] != 1:
                return (
                    f"neighbours in a row of {operand.name} are {strides[4]} elements apart: they must be "
                    "adjacent, as in the layout nchw"
                )
        overlaps = any(axis.out > 1 and axis.stride < axis.span for axis in geometry.axes)
        if problem.direction == "bwd" and problem.dtype in HALVES and overlaps:
            return f"windows overlap, and sums of {problem.dtype} are not kept in dx: other ways keep them in f32"
        if geometry.axes[2].dilation > 1:
            return f"the elements of a window lie {geometry.axes[2].dilation} apart in a row: they must be adjacent"
        return None

    def estimate(self, problem: Problem, device: Device, epilogue: Epilogue | None = None) -> float:
        pooling = cast(Pooling, problem)
        lanes = cast(CpuDevice, device).isa.lanes(arithmetic_of(pooling))
        geometry = Geometry.of(pooling)
        a0, a1, a2 = geometry.axes
        vector = {("fwd", "avg"): 2, ("fwd", "max"): 4, ("bwd", "avg"): 3, ("bwd", "max"): 8}
        row = 4 + -(-a2.window // lanes) * vector[pooling.direction, pooling.mode]
        output = 50 + a0.window * a1.window * row
        start = geometry.inputs / lanes if pooling.direction == "bwd" and not geometry.tiles else 0
        cycles = geometry.images * geometry.channels * (geometry.outputs * output + start)
        return seconds_of(problem, cast(CpuDevice, device), cycles, max(1, int(cycles / 5e4)))

    def build(self, problem: Problem, device: Device, epilogue: Epilogue | None = None) -> Kernel:
        pooling, processor = cast(Pooling, problem), cast(CpuDevice, device)
        geometry = Geometry.of(pooling)
        tiles = geometry.tiles and pooling.mode == "avg"
        code = _Code(
            pooling.direction, pooling.mode, pooling.count_include_pad, problem.dtype, arithmetic_of(pooling),
            None if pooling.indices is None else pooling.indices.dtype, tiles, geometry.is_dilated,
            geometry.is_adaptive,
        )  # fmt: skip
        library = load("pooling_window", code, processor.isa, lambda module: _trace(module, code))
        units = geometry.images * geometry.channels
        if pooling.direction == "fwd":
            units *= geometry.axes[0].out * geometry.axes[1].out
        tasks, per_task = split_units(units, device, self.estimate(problem, device) * device.threads)
        tensors = len(geometry.strides)
        return CpuKernel(
            library, [("pooling", tasks)], tensors, device.threads if tasks > 1 else 1,
            _slots(tensors).pack(geometry.values(units=units, per_task=per_task)),
        )  # fmt: skip

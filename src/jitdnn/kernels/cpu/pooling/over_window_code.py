"""The code of pooling vectorized over the window itself, for few and large windows of channels-first tensors.

Global pooling is the usual case: the geometry has joined its spatial axes to one, and a window is contiguous. Forward,
a unit is a row of outputs; each output is a reduction into several vectors, whose lanes are combined at the end.
Backward, a unit is one plane of dx.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from jitdnn.devices.cpu_kernel import Arguments
from jitdnn.kernels.cpu.pooling.plan import WindowPlan
from jitdnn.kernels.cpu.pooling.windows import (
    INDEX,
    Bounds,
    PoolingCode,
    any_empty,
    combiner,
    count,
    fold,
    is_better,
    keep_better,
)
from jitdnn.kernels.cpu.schedule.parallel import Counter
from jitdnn.problems.pooling import EMPTY_WINDOW_MAX
from jitdnn.rtcg.builder import Builder, Module, Pointer, Value

_VECTORS = 4  # independent accumulators, so that no addition waits for the previous one


class _WindowCode(PoolingCode):
    """Traces one kernel."""

    def __init__(self, k: Builder, arguments: Arguments, plan: WindowPlan, task: Value) -> None:
        super().__init__(k, arguments, plan)
        self.plan = plan
        self.outside = 0.0 if plan.mode == "avg" else -float("inf")
        self.pointers = self.operands()
        first = task * self.windows["per_task"]
        last = (first + self.windows["per_task"]).min(self.windows["units"])
        if plan.direction == "fwd":
            self._forward(first, last)
        else:
            self._backward(first, last)

    def _columns(self, low: Value, high: Value, vectors: int) -> Iterator[list[tuple[Value, Value | None]]]:
        """The columns of a row as vectors: ``vectors`` at once, then the rest one at a time, masked."""
        k, wide = self.k, self.lanes * vectors
        full = low + ((high - low).max(0) // wide) * wide
        for column in k.range(low, full, wide):
            yield [(column + v * self.lanes, None) for v in range(vectors)]
        for column in k.range(full, high, self.lanes):
            yield [(column, k.mask(high - column, self.lanes))]

    def _value(self, row: Pointer, column: Value, mask: Value | None) -> Value:
        value = (row + column).load(0, self.lanes, mask)
        return value if mask is None or self.mode == "avg" else self.k.select(mask, value, self.outside)

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
            plane, target, *positions = (
                p + o.get() for p, o in zip(self.pointers, counter.offsets, strict=True)
            )
            b0, b1 = (w.bounds(a, counter.digits[2 + a].get()) for a in range(2))
            for o2 in k.range(w["out2"]):
                bounds = (b0, b1, w.bounds(2, o2))
                if not positions:
                    divisor = count(k, bounds, self.dtype) if self.mode == "avg" else None
                    self.scale.store(target + o2 * y[4], 1, self._reduced(bounds, plane), divisor=divisor)
                    continue
                best, winner = self._maximum(bounds, plane, tensor=0)
                is_empty = any_empty(bounds)
                self.scale.store(target + o2 * y[4], 1, k.select(is_empty, EMPTY_WINDOW_MAX, best))
                index = k.convert(k.select(is_empty, -1, winner), positions[0].dtype)
                (positions[0] + o2 * indices[0][4]).store(index)
            counter.advance()

    def _reduced(self, bounds: Sequence[Bounds], plane: Pointer) -> Value:
        """The maximum or the sum of a window."""
        k, combine = self.k, combiner(self.mode)
        start = k.constant(self.outside, self.dtype, self.lanes)
        totals = [k.register(start) for _ in range(_VECTORS)]
        for (row,), _ in self.window_rows(bounds, [(0, plane)]):
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
        is_empty = any_empty(bounds)
        return k.select(is_empty, EMPTY_WINDOW_MAX, result)

    # ---- backward

    def _backward(self, first: Value, last: Value) -> None:
        k, w = self.k, self.windows
        counter = Counter(k, first, w.extents("images", "channels"), [s[:2] for s in w.strides])
        dy = w.strides[0]
        for _unit in k.range(first, last):
            planes = [p + o.get() for p, o in zip(self.pointers, counter.offsets, strict=True)]
            if not self.plan.is_partition:
                self._start_plane(planes[-1])
            for o0 in k.range(w["out0"]):
                for o1 in k.range(w["out1"]):
                    for o2 in k.range(w["out2"]):
                        gradient = (planes[0] + (o0 * dy[2] + o1 * dy[3] + o2 * dy[4])).load()
                        bounds = (w.bounds(0, o0), w.bounds(1, o1), w.bounds(2, o2))
                        self._add_gradient(bounds, gradient, planes)
            counter.advance()

    def _start_plane(self, gradient: Pointer) -> None:
        """Set a plane of dx to beta * dx."""
        k, w, steps = self.k, self.windows, self.windows.strides[-1]
        for t0 in k.range(w["extent0"]):
            for t1 in k.range(w["extent1"]):
                row = gradient + (t0 * steps[2] + t1 * steps[3])
                for columns in self._columns(k.integer(0), w["extent2"], _VECTORS):
                    for column, mask in columns:
                        self.scale.start(row + column, 1, self.lanes, mask)

    def _add_gradient(self, bounds: Sequence[Bounds], gradient: Value, planes: Sequence[Pointer]) -> None:
        """Add the gradient of one output to dx."""
        k, target = self.k, planes[-1]
        if self.mode == "max":
            is_empty = any_empty(bounds)
            with k.when(~is_empty):
                there = target + self._offset(self._maximum(bounds, planes[1], tensor=1)[1])
                there.store(there.load() + gradient * self.scale.alpha)
            return
        each = k.splat(gradient / count(k, bounds, self.dtype), self.lanes)
        scaled = each * k.splat(self.scale.alpha, self.lanes)
        for (row,), _ in self.window_rows(bounds, [(self.plan.tensors - 1, target)]):
            for columns in self._columns(bounds[2].low, bounds[2].high, _VECTORS):
                for column, mask in columns:
                    there = row + column
                    if self.plan.is_partition:
                        self.scale.store(there, 1, each, mask)
                    else:
                        there.store(there.load(0, self.lanes, mask) + scaled, 0, mask)

    def _offset(self, position: Value) -> Value:
        """The offset in memory of the element of dx at a position in the plane."""
        w, steps = self.windows, self.windows.strides[-1]
        row, column = position // w["extent2"], position % w["extent2"]
        return (row // w["extent1"]) * steps[2] + (row % w["extent1"]) * steps[3] + column * steps[4]

    def _maximum(self, bounds: Sequence[Bounds], plane: Pointer, tensor: int) -> tuple[Value, Value]:
        """The first maximum of a window, and its position."""
        k, w, kind = self.k, self.windows, INDEX[self.dtype]
        first = w.row_position(bounds[0].low, bounds[1].low) + bounds[2].low
        best = k.register(k.constant(-float("inf"), self.dtype, self.lanes))
        winner = k.register(k.splat(k.convert(first, kind), self.lanes))
        steps = k.convert(k.iota(self.lanes), kind)
        for (row,), position in self.window_rows(bounds, [(tensor, plane)]):
            for ((column, mask),) in self._columns(bounds[2].low, bounds[2].high, 1):
                value = self._value(row, column, mask)
                here = k.splat(k.convert(position + column, kind), self.lanes) + steps
                keep_better(k, best, winner, value, here)
        value, first_winner = _first_of_lanes(k, best.get(), winner.get())
        return value, k.convert(first_winner, "i64")


def _first_of_lanes(k: Builder, best: Value, position: Value) -> tuple[Value, Value]:
    """The greatest lane (NaN above all) and its position, the lowest one where several lanes are the greatest."""
    lanes = best.lanes
    while lanes > 1:
        lanes //= 2

        def halves(value: Value, half: int = lanes) -> tuple[Value, Value]:
            if half == 1:
                return k.extract(value, 0), k.extract(value, 1)
            return k.shuffle(value, value, range(half)), k.shuffle(value, value, range(half, 2 * half))

        (a, b), (at_a, at_b) = halves(best), halves(position)
        is_tie = (a == b) | ((a != a) & (b != b))
        wins = is_better(b, a) | (is_tie & (at_b < at_a))
        best, position = k.select(wins, b, a), k.select(wins, at_b, at_a)
    return best, position


def trace(module: Module, plan: WindowPlan) -> None:
    """Trace the task "pooling"."""
    with module.task("pooling") as (k, args, task, _):
        _WindowCode(k, Arguments(k, args, plan.tensors), plan, task)

"""Windows in the traced code of pooling: their bounds, loops over their taps, and the combining of elements."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from jitdnn.devices.cpu_kernel import Arguments
from jitdnn.kernels.cpu.microkernel.scale import Scale
from jitdnn.kernels.cpu.pooling.geometry import AXES
from jitdnn.kernels.cpu.pooling.plan import PoolingPlan
from jitdnn.problems.pooling import EMPTY_WINDOW_MAX
from jitdnn.rtcg.builder import Builder, Pointer, Register, Value

INDEX = {"f32": "i32", "f64": "i64"}
"""The integers that keep positions in a plane: as wide as the elements, so that comparisons fit as masks."""


@dataclass(frozen=True)
class Bounds:
    """The window of one output along one axis: positions from ``low`` to before ``high``, clipped to the image.

    They are the dilation apart.

    ``start`` is its first position before clipping, ``count`` the number of elements that an average divides by.
    """

    start: Value
    low: Value
    high: Value
    count: Value

    @property
    def is_empty(self) -> Value:
        return self.low >= self.high


class Windows:
    """The geometry in traced code: its integers, and the bounds of windows."""

    def __init__(self, k: Builder, arguments: Arguments, plan: PoolingPlan) -> None:
        self.k, self.plan = k, plan
        self.numbers = plan.slots.load(arguments)
        self.strides = [[self.numbers[f"step{t}.{a}"] for a in range(2 + AXES)] for t in range(plan.tensors)]

    def __getitem__(self, name: str) -> Value:
        return self.numbers[name]

    def extents(self, *names: str) -> list[Value]:
        return [self.numbers[name] for name in names]

    def bounds(self, axis: int, output: Value) -> Bounds:
        """The window of output ``output`` (a scalar, or a vector with one for each lane) along ``axis``."""
        extent, window, stride, before, after = (
            self.numbers[f"{name}{axis}"] for name in ("extent", "window", "stride", "before", "after")
        )
        if self.plan.is_adaptive:
            out = self.numbers[f"out{axis}"]
            low = output * extent // out
            high = ((output + 1) * extent + (out - 1)) // out
            return Bounds(low, low, high, high - low)
        start = output * stride - before
        if self.plan.is_dilated:
            return self._dilated_bounds(axis, start)
        end = start + window
        low, high = start.max(0), end.min(self.k.splat(extent, output.lanes))
        counted = high - low
        if self.plan.counts_padding:
            counted = end.min(self.k.splat(extent + after, output.lanes)) - start
        return Bounds(start, low, high, counted.max(1))

    def _dilated_bounds(self, axis: int, start: Value) -> Bounds:
        k, lanes = self.k, start.lanes
        extent, window, after, dilation = (
            k.splat(self.numbers[f"{name}{axis}"], lanes)
            for name in ("extent", "window", "after", "dilation")
        )

        def taps(length: Value) -> Value:
            """How many taps lie within a length: its quotient by the dilation, rounded up."""
            return (length.max(0) + (dilation - 1)) // dilation

        before = taps(-start)
        low, high = start + before * dilation, (start + (window - 1) * dilation + 1).min(extent)
        if self.plan.counts_padding:
            counted = taps(extent + after - start).min(window)
        else:
            counted = taps(high - low)
        return Bounds(start, low, high, counted.max(1))

    def tap_number(self, axis: int, bounds: Bounds, position: Value) -> Value:
        """Which tap of a window reads a position of the axis."""
        steps = position - bounds.start
        return steps // self.numbers[f"dilation{axis}"] if self.plan.is_dilated else steps

    def taps(self, axis: int, bounds: Bounds) -> Iterator[Value]:
        """A loop over the positions of a window along one axis."""
        return self.k.range(
            bounds.low, bounds.high, self.numbers[f"dilation{axis}"] if self.plan.is_dilated else 1
        )

    def row_position(self, t0: Value, t1: Value) -> Value:
        """The position in a plane of the first element of the row at positions t0 and t1 of axes 0 and 1."""
        return (t0 * self["extent1"] + t1) * self["extent2"]


class PoolingCode:
    """What the tracers of all kernels begin with: the integers, the factors and the operands of a task."""

    def __init__(self, k: Builder, arguments: Arguments, plan: PoolingPlan) -> None:
        self.k, self.mode, self.dtype = k, plan.mode, plan.computing
        self.lanes = k.lanes(self.dtype)
        self.arguments = arguments
        self.windows = Windows(k, arguments, plan)
        self.scale = Scale(k, arguments, self.dtype)

    def operands(self) -> list[Pointer]:
        """Pointers to the operands in order, real tensors as the type of the arithmetic."""
        plan, arguments = self.windows.plan, self.arguments
        reals = plan.tensors if plan.indices is None else 2
        pointers = [arguments.pointer(t, plan.dtype).as_real(self.dtype) for t in range(reals)]
        if plan.indices is not None:
            pointers.append(arguments.pointer(2, plan.indices))
        return pointers

    def window_rows(
        self, bounds: Sequence[Bounds], planes: Sequence[tuple[int, Pointer]]
    ) -> Iterator[tuple[list[Pointer], Value]]:
        """The rows of a window: pointers to column 0 in each plane, and the position of column 0."""
        w = self.windows
        for t0 in w.taps(0, bounds[0]):
            at0 = [p + t0 * w.strides[t][2] for t, p in planes]
            for t1 in w.taps(1, bounds[1]):
                at1 = [p + t1 * w.strides[t][3] for (t, _), p in zip(planes, at0, strict=True)]
                yield at1, w.row_position(t0, t1)


def any_empty(bounds: Sequence[Bounds]) -> Value:
    """True if a window has no position in the image."""
    return bounds[0].is_empty | bounds[1].is_empty | bounds[2].is_empty


def count(k: Builder, bounds: Sequence[Bounds], dtype: str) -> Value:
    """The number of elements that the average of a window divides by."""
    return k.convert(bounds[0].count * bounds[1].count * bounds[2].count, dtype)


def initial(k: Builder, mode: str, is_empty: Value, dtype: str, lanes: int) -> Value:
    """The first value of an accumulator; the maximum of an empty window is ``EMPTY_WINDOW_MAX``."""
    if mode == "avg":
        return k.constant(0.0, dtype, lanes)
    lowest, of_empty = k.constant(-float("inf"), dtype), k.constant(EMPTY_WINDOW_MAX, dtype)
    return k.splat(k.select(is_empty, of_empty, lowest), lanes)


def _add(k: Builder, total: Value, value: Value) -> Value:
    return total + value


def _greater(k: Builder, best: Value, value: Value) -> Value:
    """The greater one; NaN once either is, at the price of one compare: ``best`` wins where it is NaN."""
    return k.select(value != value, value, k.select(value > best, value, best))


def combiner(mode: str) -> Callable[[Builder, Value, Value], Value]:
    """The operation that combines an accumulator and an element."""
    return _greater if mode == "max" else _add


def fold(k: Builder, mode: str, value: Value) -> Value:
    """The lanes of a vector, combined pairwise into one."""
    combine, lanes = combiner(mode), value.lanes
    while lanes > 1:
        lanes //= 2
        low = k.shuffle(value, value, range(lanes)) if lanes > 1 else k.extract(value, 0)
        high = k.shuffle(value, value, range(lanes, 2 * lanes)) if lanes > 1 else k.extract(value, 1)
        value = combine(k, low, high)
    return value


def is_better(value: Value, best: Value) -> Value:
    """True where ``value`` replaces an earlier ``best``: it is greater, or the first NaN."""
    return ~(value <= best) & (best == best)


def keep_better(k: Builder, best: Register, position: Register, value: Value, of_value: Value) -> None:
    """Replace the best value and its position where ``value`` is better."""
    wins = is_better(value, best.get())
    best.set(k.select(wins, value, best.get()))
    position.set(k.select(wins, of_value, position.get()))

"""What every pooling kernel needs: the windows in a normal form, and their bounds in traced code."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import cast

from jitdnn.devices.cpu import Arguments
from jitdnn.kernels.algorithm import Algorithm, Device, Epilogue, summation_bound
from jitdnn.kernels.cpu.schedule.parallel import Slots
from jitdnn.problems.pooling import ADAPTIVE, EMPTY_WINDOW_MAX, QUANTIZED, Pooling
from jitdnn.problems.problem import Problem
from jitdnn.rtcg.builder import Builder, Value
from jitdnn.tensor import compute_dtype

AXES = 3
_AXIS_FIELDS = ("extent", "out", "window", "stride", "before", "after", "dilation")
_TRIVIAL = (1, 1, 1, 1, 0, 0)


@dataclass(frozen=True)
class Axis:
    """One spatial axis: extents of input and output, windows, and the padding ``before`` and ``after``."""

    extent: int
    out: int
    window: int
    stride: int
    before: int
    after: int
    dilation: int = 1
    is_adaptive: bool = False  # the windows are bins of unequal size, the largest of which is ``window``

    @property
    def span(self) -> int:
        """From the first to the last element of a window."""
        return (self.window - 1) * self.dilation + 1

    @property
    def reach(self) -> int:
        """Where the last window ends."""
        return (self.out - 1) * self.stride - self.before + self.span

    @property
    def is_clipped(self) -> bool:
        """True if some window reaches out of the image."""
        if self.is_adaptive:
            return False
        return self.before > 0 or self.reach > self.extent


@dataclass(frozen=True)
class Geometry:
    """A pooling problem over exactly three spatial axes.

    Axes that do nothing are dropped, and axes are joined where one window covers the inner one whole: global
    pooling of a dense tensor becomes one axis. With fewer than three left, the missing ones are put in front
    of the last, so that the first axis is one that can be worked through piece by piece. ``strides[tensor]``
    are those of (n, c, axis 0, axis 1, axis 2) in elements, operands in order, output last.
    """

    images: int
    channels: int
    axes: tuple[Axis, Axis, Axis]
    strides: tuple[tuple[int, ...], ...]

    @staticmethod
    def of(problem: Pooling) -> Geometry:
        tensors = [operand.descriptor for operand in problem.operands]
        axes: list[tuple[Axis, list[int]]] = []
        assert isinstance(problem.dilation, tuple)
        for a, (i, o, k, s, (before, after), d) in enumerate(
            zip(
                problem.spatial, problem.output_spatial, problem.window, problem.stride, problem.padding,
                problem.dilation, strict=True,
            )
        ):  # fmt: skip
            axis = Axis(i, o, k, s, before, after, d if k > 1 else 1)
            if problem.rounding == ADAPTIVE:
                # bins of one size are ordinary windows
                axis = replace(axis, stride=k) if i % o == 0 else replace(axis, is_adaptive=True)
            steps = [t.strides[2 + a] for t in tensors]
            if (i, o, k, before, after) == (1, 1, 1, 0, 0):
                continue
            if axes and (joined := _join(axes[-1], (axis, steps), [t.shape[2 + a] for t in tensors])):
                axes[-1] = joined
            else:
                axes.append((axis, steps))
        nothing = (Axis(*_TRIVIAL), [0] * len(tensors))
        first, rest = axes[: len(axes) - 1], axes[len(axes) - 1 :] or [nothing]
        full = [*first, *[nothing] * (AXES - len(first) - 1), *rest]
        spatial = [steps for _, steps in full]
        return Geometry(
            problem.x.shape[0], problem.x.shape[1], (full[0][0], full[1][0], full[2][0]),
            tuple(
                (*tensor.strides[:2], *(steps[t] for steps in spatial)) for t, tensor in enumerate(tensors)
            ),
        )  # fmt: skip

    @property
    def outputs(self) -> int:
        """Outputs of one plane."""
        return prod(axis.out for axis in self.axes)

    @property
    def inputs(self) -> int:
        """Elements of one plane of the input."""
        return prod(axis.extent for axis in self.axes)

    @property
    def taps(self) -> int:
        return prod(axis.window for axis in self.axes)

    @property
    def tiles(self) -> bool:
        """True if every element of the input belongs to exactly one window."""
        return (
            not self.is_dilated
            and not self.is_adaptive
            and all(
                (axis.stride == axis.window or axis.out == 1) and axis.reach >= axis.extent
                for axis in self.axes
            )
        )

    @property
    def is_adaptive(self) -> bool:
        return any(axis.is_adaptive for axis in self.axes)

    @property
    def is_dilated(self) -> bool:
        return any(axis.dilation > 1 for axis in self.axes)

    @property
    def has_empty_windows(self) -> bool:
        """True if a window sees nothing of the image, as Caffe's rounding or dilation may leave it."""
        return any(_has_empty_windows(axis) for axis in self.axes)

    @staticmethod
    def slots(tensors: int, *more: str) -> Slots:
        """The integers of a kernel over ``tensors`` tensors."""
        return Slots(
            "images", "channels",
            *(f"{name}{a}" for a in range(AXES) for name in _AXIS_FIELDS),
            *(f"step{t}.{a}" for t in range(tensors) for a in range(2 + AXES)), *more,
        )  # fmt: skip

    def values(self, **more: int) -> dict[str, int]:
        """What goes into the slots."""
        fields = {
            f"{name}{a}": int(getattr(axis, name))
            for a, axis in enumerate(self.axes)
            for name in _AXIS_FIELDS
        }
        steps = {f"step{t}.{a}": s for t, strides in enumerate(self.strides) for a, s in enumerate(strides)}
        return {"images": self.images, "channels": self.channels, **fields, **steps, **more}


def _has_empty_windows(axis: Axis) -> bool:
    if axis.is_adaptive:
        return False
    if axis.dilation == 1:
        return (axis.out - 1) * axis.stride - axis.before >= axis.extent
    # the first tap that is not before the image is not in it either
    starts = (o * axis.stride - axis.before for o in range(axis.out))
    return any((start if start >= 0 else start % axis.dilation) >= axis.extent for start in starts)


def _join(
    outer: tuple[Axis, list[int]], inner: tuple[Axis, list[int]], extents: Sequence[int]
) -> tuple[Axis, list[int]] | None:
    """Two axes as one, where the windows cover the inner one whole and memory allows it."""
    (a, steps), (b, inner_steps) = outer, inner
    if b.out != 1 or b.before or b.after or b.window != b.extent or a.dilation != 1 or b.dilation != 1:
        return None
    if a.is_adaptive or b.is_adaptive:
        return None
    # in tensors of the output's shape the inner axis has one element, and any stride will do
    w = b.extent
    tensors = list(zip(steps, inner_steps, extents, strict=True))
    if any(outer != w * inner for outer, inner, extent in tensors if extent == w):
        return None
    joined = Axis(a.extent * w, a.out, a.window * w, a.stride * w, a.before * w, a.after * w)
    return joined, [inner if extent == w else outer for outer, inner, extent in tensors]


def arithmetic_of(problem: Pooling) -> str:
    """The type of sums and maxima: f64 also for 8-bit numbers whose sum might need more digits than f32 has."""
    is_long = problem.x.dtype in QUANTIZED and problem.mode == "avg" and prod(problem.window) >= 2**16
    return "f64" if is_long else compute_dtype(problem.dtype)


INDEX = {"f32": "i32", "f64": "i64"}
"""The integers that keep positions in a plane: as wide as the elements, so that comparisons fit as masks."""


@dataclass(frozen=True)
class Bounds:
    """The window of one output along one axis: inputs from ``low`` to before ``high``, both in the image, by
    steps of the dilation.

    ``start`` is where it would begin without clipping, ``count`` what an average takes its elements to be.
    """

    start: Value
    low: Value
    high: Value
    count: Value

    @property
    def is_empty(self) -> Value:
        return self.low >= self.high


class Windows:
    """The geometry in traced code."""

    def __init__(
        self,
        k: Builder,
        arguments: Arguments,
        slots: Slots,
        tensors: int,
        counts_padding: bool,
        is_dilated: bool,
        is_adaptive: bool = False,
    ) -> None:
        self.k, self.counts_padding = k, counts_padding
        self.is_dilated, self.is_adaptive = is_dilated, is_adaptive
        self.numbers = slots.load(arguments)
        self.strides = [[self.numbers[f"step{t}.{a}"] for a in range(2 + AXES)] for t in range(tensors)]

    def __getitem__(self, name: str) -> Value:
        return self.numbers[name]

    def extents(self, *names: str) -> list[Value]:
        return [self.numbers[name] for name in names]

    def bounds(self, axis: int, output: Value) -> Bounds:
        """The window of output ``output`` (one number, or one a lane) along ``axis``."""
        extent, window, stride, before, after = (
            self.numbers[f"{name}{axis}"] for name in ("extent", "window", "stride", "before", "after")
        )
        if self.is_adaptive:
            out = self.numbers[f"out{axis}"]
            low = output * extent // out
            high = ((output + 1) * extent + (out - 1)) // out
            return Bounds(low, low, high, high - low)
        start = output * stride - before
        if self.is_dilated:
            return self._dilated_bounds(axis, start)
        end = start + window
        low, high = start.max(0), end.min(self.k.splat(extent, output.lanes))
        counted = high - low
        if self.counts_padding:
            counted = end.min(self.k.splat(extent + after, output.lanes)) - start
        return Bounds(start, low, high, counted.max(1))

    def _dilated_bounds(self, axis: int, start: Value) -> Bounds:
        k, lanes = self.k, start.lanes
        extent, window, after, dilation = (
            k.splat(self.numbers[f"{name}{axis}"], lanes)
            for name in ("extent", "window", "after", "dilation")
        )

        def taps(length: Value) -> Value:
            """How many taps it takes to get through a length."""
            return (length.max(0) + (dilation - 1)) // dilation

        before = taps(-start)
        low, high = start + before * dilation, (start + (window - 1) * dilation + 1).min(extent)
        if self.counts_padding:
            counted = taps(extent + after - start).min(window)
        else:
            counted = taps(high - low)
        return Bounds(start, low, high, counted.max(1))

    def tap_number(self, axis: int, bounds: Bounds, position: Value) -> Value:
        """Which tap of a window looks at a position of the axis."""
        steps = position - bounds.start
        return steps // self.numbers[f"dilation{axis}"] if self.is_dilated else steps

    def taps(self, axis: int, bounds: Bounds) -> Iterator[Value]:
        """A loop over the inputs of a window along one axis."""
        return self.k.range(
            bounds.low, bounds.high, self.numbers[f"dilation{axis}"] if self.is_dilated else 1
        )


class PoolingAlgorithm(Algorithm):
    """What the ways of pooling share; each adds what it refuses, what it costs and how it is built."""

    problem = Pooling
    deterministic = True

    def refuse(self, problem: Problem, device: Device, epilogue: Epilogue | None = None) -> str | None:
        if epilogue is not None:
            return "pooling takes no epilogue"
        pooling = cast(Pooling, problem)
        geometry = Geometry.of(pooling)
        keeps_positions = pooling.mode == "max" and (
            pooling.direction == "bwd" or pooling.indices is not None
        )
        if keeps_positions and geometry.inputs >= 2**31:
            return f"a plane of x has {geometry.inputs} elements: positions in it must fit 31 bits"
        return self.refuse_geometry(pooling, geometry, device)

    @abstractmethod
    def refuse_geometry(self, problem: Pooling, geometry: Geometry, device: Device) -> str | None:
        """The constraint that fails, or None."""

    def error_bound(self, problem: Problem) -> float:
        return summation_bound(problem)


def initial(k: Builder, mode: str, is_empty: Value, dtype: str, lanes: int) -> Value:
    """What a maximum or a sum begins with; an empty window's maximum is a stated number."""
    if mode == "avg":
        return k.constant(0.0, dtype, lanes)
    lowest, stated = k.constant(-float("inf"), dtype), k.constant(EMPTY_WINDOW_MAX, dtype)
    return k.splat(k.select(is_empty, stated, lowest), lanes)


def _add(k: Builder, total: Value, value: Value) -> Value:
    return total + value


def _greater(k: Builder, best: Value, value: Value) -> Value:
    """The greater one; NaN once either is, at the price of one compare: ``best`` wins where it is NaN."""
    return k.select(value != value, value, k.select(value > best, value, best))


def combiner(mode: str) -> Callable[[Builder, Value, Value], Value]:
    """How one more element enters an accumulator."""
    return _greater if mode == "max" else _add


def fold(k: Builder, mode: str, value: Value) -> Value:
    """The lanes of a vector combined pairwise into one."""
    combine, lanes = combiner(mode), value.lanes
    while lanes > 1:
        lanes //= 2
        low = k.shuffle(value, value, range(lanes)) if lanes > 1 else k.extract(value, 0)
        high = k.shuffle(value, value, range(lanes, 2 * lanes)) if lanes > 1 else k.extract(value, 1)
        value = combine(k, low, high)
    return value


def is_better(value: Value, best: Value) -> Value:
    """True where ``value`` takes the place of an earlier ``best``: it is greater, or the first NaN."""
    return ~(value <= best) & (best == best)

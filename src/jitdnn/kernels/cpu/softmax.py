"""Softmax over any axes, forward and backward, of tensors with any strides.

The axes that are summed over and those that are kept are joined where memory allows it. Vectors go along a
summed axis ("along": softmax over rows in one piece) or along a kept one ("across": over the channels of a
channels-first image); whichever it is, elements that are not neighbours are gathered.

    unit, along    one row of kept axes
    unit, across   up to four vectors of one row

    forward    m = max(x);  y = exp(x - m), s = sum(y);  y = y / s        three sweeps, the last two over y
    log        m = max(x);  s = sum(exp(x - m));  y = x - m - log(s)
    backward   s = sum(dy * y);  dx = y * (dy - s)        or, for log,  s = sum(dy);  dx = dy - exp(y) * s

With beta the forward pass may not keep anything in y: the last sweep computes the exponentials again. Sums
are kept in f64.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from math import prod
from typing import ClassVar, cast

from jitdnn.devices.cpu import Arguments, CpuDevice, CpuKernel
from jitdnn.kernels.algorithm import UNIT_ROUNDOFF, Algorithm, Device, Epilogue, Kernel
from jitdnn.kernels.cpu.loops import Counter, Scale, share
from jitdnn.kernels.cpu.timing import seconds_of
from jitdnn.problems.problem import Problem
from jitdnn.problems.softmax import Softmax
from jitdnn.rtcg import vector_math
from jitdnn.rtcg.builder import Module, Pointer, Register, Value
from jitdnn.rtcg.compile import load

_VECTORS = 4

Axis = tuple[int, tuple[int, ...]]
"""An extent, and for each tensor the stride along it."""


@dataclass(frozen=True)
class _Item:
    """One vector of a sweep: the accumulator it goes to, where it is in each tensor, and its mask."""

    slot: int
    pointers: Sequence[Pointer]
    mask: Value | None


@dataclass(frozen=True)
class _Code:
    """What is compiled in."""

    direction: str
    algorithm: str
    dtype: str
    is_across: bool
    kept: int  # axes beside that of the lanes
    summed: int
    is_unit: tuple[bool, ...]  # for each tensor: lanes are neighbours in memory


class _Softmax:
    """Traces one kernel."""

    def __init__(self, module: Module, code: _Code) -> None:
        self.code, self.dtype = code, code.dtype
        tensors, axes = len(code.is_unit), code.kept + code.summed + 1
        with module.task("softmax") as (k, args, task, _):
            self.k, self.lanes = k, k.lanes(code.dtype)
            arguments = Arguments(k, args, tensors)
            units, per_task, self.extent, blocks = (arguments.extra(i) for i in range(4))
            extents = [arguments.extra(4 + i) for i in range(axes - 1)]
            strides = [
                [arguments.extra(3 + axes + t * axes + a) for a in range(axes)] for t in range(tensors)
            ]
            self.scale = Scale(k, arguments, code.dtype)
            self.summed_extents = extents[code.kept :]
            self.summed_strides = [s[code.kept : -1] for s in strides]
            self.steps: list[int | Value] = [
                1 if unit else s[-1] for unit, s in zip(code.is_unit, strides, strict=True)
            ]
            pointers = [arguments.pointer(t, code.dtype) for t in range(tensors)]
            width = self.lanes * _VECTORS
            kept_extents, kept_strides = extents[: code.kept], [s[: code.kept] for s in strides]
            if code.is_across:
                kept_extents = [*kept_extents, blocks]
                kept_strides = [
                    [*s, k.integer(step) * width] for s, step in zip(kept_strides, self.steps, strict=True)
                ]
            first = task * per_task
            counter = Counter(
                k, first, kept_extents or [k.integer(1)], [s or [k.integer(0)] for s in kept_strides]
            )
            run = self._forward if code.direction == "fwd" else self._backward
            for _unit in k.range(first, (first + per_task).min(units)):
                here = [p + o.get() for p, o in zip(pointers, counter.offsets, strict=True)]
                if code.is_across:
                    left = self.extent - counter.digits[-1].get() * width
                    with k.when(left >= width):
                        run(here, [None] * _VECTORS)
                    with k.when(left < width):
                        for start in k.range(0, left, self.lanes):
                            run(self._moved(here, start), [k.mask(left - start, self.lanes)])
                else:
                    run(here, [None] * _VECTORS)
                counter.advance()

    # ---- sweeps

    def _moved(self, pointers: Sequence[Pointer], lanes: int | Value) -> list[Pointer]:
        return [p + self.k.integer(step) * lanes for p, step in zip(pointers, self.steps, strict=True)]

    def _sweep(self, pointers: Sequence[Pointer], masks: Sequence[Value | None]) -> Iterator[list[_Item]]:
        """Loops over everything that is summed."""
        k, width = self.k, self.lanes * _VECTORS
        for here in self._nest(pointers, 0):
            if self.code.is_across:
                yield [_Item(v, self._moved(here, v * self.lanes), mask) for v, mask in enumerate(masks)]
                continue
            whole = (self.extent // width) * width
            for start in k.range(0, whole, width):
                yield [_Item(v, self._moved(here, start + v * self.lanes), None) for v in range(_VECTORS)]
            for start in k.range(whole, self.extent, self.lanes):
                yield [_Item(0, self._moved(here, start), k.mask(self.extent - start, self.lanes))]

    def _nest(self, pointers: Sequence[Pointer], axis: int) -> Iterator[Sequence[Pointer]]:
        if axis == self.code.summed:
            yield pointers
            return
        for i in self.k.range(self.summed_extents[axis]):
            moved = [p + i * s[axis] for p, s in zip(pointers, self.summed_strides, strict=True)]
            yield from self._nest(moved, axis + 1)

    def _load(self, item: _Item, tensor: int) -> Value:
        return item.pointers[tensor].load_strided(0, self.steps[tensor], self.lanes, item.mask)

    def _counted(self, item: _Item, value: Value, otherwise: float) -> Value:
        """The value, changed where a lane is beyond the end of what is summed."""
        if item.mask is None or self.code.is_across:
            return value
        return self.k.select(item.mask, value, otherwise)

    def _joined(self, totals: Sequence[Register], operation: Callable[[Value, Value], Value]) -> list[Value]:
        """The results for each slot: of the slots' own lanes, or of all lanes of all slots together."""
        values = [total.get() for total in totals]
        if self.code.is_across:
            return values
        value, lanes = values[0], self.lanes
        for other in values[1:]:
            value = operation(value, other)
        while lanes > 1:
            lanes //= 2
            if lanes > 1:
                halves = [self.k.shuffle(value, value, range(h * lanes, (h + 1) * lanes)) for h in range(2)]
            else:
                halves = [self.k.extract(value, h) for h in range(2)]
            value = operation(halves[0], halves[1])
        return [self.k.splat(value, self.lanes)] * len(values)

    def _sum(
        self, pointers: Sequence[Pointer], masks: Sequence[Value | None], term: Callable[[_Item], Value]
    ) -> list[Value]:
        """Sums of ``term`` in f64, for each slot."""
        k = self.k
        totals = [k.register(k.constant(0.0, "f64", self.lanes)) for _ in masks]
        for items in self._sweep(pointers, masks):
            for item in items:
                totals[item.slot] += k.convert(self._counted(item, term(item), 0.0), "f64")
        return self._joined(totals, lambda a, b: a + b)

    # ---- forward: tensors x, y

    def _forward(self, pointers: Sequence[Pointer], masks: Sequence[Value | None]) -> None:
        k = self.k
        shifts = None if self.code.algorithm == "fast" else self._maxima(pointers, masks)

        def shifted(item: _Item) -> Value:
            x = self._load(item, 0)
            return x if shifts is None else x - shifts[item.slot]

        def exponential(item: _Item) -> Value:
            return vector_math.exp(k, shifted(item))

        def kept_exponential(item: _Item) -> Value:
            result = exponential(item)
            item.pointers[1].store_strided(result, 0, self.steps[1], item.mask)
            return result

        if self.code.algorithm == "log":
            logs = [
                k.convert(vector_math.log(k, total), self.dtype)
                for total in self._sum(pointers, masks, exponential)
            ]
            for items in self._sweep(pointers, masks):
                for item in items:
                    self._finish(item, 1, shifted(item) - logs[item.slot])
            return
        with k.when(self.scale.beta == 0.0):
            factors = self._factors(self._sum(pointers, masks, kept_exponential))
            for items in self._sweep(pointers, masks):
                for item in items:
                    result = self._load(item, 1) * factors[item.slot]
                    item.pointers[1].store_strided(result, 0, self.steps[1], item.mask)
        with k.when(self.scale.beta != 0.0):
            factors = self._factors(self._sum(pointers, masks, exponential))
            beta = k.splat(self.scale.beta, self.lanes)
            for items in self._sweep(pointers, masks):
                for item in items:
                    result = k.fma(beta, self._load(item, 1), exponential(item) * factors[item.slot])
                    item.pointers[1].store_strided(result, 0, self.steps[1], item.mask)

    def _maxima(self, pointers: Sequence[Pointer], masks: Sequence[Value | None]) -> list[Value]:
        # a NaN that the maximum passes over comes back through the sum of exponentials
        k = self.k
        totals = [k.register(k.constant(-float("inf"), self.dtype, self.lanes)) for _ in masks]
        for items in self._sweep(pointers, masks):
            for item in items:
                total = totals[item.slot]
                total.set(self._counted(item, self._load(item, 0), -float("inf")).max(total.get()))
        return self._joined(totals, lambda a, b: a.max(b))

    def _factors(self, totals: Sequence[Value]) -> list[Value]:
        """alpha / sum."""
        alpha = self.k.convert(self.scale.alpha, "f64")
        return [self.k.convert(self.k.splat(alpha, self.lanes) / total, self.dtype) for total in totals]

    def _finish(self, item: _Item, tensor: int, result: Value) -> None:
        self.scale.store(item.pointers[tensor], self.steps[tensor], result, item.mask)

    # ---- backward: tensors dy, y, dx

    def _backward(self, pointers: Sequence[Pointer], masks: Sequence[Value | None]) -> None:
        k = self.k
        is_log = self.code.algorithm == "log"

        def term(item: _Item) -> Value:
            dy = self._load(item, 0)
            return dy if is_log else dy * self._load(item, 1)

        sums = [k.convert(total, self.dtype) for total in self._sum(pointers, masks, term)]
        for items in self._sweep(pointers, masks):
            for item in items:
                dy, y = self._load(item, 0), self._load(item, 1)
                if is_log:
                    result = dy - vector_math.exp(k, y) * sums[item.slot]
                else:
                    result = y * (dy - sums[item.slot])
                self._finish(item, 2, result)


def _trace(module: Module, code: _Code) -> None:
    _Softmax(module, code)


def _joined_axes(problem: Softmax) -> tuple[list[Axis], list[Axis]]:
    """The kept and the summed axes, each from the outermost in the output's memory inwards."""
    tensors = [operand.descriptor for operand in problem.operands]
    groups: tuple[list[Axis], list[Axis]] = ([], [])
    for axis, extent in enumerate(problem.output.shape):
        if extent != 1:
            groups[axis in problem.axis].append((extent, tuple(t.strides[axis] for t in tensors)))
    result = []
    for axes in groups:
        joined: list[Axis] = []
        for extent, strides in sorted(axes, key=lambda axis: -abs(axis[1][-1])):
            if joined and all(
                outer == extent * inner for outer, inner in zip(joined[-1][1], strides, strict=True)
            ):
                joined[-1] = (joined[-1][0] * extent, strides)
            else:
                joined.append((extent, strides))
        result.append(joined)
    return result[0], result[1]


class _SoftmaxAlgorithm(Algorithm):
    problem = Softmax
    deterministic = True
    is_across: ClassVar[bool]

    def refuse(self, problem: Problem, device: Device, epilogue: Epilogue | None = None) -> str | None:
        return "softmax takes no epilogue" if epilogue is not None else None

    def _split(self, problem: Softmax) -> tuple[list[Axis], list[Axis], Axis]:
        """Kept axes, summed axes, and the one of the lanes, taken from among them."""
        kept, summed = _joined_axes(problem)
        axes = kept if self.is_across else summed
        units = [axis for axis in axes if axis[1][-1] == 1]
        lanes: Axis = (1, (1,) * len(problem.operands))
        if axes:
            lanes = units[0] if units else axes[-1]
            axes.remove(lanes)
        return kept, summed, lanes

    def _cycles(self, problem: Softmax, device: Device) -> float:
        """Cycles of one thread."""
        kept, summed, (extent, strides) = self._split(problem)
        lanes = cast(CpuDevice, device).isa.lanes(problem.dtype)
        gathers = sum(stride != 1 for stride in strides)
        vector = 40.0 * (1 if problem.dtype == "f32" else 2) + 3.0 * gathers * lanes
        outer = prod(e for e, _ in kept) * prod(e for e, _ in summed)
        rows = prod(e for e, _ in kept) * (-(-extent // (lanes * _VECTORS)) if self.is_across else 1)
        return outer * -(-extent // lanes) * vector + rows * 60.0

    def estimate(self, problem: Problem, device: Device) -> float:
        cycles = self._cycles(cast(Softmax, problem), device)
        return seconds_of(problem, cast(CpuDevice, device), cycles, max(1, int(cycles / 5e4)))

    def error_bound(self, problem: Problem) -> float:
        # the exponentials, and the roundings of their arguments, which may be large numbers
        return 40.0 * UNIT_ROUNDOFF[problem.dtype]

    def build(self, problem: Problem, device: Device, epilogue: Epilogue | None = None) -> Kernel:
        softmax, processor = cast(Softmax, problem), cast(CpuDevice, device)
        kept, summed, (extent, strides) = self._split(softmax)
        code = _Code(
            softmax.direction, softmax.algorithm, problem.dtype, self.is_across, len(kept), len(summed),
            tuple(stride == 1 for stride in strides),
        )  # fmt: skip
        library = load("softmax", code, processor.isa, lambda module: _trace(module, code))
        width = processor.isa.lanes(problem.dtype) * _VECTORS
        blocks = -(-extent // width) if self.is_across else 1
        units = prod(e for e, _ in kept) * blocks if problem.output.size else 0
        tasks, per_task = share(units, device, self.estimate(problem, device) * device.threads)
        axes = [*kept, *summed, (extent, strides)]
        extras = [
            units, per_task, extent, blocks, *(e for e, _ in axes[:-1]),
            *(steps[t] for t in range(len(strides)) for _, steps in axes),
        ]  # fmt: skip
        return CpuKernel(
            library, [("softmax", tasks)], len(strides), device.threads if tasks > 1 else 1, extras
        )


class SoftmaxAlong(_SoftmaxAlgorithm):
    """Vectors along an axis that is summed over."""

    name = "along"
    is_across = False


class SoftmaxAcross(_SoftmaxAlgorithm):
    """Vectors along an axis that is kept: each lane sums for itself."""

    name = "across"
    is_across = True

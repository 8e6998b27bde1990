"""Resizing where every output is a copy of one input.

unit    the outputs of one slice of one image and channel
        for a row of x that is used, and each row of outputs that comes from it
          for a vector of outputs
            pick its elements from vectors of x, in an order that is compiled in
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import prod

import numpy as np

from jitdnn.devices.cpu import CpuDevice
from jitdnn.devices.cpu_kernel import Arguments, CpuKernel, WithTables
from jitdnn.kernels.algorithm import Epilogue, Kernel
from jitdnn.kernels.cpu import cost
from jitdnn.kernels.cpu.microkernel.scale import Scale
from jitdnn.kernels.cpu.sampling.resize_weights import (
    ResizeAlgorithm,
    Tables,
    addresses,
    axes_of,
    is_plain,
    strides_of,
)
from jitdnn.kernels.cpu.schedule.cost import seconds_of
from jitdnn.kernels.cpu.schedule.parallel import Counter, Slots, split_units
from jitdnn.problems.resize import Resize
from jitdnn.rtcg.builder import Module, Pointer, Value
from jitdnn.rtcg.compile import load
from jitdnn.rtcg.isa import ITEM_BYTES
from jitdnn.rtcg.types import INT
from jitdnn.tensor import compute_dtype

_Store = Callable[[Pointer, Value, Value | None], None]
_MOST_LOADS = 4  # vectors of x from which one vector of outputs is picked
_SLOTS = Slots(
    "units", "per_task", "images", "channels", "slices", "rows",
    *(f"x{a}" for a in range(4)), *(f"y{a}" for a in range(4)), "slice_of", "row_of", "first_output",
)  # fmt: skip


@dataclass(frozen=True)
class _Vector:
    """A vector of outputs: where its loads begin in a row of x, how many there are, and what each lane takes."""

    output: int
    first: int
    loads: int
    places: tuple[int, ...]  # of each lane, counted from ``first``


@dataclass(frozen=True)
class _Pattern:
    """A row of outputs, which is compiled in: one vector, or those that repeat ``times``, and those at the end."""

    columns: int
    outputs: int
    once: tuple[_Vector, ...]
    period: int  # outputs after which the pattern begins again
    step: int  # how far on in x
    times: int
    rest: tuple[_Vector, ...]


def _pattern(starts: Sequence[int], columns: int, lanes: int) -> _Pattern | None:
    """None if a vector would be picked from too many loads, or in too many different ways."""
    outputs = len(starts)
    vectors = []
    for output in range(0, outputs, lanes):
        places = [int(s) for s in starts[output : output + lanes]]
        first = min(places)
        loads = (max(places) - first) // lanes + 1
        if loads > _MOST_LOADS:
            return None
        places += places[-1:] * (lanes - len(places))
        vectors.append(_Vector(output, first, loads, tuple(p - first for p in places)))
    for count in range(1, 5):  # vectors of a period
        times = 1
        while _repeats(vectors, count, times, lanes, columns):
            times += 1
        if times * count >= len(vectors) - 4:
            step = vectors[count].first - vectors[0].first if times > 1 else 0
            once, rest = vectors[:count], vectors[count * times :]
            return _Pattern(columns, outputs, tuple(once), count * lanes, step, times, tuple(rest))
    return None


def _repeats(vectors: Sequence[_Vector], count: int, times: int, lanes: int, columns: int) -> bool:
    """Whether the period after ``times`` others is as the first one, and whole."""
    here = vectors[count * times : count * (times + 1)]
    if len(here) < count or any(vector.output + lanes > vectors[-1].output for vector in here):
        return False
    step = vectors[count].first - vectors[0].first
    return all(
        (other.loads, other.places) == (vector.loads, vector.places)
        and other.first == vector.first + times * step
        and other.first + other.loads * lanes <= columns
        for vector, other in zip(vectors[:count], here, strict=True)
    )


@dataclass(frozen=True)
class _Code:
    """What is compiled in."""

    dtype: str
    pattern: _Pattern
    streams: bool


class _Rows:
    """Traces one kernel."""

    def __init__(self, module: Module, code: _Code) -> None:
        self.code, self.computing = code, compute_dtype(code.dtype)
        with module.task("resize") as (k, args, task, _):
            self.k, self.lanes = k, k.lanes(self.computing)
            arguments = Arguments(k, args, 2)
            self.n = _SLOTS.load(arguments)
            tables = Tables(k, args, 2, _SLOTS.names)
            names = ("slice_of", "row_of", "first_output")
            self.slice_of, self.row_of, self.first_output = (tables.pointer(name, "i64") for name in names)
            self.scale = Scale(k, arguments, self.computing)
            x, y = (arguments.pointer(t, code.dtype).as_real(self.computing) for t in range(2))
            self._units(task, x, y, arguments)

    def _units(self, task: Value, x: Pointer, y: Pointer, arguments: Arguments) -> None:
        k, n = self.k, self.n
        zero, first = k.integer(0), task * n["per_task"]
        is_copy = (arguments.alpha("f64") == 1.0) & (arguments.beta("f64") == 0.0)
        counter = Counter(
            k, first, [n["images"], n["channels"], n["slices"]],
            [[n["x0"], n["x1"], zero], [n["y0"], n["y1"], n["y2"]]],
        )  # fmt: skip
        for _unit in k.range(first, (first + n["per_task"]).min(n["units"])):
            source, target = (p + o.get() for p, o in zip((x, y), counter.offsets, strict=True))
            source = source + self.slice_of.load(counter.digits[2].get()) * n["x2"]
            with k.when(is_copy):
                self._plane(source, target, self._copy)
            with k.when(~is_copy):
                self._plane(source, target, self._blend)
            counter.advance()

    def _plane(self, x: Pointer, y: Pointer, store: _Store) -> None:
        k, n, pattern = self.k, self.n, self.code.pattern
        for row in k.range(n["rows"]):
            source = x + self.row_of.load(row) * n["x3"]
            # one row of outputs after the other: memory follows one stream of stores, not several in turn
            for output in k.range(self.first_output.load(row), self.first_output.load(row + 1)):
                target = y + output * n["y3"]
                for period in k.range(pattern.times):
                    there = target + period * pattern.period
                    self._vectors(pattern.once, source + period * pattern.step, there, store)
                self._vectors(pattern.rest, source, target, store)

    def _vectors(self, vectors: Sequence[_Vector], x: Pointer, y: Pointer, store: _Store) -> None:
        for vector in vectors:
            left = self.code.pattern.outputs - vector.output
            mask = self.k.mask(left, self.lanes) if left < self.lanes else None
            store(y + vector.output, self._picked(x, vector), mask)

    def _picked(self, x: Pointer, vector: _Vector) -> Value:
        """The elements of a vector of outputs."""
        k, lanes, result = self.k, self.lanes, None
        for part in range(vector.loads):
            at = vector.first + part * lanes
            left = self.code.pattern.columns - at
            value = (x + at).load(0, lanes, k.mask(left, lanes) if left < lanes else None)
            if result is None:
                order = [p if p < lanes else 0 for p in vector.places]
                result = value if order == list(range(lanes)) else k.shuffle(value, value, order)
            else:
                order = [lanes + p % lanes if p // lanes == part else i for i, p in enumerate(vector.places)]
                result = k.shuffle(result, value, order)
        assert result is not None
        return result

    def _copy(self, target: Pointer, value: Value, mask: Value | None) -> None:
        k = self.k
        if mask is not None or not self.code.streams:
            target.store(value, 0, mask)
            return
        address = Value(k, k.b.ptrtoint(target.v, INT))
        is_aligned = (address & (self.lanes * ITEM_BYTES[self.code.dtype] - 1)) == 0
        with k.when(is_aligned):
            target.stream(value)
        with k.when(~is_aligned):
            target.store(value)

    def _blend(self, target: Pointer, value: Value, mask: Value | None) -> None:
        self.scale.store(target, 1, value, mask)


class ResizeCopiedRows(ResizeAlgorithm):
    """Every output is one input as it is: vectors are picked from rows of x where they lie."""

    name = "copied_rows"

    def refusal(self, problem: Resize, device: CpuDevice, epilogue: Epilogue | None) -> str | None:
        if not is_plain(axes_of(problem)):
            return "outputs are sums of several inputs: it copies, as 'nearest' does forward"
        for operand in problem.operands:
            step = strides_of(operand.descriptor)[4]
            if step != 1 and operand.descriptor.shape[-1] > 1:
                return (
                    f"neighbours in a row of {operand.name} are {step} elements apart: they must be adjacent, as in "
                    "the layout nchw"
                )
        if _pattern_of(problem, _lanes(problem, device)) is None:
            return "vectors of a row of outputs come from too many vectors of x, or each in a way of its own"
        return None

    def workspace_of(self, plan: Resize, device: CpuDevice) -> int:
        return 0

    def seconds_of(self, plan: Resize, device: CpuDevice) -> float:
        tasks = prod(plan.output.shape[:2]) * len(axes_of(plan)[0].start)
        return seconds_of(plan, device, self._cycles(plan, device), tasks)

    def _cycles(self, problem: Resize, device: CpuDevice) -> float:
        """Of one thread."""
        axes, found = axes_of(problem), _pattern_of(problem, _lanes(problem, device))
        assert found is not None
        loads = sum(v.loads for v in found.once) * found.times + sum(v.loads for v in found.rest)
        vectors = len(found.once) * found.times + len(found.rest)
        rows, outputs = len(np.unique(axes[1].start)), len(axes[1].start)
        slices = prod(problem.output.shape[:2]) * len(axes[0].start)
        return slices * (20.0 + rows * (6.0 + 1.5 * loads) + outputs * (2.0 + 1.2 * vectors))

    def kernel_of(self, plan: Resize, device: CpuDevice) -> Kernel:
        found = _pattern_of(plan, _lanes(plan, device))
        assert found is not None
        axes = axes_of(plan)
        source, target = (operand.descriptor for operand in plan.operands)
        steps = [strides_of(source), strides_of(target)]
        streams = target.nbytes >= device.isa.processor.last_cache(cost.ELEMENTWISE_STREAM)
        code = _Code(plan.dtype, found, streams)
        # runs of outputs that come from one row: that row, and where each run begins
        starts = np.asarray(axes[1].start, np.int64)
        firsts = np.flatnonzero(np.diff(starts, prepend=-1)) if len(starts) else np.zeros(0, np.int64)
        tables = {
            "slice_of": np.ascontiguousarray(axes[0].start, np.int64),
            "row_of": np.ascontiguousarray(starts[firsts]),
            "first_output": np.append(firsts, len(starts)).astype(np.int64),
        }
        units = prod(target.shape[:2]) * len(axes[0].start)
        tasks, per_task = split_units(units, device, self._cycles(plan, device) / device.isa.processor.clock)
        values = {
            "units": units, "per_task": per_task, "images": target.shape[0], "channels": target.shape[1],
            "slices": len(axes[0].start), "rows": len(firsts), **{f"x{a}": steps[0][a] for a in range(4)},
            **{f"y{a}": steps[1][a] for a in range(4)}, **addresses(tables),
        }  # fmt: skip
        library = load("resize_copied_rows", code, device.isa, lambda module: _Rows(module, code))
        return WithTables(
            CpuKernel(library, [("resize", tasks)], 2, device.threads, _SLOTS.pack(values)), tables
        )


def _lanes(problem: Resize, device: CpuDevice) -> int:
    return device.isa.lanes(compute_dtype(problem.dtype))


@lru_cache(256)
def _pattern_of(problem: Resize, lanes: int) -> _Pattern | None:
    axis = axes_of(problem)[2]
    return _pattern(axis.start.tolist(), axis.columns, lanes)

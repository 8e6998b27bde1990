"""Resizing with vectors along the last spatial axis: any strides, fastest where that axis is contiguous.

    unit    one row of outputs
            line = the rows that it comes from, each times its weight, added up   (workspace, with margins of zeros)
            y    = the taps of the last axis, times the line

Neighbouring outputs take their values from positions of the line that are no neighbours. Where the positions of one
vector of outputs lie to each other as those of the next vector do, which is so for every quotient of extents that
divides the number of lanes, they are picked from whole vectors in an order that is compiled in; elsewhere they are
gathered.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np

from jitdnn.devices.cpu import CpuDevice
from jitdnn.devices.cpu_kernel import Arguments, CpuKernel, WithTables
from jitdnn.kernels.algorithm import Kernel
from jitdnn.kernels.cpu import cost
from jitdnn.kernels.cpu.microkernel.scale import Scale
from jitdnn.kernels.cpu.sampling.resize_weights import (
    ResizeAlgorithm,
    Tables,
    addresses,
    axes_of,
    is_plain,
    outer_tables,
    strides_of,
)
from jitdnn.kernels.cpu.schedule.cost import LAUNCH_SECONDS
from jitdnn.kernels.cpu.schedule.parallel import Counter, Slots, split_units
from jitdnn.problems.resize import Resize, Taps
from jitdnn.rtcg.builder import Module, Pointer, Value
from jitdnn.rtcg.compile import load
from jitdnn.rtcg.isa import ITEM_BYTES
from jitdnn.rtcg.types import INT
from jitdnn.tensor import compute_dtype

_MOST_LOADS = 4  # vectors from which the positions of one vector are picked
_MOST_UNROLLED = 8  # taps; more of them are a loop
_SLOTS = Slots(
    "units", "per_task", "images", "channels", "out0", "out1", "columns", "blocks", "last", "first", "step", "padded",
    "room", "margin", *(f"x{a}" for a in range(5)), *(f"y{a}" for a in range(5)),
    "start0", "weights0", "start1", "weights1", "places", "weights2",
)  # fmt: skip


@dataclass(frozen=True)
class _Pattern:
    """How a line becomes a row: the taps at the positions `first + step * block + positions[lane]`, from `loads`
    vectors.

    Without `loads` the positions are a table of the whole row, and are gathered.
    """

    width: int
    positions: tuple[int, ...]
    loads: int
    first: int
    step: int
    weights: np.ndarray[Any, Any]  # taps x outputs, padded to whole vectors
    table: np.ndarray[Any, Any]
    before: int  # elements of margin before the line and behind it
    behind: int

    @staticmethod
    def of(taps: Taps, lanes: int) -> _Pattern:
        outputs, width, inputs = len(taps.start), taps.width, taps.columns
        blocks = -(-outputs // lanes)
        is_tap = taps.weights != 0
        low = taps.start + np.argmax(is_tap, axis=1)
        high = taps.start + width - 1 - np.argmax(is_tap[:, ::-1], axis=1)
        middle = max(0, (outputs // lanes - 1) // 2) * lanes
        here = low[middle : middle + lanes]
        positions = np.full(lanes, here[-1] - here[0])
        positions[: len(here)] = here - here[0]
        step = 0
        if middle + lanes < outputs:
            step = int(low[middle + lanes] - low[middle])
        number = np.arange(blocks * lanes) // lanes - middle // lanes
        start = here[0] + step * number + np.tile(positions, blocks)
        loads = int(positions.max()) // lanes + 1
        is_fit = bool((start[:outputs] <= low).all() and (start[:outputs] + width > high).all())
        if not is_fit or loads > _MOST_LOADS or positions.min() < 0:
            start, loads = np.zeros(blocks * lanes, np.int64), 0
            start[:outputs] = taps.start
        weights = np.zeros((width, blocks * lanes))
        for tap in range(width):
            column = start[:outputs] + tap - taps.start
            inside = (column >= 0) & (column < width)
            rows = np.arange(outputs)
            weights[tap, :outputs] = np.where(inside, taps.weights[rows, np.where(inside, column, 0)], 0.0)
        first = int(here[0]) - step * (middle // lanes)
        reach = max(first, first + step * (blocks - 1)) + width - 1 + max(loads, 1) * lanes
        before = max(0, -first, -(first + step * (blocks - 1))) if loads else 0
        return _Pattern(
            width, tuple(int(p) for p in positions) if loads else (), loads, first, step, weights,
            start.astype(np.int32), before + lanes, max(0, reach - inputs if loads else 0) + lanes,
        )  # fmt: skip


@dataclass(frozen=True)
class _Code:
    """What is compiled in."""

    dtype: str  # of the tensors
    widths: tuple[int, int, int]
    positions: tuple[int, ...]
    loads: int
    is_plain: bool  # nearest: all weights are 1, and there is one tap
    is_unit: tuple[bool, bool]
    streams: bool


class _Rows:
    """Traces one kernel."""

    def __init__(self, module: Module, code: _Code) -> None:
        self.code, self.computing = code, compute_dtype(code.dtype)
        with module.task("resize") as (k, args, task, thread):
            self.k, self.lanes = k, k.lanes(self.computing)
            arguments = Arguments(k, args, 2)
            self.n = _SLOTS.load(arguments)
            tables = Tables(k, args, 2, _SLOTS.names)
            self.outer = [
                (tables.pointer(f"start{a}", "i64"), tables.pointer(f"weights{a}", self.computing))
                for a in range(2)
            ]
            self.positions = tables.pointer("places", "i32")
            self.weights = tables.pointer("weights2", self.computing)
            self.scale = Scale(k, arguments, self.computing)
            self.steps: list[Any] = [
                1 if unit else self.n[name] for unit, name in zip(code.is_unit, ("x4", "y4"), strict=True)
            ]
            room = arguments.workspace(self.computing) + thread * self.n["room"]
            for i in k.range(0, self.n["room"], self.lanes):
                room.store(k.constant(0.0, self.computing, self.lanes), i)
            self.line = room + self.n["margin"]
            self._units(task, [arguments.pointer(t, code.dtype) for t in range(2)])

    def _units(self, task: Value, pointers: Sequence[Pointer]) -> None:
        k, n = self.k, self.n
        zero = k.integer(0)
        first = task * n["per_task"]
        counter = Counter(
            k, first, [n["images"], n["channels"], n["out0"], n["out1"]],
            [[n["x0"], n["x1"], zero, zero], [n["y0"], n["y1"], n["y2"], n["y3"]]],
        )  # fmt: skip
        for _unit in k.range(first, (first + n["per_task"]).min(n["units"])):
            plane, row = (p + o.get() for p, o in zip(pointers, counter.offsets, strict=True))
            self._make_line(plane, [digit.get() for digit in counter.digits[2:]])
            self._make_row(row)
            counter.advance()

    # ---- the line

    def _make_line(self, plane: Pointer, outputs: Sequence[Value]) -> None:
        k, lanes, columns = self.k, self.lanes, self.n["columns"]
        widths = self.code.widths[:2]
        starts = [start.load(o) for (start, _), o in zip(self.outer, outputs, strict=True)]
        weights = [w + o * width for (_, w), o, width in zip(self.outer, outputs, widths, strict=True)]
        corner = plane + (starts[0] * self.n["x2"] + starts[1] * self.n["x3"])
        factors = None
        if prod(widths) <= _MOST_UNROLLED:
            ones = [[w.load(t) for t in range(width)] for w, width in zip(weights, widths, strict=True)]
            factors = [[k.splat(a * b, lanes) for b in ones[1]] for a in ones[0]]

        def vector(i: Value, mask: Value | None) -> Value:
            if factors is None:
                return self._summed(corner, weights, i, mask)
            total: Value | None = None
            for t0, row in enumerate(factors):
                for t1, factor in enumerate(row):
                    value = self._element(corner, k.integer(t0), k.integer(t1), i, mask)
                    if self.code.is_plain:
                        total = value
                    else:
                        total = value * factor if total is None else k.fma(value, factor, total)
            assert total is not None
            return total

        full = (columns // lanes) * lanes
        for i in k.range(0, full, lanes):
            self.line.store(vector(i, None), i)
        with k.when(full < columns):
            mask = k.mask(columns - full, lanes)
            self.line.store(vector(full, mask), full, mask)

    def _summed(self, corner: Pointer, weights: Sequence[Pointer], i: Value, mask: Value | None) -> Value:
        k = self.k
        total = k.register(k.constant(0.0, self.computing, self.lanes))
        for t0 in k.range(self.code.widths[0]):
            for t1 in k.range(self.code.widths[1]):
                factor = k.splat(weights[0].load(t0) * weights[1].load(t1), self.lanes)
                total.set(k.fma(self._element(corner, t0, t1, i, mask), factor, total.get()))
        return total.get()

    def _element(self, corner: Pointer, t0: Value, t1: Value, i: Value, mask: Value | None) -> Value:
        there = corner + (t0 * self.n["x2"] + t1 * self.n["x3"])
        return there.load_strided(i * self.steps[0], self.steps[0], self.lanes, mask)

    # ---- the row

    def _make_row(self, row: Pointer) -> None:
        k, beta = self.k, self.scale.beta
        if not self.code.streams:
            self._blocks(row, lambda value, at: self._blend(row, value, at, None))
            return
        address = Value(k, k.b.ptrtoint(row.v, INT))
        misplaced = address & (self.lanes * ITEM_BYTES[self.code.dtype] - 1)
        may_stream = (beta == 0.0) & (misplaced == 0)
        alpha = k.splat(self.scale.alpha, self.lanes)
        with k.when(may_stream):
            self._blocks(row, lambda value, at: row.stream(value * alpha, at))
        with k.when(~may_stream):
            self._blocks(row, lambda value, at: self._blend(row, value, at, None))

    def _blend(self, row: Pointer, value: Value, at: Value, mask: Value | None) -> None:
        self.scale.store(row + at * self.steps[1], self.steps[1], value, mask)

    def _blocks(self, row: Pointer, store: Callable[[Value, Value], None]) -> None:
        """All vectors of the row; the last one may be short, and is blended."""
        k, n, lanes = self.k, self.n, self.lanes
        whole = n["blocks"] - k.select(n["last"] < lanes, k.integer(1), 0)
        for block in k.range(whole):
            store(self._vector(block), block * lanes)
        with k.when(whole < n["blocks"]):
            self._blend(row, self._vector(whole), whole * lanes, k.mask(n["last"], lanes))

    def _vector(self, block: Value) -> Value:
        """The outputs of one block: the sum over the taps."""
        k, lanes, width = self.k, self.lanes, self.code.widths[2]
        weights = self.weights + block * lanes
        if self.code.loads:
            line = self.line + (self.n["first"] + self.n["step"] * block)
            positions = None
        else:
            line = self.line
            positions = (self.positions + block * lanes).load(0, lanes)
        if self.code.is_plain:
            return self._picked(line, positions)
        total = k.register(k.constant(0.0, self.computing, lanes))
        for t in range(width) if width <= _MOST_UNROLLED else k.range(width):
            picked = self._picked(line + t, positions)
            total.set(k.fma(picked, (weights + self.n["padded"] * t).load(0, lanes), total.get()))
        return total.get()

    def _picked(self, line: Pointer, positions: Value | None) -> Value:
        """The elements of the line at the positions of a vector."""
        k, lanes = self.k, self.lanes
        if positions is not None:
            return line.load_at(positions)
        wanted = self.code.positions
        if wanted == tuple(range(lanes)):
            return line.load(0, lanes)
        result = line.load(0, lanes)
        result = k.shuffle(result, result, [p if p < lanes else 0 for p in wanted])
        for part in range(1, self.code.loads):
            # lanes found so far stay; those that lie in this vector come from it
            order = [lanes + p - part * lanes if p // lanes == part else i for i, p in enumerate(wanted)]
            result = k.shuffle(result, line.load(part * lanes, lanes), order)
        return result


class ResizeRows(ResizeAlgorithm):
    """Vectors along the last axis, over a line of weighted rows."""

    name = "rows"

    def workspace_of(self, plan: Resize, device: CpuDevice) -> int:
        lanes = device.isa.lanes(plan.dtype)
        pattern = _Pattern.of(axes_of(plan)[2], lanes)
        return device.threads * self._room(plan, pattern, lanes) * ITEM_BYTES[_real(plan)]

    def _room(self, problem: Resize, pattern: _Pattern, lanes: int) -> int:
        columns = axes_of(problem)[2].columns
        return -(-(pattern.before + columns + pattern.behind) // lanes) * lanes

    def seconds_of(self, plan: Resize, device: CpuDevice) -> float:
        return LAUNCH_SECONDS + self._seconds(plan, device) / device.threads

    def _seconds(self, problem: Resize, device: CpuDevice) -> float:
        lanes = device.isa.lanes(problem.dtype)
        axes = axes_of(problem)
        pattern = _Pattern.of(axes[2], lanes)
        rows = prod(problem.output.shape[:2]) * len(axes[0].start) * len(axes[1].start)
        is_unit = [strides_of(o.descriptor)[4] == 1 for o in problem.operands]
        line = axes[2].columns / lanes * axes[0].width * axes[1].width * (1 if is_unit[0] else lanes)
        pick = (pattern.loads + 1) if pattern.loads else lanes
        row = -(-len(axes[2].start) // lanes) * (pattern.width * pick + (2 if is_unit[1] else 2 * lanes))
        return rows * (line + row + 30) * 0.4e-9

    def kernel_of(self, plan: Resize, device: CpuDevice) -> Kernel:
        real = _real(plan)
        lanes = device.isa.lanes(plan.dtype)
        axes = axes_of(plan)
        pattern = _Pattern.of(axes[2], lanes)
        source, target = (operand.descriptor for operand in plan.operands)
        steps = [strides_of(source), strides_of(target)]
        code = _Code(
            plan.dtype, (axes[0].width, axes[1].width, pattern.width), pattern.positions, pattern.loads,
            is_plain(axes), (steps[0][4] == 1, steps[1][4] == 1),
            streams=steps[1][4] == 1 and target.nbytes >= device.isa.processor.last_cache(cost.ELEMENTWISE_STREAM),
        )  # fmt: skip
        tables = {
            **outer_tables(axes[:2], real),
            "places": pattern.table,
            "weights2": np.ascontiguousarray(pattern.weights, np.float32 if real == "f32" else np.float64),
        }
        outputs = [len(taps.start) for taps in axes]
        units = prod(target.shape[:2]) * outputs[0] * outputs[1]
        tasks, per_task = split_units(units, device, self._seconds(plan, device))
        blocks = -(-outputs[2] // lanes)
        values = {
            "units": units, "per_task": per_task, "images": target.shape[0], "channels": target.shape[1],
            "out0": outputs[0], "out1": outputs[1], "columns": axes[2].columns, "blocks": blocks,
            "last": outputs[2] - (blocks - 1) * lanes, "first": pattern.first, "step": pattern.step,
            "padded": blocks * lanes, "room": self._room(plan, pattern, lanes), "margin": pattern.before,
            **{f"x{a}": step for a, step in enumerate(steps[0])},
            **{f"y{a}": step for a, step in enumerate(steps[1])}, **addresses(tables),
        }  # fmt: skip
        library = load("resize_rows", code, device.isa, lambda module: _Rows(module, code))
        return WithTables(
            CpuKernel(library, [("resize", tasks)], 2, device.threads, _SLOTS.pack(values)), tables
        )


def _real(problem: Resize) -> str:
    return compute_dtype(problem.dtype)

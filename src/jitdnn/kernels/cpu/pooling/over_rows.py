"""Pooling with vectors along a row of outputs: the way for channels-first tensors.

Forward, the rows of a window are combined before the taps are picked (``pooling_row_blocks``): a unit is one row
of outputs. Backward, a unit is one plane of dx, which it owns; what the taps of a block give to a row is spread
over its columns and added in one go, in a ring of rows where windows overlap.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

from jitdnn.devices.cpu import Arguments, CpuDevice, CpuKernel
from jitdnn.kernels.algorithm import Device, Epilogue, Kernel
from jitdnn.kernels.cpu.microkernel.nontemporal import is_streamed, store_vector
from jitdnn.kernels.cpu.pooling.geometry import (
    Axis,
    Bounds,
    Geometry,
    PoolingAlgorithm,
    arithmetic_of,
    combiner,
)
from jitdnn.kernels.cpu.pooling.over_rows_code import Block, RowBlocks, RowCode, row_slots, sum_of_columns
from jitdnn.kernels.cpu.pooling.row_accumulator import Ring, ring_bytes, ring_values
from jitdnn.kernels.cpu.schedule.cost import seconds_of
from jitdnn.kernels.cpu.schedule.parallel import Counter, split_units
from jitdnn.problems.pooling import EMPTY_WINDOW_MAX, Pooling
from jitdnn.problems.problem import Problem
from jitdnn.rtcg.builder import Builder, Module, Pointer, Value
from jitdnn.rtcg.compile import load

_MOST_COLUMNS = 8  # vectors of one row that are held in registers
_MOST_UNROLLED = 4  # rows of a window
_SHORT_ROW = 4  # vectors of outputs: up to here a row's extents are compiled in, and its masks are constants


class _Forward(RowBlocks):
    def __init__(self, k: Builder, arguments: Arguments, code: RowCode, task: Value) -> None:
        super().__init__(k, arguments, code, tensors=2 if code.indices is None else 3)
        w = self.windows
        pointers = [arguments.pointer(t, code.dtype).as_real(self.dtype) for t in range(2)]
        if code.indices is not None:
            pointers.append(arguments.pointer(2, code.indices))
        first = task * w["per_task"]
        zero = k.integer(0)
        x, *results = w.strides
        counter = Counter(
            k, first, w.extents("images", "channels", "out0", "out1"),
            [[x[0], x[1], zero, zero], *(steps[:4] for steps in results)],
        )  # fmt: skip
        for _unit in k.range(first, (first + w["per_task"]).min(w["units"])):
            plane, *targets = (p + o.get() for p, o in zip(pointers, counter.offsets, strict=True))
            bounds = tuple(w.bounds(axis, counter.digits[2 + axis].get()) for axis in range(2))
            for block in self._blocks():
                if code.indices is not None:
                    self._store_maxima(bounds, plane, targets, block)
                else:
                    count = self._count(bounds, block) if self.mode == "avg" else None
                    self._store(targets[0], self._window(bounds, plane, block), block, count)
            counter.advance()

    def _store(self, target: Pointer, result: Value, block: Block, count: Value | None = None) -> None:
        there = target + self.k.integer(block.output) * self.output_step
        if block.outputs.mask is None and self.code.is_unit:
            store_vector(self.k, self.scale, there, result, self.code.streams, count)
        else:
            self.scale.store(there, self.output_step, result, block.outputs.mask, count)

    def _store_maxima(
        self, bounds: Sequence[Bounds], plane: Pointer, targets: Sequence[Pointer], block: Block
    ) -> None:
        k, step = self.k, self.windows.strides[2][4]
        best, place = self._maxima(bounds, plane, self.windows.strides[0], block, as_positions=True)
        if self.code.has_empty_windows:
            is_empty = self._is_empty(bounds, block)
            best = k.select(is_empty, EMPTY_WINDOW_MAX, best)
            place = k.select(is_empty, -1, place)
        self._store(targets[0], best, block)
        there = targets[1] + k.integer(block.output) * step
        there.store_strided(k.convert(place, targets[1].dtype), 0, step, block.outputs.mask)

    def _window(self, bounds: Sequence[Bounds], plane: Pointer, block: Block) -> Value:
        """The maximum or the sum of each window."""
        k, combine = self.k, combiner(self.mode)
        columns = self._combined_rows(bounds, plane, block)
        result = self._tap(columns, 0)
        for tap in range(1, self.code.window):
            result = combine(k, result, self._tap(columns, tap))
        if self.mode == "avg" or not self.code.has_empty_windows:
            return result
        return k.select(self._is_empty(bounds, block), EMPTY_WINDOW_MAX, result)

    def _is_empty(self, bounds: Sequence[Bounds], block: Block) -> Value:
        k = self.k
        row = self.windows.bounds(2, k.iota(self.lanes) + block.output)
        return row.is_empty | k.splat(bounds[0].is_empty | bounds[1].is_empty, self.lanes)

    def _combined_rows(self, bounds: Sequence[Bounds], plane: Pointer, block: Block) -> list[Value]:
        k, w, combine = self.k, self.windows, combiner(self.mode)
        steps = w.strides[0]
        if self.is_whole:
            columns: list[Value] = []
            for t0, t1, _ in self._rows(bounds):
                loaded = self._columns(plane + (t0 * steps[2] + t1 * steps[3]), block)
                pairs = zip(columns or loaded, loaded, strict=True)
                columns = [combine(k, c, v) for c, v in pairs] if columns else loaded
            return columns
        start = k.constant(0.0 if self.mode == "avg" else -float("inf"), self.dtype, self.lanes)
        totals = [k.register(start) for _ in block.loads]
        for t0 in w.taps(0, bounds[0]):
            for t1 in w.taps(1, bounds[1]):
                row = plane + (t0 * steps[2] + t1 * steps[3])
                for total, value in zip(totals, self._columns(row, block), strict=True):
                    total.set(combine(k, total.get(), value))
        return [total.get() for total in totals]


class _Backward(RowBlocks):
    def __init__(self, k: Builder, arguments: Arguments, code: RowCode, task: Value, thread: Value) -> None:
        tensors = 4 if code.mode == "max" else 2
        super().__init__(k, arguments, code, tensors)
        w = self.windows
        pointers = [arguments.pointer(t, code.dtype).as_real(self.dtype) for t in range(tensors)]
        self.ring = None
        if not code.tiles:
            self.ring = Ring(k, w, arguments.workspace(self.dtype), thread, self.lanes)
        first = task * w["per_task"]
        counter = Counter(k, first, w.extents("images", "channels"), [s[:2] for s in w.strides])
        for _unit in k.range(first, (first + w["per_task"]).min(w["units"])):
            self.planes = [p + o.get() for p, o in zip(pointers, counter.offsets, strict=True)]
            if self.ring is None:
                for o0 in k.range(w["out0"]):
                    self._outputs(o0, w.bounds(0, o0))
            else:
                self.ring.clear()
                for o0 in k.range(w["out0"] + 1):
                    bounds = w.bounds(0, o0)
                    self.ring.advance(o0, bounds, self._write)
                    with k.when(o0 < w["out0"]):
                        self._outputs(o0, bounds)
            counter.advance()

    def _outputs(self, o0: Value, b0: Bounds) -> None:
        dy = self.output_steps
        for o1 in self.k.range(self.windows["out1"]):
            source = self.planes[0] + (o0 * dy[2] + o1 * dy[3])
            for block in self._blocks():
                self._give((b0, self.windows.bounds(1, o1)), source, block)

    def _write(self, position: Value, row: Pointer) -> None:
        """A finished row of the ring to dx."""
        k, w = self.k, self.windows
        steps, width = w.strides[-1], w["extent2"]
        whole = (width // self.lanes) * self.lanes
        for t1 in k.range(w["extent1"]):
            source = row + (t1 * w["pitch"] + w["before2"])
            target = self.planes[-1] + (position * steps[2] + t1 * steps[3])
            for c in k.range(0, whole, self.lanes):
                value = (source + c).load(0, self.lanes)
                store_vector(k, self.scale, target + c, value, self.code.streams)
            with k.when(whole < width):
                value = (source + whole).load(0, self.lanes)
                self.scale.store(target + whole, 1, value, k.mask(width - whole, self.lanes))

    def _give(self, bounds: Sequence[Bounds], source: Pointer, block: Block) -> None:
        """Add to dx what the outputs of one block give to it."""
        k, code, steps = self.k, self.code, self.windows.strides
        there = source + k.integer(block.output) * self.output_step
        dy = there.load_strided(0, self.output_step, self.lanes, block.outputs.mask)
        if self.mode == "avg":
            given = self._spread([dy / self._count(bounds, block)] * code.window)
            for t0, t1, _ in self._rows(bounds):
                self._add(t0, t1, block, given)
            return
        _, places = self._maxima(bounds, self.planes[1], steps[1], block, as_positions=False)
        for t0, t1, number in self._rows(bounds):
            labels = [self._label(number, tap, is_position=False) for tap in range(code.window)]
            self._add(t0, t1, block, self._spread([k.select(places == at, dy, 0.0) for at in labels]))

    def _add(self, t0: Value, t1: Value, block: Block, given: Sequence[Value]) -> None:
        w = self.windows
        if self.ring is not None:
            # room before and behind each run of the ring takes what falls outside of the image
            row = self.ring.row(t0) + (t1 * w["pitch"] + w["before2"] + block.column)
            for m, value in enumerate(given):
                there = row + m * self.lanes
                there.store(there.load(0, self.lanes) + value)
            return
        steps = w.strides[-1]
        row = self.planes[-1] + (t0 * steps[2] + t1 * steps[3] + block.column)
        for m, (value, lanes) in enumerate(zip(given, block.stores, strict=True)):
            if not lanes.is_nothing:
                self.scale.store(row + m * self.lanes, 1, value, lanes.mask)

    def _spread(self, taps: Sequence[Value]) -> list[Value]:
        """What the lanes of each tap give, as vectors over the columns of a row."""
        return [sum_of_columns(self.k, taps, self.code, m) for m in range(self.spread)]


def _trace(module: Module, code: RowCode) -> None:
    with module.task("pooling") as (k, args, task, thread):
        if code.direction == "fwd":
            _Forward(k, Arguments(k, args, 2 if code.indices is None else 3), code, task)
        else:
            _Backward(k, Arguments(k, args, 4 if code.mode == "max" else 2), code, task, thread)


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
        if geometry.is_adaptive:
            return "the windows are of unequal size: here they must all be alike, as of output extents that divide x's"
        columns = _columns(axis)
        if columns > _MOST_COLUMNS:
            return (
                f"window {axis.window}, stride {axis.stride} and dilation {axis.dilation} need {columns} vectors "
                f"of a row at once, at most {_MOST_COLUMNS} are kept"
            )
        return None

    def workspace(self, problem: Problem, device: Device, epilogue: Epilogue | None = None) -> int:
        pooling, processor = cast(Pooling, problem), cast(CpuDevice, device)
        geometry, dtype = Geometry.of(pooling), arithmetic_of(pooling)
        if pooling.direction == "fwd" or geometry.tiles:
            return 0
        return ring_bytes(_ring(geometry, processor.isa.lanes(dtype)), dtype, device.threads)

    def estimate(self, problem: Problem, device: Device, epilogue: Epilogue | None = None) -> float:
        pooling = cast(Pooling, problem)
        lanes = cast(CpuDevice, device).isa.lanes(arithmetic_of(pooling))
        geometry = Geometry.of(pooling)
        cycles = _cycles(pooling, geometry, lanes)
        return seconds_of(problem, cast(CpuDevice, device), cycles, max(1, int(cycles / 5e4)))

    def build(self, problem: Problem, device: Device, epilogue: Epilogue | None = None) -> Kernel:
        pooling, processor = cast(Pooling, problem), cast(CpuDevice, device)
        geometry, lanes = Geometry.of(pooling), processor.isa.lanes(arithmetic_of(pooling))
        a0, a1, a2 = geometry.axes
        small = geometry.strides[1 if pooling.direction == "fwd" else 0]
        code = RowCode(
            direction=pooling.direction,
            mode=pooling.mode,
            counts_padding=pooling.count_include_pad,
            dtype=problem.dtype,
            computing=arithmetic_of(pooling),
            indices=None if pooling.indices is None else pooling.indices.dtype,
            stride=a2.stride,
            window=a2.window,
            dilation=a2.dilation,
            is_clipped=a2.is_clipped,
            row=(a2.extent, a2.out, a2.before) if a2.out <= _SHORT_ROW * lanes else None,
            unrolled=(_unrolled(a0), _unrolled(a1)),
            clips=(a0.is_clipped, a1.is_clipped),
            is_dilated=geometry.is_dilated,
            has_empty_windows=geometry.has_empty_windows,
            tiles=geometry.tiles,
            is_unit=small[4] == 1,
            streams=is_streamed(problem.output),
        )
        library = load("pooling_rows", code, processor.isa, lambda module: _trace(module, code))
        units = geometry.images * geometry.channels
        if pooling.direction == "fwd":
            units *= a0.out * a1.out
        seconds = self.estimate(problem, device) * device.threads
        tasks, per_task = split_units(units, device, seconds)
        tensors = len(geometry.strides)
        return CpuKernel(
            library, [("pooling", tasks)], tensors, device.threads if tasks > 1 else 1,
            row_slots(tensors).pack(
                geometry.values(units=units, per_task=per_task, **_ring(geometry, lanes))
            ),
        )  # fmt: skip


def _ring(geometry: Geometry, lanes: int) -> dict[str, int]:
    """Runs of the ring: a row of x, with room around it for all that the blocks of outputs reach."""
    a0, a1, a2 = geometry.axes
    blocks = -(-a2.out // lanes)
    reach = (blocks * lanes - 1) * a2.stride + a2.span
    vectors = max(reach, a2.before + a2.extent) // lanes + 2
    return ring_values(a0, a1.extent, vectors * lanes)


def _columns(axis: Axis) -> int:
    """How many vectors of a row the taps are picked from."""
    return len({tap * axis.dilation // axis.stride for tap in range(axis.window)}) * axis.stride


def _unrolled(axis: Axis) -> int:
    return axis.window if axis.window <= _MOST_UNROLLED else 0


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

"""The code of pooling vectorized over a row of outputs, in blocks of one vector: for channels-first tensors.

Lane l of a block reads the columns l * stride + t * dilation of x, t < window. Contiguous vectors of a row of x are
loaded, ``stride`` of them for every ``stride`` taps, and the taps are selected by shuffles:

    columns   0 1 2 3 4 5 6 7 | 8 9 10 11 12 13 14 15       two vectors, stride 2
    tap 0     0 2 4 6 8 10 12 14
    tap 1     1 3 5 7 9 11 13 15

Columns outside of the image are masked in the blocks that may reach them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from jitdnn.devices.cpu_kernel import Arguments
from jitdnn.kernels.cpu.microkernel.nontemporal import store_vector
from jitdnn.kernels.cpu.pooling.plan import RowPlan
from jitdnn.kernels.cpu.pooling.row_accumulator import RowAccumulator
from jitdnn.kernels.cpu.pooling.windows import INDEX, Bounds, PoolingCode, combiner, keep_better
from jitdnn.kernels.cpu.schedule.parallel import Counter
from jitdnn.problems.pooling import EMPTY_WINDOW_MAX
from jitdnn.rtcg.builder import Builder, Module, Pointer, Value
from jitdnn.rtcg.vector_math import element_of


@dataclass(frozen=True)
class LaneMask:
    """The lanes of a vector that are loaded or stored: all of them (the default), those of a mask, or none."""

    mask: Value | None = None
    is_empty: bool = False


@dataclass(frozen=True)
class Block:
    """The outputs of one block, and the masks of what it loads and stores."""

    output: int | Value  # the first one in its row
    column: int | Value  # of tap 0 of lane 0
    outputs: LaneMask
    loads: Sequence[LaneMask]
    stores: Sequence[LaneMask]


class RowBlocks(PoolingCode):
    """What both directions trace alike."""

    def __init__(self, k: Builder, arguments: Arguments, plan: RowPlan) -> None:
        super().__init__(k, arguments, plan)
        self.plan = plan
        self.index = INDEX[self.dtype]
        w = self.windows
        self.column_vectors = plan.column_vectors(self.lanes)
        # of the tensor of outputs: y forward, dy backward
        self.output_steps = w.strides[1 if plan.direction == "fwd" else 0]
        self.output_step: int | Value = 1 if plan.is_contiguous else self.output_steps[4]
        self.full_count = k.splat(
            k.convert(w["window0"] * w["window1"] * w["window2"], self.dtype), self.lanes
        )

    # ---- blocks of a row

    def _load_offsets(self) -> list[int]:
        s = self.plan.stride
        return [j * s + m * self.lanes for j in self.plan.tap_groups for m in range(s)]

    def _lanes_in(self, column: int | Value, extent: int | Value) -> LaneMask:
        """The lanes whose column is in the row, where lane 0 has ``column``."""
        k, lanes = self.k, self.lanes
        if isinstance(column, int) and isinstance(extent, int):
            if 0 <= column <= extent - lanes:
                return LaneMask()
            if column <= -lanes or column >= extent:
                return LaneMask(is_empty=True)
            above = k.mask(extent - column, lanes)
            return LaneMask(above & ~k.mask(-column, lanes) if column < 0 else above)
        mask = k.mask(extent - column, lanes)
        return LaneMask(mask & ~k.mask(0 - column, lanes) if self.plan.is_clipped else mask)

    def _masked(
        self, output: int | Value, column: int | Value, extent: int | Value, out: int | Value
    ) -> Block:
        return Block(
            output, column, self._lanes_in(output, out),
            [self._lanes_in(column + o, extent) for o in self._load_offsets()],
            [self._lanes_in(column + m * self.lanes, extent) for m in range(self.column_vectors)],
        )  # fmt: skip

    def _blocks(self) -> Iterator[Block]:
        """The blocks of a row. Those of a long row are traced twice: without masks, and with masks for its ends."""
        k, w, plan = self.k, self.windows, self.plan
        if plan.row is not None:
            extent, out, before = plan.row
            for first in range(0, out, self.lanes):
                yield self._masked(first, first * plan.stride - before, extent, out)
            return
        reach = max(self._load_offsets()[-1] + self.lanes, self.column_vectors * self.lanes)
        for output in k.range(0, w["out2"], self.lanes):
            column = output * plan.stride - w["before2"]
            fits = (column + reach <= w["extent2"]) & (output + self.lanes <= w["out2"])
            if plan.is_clipped:
                fits = fits & (column >= 0)
            with k.when(fits):
                all_lanes = [LaneMask()]
                loads, stores = all_lanes * len(self._load_offsets()), all_lanes * self.column_vectors
                yield Block(output, column, LaneMask(), loads, stores)
            with k.when(~fits):
                yield self._masked(output, column, w["extent2"], w["out2"])

    # ---- windows

    @property
    def has_full_windows(self) -> bool:
        """No window is clipped along axes 0 and 1, and its rows are few enough to be unrolled."""
        return all(self.plan.unrolled) and not any(self.plan.clips)

    def _rows(self, bounds: Sequence[Bounds]) -> Iterator[tuple[Value, Value, int | Value]]:
        """The rows of a window that are in the image: positions on axes 0 and 1, and the number of the first tap.

        Taps are numbered through the window in the order of the indices.
        """
        k, w = self.k, self.windows
        for n0, t0 in self._axis_taps(0, bounds[0]):
            for n1, t1 in self._axis_taps(1, bounds[1]):
                if isinstance(n0, int) and isinstance(n1, int):
                    yield t0, t1, (n0 * self.plan.unrolled[1] + n1) * self.plan.window
                else:
                    yield t0, t1, (k.integer(n0) * w["window1"] + n1) * self.plan.window

    def _axis_taps(self, axis: int, bounds: Bounds) -> Iterator[tuple[int | Value, Value]]:
        """The taps of a window along axis 0 or 1 that are in the image: their numbers and positions."""
        k, w, plan = self.k, self.windows, self.plan
        if not plan.unrolled[axis]:
            for t in w.taps(axis, bounds):
                yield w.tap_number(axis, bounds, t), t
            return
        for n in range(plan.unrolled[axis]):
            t = bounds.start + (w[f"dilation{axis}"] * n if plan.is_dilated else n)
            if plan.clips[axis]:
                with k.when((t >= 0) & (t < w[f"extent{axis}"])):
                    yield n, t
            else:
                yield n, t

    def _columns(self, row: Pointer, block: Block) -> list[Value]:
        """The vectors of a row that taps are selected from, with the identity of the reduction outside of the image."""
        k, columns = self.k, []
        outside = 0.0 if self.mode == "avg" else -float("inf")
        for offset, lanes in zip(self._load_offsets(), block.loads, strict=True):
            if lanes.is_empty:
                columns.append(k.constant(outside, self.dtype, self.lanes))
                continue
            value = (row + (block.column + offset)).load(0, self.lanes, lanes.mask)
            if lanes.mask is not None and self.mode == "max" and self.plan.is_clipped:
                value = k.select(lanes.mask, value, outside)
            columns.append(value)
        return columns

    def _tap(self, columns: Sequence[Value], tap: int) -> Value:
        """The elements of one tap, a lane for each output."""
        s = self.plan.stride
        group, offset = divmod(tap * self.plan.dilation, s)
        first = self.plan.tap_groups.index(group) * s
        return every_nth(self.k, columns[first : first + s], offset)

    def _count(self, bounds: Sequence[Bounds], block: Block) -> Value:
        """The divisors of the averages of a block."""
        k = self.k
        if self.has_full_windows and not self.plan.is_clipped:
            return self.full_count
        rows: Value = bounds[0].count * bounds[1].count
        if not self.plan.is_clipped:
            return k.splat(k.convert(rows * self.windows["window2"], self.dtype), self.lanes)
        columns = self.windows.bounds(2, k.iota(self.lanes) + block.output).count
        return k.convert(columns, self.dtype) * k.splat(k.convert(rows, self.dtype), self.lanes)

    # ---- maxima

    def _maxima(
        self,
        bounds: Sequence[Bounds],
        plane: Pointer,
        steps: Sequence[Value],
        block: Block,
        as_positions: bool,
    ) -> tuple[Value, Value]:
        """The first maximum of each lane, and its position in the plane or the number of its tap."""
        k, w, plan = self.k, self.windows, self.plan
        best = k.register(k.constant(-float("inf"), self.dtype, self.lanes))
        winner = k.register(self._first_tap(bounds, block, as_positions))
        # where nothing is clipped the first tap is the best so far without a comparison
        is_first = self.has_full_windows and not plan.is_clipped
        for t0, t1, number in self._rows(bounds):
            row = plane + (t0 * steps[2] + t1 * steps[3])
            columns = self._columns(row, block)
            base = number
            if as_positions:
                base = w.row_position(t0, t1) + block.column
            for tap in range(plan.window):
                value, label = self._tap(columns, tap), self._label(base, tap, as_positions)
                if is_first:
                    best.set(value)
                    winner.set(label)
                    is_first = False
                else:
                    keep_better(k, best, winner, value, label)
        return best.get(), winner.get()

    def _label(self, base: int | Value, tap: int, is_position: bool) -> Value:
        """The position or the number of tap ``tap`` of a row, in each lane; ``base`` is that of tap 0."""
        if is_position:
            return self._positions(base) + tap * self.plan.dilation
        if isinstance(base, int):
            return self.k.constant(base + tap, self.index, self.lanes)
        return self.k.splat(self.k.convert(base, self.index), self.lanes) + tap

    def _first_tap(self, bounds: Sequence[Bounds], block: Block, is_position: bool) -> Value:
        """The first tap of each lane that is in the image: the winner where all elements are -infinity."""
        k, w, plan = self.k, self.windows, self.plan
        taps = k.constant(0, self.index, self.lanes)
        if plan.is_clipped:
            columns, one = self._positions(block.column), k.constant(1, self.index, self.lanes)
            for tap in range(plan.window - 1):
                taps = taps + k.select(columns + tap * plan.dilation < 0, one, 0)
        if is_position:
            row = w.row_position(bounds[0].low, bounds[1].low)
            return self._positions(row + block.column) + taps * plan.dilation
        if self.has_full_windows:
            return taps
        n0, n1 = (w.tap_number(axis, bounds[axis], bounds[axis].low) for axis in range(2))
        first = (n0 * w["window1"] + n1) * plan.window
        return k.splat(k.convert(first, self.index), self.lanes) + taps

    def _positions(self, first: int | Value) -> Value:
        """first + lane * stride, as integers as wide as the elements."""
        k = self.k
        steps = k.convert(k.iota(self.lanes) * self.plan.stride, self.index)
        return k.splat(k.convert(k.integer(first), self.index), self.lanes) + steps


class _Forward(RowBlocks):
    """A unit is a row of outputs. The rows of a window are combined before its taps are selected."""

    def __init__(self, k: Builder, arguments: Arguments, plan: RowPlan, task: Value) -> None:
        super().__init__(k, arguments, plan)
        w = self.windows
        pointers = self.operands()
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
                if plan.indices is not None:
                    self._store_maxima(bounds, plane, targets, block)
                else:
                    count = self._count(bounds, block) if self.mode == "avg" else None
                    self._store(targets[0], self._window(bounds, plane, block), block, count)
            counter.advance()

    def _store(self, target: Pointer, result: Value, block: Block, count: Value | None = None) -> None:
        there = target + self.k.integer(block.output) * self.output_step
        if block.outputs.mask is None and self.plan.is_contiguous:
            store_vector(self.k, self.scale, there, result, self.plan.nontemporal, count)
        else:
            self.scale.store(there, self.output_step, result, block.outputs.mask, count)

    def _store_maxima(
        self, bounds: Sequence[Bounds], plane: Pointer, targets: Sequence[Pointer], block: Block
    ) -> None:
        k, step = self.k, self.windows.strides[2][4]
        best, winner = self._maxima(bounds, plane, self.windows.strides[0], block, as_positions=True)
        if self.plan.has_empty_windows:
            is_empty = self._is_empty(bounds, block)
            best = k.select(is_empty, EMPTY_WINDOW_MAX, best)
            winner = k.select(is_empty, -1, winner)
        self._store(targets[0], best, block)
        there = targets[1] + k.integer(block.output) * step
        there.store_strided(k.convert(winner, targets[1].dtype), 0, step, block.outputs.mask)

    def _window(self, bounds: Sequence[Bounds], plane: Pointer, block: Block) -> Value:
        """The maximum or the sum of each window."""
        k, combine = self.k, combiner(self.mode)
        columns = self._combined_rows(bounds, plane, block)
        result = self._tap(columns, 0)
        for tap in range(1, self.plan.window):
            result = combine(k, result, self._tap(columns, tap))
        if self.mode == "avg" or not self.plan.has_empty_windows:
            return result
        return k.select(self._is_empty(bounds, block), EMPTY_WINDOW_MAX, result)

    def _is_empty(self, bounds: Sequence[Bounds], block: Block) -> Value:
        k = self.k
        row = self.windows.bounds(2, k.iota(self.lanes) + block.output)
        return row.is_empty | k.splat(bounds[0].is_empty | bounds[1].is_empty, self.lanes)

    def _combined_rows(self, bounds: Sequence[Bounds], plane: Pointer, block: Block) -> list[Value]:
        k, w, combine = self.k, self.windows, combiner(self.mode)
        steps = w.strides[0]
        if self.has_full_windows:
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
    """A unit is a plane of dx. The gradients that a block adds to a row are added up by column, and stored once."""

    def __init__(self, k: Builder, arguments: Arguments, plan: RowPlan, task: Value, thread: Value) -> None:
        super().__init__(k, arguments, plan)
        w = self.windows
        pointers = self.operands()
        self.accumulator = None
        if not plan.is_partition:
            self.accumulator = RowAccumulator(k, w, arguments.workspace(self.dtype), thread, self.lanes)
        first = task * w["per_task"]
        counter = Counter(k, first, w.extents("images", "channels"), [s[:2] for s in w.strides])
        for _unit in k.range(first, (first + w["per_task"]).min(w["units"])):
            self.planes = [p + o.get() for p, o in zip(pointers, counter.offsets, strict=True)]
            if self.accumulator is None:
                for o0 in k.range(w["out0"]):
                    self._outputs(o0, w.bounds(0, o0))
            else:
                for o0, bounds in self.accumulator.windows_along_axis_0(self._store_row):
                    self._outputs(o0, bounds)
            counter.advance()

    def _outputs(self, o0: Value, b0: Bounds) -> None:
        """Add the gradients of all outputs at one position of axis 0 to dx."""
        dy = self.output_steps
        for o1 in self.k.range(self.windows["out1"]):
            source = self.planes[0] + (o0 * dy[2] + o1 * dy[3])
            for block in self._blocks():
                self._add_gradients((b0, self.windows.bounds(1, o1)), source, block)

    def _store_row(self, position: Value, row: Pointer) -> None:
        """Store a finished row of sums to dx."""
        k, w = self.k, self.windows
        steps, width = w.strides[-1], w["extent2"]
        full = (width // self.lanes) * self.lanes
        for t1 in k.range(w["extent1"]):
            source = row + (t1 * w["pitch"] + w["before2"])
            target = self.planes[-1] + (position * steps[2] + t1 * steps[3])
            for c in k.range(0, full, self.lanes):
                value = (source + c).load(0, self.lanes)
                store_vector(k, self.scale, target + c, value, self.plan.nontemporal)
            with k.when(full < width):
                value = (source + full).load(0, self.lanes)
                self.scale.store(target + full, 1, value, k.mask(width - full, self.lanes))

    def _add_gradients(self, bounds: Sequence[Bounds], source: Pointer, block: Block) -> None:
        """Add the gradients of the outputs of one block to dx."""
        k, plan, steps = self.k, self.plan, self.windows.strides
        there = source + k.integer(block.output) * self.output_step
        dy = there.load_strided(0, self.output_step, self.lanes, block.outputs.mask)
        if self.mode == "avg":
            gradients = self._by_column([dy / self._count(bounds, block)] * plan.window)
            for t0, t1, _ in self._rows(bounds):
                self._add_row(t0, t1, block, gradients)
            return
        _, winners = self._maxima(bounds, self.planes[1], steps[1], block, as_positions=False)
        for t0, t1, number in self._rows(bounds):
            labels = [self._label(number, tap, is_position=False) for tap in range(plan.window)]
            taps = [k.select(winners == label, dy, 0.0) for label in labels]
            self._add_row(t0, t1, block, self._by_column(taps))

    def _add_row(self, t0: Value, t1: Value, block: Block, gradients: Sequence[Value]) -> None:
        """Add vectors of gradients to a row of dx, from the first column of a block on."""
        w = self.windows
        if self.accumulator is not None:
            # columns of padding around each row receive the gradients of elements outside of the image
            row = self.accumulator.row(t0) + (t1 * w["pitch"] + w["before2"] + block.column)
            for m, value in enumerate(gradients):
                there = row + m * self.lanes
                there.store(there.load(0, self.lanes) + value)
            return
        steps = w.strides[-1]
        row = self.planes[-1] + (t0 * steps[2] + t1 * steps[3] + block.column)
        for m, (value, lanes) in enumerate(zip(gradients, block.stores, strict=True)):
            if not lanes.is_empty:
                self.scale.store(row + m * self.lanes, 1, value, lanes.mask)

    def _by_column(self, taps: Sequence[Value]) -> list[Value]:
        """The gradients of each tap's lanes, added up as vectors over the columns of a row."""
        return [sum_of_columns(self.k, taps, self.plan, m) for m in range(self.column_vectors)]


def every_nth(k: Builder, vectors: Sequence[Value], first: int) -> Value:
    """Every len(vectors)-th lane of the concatenated vectors, from lane ``first`` on."""
    stride, lanes, result = len(vectors), vectors[0].lanes, vectors[0]
    if stride == 1:
        return result
    wanted = [first + lane * stride for lane in range(lanes)]
    for m in range(1, stride):
        current = [source if m == 1 else lane for lane, source in enumerate(wanted)]
        pattern = [
            lanes + source - m * lanes if m * lanes <= source < (m + 1) * lanes
            else (old if source < m * lanes else 0)
            for old, source in zip(current, wanted, strict=True)
        ]  # fmt: skip
        result = k.shuffle(result, vectors[m], pattern)
    return result


def sum_of_columns(k: Builder, taps: Sequence[Value], plan: RowPlan, vector: int) -> Value:
    """Vector ``vector`` of the columns, where lane l of tap t belongs to column l * stride + t * dilation.

    Two taps that have no column in common are merged by one shuffle.
    """
    lanes = taps[0].lanes
    zero = k.constant(0.0, element_of(taps[0]), lanes)
    parts: list[tuple[Value, list[int | None]]] = []
    for t, tap in enumerate(taps):
        quotients = [divmod(vector * lanes + lane - t * plan.dilation, plan.stride) for lane in range(lanes)]
        sources = [q if r == 0 and 0 <= q < lanes else None for q, r in quotients]
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


def trace(module: Module, plan: RowPlan) -> None:
    """Trace the task "pooling"."""
    with module.task("pooling") as (k, args, task, thread):
        arguments = Arguments(k, args, plan.tensors)
        if plan.direction == "fwd":
            _Forward(k, arguments, plan, task)
        else:
            _Backward(k, arguments, plan, task, thread)

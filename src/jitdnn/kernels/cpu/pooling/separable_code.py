"""The code of pooling by one axis after the other (drawn in separable_plan.py)."""

from __future__ import annotations

from collections.abc import Sequence

from jitdnn.devices.cpu_kernel import Arguments
from jitdnn.kernels.cpu.microkernel.nontemporal import store_vector
from jitdnn.kernels.cpu.microkernel.scale import Scale
from jitdnn.kernels.cpu.pooling.geometry import Axis
from jitdnn.kernels.cpu.pooling.separable_plan import SeparablePlan
from jitdnn.kernels.cpu.pooling.windows import combiner
from jitdnn.kernels.cpu.schedule.offsets import split_index
from jitdnn.rtcg.builder import Builder, Module, Pointer, Register, Value

_UNROLL = 2


def trace(module: Module, plan: SeparablePlan) -> None:
    """Trace the task "pooling"; the kernel's first extra is the number of units of a task."""
    with module.task("pooling") as (k, args, task, thread):
        arguments = Arguments(k, args, 2)
        code = _Code(k, arguments, plan, arguments.workspace(plan.computing) + thread * plan.thread_elements)
        units, per_task = plan.images * plan.channels * plan.blocks, arguments.extra(0)
        first = task * per_task
        for unit in k.range(first, (first + per_task).min(units)):
            image, channel, block = split_index(unit, (plan.images, plan.channels, plan.blocks))
            x = code.x + (image * plan.x[0] + channel * plan.x[1])
            y = code.y + (image * plan.y[0] + channel * plan.y[1])
            code.unit(x, y, block * plan.block)


class _Code:
    """Tracing a unit."""

    def __init__(self, k: Builder, arguments: Arguments, plan: SeparablePlan, memory: Pointer) -> None:
        self.k, self.plan, self.lanes = k, plan, plan.lanes
        self.scale = Scale(k, arguments, plan.computing)
        self.combine = combiner(plan.mode)
        self.x, self.y = (arguments.pointer(t, plan.dtype).as_real(plan.computing) for t in range(2))
        self.buffer = memory
        self.outside = k.constant(0.0 if plan.mode == "avg" else -float("inf"), plan.computing, self.lanes)
        # what the passes read behind the last row is not used, but it must be numbers of this task
        for i in k.range(plan.rows * plan.pitch, plan.buffer_elements - self.lanes, self.lanes):
            self.buffer.store(self.outside, i)
        self.blank = memory + plan.buffer_elements
        for i in k.range(0, plan.row_elements, self.lanes):
            self.blank.store(self.outside, i)
        self.counts = self.blank + plan.row_elements
        for i in k.range(0, plan.count_elements, self.lanes):
            columns = _count(plan.axes[1], k.iota(self.lanes) + i, plan.counts_padding)
            self.counts.store(k.convert(columns, plan.computing), i)

    def unit(self, x: Pointer, y: Pointer, first: Value) -> None:
        """A block of rows of outputs, from row ``first`` on."""
        k, plan, down = self.k, self.plan, self.plan.axes[0]
        count = (k.integer(down.out) - first).min(plan.block)
        if plan.is_direct:
            self._rows(
                x, first * down.stride - down.before, count, down.stride, plan.down[0] if plan.down else ()
            )
        else:
            rows = (count - 1) * down.stride + down.span
            self._rows(x, first * down.stride - down.before, rows, 1, ())
            for offsets in plan.down[:-1]:
                rows = rows - offsets[-1]
                self._pass(rows * plan.pitch, [n * plan.pitch for n in offsets])
            self._down(count, plan.down[-1])
        for offsets in plan.along[:-1]:
            self._pass(count * plan.pitch, offsets)
        self._last(y, first, count)

    # ---- down the columns

    def _rows(self, x: Pointer, first: Value, rows: Value, step: int, taps: Sequence[int]) -> None:
        """Rows of the buffer: of x from row ``first`` on, ``step`` apart, each combined with those ``taps`` behind."""
        k, plan, (down, along) = self.k, self.plan, self.plan.axes
        is_clipped = down.is_clipped or down.reach > down.extent or not plan.is_direct
        behind = plan.pitch - along.before - along.extent
        for row in k.range(rows):
            target = self.buffer + row * plan.pitch
            # vectors may reach into the next row, which is written later
            for i in range(0, along.before, self.lanes):
                target.store(self.outside, i)
            sources: list[tuple[Pointer, Value | None]] = []
            for tap in (0, *taps):
                at = first + row * step + tap
                source = x + at * plan.x[2]
                if not is_clipped:
                    sources.append((source, None))
                else:
                    sources.append((source, (at >= 0) & (at < down.extent)))
            if plan.is_direct and plan.dtype == plan.computing:
                # a row outside of the image is one that combines with nothing
                pointers = [
                    s
                    if inside is None
                    else Pointer(k, k.b.select(inside.v, s.v, self.blank.v), s.dtype, s.real)
                    for s, inside in sources
                ]
                self._combined_row(target, pointers)
            else:
                self._guarded_row(target, sources)
            for i in range(0, behind, self.lanes):
                target.store(self.outside, along.before + along.extent + i)

    def _vectors(self, extent: int) -> Sequence[tuple[int, int]]:
        """The first element and the number of elements of each vector of a row."""
        return [(i, min(self.lanes, extent - i)) for i in range(0, extent, self.lanes)]

    def _combined_row(self, target: Pointer, sources: Sequence[Pointer]) -> None:
        k, along = self.k, self.plan.axes[1]
        whole = along.extent - along.extent % self.lanes

        def vector(i: Value | int, mask: Value | None) -> None:
            total = sources[0].load(i, self.lanes, mask)
            for source in sources[1:]:
                total = self.combine(k, total, source.load(i, self.lanes, mask))
            if mask is not None:
                total = k.select(mask, total, self.outside)
            target.store(total, i + along.before)

        for i in k.range(0, whole, self.lanes):
            vector(i, None)
        if whole < along.extent:
            vector(whole, k.mask(along.extent - whole, self.lanes))

    def _guarded_row(self, target: Pointer, sources: Sequence[tuple[Pointer, Value | None]]) -> None:
        """The same with a test for each row, where there is no row of the identity to read."""
        k, along = self.k, self.plan.axes[1]
        for i, count in self._vectors(along.extent):
            mask = None if count == self.lanes else k.mask(count, self.lanes)
            total = k.register(self.outside)
            for source, inside in sources:
                if inside is None:
                    self._add(total, source, i, mask)
                else:
                    with k.when(inside):
                        self._add(total, source, i, mask)
            target.store(total.get(), along.before + i)

    def _add(self, total: Register, source: Pointer, i: int, mask: Value | None) -> None:
        k = self.k
        value = source.load(i, self.lanes, mask)
        if mask is not None:
            value = k.select(mask, value, self.outside)
        total.set(self.combine(k, total.get(), value))

    def _down(self, count: Value, offsets: Sequence[int]) -> None:
        """The last pass down the columns, which leaves out the rows between the stride's."""
        k, plan, stride = self.k, self.plan, self.plan.axes[0].stride
        if stride == 1:
            self._pass(count * plan.pitch, [n * plan.pitch for n in offsets])
            return
        for row in k.range(count):
            source, target = self.buffer + row * (stride * plan.pitch), self.buffer + row * plan.pitch
            for i in k.range(0, plan.pitch, self.lanes):
                value = source.load(i, self.lanes)
                for n in offsets:
                    value = self.combine(k, value, source.load(i + n * plan.pitch, self.lanes))
                # the last vector ends where the row does: the next row is read only later
                target.store(value, i, k.mask(plan.pitch - i, self.lanes))

    def _pass(self, length: Value, offsets: Sequence[int]) -> None:
        """Combine each element with those at ``offsets`` behind it, in place."""
        k, wide = self.k, self.lanes * _UNROLL

        def vectors(i: Value, count: int) -> None:
            values = []
            for part in range(count):
                value = self.buffer.load(i + part * self.lanes, self.lanes)
                for n in offsets:
                    value = self.combine(k, value, self.buffer.load(i + (n + part * self.lanes), self.lanes))
                values.append(value)
            for part, value in enumerate(values):
                self.buffer.store(value, i + part * self.lanes)

        whole = length // wide * wide
        for i in k.range(0, whole, wide):
            vectors(i, _UNROLL)
        for i in k.range(whole, length, self.lanes):
            vectors(i, 1)

    # ---- along the rows

    def _last(self, y: Pointer, first: Value, count: Value) -> None:
        """The last pass along the rows, to y."""
        k, plan, (down, along) = self.k, self.plan, self.plan.axes
        whole = along.out - along.out % self.lanes
        for row in k.range(count):
            source, target = self.buffer + row * plan.pitch, y + (first + row) * plan.y[2]
            rows = None
            if plan.mode == "avg":
                counted = _count(down, first + row, plan.counts_padding)
                rows = k.splat(k.convert(counted, plan.computing), self.lanes)
            for i in k.range(0, whole, self.lanes):
                self._result(source + i * along.stride, target + i * plan.y[3], i, rows, None)
            if whole < along.out:
                mask = k.mask(along.out - whole, self.lanes)
                self._result(
                    source + whole * along.stride, target + whole * plan.y[3], k.integer(whole), rows, mask
                )

    def _result(
        self, source: Pointer, target: Pointer, column: Value, rows: Value | None, mask: Value | None
    ) -> None:
        """A vector of results; ``rows`` is how many rows each window counts, for an average."""
        plan, stride = self.plan, self.plan.axes[1].stride
        value = source.load_strided(0, stride, self.lanes)
        for n in plan.along[-1] if plan.along else ():
            value = self.combine(self.k, value, source.load_strided(n, stride, self.lanes))
        divisor = None if rows is None else rows * self.counts.load(column, self.lanes)
        if mask is None and plan.y[3] == 1:
            store_vector(self.k, self.scale, target, value, plan.streams, divisor)
        else:
            self.scale.store(target, plan.y[3], value, mask, divisor)


def _count(axis: Axis, output: Value, counts_padding: bool) -> Value:
    """How many elements of an axis the window of an output counts, at least 1; of a vector of outputs for each lane."""
    k, lanes = output.k, output.lanes
    start = output * axis.stride - axis.before

    def taps(length: Value) -> Value:
        return (length.max(0) + (axis.dilation - 1)) // axis.dilation if axis.dilation > 1 else length.max(0)

    def splat(number: int) -> Value:
        return k.splat(k.integer(number), lanes) if lanes > 1 else k.integer(number)

    end = start + axis.span
    if counts_padding:
        return taps(end.min(splat(axis.extent + axis.after)) - start).max(1)
    low = start + taps(-start) * axis.dilation
    return taps(end.min(splat(axis.extent)) - low).max(1)

"""The code of pooling vectorized over channels: every lane has the same window, and only the last vector is masked.

    forward    unit = one row of outputs of a group of channels:   y[n, o0, o1, :, group]
    backward   unit = one plane of a group of channels:            dx[n, :, :, :, group]

Backward, overlapping windows are added up in a ``RowAccumulator``. Without workspace they are added up in dx itself,
whose rows are set to beta * dx just before the first window that reaches them. The gradient of a maximum finds the
maximum in x again, and keeps its position in a register of each lane.

Channels that are neighbours in memory are loaded as vectors; at any other distance they are gathered, which is slow,
but accepts every layout.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from jitdnn.devices.cpu_kernel import Arguments
from jitdnn.kernels.cpu.microkernel.nontemporal import store_vector
from jitdnn.kernels.cpu.pooling.plan import ChannelPlan
from jitdnn.kernels.cpu.pooling.row_accumulator import RowAccumulator
from jitdnn.kernels.cpu.pooling.windows import (
    INDEX,
    Bounds,
    PoolingCode,
    any_empty,
    combiner,
    count,
    initial,
    keep_better,
)
from jitdnn.kernels.cpu.schedule.parallel import Counter
from jitdnn.problems.pooling import EMPTY_WINDOW_MAX
from jitdnn.rtcg.builder import Builder, Module, Pointer, Value

_PREFETCH_WINDOWS = 1  # from the window that is read to the one that is prefetched, where x fits no cache

_Masks = list[Value | None]


class _ChannelCode(PoolingCode):
    """Traces one kernel."""

    def __init__(
        self, k: Builder, arguments: Arguments, plan: ChannelPlan, task: Value, thread: Value
    ) -> None:
        super().__init__(k, arguments, plan)
        self.plan = plan
        self.pointers = self.operands()
        self.width = self.lanes * plan.vectors
        self.accumulator = None
        if plan.accumulates_rows:
            memory = arguments.workspace(self.dtype)
            self.accumulator = RowAccumulator(k, self.windows, memory, thread, self.lanes)
        self.channel_steps: list[int | Value] = [
            1 if contiguous else self.windows.strides[t][1] for t, contiguous in enumerate(plan.is_contiguous)
        ]
        first = task * self.windows["per_task"]
        last = (first + self.windows["per_task"]).min(self.windows["units"])
        if plan.direction == "fwd":
            self._forward(first, last)
        else:
            self._backward(first, last)

    def _channel_vectors(
        self, channels: Value, pointers: Sequence[Pointer]
    ) -> Iterator[tuple[list[Pointer], _Masks]]:
        """Loops over the vectors of a group: pointers to them, and the mask of each vector."""
        k, wide = self.k, self.width
        if self.plan.has_tail:
            full: _Masks = [None] * (self.plan.vectors - 1)
            yield list(pointers), [*full, k.mask(channels - (wide - self.lanes), self.lanes)]
            return
        full_groups = (channels // wide) * wide
        for c in k.range(0, full_groups, wide):
            yield self._moved(pointers, c), [None] * self.plan.vectors
        for c in k.range(full_groups, channels, self.lanes):
            yield self._moved(pointers, c), [k.mask(channels - c, self.lanes)]

    def _moved(self, pointers: Sequence[Pointer], c: Value) -> list[Pointer]:
        return [p + c * step for p, step in zip(pointers, self.channel_steps, strict=True)]

    def _load(self, tensor: int, pointer: Pointer, vector: int, mask: Value | None) -> Value:
        step = self.channel_steps[tensor]
        return pointer.load_strided(step * (vector * self.lanes), step, self.lanes, mask)

    # ---- forward

    def _forward(self, first: Value, last: Value) -> None:
        k, w = self.k, self.windows
        zero = k.integer(0)
        x, *results = w.strides
        counter = Counter(
            k, first, w.extents("images", "out0", "out1", "groups"),
            [[x[0], zero, zero, x[1] * w["group"]], *([y[0], y[2], y[3], y[1] * w["group"]] for y in results)],
        )  # fmt: skip
        for _unit in k.range(first, last):
            inputs, *outputs = (p + o.get() for p, o in zip(self.pointers, counter.offsets, strict=True))
            _, o0, o1, group = (digit.get() for digit in counter.digits)
            channels = (w["channels"] - group * w["group"]).min(w["group"])
            b0, b1 = w.bounds(0, o0), w.bounds(1, o1)
            for o2 in k.range(w["out2"]):
                bounds = (b0, b1, w.bounds(2, o2))
                here = [inputs, *(p + o2 * y[4] for p, y in zip(outputs, results, strict=True))]
                for (source, *targets), masks in self._channel_vectors(channels, here):
                    if self.plan.indices is None:
                        self._pixel(bounds, source, targets[0], masks)
                    else:
                        self._pixel_with_indices(bounds, source, targets, masks)
            counter.advance()

    def _pixel(self, bounds: Sequence[Bounds], inputs: Pointer, target: Pointer, masks: _Masks) -> None:
        k, combine = self.k, combiner(self.mode)
        is_empty = any_empty(bounds)
        start = initial(k, self.mode, is_empty, self.dtype, self.lanes)
        totals = [k.register(start) for _ in masks]
        distance = self._prefetch_distance(0)
        for (here,), _ in self._taps(bounds, [(0, inputs)]):
            for v, (total, mask) in enumerate(zip(totals, masks, strict=True)):
                if self.plan.prefetches:
                    here.prefetch(distance + v * self.lanes)
                total.set(combine(k, total.get(), self._load(0, here, v, mask)))
        terms = count(k, bounds, self.dtype)
        divisor = k.splat(terms, self.lanes) if self.mode == "avg" else None
        for v, (total, mask) in enumerate(zip(totals, masks, strict=True)):
            self._store(1, target, v, total.get(), mask, divisor)

    def _prefetch_distance(self, tensor: int) -> Value:
        """Elements of x from a window to the one that is prefetched."""
        return self.windows["stride2"] * self.windows.strides[tensor][4] * _PREFETCH_WINDOWS

    def _pixel_with_indices(
        self, bounds: Sequence[Bounds], inputs: Pointer, targets: Sequence[Pointer], masks: _Masks
    ) -> None:
        k, step = self.k, self.channel_steps[2]
        is_empty = k.splat(any_empty(bounds), self.lanes)
        maxima = self._maxima(bounds, inputs, masks, tensor=0)
        for v, ((best, position), mask) in enumerate(zip(maxima, masks, strict=True)):
            self._store(1, targets[0], v, k.select(is_empty, EMPTY_WINDOW_MAX, best), mask)
            index = k.convert(k.select(is_empty, -1, position), targets[1].dtype)
            targets[1].store_strided(index, step * (v * self.lanes), step, mask)

    def _store(
        self, tensor: int, target: Pointer, vector: int, result: Value, mask: Value | None,
        divisor: Value | None = None,
    ) -> None:  # fmt: skip
        """Scale a vector of channels, divided by ``divisor``, into a result."""
        step = self.channel_steps[tensor]
        there = target + step * (vector * self.lanes)
        if mask is None and self.plan.is_contiguous[tensor]:
            store_vector(self.k, self.scale, there, result, self.plan.nontemporal, divisor)
        else:
            self.scale.store(there, step, result, mask, divisor)

    def _taps(
        self, bounds: Sequence[Bounds], tensors: Sequence[tuple[int, Pointer]]
    ) -> Iterator[tuple[list[Pointer], Value]]:
        """Loops over the elements of a window: pointers into input-shaped tensors, and the position."""
        w = self.windows
        for at1, row in self.window_rows(bounds, tensors):
            for t2 in w.taps(2, bounds[2]):
                at2 = [p + t2 * w.strides[t][4] for (t, _), p in zip(tensors, at1, strict=True)]
                yield at2, row + t2

    def _targets(self, bounds: Sequence[Bounds], gradient: Pointer) -> Iterator[tuple[Pointer, Value]]:
        """Loops over the elements of a window: pointers to their gradients, and the position."""
        w, steps = self.windows, self.windows.strides[-1]
        for t0 in w.taps(0, bounds[0]):
            at0 = gradient + t0 * steps[2] if self.accumulator is None else self.accumulator.row(t0)
            for t1 in w.taps(1, bounds[1]):
                at1 = at0 + t1 * (steps[3] if self.accumulator is None else w["pitch"])
                row = w.row_position(t0, t1)
                for t2 in w.taps(2, bounds[2]):
                    yield at1 + t2 * (steps[4] if self.accumulator is None else self.width), row + t2

    # ---- backward

    def _backward(self, first: Value, last: Value) -> None:
        k, w = self.k, self.windows
        counter = Counter(
            k, first, w.extents("images", "groups"), [[s[0], s[1] * w["group"]] for s in w.strides]
        )
        for _unit in k.range(first, last):
            planes = [p + o.get() for p, o in zip(self.pointers, counter.offsets, strict=True)]
            channels = (w["channels"] - counter.digits[1].get() * w["group"]).min(w["group"])
            for here, masks in self._channel_vectors(channels, planes):
                self._plane(here, masks)
            counter.advance()

    def _plane(self, planes: Sequence[Pointer], masks: _Masks) -> None:
        k, w = self.k, self.windows
        if self.accumulator is not None:
            windows = self.accumulator.windows_along_axis_0(
                lambda t0, row: self._store_row(planes[-1], t0, row, masks)
            )
            for o0, b0 in windows:
                self._windows_of(o0, b0, planes, masks)
            return
        started = k.register(k.integer(0))  # rows of dx that hold beta * dx already
        for o0 in k.range(w["out0"]):
            b0 = w.bounds(0, o0)
            if not self.plan.is_partition:
                self._start_rows(planes[-1], started.get(), b0.high, masks)
                started.set(started.get().max(b0.high))
            self._windows_of(o0, b0, planes, masks)
        if not self.plan.is_partition:
            self._start_rows(planes[-1], started.get(), w["extent0"], masks)

    def _windows_of(self, o0: Value, b0: Bounds, planes: Sequence[Pointer], masks: _Masks) -> None:
        k, w, dy = self.k, self.windows, self.windows.strides[0]
        for o1 in k.range(w["out1"]):
            b1 = w.bounds(1, o1)
            for o2 in k.range(w["out2"]):
                source = planes[0] + (o0 * dy[2] + o1 * dy[3] + o2 * dy[4])
                self._window((b0, b1, w.bounds(2, o2)), source, planes, masks)

    def _store_row(self, gradient: Pointer, position: Value, row: Pointer, masks: _Masks) -> None:
        """Store a finished row of sums to dx."""
        k, w = self.k, self.windows
        steps, last = w.strides[-1], self.plan.tensors - 1
        for t1 in k.range(w["extent1"]):
            source, target = row + t1 * w["pitch"], gradient + (position * steps[2] + t1 * steps[3])
            for t2 in k.range(w["extent2"]):
                for v, mask in enumerate(masks):
                    value = (source + t2 * self.width).load(v * self.lanes, self.lanes)
                    self._store(last, target + t2 * steps[4], v, value, mask)

    def _start_rows(self, gradient: Pointer, first: Value, last: Value, masks: _Masks) -> None:
        """Set rows of dx to beta * dx."""
        k, w = self.k, self.windows
        steps, step = w.strides[-1], self.channel_steps[-1]
        for t0 in k.range(first, last):
            for t1 in k.range(w["extent1"]):
                row = gradient + (t0 * steps[2] + t1 * steps[3])
                for t2 in k.range(w["extent2"]):
                    for v, mask in enumerate(masks):
                        here = row + (t2 * steps[4] + step * (v * self.lanes))
                        self.scale.start(here, step, self.lanes, mask)

    def _window(
        self,
        bounds: Sequence[Bounds],
        source: Pointer,
        planes: Sequence[Pointer],
        masks: _Masks,
    ) -> None:
        """Add the gradient of a vector of outputs to dx."""
        k, last = self.k, self.plan.tensors - 1
        gradients = [self._load(0, source, v, mask) for v, mask in enumerate(masks)]
        if not self.plan.is_partition and self.accumulator is None:
            gradients = [gradient * k.splat(self.scale.alpha, self.lanes) for gradient in gradients]
        if self.mode == "avg":
            terms = k.splat(count(k, bounds, self.dtype), self.lanes)
            gradients = [gradient / terms for gradient in gradients]
            winners = None
        else:
            winners = [winner for _, winner in self._maxima(bounds, planes[1], masks, tensor=1)]
        step = self.channel_steps[last]
        for target, position in self._targets(bounds, planes[last]):
            here = None if winners is None else self._position(position)
            for v, (gradient, mask) in enumerate(zip(gradients, masks, strict=True)):
                added = gradient
                if winners is not None and here is not None:
                    added = k.select(winners[v] == here, gradient, 0.0)
                if self.plan.is_partition:
                    self._store(last, target, v, added, mask)
                    continue
                if self.accumulator is not None:
                    sums = target + v * self.lanes
                    sums.store(sums.load(0, self.lanes) + added)
                else:
                    there = target + step * (v * self.lanes)
                    old = there.load_strided(0, step, self.lanes, mask)
                    there.store_strided(old + added, 0, step, mask)

    def _maxima(
        self, bounds: Sequence[Bounds], plane: Pointer, masks: _Masks, tensor: int
    ) -> list[tuple[Value, Value]]:
        """The first maximum in each lane, and its position."""
        k, w = self.k, self.windows
        lowest = k.constant(-float("inf"), self.dtype, self.lanes)
        first = w.row_position(bounds[0].low, bounds[1].low) + bounds[2].low
        best = [k.register(lowest) for _ in masks]
        positions = [k.register(self._position(first)) for _ in masks]
        distance = self._prefetch_distance(tensor)
        for (here,), position in self._taps(bounds, [(tensor, plane)]):
            at = self._position(position)
            for v, mask in enumerate(masks):
                if self.plan.prefetches:
                    here.prefetch(distance + v * self.lanes)
                value = self._load(tensor, here, v, mask)
                keep_better(k, best[v], positions[v], value, at)
        return [(b.get(), p.get()) for b, p in zip(best, positions, strict=True)]

    def _position(self, position: Value) -> Value:
        """A position in every lane, as an integer as wide as the elements."""
        return self.k.splat(self.k.convert(position, INDEX[self.dtype]), self.lanes)


def trace(module: Module, plan: ChannelPlan) -> None:
    """Trace the task "pooling"."""
    with module.task("pooling") as (k, args, task, thread):
        _ChannelCode(k, Arguments(k, args, plan.tensors), plan, task, thread)

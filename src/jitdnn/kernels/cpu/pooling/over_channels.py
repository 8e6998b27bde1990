"""Pooling with vectors along the channels: every lane has the same window, so nothing is masked but the tail.

    forward    unit = one row of outputs of a group of channels:   y[n, o0, o1, :, group]
    backward   unit = one plane of a group of channels:            dx[n, :, :, :, group]

A unit of the backward pass owns its plane: windows that overlap add up in one fixed order, in a ring of rows
(``pooling_ring``). Without workspace they add up in dx itself, whose rows are set to beta * dx just before the first
window that reaches them. The gradient of a maximum looks for the place of the maximum again, in x, and keeps its
position in a register of each lane.

Channels that lie next to each other are loaded as vectors ("channels"); at any other distance they are
gathered ("strided"), which is slow, and takes everything.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import cast

from jitdnn.devices.cpu import Arguments, CpuDevice, CpuKernel
from jitdnn.kernels.algorithm import Device, Epilogue, Kernel
from jitdnn.kernels.cpu.microkernel.nontemporal import STREAM_BYTES, is_streamed, store_vector
from jitdnn.kernels.cpu.microkernel.scale import Scale
from jitdnn.kernels.cpu.pooling.geometry import (
    INDEX,
    Bounds,
    Geometry,
    PoolingAlgorithm,
    Windows,
    arithmetic_of,
    combiner,
    initial,
    is_better,
)
from jitdnn.kernels.cpu.pooling.row_accumulator import RING_SLOTS, Ring, ring_bytes, ring_values
from jitdnn.kernels.cpu.schedule.cost import seconds_of
from jitdnn.kernels.cpu.schedule.parallel import Counter, Slots, split_units
from jitdnn.problems.pooling import EMPTY_WINDOW_MAX, Pooling
from jitdnn.problems.problem import Problem
from jitdnn.rtcg.builder import Module, Pointer, Value
from jitdnn.rtcg.compile import load
from jitdnn.rtcg.isa import HALVES

_AHEAD = 1  # windows from one that is read to the one that is asked for, where x fits no cache
_MOST_VECTORS = {False: 8, True: 6}  # of channels at once; one register each, three where places are kept


_Masks = list[Value | None]


@dataclass(frozen=True)
class _Code:
    """What is compiled in; everything else is an argument."""

    direction: str
    mode: str
    counts_padding: bool
    dtype: str
    computing: str  # the type of sums and maxima
    indices: str | None  # the type of the indices that the maximum gives too
    vectors: int  # of channels that go through a window together
    has_tail: bool  # the last of them is not full, and they are all channels of the group
    tiles: bool  # every element of x belongs to exactly one window
    has_ring: bool
    streams: bool
    asks_ahead: bool
    is_unit: tuple[bool, ...]  # for each tensor: neighbouring channels are neighbours in memory
    is_dilated: bool
    is_adaptive: bool


class _Channels:
    """Traces one kernel."""

    def __init__(self, module: Module, code: _Code) -> None:
        self.code, self.dtype, self.mode = code, code.computing, code.mode
        self.tensors = len(code.is_unit)
        with module.task("pooling") as (k, args, task, thread):
            self.k, self.lanes = k, k.lanes(self.dtype)
            arguments = Arguments(k, args, self.tensors)
            slots = _slots(self.tensors)
            self.windows = Windows(
                k, arguments, slots, self.tensors, code.counts_padding, code.is_dilated, code.is_adaptive
            )
            self.scale = Scale(k, arguments, self.dtype)
            real = self.tensors if code.indices is None else 2
            self.pointers = [arguments.pointer(t, code.dtype).as_real(self.dtype) for t in range(real)]
            if code.indices is not None:
                self.pointers.append(arguments.pointer(2, code.indices))
            self.width = self.lanes * code.vectors
            self.ring = None
            if code.has_ring:
                self.ring = Ring(k, self.windows, arguments.workspace(self.dtype), thread, self.lanes)
            self.channel_steps: list[int | Value] = [
                1 if unit else self.windows.strides[t][1] for t, unit in enumerate(code.is_unit)
            ]
            first = task * self.windows["per_task"]
            last = (first + self.windows["per_task"]).min(self.windows["units"])
            if code.direction == "fwd":
                self._forward(first, last)
            else:
                self._backward(first, last)

    def _each(self, channels: Value, pointers: Sequence[Pointer]) -> Iterator[tuple[list[Pointer], _Masks]]:
        """Loops over the vectors of a group: the pointers moved along, and the mask of each vector."""
        k, wide = self.k, self.lanes * self.code.vectors
        if self.code.has_tail:
            full: _Masks = [None] * (self.code.vectors - 1)
            yield list(pointers), [*full, k.mask(channels - (wide - self.lanes), self.lanes)]
            return
        main = (channels // wide) * wide
        for c in k.range(0, main, wide):
            yield self._moved(pointers, c), [None] * self.code.vectors
        for c in k.range(main, channels, self.lanes):
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
                for (source, *targets), masks in self._each(channels, here):
                    if self.code.indices is None:
                        self._pixel(bounds, source, targets[0], masks)
                    else:
                        self._pixel_with_indices(bounds, source, targets, masks)
            counter.advance()

    def _pixel(self, bounds: Sequence[Bounds], inputs: Pointer, target: Pointer, masks: _Masks) -> None:
        k, combine = self.k, combiner(self.mode)
        is_empty = bounds[0].is_empty | bounds[1].is_empty | bounds[2].is_empty
        start = initial(k, self.mode, is_empty, self.dtype, self.lanes)
        totals = [k.register(start) for _ in masks]
        later = self._later(0)
        for (here,), _ in self._taps(bounds, [(0, inputs)]):
            for v, (total, mask) in enumerate(zip(totals, masks, strict=True)):
                if self.code.asks_ahead:
                    here.prefetch(later + v * self.lanes)
                total.set(combine(k, total.get(), self._load(0, here, v, mask)))
        count = k.convert(bounds[0].count * bounds[1].count * bounds[2].count, self.dtype)
        divisor = k.splat(count, self.lanes) if self.mode == "avg" else None
        for v, (total, mask) in enumerate(zip(totals, masks, strict=True)):
            self._store(1, target, v, total.get(), mask, divisor)

    def _later(self, tensor: int) -> Value:
        """How far the window is that is asked for, in elements of x."""
        return self.windows["stride2"] * self.windows.strides[tensor][4] * _AHEAD

    def _pixel_with_indices(
        self, bounds: Sequence[Bounds], inputs: Pointer, targets: Sequence[Pointer], masks: _Masks
    ) -> None:
        k, step = self.k, self.channel_steps[2]
        is_empty = k.splat(bounds[0].is_empty | bounds[1].is_empty | bounds[2].is_empty, self.lanes)
        maxima = self._maxima(bounds, inputs, masks, tensor=0)
        for v, ((best, place), mask) in enumerate(zip(maxima, masks, strict=True)):
            self._store(1, targets[0], v, k.select(is_empty, EMPTY_WINDOW_MAX, best), mask)
            index = k.convert(k.select(is_empty, -1, place), targets[1].dtype)
            targets[1].store_strided(index, step * (v * self.lanes), step, mask)

    def _store(
        self, tensor: int, target: Pointer, vector: int, result: Value, mask: Value | None,
        divisor: Value | None = None,
    ) -> None:  # fmt: skip
        """Scale a vector of channels, divided by ``divisor``, into a result."""
        step = self.channel_steps[tensor]
        there = target + step * (vector * self.lanes)
        if mask is None and self.code.is_unit[tensor]:
            store_vector(self.k, self.scale, there, result, self.code.streams, divisor)
        else:
            self.scale.store(there, step, result, mask, divisor)

    def _taps(
        self, bounds: Sequence[Bounds], tensors: Sequence[tuple[int, Pointer]]
    ) -> Iterator[tuple[list[Pointer], Value]]:
        """Loops over the elements of a window: pointers into input-shaped tensors, and the position."""
        w = self.windows
        for t0 in w.taps(0, bounds[0]):
            at0 = [p + t0 * w.strides[t][2] for t, p in tensors]
            for t1 in w.taps(1, bounds[1]):
                at1 = [p + t1 * w.strides[t][3] for (t, _), p in zip(tensors, at0, strict=True)]
                row = (t0 * w["extent1"] + t1) * w["extent2"]
                for t2 in w.taps(2, bounds[2]):
                    at2 = [p + t2 * w.strides[t][4] for (t, _), p in zip(tensors, at1, strict=True)]
                    yield at2, row + t2

    def _targets(self, bounds: Sequence[Bounds], gradient: Pointer) -> Iterator[tuple[Pointer, Value]]:
        """Loops over the elements of a window: where what they are given goes, and the position."""
        w, steps = self.windows, self.windows.strides[-1]
        for t0 in w.taps(0, bounds[0]):
            at0 = gradient + t0 * steps[2] if self.ring is None else self.ring.row(t0)
            for t1 in w.taps(1, bounds[1]):
                at1 = at0 + t1 * (steps[3] if self.ring is None else w["pitch"])
                row = (t0 * w["extent1"] + t1) * w["extent2"]
                for t2 in w.taps(2, bounds[2]):
                    yield at1 + t2 * (steps[4] if self.ring is None else self.width), row + t2

    # ---- backward

    def _backward(self, first: Value, last: Value) -> None:
        k, w = self.k, self.windows
        counter = Counter(
            k, first, w.extents("images", "groups"), [[s[0], s[1] * w["group"]] for s in w.strides]
        )
        for _unit in k.range(first, last):
            planes = [p + o.get() for p, o in zip(self.pointers, counter.offsets, strict=True)]
            channels = (w["channels"] - counter.digits[1].get() * w["group"]).min(w["group"])
            for here, masks in self._each(channels, planes):
                self._plane(here, masks)
            counter.advance()

    def _plane(self, planes: Sequence[Pointer], masks: _Masks) -> None:
        k, w = self.k, self.windows
        if self.ring is not None:
            self.ring.clear()
            for o0 in k.range(w["out0"] + 1):
                b0 = w.bounds(0, o0)
                self.ring.advance(o0, b0, lambda t0, row: self._write(planes[-1], t0, row, masks))
                with k.when(o0 < w["out0"]):
                    self._windows_of(o0, b0, planes, masks)
            return
        begun = k.register(k.integer(0))  # rows of dx that hold beta * dx already
        for o0 in k.range(w["out0"]):
            b0 = w.bounds(0, o0)
            if not self.code.tiles:
                self._begin(planes[-1], begun.get(), b0.high, masks)
                begun.set(begun.get().max(b0.high))
            self._windows_of(o0, b0, planes, masks)
        if not self.code.tiles:
            self._begin(planes[-1], begun.get(), w["extent0"], masks)

    def _windows_of(self, o0: Value, b0: Bounds, planes: Sequence[Pointer], masks: _Masks) -> None:
        k, w, dy = self.k, self.windows, self.windows.strides[0]
        for o1 in k.range(w["out1"]):
            b1 = w.bounds(1, o1)
            for o2 in k.range(w["out2"]):
                source = planes[0] + (o0 * dy[2] + o1 * dy[3] + o2 * dy[4])
                self._window((b0, b1, w.bounds(2, o2)), source, planes, masks)

    def _write(self, gradient: Pointer, position: Value, row: Pointer, masks: _Masks) -> None:
        """A finished row of the ring to dx."""
        k, w = self.k, self.windows
        steps, last = w.strides[-1], self.tensors - 1
        for t1 in k.range(w["extent1"]):
            source, target = row + t1 * w["pitch"], gradient + (position * steps[2] + t1 * steps[3])
            for t2 in k.range(w["extent2"]):
                for v, mask in enumerate(masks):
                    value = (source + t2 * self.width).load(v * self.lanes, self.lanes)
                    self._store(last, target + t2 * steps[4], v, value, mask)

    def _begin(self, gradient: Pointer, first: Value, last: Value, masks: _Masks) -> None:
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
        k, last = self.k, self.tensors - 1
        gradients = [self._load(0, source, v, mask) for v, mask in enumerate(masks)]
        if not self.code.tiles and self.ring is None:
            gradients = [gradient * k.splat(self.scale.alpha, self.lanes) for gradient in gradients]
        if self.mode == "avg":
            count = k.splat(
                k.convert(bounds[0].count * bounds[1].count * bounds[2].count, self.dtype), self.lanes
            )
            gradients = [gradient / count for gradient in gradients]
            places = None
        else:
            places = [place for _, place in self._maxima(bounds, planes[1], masks, tensor=1)]
        step = self.channel_steps[last]
        for target, position in self._targets(bounds, planes[last]):
            here = None if places is None else self._position(position)
            for v, (gradient, mask) in enumerate(zip(gradients, masks, strict=True)):
                added = gradient
                if places is not None and here is not None:
                    added = k.select(places[v] == here, gradient, 0.0)
                if self.code.tiles:
                    self._store(last, target, v, added, mask)
                    continue
                if self.ring is not None:
                    kept = target + v * self.lanes
                    kept.store(kept.load(0, self.lanes) + added)
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
        first = (bounds[0].low * w["extent1"] + bounds[1].low) * w["extent2"] + bounds[2].low
        best = [k.register(lowest) for _ in masks]
        place = [k.register(self._position(first)) for _ in masks]
        later = self._later(tensor)
        for (here,), position in self._taps(bounds, [(tensor, plane)]):
            at = self._position(position)
            for v, mask in enumerate(masks):
                if self.code.asks_ahead:
                    here.prefetch(later + v * self.lanes)
                value = self._load(tensor, here, v, mask)
                wins = is_better(value, best[v].get())
                best[v].set(k.select(wins, value, best[v].get()))
                place[v].set(k.select(wins, at, place[v].get()))
        return [(b.get(), p.get()) for b, p in zip(best, place, strict=True)]

    def _position(self, position: Value) -> Value:
        return self.k.splat(self.k.convert(position, INDEX[self.dtype]), self.lanes)


def _trace(module: Module, code: _Code) -> None:
    _Channels(module, code)


def _cut(channels: int, lanes: int, most: int) -> tuple[int, bool]:
    """How many vectors of channels to take at once, and whether the last one of them is not full."""
    vectors = -(-channels // lanes)
    if vectors <= most:
        return vectors, channels % lanes != 0
    return min(range(most, most // 2, -1), key=lambda v: vectors % v), False


def _slots(tensors: int) -> Slots:
    return Geometry.slots(tensors, "units", "per_task", "group", "groups", *RING_SLOTS)


class PoolingChannels(PoolingAlgorithm):
    """Vectors along channels that lie next to each other: the way for channels-last tensors."""

    name = "channels"

    def refuse_geometry(self, problem: Pooling, geometry: Geometry, device: Device) -> str | None:
        for operand, strides in zip(problem.operands, geometry.strides, strict=True):
            if strides[1] != 1:
                return (
                    f"channels of {operand.name} are {strides[1]} elements apart: they must be neighbours, "
                    "as in the layout nhwc"
                )
        return None

    def _cycles(self, problem: Pooling, geometry: Geometry, lanes: int) -> float:
        """Cycles of one thread."""
        vectors = -(-geometry.channels // lanes)
        tap = {("fwd", "max"): 3, ("fwd", "avg"): 1, ("bwd", "max"): 9, ("bwd", "avg"): 3}
        work = vectors * (8 + geometry.taps * tap[problem.direction, problem.mode])
        pixel = 20 + 4 * geometry.taps + work
        start = geometry.inputs * vectors if problem.direction == "bwd" else 0
        return geometry.images * (geometry.outputs * pixel + start)

    def estimate(self, problem: Problem, device: Device, epilogue: Epilogue | None = None) -> float:
        pooling = cast(Pooling, problem)
        lanes = cast(CpuDevice, device).isa.lanes(arithmetic_of(pooling))
        cycles = self._cycles(pooling, Geometry.of(pooling), lanes)
        return seconds_of(problem, cast(CpuDevice, device), cycles, max(1, int(cycles / 5e4)))

    def _vectors(self, problem: Pooling, geometry: Geometry, lanes: int) -> tuple[int, bool]:
        keeps_places = problem.direction == "bwd" or problem.indices is not None
        return _cut(geometry.channels, lanes, _MOST_VECTORS[keeps_places])

    def _needs_ring(self, problem: Pooling, geometry: Geometry) -> bool:
        return problem.direction == "bwd" and not geometry.tiles

    def workspace(self, problem: Problem, device: Device, epilogue: Epilogue | None = None) -> int:
        pooling, processor = cast(Pooling, problem), cast(CpuDevice, device)
        geometry, dtype = Geometry.of(pooling), arithmetic_of(pooling)
        if not self._needs_ring(pooling, geometry):
            return 0
        lanes = processor.isa.lanes(dtype)
        vectors, _ = self._vectors(pooling, geometry, lanes)
        return ring_bytes(_ring(geometry, lanes * vectors), dtype, device.threads)

    def build(self, problem: Problem, device: Device, epilogue: Epilogue | None = None) -> Kernel:
        pooling, processor = cast(Pooling, problem), cast(CpuDevice, device)
        geometry, lanes = Geometry.of(pooling), processor.isa.lanes(arithmetic_of(pooling))
        rows = geometry.images
        if pooling.direction == "fwd":
            rows *= geometry.axes[0].out * geometry.axes[1].out
        vectors, has_tail = self._vectors(pooling, geometry, lanes)
        group = lanes * vectors
        if pooling.direction == "fwd" and not has_tail and rows >= 2 * device.threads:
            group = geometry.channels  # rows are enough to share: go through all channels of a pixel
        code = _Code(
            direction=pooling.direction,
            mode=pooling.mode,
            counts_padding=pooling.count_include_pad,
            dtype=problem.dtype,
            computing=arithmetic_of(pooling),
            indices=None if pooling.indices is None else pooling.indices.dtype,
            vectors=vectors,
            has_tail=has_tail,
            tiles=geometry.tiles,
            has_ring=self.workspace(problem, device) > 0,
            streams=is_streamed(problem.output),
            asks_ahead=geometry.strides[0 if pooling.direction == "fwd" else 1][1] == 1
            and pooling.x.nbytes >= STREAM_BYTES,
            is_unit=tuple(strides[1] == 1 for strides in geometry.strides),
            is_dilated=geometry.is_dilated,
            is_adaptive=geometry.is_adaptive,
        )
        library = load("pooling_channels", code, processor.isa, lambda m: _trace(m, code))
        groups = -(-geometry.channels // group)
        seconds = self.estimate(problem, device) * device.threads
        tasks, per_task = split_units(rows * groups, device, seconds)
        values = geometry.values(
            units=rows * groups, per_task=per_task, group=group, groups=groups,
            **_ring(geometry, lanes * vectors),
        )  # fmt: skip
        tensors = len(geometry.strides)
        return CpuKernel(
            library, [("pooling", tasks)], tensors, device.threads if tasks > 1 else 1,
            _slots(tensors).pack(values),
        )  # fmt: skip


def _ring(geometry: Geometry, width: int) -> dict[str, int]:
    """Runs of the ring: a row of x for one group of channels."""
    a0, a1, a2 = geometry.axes
    return ring_values(a0, a1.extent, a2.extent * width)


class PoolingStrided(PoolingChannels):
    """Vectors gathered from channels at any distance: for every memory layout, without workspace in f32 and f64."""

    name = "strided"

    def refuse_geometry(self, problem: Pooling, geometry: Geometry, device: Device) -> str | None:
        is_dense = all(strides[1] == 1 for strides in geometry.strides)
        if is_dense and self.workspace(problem, device) == PoolingChannels().workspace(problem, device):
            return "all channels are neighbours in memory: 'channels' is the same without the gathers"
        return None

    def _needs_ring(self, problem: Pooling, geometry: Geometry) -> bool:
        # sums of half precision would be rounded again and again if they were kept in dx
        return problem.dtype in HALVES and super()._needs_ring(problem, geometry)

    def _cycles(self, problem: Pooling, geometry: Geometry, lanes: int) -> float:
        gathers = any(strides[1] != 1 for strides in geometry.strides)
        return (1.5 * lanes if gathers else 1.2) * super()._cycles(problem, geometry, lanes)

"""Pooling with vectors along the channels: every lane has the same window, so nothing is masked but the tail.

    forward    unit = one row of outputs of a group of channels:   y[n, o0, o1, :, group]
    backward   unit = one plane of a group of channels:            dx[n, :, :, :, group]

A unit of the backward pass owns its plane: windows that overlap add up in one fixed order. Rows of dx are
set to beta * dx just before the first window that reaches them, unless the windows tile the plane. The
gradient of a maximum looks for the place of the maximum again, in x, and keeps its position in a register of
each lane.

Channels that lie next to each other are loaded as vectors ("channels"); at any other distance they are
gathered ("strided"), which is slow, and takes everything.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import cast

from jitdnn.devices.cpu import Arguments, CpuDevice, CpuKernel
from jitdnn.kernels.algorithm import Device, Epilogue, Kernel
from jitdnn.kernels.cpu.loops import Counter, Scale, Slots, share
from jitdnn.kernels.cpu.pooling_geometry import (
    INDEX,
    Bounds,
    Geometry,
    PoolingAlgorithm,
    Windows,
    combiner,
    initial,
    is_better,
)
from jitdnn.kernels.cpu.timing import seconds_of
from jitdnn.problems.pooling import Pooling
from jitdnn.problems.problem import Problem
from jitdnn.rtcg.builder import Module, Pointer, Value
from jitdnn.rtcg.compile import load

_MOST_VECTORS = {"fwd": 8, "bwd": 6}  # of channels at once; one register each forward, three backward


_Masks = list[Value | None]


@dataclass(frozen=True)
class _Code:
    """What is compiled in; everything else is an argument."""

    direction: str
    mode: str
    counts_padding: bool
    dtype: str
    vectors: int  # of channels that go through a window together
    has_tail: bool  # the last of them is not full, and they are all channels of the group
    tiles: bool  # every element of x belongs to exactly one window
    is_unit: tuple[bool, ...]  # for each tensor: neighbouring channels are neighbours in memory
    is_dilated: bool


class _Channels:
    """Traces one kernel."""

    def __init__(self, module: Module, code: _Code) -> None:
        self.code, self.dtype, self.mode = code, code.dtype, code.mode
        self.tensors = len(code.is_unit)
        with module.task("pooling") as (k, args, task, _):
            self.k, self.lanes = k, k.lanes(code.dtype)
            arguments = Arguments(k, args, self.tensors)
            slots = _slots(self.tensors)
            self.windows = Windows(
                k, arguments, slots, self.tensors, code.counts_padding, code.is_dilated
            )
            self.scale = Scale(k, arguments, code.dtype)
            self.pointers = [arguments.pointer(t, code.dtype) for t in range(self.tensors)]
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
        x, y = w.strides
        counter = Counter(
            k, first, w.extents("images", "out0", "out1", "groups"),
            [[x[0], zero, zero, x[1] * w["group"]], [y[0], y[2], y[3], y[1] * w["group"]]],
        )  # fmt: skip
        for _unit in k.range(first, last):
            inputs, outputs = (p + o.get() for p, o in zip(self.pointers, counter.offsets, strict=True))
            _, o0, o1, group = (digit.get() for digit in counter.digits)
            channels = (w["channels"] - group * w["group"]).min(w["group"])
            b0, b1 = w.bounds(0, o0), w.bounds(1, o1)
            for o2 in k.range(w["out2"]):
                bounds = (b0, b1, w.bounds(2, o2))
                for (source, target), masks in self._each(channels, [inputs, outputs + o2 * y[4]]):
                    self._pixel(bounds, source, target, masks)
            counter.advance()

    def _pixel(self, bounds: Sequence[Bounds], inputs: Pointer, target: Pointer, masks: _Masks) -> None:
        k, combine = self.k, combiner(self.mode)
        is_empty = bounds[0].is_empty | bounds[1].is_empty | bounds[2].is_empty
        start = initial(k, self.mode, is_empty, self.dtype, self.lanes)
        totals = [k.register(start) for _ in masks]
        for (here,), _ in self._taps(bounds, [(0, inputs)]):
            for v, (total, mask) in enumerate(zip(totals, masks, strict=True)):
                total.set(combine(k, total.get(), self._load(0, here, v, mask)))
        count = k.convert(bounds[0].count * bounds[1].count * bounds[2].count, self.dtype)
        for v, (total, mask) in enumerate(zip(totals, masks, strict=True)):
            result = total.get() if self.mode == "max" else total.get() / k.splat(count, self.lanes)
            step = self.channel_steps[1]
            self.scale.store(target + step * (v * self.lanes), step, result, mask)

    def _taps(
        self, bounds: Sequence[Bounds], tensors: Sequence[tuple[int, Pointer]]
    ) -> Iterator[tuple[list[Pointer], Value]]:
        """Loops over the elements of a window: pointers into input-shaped tensors, and the position."""
        k, w = self.k, self.windows
        for t0 in w.taps(0, bounds[0]):
            at0 = [p + t0 * w.strides[t][2] for t, p in tensors]
            for t1 in w.taps(1, bounds[1]):
                at1 = [p + t1 * w.strides[t][3] for (t, _), p in zip(tensors, at0, strict=True)]
                row = (t0 * w["extent1"] + t1) * w["extent2"]
                for t2 in w.taps(2, bounds[2]):
                    at2 = [p + t2 * w.strides[t][4] for (t, _), p in zip(tensors, at1, strict=True)]
                    yield at2, row + t2

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
        begun = k.register(k.integer(0))  # rows of dx that hold beta * dx already
        gradient, dy = planes[-1], w.strides[0]
        for o0 in k.range(w["out0"]):
            b0 = w.bounds(0, o0)
            if not self.code.tiles:
                self._begin(gradient, begun.get(), b0.high, masks)
                begun.set(begun.get().max(b0.high))
            for o1 in k.range(w["out1"]):
                b1 = w.bounds(1, o1)
                for o2 in k.range(w["out2"]):
                    source = planes[0] + (o0 * dy[2] + o1 * dy[3] + o2 * dy[4])
                    self._window((b0, b1, w.bounds(2, o2)), source, planes, masks)
        if not self.code.tiles:
            self._begin(gradient, begun.get(), w["extent0"], masks)

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
        if not self.code.tiles:
            gradients = [gradient * k.splat(self.scale.alpha, self.lanes) for gradient in gradients]
        if self.mode == "avg":
            count = k.splat(
                k.convert(bounds[0].count * bounds[1].count * bounds[2].count, self.dtype), self.lanes
            )
            gradients = [gradient / count for gradient in gradients]
            places = None
        else:
            places = self._maxima(bounds, planes[1], masks)
        step = self.channel_steps[last]
        for (target,), position in self._taps(bounds, [(last, planes[last])]):
            here = None if places is None else self._position(position)
            for v, (gradient, mask) in enumerate(zip(gradients, masks, strict=True)):
                added = gradient
                if places is not None and here is not None:
                    added = k.select(places[v] == here, gradient, 0.0)
                there = target + step * (v * self.lanes)
                if self.code.tiles:
                    self.scale.store(there, step, added, mask)
                else:
                    old = there.load_strided(0, step, self.lanes, mask)
                    there.store_strided(old + added, 0, step, mask)

    def _maxima(self, bounds: Sequence[Bounds], plane: Pointer, masks: _Masks) -> list[Value]:
        """Positions of the first maximum in each lane."""
        k, w = self.k, self.windows
        lowest = k.constant(-float("inf"), self.dtype, self.lanes)
        first = (bounds[0].low * w["extent1"] + bounds[1].low) * w["extent2"] + bounds[2].low
        best = [k.register(lowest) for _ in masks]
        place = [k.register(self._position(first)) for _ in masks]
        for (here,), position in self._taps(bounds, [(1, plane)]):
            at = self._position(position)
            for v, mask in enumerate(masks):
                value = self._load(1, here, v, mask)
                wins = is_better(value, best[v].get())
                best[v].set(k.select(wins, value, best[v].get()))
                place[v].set(k.select(wins, at, place[v].get()))
        return [p.get() for p in place]

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
    return Geometry.slots(tensors, "units", "per_task", "group", "groups")


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
        return _refuse_plane(problem, geometry)

    def _cycles(self, problem: Pooling, geometry: Geometry, lanes: int) -> float:
        """Cycles of one thread."""
        vectors = -(-geometry.channels // lanes)
        tap = {("fwd", "max"): 3, ("fwd", "avg"): 1, ("bwd", "max"): 9, ("bwd", "avg"): 3}
        work = vectors * (8 + geometry.taps * tap[problem.direction, problem.mode])
        pixel = 20 + 4 * geometry.taps + work
        start = geometry.inputs * vectors if problem.direction == "bwd" else 0
        return geometry.images * (geometry.outputs * pixel + start)

    def estimate(self, problem: Problem, device: Device) -> float:
        pooling, lanes = cast(Pooling, problem), cast(CpuDevice, device).isa.lanes(problem.dtype)
        cycles = self._cycles(pooling, Geometry.of(pooling), lanes)
        return seconds_of(problem, cast(CpuDevice, device), cycles, max(1, int(cycles / 5e4)))

    def build(self, problem: Problem, device: Device, epilogue: Epilogue | None = None) -> Kernel:
        pooling, processor = cast(Pooling, problem), cast(CpuDevice, device)
        geometry, lanes = Geometry.of(pooling), processor.isa.lanes(problem.dtype)
        rows = geometry.images
        if pooling.direction == "fwd":
            rows *= geometry.axes[0].out * geometry.axes[1].out
        vectors, has_tail = _cut(geometry.channels, lanes, _MOST_VECTORS[pooling.direction])
        group = lanes * vectors
        if pooling.direction == "fwd" and not has_tail and rows >= 2 * device.threads:
            group = geometry.channels  # rows are enough to share: go through all channels of a pixel
        code = _Code(
            pooling.direction, pooling.mode, pooling.count_include_pad, problem.dtype, vectors, has_tail,
            geometry.tiles, tuple(strides[1] == 1 for strides in geometry.strides), geometry.is_dilated,
        )  # fmt: skip
        library = load("pooling_channels", code, processor.isa, lambda m: _trace(m, code))
        groups = -(-geometry.channels // group)
        seconds = self.estimate(problem, device) * device.threads
        tasks, per_task = share(rows * groups, device, seconds)
        values = geometry.values(units=rows * groups, per_task=per_task, group=group, groups=groups)
        tensors = len(geometry.strides)
        return CpuKernel(
            library, [("pooling", tasks)], tensors, device.threads if tasks > 1 else 1,
            _slots(tensors).pack(values),
        )  # fmt: skip


def _refuse_plane(problem: Pooling, geometry: Geometry) -> str | None:
    if problem.mode == "max" and problem.direction == "bwd" and geometry.inputs >= 2**31:
        return f"a plane of x has {geometry.inputs} elements: positions in it must fit 31 bits"
    return None


class PoolingStrided(PoolingChannels):
    """Vectors gathered from channels at any distance: for every memory layout."""

    name = "strided"

    def refuse_geometry(self, problem: Pooling, geometry: Geometry, device: Device) -> str | None:
        if all(strides[1] == 1 for strides in geometry.strides):
            return "all channels are neighbours in memory: 'channels' is the same without the gathers"
        return _refuse_plane(problem, geometry)

    def _cycles(self, problem: Pooling, geometry: Geometry, lanes: int) -> float:
        return 1.5 * lanes * super()._cycles(problem, geometry, lanes)

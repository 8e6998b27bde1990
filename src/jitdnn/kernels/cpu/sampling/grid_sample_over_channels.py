"""Sampling with vectors along the channels, which must be adjacent in memory.

The units of work are

    forward      a block of pixels: their cells, lane by lane, and then for each pixel whole channels
    image        some vectors of channels of one image: a plane of such vectors in the workspace, to which pixel
                 after pixel is added, so that nothing depends on the number of threads; then it is written out
    grid         a block of pixels: each corner's products with dy are summed over the channels
"""

from __future__ import annotations

from collections.abc import Sequence

from jitdnn.devices.cpu import CpuDevice
from jitdnn.devices.cpu_kernel import CpuKernel
from jitdnn.kernels.algorithm import Epilogue, Kernel
from jitdnn.kernels.cpu.sampling.grid_geometry import (
    INDEX,
    MOST_CHANNELS,
    OUTSIDE,
    SampleAlgorithm,
    SampleCode,
    SamplePlan,
    Sampler,
    slope_sums,
    spread,
)
from jitdnn.kernels.cpu.sampling.grid_sample_over_pixels import packed_strides_of, pixel_rows, write_slopes
from jitdnn.kernels.cpu.schedule.parallel import Counter, split_units
from jitdnn.problems.spatial_transformer import GridSample
from jitdnn.rtcg.builder import Module, Pointer, Value
from jitdnn.rtcg.compile import load
from jitdnn.rtcg.isa import ITEM_BYTES
from jitdnn.tensor import compute_dtype

_VECTORS = 4  # of channels at once
_ELEMENT_SECONDS = 0.05e-9


class _Corners:
    """The corners of one vector of pixels, kept on the stack to be read pixel by pixel."""

    def __init__(self, s: Sampler) -> None:
        self.s, self.k = s, s.k
        count = 2**s.code.rank if s.code.mode == "linear" else 1
        self.offsets = [s.k.local(INDEX[s.computing], s.lanes) for _ in range(count)]
        self.weights = [s.k.local(s.computing, s.lanes) for _ in range(count)]

    def keep(self, positions: Pointer, i: Value, mask: Value | None, strides: Sequence[Value]) -> None:
        cell = self.s.cell(positions, i, mask, strides)
        for corner, offset, weight in zip(cell.corners(), self.offsets, self.weights, strict=True):
            offset.store(self.k.select(corner.inside, corner.offset, OUTSIDE[self.s.computing]))
            weight.store(corner.weight)

    def pixel(self, p: Value) -> list[tuple[Value, Value]]:
        """Offset and weight of each corner of one pixel."""
        return [
            (self.k.convert(offset.load(p), "i64"), weight.load(p))
            for offset, weight in zip(self.offsets, self.weights, strict=True)
        ]


def _forward(s: Sampler, task: Value, _thread: Value) -> None:
    k, n, lanes = s.k, s.n, s.lanes
    x, grid, y = s.pointers
    first, last = s.span(task)
    corners = _Corners(s)
    counter = s.counter(first, [n["image0"], n["y0"]])
    wide = (n["channels"] // (lanes * _VECTORS)) * (lanes * _VECTORS)
    for _unit in k.range(first, last):
        image = x + counter.digits[0].get() * n["x0"]
        positions, row = (p + o.get() for p, o in zip((grid, y), counter.offsets, strict=True))
        count = (n["run"] - counter.digits[-1].get() * n["block"]).min(n["block"])
        for i in k.range(0, count, lanes):
            corners.keep(positions, i, k.mask(count - i, lanes), s.strides())
            for p in k.range((count - i).min(lanes)):
                target, known = row + (i + p) * s.steps[-1], corners.pixel(p)
                for c in k.range(0, wide, lanes * _VECTORS):
                    _gather(s, image + c, target + c, known, _VECTORS, None)
                for c in k.range(wide, n["channels"], lanes):
                    _gather(s, image + c, target + c, known, 1, k.mask(n["channels"] - c, lanes))
        counter.advance()


def _gather(
    s: Sampler,
    image: Pointer,
    target: Pointer,
    corners: list[tuple[Value, Value]],
    vectors: int,
    mask: Value | None,
) -> None:
    k, lanes = s.k, s.lanes
    totals = [k.register(k.constant(0.0, s.computing, lanes)) for _ in range(vectors)]
    for offset, weight in corners:
        with k.when(offset != OUTSIDE[s.computing]):
            here, factor = image + offset, k.splat(weight, lanes)
            for v, total in enumerate(totals):
                total.set(k.fma(here.load(v * lanes, lanes, mask), factor, total.get()))
    for v, total in enumerate(totals):
        s.scale.store(target + v * lanes, 1, total.get(), mask)


def _by_grid(s: Sampler, task: Value, _thread: Value) -> None:
    k, n, lanes, code = s.k, s.n, s.lanes, s.code
    dy, x, grid, dgrid = s.pointers
    first, last = s.span(task)
    corners = _Corners(s)
    sums = [k.local(s.computing, lanes) for _ in corners.offsets]
    counter = s.counter(first, [n["image0"], n["image1"], n["y0"]])
    full = (n["channels"] // lanes) * lanes
    for _unit in k.range(first, last):
        image = x + counter.digits[0].get() * n["x0"]
        positions, target, row = (
            p + o.get() for p, o in zip((grid, dgrid, dy), counter.offsets, strict=True)
        )
        count = (n["run"] - counter.digits[-1].get() * n["block"]).min(n["block"])
        for i in k.range(0, count, lanes):
            mask = k.mask(count - i, lanes)
            if code.mode == "nearest":
                write_slopes(s, target, i, [k.constant(0.0, s.computing, lanes)] * code.rank, mask)
                continue
            corners.keep(positions, i, mask, s.strides())
            for total in sums:
                total.store(k.constant(0.0, s.computing, lanes))
            for p in k.range((count - i).min(lanes)):
                gradient = row + (i + p) * s.steps[-1]
                for (offset, _), total in zip(corners.pixel(p), sums, strict=True):
                    with k.when(offset != OUTSIDE[s.computing]):
                        total.store(_dot(s, gradient, image + offset, full), p)
            dots = [total.load(0, lanes) for total in sums]
            write_slopes(s, target, i, slope_sums(k, s.cell(positions, i, mask, s.strides()), dots), mask)
        counter.advance()


def _dot(s: Sampler, one: Pointer, other: Pointer, full: Value) -> Value:
    """The product of two pixels, summed over their channels."""
    k, lanes, channels = s.k, s.lanes, s.n["channels"]
    total = k.register(k.constant(0.0, s.computing, lanes))
    for c in k.range(0, full, lanes):
        total.set(k.fma(one.load(c, lanes), other.load(c, lanes), total.get()))
    with k.when(full < channels):
        mask = k.mask(channels - full, lanes)
        total.set(k.fma(one.load(full, lanes, mask), other.load(full, lanes, mask), total.get()))
    return k.reduce(total.get())


def _by_image(s: Sampler, task: Value, thread: Value) -> None:
    k, n, lanes, vectors = s.k, s.n, s.lanes, s.code.vectors
    dy, grid, dx = s.pointers
    width = lanes * vectors
    first, last = s.span(task)
    strides = packed_strides_of(s, width)
    room = s.arguments.workspace(s.computing) + thread * n["room"]
    corners = _Corners(s)
    zero = k.integer(0)
    units = Counter(k, first, [n["images"], n["groups"]], [[n["image0"], zero], [n["y0"], k.integer(width)]])
    for _unit in k.range(first, last):
        group = units.digits[1].get() * width
        masks = [k.mask(n["channels"] - group - v * lanes, lanes) for v in range(vectors)]
        for i in k.range(0, strides[0] * n["extent0"], lanes):
            room.store(k.constant(0.0, s.computing, lanes), i)
        for positions, row in pixel_rows(s, grid + units.offsets[0].get(), dy + units.offsets[1].get()):
            for i in k.range(0, n["run"], lanes):
                corners.keep(positions, i, k.mask(n["run"] - i, lanes), strides)
                for p in k.range((n["run"] - i).min(lanes)):
                    here = row + (i + p) * s.steps[-1]
                    values = [here.load(v * lanes, lanes, mask) for v, mask in enumerate(masks)]
                    for offset, weight in corners.pixel(p):
                        with k.when(offset != OUTSIDE[s.computing]):
                            there, factor = room + offset, k.splat(weight, lanes)
                            for v, value in enumerate(values):
                                there.store(k.fma(value, factor, there.load(v * lanes, lanes)), v * lanes)
        target = dx + (units.digits[0].get() * n["x0"] + group)
        _write_plane(s, room, target, strides, masks)
        units.advance()


def _write_plane(
    s: Sampler, plane: Pointer, target: Pointer, strides: Sequence[Value], masks: Sequence[Value]
) -> None:
    """The plane of the workspace to its place in dx."""
    k, n = s.k, s.n

    def write(axis: int, source: Pointer, there: Pointer) -> None:
        if axis == s.code.rank:
            for v, mask in enumerate(masks):
                s.scale.store(there + v * s.lanes, 1, source.load(v * s.lanes, s.lanes), mask)
            return
        for i in k.range(n[f"extent{axis}"]):
            write(axis + 1, source + i * strides[axis], there + i * n[f"x{2 + axis}"])

    write(0, plane, target)


def _trace(module: Module, code: SampleCode) -> None:
    runs = {"fwd": _forward, "bwd_grid": _by_grid, "bwd_data": _by_image}
    Sampler(module, code, "sample", runs[code.direction])


class GridSampleChannels(SampleAlgorithm):
    """Vectors along channels that are neighbours: the way for channels-last tensors."""

    name = "channels"

    def refusal(self, problem: GridSample, device: CpuDevice, epilogue: Epilogue | None) -> str | None:
        for name, tensor in (("the image", problem.x), ("y", problem.y)):
            if tensor.strides[1] != 1:
                return (
                    f"channels of {name} are {tensor.strides[1]} elements apart: they must be neighbours, as in the "
                    "layout nhwc"
                )
        return super().refusal(problem, device, epilogue)

    def workspace_of(self, plan: SamplePlan, device: CpuDevice) -> int:
        if plan.problem.direction != "bwd_data":
            return 0
        return device.threads * self._room(plan, device) * ITEM_BYTES[compute_dtype(plan.problem.dtype)]

    def _vectors(self, problem: GridSample, device: CpuDevice) -> int:
        """Of channels in a plane of the workspace; what a channel gets does not depend on it."""
        lanes = self.lanes(problem, device)
        return min(_VECTORS, MOST_CHANNELS // lanes, -(-problem.x.shape[1] // lanes))

    def _room(self, plan: SamplePlan, device: CpuDevice) -> int:
        return plan.plane * self._vectors(plan.problem, device) * self.lanes(plan.problem, device)

    def seconds_of(self, plan: SamplePlan, device: CpuDevice) -> float:
        return spread(self._seconds(plan.problem, device), device)

    def _seconds(self, problem: GridSample, device: CpuDevice) -> float:
        lanes = self.lanes(problem, device)
        whole = -(-problem.x.shape[1] // lanes) * lanes / problem.x.shape[1]
        return self.seconds(problem, 15e-9, _ELEMENT_SECONDS * whole * 16 / lanes)

    def kernel_of(self, plan: SamplePlan, device: CpuDevice) -> Kernel:
        sample = plan.problem
        lanes, vectors = self.lanes(sample, device), self._vectors(sample, device)
        code = plan.code(vectors if sample.direction == "bwd_data" else 0)
        groups = -(-sample.x.shape[1] // (lanes * vectors))
        values = plan.values(lanes, groups=groups, room=self._room(plan, device))
        rows = plan.pixels // max(1, plan.nest.extents[-1])
        units = sample.x.shape[0] * (groups if sample.direction == "bwd_data" else rows * values["blocks"])
        tasks, per_task = split_units(units, device, self._seconds(sample, device))
        values |= {"units": units, "per_task": per_task}
        library = load("grid_sample_channels", code, device.isa, lambda module: _trace(module, code))
        return CpuKernel(
            library, [("sample", tasks)], len(sample.operands), device.threads, plan.slots().pack(values)
        )

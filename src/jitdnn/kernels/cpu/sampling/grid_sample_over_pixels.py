"""Sampling with lanes along the pixels of the output, any strides: elements of the image are gathered.

The units of work are

    forward      a block of pixels of one image; channel by channel the corners of the cells are gathered
    image        some channels of one image: their planes in the workspace, to which pixel after pixel is added, so that
                 nothing depends on the number of threads; then they are written out
    grid         a block of pixels; over the channels each corner's products with dy are summed
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

from jitdnn.devices.cpu import CpuDevice
from jitdnn.kernels.algorithm import Kernel
from jitdnn.kernels.cpu.sampling.grid_geometry import (
    BLOCK,
    INDEX,
    OUTSIDE,
    SampleAlgorithm,
    SamplePlan,
    Sampler,
    corners_of,
    slope_sums,
)
from jitdnn.kernels.cpu.schedule.parallel import Counter
from jitdnn.problems.spatial_transformer import GridSample
from jitdnn.rtcg.builder import Builder, Pointer, Value
from jitdnn.rtcg.isa import ITEM_BYTES
from jitdnn.rtcg.types import ELEMENTS, vector_type

_CHANNELS = 4  # planes in the workspace at once
_GATHER_SECONDS = 0.7e-9
_SCATTER_SECONDS = 1.2e-9


class _Block:
    """The corners of all pixels of a block, kept on the stack: then channel after channel goes through them, and has
    the caches for itself."""

    def __init__(self, s: Sampler) -> None:
        self.s, self.k = s, s.k
        self.count = 2**s.code.rank if s.code.mode == "linear" else 1
        self.offsets = [s.k.local(INDEX[s.computing], BLOCK * s.lanes) for _ in range(self.count)]
        self.weights = [s.k.local(s.computing, BLOCK * s.lanes) for _ in range(self.count)]

    def keep(self, positions: Pointer, count: Value) -> None:
        """Those of the pixels from the grid's place on."""
        k, s = self.k, self.s
        for i in k.range(0, count, s.lanes):
            cell = s.cell(positions, i, k.mask(count - i, s.lanes), s.strides())
            for corner, offsets, weights in zip(cell.corners(), self.offsets, self.weights, strict=True):
                offsets.store(k.select(corner.inside, corner.offset, OUTSIDE[s.computing]), i)
                weights.store(corner.weight, i)

    def values(self, plane: Pointer, i: Value) -> list[Value]:
        """The elements of a plane in the corners of one vector of pixels; zeros outside."""
        found = []
        for offsets in self.offsets:
            offset = offsets.load(i, self.s.lanes)
            found.append(plane.load_at(offset, offset != OUTSIDE[self.s.computing]))
        return found

    def sums(self, plane: Pointer, i: Value) -> Value:
        """The elements times their weights, added up."""
        terms = [
            value * weights.load(i, self.s.lanes)
            for value, weights in zip(self.values(plane, i), self.weights, strict=True)
        ]
        total = terms[0]
        for term in terms[1:]:
            total = total + term
        return total


class _Pairs:
    """As `_Block`, for two neighbours of the last axis at a time: half as many loads, and no mask.

    A pair begins where both of its elements are in the image; its weights say which of them count, and how much.
    """

    def __init__(self, s: Sampler) -> None:
        self.s, self.k = s, s.k
        rows = 2 ** (s.code.rank - 1)
        self.offsets = [s.k.local("i32", BLOCK * s.lanes) for _ in range(rows)]
        self.weights = [[s.k.local("f32", BLOCK * s.lanes) for _ in range(2)] for _ in range(rows)]

    def keep(self, positions: Pointer, count: Value) -> None:
        k, s = self.k, self.s
        for i in k.range(0, count, s.lanes):
            cell = s.cell(positions, i, k.mask(count - i, s.lanes), s.strides())
            near, far = cell.sides[-1]
            last = k.splat(k.convert(s.n[f"extent{s.code.rank - 1}"] - 2, "i32"), s.lanes)
            start = k.select(near.inside, near.offset, 0).min(last)
            shares = []
            for element in (start, start + 1):
                share_of_near = k.select(near.offset == element, near.weight, 0.0)
                shares.append(share_of_near + k.select(far.offset == element, far.weight, 0.0))
            reaches = near.inside | far.inside
            rows = corners_of(cell.sides[:-1])
            for row, offsets, weights in zip(rows, self.offsets, self.weights, strict=True):
                offsets.store(k.select(row.inside & reaches, row.offset + start, 0), i)
                for weight, share_of_row in zip(weights, shares, strict=True):
                    weight.store(row.weight * share_of_row, i)

    def sums(self, plane: Pointer, i: Value) -> Value:
        k, lanes = self.k, self.s.lanes
        total = k.constant(0.0, "f32", lanes)
        for offsets, weights in zip(self.offsets, self.weights, strict=True):
            for weight, value in zip(weights, _load_pairs(k, plane, offsets + i, lanes), strict=True):
                factor = weight.load(i, lanes)
                # an element that does not count must not, even if it is infinite
                total = k.fma(k.select(factor != 0.0, value, 0.0), factor, total)
        return total


def _load_pairs(k: Builder, plane: Pointer, offsets: Pointer, lanes: int) -> tuple[Value, Value]:
    """The f32 at as many offsets as there are lanes, and those behind them: scalar loads, put together."""
    parts, half = [], lanes // 2
    for part in range(2):
        both = k.constant(0, "i64", half)
        for lane in range(half):
            place = plane + k.convert(offsets.load(part * half + lane), "i64")
            # aligned to its elements, not to the pair
            pair = k.b.load(place.v, align=ITEM_BYTES["f32"], typ=ELEMENTS["i64"])
            both = k.insert(both, Value(k, pair), lane)
        parts.append(Value(k, k.b.bitcast(both.v, vector_type(ELEMENTS["f32"], lanes))))
    return (
        k.shuffle(parts[0], parts[1], range(0, 2 * lanes, 2)),
        k.shuffle(parts[0], parts[1], range(1, 2 * lanes, 2)),
    )


def _forward(s: Sampler, task: Value, _thread: Value) -> None:
    k, n, lanes = s.k, s.n, s.lanes
    x, grid, y = s.pointers
    first, last = s.span(task)
    block = _Pairs(s) if s.code.in_pairs else _Block(s)
    counter = s.counter(first, [n["image0"], n["y0"]])
    for _unit in k.range(first, last):
        image = x + counter.digits[0].get() * n["x0"]
        positions, row = (p + o.get() for p, o in zip((grid, y), counter.offsets, strict=True))
        count = (n["run"] - counter.digits[-1].get() * n["block"]).min(n["block"])
        block.keep(positions, count)
        for c in k.range(n["channels"]):
            plane, target = image + c * n["x1"], row + c * n["y1"]
            for i in k.range(0, count, lanes):
                total = block.sums(plane, i)
                s.scale.store(target + i * s.steps[-1], s.steps[-1], total, k.mask(count - i, lanes))
        counter.advance()


def _by_grid(s: Sampler, task: Value, _thread: Value) -> None:
    k, n, lanes, code = s.k, s.n, s.lanes, s.code
    dy, x, grid, dgrid = s.pointers
    first, last = s.span(task)
    block = _Block(s)
    dots = [k.local(s.computing, BLOCK * lanes) for _ in block.offsets]
    zero = k.constant(0.0, s.computing, lanes)
    counter = s.counter(first, [n["image0"], n["image1"], n["y0"]])
    for _unit in k.range(first, last):
        image = x + counter.digits[0].get() * n["x0"]
        positions, target, row = (
            p + o.get() for p, o in zip((grid, dgrid, dy), counter.offsets, strict=True)
        )
        count = (n["run"] - counter.digits[-1].get() * n["block"]).min(n["block"])
        if code.mode == "nearest":
            for i in k.range(0, count, lanes):
                write_slopes(s, target, i, [zero] * code.rank, k.mask(count - i, lanes))
            counter.advance()
            continue
        block.keep(positions, count)
        for i in k.range(0, count, lanes):
            for dot in dots:
                dot.store(zero, i)
        for c in k.range(n["channels"]):
            plane, source = image + c * n["x1"], row + c * n["y1"]
            for i in k.range(0, count, lanes):
                mask = k.mask(count - i, lanes)
                gradient = (source + i * s.steps[-1]).load_strided(0, s.steps[-1], lanes, mask)
                for offsets, value, dot in zip(block.offsets, block.values(plane, i), dots, strict=True):
                    counted = k.select(offsets.load(i, lanes) != OUTSIDE[s.computing], gradient, 0.0)
                    dot.store(k.fma(counted, value, dot.load(i, lanes)), i)
        for i in k.range(0, count, lanes):
            mask = k.mask(count - i, lanes)
            cell = s.cell(positions, i, mask, s.strides())
            write_slopes(s, target, i, slope_sums(k, cell, [dot.load(i, lanes) for dot in dots]), mask)
        counter.advance()


def write_slopes(s: Sampler, target: Pointer, i: Value, slopes: list[Value], mask: Value | None) -> None:
    """The gradient by the grid: the numbers of the last axis of the image come first."""
    for axis, slope in enumerate(slopes):
        there = target + (s.n["axis1"] * (s.code.rank - 1 - axis) + i * s.steps[1])
        s.scale.store(there, s.steps[1], slope, mask)


def packed_strides_of(s: Sampler, width: int) -> list[Value]:
    """Strides of a plane in the workspace, whose elements are `width` numbers."""
    strides: list[Value] = [s.k.integer(width)]
    for a in reversed(range(1, s.code.rank)):
        strides.insert(0, strides[0] * s.n[f"extent{a}"])
    return strides


def _by_image(s: Sampler, task: Value, thread: Value) -> None:
    k, n, lanes = s.k, s.n, s.lanes
    dy, grid, dx = s.pointers
    first, last = s.span(task)
    strides = packed_strides_of(s, 1)
    plane = strides[0] * n["extent0"]
    room = s.arguments.workspace(s.computing) + thread * n["room"]
    stride = plane + 1  # behind each plane an element that takes what is outside
    values = k.local(s.computing, lanes)
    corners_count = 2**s.code.rank if s.code.mode == "linear" else 1
    offsets = [k.local(INDEX[s.computing], lanes) for _ in range(corners_count)]
    weights = [k.local(s.computing, lanes) for _ in range(corners_count)]
    zero = k.integer(0)
    units = Counter(
        k, first, [n["images"], n["groups"]], [[n["image0"], zero], [n["y0"], n["y1"] * _CHANNELS]]
    )
    for _unit in k.range(first, last):
        group = units.digits[1].get() * _CHANNELS
        channels = (n["channels"] - group).min(_CHANNELS)
        for i in k.range(channels * stride):
            room.store(k.constant(0.0, s.computing), i)
        for positions, row in pixel_rows(s, grid + units.offsets[0].get(), dy + units.offsets[1].get()):
            for i in k.range(0, n["run"], lanes):
                mask = k.mask(n["run"] - i, lanes)
                outside = k.splat(k.convert(plane, INDEX[s.computing]), lanes)
                for corner, offset, weight in zip(
                    s.cell(positions, i, mask, strides).corners(), offsets, weights, strict=True
                ):
                    offset.store(k.select(corner.inside, corner.offset, outside))
                    weight.store(corner.weight)
                for c in k.range(channels):
                    values.store(
                        (row + (c * n["y1"] + i * s.steps[-1])).load_strided(0, s.steps[-1], lanes, mask)
                    )
                    here = room + c * stride
                    for p in k.range((n["run"] - i).min(lanes)):
                        value = values.load(p)
                        for offset, weight in zip(offsets, weights, strict=True):
                            at = k.convert(offset.load(p), "i64")
                            here.store(k.fma(value, weight.load(p), here.load(at)), at)
        target = dx + (units.digits[0].get() * n["x0"] + group * n["x1"])
        for c in k.range(channels):
            _write_plane(s, room + c * stride, target + c * n["x1"], strides)
        units.advance()


def pixel_rows(s: Sampler, grid: Pointer, dy: Pointer) -> Iterator[tuple[Pointer, Pointer]]:
    """Loops over all rows of pixels of an image."""
    k, n, zero = s.k, s.n, s.k.integer(0)
    rows = s.rows() or [k.integer(1)]
    steps = [[n[f"step{t}.{a}"] for a in range(s.code.axes - 1)] or [zero] for t in range(2)]
    counter = Counter(k, zero, rows, steps, [n["base0"], n["base1"]])
    total = rows[0]
    for extent in rows[1:]:
        total = total * extent
    for _row in k.range(total):
        yield grid + counter.offsets[0].get(), dy + counter.offsets[1].get()
        counter.advance()


def _write_plane(s: Sampler, plane: Pointer, target: Pointer, strides: list[Value]) -> None:
    """A plane of the workspace to its place in dx."""
    k, n, rank, lanes = s.k, s.n, s.code.rank, s.lanes

    def write(axis: int, source: Pointer, there: Pointer) -> None:
        extent, step = n[f"extent{axis}"], n[f"x{2 + axis}"]
        if axis < rank - 1:
            for i in k.range(extent):
                write(axis + 1, source + i * strides[axis], there + i * step)
            return
        for i in k.range(0, extent, lanes):
            mask = k.mask(extent - i, lanes)
            s.scale.store(there + i * step, step, source.load(i, lanes, mask), mask)

    write(0, plane, target)


class GridSamplePixels(SampleAlgorithm):
    """Lanes along the pixels of the output; takes any strides."""

    name = "pixels"
    runs: ClassVar = {"fwd": _forward, "bwd_grid": _by_grid, "bwd_data": _by_image}

    def room(self, plan: SamplePlan, device: CpuDevice) -> int:
        channels = min(_CHANNELS, plan.problem.x.shape[1])
        return -(-channels * (plan.plane + 1) // 16) * 16

    def thread_seconds(self, problem: GridSample, device: CpuDevice) -> float:
        each = _SCATTER_SECONDS if problem.direction == "bwd_data" else _GATHER_SECONDS
        return self.seconds(problem, 5e-9, each)

    def kernel_of(self, plan: SamplePlan, device: CpuDevice) -> Kernel:
        sample = plan.problem
        in_pairs = (
            (sample.direction, sample.mode, sample.dtype) == ("fwd", "linear", "f32")
            and sample.x.strides[-1] == 1
            and sample.x.shape[-1] > 1
        )
        code = plan.code(0, in_pairs)
        return self.sampling(plan, device, code, -(-sample.x.shape[1] // _CHANNELS))

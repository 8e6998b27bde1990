"""Pooling on GPUs with small windows over rows and columns: threads advance down the rows, and read each only once."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from math import gcd
from typing import NamedTuple

from jitdnn.devices.gpu import GpuDevice, Launch, Source, read_text
from jitdnn.kernels.algorithm import Epilogue, Kernel
from jitdnn.kernels.gpu.pooling.geometry import Axis, Geometry
from jitdnn.kernels.gpu.pooling.per_thread import (
    PlainPooling,
    common_defines,
)
from jitdnn.kernels.gpu.prelude.cost import LAUNCH_SECONDS
from jitdnn.problems.pooling import QUANTIZED, Pooling
from jitdnn.tensor import DTYPES

THREADS = 128  # of a thread block
MOST_STRIDE = 4
MOST_VALUES = 104  # that a thread keeps in registers
MOST_ROWS = 16  # of one thread
NEIGHBOURS = 32  # vectors of channels that lie side by side in a thread block
MOST_UNITS = 1 << 30


@dataclass(frozen=True)
class Form:
    """What one thread does: `lanes` channels of `columns` outputs in a row, or of as many tiles backward.

    `vector` and `vector_out` columns of the large and of the small tensors are accessed at once. `first` and `last`
    are the windows, counted from the tile's own, that reach a tile: along rows, along columns.
    """

    lanes: int
    columns: int
    vector: int
    vector_out: int
    first: tuple[int, int] = (0, 0)
    last: tuple[int, int] = (0, 0)


class SlidingPlan(NamedTuple):
    """A problem, its geometry, and what one thread does."""

    problem: Pooling
    geometry: Geometry
    form: Form


class PoolingSliding(PlainPooling[SlidingPlan]):
    """Windows of a few elements over rows and columns, compiled in."""

    name = "sliding"

    def refuse_geometry(self, problem: Pooling, geometry: Geometry) -> str | None:
        depth, *plane = geometry.axes
        if problem.x.dtype in QUANTIZED:
            return f"x is {problem.x.dtype}: windows slide over real numbers only"
        if geometry.is_adaptive or any(axis.dilation > 1 for axis in geometry.axes):
            return "windows that slide have one size and no dilation"
        if (depth.window, depth.stride, depth.before, depth.after) != (1, 1, 0, 0):
            return f"windows that slide lie in the last two axes: along the one before, this one is {depth.window}"
        if max(axis.stride for axis in plane) > MOST_STRIDE:
            return f"strides are {[axis.stride for axis in plane]}: windows slide by at most {MOST_STRIDE}"
        if form_of(problem, geometry) is None:
            window = "x".join(str(axis.window) for axis in plane)
            return f"windows of {window} are more than a thread has registers for: use the algorithm window"
        return None

    def plan(self, problem: Pooling, device: GpuDevice, epilogue: Epilogue | None) -> SlidingPlan:
        geometry = Geometry.of(problem)
        form = form_of(problem, geometry)
        assert form is not None, "refused"
        return SlidingPlan(problem, geometry, form)

    def seconds_of(self, plan: SlidingPlan, device: GpuDevice) -> float:
        return LAUNCH_SECONDS + 1.1 * plan.problem.bytes / device.bandwidth

    def kernel_of(self, plan: SlidingPlan, device: GpuDevice) -> Kernel:
        pooling, geometry, form = plan
        depth, height, width = geometry.axes
        defines = {
            **common_defines(pooling, device, geometry),
            "HAS_EMPTY": int(any(axis.has_empty_windows for axis in geometry.axes)),
            "ADAPTIVE": 0, "KH": height.window, "KW": width.window, "SH": height.stride, "SW": width.stride,
            "BEFORE_H": height.before, "BEFORE_W": width.before,
            "FIRST_H": f"({form.first[0]})", "FIRST_W": f"({form.first[1]})",
            "LAST_H": form.last[0], "LAST_W": form.last[1],
            "LANES": form.lanes, "COLUMNS": form.columns, "VECTOR": form.vector, "VECTOR_OUT": form.vector_out,
        }  # fmt: skip
        texts = ("access.c", "bounds.c", "sliding.c")
        text = read_text("gpu/pooling", *texts)
        source = Source("pooling_sliding", text, tuple(defines.items()), spills=True)
        is_forward = pooling.direction == "fwd"
        lines = height.out if is_forward else -(-height.extent // height.stride)
        across = width.out if is_forward else -(-width.extent // width.stride)
        vectors, tiles = geometry.channels // form.lanes, -(-across // form.columns)
        inner = _neighbours(vectors) if _vectorizes_over_channels(geometry, form) else 1
        outer = vectors // inner
        columns = geometry.images * vectors * tiles * depth.out
        wanted = device.multiprocessors * device.facts.resident_threads
        rows = next((r for r in (MOST_ROWS, 8, 4, 2) if columns * -(-lines // r) >= 4 * wanted), 1)
        chunks = -(-lines // rows)
        units = inner * tiles * chunks * outer * depth.out
        images = max(1, min(geometry.images, MOST_UNITS // max(1, units)))
        blocks = (max(1, -(-units * images // THREADS)), max(1, -(-geometry.images // images)))
        numbers = [
            geometry.images, max(1, inner), tiles, chunks, max(1, outer), depth.out, rows, height.extent,
            width.extent, height.out, width.out, height.after, width.after, images,
        ]  # fmt: skip
        for t, steps in enumerate(geometry.steps):
            numbers += [*steps, *(axis.steps[t] for axis in geometry.axes)]
        if geometry.images * geometry.channels == 0:
            numbers[0] = 0
        launch = Launch("pooling_sliding", blocks, THREADS)
        return device.kernel(source, [launch], len(geometry.tensors), numbers)

    def refusal(self, problem: Pooling, device: GpuDevice, epilogue: Epilogue | None) -> str | None:
        reason = super().refusal(problem, device, epilogue)
        if reason is not None:
            return reason
        geometry = Geometry.of(problem)
        depth, height, width = geometry.axes
        units = geometry.channels * depth.out * max(height.out * width.out, height.extent * width.extent)
        if units >= MOST_UNITS or geometry.images > MOST_UNITS:
            return f"an image has {units} elements: windows slide over fewer than {MOST_UNITS}"
        return None


def form_of(problem: Pooling, geometry: Geometry) -> Form | None:
    """The largest form that a thread has registers for, None if there is none."""
    _, height, width = geometry.axes
    item, last = DTYPES[problem.x.dtype], len(geometry.tensors) - 1
    is_forward = problem.direction == "fwd"
    # tensors of x's extents, and of y's
    large: tuple[int, ...] = (0,) if is_forward else (last,)
    small = (1,) if is_forward else (0,)
    if not is_forward and problem.mode == "max":
        large = (1, last)
    first, last_ = (0, 0), (0, 0)
    if not is_forward:
        reaches = _reach(height), _reach(width)
        first, last_ = (reaches[0][0], reaches[1][0]), (reaches[0][1], reaches[1][1])
    lanes = geometry.lanes((*large, *small)) if item <= 4 else 1
    wide = [geometry.columns(t, 16 // item) for t in large] if item <= 4 else [1]
    vector = 1 if lanes > 1 else min(wide)
    shared = last_[1] - first[1] if problem.mode == "max" else 0
    for form in _forms(lanes, vector, width.stride, shared, item):
        if _values(problem, geometry, form.lanes, form.columns, first, last_) <= MOST_VALUES:
            columns = form.columns & -form.columns
            vector_out = min(geometry.columns(t, columns) for t in small) if form.vector > 1 else 1
            return replace(form, vector_out=vector_out, first=first, last=last_)
    return None


def _forms(lanes: int, vector: int, stride: int, shared: int, item: int) -> Iterator[Form]:
    """From the widest down. `shared`: windows that neighbouring tiles both look for the maxima of, so that threads
    rather take more tiles than more channels; of one window only where elements of 2 bytes keep threads busy."""
    if shared > 1 and vector == 1:
        yield from (Form(1, columns, 1, 1) for columns in (4, 2))
        lanes = 1
    elif shared == 1 and item == 2:
        yield from (Form(wide, 2, 1, 1) for wide in (8, 4, 2) if wide <= lanes)
    while lanes > 1:
        yield Form(lanes, 1, 1, 1)
        lanes //= 2
    while vector > 1:
        yield Form(1, vector // gcd(vector, stride), vector, 1)
        vector //= 2
    yield Form(1, 1, 1, 1)


def _reach(axis: Axis) -> tuple[int, int]:
    """The first and the last window, counted from the tile's own, that an element of a tile may lie in."""
    return -((axis.window - 1 - axis.before) // axis.stride), (axis.stride - 1 + axis.before) // axis.stride


def _values(
    problem: Pooling,
    geometry: Geometry,
    lanes: int,
    columns: int,
    first: tuple[int, int],
    last: tuple[int, int],
) -> int:
    """Numbers that a thread keeps."""
    _, height, width = geometry.axes
    windows = columns + last[1] - first[1]
    span = (windows - 1) * width.stride + width.window
    rows = last[0] - first[0] + 1
    fresh = min(height.window, height.stride)
    if problem.direction == "fwd":
        values = span + height.window * windows * (2 if problem.indices is not None else 1)
    elif problem.mode == "max":
        values = fresh * span + 2 * (height.window + rows) * windows + windows + columns * width.stride
    else:
        values = rows * columns * width.stride + windows + columns * width.stride
    return values * lanes * (2 if problem.x.dtype == "f64" else 1)


def _vectorizes_over_channels(geometry: Geometry, form: Form) -> bool:
    ends = (0, len(geometry.tensors) - 1)
    return form.lanes > 1 or (form.vector == 1 and geometry.is_channels_last(ends))


def _neighbours(vectors: int) -> int:
    """Vectors of channels side by side in a thread block: a divisor, so that neighbouring windows share a cache."""
    if vectors <= NEIGHBOURS:
        return vectors
    return next((n for n in range(NEIGHBOURS, 7, -1) if vectors % n == 0), vectors)

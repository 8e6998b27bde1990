"""Pooling on GPUs with large windows, global pooling above all: the threads of a thread block share a window."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import NamedTuple

from jitdnn.devices.gpu import GpuDevice, Launch, Source, read_text
from jitdnn.kernels.algorithm import Epilogue, Kernel
from jitdnn.kernels.gpu.pooling.geometry import Geometry
from jitdnn.kernels.gpu.pooling.per_thread import (
    PACKED,
    THREADS,
    PlainPooling,
    common_defines,
    number_type,
)
from jitdnn.kernels.gpu.prelude.cost import LAUNCH_SECONDS
from jitdnn.problems.pooling import Pooling
from jitdnn.tensor import DTYPES

LEAST_TAPS = 16
A_THREAD = 8  # accesses of one thread, about
NEIGHBOURS = 8  # vectors of channels side by side in a thread block
WANTED = 8  # thread blocks for each multiprocessor
MOST_PARTS = 256
FLAT_ELEMENTS = 4096  # of the planes that a thread block takes as one run of memory
A_RUN = 16  # planes whose elements are a multiple of 16 bytes
MOST_ITEMS = 1 << 30


@dataclass(frozen=True)
class Form:
    """How the threads of a thread block share its items; see per_block.c."""

    lanes: int
    items: int
    is_inner: bool
    is_whole: bool
    vector: int
    count: int  # items of the problem
    parts: int
    spread: int  # thread blocks that write to the same planes
    is_flat: bool = False  # planes follow one another


class PerBlockPlan(NamedTuple):
    """A problem, its geometry, and how thread blocks share it."""

    problem: Pooling
    geometry: Geometry
    form: Form


class PoolingPerBlock(PlainPooling[PerBlockPlan]):
    """The threads of a thread block share a window; backward, of whole planes only."""

    name = "groups"

    def refusal(self, problem: Pooling, device: GpuDevice, epilogue: Epilogue | None) -> str | None:
        reason = super().refusal(problem, device, epilogue)
        if reason is None:
            count = form_of(problem, device).count
            if count >= MOST_ITEMS:
                return f"there are {count} windows: groups share fewer than {MOST_ITEMS}"
        return reason

    def refuse_geometry(self, problem: Pooling, geometry: Geometry) -> str | None:
        taps = prod(axis.window for axis in geometry.axes)
        if taps < LEAST_TAPS:
            return f"windows of {taps} elements are too small to be shared: use the algorithm window"
        if problem.direction == "bwd" and not _is_whole(problem, geometry):
            return (
                "gradients are spread over whole planes whose elements lie at equal distances: windows are "
                f"{problem.window}, planes {problem.spatial}"
            )
        return None

    def plan(self, problem: Pooling, device: GpuDevice, epilogue: Epilogue | None) -> PerBlockPlan:
        return PerBlockPlan(problem, Geometry.of(problem), form_of(problem, device))

    def workspace_of(self, plan: PerBlockPlan, device: GpuDevice) -> int:
        pooling, _, form = plan
        is_max = pooling.mode == "max"
        if not (form.parts > 1 or (pooling.direction == "bwd" and is_max)):
            return 0
        each = DTYPES[number_type(pooling, device)]
        if is_max:
            each += DTYPES[_position_type(pooling, device)]
        return form.parts * form.count * form.lanes * each

    def seconds_of(self, plan: PerBlockPlan, device: GpuDevice) -> float:
        problem, _, form = plan
        # of windows that overlap, elements are read from caches; one by one they take some 60 instructions
        busy = (2.0 if form.is_whole else 60.0) * problem.flops / form.lanes / device.peak_flops("f32")
        occupied = min(1.0, max(1, form.count) * form.parts / form.items / device.multiprocessors)
        size = problem.bytes / device.bandwidth
        return 2 * LAUNCH_SECONDS + 1.1 * max(size, busy) / occupied

    def kernel_of(self, plan: PerBlockPlan, device: GpuDevice) -> Kernel:
        pooling, geometry, form = plan
        defines = {
            **common_defines(pooling, device, geometry),
            "PLACE": _position_type(pooling, device),
            "ADAPTIVE": int(geometry.is_adaptive),
            "LANES": form.lanes,
            "ITEMS": form.items,
            "CHANNELS_INNER": int(form.is_inner),
            "WHOLE": int(form.is_whole),
            "VECTOR": form.vector,
            "FLAT": int(form.is_flat),
            "STAGED": -(-form.items * geometry.inputs // 1024) * 1024 if form.is_flat else 0,
        }
        texts = ("access.c", "bounds.c", "per_block.c")
        text = read_text("gpu/pooling", *texts)
        source = Source("pooling_groups", text, tuple(defines.items()), spills=True)
        blocks = max(1, -(-form.count // form.items))
        reduce = Launch("pooling_reduce", (blocks, form.parts), THREADS)
        if pooling.direction == "fwd":
            combine = Launch("pooling_join", max(1, -(-form.count // THREADS)), THREADS)
            launches = [reduce, combine] if form.parts > 1 else [reduce]
        else:
            spread = Launch("pooling_spread", (blocks, form.spread), THREADS)
            launches = [reduce, spread] if pooling.mode == "max" else [spread]
        numbers = [*geometry.numbers(), form.parts, form.count]
        return device.kernel(source, launches, len(geometry.tensors), numbers)


def form_of(problem: Pooling, device: GpuDevice) -> Form:
    """How thread blocks share a problem."""
    geometry, item = Geometry.of(problem), DTYPES[problem.x.dtype]
    is_forward, last = problem.direction == "fwd", len(problem.operands) - 1
    is_whole = _is_whole(problem, geometry)
    large = (0,) if is_forward else ((1, last) if problem.mode == "max" else (last,))
    small = 1 if is_forward else 0
    lanes = geometry.lanes((*large, small)) if problem.x.dtype in PACKED else 1
    is_inner = lanes > 1 or geometry.is_channels_last(large)
    taps, vector = prod(axis.window for axis in geometry.axes), 1
    if is_whole and lanes == 1 and problem.x.dtype in PACKED:
        vector = min(_run(geometry, t, 16 // item) for t in large)
    if is_whole and not is_inner and vector < 16 // item and _is_flat(geometry, large):
        items = FLAT_ELEMENTS // geometry.inputs // A_RUN * A_RUN
        items = next((n for n in (256, 128, 64, 32, 16) if n <= items), 0)
        if items:
            count = geometry.images * geometry.channels
            return Form(1, items, False, True, 16 // item, count, 1, 1, True)
    accesses = max(1, taps // vector)
    vectors = geometry.channels // lanes
    count = geometry.images * vectors * geometry.outputs
    if is_inner:
        items = min(NEIGHBOURS, 1 << max(0, vectors - 1).bit_length())
        items = max(items, 1 << max(0, THREADS * A_THREAD // accesses - 1).bit_length())
    else:
        items = 1 << max(0, THREADS * A_THREAD // accesses).bit_length() >> 1
    items = max(1, min(items, THREADS))
    blocks = max(1, -(-count // items))
    useful = max(1, accesses // (THREADS // items * A_THREAD))
    parts = max(1, min(useful, MOST_PARTS, WANTED * device.multiprocessors // blocks))
    spread = parts
    if not is_forward:
        parts = parts if problem.mode == "max" else 1
    return Form(lanes, items, is_inner, is_whole, vector, count, parts, spread)


def _is_flat(geometry: Geometry, large: tuple[int, ...]) -> bool:
    """The planes of these tensors follow one another without gaps, and are of real numbers of 4 bytes or less."""
    packed = (geometry.channels * geometry.inputs, geometry.inputs)
    is_real = geometry.tensors[0].dtype in PACKED
    return is_real and all(geometry.steps[t] == packed and geometry.axes[-1].steps[t] == 1 for t in large)


def _position_type(problem: Pooling, device: GpuDevice) -> str:
    """Positions lie in workspace in front of the numbers, and are no smaller."""
    wide = number_type(problem, device) == "f64"
    return "i64" if wide else Geometry.of(problem).position_type


def _is_whole(problem: Pooling, geometry: Geometry) -> bool:
    """Windows are planes, and the elements of a plane of x, or dx, lie at equal distances."""
    if not all(axis.is_whole and not axis.is_adaptive for axis in geometry.axes):
        return False
    last = len(geometry.tensors) - 1
    large = (0,) if problem.direction == "fwd" else ((1, last) if problem.mode == "max" else (last,))
    for t in large:
        step, length = geometry.axes[-1].steps[t], geometry.axes[-1].extent
        for axis in geometry.axes[-2::-1]:
            if axis.extent > 1 and axis.steps[t] != step * length:
                return False
            length *= axis.extent
    return True


def _run(geometry: Geometry, t: int, most: int) -> int:
    """Elements of a plane of tensor t, a power of two up to `most`, that any access may take at once."""
    if geometry.axes[-1].steps[t] != 1:
        return 1
    while most > 1 and (geometry.inputs % most or any(step % most for step in geometry.steps[t])):
        most //= 2
    return most

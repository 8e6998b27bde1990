"""The code of a correlation vectorized over groups of packed planes: pack, compute, store."""

from __future__ import annotations

from jitdnn.devices.cpu_kernel import Arguments
from jitdnn.kernels.algorithm import Epilogue
from jitdnn.kernels.cpu.convolution.direct.code import pointer_count, results_of
from jitdnn.kernels.cpu.convolution.direct.over_groups.code import Versions, trace_filter, trace_versions
from jitdnn.kernels.cpu.convolution.direct.over_groups_packed.plan import OverGroupsPacked
from jitdnn.kernels.cpu.microkernel.epilogue_store import TileStore, TileStrides, trace_store
from jitdnn.kernels.cpu.microkernel.transpose import copy_transposed
from jitdnn.kernels.cpu.schedule.offsets import ceil_div, scale
from jitdnn.rtcg.builder import Builder, Function, Module, Pointer


def trace(module: Module, prefix: str, plan: OverGroupsPacked, extra: int, epilogue: Epilogue | None) -> None:
    """Trace the task ``<prefix>tiles``; the kernel's ``extra`` holds the units of a task."""
    c, lanes, pointers = plan.c, plan.lanes, pointer_count(plan.c)
    versions = trace_versions(module, prefix, plan.inner, None)
    transpose = trace_filter(module, f"{prefix}filter", plan.inner)
    pack = _trace_pack(module, f"{prefix}load", plan)
    store = _trace_store(module, f"{prefix}store", plan, epilogue)
    with module.task(f"{prefix}tiles") as (k, args, task, thread):
        arguments = Arguments(k, args, pointers)
        own = arguments.workspace(c.dtype) + thread * plan.thread_elements
        planes = own + c.depth * plan.x_pixels * lanes
        filters = own + plan.elements
        one_zero = k.local("f64", 2)  # the tiles' alpha and beta: the store applies the caller's
        one_zero.store(k.constant(1.0, "f64"), 0)
        one_zero.store(k.constant(0.0, "f64"), 1)
        transposed = k.register(k.integer(-1))
        results = results_of(arguments, c)
        for unit in plan.units.each(k, task, arguments.extra(extra)):
            vector, n = unit["vector"], unit["image"]
            group = vector * lanes
            left = k.integer(c.groups[0]) - group
            with k.when(transposed.get() != vector):
                w = arguments.pointer(1, c.w.dtype) + group * c.w.groups[0]
                k.call(transpose, w, filters, left)
                transposed.set(vector)
            x = arguments.pointer(0, c.x.dtype) + (c.x.offset + n * c.x.batch + group * c.x.groups[0])
            k.call(pack, x, own, left)
            _tiles(k, plan, versions, own, filters, planes, one_zero, x + c.x.batch)
            targets = [t + (v.offset + n * v.batch + group * v.groups[0]) for t, v in results]
            k.call(store, planes, scale(k, args, pointers), *targets, left)


def _tiles(
    k: Builder, plan: OverGroupsPacked, versions: Versions, x: Pointer, filters: Pointer, y: Pointer,
    one_zero: Pointer, next_image: Pointer,
) -> None:  # fmt: skip
    """All tiles of a vector of groups; meanwhile its planes of the next image are prefetched."""
    c, tile, item = plan.c, plan.tile, plan.item
    _, p, q = (axis.results for axis in c.axes)
    rows = ceil_div(p, tile.rows)
    is_run = c.depth == 1 and c.x.space[2] == 1 and plan.rows(True)[0] == 1
    line_bytes = plan.processor.line_bytes
    lines = ceil_div(ceil_div(plan.x_pixels * item, line_bytes), c.axes[0].results * rows) if is_run else 0
    for number in k.range(c.axes[0].results * rows):
        for lane in k.range(plan.lanes if lines else 0):
            corner = next_image + (lane * c.x.groups[0] + number * (lines * line_bytes // item))
            for line in range(lines):
                corner.prefetch(line * (line_bytes // item))
        d, h = number // rows, number % rows * tile.rows
        row = y + (d * p + h) * (q * plan.lanes)
        for runs, version in versions:
            for first, last in runs:
                for column in k.range(first, last):
                    at = column * tile.columns
                    k.call(version, x, filters, row + at * plan.lanes, one_zero, d, h, at, 0)


def _trace_pack(module: Module, name: str, plan: OverGroupsPacked) -> Function:
    """Trace ``name(x, planes, groups)``: the planes of the groups from the one that x points to, of which there
    are at least ``groups``, as [channel][pixel][lanes]."""
    c, lanes = plan.c, plan.lanes
    rows, pixels = plan.rows(True)
    with module.function(name, x=c.x.dtype, planes=c.dtype, groups=None) as (
        k, (x, planes, groups), function,
    ):  # fmt: skip
        for channel in k.range(c.depth):
            for row in k.range(rows):
                h = c.axes[1].positions
                offset = (row // h * c.x.space[0] + row % h * c.x.space[1]) if rows > 1 else 0
                source = x + (channel * c.x.channels + offset)
                target = planes + (channel * plan.x_pixels + row * pixels) * lanes
                if not plan.is_copied:
                    copy_transposed(k, source, c.x.groups[0], groups, pixels, target, lanes, lanes)
                    continue
                mask = k.mask(groups, lanes)
                for pixel in k.range(pixels):
                    target.store(source.load(pixel * c.x.space[2], lanes, mask), pixel * lanes)
    return function


def _trace_store(module: Module, name: str, plan: OverGroupsPacked, epilogue: Epilogue | None) -> Function:
    """Trace ``name(planes, scale, y, operands..., groups)``: the planes to y, of which ``groups`` are left."""
    c, lanes = plan.c, plan.lanes
    views = (c.y, *c.operands)
    y, *others = (TileStrides(v.dtype, (v.space[2],), v.groups[0]) for v in views)
    store = TileStore(c.dtype, (lanes,), (lanes,), 1, y, tuple(others), epilogue)
    square = trace_store(module, f"{name}_square", store)
    rows, pixels = plan.rows(False)
    operands = {f"operand{i}": v.dtype for i, v in enumerate(c.operands)}
    with module.function(
        name, planes=c.dtype, scale="f64", y=c.y.dtype, **operands, groups=None
    ) as (k, (planes, alpha_beta, *tensors, groups), function):  # fmt: skip
        for result in k.range(c.width):
            for row in k.range(rows):
                h = c.axes[1].results
                starts = []
                for tensor, view in zip(tensors, views, strict=True):
                    start = tensor + result * view.channels
                    if rows > 1:
                        start = start + (row // h * view.space[0] + row % h * view.space[1])
                    starts.append(start)
                own = planes + (result * plan.y_pixels + row * pixels) * lanes
                for at in k.range(0, pixels, lanes):
                    targets = [s + at * v.space[2] for s, v in zip(starts, views, strict=True)]
                    left = k.integer(pixels) - at
                    k.call(square, own + at * lanes, alpha_beta, *targets, groups, left)
    return function

"""The gradient of a bias: db[k] = sum of dy[n, k, ...] over the images and space.

    "rows"       vectorizes over space: a work unit is one channel
    "channels"   vectorizes over channels: a work unit is a run of pixels, whose sums go to the workspace
                 [runs][channels], and a second phase adds them (split-K)

At most 64 elements are added in their own type, then these partial sums in f64: the error does not grow with the number
of pixels. How the sum is split depends on the problem alone, so that the result does not depend on the number of
threads.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import prod

from jitdnn.devices.cpu import CpuDevice
from jitdnn.devices.cpu_kernel import Arguments, CpuKernel
from jitdnn.kernels.algorithm import UNIT_ROUNDOFF, Epilogue, Kernel, TypedAlgorithm, summation_bound
from jitdnn.kernels.cpu.microkernel.scale import Scale
from jitdnn.kernels.cpu.schedule.cost import seconds_of
from jitdnn.kernels.cpu.schedule.offsets import ceil_div
from jitdnn.kernels.cpu.schedule.parallel import Counter, split_units
from jitdnn.problems.convolution_bias import BiasGradient
from jitdnn.rtcg.builder import Builder, Module, Pointer, Value
from jitdnn.rtcg.compile import load

_VECTORS = 4
_RUN = 64  # vectors that are added to a sum before it is added to one of f64
_RUN_ELEMENTS = 1 << 16  # of a work unit of "channels", about
_MOST_RUNS = 256


def _pixels(problem: BiasGradient) -> list[tuple[int, int]]:
    """The axes that are summed over as (extent, stride), joined, from the outermost in memory inwards."""
    dy = problem.dy
    axes = [(n, s) for a, (n, s) in enumerate(zip(dy.shape, dy.strides, strict=True)) if a != 1 and n != 1]
    joined: list[tuple[int, int]] = []
    for extent, stride in sorted(axes, key=lambda axis: -abs(axis[1])):
        if joined and joined[-1][1] == extent * stride:
            joined[-1] = (joined[-1][0] * extent, stride)
        else:
            joined.append((extent, stride))
    return joined or [(1, 1)]


class _BiasAlgorithm(TypedAlgorithm[BiasGradient, CpuDevice]):
    problem = BiasGradient
    deterministic = True
    takes_no_epilogue = "the gradient of a bias takes no epilogue"

    def error_of(self, problem: BiasGradient) -> float:
        return max(16.0 * UNIT_ROUNDOFF[problem.dtype], summation_bound(problem))


# ---- rows


@dataclass(frozen=True)
class _RowsCode:
    dtype: str
    axes: int  # that are summed over
    is_unit: bool  # the innermost of them is contiguous


def _trace_rows(module: Module, code: _RowsCode) -> None:
    with module.task("bias") as (k, args, task, _):
        lanes, dtype = k.lanes(code.dtype), code.dtype
        arguments = Arguments(k, args, 2)
        channels, per_task, dy_step, db_step = (arguments.extra(i) for i in range(4))
        extents = [arguments.extra(4 + i) for i in range(code.axes)]
        strides = [arguments.extra(4 + code.axes + i) for i in range(code.axes)]
        step: int | Value = 1 if code.is_unit else strides[-1]
        scale = Scale(k, arguments, dtype)
        dy, db = (arguments.pointer(t, dtype) for t in range(2))
        piece = lanes * _VECTORS * _RUN

        def rows(plane: Pointer, axis: int) -> Iterator[Pointer]:
            if axis == code.axes - 1:
                yield plane
                return
            for i in k.range(extents[axis]):
                yield from rows(plane + i * strides[axis], axis + 1)

        for channel in k.range(task * per_task, (task * per_task + per_task).min(channels)):
            total = k.register(k.constant(0.0, "f64", lanes))
            for row in rows(dy + channel * dy_step, 0):
                for first in k.range(0, extents[-1], piece):
                    here, count = row + first * step, (extents[-1] - first).min(piece)
                    total += k.convert(_sum_of_piece(k, here, step, count, dtype), "f64")
            result = k.convert(k.reduce(total.get()), dtype)
            scale.store(db + channel * db_step, 1, result)


def _sum_of_piece(k: Builder, row: Pointer, step: int | Value, count: Value, dtype: str) -> Value:
    """Sums of ``count`` elements, one for each lane."""
    lanes = k.lanes(dtype)
    wide = lanes * _VECTORS
    sums = [k.register(k.constant(0.0, dtype, lanes)) for _ in range(_VECTORS)]
    full = (count // wide) * wide
    for i in k.range(0, full, wide):
        for v, part in enumerate(sums):
            part += (row + (i + v * lanes) * step).load_strided(0, step, lanes)
    for i in k.range(full, count, lanes):
        sums[0] += (row + i * step).load_strided(0, step, lanes, k.mask(count - i, lanes))
    a, b, c, d = (part.get() for part in sums)
    return (a + b) + (c + d)


class BiasRows(_BiasAlgorithm):
    """Vectorizes over the innermost axis of space, whatever its stride."""

    name = "rows"

    def seconds_of(self, plan: BiasGradient, device: CpuDevice) -> float:
        lanes = device.isa.lanes(plan.dtype)
        axes, channels = _pixels(plan), plan.dy.shape[1]
        extent, stride = axes[-1]
        vectors = channels * prod(e for e, _ in axes[:-1]) * ceil_div(extent, lanes)
        rows = channels * prod(e for e, _ in axes[:-1])
        cycles = vectors * (2.0 if stride == 1 else 2.0 * lanes) + rows * 20.0
        return seconds_of(plan, device, cycles, channels)

    def kernel_of(self, plan: BiasGradient, device: CpuDevice) -> Kernel:
        axes, channels = _pixels(plan), plan.dy.shape[1]
        code = _RowsCode(plan.dtype, len(axes), axes[-1][1] == 1)
        library = load("bias_rows", code, device.isa, lambda module: _trace_rows(module, code))
        tasks, per_task = split_units(channels, device, self.seconds_of(plan, device) * device.threads)
        extras = [
            channels, per_task, plan.dy.strides[1], plan.db.strides[0],
            *(e for e, _ in axes), *(s for _, s in axes),
        ]  # fmt: skip
        return CpuKernel(library, [("bias", tasks)], 2, device.threads, extras)


# ---- channels


@dataclass(frozen=True)
class _ChannelsCode:
    dtype: str
    axes: int  # that are summed over


def _trace_channels(module: Module, code: _ChannelsCode) -> None:
    dtype = code.dtype
    with module.task("partial") as (k, args, task, _):
        lanes = k.lanes(dtype)
        arguments = Arguments(k, args, 2)
        channels, pixels, per_run, units, per_task = (arguments.extra(i) for i in range(5))
        extents = [arguments.extra(6 + i) for i in range(code.axes)]
        strides = [arguments.extra(6 + code.axes + i) for i in range(code.axes)]
        dy, partial = arguments.pointer(0, dtype), arguments.workspace("f64")
        wide = lanes * _VECTORS

        def run(first: Value, count: Value, c: Value, target: Pointer, masks: Sequence[Value | None]) -> None:
            """Sums over ``count`` pixels of the channels from ``c`` on, one for each lane."""
            totals = [k.register(k.constant(0.0, "f64", lanes)) for _ in masks]
            counter = Counter(k, first, extents, [strides])
            for done in k.range(0, count, _RUN):
                sums = [k.register(k.constant(0.0, dtype, lanes)) for _ in masks]
                for _pixel in k.range((count - done).min(_RUN)):
                    pixel = dy + counter.offsets[0].get() + c
                    for v, (part, mask) in enumerate(zip(sums, masks, strict=True)):
                        part += pixel.load(v * lanes, lanes, mask)
                    counter.advance()
                for total, part in zip(totals, sums, strict=True):
                    total += k.convert(part.get(), "f64")
            for v, (total, mask) in enumerate(zip(totals, masks, strict=True)):
                target.store(total.get(), v * lanes, mask)

        for unit in k.range(task * per_task, (task * per_task + per_task).min(units)):
            first, target = unit * per_run, partial + unit * channels
            count = (pixels - first).min(per_run)
            main = (channels // wide) * wide
            for c in k.range(0, main, wide):
                run(first, count, c, target + c, [None] * _VECTORS)
            for c in k.range(main, channels, lanes):
                run(first, count, c, target + c, [k.mask(channels - c, lanes)])

    with module.task("total") as (k, args, _task, _):
        lanes = k.lanes(dtype)
        arguments = Arguments(k, args, 2)
        channels, units, db_step = arguments.extra(0), arguments.extra(3), arguments.extra(5)
        partial, db = arguments.workspace("f64"), arguments.pointer(1, dtype)
        scale = Scale(k, arguments, dtype)
        for c in k.range(0, channels, lanes):
            mask = k.mask(channels - c, lanes)
            total = k.register(k.constant(0.0, "f64", lanes))
            for unit in k.range(units):
                total += (partial + (unit * channels + c)).load(0, lanes, mask)
            scale.store(db + c * db_step, db_step, k.convert(total.get(), dtype), mask)


class BiasChannels(_BiasAlgorithm):
    """Vectorizes over adjacent channels, as in channels-last tensors."""

    name = "channels"

    def refusal(self, problem: BiasGradient, device: CpuDevice, epilogue: Epilogue | None) -> str | None:
        stride = problem.dy.strides[1]
        if stride != 1:
            return (
                f"channels of dy are {stride} elements apart: they must be neighbours, as in the layout nhwc"
            )
        return None

    def _runs(self, problem: BiasGradient) -> tuple[int, int]:
        """How many runs of pixels, and how long each is."""
        pixels = prod(extent for extent, _ in _pixels(problem))
        per_run = max(_RUN, _RUN_ELEMENTS // problem.dy.shape[1], ceil_div(pixels, _MOST_RUNS))
        return ceil_div(pixels, per_run), per_run

    def workspace_of(self, plan: BiasGradient, device: CpuDevice) -> int:
        return self._runs(plan)[0] * plan.dy.shape[1] * 8

    def seconds_of(self, plan: BiasGradient, device: CpuDevice) -> float:
        vectors = ceil_div(plan.dy.shape[1], device.isa.lanes(plan.dtype))
        runs, per_run = self._runs(plan)
        cycles = runs * per_run * (4.0 + 1.5 * vectors) + runs * vectors * 20.0
        return seconds_of(plan, device, cycles, runs)

    def kernel_of(self, plan: BiasGradient, device: CpuDevice) -> Kernel:
        axes = _pixels(plan)
        code = _ChannelsCode(plan.dtype, len(axes))
        library = load("bias_channels", code, device.isa, lambda module: _trace_channels(module, code))
        runs, per_run = self._runs(plan)
        tasks, per_task = split_units(runs, device, self.seconds_of(plan, device) * device.threads)
        extras = [
            plan.dy.shape[1], prod(e for e, _ in axes), per_run, runs, per_task, plan.db.strides[0],
            *(e for e, _ in axes), *(s for _, s in axes),
        ]  # fmt: skip
        return CpuKernel(library, [("partial", tasks), ("total", 1)], 2, device.threads, extras)

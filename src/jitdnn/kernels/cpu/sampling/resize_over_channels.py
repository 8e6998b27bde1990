"""Resizing with vectors along the channels, which must be adjacent: every lane has the same taps.

unit    one row of outputs of one image: for each output the weighted sum over its taps, channel by channel
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import prod

from jitdnn.devices.cpu import CpuDevice
from jitdnn.devices.cpu_kernel import Arguments, CpuKernel, WithTables
from jitdnn.kernels.algorithm import Epilogue, Kernel
from jitdnn.kernels.cpu import cost
from jitdnn.kernels.cpu.microkernel.scale import Scale
from jitdnn.kernels.cpu.sampling.resize_weights import (
    AXES,
    ResizeAlgorithm,
    Tables,
    addresses,
    axes_of,
    is_plain,
    outer_tables,
    strides_of,
)
from jitdnn.kernels.cpu.schedule.cost import LAUNCH_SECONDS
from jitdnn.kernels.cpu.schedule.parallel import Counter, Slots, split_units
from jitdnn.problems.resize import Resize
from jitdnn.rtcg.builder import Module, Pointer, Value
from jitdnn.rtcg.compile import load
from jitdnn.rtcg.isa import ITEM_BYTES
from jitdnn.rtcg.types import INT
from jitdnn.tensor import compute_dtype

_MOST_UNROLLED = 8  # taps; more of them are a loop
_VECTORS = 4  # of channels at once
_SLOTS = Slots(
    "units", "per_task", "images", "channels", "out0", "out1", "out2",
    *(f"x{a}" for a in range(5)), *(f"y{a}" for a in range(5)),
    *(f"{name}{axis}" for axis in range(AXES) for name in ("start", "weights")),
)  # fmt: skip

_Taps = Iterator[tuple[Pointer, Value]]


@dataclass(frozen=True)
class _Code:
    """What is compiled in."""

    dtype: str  # of the tensors
    widths: tuple[int, ...]
    is_plain: bool  # nearest: all weights are 1, and there is one tap
    streams: bool


class _Channels:
    """Traces one kernel."""

    def __init__(self, module: Module, code: _Code) -> None:
        self.code, self.computing = code, compute_dtype(code.dtype)
        with module.task("resize") as (k, args, task, _):
            self.k, self.lanes = k, k.lanes(self.computing)
            arguments = Arguments(k, args, 2)
            self.n = n = _SLOTS.load(arguments)
            tables = Tables(k, args, 2, _SLOTS.names)
            self.starts = [tables.pointer(f"start{a}", "i64") for a in range(AXES)]
            self.weights = [tables.pointer(f"weights{a}", self.computing) for a in range(AXES)]
            self.scale = Scale(k, arguments, self.computing)
            pointers = [arguments.pointer(t, code.dtype) for t in range(2)]
            zero, first = k.integer(0), task * n["per_task"]
            counter = Counter(
                k,
                first,
                [n["images"], n["out0"], n["out1"]],
                [[n["x0"], zero, zero], [n["y0"], n["y2"], n["y3"]]],
            )
            for _unit in k.range(first, (first + n["per_task"]).min(n["units"])):
                image, row = (p + o.get() for p, o in zip(pointers, counter.offsets, strict=True))
                self._row(image, row, [digit.get() for digit in counter.digits[1:]])
                counter.advance()

    def _row(self, image: Pointer, row: Pointer, outputs: Sequence[Value]) -> None:
        k, n = self.k, self.n
        for axis, output in enumerate(outputs):
            image = image + self.starts[axis].load(output) * n[f"x{2 + axis}"]
        for output in k.range(n["out2"]):
            corner = image + self.starts[2].load(output) * n["x4"]
            weights = [
                w + o * width
                for w, o, width in zip(self.weights, (*outputs, output), self.code.widths, strict=True)
            ]
            self._pixel(corner, row + output * n["y4"], weights)

    def _pixel(self, corner: Pointer, target: Pointer, weights: Sequence[Pointer]) -> None:
        k, lanes, channels = self.k, self.lanes, self.n["channels"]
        unrolled = self._unrolled(weights) if prod(self.code.widths) <= _MOST_UNROLLED else None
        wide = (channels // (lanes * _VECTORS)) * (lanes * _VECTORS)
        if self.code.streams:
            address = Value(k, k.b.ptrtoint(target.v, INT))
            misplaced = address & (lanes * ITEM_BYTES[self.code.dtype] - 1)
            may_stream = (self.scale.beta == 0.0) & (misplaced == 0)
            with k.when(may_stream):
                self._wide(corner, target, weights, unrolled, wide, streams=True)
            with k.when(~may_stream):
                self._wide(corner, target, weights, unrolled, wide, streams=False)
        else:
            self._wide(corner, target, weights, unrolled, wide, streams=False)
        for c in k.range(wide, channels, lanes):
            mask = k.mask(channels - c, lanes)
            (result,) = self._sums(corner + c, weights, unrolled, 1, mask)
            self.scale.store(target + c, 1, result, mask)

    def _wide(
        self,
        corner: Pointer,
        target: Pointer,
        weights: Sequence[Pointer],
        unrolled: list[tuple[Value, Value]] | None,
        stop: Value,
        streams: bool,
    ) -> None:
        k, lanes = self.k, self.lanes
        for c in k.range(0, stop, lanes * _VECTORS):
            for v, result in enumerate(self._sums(corner + c, weights, unrolled, _VECTORS, None)):
                there = target + (c + v * lanes)
                if streams:
                    there.stream(result * k.splat(self.scale.alpha, lanes))
                else:
                    self.scale.store(there, 1, result)

    def _unrolled(self, weights: Sequence[Pointer]) -> list[tuple[Value, Value]]:
        """Where the taps are, from the corner, and their weights."""
        k, n = self.k, self.n
        ones = [[w.load(t) for t in range(width)] for w, width in zip(weights, self.code.widths, strict=True)]
        return [
            (n["x2"] * t0 + n["x3"] * t1 + n["x4"] * t2, k.splat(a * b * c, self.lanes))
            for t0, a in enumerate(ones[0])
            for t1, b in enumerate(ones[1])
            for t2, c in enumerate(ones[2])
        ]

    def _sums(
        self,
        corner: Pointer,
        weights: Sequence[Pointer],
        unrolled: list[tuple[Value, Value]] | None,
        vectors: int,
        mask: Value | None,
    ) -> list[Value]:
        k, lanes = self.k, self.lanes
        if self.code.is_plain:
            return [corner.load(v * lanes, lanes, mask) for v in range(vectors)]
        totals = [k.register(k.constant(0.0, self.computing, lanes)) for _ in range(vectors)]
        taps = self._looped(weights) if unrolled is None else iter(unrolled)
        for offset, factor in taps:
            for v, total in enumerate(totals):
                value = (corner + offset).load(v * lanes, lanes, mask)
                total.set(k.fma(value, factor, total.get()))
        return [total.get() for total in totals]

    def _looped(self, weights: Sequence[Pointer]) -> Iterator[tuple[Value, Value]]:
        k, n, widths = self.k, self.n, self.code.widths
        for t0 in k.range(widths[0]):
            for t1 in k.range(widths[1]):
                outer = weights[0].load(t0) * weights[1].load(t1)
                for t2 in k.range(widths[2]):
                    offset = n["x2"] * t0 + n["x3"] * t1 + n["x4"] * t2
                    yield offset, k.splat(outer * weights[2].load(t2), self.lanes)


class ResizeChannels(ResizeAlgorithm):
    """Vectors along channels that are neighbours: the way for channels-last tensors."""

    name = "channels"

    def refusal(self, problem: Resize, device: CpuDevice, epilogue: Epilogue | None) -> str | None:
        for operand in problem.operands:
            if operand.descriptor.strides[1] != 1:
                return (
                    f"channels of {operand.name} are {operand.descriptor.strides[1]} elements apart: they must be "
                    "neighbours, as in the layout nhwc"
                )
        return super().refusal(problem, device, epilogue)

    def seconds_of(self, plan: Resize, device: CpuDevice) -> float:
        return LAUNCH_SECONDS + self._seconds(plan, device) / device.threads

    def _seconds(self, problem: Resize, device: CpuDevice) -> float:
        lanes = device.isa.lanes(problem.dtype)
        taps = prod(axis.width for axis in axes_of(problem))
        pixels = problem.output.size // max(1, problem.output.shape[1])
        return pixels * (8 + 2 * taps + -(-problem.output.shape[1] // lanes) * (taps + 2)) * 0.4e-9

    def kernel_of(self, plan: Resize, device: CpuDevice) -> Kernel:
        axes = axes_of(plan)
        source, target = (operand.descriptor for operand in plan.operands)
        code = _Code(
            plan.dtype,
            tuple(taps.width for taps in axes),
            is_plain(axes),
            target.nbytes >= device.isa.processor.last_cache(cost.ELEMENTWISE_STREAM),
        )
        tables = outer_tables(axes, compute_dtype(plan.dtype))
        outputs = [len(taps.start) for taps in axes]
        units = target.shape[0] * outputs[0] * outputs[1]
        tasks, per_task = split_units(units, device, self._seconds(plan, device))
        values = {
            "units": units, "per_task": per_task, "images": target.shape[0], "channels": target.shape[1],
            "out0": outputs[0], "out1": outputs[1], "out2": outputs[2],
            **{f"x{a}": step for a, step in enumerate(strides_of(source))},
            **{f"y{a}": step for a, step in enumerate(strides_of(target))}, **addresses(tables),
        }  # fmt: skip
        library = load("resize_channels", code, device.isa, lambda module: _Channels(module, code))
        return WithTables(
            CpuKernel(library, [("resize", tasks)], 2, device.threads, _SLOTS.pack(values)), tables
        )

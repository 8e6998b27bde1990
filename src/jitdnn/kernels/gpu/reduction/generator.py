"""Programs over rows (`row_programs`) as kernels for GPUs."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast

from jitdnn.devices.gpu import GpuDevice, Launch, Source, read_text
from jitdnn.kernels.algorithm import Device, Kernel
from jitdnn.kernels.formulas.row_algorithms import Step
from jitdnn.kernels.gpu.prelude.cost import LAUNCH_SECONDS
from jitdnn.kernels.gpu.reduction.code import write_rows
from jitdnn.kernels.gpu.reduction.layout import lay_out
from jitdnn.kernels.gpu.reduction.plan import Layout, RowCode, region_bytes
from jitdnn.kernels.gpu.reduction.split_rows import partial_states
from jitdnn.tensor import DTYPES, TensorDescriptor


@dataclass(frozen=True)
class RowKernel:
    """The kernel of a step, with so many `pointers` (by default one for each tensor)."""

    step: Step
    device: GpuDevice
    pointers: int | None = None

    @functools.cached_property
    def code(self) -> RowCode:
        step, count = self.step, len(self.step.tensors)
        shape, compute = step.shape, step.computing
        tensors = [tensor.broadcast_to(shape) for tensor in step.tensors]
        axes = tuple(axis % len(shape) for axis in step.axes)
        layout = lay_out(step.program, tensors, axes, self.device, compute)
        operands = tuple(range(count)) if step.operands is None else step.operands
        pointers = count if self.pointers is None else self.pointers
        dtypes = tuple(tensor.dtype for tensor in tensors)
        return RowCode(step.program, dtypes, operands, pointers, step.plain, compute, layout)

    @property
    def layout(self) -> Layout:
        return self.code.layout

    def workspace(self) -> int:
        """Bytes for what the parts of rows leave."""
        if not self.code.is_split:
            return 0
        states = partial_states(self.step.program, self.code.compute, self.code.index)
        return len(states) * region_bytes(self.layout)

    def estimate(self) -> float:
        """Expected seconds: the bytes that all passes move."""
        loops = [row_pass for row_pass in self.step.program.passes if row_pass.loops]
        tensors, inputs, moved = self.step.tensors, self.step.inputs, 0
        seen: set[int] = set()
        for row_pass in loops:
            expressions = [
                *(e for _, e in row_pass.loop_reductions),
                *(e for _, e in row_pass.writes),
                *row_pass.keeps,
            ]
            used = {i for e in expressions for i in e.used() if i < inputs}
            for t in used - seen if self.layout.in_registers else used:
                moved += _reach(tensors[t])
            seen |= used
            moved += sum(_reach(tensors[inputs + output]) for output, _ in row_pass.writes)
        launches = 1 if not self.code.is_split else 2 * len(loops)
        return launches * LAUNCH_SECONDS + moved / (0.9 * self.device.bandwidth)

    def source(self) -> tuple[Source, list[Launch]]:
        """The text and what is launched of it."""
        layout = self.layout
        body, functions = write_rows(self.code)
        launches = [
            Launch(name, layout.combine_blocks, layout.combine_block_threads)
            if combines_parts
            else Launch(name, (layout.blocks, layout.parts), layout.threads)
            for name, combines_parts in functions
        ]
        text = read_text("gpu/prelude", "reduce.h") + body
        # rows that fill the registers leave no room for a few numbers
        return Source("rows", text, spills=True), launches

    def build(self) -> Kernel:
        source, launches = self.source()
        extras = [value for _, value in self.code.extras]
        return self.device.kernel(source, launches, self.code.pointers, extras, self.step.program.parameters)


def _reach(tensor: TensorDescriptor) -> int:
    size = DTYPES[tensor.dtype]
    for extent, stride in zip(tensor.shape, tensor.strides, strict=True):
        size *= extent if stride else 1
    return size


class RowLoops:
    """The generator of GPUs for programs over rows."""

    name = "rows"
    has_joint = True

    def refuse(self, tensors: Sequence[TensorDescriptor], device: Device) -> str | None:
        if any(tensor.dtype == "f64" for tensor in tensors) and not cast(GpuDevice, device).has_f64:
            return f"{device.name} has no double precision: use f32"
        return None

    def prefers_joint(self, step: Step, device: Device) -> bool:
        return not self.kernel(step, device).layout.in_registers

    def kernel(self, step: Step, device: Device, pointers: int | None = None, pieces: int = 1) -> RowKernel:
        return RowKernel(step, cast(GpuDevice, device), pointers)

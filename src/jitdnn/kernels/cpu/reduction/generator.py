"""Programs over rows (`row_programs`) as kernels, with vectors over the elements of a row or over many rows."""

from __future__ import annotations

import functools
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast

from jitdnn.devices.cpu import CpuDevice
from jitdnn.devices.cpu_kernel import CpuKernel
from jitdnn.kernels.algorithm import Device
from jitdnn.kernels.cpu import cost
from jitdnn.kernels.cpu.reduction.code import trace_rows
from jitdnn.kernels.cpu.reduction.layout import (
    BUFFER_ELEMENTS,
    Requirements,
    allocated,
    buffered_items,
    lay_out,
)
from jitdnn.kernels.cpu.reduction.plan import (
    REPEATED,
    STRIDED,
    UNIT,
    Layout,
    RowBuffer,
    RowCode,
    functions_of,
    partial_values,
    slots_of,
)
from jitdnn.kernels.cpu.schedule.cost import LAUNCH_SECONDS
from jitdnn.kernels.cpu.schedule.parallel import split_units, task_count
from jitdnn.kernels.formulas.row_algorithms import Step
from jitdnn.kernels.formulas.row_programs import Program
from jitdnn.rtcg.compile import load
from jitdnn.rtcg.operations import OPERATIONS
from jitdnn.rtcg.processor import Processor
from jitdnn.tensor import DTYPES, TensorDescriptor

_FUNCTION_CYCLES = 12.0  # exp and its like for one vector
_CHEAP = frozenset({"absolute", "minimum", "maximum", "where", "sqrt"})
_FIXED_VECTORS = 8  # of a row, up to which its length is compiled in where vectors are over its elements
_FAR_STRIDE = 256  # elements from which on the elements of a row are in each other's way in the cache
_STREAM_RUN = 4096  # bytes of a row, or looking for aligned addresses costs more than it brings


@dataclass(frozen=True)
class RowKernel:
    """The kernel of a step: a program over rows, with vectors over the elements of a row or over many rows.

    It takes so many `pointers` (by default one for each tensor). `pieces`: of how many such calls this is one, all
    with large tensors between them.
    """

    step: Step
    device: CpuDevice
    pointers: int | None = None
    pieces: int = 1

    @property
    def _lanes(self) -> int:
        return self.device.isa.lanes(self.step.computing)

    def workspace(self) -> int:
        """Bytes of workspace that the kernel needs: results of the parts of rows."""
        code, layout = self._plan
        if not code.is_split:
            return 0
        values = partial_values(code) * (self._lanes if layout.over_rows else 1)
        return layout.units(self._lanes) * layout.parts * values * 8

    def estimate(self) -> float:
        """Expected seconds."""
        (code, layout), device = self._plan, self.device
        seconds = _seconds(self.step.program, code, layout, self._lanes, device.isa.processor)
        most_tasks = max(1, layout.units(self._lanes) * layout.parts)
        return LAUNCH_SECONDS + seconds / min(device.threads, task_count(device, seconds), most_tasks)

    def build(self) -> CpuKernel:
        """Trace and compile it."""
        (code, layout), device, lanes = self._plan, self.device, self._lanes
        program = self.step.program
        seconds = _seconds(program, code, layout, lanes, device.isa.processor)
        units = layout.units(lanes)
        tasks, per_task = split_units(units * layout.parts, device, seconds)
        row_tasks, row_per_task = split_units(units, device, seconds / max(1, layout.row))
        values = {
            "units": units, "per_task": per_task, "row_per_task": row_per_task, "parts": layout.parts,
            "steps": layout.steps, "per_part": layout.per_part, "flush": layout.flush, "inner": layout.inner[0],
            "block": layout.block, "lanes": layout.lane[0], "row": layout.row, "blocks": layout.blocks,
            "lane_blocks": layout.lane_blocks(lanes),
        }  # fmt: skip
        width = lanes * layout.vectors
        for t in range(len(self.step.tensors) + 1):
            values |= {
                f"base.{t}": layout.bases[t], f"inner.{t}": layout.inner[1][t],
                f"lane.{t}": layout.lane_strides[t], f"first.{t}": layout.firsts[t],
                f"blocks.{t}": layout.inner[1][t] * layout.block, f"lane_blocks.{t}": layout.lane[1][t] * width,
            }  # fmt: skip
            for name, axes in (("kept", layout.kept), ("reduced", layout.reduced)):
                values |= {f"{name}{a}": extent for a, (extent, _) in enumerate(axes)}
                values |= {f"{name}{a}.{t}": strides[t] for a, (_, strides) in enumerate(axes)}
        for n, number in enumerate(program.parameters):
            values[f"parameter{n}"] = int(struct.unpack("q", struct.pack("d", number))[0])
        library = load("rows", code, device.isa, lambda module: trace_rows(module, code))
        phases = [(name, tasks if in_parts else row_tasks) for name, in_parts in functions_of(code)]
        return CpuKernel(library, phases, code.pointers, device.threads, slots_of(code).pack(values))

    @functools.cached_property
    def _plan(self) -> tuple[RowCode, Layout]:
        """What is compiled in, and the sizes."""
        program, isa = self.step.program, self.device.isa
        shape = self.step.shape
        tensors = [tensor.broadcast_to(shape) for tensor in self.step.tensors]
        inputs, compute, lanes = self.step.inputs, self.step.computing, self._lanes
        loop_reductions = max(len(row_pass.loop_reductions) for row_pass in program.passes)
        loops = [row_pass for row_pass in program.passes if row_pass.loops]
        adds = any(name == "add" for row_pass in loops for name, _ in row_pass.loop_reductions)
        required = Requirements(
            lanes, loop_reductions, 8 if isa.registers >= 32 and loop_reductions <= 2 else 4, len(loops),
            is_wide=compute == "f32" and adds, needs_positions=program.needs_positions,
            keeps=any(row_pass.keeps for row_pass in program.passes), processor=isa.processor,
        )  # fmt: skip
        layout = lay_out(
            tensors, [axis % len(shape) for axis in self.step.axes], required, self.step.vectors_over
        )
        is_split = layout.parts > 1
        row_axes = (*layout.reduced, layout.inner)
        width = lanes * layout.vectors
        of_rows = tuple(all(strides[t] == 0 for _, strides in row_axes) for t in range(len(tensors)))
        moves = tuple(
            REPEATED if not layout.over_rows and n < len(tensors) and of_rows[n] else move
            for n, move in enumerate(layout.moves())
        )
        written = {
            output
            for row_pass in program.passes
            for output, _ in row_pass.writes
            if not row_pass.loop_reductions
        }
        run = layout.inner[0] * min((DTYPES[tensors[inputs + output].dtype] for output in written), default=0)
        stream_bytes = isa.processor.last_cache(cost.REDUCTION_STREAM) / self.pieces
        has_head = not layout.over_rows and run >= _STREAM_RUN
        streams = tuple(
            output for output in sorted(written)
            if moves[inputs + output] == UNIT and _streams(
                tensors[inputs + output], stream_bytes, inputs + output, layout, lanes, has_head
            )
        )  # fmt: skip
        is_tiny = not layout.over_rows and not has_head and layout.steps == 1 and not is_split
        fixed = layout.inner[0] if is_tiny and layout.inner[0] <= _FIXED_VECTORS * lanes else 0
        buffer = _buffer(program, layout, moves, of_rows, lanes)
        operands, pointers = self.step.operands, self.pointers
        code = RowCode(
            program, tuple(t.dtype for t in tensors),
            tuple(range(len(tensors))) if operands is None else operands,
            len(tensors) if pointers is None else pointers, self.step.plain, compute,
            "i32" if layout.row < 2**31 and compute == "f32" else "i64",
            layout.over_rows, len(layout.kept), len(layout.reduced), moves, of_rows, layout.vectors, layout.unroll,
            layout.over_rows and layout.lane[0] >= width, layout.over_rows and layout.lane[0] % width != 0,
            layout.steps == 1 and not is_split, is_split, layout.flush > 0,
            streams, has_head, fixed, buffer,
        )  # fmt: skip
        return code, layout


class RowLoops:
    """The generator of processors for programs over rows."""

    name = "sweeps"
    has_joint = False

    def refuse(self, tensors: Sequence[TensorDescriptor], device: Device) -> str | None:
        return None

    def prefers_joint(self, step: Step, device: Device) -> bool:
        return False

    def kernel(self, step: Step, device: Device, pointers: int | None = None, pieces: int = 1) -> RowKernel:
        return RowKernel(step, cast(CpuDevice, device), pointers, pieces)


def _buffer(
    program: Program, layout: Layout, moves: Sequence[str], of_rows: Sequence[bool], lanes: int
) -> RowBuffer:
    """The buffer of a row, or of a unit's rows: keeps, and inputs that are costly to load again."""
    count = len(of_rows) - program.outputs
    if layout.parts > 1:
        return RowBuffer()
    far = [layout.over_rows and abs(stride) >= _FAR_STRIDE for stride in layout.inner[1]]
    costly = [t for t in range(count) if not of_rows[t] and (far[t] or moves[t] == STRIDED)]
    row = layout.steps * layout.block
    elements = row * lanes * layout.vectors if layout.over_rows else row + lanes
    capacity = max(1024, 1 << (elements - 1).bit_length())
    for inputs in (costly, []):
        buffer = allocated(buffered_items(program, inputs, count), capacity)
        if buffer.size <= BUFFER_ELEMENTS:
            return buffer
    return RowBuffer()


def _streams(
    tensor: TensorDescriptor, stream_bytes: float, number: int, layout: Layout, lanes: int, has_head: bool
) -> bool:
    """Whether an output is written past the caches: large, in pieces that can be aligned vectors."""
    if tensor.nbytes < stream_bytes:
        return False
    if has_head:
        return True  # what is before the first aligned vector is stored otherwise
    axes = [*layout.kept, *layout.reduced, *([layout.inner] if layout.over_rows else [])]
    return all(strides[number] % lanes == 0 for _, strides in axes)


def _seconds(program: Program, code: RowCode, layout: Layout, lanes: int, processor: Processor) -> float:
    """Seconds of one thread."""
    width = lanes * layout.vectors if layout.over_rows else 1
    elements = layout.units(lanes) * layout.row * width
    size = [DTYPES[dtype] for dtype, own in zip(code.dtypes, code.of_rows, strict=True) if not own]
    moved = elements * sum(size) / cost.memory_speed(processor, cost.REDUCTION_MEMORY_RATE)
    cycle_seconds = cost.REDUCTION_CYCLES / processor.clock
    cycles = 0.0
    for row_pass in program.passes:
        if not row_pass.loops:
            continue
        expressions = [e for _, e in (*row_pass.reductions, *row_pass.writes)]
        steps = [step.operation for e in (*expressions, *row_pass.keeps) for step in e.instructions]
        functions = sum(OPERATIONS[s].is_function and s not in _CHEAP for s in steps if s in OPERATIONS)
        gathers = sum(m == STRIDED and not own for m, own in zip(code.moves, code.of_rows, strict=False))
        cycles += 2.0 + functions * _FUNCTION_CYCLES + gathers * 2.0 * lanes
    rows = layout.units(lanes) * (30.0 + 20.0 * len(program.passes))
    return max(moved, cycles * elements / lanes * cycle_seconds) + rows * cycle_seconds

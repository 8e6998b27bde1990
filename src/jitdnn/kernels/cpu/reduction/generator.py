"""Programs over rows (`row_programs`) as kernels: one layout of the loops, vectors along a row or across many."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import cast

from jitdnn.devices.cpu import CpuDevice, CpuKernel
from jitdnn.errors import InvalidShape
from jitdnn.kernels.algorithm import Device
from jitdnn.kernels.cpu.reduction.code import (
    SweepCode,
    functions_of,
    partial_values,
    slots_of,
    trace_sweeps,
)
from jitdnn.kernels.cpu.reduction.layout import (
    REPEATED,
    STAGE_ELEMENTS,
    STRIDED,
    UNIT,
    Layout,
    Wants,
    lay_out,
)
from jitdnn.kernels.cpu.reduction.row_buffer import Stage, placed, stage_of
from jitdnn.kernels.cpu.schedule.cost import LAUNCH_SECONDS
from jitdnn.kernels.cpu.schedule.parallel import split_units, task_count
from jitdnn.kernels.formulas.row_programs import Program, Sweep
from jitdnn.rtcg.compile import load
from jitdnn.rtcg.operations import OPERATIONS
from jitdnn.tensor import DTYPES, TensorDescriptor, compute_dtype

__all__ = ["Program", "Sweep", "build_sweeps", "estimate_sweeps", "workspace_sweeps"]

_CORE_BYTES_PER_SECOND = 16e9
_CYCLE_SECONDS = 0.3e-9
_FUNCTION_CYCLES = 12.0  # exp and its like for one vector
_CHEAP = frozenset({"absolute", "minimum", "maximum", "where", "sqrt"})
_STREAM_BYTES = 48 << 20  # outputs from here on do not fit any cache: they are written past it
_FIXED_VECTORS = 8  # of a row along which vectors go, up to which its length is compiled in
_FAR_STRIDE = 256  # elements from which on the elements of a row are in each other's way in the cache
_STREAM_RUN = 4096  # bytes of a row, or looking for aligned addresses costs more than it brings


def build_sweeps(
    program: Program,
    tensors: Sequence[TensorDescriptor],
    reduced_axes: Sequence[int],
    device: Device,
    plain: Sequence[int] = (),
    operands: Sequence[int] | None = None,
    pointers: int | None = None,
    compute: str | None = None,
    mode: str | None = None,
    pieces: int = 1,
) -> CpuKernel:
    """The kernel of a program over tensors, inputs first, then outputs, each broadcast to one shape.

    Tensors may have extent 1 where others have more; row outputs must, or stride 0, along the reduced axes.
    `plain`: outputs (by position among them) that alpha and beta do not touch. `operands`: the number of each
    tensor's pointer (in order if None) among the kernel's `pointers`; a state is an input and an output of one
    number. `compute`: "f32" or "f64" to compute in, by default what the tensors' dtypes ask for. `mode`:
    "along" or "across" asks for vectors along a reduced or a kept axis, where there is one. `pieces`: of how many
    such calls this is one, all with large tensors between them.

    An output may be the very tensor of an input that has every element of the row: elements are read before they
    are written.
    """
    code, layout = _plan(
        program, tensors, reduced_axes, device, plain, operands, pointers, compute, mode, pieces
    )
    processor = cast(CpuDevice, device)
    lanes = processor.isa.lanes(code.compute)
    seconds = _seconds(program, code, layout, lanes)
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
    for t in range(len(tensors) + 1):
        values |= {
            f"base.{t}": layout.bases[t], f"inner.{t}": layout.inner[1][t], f"lane.{t}": layout.lane_strides[t],
            f"first.{t}": layout.firsts[t],
            f"blocks.{t}": layout.inner[1][t] * layout.block, f"lane_blocks.{t}": layout.lane[1][t] * width,
        }  # fmt: skip
        for name, axes in (("kept", layout.kept), ("reduced", layout.reduced)):
            values |= {f"{name}{a}": extent for a, (extent, _) in enumerate(axes)}
            values |= {f"{name}{a}.{t}": strides[t] for a, (_, strides) in enumerate(axes)}
    for n, number in enumerate(program.parameters):
        values[f"parameter{n}"] = int(struct.unpack("q", struct.pack("d", number))[0])
    library = load("sweeps", code, processor.isa, lambda module: trace_sweeps(module, code))
    phases = [(name, tasks if in_parts else row_tasks) for name, in_parts in functions_of(code)]
    threads = processor.threads if tasks > 1 else 1
    return CpuKernel(library, phases, code.pointers, threads, slots_of(code).pack(values))


def estimate_sweeps(
    program: Program,
    tensors: Sequence[TensorDescriptor],
    reduced_axes: Sequence[int],
    device: Device,
    compute: str | None = None,
    mode: str | None = None,
) -> float:
    """Expected seconds of the kernel that ``build_sweeps`` makes."""
    code, layout = _plan(program, tensors, reduced_axes, device, (), None, None, compute, mode)
    lanes = cast(CpuDevice, device).isa.lanes(code.compute)
    seconds = _seconds(program, code, layout, lanes)
    threads = min(device.threads, task_count(device, seconds), max(1, layout.units(lanes) * layout.parts))
    return LAUNCH_SECONDS + seconds / threads


def workspace_sweeps(
    program: Program,
    tensors: Sequence[TensorDescriptor],
    reduced_axes: Sequence[int],
    device: Device,
    compute: str | None = None,
    mode: str | None = None,
) -> int:
    """Bytes of workspace that the kernel needs: results of the parts of rows."""
    code, layout = _plan(program, tensors, reduced_axes, device, (), None, None, compute, mode)
    if not code.is_split:
        return 0
    lanes = cast(CpuDevice, device).isa.lanes(code.compute)
    values = partial_values(code) * (lanes if layout.is_across else 1)
    return layout.units(lanes) * layout.parts * values * 8


def _plan(
    program: Program, tensors: Sequence[TensorDescriptor], axes: Sequence[int], device: Device,
    plain: Sequence[int], operands: Sequence[int] | None, pointers: int | None, compute: str | None,
    mode: str | None, pieces: int = 1,
) -> tuple[SweepCode, Layout]:  # fmt: skip
    isa = cast(CpuDevice, device).isa
    shape = _common_shape(tensors)
    tensors = [tensor.broadcast_to(shape) for tensor in tensors]
    inputs = len(tensors) - program.outputs
    of_values = [
        t.dtype for n, t in enumerate(tensors) if n < inputs or t.dtype in ("f16", "bf16", "f32", "f64")
    ]
    compute = compute or compute_dtype(*of_values)
    lanes = isa.lanes(compute)
    folds = max(len(sweep.folds) for sweep in program.sweeps)
    loops = [sweep for sweep in program.sweeps if sweep.loops]
    adds = any(name == "add" for sweep in loops for name, _ in sweep.folds)
    wants = Wants(
        lanes, folds, 8 if isa.registers >= 32 and folds <= 2 else 4, len(loops),
        is_wide=compute == "f32" and adds, places=program.places,
        keeps=any(sweep.keeps for sweep in program.sweeps),
    )  # fmt: skip
    layout = lay_out(tensors, [axis % len(shape) for axis in axes], wants, mode)
    is_split = layout.parts > 1
    row_axes = (*layout.reduced, layout.inner)
    width = lanes * layout.vectors
    of_rows = tuple(all(strides[t] == 0 for _, strides in row_axes) for t in range(len(tensors)))
    moves = tuple(
        REPEATED if not layout.is_across and n < len(tensors) and of_rows[n] else move
        for n, move in enumerate(layout.moves())
    )
    written = {output for sweep in program.sweeps for output, _ in sweep.writes if not sweep.folds}
    run = layout.inner[0] * min((DTYPES[tensors[inputs + output].dtype] for output in written), default=0)
    has_head = not layout.is_across and run >= _STREAM_RUN
    streams = tuple(
        output for output in sorted(written)
        if moves[inputs + output] == UNIT and _streams(
            tensors[inputs + output], pieces, inputs + output, layout, lanes, has_head
        )
    )  # fmt: skip
    is_tiny = not layout.is_across and not has_head and layout.steps == 1 and not is_split
    fixed = layout.inner[0] if is_tiny and layout.inner[0] <= _FIXED_VECTORS * lanes else 0
    stage = _stage(program, layout, moves, of_rows, lanes)
    code = SweepCode(
        program, tuple(t.dtype for t in tensors),
        tuple(range(len(tensors)) if operands is None else operands),
        len(tensors) if pointers is None else pointers, tuple(plain), compute,
        "i32" if layout.row < 2**31 and compute == "f32" else "i64",
        layout.is_across, len(layout.kept), len(layout.reduced), moves, of_rows, layout.vectors, layout.unroll,
        layout.is_across and layout.lane[0] >= width, layout.is_across and layout.lane[0] % width != 0,
        layout.steps == 1 and not is_split, is_split, layout.flush > 0,
        streams, has_head, fixed, stage,
    )  # fmt: skip
    return code, layout


def _stage(
    program: Program, layout: Layout, moves: Sequence[str], of_rows: Sequence[bool], lanes: int
) -> Stage:
    """The buffer of a row, or of a unit's rows: keeps, and inputs that are dear to load again."""
    count = len(of_rows) - program.outputs
    if layout.parts > 1:
        return Stage()
    far = [layout.is_across and abs(stride) >= _FAR_STRIDE for stride in layout.inner[1]]
    dear = [t for t in range(count) if not of_rows[t] and (far[t] or moves[t] == STRIDED)]
    row = layout.steps * layout.block
    elements = row * lanes * layout.vectors if layout.is_across else row + lanes
    capacity = max(1024, 1 << (elements - 1).bit_length())
    for inputs in (dear, []):
        stage = placed(stage_of(program, inputs, count), capacity)
        if stage.size <= STAGE_ELEMENTS:
            return stage
    return Stage()


def _streams(
    tensor: TensorDescriptor, pieces: int, number: int, layout: Layout, lanes: int, has_head: bool
) -> bool:
    """Whether an output is written past the caches: large, in pieces that can be aligned vectors."""
    if tensor.nbytes * pieces < _STREAM_BYTES:
        return False
    if has_head:
        return True  # what is before the first aligned vector is stored otherwise
    axes = [*layout.kept, *layout.reduced, *([layout.inner] if layout.is_across else [])]
    return all(strides[number] % lanes == 0 for _, strides in axes)


def _common_shape(tensors: Sequence[TensorDescriptor]) -> tuple[int, ...]:
    ranks = {len(tensor.shape) for tensor in tensors}
    if len(ranks) != 1:
        raise InvalidShape(f"tensors of {sorted(ranks)} dimensions: all must have as many")
    shape = []
    for extents in zip(*(tensor.shape for tensor in tensors), strict=True):
        others = {extent for extent in extents if extent != 1} or {1}
        if len(others) > 1:
            raise InvalidShape(f"extents {extents} of one axis: each must be 1 or that of the others")
        shape.append(others.pop())
    return tuple(shape)


def _seconds(program: Program, code: SweepCode, layout: Layout, lanes: int) -> float:
    """Seconds of one thread."""
    width = lanes * layout.vectors if layout.is_across else 1
    elements = layout.units(lanes) * layout.row * width
    size = [DTYPES[dtype] for dtype, own in zip(code.dtypes, code.of_rows, strict=True) if not own]
    moved = elements * sum(size) / _CORE_BYTES_PER_SECOND
    cycles = 0.0
    for sweep in program.sweeps:
        if not sweep.loops:
            continue
        expressions = [e for _, e in (*sweep.reductions, *sweep.writes)]
        steps = [step.operation for e in (*expressions, *sweep.keeps) for step in e.instructions]
        functions = sum(OPERATIONS[s].is_function and s not in _CHEAP for s in steps if s in OPERATIONS)
        gathers = sum(m == STRIDED and not own for m, own in zip(code.moves, code.of_rows, strict=False))
        cycles += 2.0 + functions * _FUNCTION_CYCLES + gathers * 2.0 * lanes
    rows = layout.units(lanes) * (30.0 + 20.0 * len(program.sweeps))
    return max(moved, cycles * elements / lanes * _CYCLE_SECONDS) + rows * _CYCLE_SECONDS

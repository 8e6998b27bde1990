"""Local response and divisive normalization: how a tensor is cut for `lrn_code`, and what that costs."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import ClassVar

from jitdnn.devices.cpu import CpuDevice
from jitdnn.devices.cpu_kernel import CpuKernel
from jitdnn.kernels.algorithm import UNIT_ROUNDOFF, Epilogue, Kernel, PlannedAlgorithm
from jitdnn.kernels.cpu import cost
from jitdnn.kernels.cpu.microkernel.nontemporal import is_streamed
from jitdnn.kernels.cpu.normalization.lrn_code import AXES, MOST_UNROLLED, NUMBERS, POWERS, NormCode, trace
from jitdnn.kernels.cpu.schedule.cost import seconds_of
from jitdnn.kernels.cpu.schedule.parallel import split_units
from jitdnn.problems.divisive_norm import DivisiveNorm
from jitdnn.problems.lrn import LRN
from jitdnn.rtcg.compile import load
from jitdnn.rtcg.isa import ITEM_BYTES
from jitdnn.tensor import compute_dtype

WindowNorm = LRN | DivisiveNorm
Axis = tuple[int, tuple[int, ...]]  # its extent, and the stride of each tensor

_VECTORS = 4
_ROWS = 8  # of sums in a unit, with vectors over the window
_CHUNK_VECTORS = 32  # of one position, forward: neighbours of a plane of channels that are read in one go
_TASK_CYCLES = 5e4  # of a task, at least
_TAP_CYCLES, _GATHER_CYCLES, _ROW_CYCLES = 2.0, 2.0, 30.0  # of a vector, of a lane, of a row
_ROOT_CYCLES, _POWER_CYCLES = 20.0, 45.0  # of s^-beta, by roots or by a logarithm
_BACKWARD_SHARE = 2.2  # times the cycles of forward


@dataclass(frozen=True)
class Plan:
    """A problem's axes: those that no window lies on, that of the lanes, and the three of the window."""

    problem: WindowNorm
    over_window: bool  # vectors hold neighbours on the last axis of the window
    kept: tuple[Axis, ...]
    lanes: Axis
    window: tuple[Axis, Axis, Axis]

    @staticmethod
    def of(problem: WindowNorm, over_window: bool) -> Plan:
        tensors = [operand.descriptor for operand in problem.operands]
        axes = [
            (extent, tuple(tensor.strides[a] for tensor in tensors))
            for a, extent in enumerate(problem.output.shape)
        ]
        nothing: Axis = (1, (0,) * len(tensors))
        inside = [axes[a] for a in problem.window_axes]
        first, last = inside[: len(inside) - 1], inside[-1]
        window = [*first, *[nothing] * (AXES - len(first) - 1), last]
        kept = _joined([axis for a, axis in enumerate(axes) if a not in problem.window_axes])
        if over_window:
            if len(inside) == 1 and kept:  # rows that no window connects: the first axis goes through them
                window[0] = kept.pop()
            return Plan(problem, over_window, tuple(kept), last, (window[0], window[1], nothing))
        units = [axis for axis in kept if all(step == 1 for step in axis[1])]
        lanes: Axis = (1, (1,) * len(tensors))
        if kept:
            lanes = units[0] if units else kept[-1]
            kept.remove(lanes)
        return Plan(problem, over_window, tuple(kept), lanes, (window[0], window[1], window[2]))

    @property
    def box(self) -> int:
        """Positions of the window."""
        return prod(extent for extent, _ in self.window)

    @property
    def dtype(self) -> str:
        """Of the arithmetic."""
        return compute_dtype(self.problem.dtype)

    @property
    def is_forward(self) -> bool:
        return self.problem.direction == "fwd"

    def vectors(self, device: CpuDevice) -> int:
        """Vectors of lanes that go together: with the sums of a whole box, no more than stay in a cache."""
        if self.over_window:
            return 1
        if self.is_forward:
            return _VECTORS
        vector = 2 * self.box * device.isa.vector_bytes
        most = -(-self.lanes[0] // device.isa.lanes(self.dtype))
        kept = device.isa.processor.l2(cost.LRN_SUMS_L2)
        return next((v for v in (4, 2) if v * vector <= kept and v <= most), 1)

    @property
    def rows(self) -> int:
        """Positions of the first axis in a unit, with vectors over the window."""
        (extent, _), (inner, _), _ = self.window
        if not self.is_forward and len(self.problem.window_axes) > 1:
            return extent  # the windows connect them all
        return max(1, min(extent, _ROWS // inner))

    def front(self, lanes: int) -> int:
        """Elements before a row of sums: zeros for windows that begin before it, a multiple of vectors."""
        return -(-self.problem.size // lanes) * lanes

    def pitch(self, lanes: int) -> int:
        """Elements from one row of sums to the next."""
        return 2 * self.front(lanes) + (self.lanes[0] // lanes + 2) * lanes


def _joined(axes: Sequence[Axis]) -> list[Axis]:
    """Axes from the outermost in the memory of the last tensor inwards, joined where all tensors allow it."""
    joined: list[Axis] = []
    for extent, strides in sorted((a for a in axes if a[0] != 1), key=lambda axis: -abs(axis[1][-1])):
        if joined and all(
            outer == extent * inner for outer, inner in zip(joined[-1][1], strides, strict=True)
        ):
            joined[-1] = (joined[-1][0] * extent, strides)
        else:
            joined.append((extent, strides))
    return joined


class _WindowNorm(PlannedAlgorithm[WindowNorm, Plan, CpuDevice]):
    deterministic = True
    takes_no_epilogue = "{kind} takes no epilogue"
    over_window: ClassVar[bool]

    def refusal(self, problem: WindowNorm, device: CpuDevice, epilogue: Epilogue | None) -> str | None:
        if not self.over_window:
            return None
        axis = problem.window_axes[-1]
        for operand in problem.operands:
            if operand.descriptor.strides[axis] != 1 and operand.descriptor.shape[axis] > 1:
                return (
                    f"neighbours of {operand.name} along axis {axis}, the last of the window, are "
                    f"{operand.descriptor.strides[axis]} elements apart: they must be adjacent"
                )
        return None

    def plan(self, problem: WindowNorm, device: CpuDevice, epilogue: Epilogue | None) -> Plan:
        return Plan.of(problem, self.over_window)

    def workspace_of(self, plan: Plan, device: CpuDevice) -> int:
        lanes = device.isa.lanes(plan.dtype)
        if plan.over_window:
            elements = plan.pitch(lanes) * plan.rows * plan.window[1][0] * (1 if plan.is_forward else 3)
        else:
            elements = 0 if plan.is_forward else 2 * plan.box * plan.vectors(device) * lanes
        return device.threads * elements * ITEM_BYTES[plan.dtype]

    def seconds_of(self, plan: Plan, device: CpuDevice) -> float:
        cycles = _cycles(plan, device.isa.lanes(plan.dtype))
        return seconds_of(plan.problem, device, cycles, max(1, int(cycles / _TASK_CYCLES)))

    def error_of(self, problem: WindowNorm) -> float:
        # sums of squares, roots or an exponential of a logarithm, and a difference that may cancel in part
        return 2.0 * UNIT_ROUNDOFF[problem.dtype] + 40.0 * UNIT_ROUNDOFF[compute_dtype(problem.dtype)]

    def kernel_of(self, plan: Plan, device: CpuDevice) -> Kernel:
        norm, lanes, vectors = plan.problem, device.isa.lanes(plan.dtype), plan.vectors(device)
        extent, steps = plan.lanes
        code = NormCode(
            direction=norm.direction,
            over_window=plan.over_window,
            is_row=len(norm.window_axes) == 1,
            has_means=isinstance(norm, DivisiveNorm) and norm.means is not None,
            dtype=norm.dtype,
            power=POWERS.get(norm.beta, "any"),
            kept=len(plan.kept),
            vectors=vectors,
            size=norm.size if norm.size <= MOST_UNROLLED else 0,
            is_unit=tuple(step == 1 or extent == 1 for step in steps),
            streams=is_streamed(norm.output, device.isa.processor),
        )
        library = load("window_norm", code, device.isa, lambda module: trace(module, code))
        units = prod(e for e, _ in plan.kept)
        if plan.over_window:
            chunk = plan.rows
            units *= -(-plan.window[0][0] // chunk)
        else:
            chunk = lanes * (_CHUNK_VECTORS if plan.is_forward else vectors)
            units *= -(-extent // chunk) * (plan.window[0][0] if plan.is_forward else 1)
        if norm.output.size == 0:
            units = 0
        tasks, per_task = split_units(units, device, self.seconds_of(plan, device) * device.threads)
        before = (norm.size - 1) // 2
        numbers = {
            "units": units,
            "per_task": per_task,
            "run": extent,
            "chunk": chunk,
            "before": before,
            "after": norm.size - 1 - before,
            "size": norm.size,
            "pitch": plan.pitch(lanes),
            "front": plan.front(lanes),
            **{f"extent{a}": e for a, (e, _) in enumerate(plan.window)},
        }
        axes = [*plan.kept, plan.lanes, *plan.window]
        extras = [
            *(numbers[name] for name in NUMBERS), *map(_bits, (norm.k, norm.scale, norm.beta)),
            *(e for e, _ in axes), *(s[t] for t in range(len(steps)) for _, s in axes),
        ]  # fmt: skip
        return CpuKernel(library, [("window_norm", tasks)], len(steps), device.threads, extras)


def _cycles(plan: Plan, lanes: int) -> float:
    """Cycles of one thread."""
    problem, (extent, strides) = plan.problem, plan.lanes
    axes = len(problem.window_axes)
    taps: int = problem.size ** (axes - 1) + problem.size if plan.over_window else problem.size**axes
    gathers = sum(stride != 1 for stride in strides) * _GATHER_CYCLES * lanes
    power = _ROOT_CYCLES if problem.beta in POWERS else _POWER_CYCLES
    power *= 1 if plan.dtype == "f32" else 2
    vector = power + taps * (_TAP_CYCLES + (gathers if not plan.over_window else 0)) + gathers
    if not plan.is_forward:
        vector *= _BACKWARD_SHARE
    rows = prod(e for e, _ in plan.kept) * plan.box
    return rows * (-(-extent // lanes) * vector + _ROW_CYCLES)


def _bits(value: float) -> int:
    """A double as the integer of the same bits."""
    return int(struct.unpack("q", struct.pack("d", value))[0])


class LRNOverWindow(_WindowNorm):
    """Vectors over the window's last axis: channels of channels-last tensors, or columns of channels-first ones."""

    name = "along"
    problem = LRN
    over_window = True


class LRNOverOtherAxis(_WindowNorm):
    """Vectors over an axis that no window lies on, each lane summing for itself: for every memory layout."""

    name = "beside"
    problem = LRN
    over_window = False


class DivisiveNormOverWindow(_WindowNorm):
    """Vectors over the columns, the windows' last axis: for channels-first tensors."""

    name = "along"
    problem = DivisiveNorm
    over_window = True


class DivisiveNormOverOtherAxis(_WindowNorm):
    """Vectors over an axis that no window lies on, each lane summing for itself: for every memory layout."""

    name = "beside"
    problem = DivisiveNorm
    over_window = False

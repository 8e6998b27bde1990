"""Plans of normalizations (`normalization_programs`) as kernels: a chain of sweeps."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from jitdnn.devices.cpu import CpuKernel
from jitdnn.kernels.algorithm import Device
from jitdnn.kernels.cpu.reduction.generator import build_sweeps, estimate_sweeps, workspace_sweeps
from jitdnn.kernels.formulas.named_programs import Plan, Step
from jitdnn.tensor import DTYPES


class Chain:
    """Kernels one after the other, which share pointers, and arrays between them in the workspace.

    Each entry of `turns` is (indices of the axis that is cut to go back by, kernels): the kernels run with all
    pointers moved there. `moves` are the bytes from one index of that axis to the next, for each pointer.
    """

    def __init__(
        self,
        turns: Sequence[tuple[int, Sequence[CpuKernel]]],
        moves: Sequence[int],
        arrays: Sequence[int],
        start: int,
    ) -> None:
        self._turns, self._moves, self._arrays, self._start = turns, moves, arrays, start

    def __call__(
        self, stream: Any, pointers: Sequence[int], alpha: float, beta: float, workspace: int
    ) -> None:
        every = (*pointers, *(workspace + offset for offset in self._arrays))
        workspace += self._start
        for index, kernels in self._turns:
            here = [p + index * move for p, move in zip(every, self._moves, strict=True)] if index else every
            for kernel in kernels:
                kernel(stream, here, alpha, beta, workspace)


def _build_step(step: Step, device: Device, pointers: int, pieces: int = 1) -> CpuKernel:
    return build_sweeps(
        step.program, step.tensors, step.axes, device, step.plain, step.operands, pointers, step.compute,
        pieces=pieces,
    )  # fmt: skip


def build_plan(plan: Plan, device: Device) -> Chain | CpuKernel:
    """The kernel of a plan."""
    if len(plan.steps) == 1 and not plan.last and plan.cut is None and not plan.offsets:
        return _build_step(plan.steps[0], device, plan.pointers)
    turns: list[tuple[int, Sequence[CpuKernel]]] = []
    known: dict[int, Sequence[CpuKernel]] = {}
    pieces = list(plan.pieces())
    for start, steps in pieces:
        extent = steps[0].tensors[0].shape[plan.cut[0]] if plan.cut else 0
        if extent not in known:
            known[extent] = [_build_step(step, device, plan.pointers, len(pieces)) for step in steps]
        turns.append((start, known[extent]))
    turns.append((0, [_build_step(step, device, plan.pointers) for step in plan.last]))
    moves = [0] * plan.pointers
    if plan.cut:
        for name, number in plan.numbers.items():
            tensor = plan.tensors[name]
            moves[number] = tensor.strides[plan.cut[0]] * DTYPES[tensor.dtype]
    return Chain(turns, moves, plan.offsets, plan.room)


def estimate_plan(plan: Plan, device: Device) -> float:
    """Expected seconds."""
    steps = (*plan.steps, *plan.last)
    return sum(estimate_sweeps(s.program, s.tensors, s.axes, device, s.compute) for s in steps)


def workspace_plan(plan: Plan, device: Device) -> int:
    """Bytes of the arrays between steps, and of what the steps need."""
    pieces = {step for _, steps in plan.pieces() for step in steps} | {*plan.last}
    needs = (workspace_sweeps(s.program, s.tensors, s.axes, device, s.compute) for s in pieces)
    return plan.room + max(needs, default=0)

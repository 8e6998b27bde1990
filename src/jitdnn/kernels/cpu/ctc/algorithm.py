"""CTC loss, a sequence a task: the recursion over labels in vectors, with logarithms kept near 0.

What it needs and costs; the kernel itself is in `ctc_recursion`.
"""

from __future__ import annotations

import math
from typing import cast

from jitdnn.devices.cpu import CpuDevice, CpuKernel
from jitdnn.kernels.algorithm import UNIT_ROUNDOFF, Algorithm, Device, Epilogue, Kernel
from jitdnn.kernels.cpu.ctc.recursion import FIXED_ROWS, CtcCode, trace_ctc
from jitdnn.kernels.cpu.schedule.cost import seconds_of, useful_threads
from jitdnn.kernels.cpu.schedule.offsets import ceil_div
from jitdnn.kernels.cpu.schedule.parallel import Slots
from jitdnn.problems.ctc_loss import CtcLoss
from jitdnn.problems.problem import Problem
from jitdnn.rtcg.compile import load
from jitdnn.rtcg.isa import ITEM_BYTES, Isa
from jitdnn.tensor import compute_dtype

_STATE_CYCLES = 60.0  # of a vector of labels and one of blanks


def _code_of(problem: CtcLoss) -> CtcCode:
    operands = problem.operands
    unit = all(t is None or t.strides[2] == 1 or t.shape[2] == 1 for t in (problem.x, problem.dx))
    return CtcCode(
        problem.direction, problem.reduction, problem.inputs_are, problem.dtype,
        tuple(o.descriptor.dtype for o in operands), tuple(o.name for o in operands), problem.is_padded,
        problem.zero_infinity, unit,
    )  # fmt: skip


def _slots(problem: CtcLoss) -> Slots:
    names = ["times", "batch", "symbols", "longest", "labels", "blank", "row", "room", "kept"]
    for operand in problem.operands:
        names += [f"{operand.name}{axis}" for axis in range(len(operand.descriptor.shape))]
    return Slots(*names)


def _row_size(problem: CtcLoss, isa: Isa) -> int:
    """Elements of a row of labels or blanks, with a vector in front and one behind."""
    lanes = isa.lanes(compute_dtype(problem.dtype))
    return (ceil_div(problem.longest + 1, lanes) + 2) * lanes


def _room(problem: CtcLoss, isa: Isa) -> int:
    """Bytes of a thread, in the order in which ``ctc_recursion`` hands them out."""
    real = compute_dtype(problem.dtype)
    lanes, row = isa.lanes(real), _row_size(problem, isa)
    times, _, symbols = problem.x.shape
    alphas = times if problem.direction == "bwd" else 2
    elements = (2 + FIXED_ROWS + 2 * alphas) * row + times + (ceil_div(symbols, lanes) + 1) * lanes
    return ceil_div(elements * ITEM_BYTES[real], 128) * 128 + 128


def _kept(problem: CtcLoss) -> int:
    """Bytes for the losses of all sequences, where they are added up."""
    is_added = problem.direction == "fwd" and problem.reduction != "none"
    return ceil_div(problem.x.shape[1] * 8, 128) * 128 if is_added else 0


class SequenceRecursion(Algorithm):
    """A sequence a task: the recursion over labels in vectors, with logarithms kept near 0."""

    name = "recursion"
    problem = CtcLoss
    deterministic = True

    def refuse(self, problem: Problem, device: Device, epilogue: Epilogue | None = None) -> str | None:
        return "ctc_loss takes no epilogue" if epilogue is not None else None

    def workspace(self, problem: Problem, device: Device, epilogue: Epilogue | None = None) -> int:
        ctc, processor = cast(CtcLoss, problem), cast(CpuDevice, device)
        return _kept(ctc) + _room(ctc, processor.isa) * device.threads

    def _cycles(self, problem: CtcLoss, device: CpuDevice) -> float:
        lanes = device.isa.lanes(compute_dtype(problem.dtype))
        times, n, symbols = problem.x.shape
        states = ceil_div(problem.longest + 1, lanes) * _STATE_CYCLES + 2.0 * problem.longest + 50.0
        rows = ceil_div(symbols, lanes) * 15.0
        if problem.direction == "fwd":
            return times * n * (states + (rows if problem.inputs_are == "logits" else 0.0)) + n * 200.0
        return times * n * (3.0 * states + 2.0 * rows) + n * 400.0

    def estimate(self, problem: Problem, device: Device, epilogue: Epilogue | None = None) -> float:
        ctc, processor = cast(CtcLoss, problem), cast(CpuDevice, device)
        return seconds_of(problem, processor, self._cycles(ctc, processor), max(1, ctc.x.shape[1]))

    def error_bound(self, problem: Problem) -> float:
        own, computing = UNIT_ROUNDOFF[problem.dtype], UNIT_ROUNDOFF[compute_dtype(problem.dtype)]
        times = cast(CtcLoss, problem).x.shape[0]
        # in f64 what is compared with has larger errors: its logarithms grow with time
        return 2.0 * own + computing * (40.0 + 8.0 * (times if problem.dtype == "f64" else math.sqrt(times)))

    def build(self, problem: Problem, device: Device, epilogue: Epilogue | None = None) -> Kernel:
        ctc, processor = cast(CtcLoss, problem), cast(CpuDevice, device)
        code, slots = _code_of(ctc), _slots(ctc)
        library = load("ctc_loss", code, processor.isa, lambda module: trace_ctc(module, code, slots))
        times, n, symbols = ctc.x.shape
        values = {
            "times": times, "batch": n, "symbols": symbols, "longest": ctc.longest, "labels": ctc.targets.shape[0],
            "blank": ctc.blank, "row": _row_size(ctc, processor.isa), "room": _room(ctc, processor.isa),
            "kept": _kept(ctc),
        }  # fmt: skip
        for operand in ctc.operands:
            values |= {f"{operand.name}{axis}": s for axis, s in enumerate(operand.descriptor.strides)}
        phases = [("sequence", n)]
        if code.direction == "fwd" and not code.is_kept:
            phases.append(("total", 1))
        threads = min(useful_threads(processor, self._cycles(ctc, processor)), max(1, n))
        return CpuKernel(library, phases, len(ctc.operands), threads, slots.pack(values))

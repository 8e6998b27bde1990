"""Recurrent layers in one launch: one product for all steps where there can be one, else a fused phase for each."""

from __future__ import annotations

from math import sqrt
from typing import cast

from jitdnn.devices.cpu import CpuDevice, CpuKernel
from jitdnn.kernels.algorithm import UNIT_ROUNDOFF, Algorithm, Device, Epilogue, Kernel
from jitdnn.kernels.cpu.rnn.plan import BackwardPlan, ForwardPlan, WeightsPlan
from jitdnn.kernels.cpu.schedule.cost import seconds_of, useful_threads
from jitdnn.problems.problem import Problem
from jitdnn.problems.rnn import Recurrent
from jitdnn.rtcg.compile import load
from jitdnn.tensor import TensorDescriptor, compute_dtype

Plan = ForwardPlan | BackwardPlan | WeightsPlan


class FusedSteps(Algorithm):
    """One product for all steps of a layer, then one for each step with the cell on its sums, in one launch."""

    name = "fused_steps"
    problem = Recurrent
    deterministic = True

    def refuse(self, problem: Problem, device: Device, epilogue: Epilogue | None = None) -> str | None:
        if epilogue is not None:
            return "recurrent layers take no epilogue"
        for operand in problem.operands:
            is_piece = (
                "weight" in operand.name or "bias" in operand.name or operand.name in ("saved", "dgates")
            )
            if is_piece and not _is_packed(operand.descriptor):
                strides = operand.descriptor.strides
                return f"{operand.name} has strides {strides}: it must be packed, row after row"
        return None

    def workspace(self, problem: Problem, device: Device, epilogue: Epilogue | None = None) -> int:
        return _plan(problem, device).room.bytes

    def estimate(self, problem: Problem, device: Device, epilogue: Epilogue | None = None) -> float:
        plan = _plan(problem, device)
        tasks = max(tasks for _, tasks in plan.phases())
        return seconds_of(problem, plan.device, plan.cycles, tasks)

    def error_bound(self, problem: Problem) -> float:
        """Rounding errors of sums, carried on by the steps; the states of well-conditioned data forget them."""
        p = cast(Recurrent, problem)
        depth = max(p.inputs_size, p.gates * p.hidden, p.rows if p.direction == "bwd_weights" else 0)
        own, computing = UNIT_ROUNDOFF[p.dtype], UNIT_ROUNDOFF[compute_dtype(p.dtype)]
        return 2.0 * own + computing * p.layers * (16.0 + 2.0 * sqrt(depth))

    def build(self, problem: Problem, device: Device, epilogue: Epilogue | None = None) -> Kernel:
        plan = _plan(problem, device)
        isa = plan.device.isa
        library = load(self.name, plan.code, isa, plan.trace)
        threads = useful_threads(plan.device, plan.cycles)
        return CpuKernel(library, plan.phases(), plan.code.pointers, threads, plan.numbers)


def _plan(problem: Problem, device: Device) -> Plan:
    p = cast(Recurrent, problem)
    kinds: dict[str, type[Plan]] = {"fwd": ForwardPlan, "bwd_data": BackwardPlan, "bwd_weights": WeightsPlan}
    return kinds[p.direction](p, cast(CpuDevice, device))


def _is_packed(tensor: TensorDescriptor) -> bool:
    packed = TensorDescriptor.packed(tensor.shape, tensor.dtype).strides
    return all(n == 1 or s == p for n, s, p in zip(tensor.shape, tensor.strides, packed, strict=True))

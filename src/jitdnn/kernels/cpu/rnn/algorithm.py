"""Recurrent layers in one launch: one product for all steps where there can be one, else a fused phase for each."""

from __future__ import annotations

from math import sqrt
from typing import cast

from jitdnn.devices.cpu import CpuDevice
from jitdnn.devices.cpu_kernel import CpuKernel
from jitdnn.kernels.algorithm import UNIT_ROUNDOFF, Algorithm, Device, Epilogue, Kernel
from jitdnn.kernels.cpu.rnn.launch import launch_of
from jitdnn.kernels.cpu.schedule.cost import seconds_of, useful_threads
from jitdnn.problems.problem import Problem
from jitdnn.problems.rnn import Recurrent
from jitdnn.rtcg.compile import load
from jitdnn.tensor import TensorDescriptor, compute_dtype


class FusedSteps(Algorithm):
    """One product for all steps of a layer, then one for each step with the cell on its sums, in one launch."""

    name = "fused_steps"
    problem = Recurrent
    deterministic = True

    def refuse(self, problem: Problem, device: Device, epilogue: Epilogue | None = None) -> str | None:
        if epilogue is not None:
            return "recurrent layers take no epilogue"
        for operand in problem.operands:
            must_be_packed = (
                "weight" in operand.name or "bias" in operand.name or operand.name in ("saved", "dgates")
            )
            if must_be_packed and not _is_packed(operand.descriptor):
                strides = operand.descriptor.strides
                return f"{operand.name} has strides {strides}: it must be packed, row after row"
        return None

    def workspace(self, problem: Problem, device: Device, epilogue: Epilogue | None = None) -> int:
        return launch_of(cast(Recurrent, problem), cast(CpuDevice, device)).workspace.bytes

    def estimate(self, problem: Problem, device: Device, epilogue: Epilogue | None = None) -> float:
        processor = cast(CpuDevice, device)
        launch = launch_of(cast(Recurrent, problem), processor)
        tasks = max(tasks for _, tasks in launch.phases)
        return seconds_of(problem, processor, launch.cycles, tasks)

    def error_bound(self, problem: Problem) -> float:
        """Rounding errors of the sums of each layer; from step to step they decay on well-conditioned data."""
        p = cast(Recurrent, problem)
        depth = max(p.inputs_size, p.gates * p.hidden, p.rows if p.direction == "bwd_weights" else 0)
        own, computing = UNIT_ROUNDOFF[p.dtype], UNIT_ROUNDOFF[compute_dtype(p.dtype)]
        return 2.0 * own + computing * p.layers * (16.0 + 2.0 * sqrt(depth))

    def build(self, problem: Problem, device: Device, epilogue: Epilogue | None = None) -> Kernel:
        processor = cast(CpuDevice, device)
        launch = launch_of(cast(Recurrent, problem), processor)
        library = load(self.name, launch.plan, processor.isa, launch.trace)
        threads = useful_threads(processor, launch.cycles)
        return CpuKernel(library, launch.phases, launch.plan.pointers, threads, launch.integers)


def _is_packed(tensor: TensorDescriptor) -> bool:
    """Whether rows follow each other without gaps; strides of axes of extent 1 do not matter."""
    packed = TensorDescriptor.packed(tensor.shape, tensor.dtype).strides
    return all(n == 1 or s == p for n, s, p in zip(tensor.shape, tensor.strides, packed, strict=True))

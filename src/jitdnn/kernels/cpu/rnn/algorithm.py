"""Recurrent layers in one launch: one product for all steps where there can be one, else a fused phase for each."""

from __future__ import annotations

from math import sqrt

from jitdnn.devices.cpu import CpuDevice
from jitdnn.kernels.algorithm import UNIT_ROUNDOFF, Epilogue
from jitdnn.kernels.cpu.algorithm import CpuAlgorithm, Launch
from jitdnn.kernels.cpu.rnn.launch import launch_of
from jitdnn.problems.rnn import Recurrent
from jitdnn.tensor import TensorDescriptor, compute_dtype


class FusedSteps(CpuAlgorithm[Recurrent]):
    """One product for all steps of a layer, then one for each step with the cell on its sums, in one launch."""

    name = "fused_steps"
    problem = Recurrent
    takes_no_epilogue = "recurrent layers take no epilogue"

    def refusal(self, problem: Recurrent, device: CpuDevice, epilogue: Epilogue | None) -> str | None:
        for operand in problem.operands:
            must_be_packed = (
                "weight" in operand.name or "bias" in operand.name or operand.name in ("saved", "dgates")
            )
            if must_be_packed and not _is_packed(operand.descriptor):
                strides = operand.descriptor.strides
                return f"{operand.name} has strides {strides}: it must be packed, row after row"
        return None

    def launch(self, problem: Recurrent, device: CpuDevice, epilogue: Epilogue | None) -> Launch:
        return launch_of(problem, device)

    def error_of(self, problem: Recurrent) -> float:
        """Rounding errors of the sums of each layer; from step to step they decay on well-conditioned data."""
        rows = problem.rows if problem.direction == "bwd_weights" else 0
        depth = max(problem.inputs_size, problem.gates * problem.hidden, rows)
        own, computing = UNIT_ROUNDOFF[problem.dtype], UNIT_ROUNDOFF[compute_dtype(problem.dtype)]
        return 2.0 * own + computing * problem.layers * (16.0 + 2.0 * sqrt(depth))


def _is_packed(tensor: TensorDescriptor) -> bool:
    """Whether rows follow each other without gaps; strides of axes of extent 1 do not matter."""
    packed = TensorDescriptor.packed(tensor.shape, tensor.dtype).strides
    return all(n == 1 or s == p for n, s, p in zip(tensor.shape, tensor.strides, packed, strict=True))

"""Recurrent layers in one launch: one product for all steps where there can be one, else a fused phase for each."""

from __future__ import annotations

from dataclasses import replace
from math import sqrt

from jitdnn.devices.cpu import CpuDevice
from jitdnn.kernels.algorithm import UNIT_ROUNDOFF, Epilogue
from jitdnn.kernels.cpu.algorithm import CpuAlgorithm, FilterAlgorithm, Launch
from jitdnn.kernels.cpu.rnn.cost import row_steps_cycles
from jitdnn.kernels.cpu.rnn.launch import launch_of
from jitdnn.kernels.cpu.rnn.memory_layout import strides_of
from jitdnn.kernels.cpu.rnn.row_steps_code import RowStepsPlan, trace
from jitdnn.problems.rnn import Recurrent
from jitdnn.rtcg.isa import ITEM_BYTES
from jitdnn.tensor import TensorDescriptor, compute_dtype

_MOST_LAYERS = 4
_MOST_UNITS = 2048


def _error_of(problem: Recurrent) -> float:
    """Rounding errors of the sums of each layer; from step to step they decay on well-conditioned data."""
    rows = problem.rows if problem.direction == "bwd_weights" else 0
    depth = max(problem.inputs_size, problem.gates * problem.hidden, rows)
    own, computing = UNIT_ROUNDOFF[problem.dtype], UNIT_ROUNDOFF[compute_dtype(problem.dtype)]
    return 2.0 * own + computing * problem.layers * (16.0 + 2.0 * sqrt(depth))


def _unpacked(problem: Recurrent) -> str | None:
    """Which weight or saved array has gaps, if one has."""
    for operand in problem.operands:
        must_be_packed = (
            "weight" in operand.name or "bias" in operand.name or operand.name in ("saved", "dgates")
        )
        if must_be_packed and not _is_packed(operand.descriptor):
            strides = operand.descriptor.strides
            return f"{operand.name} has strides {strides}: it must be packed, row after row"
    return None


class RowSteps(CpuAlgorithm[Recurrent]):
    """Few steps of few sequences: dot products with the rows of the weights, which are not packed."""

    name = "row_steps"
    problem = Recurrent
    takes_no_epilogue = "recurrent layers take no epilogue"

    def refusal(self, problem: Recurrent, device: CpuDevice, epilogue: Epilogue | None) -> str | None:
        if problem.direction != "fwd" or problem.is_training:
            return "it computes forward without training"
        if problem.sequences != "whole":
            return "sequences have lengths of their own: here all are equally long"
        if problem.projection:
            return "there is a projection: it takes states as they are"
        if problem.layers > _MOST_LAYERS:
            return (
                f"there are {problem.layers} layers: it takes up to {_MOST_LAYERS}, each with code of its own"
            )
        widest = max(problem.hidden, *(problem.depth(layer) for layer in range(problem.layers)))
        if widest > _MOST_UNITS:
            return f"a layer has {widest} units: it keeps the states of up to {_MOST_UNITS} on the stack"
        return _unpacked(problem)

    def launch(self, problem: Recurrent, device: CpuDevice, epilogue: Epilogue | None) -> Launch:
        plan = RowStepsPlan(problem, device.isa)
        cycles = row_steps_cycles(problem, device.isa)
        size = plan.workspace_elements() * ITEM_BYTES[plan.dtype]
        key = str(problem)
        if (
            problem.layers == 1
        ):  # code that knows no number of steps; packed tensors may have other strides for each
            key = f"{replace(problem, steps=1, orders=())} {sorted(strides_of(problem).items())}"
        return Launch(
            problem, self.name, key, lambda module: trace(module, plan), plan.phases(),
            len(problem.operands), cycles, problem.directions * problem.batch, size, (problem.steps,),
        )  # fmt: skip

    def error_of(self, problem: Recurrent) -> float:
        return _error_of(problem)


class FusedSteps(FilterAlgorithm[Recurrent]):
    """One product for all steps of a layer, then one for each step with the cell on its sums, in one launch."""

    name = "fused_steps"
    problem = Recurrent
    takes_no_epilogue = "recurrent layers take no epilogue"

    def refusal(self, problem: Recurrent, device: CpuDevice, epilogue: Epilogue | None) -> str | None:
        return _unpacked(problem)

    def launch(self, problem: Recurrent, device: CpuDevice, epilogue: Epilogue | None) -> Launch:
        return launch_of(problem, device, self._is_kept)

    def error_of(self, problem: Recurrent) -> float:
        return _error_of(problem)


def _is_packed(tensor: TensorDescriptor) -> bool:
    """Whether rows follow each other without gaps; strides of axes of extent 1 do not matter."""
    packed = TensorDescriptor.packed(tensor.shape, tensor.dtype).strides
    return all(n == 1 or s == p for n, s, p in zip(tensor.shape, tensor.strides, packed, strict=True))

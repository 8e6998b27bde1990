"""Pooling whose only window is the whole image, as a program over rows: global pooling."""

from __future__ import annotations

from jitdnn.kernels.algorithm import Device, Epilogue, summation_bound
from jitdnn.kernels.formulas.reduce import program_of
from jitdnn.kernels.formulas.row_algorithms import RowAlgorithm, RowPlan, Step
from jitdnn.problems.pooling import QUANTIZED, Pooling
from jitdnn.problems.reduce import Reduce


class RowPooling(RowAlgorithm[Pooling]):
    """A reduction of every plane, whatever the layout."""

    problem = Pooling
    own_name = "reduction"

    def refusal(self, problem: Pooling, device: Device, epilogue: Epilogue | None) -> str | None:
        if problem.direction == "bwd" or problem.indices is not None:
            return "it computes the results of forward pooling, without indices"
        if problem.window != problem.spatial or any(
            problem.output_spatial[a] != 1 for a in range(len(problem.window))
        ):
            return f"the window is {problem.window} of {problem.spatial}: it must be the whole image, once"
        if any(pair != (0, 0) for pair in problem.padding):
            return "there is padding: the window must be the image alone"
        if problem.x.dtype in QUANTIZED:
            return f"x is {problem.x.dtype}: it reduces reals"
        if not all(problem.spatial):
            return "an image has no element"
        return super().refusal(problem, device, epilogue)

    def plan(self, problem: Pooling, device: Device, epilogue: Epilogue | None) -> RowPlan:
        axes = tuple(range(2, len(problem.x.shape)))
        y = problem.output
        program = program_of(Reduce.make(problem.mode, problem.x, axes, keepdims=True, y=y))
        return RowPlan([Step(program, (problem.x, y), axes)])

    def error_of(self, problem: Pooling) -> float:
        return summation_bound(problem)

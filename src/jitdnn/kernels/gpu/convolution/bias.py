"""The gradient of a bias: a sum over the batch and space, as a program over rows."""

from __future__ import annotations

from jitdnn.kernels.algorithm import Device, Epilogue, summation_bound
from jitdnn.kernels.formulas.row_algorithms import RowAlgorithm, RowPlan, Step
from jitdnn.kernels.formulas.row_programs import Pass, Program
from jitdnn.problems.convolution_bias import BiasGradient
from jitdnn.rtcg.expression import trace
from jitdnn.tensor import TensorDescriptor

_PROGRAM = Program((Pass((("add", trace(lambda dy: dy)),)),), ((0, 0),))


class RowBias(RowAlgorithm[BiasGradient]):
    """One pass over every channel."""

    problem = BiasGradient

    def plan(self, problem: BiasGradient, device: Device, epilogue: Epilogue | None) -> RowPlan:
        rank = len(problem.dy.shape)
        shape = tuple(problem.dy.shape[1] if axis == 1 else 1 for axis in range(rank))
        strides = tuple(problem.db.strides[0] if axis == 1 else 0 for axis in range(rank))
        db = TensorDescriptor(shape, strides, problem.db.dtype)
        axes = tuple(axis for axis in range(rank) if axis != 1)
        return RowPlan([Step(_PROGRAM, (problem.dy, db), axes)])

    def error_of(self, problem: BiasGradient) -> float:
        return summation_bound(problem)

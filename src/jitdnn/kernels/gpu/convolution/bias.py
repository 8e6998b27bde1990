"""The gradient of a bias: a sum over the batch and space, as a program over rows."""

from __future__ import annotations

from typing import cast

from jitdnn.kernels.algorithm import Device, summation_bound
from jitdnn.kernels.formulas.row_programs import Program, Sweep
from jitdnn.kernels.gpu.reduction.generator import Rows, RowsAlgorithm
from jitdnn.problems.convolution_bias import BiasGradient
from jitdnn.problems.problem import Problem
from jitdnn.rtcg.expression import trace
from jitdnn.tensor import TensorDescriptor

_PROGRAM = Program((Sweep((("add", trace(lambda dy: dy)),)),), ((0, 0),))


class RowsBias(RowsAlgorithm):
    """One sweep over every channel: by a team of threads, or channels last with a thread to some channels."""

    problem = BiasGradient

    def rows(self, problem: Problem, device: Device) -> Rows:
        bias = cast(BiasGradient, problem)
        rank = len(bias.dy.shape)
        shape = tuple(bias.dy.shape[1] if axis == 1 else 1 for axis in range(rank))
        strides = tuple(bias.db.strides[0] if axis == 1 else 0 for axis in range(rank))
        db = TensorDescriptor(shape, strides, bias.db.dtype)
        return Rows(_PROGRAM, (bias.dy, db), tuple(axis for axis in range(rank) if axis != 1))

    def error_bound(self, problem: Problem) -> float:
        return summation_bound(problem)

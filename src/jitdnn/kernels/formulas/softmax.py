"""Softmax and its gradient as programs over rows.

forward    m = max(x);  e = exp(x - m), s = sum(e);  y = e / s
log        m = max(x);  s = sum(exp(x - m));  y = x - m - log(s)
backward   s = sum(dy * y);  dx = y * (dy - s)        or, for log,  s = sum(dy);  dx = dy - exp(y) * s
"""

from __future__ import annotations

from dataclasses import replace

from jitdnn.kernels.algorithm import UNIT_ROUNDOFF, Device, Epilogue
from jitdnn.kernels.formulas.row_algorithms import RowAlgorithm, RowPlan, Step
from jitdnn.kernels.formulas.row_programs import Pass, Program
from jitdnn.problems.softmax import Softmax
from jitdnn.rtcg.expression import apply, trace
from jitdnn.tensor import compute_dtype

_MAX = Pass((("max_number", trace(lambda x: x)),))
PROGRAMS = {
    ("fwd", "fast"): Program(
        (
            Pass(
                (("add", trace(lambda x, e: e)),),
                (trace(lambda s: 1.0 / s),),
                keeps=(trace(lambda x: apply("exp", x)),),
            ),
            Pass(writes=((0, trace(lambda x, e, s, r: e * r)),)),
        )
    ),
    ("fwd", "accurate"): Program(
        (
            _MAX,
            Pass(
                (("add", trace(lambda x, e, m: e)),),
                (trace(lambda m, s: 1.0 / s),),
                keeps=(trace(lambda x, m: apply("exp", x - m)),),
            ),
            Pass(writes=((0, trace(lambda x, e, m, s, r: e * r)),)),
        )
    ),
    ("fwd", "log"): Program(
        (
            _MAX,
            Pass((("add", trace(lambda x, m: apply("exp", x - m))),), (trace(lambda m, s: apply("log", s)),)),
            Pass(writes=((0, trace(lambda x, m, s, log: x - m - log)),)),
        )
    ),
    ("bwd", "accurate"): Program(
        (
            Pass((("add", trace(lambda dy, y: dy * y)),)),
            Pass(writes=((0, trace(lambda dy, y, s: y * (dy - s))),)),
        )
    ),
    ("bwd", "log"): Program(
        (
            Pass((("add", trace(lambda dy, y: dy)),)),
            Pass(writes=((0, trace(lambda dy, y, s: dy - apply("exp", y) * s)),)),
        )
    ),
}
PROGRAMS["bwd", "fast"] = PROGRAMS["bwd", "accurate"]

# forward with maximum and sum in one pass, for rows that each pass reads from memory
JOINT_PROGRAMS = {
    "accurate": Program(
        (
            Pass((("powers", trace(lambda x: x)),), (trace(lambda m, s: 1.0 / s),)),
            Pass(writes=((0, trace(lambda x, m, s, r: apply("exp", x - m) * r)),)),
        )
    ),
    "log": Program(
        (
            Pass((("powers", trace(lambda x: x)),), (trace(lambda m, s: apply("log", s)),)),
            Pass(writes=((0, trace(lambda x, m, s, log: x - m - log)),)),
        )
    ),
}


class RowSoftmax(RowAlgorithm[Softmax]):
    """Two or three passes over every row; one less where the target has joint reductions and they are faster."""

    problem = Softmax

    def plan(self, problem: Softmax, device: Device, epilogue: Epilogue | None) -> RowPlan:
        tensors = tuple(operand.descriptor for operand in problem.operands)
        step = Step(PROGRAMS[problem.direction, problem.algorithm], tensors, tuple(problem.axis))
        joint = JOINT_PROGRAMS.get(problem.algorithm) if problem.direction == "fwd" else None
        if joint is not None and self.generator.prefers_joint(step, device):
            step = replace(step, program=joint)
        return RowPlan([step])

    def error_of(self, problem: Softmax) -> float:
        # the exponentials, and the roundings of their arguments, which may be large numbers
        return 2.0 * UNIT_ROUNDOFF[problem.dtype] + 40.0 * UNIT_ROUNDOFF[compute_dtype(problem.dtype)]

"""Softmax and its gradient as sweeps over rows, with vectors along a row or across many.

forward    m = max(x);  e = exp(x - m), s = sum(e);  y = e / s
log        m = max(x);  s = sum(exp(x - m));  y = x - m - log(s)
backward   s = sum(dy * y);  dx = y * (dy - s)        or, for log,  s = sum(dy);  dx = dy - exp(y) * s
"""

from __future__ import annotations

from typing import cast

from jitdnn.kernels.algorithm import UNIT_ROUNDOFF
from jitdnn.kernels.cpu.sweeps import Program, Sweep
from jitdnn.kernels.cpu.sweeps_algorithm import Rows, Swept
from jitdnn.problems.problem import Problem
from jitdnn.problems.softmax import Softmax
from jitdnn.rtcg.expression import apply, trace
from jitdnn.tensor import compute_dtype

_MAX = Sweep((("max_number", trace(lambda x: x)),))
_PROGRAMS = {
    ("fwd", "fast"): Program(
        (
            Sweep(
                (("add", trace(lambda x, e: e)),),
                (trace(lambda s: 1.0 / s),),
                keeps=(trace(lambda x: apply("exp", x)),),
            ),
            Sweep(writes=((0, trace(lambda x, e, s, r: e * r)),)),
        )
    ),
    ("fwd", "accurate"): Program(
        (
            _MAX,
            Sweep(
                (("add", trace(lambda x, e, m: e)),),
                (trace(lambda m, s: 1.0 / s),),
                keeps=(trace(lambda x, m: apply("exp", x - m)),),
            ),
            Sweep(writes=((0, trace(lambda x, e, m, s, r: e * r)),)),
        )
    ),
    ("fwd", "log"): Program(
        (
            _MAX,
            Sweep(
                (("add", trace(lambda x, m: apply("exp", x - m))),), (trace(lambda m, s: apply("log", s)),)
            ),
            Sweep(writes=((0, trace(lambda x, m, s, log: x - m - log)),)),
        )
    ),
    ("bwd", "accurate"): Program(
        (
            Sweep((("add", trace(lambda dy, y: dy * y)),)),
            Sweep(writes=((0, trace(lambda dy, y, s: y * (dy - s))),)),
        )
    ),
    ("bwd", "log"): Program(
        (
            Sweep((("add", trace(lambda dy, y: dy)),)),
            Sweep(writes=((0, trace(lambda dy, y, s: dy - apply("exp", y) * s)),)),
        )
    ),
}
_PROGRAMS["bwd", "fast"] = _PROGRAMS["bwd", "accurate"]


class SweptSoftmax(Swept):
    """Two or three sweeps over every row, with vectors along it or across many."""

    name = "sweeps"
    problem = Softmax

    def rows(self, problem: Problem) -> Rows:
        softmax = cast(Softmax, problem)
        tensors = [operand.descriptor for operand in softmax.operands]
        return Rows(_PROGRAMS[softmax.direction, softmax.algorithm], tensors, softmax.axis)

    def error_bound(self, problem: Problem) -> float:
        # the exponentials, and the roundings of their arguments, which may be large numbers
        return 2.0 * UNIT_ROUNDOFF[problem.dtype] + 40.0 * UNIT_ROUNDOFF[compute_dtype(problem.dtype)]

"""Softmax and its gradient as programs over rows.

forward    m = max(x);  e = exp(x - m), s = sum(e);  y = e / s
log        m = max(x);  s = sum(exp(x - m));  y = x - m - log(s)
backward   s = sum(dy * y);  dx = y * (dy - s)        or, for log,  s = sum(dy);  dx = dy - exp(y) * s
"""

from __future__ import annotations

from jitdnn.kernels.formulas.row_programs import Program, Sweep
from jitdnn.rtcg.expression import apply, trace

_MAX = Sweep((("max_number", trace(lambda x: x)),))
PROGRAMS = {
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
PROGRAMS["bwd", "fast"] = PROGRAMS["bwd", "accurate"]

# forward with maximum and sum in one sweep, for rows that are dear to go through
JOINT_PROGRAMS = {
    "accurate": Program(
        (
            Sweep((("powers", trace(lambda x: x)),), (trace(lambda m, s: 1.0 / s),)),
            Sweep(writes=((0, trace(lambda x, m, s, r: apply("exp", x - m) * r)),)),
        )
    ),
    "log": Program(
        (
            Sweep((("powers", trace(lambda x: x)),), (trace(lambda m, s: apply("log", s)),)),
            Sweep(writes=((0, trace(lambda x, m, s, log: x - m - log)),)),
        )
    ),
}

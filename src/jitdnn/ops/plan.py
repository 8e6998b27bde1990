"""Plans without arrays: what would run, what else could, and why."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from jitdnn.arguments import flag, text
from jitdnn.errors import InvalidArgument
from jitdnn.handle import Handle, settled_handle
from jitdnn.kernels.algorithm import Epilogue
from jitdnn.planner.plan import Plan, Request
from jitdnn.problems import Problem, settled_problem
from jitdnn.rtcg.expression import Expression, trace
from jitdnn.settings import override, settings


def plan(
    problem: Problem | str,
    *,
    epilogue: Callable[[Any], Any] | Expression | None = None,
    algorithm: str | None = None,
    keeps_filter: bool = False,
    handle: Handle | None = None,
    **overrides: object,
) -> Plan:
    """Return the plan of a problem or problem string; `.explain()` tells what was chosen or refused, and why.

        problem = "conv_fwd n256 c64 h27 w27 k192 r5 s5 pad2 f32 nchw"
        print(jd.plan(problem, workspace_limit="64 MiB").explain())

    `epilogue` is a function of the result alone. `algorithm` asks for one by name. `keeps_filter`: as for calls
    with a `KeptFilter`. `overrides` are settings (`workspace_limit`, `math`, `deterministic`, `choice`, ...) in force
    for this plan.

    Raises ParseError and InvalidShape for text that is no problem, NotSupported with every algorithm's reason
    if none takes it, InvalidArgument for a setting that there is not.
    """
    problem = settled_problem(problem)
    fused = None
    if epilogue is not None:
        expression = trace(epilogue)
        if expression.arity != 1:
            names = ", ".join(expression.inputs)
            raise InvalidArgument(
                f"the epilogue takes {expression.arity} values ({names}): without arrays only the "
                "result is given"
            )
        fused = Epilogue(expression)
    owner = settled_handle(handle)
    if algorithm is not None:
        algorithm = text(algorithm, "algorithm")
    request = Request.of(override(owner.settings, **overrides), algorithm)
    if flag(keeps_filter, "keeps_filter"):
        request = replace(request, keeps_filter=True)
    with settings(**overrides):
        return owner.plan(problem, request, fused)

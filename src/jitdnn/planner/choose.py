"""`get`: choose an algorithm without running any, by stored measurements and the algorithms' cost models."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import inf

from jitdnn import log
from jitdnn.errors import CompileError, NotSupported
from jitdnn.kernels.algorithm import Algorithm, Device, Epilogue, Kernel
from jitdnn.planner.divided import Divided
from jitdnn.planner.division import MARGIN, Divider, Look, Way, may_be_divided
from jitdnn.planner.plan import Part, Plan, Request, format_seconds
from jitdnn.planner.store import Store
from jitdnn.planner.survey import Option, ratios, survey
from jitdnn.problems.convolution import Convolution
from jitdnn.problems.problem import Problem


def get(
    problem: Problem,
    device: Device,
    request: Request,
    epilogue: Epilogue | None = None,
    store: Store | None = None,
) -> Plan:
    """Plan a problem with the algorithm that is expected to be fastest among those that fulfil the request.

    A time measured earlier on this device counts instead of the estimate. Raises NotSupported, with the
    reason of every algorithm, if none fulfils the request.
    """
    store = store or Store.default()
    options = survey(problem, device, request, epilogue, store)
    found = ratios(options)

    def look(part: Problem, fused: Epilogue | None) -> Sequence[Option]:
        return [option.scaled(found) for option in survey(part, device, request, fused, store)]

    return decide(problem, device, request, epilogue, options, look)


def decide(
    problem: Problem,
    device: Device,
    request: Request,
    epilogue: Epilogue | None,
    options: Sequence[Option],
    look: Look | None = None,
    built: Mapping[str, Kernel] | None = None,
) -> Plan:
    """Take the fastest open option, or a division that is faster, and build its kernels, unless `built` has it already.

    With `look`, which gives the options for a part, divisions are considered where a faster algorithm needs too much
    workspace. What does not compile is refused and the next best taken, with a warning.
    """
    options = list(options)
    ways = _divisions(problem, request, epilogue, options, look) if look is not None else []
    while True:
        chosen = min((o for o in options if o.is_open), key=lambda option: option.seconds, default=None)
        way = ways[0] if ways and (chosen is None or ways[0].seconds < MARGIN * chosen.seconds) else None
        if chosen is None and way is None:
            reasons = {o.algorithm.name: o.candidate.refused or "" for o in options}
            if request.algorithm is not None:
                reasons = {request.algorithm: reasons[request.algorithm]}
            raise NotSupported(f"no algorithm takes {problem} with {request} on {device.name}:", reasons)
        try:
            if way is not None:
                parts, run = build_way(problem, device, epilogue, way)
                break
            assert chosen is not None
            kernel = (built or {}).get(chosen.algorithm.name)
            kernel = kernel or build(chosen.algorithm, problem, device, epilogue, chosen.workspace)
            parts, run = [Part(problem, chosen.algorithm, kernel, epilogue)], kernel
            break
        except CompileError as error:
            if request.algorithm is not None:
                raise
            name = way.candidate.name if way is not None else chosen.algorithm.name if chosen else ""
            log.fallback_once(
                ("compile", name, str(problem)),
                f"{name} does not compile for {problem}, another is taken: {error}",
            )
            if way is not None:
                ways = ways[1:]
            elif chosen is not None:
                options[options.index(chosen)] = chosen.refused(f"its code does not compile: {error}")
    if way is None and chosen is not None:
        _warn_of_last_resort(problem, chosen, options, request)
    candidates = [replace(o.candidate, chosen=way is None and o is chosen) for o in options]
    candidates += [replace(each.candidate, chosen=each is way) for each in ways]
    place = getattr(device, "place", None)
    plan = Plan(problem, epilogue, parts, run, candidates, request, device, place)
    log.chose(problem, plan)
    return plan


def _divisions(
    problem: Problem,
    request: Request,
    epilogue: Epilogue | None,
    options: Sequence[Option],
    look: Look | None,
) -> list[Way]:
    """Divisions of a problem whose fastest algorithm needs too much workspace, the fastest first."""
    if look is None or not isinstance(problem, Convolution) or not may_be_divided(problem, request):
        return []
    fits = min((o.seconds for o in options if o.is_open), default=inf)
    unlimited = min((o.seconds for o in options if o.is_too_large), default=inf)
    if unlimited >= MARGIN * fits:
        return []
    return Divider(problem, request, epilogue, look).fastest(request.workspace_limit, unlimited)


def build(
    algorithm: Algorithm, problem: Problem, device: Device, epilogue: Epilogue | None, workspace: int
) -> Kernel:
    """The algorithm's kernel, for calls that give it `workspace` bytes: as many as its code uses, if it says how many.

    A kernel with less would write to the memory of others.
    """
    kernel = algorithm.build(problem, device, epilogue)
    used = getattr(kernel, "workspace", None)
    assert used in (None, workspace), (
        f"{algorithm.name} uses {used} bytes, {workspace} are planned: {problem}"
    )
    return kernel


def build_way(
    problem: Problem, device: Device, epilogue: Epilogue | None, way: Way
) -> tuple[list[Part], Kernel]:
    """The parts of a way, each different kernel built once, and the kernel that runs them in turn."""
    assert isinstance(problem, Convolution)
    kernels: dict[tuple[Problem, str, Epilogue | None], Kernel] = {}
    parts = []
    for piece, algorithm, fused, workspace in way.steps:
        key = (piece.problem, algorithm.name, fused)
        if key not in kernels:
            kernels[key] = build(algorithm, piece.problem, device, fused, workspace)
        parts.append(Part(piece.problem, algorithm, kernels[key], fused))
    operands = epilogue.operands if epilogue is not None else ()
    pairs = [(step.piece, part.kernel) for step, part in zip(way.steps, parts, strict=True)]
    return parts, Divided(problem, operands, pairs)


def _warn_of_last_resort(
    problem: Problem, chosen: Option, options: Sequence[Option], request: Request
) -> None:
    """Say once what it costs that nothing but the reference could be used, and why."""
    if chosen.algorithm.name != "reference" or request.algorithm is not None:
        return
    others = [o for o in options if o is not chosen]
    if any(o.is_open for o in others):
        return
    reasons = "; ".join(f"{o.algorithm.name}: {o.candidate.refused}" for o in others) or "there is no other"
    log.fallback_once(
        ("last resort", str(problem)),
        f"{problem} runs on the slow reference, in about {format_seconds(chosen.seconds)} a call ({reasons})",
    )

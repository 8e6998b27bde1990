"""`get`: choose an algorithm without running any, by stored measurements and the algorithms' cost models."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from math import inf

from jitdnn import log
from jitdnn.errors import CompileError, NotSupported
from jitdnn.kernels.algorithm import Algorithm, Device, Epilogue, Kernel
from jitdnn.planner import kept_plans
from jitdnn.planner.compiling import compile_all, whole
from jitdnn.planner.divided import Divided
from jitdnn.planner.division import MARGIN, Divider, Partition, SurveyPart, may_be_divided
from jitdnn.planner.plan import Part, Plan, Request, format_seconds
from jitdnn.planner.store import Store
from jitdnn.planner.survey import AlgorithmCandidate, completed, ratios, survey
from jitdnn.problems.convolution import Convolution
from jitdnn.problems.problem import Problem
from jitdnn.rtcg.missing import Missing


def get(
    problem: Problem,
    device: Device,
    request: Request,
    epilogue: Epilogue | None = None,
    store: Store | None = None,
    waits: bool = True,
) -> Plan:
    """Plan a problem with the algorithm that is expected to be fastest among those that fulfil the request.

    A time measured earlier on this device counts instead of the estimate. Raises NotSupported, with the
    reason of every algorithm, if none fulfils the request; with `waits=False` NotCompiled if that takes a compiler.
    """
    is_kept = store is None
    if is_kept:
        key = kept_plans.key_of(problem, device, request, epilogue)
        kept = kept_plans.recall(problem, device, request, epilogue, key)
        if kept is not None:
            return kept
    store = store or Store.default()
    candidates = survey(problem, device, request, epilogue, store, defers=True)
    found = ratios(candidates)

    def survey_part(part: Problem, fused: Epilogue | None) -> Sequence[AlgorithmCandidate]:
        return [candidate.scaled(found) for candidate in survey(part, device, request, fused, store)]

    def ask_all() -> Sequence[AlgorithmCandidate]:
        return survey(problem, device, request, epilogue, store)

    plan = decide(problem, device, request, epilogue, candidates, survey_part, waits=waits, ask_all=ask_all)
    if is_kept:
        kept_plans.keep(plan, key)
    return plan


class NotCompiled(Exception):
    """The choice, called `name`, lacks code, and nobody may wait for it; `candidates` are all that there are."""

    def __init__(
        self, name: str, missing: Sequence[Missing], candidates: Sequence[AlgorithmCandidate]
    ) -> None:
        super().__init__(name)
        self.name, self.missing, self.candidates = name, missing, candidates


def decide(
    problem: Problem,
    device: Device,
    request: Request,
    epilogue: Epilogue | None,
    candidates: Sequence[AlgorithmCandidate],
    survey_part: SurveyPart | None = None,
    built: Mapping[str, Kernel] | None = None,
    waits: bool = True,
    ask_all: Callable[[], Sequence[AlgorithmCandidate]] | None = None,
) -> Plan:
    """Take the fastest open candidate, or a division that is faster, and build its kernels unless `built` has them.

    With `survey_part`, which gives the candidates for a part, divisions are considered where a faster algorithm needs
    too much workspace. What does not compile is refused and the next best taken, with a warning. Code of GPUs is
    compiled module beside module; without `waits` not at all, and NotCompiled is raised. `ask_all` gives the candidates
    with those asked that are slower for sure, where another than the fastest is needed.
    """
    candidates = list(candidates)
    broken: dict[str, str] = {}  # why, by name
    partitions = (
        _divisions(problem, request, epilogue, candidates, survey_part) if survey_part is not None else []
    )
    while True:
        chosen = min(
            (o for o in candidates if o.is_open), key=lambda candidate: candidate.seconds, default=None
        )
        partition = (
            partitions[0]
            if partitions and (chosen is None or partitions[0].seconds < MARGIN * chosen.seconds)
            else None
        )
        if chosen is None and partition is None:
            known = completed(problem, device, request, epilogue, [o.summary for o in candidates])
            reasons = {each.name: each.refused or "" for each in known}
            if request.algorithm is not None:
                reasons = {request.algorithm: reasons[request.algorithm]}
            raise NotSupported(f"no algorithm takes {problem} with {request} on {device.name}:", reasons)
        name = partition.summary.name if partition is not None else chosen.algorithm.name if chosen else ""

        def compiling(
            missing: Sequence[Missing],
            name: str = name,
            known: tuple[AlgorithmCandidate, ...] = tuple(candidates),
        ) -> None:
            if not waits:
                raise NotCompiled(name, missing, known if broken or ask_all is None else ask_all())
            compile_all(missing)

        try:
            if partition is not None:
                make = partial(build_partition, problem, device, epilogue, partition)
                parts, run = whole(make, compiling)
                break
            assert chosen is not None
            kernel = (built or {}).get(chosen.algorithm.name)
            kernel = kernel or whole(
                partial(build, chosen.algorithm, problem, device, epilogue, chosen.workspace), compiling
            )
            parts, run = [Part(problem, chosen.algorithm, kernel, epilogue)], kernel
            break
        except CompileError as error:
            if request.algorithm is not None:
                raise
            log.fallback_once(
                ("compile", name, str(problem)),
                f"{name} does not compile for {problem}, another is taken: {error}",
            )
            if partition is not None:
                partitions = partitions[1:]
            elif chosen is not None:
                if ask_all is not None and not broken:
                    candidates = list(ask_all())
                broken[name] = f"its code does not compile: {error}"
                candidates = [o.refused(broken[name]) if o.algorithm.name == name else o for o in candidates]
    if partition is None and chosen is not None:
        _warn_of_last_resort(problem, chosen, candidates, request)
    summaries = [
        replace(o.summary, chosen=True) if partition is None and o is chosen else o.summary
        for o in candidates
    ]
    summaries += [replace(each.summary, chosen=each is partition) for each in partitions]
    device_id = getattr(device, "device_id", None)
    complete = partial(completed, problem, device, request, epilogue)
    plan = Plan(problem, epilogue, parts, run, summaries, request, device, device_id, complete)
    log.chose(problem, plan)
    return plan


def _divisions(
    problem: Problem,
    request: Request,
    epilogue: Epilogue | None,
    candidates: Sequence[AlgorithmCandidate],
    survey_part: SurveyPart | None,
) -> list[Partition]:
    """Divisions of a problem whose fastest algorithm needs too much workspace, the fastest first."""
    if survey_part is None or not isinstance(problem, Convolution) or not may_be_divided(problem, request):
        return []
    fits = min((o.seconds for o in candidates if o.is_open), default=inf)
    unlimited = min((o.seconds for o in candidates if o.is_too_large), default=inf)
    if unlimited >= MARGIN * fits:
        return []
    return Divider(problem, request, epilogue, survey_part).fastest(request.workspace_limit, unlimited)


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


def build_partition(
    problem: Problem, device: Device, epilogue: Epilogue | None, partition: Partition
) -> tuple[list[Part], Kernel]:
    """The parts of a partition, each different kernel built once, and the kernel that runs them in turn."""
    assert isinstance(problem, Convolution)
    kernels: dict[tuple[Problem, str, Epilogue | None], Kernel] = {}
    parts = []
    for piece, algorithm, fused, workspace in partition.steps:
        key = (piece.problem, algorithm.name, fused)
        if key not in kernels:
            kernels[key] = build(algorithm, piece.problem, device, fused, workspace)
        parts.append(Part(piece.problem, algorithm, kernels[key], fused))
    operands = epilogue.operands if epilogue is not None else ()
    pairs = [(step.piece, part.kernel) for step, part in zip(partition.steps, parts, strict=True)]
    return parts, Divided(problem, operands, pairs)


def _warn_of_last_resort(
    problem: Problem, chosen: AlgorithmCandidate, candidates: Sequence[AlgorithmCandidate], request: Request
) -> None:
    """Say once what it costs that nothing but the reference could be used, and why."""
    if chosen.algorithm.name != "reference" or request.algorithm is not None:
        return
    others = [o for o in candidates if o is not chosen]
    if any(o.is_open for o in others):
        return
    reasons = "; ".join(f"{o.algorithm.name}: {o.summary.refused}" for o in others) or "there is no other"
    log.fallback_once(
        ("last resort", str(problem)),
        f"{problem} runs on the slow reference, in about {format_seconds(chosen.seconds)} a call ({reasons})",
    )

"""Asking every algorithm of a table about a problem: what it costs, and what speaks against it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from math import inf
from statistics import median
from typing import cast

from jitdnn.errors import NotSupported
from jitdnn.kernels.algorithm import (
    STANDARD_ROUNDOFFS,
    STRICT_ROUNDOFFS,
    UNIT_ROUNDOFF,
    Algorithm,
    Device,
    Epilogue,
    keeping_filter,
    summation_bound,
)
from jitdnn.kernels.reference import REFERENCE
from jitdnn.kernels.tables import algorithms
from jitdnn.planner import workspace as policies
from jitdnn.planner.plan import DEFERRED, Candidate, Request, format_seconds
from jitdnn.planner.store import Store
from jitdnn.problems.problem import BYTE_INTEGERS, Problem
from jitdnn.rtcg.use import note_look_up

# Math modes from the most exact to the least; a request allows its own and all before it.
_MATH_MODES = ("fp64", "fp32", "tf32", "fp16", "bf16")


class Priced:
    """Something with a summary that says its time and its workspace."""

    summary: Candidate

    @property
    def seconds(self) -> float:
        assert self.summary.seconds is not None
        return self.summary.seconds

    @property
    def workspace(self) -> int:
        assert self.summary.workspace is not None
        return self.summary.workspace


@dataclass(frozen=True)
class AlgorithmCandidate(Priced):
    """An algorithm of the table beside what the planner knows of it.

    `is_too_large`: nothing speaks against it but the workspace that it needs. `estimate`: seconds by its cost model,
    whatever was measured.
    """

    algorithm: Algorithm
    summary: Candidate
    is_too_large: bool = False
    estimate: float = 0.0

    @property
    def is_open(self) -> bool:
        """Whether it may be chosen."""
        return self.summary.refused is None

    def refused(self, reason: str) -> AlgorithmCandidate:
        return replace(self, summary=replace(self.summary, refused=reason), is_too_large=False)

    def timed(self, seconds: float, source: str) -> AlgorithmCandidate:
        return replace(self, summary=replace(self.summary, seconds=seconds, source=source))

    def scaled(self, ratios: Mapping[str, float]) -> AlgorithmCandidate:
        """The candidate with an estimate corrected by what its algorithm was measured at elsewhere."""
        ratio = ratios.get(self.algorithm.name, 1.0)
        if self.summary.source != "estimate" or self.summary.seconds is None or ratio == 1.0:
            return self
        return self.timed(ratio * self.summary.seconds, "estimate")


def ratios(candidates: Sequence[AlgorithmCandidate]) -> dict[str, float]:
    """How far stored times of a problem are off their estimates, by algorithm: its parts must be comparable to it."""
    return {o.algorithm.name: o.seconds / o.estimate for o in candidates if o.summary.source == "stored"}


def survey(
    problem: Problem,
    device: Device,
    request: Request,
    epilogue: Epilogue | None,
    store: Store,
    left_out: Collection[str] = (),
    defers: bool = False,
) -> list[AlgorithmCandidate]:
    """Ask every algorithm of the table about the problem, but those that are `left_out`; in the table's order.

    `defers`: those whose arithmetic the request does not allow are not asked, nor those that are exact for more
    products where one that rounds may be chosen (`Algorithm.rounded`), nor those that take longer at least
    (`Algorithm.least_seconds`) than another one that may; `completed` does it when somebody wants to know what they
    would cost. Not where times of the problem are stored, with which all estimates are compared.
    """
    table = algorithms(problem, device.target, request.vendor)
    if left_out:
        table = tuple(algorithm for algorithm in table if algorithm.name not in left_out)
    if request.keeps_filter:
        table = tuple(keeping_filter(algorithm, problem, device, epilogue) for algorithm in table)
    names = [algorithm.name for algorithm in table]
    if request.algorithm is not None and request.algorithm not in names:
        raise NotSupported(
            f"there is no algorithm {request.algorithm!r} for {problem.kind} on {device.target}: "
            f"there are {', '.join(names)}"
        )
    known: dict[tuple[str, int], float] = {}
    if request.choice != "model":
        wanted = (str(problem), stored_key(epilogue, request), device.name)
        note_look_up(*wanted)
        known = {key: row.seconds for key, row in store.look_up(*wanted).items()}
    defers = defers and not known and request.algorithm is None
    asked = _Asked(problem, device, request, epilogue, table, defers)
    candidates = [asked.found[algorithm.name] for algorithm in table]
    return _with_stored_times(candidates, known) if known else candidates


class _Asked:
    """The algorithms of a table as candidates, in `found` by name: those asked that `survey` says, with `defers`."""

    def __init__(
        self,
        problem: Problem,
        device: Device,
        request: Request,
        epilogue: Epilogue | None,
        table: Sequence[Algorithm],
        defers: bool,
    ) -> None:
        self._given = problem, device, epilogue
        self._request = request
        self.found: dict[str, AlgorithmCandidate] = {}
        waiting: list[
            tuple[float, Algorithm]
        ] = []  # for what the others take, by what they do not come below
        rounding: list[Algorithm] = []  # wait for those that round
        first: list[Algorithm] = []
        for algorithm in table:
            if not defers:
                first.append(algorithm)
            elif reason := _refuse_arithmetic(algorithm, problem, request):
                self._defer(algorithm, reason)
            elif algorithm.rounded:
                rounding.append(algorithm)
            elif least := self._least(algorithm):
                waiting.append((least, algorithm))
            else:
                first.append(algorithm)
        reasons = {one.name: one.refuse(problem, device, epilogue) for one in first}
        allowed = allowed_error(problem, request.accuracy, request.math)
        bounds = [
            one.error_bound(problem) for one in first if reasons[one.name] is None and one is not REFERENCE
        ]
        if min(bounds, default=inf) > allowed:
            # the most exact counts, which may be one of the others
            reasons |= {one.name: one.refuse(problem, device, epilogue) for _, one in waiting}
            bounds += [one.error_bound(problem) for _, one in waiting if reasons[one.name] is None]
        self._limit = max(allowed, min(bounds, default=0.0))
        for one in first:
            self._consider(one, reasons[one.name])
        for least, one in sorted(waiting, key=lambda each: each[0]):
            self._consider_within(one, least, reasons)
        for one in rounding:
            rivals = [name for name in one.rounded if name in self.found and self.found[name].is_open]
            if rivals:
                self._defer(one, f"{rivals[0]} takes fewer products, which {request.math} allows")
            else:
                self._consider_within(one, self._least(one), reasons)

    def _least(self, algorithm: Algorithm) -> float:
        """What its time does not come below, as a candidate's."""
        problem, device, epilogue = self._given
        least = algorithm.least_seconds(problem, device, epilogue)
        return least / _efficiency(device, f"{algorithm.name} {problem.kind}") if least else 0.0

    def _consider_within(self, algorithm: Algorithm, least: float, reasons: Mapping[str, str | None]) -> None:
        """Consider it unless its time, which does not come below `least`, is above that of another one."""
        best = min((o for o in self.found.values() if o.is_open), key=lambda o: o.seconds, default=None)
        if best is not None and least > best.seconds:
            at_least = f"it takes longer than {best.algorithm.name}: {format_seconds(least)} at least"
            reason = "there is no plan of its kind" if least == inf else at_least
            self._defer(algorithm, reason)
        elif algorithm.name in reasons:
            self._consider(algorithm, reasons[algorithm.name])
        else:
            self._consider(algorithm, algorithm.refuse(*self._given))

    def _defer(self, algorithm: Algorithm, reason: str) -> None:
        self.found[algorithm.name] = _blank(algorithm, reason, DEFERRED)

    def _consider(self, algorithm: Algorithm, reason: str | None) -> None:
        problem, device, epilogue = self._given
        self.found[algorithm.name] = _consider(
            algorithm, problem, device, self._request, epilogue, reason, self._limit
        )


def completed(
    problem: Problem,
    device: Device,
    request: Request,
    epilogue: Epilogue | None,
    candidates: Sequence[Candidate],
    has_all: bool = True,
) -> list[Candidate]:
    """The candidates with those asked that `survey` deferred, and without `has_all` those that were left away, too."""
    known = {each.name: each for each in candidates if each.source != DEFERRED}
    if has_all and len(known) == len(candidates):
        return list(candidates)
    asked = survey(problem, device, replace(request, choice="model"), epilogue, Store.default())
    of_table = [known.pop(one.algorithm.name, one.summary) for one in asked]
    return [*of_table, *known.values()]


def _blank(algorithm: Algorithm, reason: str, source: str = "") -> AlgorithmCandidate:
    """A candidate of which nothing is known but why it is refused."""
    summary = Candidate(algorithm.name, reason, None, source, None, None, algorithm.deterministic)
    return AlgorithmCandidate(algorithm, summary)


def stored_key(epilogue: Epilogue | None, request: Request) -> str:
    """What names the kind of call in the store beside its problem: the epilogue, and whether the filter is kept."""
    return epilogue_key(epilogue) + (" with its filter kept" if request.keeps_filter else "")


def epilogue_key(epilogue: Epilogue | None) -> str:
    """What names an epilogue in the store: empty for none."""
    if epilogue is None:
        return ""
    operands = ", ".join(f"{d.dtype}{list(d.strides)}" for d in epilogue.operands)
    return f"{epilogue.expression.key} over {operands}"


def _consider(
    algorithm: Algorithm,
    problem: Problem,
    device: Device,
    request: Request,
    epilogue: Epilogue | None,
    reason: str | None,
    limit: float,
) -> AlgorithmCandidate:
    if reason is not None:
        return _blank(algorithm, reason)
    is_kept = isinstance(algorithm, Hashable) and isinstance(device, Hashable)
    costs = _known_costs if is_kept else _costs
    bound, needed, seconds, spreads = costs(algorithm, problem, device, epilogue)
    refused = _refuse_request(algorithm, problem, request, bound, limit, spreads)
    too_large = policies.refuse(needed, request.workspace_limit) if refused is None else None
    summary = Candidate(
        algorithm.name,
        refused or too_large,
        seconds / _efficiency(device, f"{algorithm.name} {problem.kind}"),
        "estimate",
        needed,
        bound,
        algorithm.deterministic,
        spreads=spreads,
    )
    assert summary.seconds is not None
    return AlgorithmCandidate(algorithm, summary, too_large is not None, summary.seconds)


_Costs = tuple[float, int, float, str | None]


def _costs(algorithm: Algorithm, problem: Problem, device: Device, epilogue: Epilogue | None) -> _Costs:
    """What an algorithm says of a problem that it takes: error, bytes of workspace, seconds, what a NaN spreads to."""
    workspace, seconds = algorithm.costs(problem, device, epilogue)
    return algorithm.error_bound(problem), workspace, seconds, algorithm.spreads(problem, device, epilogue)


# plans of nets ask for thousands of parts, and are made again and again: what a problem would cost is little to keep
_known_costs = cast(
    "Callable[[Algorithm, Problem, Device, Epilogue | None], _Costs]", lru_cache(1 << 14)(_costs)
)


def _efficiency(device: Device, key: str) -> float:
    """By how much the time of an algorithm was found to be off where it was calibrated; 1 elsewhere."""
    stated: dict[str, float] = dict(getattr(device, "efficiency", ()))
    return stated.get(key, 1.0)


# what operands are rounded to where a request allows less than the type of the tensors has
_MATH_ROUNDOFF = {"tf32": 2.0**-11, "fp16": 2.0**-11, "bf16": 2.0**-8}


def allowed_error(problem: Problem, accuracy: str, math: str = "fp32") -> float:
    """The largest relative error an algorithm may declare.

    "strict" and "elementwise" allow that of a plain sum in the arithmetic of the problem's type, and at least the
    roundings of a function such as exp. "standard" allows 84 unit roundoffs, which is 5e-6 in fp32, or that of a
    plain sum where it is more: so algorithms that save multiplications are taken where they keep to it. Where
    `math` is coarser than the type, its rounding counts. Of inputs of 8-bit reals the type is that of the result,
    and for "standard" their own where it is coarser. Epilogues of sums of 8-bit integers may be computed in f32
    where results have no 32 bits.
    """
    unit = UNIT_ROUNDOFF[problem.dtype]
    if problem.dtype != "f64":
        unit = max(unit, _MATH_ROUNDOFF.get(math, 0.0))
    if problem.has_float8:  # whose sums have a type of their own
        stored = problem.operands if accuracy == "standard" else problem.outputs
        unit = max(unit, *(UNIT_ROUNDOFF.get(operand.descriptor.dtype, 0.0) for operand in stored))
    are_bytes = any(operand.descriptor.dtype in BYTE_INTEGERS for operand in problem.inputs)
    if are_bytes and problem.output.dtype != "i32":
        unit = max(unit, UNIT_ROUNDOFF["f32"])
    plain = summation_bound(problem)
    return max(plain, (STANDARD_ROUNDOFFS if accuracy == "standard" else STRICT_ROUNDOFFS) * unit)


def _refuse_request(
    algorithm: Algorithm,
    problem: Problem,
    request: Request,
    bound: float,
    limit: float,
    spreads: str | None,
) -> str | None:
    """Why an algorithm that can run the problem does not fulfil the request, its workspace aside."""
    if request.algorithm is not None and algorithm.name != request.algorithm:
        return f"{request.algorithm} was asked for"
    if algorithm.only_by_name is not None and request.algorithm is None:
        return f"{algorithm.only_by_name}: it is taken where it is asked for by name"
    if request.deterministic and not algorithm.deterministic:
        return "its results may differ from run to run, and deterministic ones were asked for"
    if reason := _refuse_arithmetic(algorithm, problem, request):
        return reason
    if bound > limit:
        return f"its error may reach {bound:.1e}, and {request.accuracy} accuracy allows {limit:.1e} here"
    if not algorithm.has_exact_products and request.accuracy == "strict":
        return (
            "it multiplies parts of numbers, and strict accuracy keeps to products of the numbers themselves"
        )
    if not (algorithm.has_exact_products or algorithm.is_elementwise) and request.accuracy == "elementwise":
        return "numbers far smaller than the largest of their tensor lose bits by it, which elementwise accuracy keeps"
    if spreads is not None and request.accuracy != "standard":
        return (
            f"a NaN or an infinity in an input may reach {spreads}, and {request.accuracy} accuracy keeps it to the "
            "results that read it"
        )
    return None


def _refuse_arithmetic(algorithm: Algorithm, problem: Problem, request: Request) -> str | None:
    """That an algorithm computes in a coarser arithmetic than the request allows, or in a finer one that takes longer
    and was not asked for; None if it does not."""
    if algorithm.is_elementwise and request.accuracy == "standard" and request.algorithm is None:
        return "it keeps bits of numbers far smaller than others, and takes longer: for elementwise accuracy"
    wanted = "fp64" if problem.dtype == "f64" else request.math
    computed = algorithm.arithmetic(problem)
    if _MATH_MODES.index(computed) > _MATH_MODES.index(wanted):
        return f"it computes in {computed}, and {wanted} was asked for"
    return None


def _with_stored_times(
    candidates: Sequence[AlgorithmCandidate], known: Mapping[tuple[str, int], float]
) -> list[AlgorithmCandidate]:
    """Put stored times in the place of estimates.

    What was not measured keeps its estimate, scaled by how far the measured ones were off: so a measured
    algorithm does not lose to one whose model is only as optimistic as its own.
    """
    ratios = []
    for candidate in candidates:
        seconds = known.get((candidate.algorithm.name, candidate.algorithm.version))
        # the reference has no model to speak of, and how wrong it is says nothing about the others
        if seconds is not None and candidate.summary.seconds and candidate.algorithm.name != "reference":
            ratios.append(seconds / candidate.seconds)
    scale = median(ratios) if ratios else 1.0
    result = []
    for candidate in candidates:
        seconds = known.get((candidate.algorithm.name, candidate.algorithm.version))
        if candidate.summary.seconds is None:
            result.append(candidate)
        elif seconds is not None:
            result.append(candidate.timed(seconds, "stored"))
        else:
            result.append(candidate.timed(scale * candidate.seconds, "estimate"))
    return result

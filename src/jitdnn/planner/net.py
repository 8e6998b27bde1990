"""Plans for the convolutions of a whole net: each under a limit of its own, or all within one budget."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import replace
from math import inf

from jitdnn.errors import InvalidArgument, NotSupported
from jitdnn.kernels.algorithm import Device
from jitdnn.planner import budget, fronts
from jitdnn.planner.division import MARGIN, Divider, Partition, Step, Stopped, may_be_divided
from jitdnn.planner.find import PART_SHARE, UNMEASURED, measured
from jitdnn.planner.fronts import Point
from jitdnn.planner.net_plan import LayerPlan, NetPlan, Partitions, arenas_of
from jitdnn.planner.plan import Request
from jitdnn.planner.store import Store
from jitdnn.planner.survey import AlgorithmCandidate, survey
from jitdnn.problems.convolution import Convolution
from jitdnn.problems.convolution_parts import whole
from jitdnn.problems.problem import Problem

#: bytes of workspace below which no other ways are looked for where no limit asks for them
FLOOR = 4 << 20
#: an algorithm that takes so many times as long as another one is not asked about parts
FAR = 2.0


def plan_net(
    layers: Sequence[tuple[str, Problem]],
    device: Device,
    request: Request,
    total: int | None = None,
    streams: Sequence[Hashable] | None = None,
    store: Store | None = None,
    seconds: float = 1.0,
    progress: Callable[[str], None] | None = None,
    alternatives: bool = False,
    stop: Callable[[], bool] = lambda: False,
) -> NetPlan:
    """Choose a partition for every layer, given as (name, problem), so that the sum of their times is least.

    `request.workspace_limit` is what each may use, `total` what all may use together. With `request.choice` "find"
    parts are measured, whole problems for up to `seconds` each, unless the store has their times. `progress` is called
    with the name of each layer before it is looked at. Divisions are looked for where one may be chosen, with
    `alternatives` for every layer. `stop` is asked again and again: once it says so, the plan is made of what is known.

    Raises NotSupported for a layer that nothing takes, InvalidArgument if `total` is too small for any choice.
    """
    if streams is not None and len(streams) != len(layers):
        raise InvalidArgument(
            f"{len(streams)} streams for {len(layers)} layers: there must be one for each layer"
        )
    store = store or Store.default()
    floor = FLOOR if total is None and request.workspace_limit is None else 0
    within = replace(request, workspace_limit=least(request.workspace_limit, total))
    found: dict[Problem, Partitions] = {}
    for name, problem in layers:
        if progress is not None:
            progress(name)
        if problem not in found:
            found[problem] = survey_partitions(
                problem, device, within, store, seconds, alternatives or total is not None, stop, floor
            )
    each = [found[problem] for _, problem in layers]
    chosen = _choose([partitions.front for partitions in each], total, streams)
    arenas = arenas_of(chosen, streams)
    plans = []
    for number, ((name, problem), partitions, point) in enumerate(zip(layers, each, chosen, strict=True)):
        allowed = request.workspace_limit
        if total is not None:
            allowed = least(allowed, arenas[streams[number] if streams is not None else number])
        single = [p for p in partitions.whole if allowed is None or p.workspace <= allowed]
        plans.append(LayerPlan(name, problem, partitions, point, allowed, single[-1] if single else None))
    undivided = None
    if all(partitions.whole for partitions in each):
        try:
            undivided = _choose([partitions.whole for partitions in each], total, streams)
        except InvalidArgument:  # they are too large together
            undivided = None
    streams = None if streams is None else tuple(streams)
    return NetPlan(tuple(plans), device.name, request, total, streams, undivided)


def _choose(
    each: Sequence[tuple[Point, ...]], total: int | None, streams: Sequence[Hashable] | None
) -> tuple[Point, ...]:
    """One point of each front: the fastest of all, or the best within a total."""
    return tuple(front[-1] for front in each) if total is None else budget.divide(each, total, streams)


def partitions(
    problem: Problem, device: Device, request: Request, store: Store, seconds: float = 1.0
) -> tuple[Point, ...]:
    """The front of a problem's partitions within the request, a `Partition` each. Raises NotSupported without any."""
    return survey_partitions(problem, device, request, store, seconds).front


def survey_partitions(
    problem: Problem,
    device: Device,
    request: Request,
    store: Store,
    seconds: float = 1.0,
    alternatives: bool = True,
    stop: Callable[[], bool] = lambda: False,
    floor: int = 0,
) -> Partitions:
    """All that is known of the partitions of a problem within the request. Raises NotSupported if there is none.

    With `request.choice` "find" what is not in the store is measured first. Without `alternatives` divisions are looked
    for only where the fastest algorithm does not fit, since a call whose fastest one fits is not divided. `stop` is
    asked before each part, and where it says so no more of them are looked for.
    """

    def survey_part(
        part: Problem, share: float = PART_SHARE, fits_only: bool = True
    ) -> Sequence[AlgorithmCandidate]:
        if request.choice == "find":
            return _measured(part, device, request, store, share * seconds, fits_only)
        if part is not problem and stop():
            raise Stopped
        return survey(part, device, request, None, store, left_out)

    left_out: frozenset[str] = frozenset()
    # what needs too much is measured too: it tells what the limit costs
    candidates = survey_part(problem, 1.0, False)
    any_workspace = _whole(problem, (o for o in candidates if o.is_open or o.is_too_large))
    single = _whole(problem, (o for o in candidates if o.is_open))
    points = list(single)
    fastest = any_workspace[-1].seconds if any_workspace else 0.0
    is_settled = (
        bool(single) and single[-1].seconds <= fastest and not alternatives and request.choice != "find"
    )
    if (
        isinstance(problem, Convolution)
        and may_be_divided(problem, request)
        and not is_settled
        and not (single and single[-1].seconds <= fastest and single[-1].workspace <= floor)
        and not (single and fastest >= MARGIN * single[0].seconds)
    ):
        left_out = _outdone(candidates, any_workspace)
        divider = Divider(problem, request, None, lambda part, _: survey_part(part), floor)
        ways = divider.front(single, stop)
        points += [_believed(p, fastest) for p in ways if _is_worth_it(p, single, fastest)]
    if not points:
        reasons = {o.algorithm.name: o.summary.refused or "" for o in candidates}
        raise NotSupported(f"no algorithm takes {problem} with {request} on {device.name}:", reasons)
    front = fronts.front(points)
    unlimited = any_workspace[-1] if any_workspace else front[-1]
    return Partitions(front, single, unlimited, tuple(o.summary for o in candidates))


def _measured(
    problem: Problem, device: Device, request: Request, store: Store, seconds: float, fits_only: bool
) -> list[AlgorithmCandidate]:
    """The candidates with the times in the store, where those that are missing have been put."""
    candidates, _ = measured(problem, device, request, None, store, seconds, False, fits_only)
    usable = [o for o in candidates if o.is_open and o.algorithm.name != "reference"]
    if usable and all(o.summary.source == "estimate" for o in usable):
        # the only algorithm: there is nothing to choose, but its time is added to others that are measured
        candidates, _ = measured(problem, device, request, None, store, seconds, True, fits_only)
    if not any((o.summary.refused or "").startswith(UNMEASURED) for o in candidates):
        return candidates
    # what is far too slow to be measured may all the same be all that a small limit leaves
    known = survey(problem, device, request, None, store)
    return [
        now if now.is_open and (was.summary.refused or "").startswith(UNMEASURED) else was
        for was, now in zip(candidates, known, strict=True)
    ]


def _whole(problem: Problem, candidates: Iterable[AlgorithmCandidate]) -> tuple[Point, ...]:
    """The front of running a problem by one kernel."""
    return fronts.front(Point(o.seconds, o.workspace, _undivided(problem, o)) for o in candidates)


def _undivided(problem: Problem, candidate: AlgorithmCandidate) -> Partition:
    """The partition into one part. What is no convolution has no parts to speak of."""
    steps: tuple[Step, ...] = ()
    if isinstance(problem, Convolution):
        steps = (Step(whole(problem), candidate.algorithm, None, candidate.workspace),)
    return Partition(steps, candidate.summary)


def _outdone(candidates: Sequence[AlgorithmCandidate], best: Sequence[Point]) -> frozenset[str]:
    """The algorithms that take the whole problem and that parts need not ask again: those that need no workspace, which
    nothing is gained by dividing, and those that another one is far faster than there in no more workspace. What is a
    little slower for the whole may be the fastest for a part."""
    return frozenset(
        o.algorithm.name
        for o in candidates
        if (o.is_open or o.is_too_large)
        and o.algorithm.name != "reference"
        and (
            o.workspace == 0 or any(p.workspace <= o.workspace and FAR * p.seconds <= o.seconds for p in best)
        )
    )


def _is_worth_it(point: Point, single: Sequence[Point], fastest: float) -> bool:
    """Whether a call with that limit is divided: a whole algorithm in more workspace is faster than those that fit, and
    dividing gains enough over these. `fastest`: seconds of the fastest whole one.
    """
    best = min((p.seconds for p in single if p.workspace <= point.workspace), default=inf)
    return point.what.is_divided and max(point.seconds, fastest) < MARGIN * best


def _believed(point: Point, fastest: float) -> Point:
    """A division as it counts beside whole algorithms, the fastest of which takes `fastest` seconds.

    Estimates are not so good that parts could be known to be faster than the whole: where that fits it is taken.
    """
    if point.what.summary.source != "estimate" or point.seconds > fastest:
        return point
    return point._replace(seconds=fastest * (1 + 1e-3))


def least(one: int | None, other: int | None) -> int | None:
    """The stricter of two limits, of which None is none."""
    limits = [limit for limit in (one, other) if limit is not None]
    return min(limits) if limits else None

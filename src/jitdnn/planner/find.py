"""`find`: choose an algorithm by measuring all that fulfil the request, and remember the times.

Every candidate is built, run to warm up, and then measured in rounds, one sample of each candidate a round,
so that a change of clock or a busy neighbour meets all alike. Its time is the median of its samples. Nothing
of the caller's is touched: operands and workspace are buffers of our own, freed at the end. On a GPU candidates are
compiled side by side and timed by events on a stream of their own (`measure_gpu.py`).
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from time import perf_counter
from typing import Any, NamedTuple

import numpy as np

from jitdnn import log, targets
from jitdnn.errors import CompileError
from jitdnn.kernels.algorithm import Device, Epilogue, Kernel
from jitdnn.planner.choose import build, decide
from jitdnn.planner.division import may_be_divided
from jitdnn.planner.measure_gpu import measure_on_gpu
from jitdnn.planner.operands import make_operand
from jitdnn.planner.plan import Plan, Request
from jitdnn.planner.sampling import Contender, measure
from jitdnn.planner.store import Store
from jitdnn.planner.survey import AlgorithmCandidate, stored_key, survey
from jitdnn.problems.problem import Problem

DEFAULT_SECONDS = 1.0
# what its estimate shows this far behind the best is not worth measuring at all
HOPELESS_ESTIMATE = 30.0
# how the refusal of what was not worth measuring begins
UNMEASURED = "not measured"
# of the time for a problem that each different part of its divisions is measured for
PART_SHARE = 0.1


class _Built(NamedTuple):
    """A candidate that can be measured."""

    candidate: AlgorithmCandidate
    kernel: Kernel
    workspace: int


def find(
    problem: Problem,
    device: Device,
    request: Request,
    epilogue: Epilogue | None = None,
    store: Store | None = None,
    seconds: float = DEFAULT_SECONDS,
    is_fresh: bool = True,
) -> Plan:
    """Plan a problem with the algorithm that is measured to be fastest among those that fulfil the request.

    `seconds` bounds the time spent on measuring: at least one run of each candidate whose estimate is not
    hopeless, no new round after it is over. Building the candidates comes on top. Times are kept in the
    store; with `is_fresh=False` nothing is measured if all of them are stored already, or if there is nothing
    to choose from. Where a limit on workspace shuts out a faster algorithm, the parts of divisions are measured too,
    each for a share of `seconds`. If the operands do not fit into memory a second time, a warning says so and the
    estimates decide. Raises NotSupported as `get` does.
    """
    store = store or Store.default()
    # what needs too much workspace is measured too: it tells how much there is to gain by dividing
    is_whole = not may_be_divided(problem, request)
    candidates, built = measured(problem, device, request, epilogue, store, seconds, is_fresh, is_whole)

    def survey_part(part: Problem, fused: Epilogue | None) -> Sequence[AlgorithmCandidate]:
        return measured(part, device, request, fused, store, seconds * PART_SHARE, False)[0]

    return decide(problem, device, request, epilogue, candidates, survey_part, built)


def measured(
    problem: Problem,
    device: Device,
    request: Request,
    epilogue: Epilogue | None,
    store: Store,
    seconds: float,
    is_fresh: bool,
    fits_only: bool = True,
) -> tuple[list[AlgorithmCandidate], dict[str, Kernel]]:
    """The candidates with measured times, of those that fit the limit or of all, and the kernels built for that."""
    candidates = survey(problem, device, request, epilogue, store)
    promising = _promising(candidates, fits_only)
    missing = [o for o in promising if o.summary.source != "stored"]
    if not promising or ((len(promising) == 1 or not missing) and not is_fresh):
        return candidates, {}
    on_gpu = targets.is_gpu(device.target)
    build_all = _build_side_by_side if on_gpu else _build
    contenders, candidates = build_all(problem, device, epilogue, missing, candidates)
    # what does not compile is never stored: it must not have the others measured again and again
    if not contenders and not is_fresh:
        return candidates, {}
    stored = [o for o in promising if o not in missing]
    if stored:
        more, candidates = build_all(problem, device, epilogue, stored, candidates)
        contenders += more
    if not contenders:
        return candidates, {}
    try:
        if on_gpu:
            contenders, candidates = _measure_on_gpu(
                problem, epilogue, device, contenders, candidates, seconds
            )
        else:
            _measure(problem, epilogue, contenders, seconds, request.keeps_filter)
    except MemoryError:
        log.fallback_once(
            ("no memory to measure", str(problem)),
            f"no memory for a second set of operands of {problem}: its algorithm is chosen by estimates",
        )
        return candidates, {}
    times = {c.what.candidate.algorithm.name: c.seconds for c in contenders}
    candidates = [
        o.timed(times[o.algorithm.name], "measured") if o.algorithm.name in times else o for o in candidates
    ]
    store.record(
        str(problem),
        stored_key(epilogue, request),
        device.name,
        [
            (
                b.candidate.algorithm.name,
                b.candidate.algorithm.version,
                times[b.candidate.algorithm.name],
                b.workspace,
            )
            for b in (contender.what for contender in contenders)
        ],
    )
    # what was not worth measuring is no choice, whatever its estimate says
    unmeasured = f"{UNMEASURED}: its estimate is more than {HOPELESS_ESTIMATE:.0f} times the best one"
    candidates = [
        o.refused(unmeasured) if o.is_open and o.summary.source == "estimate" else o for o in candidates
    ]
    return candidates, {c.what.candidate.algorithm.name: c.what.kernel for c in contenders}


def _promising(candidates: Sequence[AlgorithmCandidate], fits_only: bool) -> list[AlgorithmCandidate]:
    """The open candidates, and maybe those that only need too much workspace, without what is hopeless by its estimate.

    What fits is compared with what fits: it may be all that there is to choose from.
    """
    fitting = _near_the_best([o for o in candidates if o.is_open])
    if fits_only:
        return fitting
    near = _near_the_best([o for o in candidates if o.is_open or o.is_too_large])
    return [o for o in candidates if o in fitting or (o.is_too_large and o in near)]


def _near_the_best(candidates: Sequence[AlgorithmCandidate]) -> list[AlgorithmCandidate]:
    # by estimates, also of what was measured: the answer must not change with what is in the store
    best = min((o.estimate for o in candidates), default=0.0)
    return [o for o in candidates if o.estimate <= HOPELESS_ESTIMATE * best]


def _build(
    problem: Problem,
    device: Device,
    epilogue: Epilogue | None,
    promising: Sequence[AlgorithmCandidate],
    candidates: Sequence[AlgorithmCandidate],
) -> tuple[list[Contender[_Built]], list[AlgorithmCandidate]]:
    """Compile every promising candidate; those that do not compile are refused in the list that is returned."""
    contenders, result = [], list(candidates)
    for candidate in promising:
        try:
            kernel = build(candidate.algorithm, problem, device, epilogue, candidate.workspace)
        except CompileError as error:
            result[result.index(candidate)] = candidate.refused(f"its code does not compile: {error}")
            name = candidate.algorithm.name
            log.fallback_once(
                ("compile", name, str(problem)), f"{name} does not compile for {problem}: {error}"
            )
            continue
        contenders.append(Contender(_Built(candidate, kernel, candidate.workspace)))
    return contenders, result


def _build_side_by_side(
    problem: Problem,
    device: Device,
    epilogue: Epilogue | None,
    promising: Sequence[AlgorithmCandidate],
    candidates: Sequence[AlgorithmCandidate],
) -> tuple[list[Contender[_Built]], list[AlgorithmCandidate]]:
    """`_build` by several threads: compilers of GPUs work outside of Python's lock."""
    contenders, result = [], list(candidates)
    with ThreadPoolExecutor(min(len(promising), os.cpu_count() or 1), "jitdnn-compile") as pool:
        # settings in force belong to the thread: each task takes them along
        tasks = [
            pool.submit(copy_context().run, _build, problem, device, epilogue, [candidate], [candidate])
            for candidate in promising
        ]
        for candidate, task in zip(promising, tasks, strict=True):
            built, (answer,) = task.result()
            contenders += built
            result[result.index(candidate)] = answer
    return contenders, result


def _measure_on_gpu(
    problem: Problem,
    epilogue: Epilogue | None,
    device: Device,
    contenders: Sequence[Contender[_Built]],
    candidates: Sequence[AlgorithmCandidate],
    seconds: float,
) -> tuple[list[Contender[_Built]], list[AlgorithmCandidate]]:
    """Fill in the samples of every contender; what the driver does not launch is refused in the list returned."""
    kernels = [Contender((c.what.kernel, c.what.workspace)) for c in contenders]
    failed = measure_on_gpu(problem, epilogue, device, kernels, seconds)
    result = list(candidates)
    for number, (contender, found) in enumerate(zip(contenders, kernels, strict=True)):
        contender.samples = found.samples
        if number in failed:
            at = result.index(contender.what.candidate)
            result[at] = result[at].refused(f"it cannot be launched: {failed[number]}")
    return [c for number, c in enumerate(contenders) if number not in failed], result


def _measure(
    problem: Problem,
    epilogue: Epilogue | None,
    contenders: Sequence[Contender[_Built]],
    seconds: float,
    keeps_filter: bool,
) -> None:
    """Fill in the samples of every contender; what is kept of the filter is prepared outside of the time."""
    descriptors = [operand.descriptor for operand in problem.operands]
    descriptors += epilogue.operands if epilogue is not None else ()
    values = [operand.values for operand in problem.operands] + [None] * len(descriptors)
    buffers = [make_operand(*pair) for pair in zip(descriptors, values, strict=False)]
    pointers = [pointer for _, pointer in buffers]
    scratch = np.zeros(max(c.what.workspace for c in contenders) + 64, np.uint8)
    workspace = scratch.ctypes.data + -scratch.ctypes.data % 64

    def run(built: _Built, calls: int) -> float:
        kernel: Any = built.kernel
        kept = getattr(kernel, "kept", None) if keeps_filter else None
        if kept is not None:
            # as a caller's: the prepared filter at the start, then what an ordinary call would use
            kernel.keep(None, pointers, workspace)
            start = perf_counter()
            for _ in range(calls):
                kernel.run_kept(None, pointers, 1.0, 0.0, workspace + kept.bytes, workspace)
            return (perf_counter() - start) / calls
        start = perf_counter()
        for _ in range(calls):
            kernel(None, pointers, 1.0, 0.0, workspace)
        return (perf_counter() - start) / calls

    measure(contenders, run, perf_counter() + seconds)

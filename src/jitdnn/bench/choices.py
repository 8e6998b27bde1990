"""How well the planner's estimates choose: all algorithms that may run a problem, measured in turn, beside its pick.

Stored times have no part in it: what is judged is `get` on a machine where nothing has been measured.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from time import perf_counter
from typing import TYPE_CHECKING, Any

from jitdnn.bench import provenance
from jitdnn.bench.driver import Options, input_sets, labels_of, own_candidate, poisoned_result
from jitdnn.bench.gate import Gate
from jitdnn.bench.suites import Layer
from jitdnn.bench.timing import Neighbours, geometric_mean, interleaved, median
from jitdnn.errors import JitdnnError
from jitdnn.handle import Handle
from jitdnn.planner.choose import get
from jitdnn.planner.plan import Request
from jitdnn.planner.store import Store
from jitdnn.planner.survey import survey
from jitdnn.problems.problem import Problem
from jitdnn.settings import current, settings

if TYPE_CHECKING:
    from jitdnn.devices.cpu import CpuDevice

#: An algorithm whose first calls take this many times as long as the best one's is not measured any further.
HOPELESS = 4.0
#: A pick is good that takes at most this many times as long as the best.
GOOD = 1.1


@dataclass(frozen=True, slots=True)
class ChoiceRow:
    """One problem: the algorithm that `get` takes, the one measured to be fastest, and how many times as long the
    first takes. `estimates` and `measured` are seconds by algorithm; the reference is not among them. `wrong` has the
    reasons of those whose results were wrong. `failure` says why there is nothing else."""

    problem: str
    network: str
    name: str
    count: int
    failure: str | None = None
    chosen: str | None = None
    best: str | None = None
    ratio: float | None = None
    estimates: dict[str, float] = field(default_factory=dict)
    measured: dict[str, float] = field(default_factory=dict)
    wrong: dict[str, str] = field(default_factory=dict)
    rounds: int = 0
    neighbours: float | None = None
    device: str = ""
    threads: int = 0
    system: str = ""
    date: str = ""
    commit: str | None = None

    def as_json(self) -> dict[str, Any]:
        """The row as JSON's types."""
        return asdict(self)


def run_choices(
    layers: Sequence[Layer],
    options: Options,
    progress: Callable[[int, str], None] = lambda done, label: None,
) -> Iterator[ChoiceRow]:
    """Measure all algorithms of each of `layers`; of the options `threads`, `workspace_limit` and `method` count."""
    from jitdnn.devices import cpu  # and with it the compiler of the CPU's kernels

    with settings(**options.given("threads", "workspace_limit")) as values:
        device = cpu.host(values.threads, values.cpu)
        blank = ChoiceRow(
            "", "", "", 0, device=device.name, threads=values.threads, system=provenance.system(),
            commit=provenance.commit(),
        )  # fmt: skip
        for number, layer in enumerate(layers):
            progress(number, layer.label)
            row = replace(blank, **labels_of(layer))
            try:
                yield _measure(row, layer.problem, device, options)
            except JitdnnError as error:
                yield replace(row, failure=str(error).splitlines()[0])


def _measure(row: ChoiceRow, problem: Problem, device: CpuDevice, options: Options) -> ChoiceRow:
    request, nothing = replace(Request.of(current()), choice="get"), Store(None)
    surveyed = [o for o in survey(problem, device, request, None, nothing) if o.is_open]
    estimates = {o.algorithm.name: o.seconds for o in surveyed if o.algorithm.name != "reference"}
    if not estimates:
        return replace(row, failure="there is only the reference")
    row = replace(row, chosen=min(surveyed, key=lambda o: o.seconds).algorithm.name, estimates=estimates)
    sets = input_sets(problem)
    gate = Gate(problem, sets[0])
    handle = Handle(device)
    runs, wrong, first = {}, {}, {}
    for name in estimates:
        plan = get(problem, device, replace(request, algorithm=name), None, nothing)
        candidate = own_candidate(problem, plan, handle, sets, name, name)
        error = gate.error(poisoned_result(problem, plan, handle, sets[0]))
        if not error <= candidate.bound:
            wrong[name] = f"relative error {error:.3g}, declared bound {candidate.bound:.3g}"
            continue
        start = perf_counter()
        candidate.run(0)
        first[name] = perf_counter() - start
        runs[name] = candidate.run
    running = [name for name in runs if first[name] <= HOPELESS * min(first.values())]
    neighbours = Neighbours()
    times = interleaved([runs[name] for name in running], options.method)
    measured = first | {name: median(taken) for name, taken in zip(running, times, strict=True)}
    row = replace(
        row, measured=measured, wrong=wrong, rounds=len(times[0]) if times else 0,
        neighbours=neighbours.processors(),
    )  # fmt: skip
    if row.chosen not in measured:
        return replace(row, failure=f"the result of {row.chosen} is wrong: {wrong.get(row.chosen or '', '')}")
    best = min(measured, key=lambda name: measured[name])
    return replace(row, best=best, ratio=measured[row.chosen] / measured[best])


def summary_lines(rows: Sequence[ChoiceRow]) -> list[str]:
    """What the rows come to: how good the picks are, and how far the estimates of each algorithm are off."""
    ratios = [row.ratio for row in rows if row.ratio is not None]
    lines = []
    if ratios:
        worst = max((row for row in rows if row.ratio is not None), key=lambda row: row.ratio or 0.0)
        good = sum(ratio <= GOOD for ratio in ratios)
        label = f"{worst.network}:{worst.name}" if worst.name else worst.problem
        lines.append(
            f"{good} of {len(ratios)} picks ({good / len(ratios):.0%}) take at most {GOOD} times as long as the best, "
            f"the worst {max(ratios):.2f} times ({label}: {worst.chosen} for {worst.best}); "
            f"geometric mean {geometric_mean(ratios):.3f}"
        )
    for name in dict.fromkeys(name for row in rows for name in row.measured):
        off = sorted(row.estimates[name] / row.measured[name] for row in rows if name in row.measured)
        lines.append(
            f"{name}: estimate / measured on {len(off)} problems: geometric mean {geometric_mean(off):.2f}, "
            f"{off[0]:.2f} to {off[-1]:.2f}, half of them {off[len(off) // 4]:.2f} to {off[(3 * len(off)) // 4]:.2f}"
        )
    return lines

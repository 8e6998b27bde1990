"""How the layers of a net would run: algorithms, times, workspace, what else could run and why it does not; and what a
limit on memory costs."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from time import monotonic
from typing import Any

from jitdnn.caffe.convolution_problems import LayerProblem, convolution_problems
from jitdnn.caffe.net import Net
from jitdnn.caffe.schema import NetState, SolverParameter
from jitdnn.caffe.update_rules import rule_of
from jitdnn.errors import JitdnnError
from jitdnn.handle import Handle
from jitdnn.kernels.algorithm import Device
from jitdnn.ops.plan_net import plan_net
from jitdnn.planner.fronts import Point
from jitdnn.planner.net_plan import LayerPlan
from jitdnn.problems import Problem, parse
from jitdnn.settings import settings
from jitdnn.studio.nets.asked import asked_of
from jitdnn.studio.nets.binding import Bound, with_inputs
from jitdnn.studio.nets.checks import checked_net, layers_of, refused
from jitdnn.studio.nets.facts import DataFacts
from jitdnn.studio.nets.options import Options
from jitdnn.studio.nets.solvers import solver_of

#: as pages say it
DIRECTIONS = {"fwd": "forward", "bwd_filter": "filter", "bwd_data": "data"}


def plan(
    text: str,
    options: Mapping[str, Any],
    dataset: Mapping[str, Any],
    home: str | Path,
    *,
    alternatives: bool = False,
    seconds: float = 10.0,
    device: Device | None = None,
) -> dict[str, Any]:
    """Plan the convolutions of a net in training, as JSON's types; with `alternatives` divisions of all are looked for,
    for up to so many `seconds`. `device`: where it is to train, which need not be there (None: this processor).

    Algorithms are chosen as for a training of the studio: by cost models, and only those that give the same bits again.

    `ok`; then `layers`, a row for each convolution and direction (layer, direction, algorithm, parts, seconds,
    workspace, source, error, `front`, what else is worth having, and `others`, the algorithms that were not chosen with
    their seconds or why they are refused), `net`, all layers as `check` has them,
    `seconds` and `workspace` of all, `slowest` the seconds of the slowest,
    `device`, `is_whole` (whether the time was enough), and with options.memory_limit `memory`: what the limit costs
    (limit, peak, seconds, lost, again), or why it cannot be kept. Else what `check` says of what is wrong.
    """
    try:
        chosen, facts = asked_of(options, dataset)
        bound, net = checked_net(text, chosen, facts, Path(home), Path(home) / "runs" / "0")
        return _planned(bound, net, chosen, facts, alternatives, seconds, device)
    except JitdnnError as error:
        return refused(error)


def _planned(
    bound: Bound,
    net: Net,
    options: Options,
    facts: DataFacts,
    alternatives: bool,
    seconds: float,
    device: Device | None,
) -> dict[str, Any]:
    asked = convolution_problems(net, tuple(DIRECTIONS))
    end = monotonic() + seconds
    is_late = False

    def stop() -> bool:
        nonlocal is_late
        is_late = is_late or monotonic() > end
        return is_late

    rows: list[dict[str, Any]] = []
    name = ""
    if asked:
        is_gpu = device is not None and device.target != "cpu"
        first = asked[0].layer
        named = [
            (
                f"{each.layer} {each.direction}",
                _channels_last(each) if is_gpu and each.layer != first else each.problem,
            )
            for each in asked
        ]
        how = {"math": options.math} if options.math else {}
        with Handle(device, choice="model", deterministic=True, **how) as handle:
            found = plan_net(named, alternatives=alternatives, stop=stop, handle=handle)
        name = found.device_name
        rows = [
            {"layer": each.layer, "direction": DIRECTIONS[each.direction], **_row(layer)}
            for each, layer in zip(asked, found.layers, strict=True)
        ]
    result: dict[str, Any] = {
        "ok": True,
        "error": None,
        "line": None,
        "layers": rows,
        "net": layers_of(net),
        "seconds": sum(row["seconds"] for row in rows),
        "workspace": max((row["workspace"] for row in rows), default=0),
        "slowest": max((row["seconds"] for row in rows), default=0.0),
        "device": name,
        "is_whole": not is_late,
    }
    if options.memory_limit:
        result["memory"] = memory_cost(bound, options, facts)
    return result


def _channels_last(asked: LayerProblem) -> Problem:
    """The problem as a net on a GPU has it behind its first layer: channels last in memory."""
    try:
        return parse(f"{asked.problem} nhwc")
    except JitdnnError:
        return asked.problem


def _row(layer: LayerPlan) -> dict[str, Any]:
    summary = layer.partition.summary
    others: list[dict[str, Any]] = [
        {"algorithm": c.name, "seconds": c.seconds, "workspace": c.workspace, "refused": c.refused}
        for c in layer.partitions.candidates
        if c.name not in (summary.name, "reference")
    ]
    return {
        "algorithm": summary.name,
        "seconds": layer.chosen.seconds,
        "workspace": layer.chosen.workspace,
        "parts": len(layer.partition.steps),
        "source": summary.source,
        "error": summary.error_bound,
        "front": [_point(point) for point in layer.front],
        "others": sorted(others, key=lambda other: (other["refused"] is not None, other["seconds"] or 0.0)),
    }


def _point(point: Point) -> dict[str, Any]:
    return {"algorithm": point.what.summary.name, "seconds": point.seconds, "workspace": point.workspace}


def memory_cost(bound: Bound, options: Options, facts: DataFacts) -> dict[str, Any]:
    """What training within options.memory_limit costs: every layer is run twice for it, on zeros.

    `peak` bytes of `limit`, `seconds` of an iteration and those of them that are `lost` to the limit, and the steps
    whose results are computed `again`; or `error`, why it cannot be kept.
    """
    solver = solver_of(options, facts)
    net = Net(with_inputs(bound, options, facts, "TRAIN"), NetState(phase="TRAIN"), seed=0)
    try:
        with settings(division="undivided"):  # with divisions it takes a minute to find a little less
            found = net.limit_memory(options.memory_limit, extra=_history(net, solver), is_timed=False)
    except JitdnnError as error:
        return {"limit": options.memory_limit, "error": str(error)}
    assert found is not None
    return {
        "limit": options.memory_limit,
        "error": None,
        "peak": found.peak,
        "seconds": found.seconds,
        "lost": found.seconds_lost,
        "again": sum(moment.direction == "rerun" for moment in found.moments),
    }


def _history(net: Net, solver: SolverParameter) -> int:
    return len(rule_of(solver).histories) * sum(parameter.blob.nbytes for parameter in net.parameters)

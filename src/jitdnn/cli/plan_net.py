"""`jitdnn plan` with a net: how its layers share workspace, what they gain by it, and why."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

from jitdnn.bench.suites import Layer, load, towards_each
from jitdnn.caffe import load_net
from jitdnn.caffe.convolution_problems import convolution_problems
from jitdnn.cli import fronts_plot
from jitdnn.cli.console import print_table, progress, say
from jitdnn.errors import InvalidArgument
from jitdnn.handle import Handle
from jitdnn.ops.plan_net import plan_net
from jitdnn.planner import net_plan
from jitdnn.problems import Problem, parse
from jitdnn.problems.convolution import DIRECTIONS, Convolution
from jitdnn.settings import settings


def show_net(
    names: Sequence[str],
    memory: str | None,
    share: bool,
    direction: str | None,
    batch: int | None,
    device: str | None,
    plot: Path | None,
    as_json: bool,
    alternatives: bool,
    overrides: Mapping[str, object],
) -> None:
    """Plan, print and draw. `direction` None: all of a net, of problem strings what they say."""
    if plot is not None:
        fronts_plot.require()
    layers = select(names, direction, batch)
    streams = ["one"] * len(layers) if share else None
    with settings(**overrides), Handle(device) as handle:
        done = 0
        with progress(len(layers), "planning", is_quiet=True) as advance:

            def note(name: str) -> None:
                nonlocal done
                advance(done, name)
                done += 1

            plan = plan_net(
                layers,
                total=memory,
                streams=streams,
                handle=handle,
                progress=note,
                alternatives=alternatives or as_json or plot is not None,
            )
    if plot is not None:
        fronts_plot.save_png(plan, plot, ", ".join(name for name in names if " " not in name))
    if as_json:
        say(json.dumps(net_plan.as_json(plan), indent=2))
        return
    print_table("", net_plan.COLUMNS, net_plan.rows(plan), net_plan.RIGHT)
    say()
    for line in net_plan.summary(plan):
        say(line)
    if plot is not None:
        say(str(plot))


def select(names: Sequence[str], direction: str | None, batch: int | None) -> list[tuple[str, Problem]]:
    """The layers of all names, as often as their networks have them, with names of their own.

    Raises InvalidArgument for what is no suite, no file or no net with convolutions.
    """
    found: list[tuple[str, Problem]] = []
    for name in names:
        if name.endswith(".prototxt"):
            layers = _of_prototxt(name, direction or "all")
        elif " " in name:
            layers = towards_each([Layer(parse(name))], direction or "given")
        else:
            layers = _of_suite(load(name), direction)
        if batch is not None:
            layers = [layer.with_batch(batch) for layer in layers]
        found += [(_label(layer), layer.problem) for layer in layers for _ in range(layer.count)]
    return found


def _label(layer: Layer) -> str:
    if not layer.name:
        return str(layer.problem)
    return f"{layer.name} {layer.problem.direction}" if isinstance(layer.problem, Convolution) else layer.name


def _of_suite(layers: Sequence[Layer], direction: str | None) -> list[Layer]:
    """All directions, unless the suite itself says several, or it is not of convolutions alone."""
    if direction is None:
        problems = [layer.problem for layer in layers]
        is_plain = all(
            isinstance(problem, Convolution) and problem.direction == "fwd" for problem in problems
        )
        direction = "all" if is_plain else "given"
    return towards_each(layers, direction)


def _of_prototxt(source: str, direction: str) -> list[Layer]:
    """The convolutions of a net in training: what an iteration computes of them, or would if there was a loss."""
    directions = DIRECTIONS if direction in ("all", "given") else (direction,)
    with settings(log="off"):
        net = load_net(source, "TRAIN", seed=0, shapes_only=True)
    found = [Layer(each.problem, net.name, each.layer) for each in convolution_problems(net, directions)]
    if not found:
        raise InvalidArgument(f"{source} has no convolutions to plan: give a net that has some")
    return found

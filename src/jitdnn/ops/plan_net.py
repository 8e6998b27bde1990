"""Plans for the layers of a net together, without arrays: how a budget of workspace is best spent."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence

from jitdnn.arguments import callback, flag, is_hashable, sequence, shown
from jitdnn.errors import InvalidArgument
from jitdnn.handle import Handle, settled_handle
from jitdnn.planner import net
from jitdnn.planner.net_plan import NetPlan
from jitdnn.planner.plan import Request
from jitdnn.problems import Problem, settled_problem
from jitdnn.settings import override, parse_bytes, settings

_MOST_LAYERS = 1 << 20
Layers = Iterable[Problem | str | tuple[str, Problem | str]]


def plan_net(
    layers: Layers,
    *,
    total: int | str | None = None,
    streams: Sequence[Hashable] | None = None,
    handle: Handle | None = None,
    progress: Callable[[str], None] | None = None,
    alternatives: bool = False,
    stop: Callable[[], bool] | None = None,
    **overrides: object,
) -> NetPlan:
    """Choose how every layer of a net runs, so that together they take the least time; `.explain()` tells all of it.

        layers = [("conv2", "conv_fwd n256 c64 h27 w27 k192 r5 s5"), ("conv3", "conv_fwd n256 c192 h13 w13 k384 r3 s3")]
        print(jd.plan_net(layers, total="64 MiB").explain())

    A layer is a problem, a problem string, or a pair of a name and one of these. `total` bytes of workspace, by default
    what the setting `total_workspace` says, are what they may use together, and the setting `workspace_limit` what each
    may. `streams` names for each layer the stream that it runs on: layers of one stream share their workspace, as large
    as the largest of them needs; without it each has its own. `progress` is called with the name of each layer before
    it is looked at. Convolutions are divided where their fastest algorithm does not fit; with a total, or with
    `alternatives`, divisions are looked for in all of them, which may take seconds for each, and the plan has them all
    in its `front`; where no limit is set, those that need less than 4 MiB are not looked for. `stop` is asked again and
    again meanwhile, and once it says True the plan is made of what is known by
    then. `overrides` are settings (`workspace_limit`, `division`, `vendor`, `choice`, ...) for these plans.

    Raises ParseError and InvalidShape for text that is no problem, NotSupported with every algorithm's reason if none
    takes a layer, InvalidArgument for a total that is too small for any choice, or a setting that there is not.
    """
    pairs = [named(layer) for layer in sequence(layers, "layers", _MOST_LAYERS)]
    if not pairs:
        raise InvalidArgument("there are no layers to plan: give at least one problem")
    owner = settled_handle(handle)
    callback(progress, "progress")
    divides = flag(alternatives, "alternatives")
    callback(stop, "stop")
    if streams is not None:
        streams = sequence(streams, "streams", _MOST_LAYERS)
        for stream in streams:
            if not is_hashable(stream):
                raise InvalidArgument(
                    f"streams has {shown(stream)}: it must name each stream by text or a number"
                )
    values = override(owner.settings, **overrides)
    most = values.total_workspace if total is None else parse_bytes(total)
    with settings(**overrides):
        return net.plan_net(
            pairs,
            owner.device,
            Request.of(values),
            most,
            streams,
            progress=progress,
            alternatives=divides,
            stop=stop or (lambda: False),
        )


def named(layer: Problem | str | tuple[str, Problem | str]) -> tuple[str, Problem]:
    """A layer with its name; a problem without one is called by its string."""
    if isinstance(layer, tuple) and (len(layer) != 2 or not isinstance(layer[0], str)):
        raise InvalidArgument(
            f"a layer is {shown(layer)}: it must be a problem, or a pair of a name and a problem"
        )
    name, given = layer if isinstance(layer, tuple) else (None, layer)
    problem = settled_problem(given)
    return name or str(problem), problem

"""Which layers of a net are in: phases, levels and stages.

A rule is met when its phase (if set) is the state's, the level lies in min_level .. max_level (where set),
every `stage` of the rule is one of the state's and no `not_stage` is. A layer with includes stays when any of
them is met; one with excludes goes when any of them is met; one with both is an error.
"""

from __future__ import annotations

from jitdnn.caffe.schema import LayerParameter, NetParameter, NetState, NetStateRule
from jitdnn.errors import InvalidArgument


def filter_net(net: NetParameter, state: NetState) -> NetParameter:
    """Return a copy of the net (in V2 syntax) with the layers that the state lets in.

    Raises InvalidArgument for a layer with include and exclude together.
    """
    result = net.copy()
    result.layer = [layer.copy() for layer in net.layer if is_included(layer, state)]
    return result


def is_included(layer: LayerParameter, state: NetState) -> bool:
    """Tell whether the layer is in a net built for the state."""
    if layer.include and layer.exclude:
        raise InvalidArgument(
            f"layer {layer.name!r}{layer.where()} has include and exclude rules: keep one kind"
        ).at(layer.place())
    if layer.include:
        return any(is_met(rule, state) for rule in layer.include)
    return not any(is_met(rule, state) for rule in layer.exclude)


def is_met(rule: NetStateRule, state: NetState) -> bool:
    """Tell whether the state meets the rule."""
    if rule.has("phase") and rule.phase != state.phase:
        return False
    if rule.has("min_level") and state.level < rule.min_level:
        return False
    if rule.has("max_level") and state.level > rule.max_level:
        return False
    stages = set(state.stage)
    return stages.issuperset(rule.stage) and stages.isdisjoint(rule.not_stage)

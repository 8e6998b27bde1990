"""How each convolution of a net would run on this machine: algorithm, time, workspace, and what else there is.

Runs in the inspector's process, as everything that builds a net for a page.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import jitdnn as jd
from jitdnn.caffe.layers.convolution import ConvolutionLayer
from jitdnn.caffe.net import Net
from jitdnn.studio.nets.checks import checked_net
from jitdnn.studio.nets.facts import DataFacts
from jitdnn.studio.nets.options import Options

#: directions of a convolution, and what the page calls them: the gradients of the filter and of the data
DIRECTIONS: Final = {"fwd": "forward", "bwd_filter": "filter", "bwd_data": "data"}


def plan(
    text: str, options: Mapping[str, Any], dataset: Mapping[str, Any], home: str | Path
) -> dict[str, Any]:
    """`ways` by the name of a layer: for each direction its algorithm, seconds, bytes of workspace, where the seconds
    are from, and `others`, the algorithms that were not chosen with their seconds or why they are refused. `seconds` of
    all, `workspace` of the largest, `slowest` the seconds of the slowest. Raises JitdnnError for a net that does not
    fit.
    """
    home = Path(home)
    facts = DataFacts.of(dataset)
    _, net = checked_net(text, Options.of(options), facts, home, home / "runs" / "0")
    asked = _problems(net)
    ways: dict[str, list[dict[str, Any]]] = {}
    if asked:
        found = jd.plan_net([(f"{name} {direction}", problem) for name, direction, problem in asked])
        for (name, direction, _), layer in zip(asked, found.layers, strict=True):
            ways.setdefault(name, []).append(_way(direction, layer))
    each = [way for layer in ways.values() for way in layer]
    return {
        "ways": ways,
        "seconds": sum(way["seconds"] for way in each),
        "workspace": max((way["workspace"] for way in each), default=0),
        "slowest": max((way["seconds"] for way in each), default=0.0),
        "device": found.device_name if asked else "",
    }


def _problems(net: Net) -> list[tuple[str, str, Any]]:
    """Each convolution with its directions: gradients only where something before it, or itself, learns."""
    asked = []
    for node in net.nodes:
        if not isinstance(node.layer, ConvolutionLayer):
            continue
        directions = ["fwd"]
        if node.needs_backward:
            directions += ["bwd_filter", *(["bwd_data"] if node.propagate[0] else [])]
        for direction in directions:
            asked.append((node.layer.name, direction, node.layer.problem(direction, node.bottom[0].shape)))
    return asked


def _way(direction: str, layer: Any) -> dict[str, Any]:
    summary = layer.partition.summary
    others = [
        {
            "algorithm": other.name,
            "seconds": other.seconds,
            "workspace": other.workspace,
            "refused": other.refused,
        }
        for other in layer.partitions.candidates
        if other.name != summary.name and other.name != "reference"
    ]
    return {
        "direction": DIRECTIONS[direction],
        "algorithm": summary.name,
        "parts": len(layer.partition.steps),
        "seconds": layer.chosen.seconds,
        "workspace": layer.chosen.workspace,
        "source": summary.source,
        "others": sorted(others, key=lambda other: (other["refused"] is not None, other["seconds"] or 0.0)),
    }

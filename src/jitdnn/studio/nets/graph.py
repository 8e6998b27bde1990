"""A net that can be trained on a data set, as a drawing: its layers with their shapes and what they cost."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from jitdnn.caffe.drawing import draw, label
from jitdnn.caffe.rules import filter_net
from jitdnn.caffe.schema import LayerParameter, NetState
from jitdnn.errors import JitdnnError
from jitdnn.studio import texts
from jitdnn.studio.nets.asked import asked_of
from jitdnn.studio.nets.checks import checked_net, layer_facts, refused


def graph(
    text: str, options: Mapping[str, Any], dataset: Mapping[str, Any], home: str | Path
) -> dict[str, Any]:
    """The net of phase TRAIN laid out, as JSON's types.

    `ok`; then `name`, `width` and `height` in pixels, `layers` (x, y, width, height of the box, `lines` of text with
    the y of each, `kind`, what `check` says of the layer, and its `share` of all operations), and `edges`, each the `d`
    of an SVG's path. Else what `check` says of what is wrong.
    """
    try:
        (chosen, facts), home = asked_of(options, dataset), Path(home)
        bound, net = checked_net(text, chosen, facts, home, home / "runs" / "0")
    except JitdnnError as error:
        return refused(error)
    known = {node.layer.name: layer_facts(node) for node in net.nodes if node.layer.type != "Split"}
    total = sum(row["flops"] for row in known.values())

    def lines_of(layer: LayerParameter) -> list[str]:
        row = known.get(layer.name)
        if row is None:
            return [label(layer)]
        parts = [" × ".join(map(str, row["shape"])) or texts.text("one number")]
        if row["weights"]:
            parts.append(texts.text("%(weights)s weights", weights=f"{row['weights']:,}"))
        if row["weights"] and row["flops"]:
            parts.append(texts.text("%(flops)s M operations", flops=f"{row['flops'] / 1e6:.3g}"))
        return [label(layer), "  ·  ".join(parts)]

    drawing = draw(filter_net(bound.net, NetState(phase="TRAIN")), lines_of, 1, 1)
    layers = []
    for box in drawing.layers:
        position = box.layer.position
        row = known.get(box.layer.name) or {
            "weights": 0,
            "flops": 0,
            "shape": [],
            "bytes": 0,
            "frozen": False,
        }
        row = {
            **row,
            "name": box.layer.name,
            "type": box.layer.type,
            "line": position.line if position else None,
        }
        layers.append(
            {
                **row,
                "share": row["flops"] / total if total else 0.0,
                "kind": box.kind,
                "x": round(box.x, 1),
                "y": round(box.y, 1),
                "width": round(box.width, 1),
                "height": round(box.height, 1),
                "lines": [{"y": y, "text": line} for y, line in zip(box.line_places, box.lines, strict=True)],
            }
        )
    return {
        "ok": True,
        "name": net.name,
        "width": round(drawing.width + 2),
        "height": round(drawing.height + 2),
        "layers": layers,
        "edges": list(drawing.edges),
    }

"""Whether a net can be trained on a data set: its layers, what they cost, and what is wrong in which line."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from jitdnn.caffe.net import Net
from jitdnn.caffe.schema import NetState
from jitdnn.errors import InvalidArgument, JitdnnError, ParseError
from jitdnn.studio.nets.binding import Bound, bind, freeze, with_inputs
from jitdnn.studio.nets.facts import DataFacts
from jitdnn.studio.nets.options import Options
from jitdnn.studio.nets.schedules import rates
from jitdnn.studio.nets.solvers import solver_of


def check(
    text: str, options: Mapping[str, Any], dataset: Mapping[str, Any], home: str | Path
) -> dict[str, Any]:
    """Look at a net, options and a data set, and say whether they go together, as JSON's types.

    `ok`: whether they do; then `name`, `layers` (name, type, shape without the batch, weights, line, and `frozen`),
    `weights`, `activations` (bytes of all blobs and their gradients), `iterations`, `rates` (over the training),
    `solver` (its text), and `changes` (line, what), made in the net for the data set. Else `error`, with the `line` of
    the text that it is about, if it is about one, and `problems`, all that is wrong as (line, error).
    """
    try:
        return _checked(text, Options.of(options), DataFacts.of(dataset), Path(home))
    except JitdnnError as error:
        problems = [{"line": each.line, "error": _said(each)} for each in error.problems or (error,)]
        return {"ok": False, "error": _said(error), "line": error.line, "problems": problems}
    except MemoryError:
        message = "this net needs more memory than may be used to look at it"
        return {"ok": False, "error": message, "line": None, "problems": [{"line": None, "error": message}]}


def sketch(bound: Bound, options: Options, facts: DataFacts, phase: str) -> Net:
    """Build the net of one phase, without its data."""
    return Net(with_inputs(bound, options, facts, phase), NetState(phase=phase), seed=0, shapes_only=True)


def checked_net(text: str, options: Options, facts: DataFacts, home: Path, folder: Path) -> tuple[Bound, Net]:
    """Bind a text and build both of its nets; the one that is trained is returned. Raises JitdnnError."""
    bound = bind(text, options, facts, home, folder)
    net = sketch(bound, options, facts, "TRAIN")
    if options.freeze:
        freeze(bound, {name: len(weights) for name, weights in net.weights.items()}, options.freeze)
        net = sketch(bound, options, facts, "TRAIN")
    if not any(node.needs_backward for node in net.nodes):
        raise InvalidArgument(
            "nothing would learn: the net has no loss, or no weights before it that are trained"
        )
    sketch(bound, options, facts, "TEST")
    return bound, net


def _checked(text: str, options: Options, facts: DataFacts, home: Path) -> dict[str, Any]:
    bound, net = checked_net(text, options, facts, home, home / "runs" / "0")
    solver = solver_of(options, facts)
    return {
        "ok": True,
        "error": None,
        "line": None,
        "name": net.name,
        "layers": [_layer(node) for node in net.nodes if node.layer.type not in ("Split", "Input")],
        "weights": sum(_weights(node) for node in net.nodes),
        "activations": sum(2 * blob.nbytes for blob in net.blobs.values()),
        "iterations": solver.max_iter,
        "rates": rates(solver),
        "solver": str(solver),
        "changes": bound.changes.listed(),
    }


def _layer(node: Any) -> dict[str, Any]:
    position = node.layer.parameter.position
    return {
        "name": node.layer.name,
        "type": node.layer.type,
        "line": position.line if position else None,
        "shape": list(node.top[0].shape[1:]) if node.top else [],
        "weights": _weights(node),
        "frozen": bool(node.layer.weights) and not any(node.layer.weight_needs_gradient),
    }


def _weights(node: Any) -> int:
    """Values of a layer that can be trained; the statistics of BatchNorm cannot."""
    return 0 if node.layer.type == "BatchNorm" else sum(blob.size for blob in node.layer.weights)


def _said(error: JitdnnError) -> str:
    return error.message if isinstance(error, ParseError) else str(error)

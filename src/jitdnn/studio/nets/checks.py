"""Whether a net can be trained on a data set: its layers, what they cost, and what is wrong in which line."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from jitdnn.caffe.net import Net
from jitdnn.caffe.schema import NetState
from jitdnn.caffe.shared_memory import passes_bytes
from jitdnn.errors import InvalidArgument, JitdnnError, ParseError
from jitdnn.settings import current, format_bytes
from jitdnn.studio import texts
from jitdnn.studio.nets.asked import asked_of
from jitdnn.studio.nets.binding import Bound, bind, freeze, with_inputs
from jitdnn.studio.nets.costs import activation_bytes, layer_bytes, operations, weight_bytes
from jitdnn.studio.nets.facts import DataFacts
from jitdnn.studio.nets.fine_tuning import start_from
from jitdnn.studio.nets.gallery import gallery
from jitdnn.studio.nets.loss_matrix import loss_matrix, train_by_matrix
from jitdnn.studio.nets.options import Options
from jitdnn.studio.nets.schedules import rates
from jitdnn.studio.nets.solvers import solver_of

#: fewer training images than these, of so many pixels a side, are hardly learnt from as they are
_FEW, _CUT = 1_000, 32


def check(
    text: str, options: Mapping[str, Any], dataset: Mapping[str, Any], home: str | Path
) -> dict[str, Any]:
    """Look at a net, options and a data set, and say whether they go together, as JSON's types.

    `ok`: whether they do; then `name`, `layers` (name, type, shape without the batch, weights, operations of an image,
    bytes, line, and whether its weights are `frozen`), `weights`, `flops` (of an image, forwards), `activations` (bytes
    of all blobs and their gradients), `memory` (bytes of the whole training), `iterations`, `rates` (over the
    training), `solver` (its text), `start` (layers whose weights are kept, and fresh ones, where it begins with those
    of a file), `warnings`, and `changes` (line, what), made in the net for the data set. Else `error`, with the `line`
    of the text that it is about, if it is about one, and `problems`, all that is wrong as (line, error).
    """
    try:
        return _checked(text, *asked_of(options, dataset), Path(home))
    except JitdnnError as error:
        return refused(error)
    except MemoryError:
        message = "this net needs more memory than may be used to look at it"
        return {"ok": False, "error": message, "line": None, "problems": [{"line": None, "error": message}]}


def refused(error: JitdnnError) -> dict[str, Any]:
    """What is said of a net that cannot be trained."""
    problems = [{"line": each.line, "error": _said(each)} for each in error.problems or (error,)]
    return {"ok": False, "error": _said(error), "line": error.line, "problems": problems}


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
    tested = sketch(bound, options, facts, "TEST")
    start = start_from(bound, net, options.weights, options.freeze) if options.weights else None
    if loss_matrix(options, facts) is not None:
        train_by_matrix(bound, is_listed_only=True)
    activations = activation_bytes(net)
    layers = layers_of(net)
    memory = passes_bytes(net, tested) + weight_bytes(net, solver)
    return {
        "ok": True,
        "error": None,
        "line": None,
        "name": net.name,
        "layers": layers,
        "weights": sum(_weights(node) for node in net.nodes),
        "activations": activations,
        "memory": memory,
        "flops": sum(layer["flops"] for layer in layers),
        "start": None if start is None else {"kept": list(start.kept), "fresh": list(start.fresh)},
        "warnings": _warnings(bound, net.name, facts, memory, options),
        "iterations": solver.max_iter,
        "epochs": options.epochs,
        "batch": options.batch,
        "rates": rates(solver),
        "solver": str(solver),
        "changes": bound.changes.listed(),
    }


def layers_of(net: Net) -> list[dict[str, Any]]:
    """What `check` says of each layer."""
    return [layer_facts(node) for node in net.nodes if node.layer.type not in ("Split", "Input")]


def layer_facts(node: Any) -> dict[str, Any]:
    """What a check says of a layer."""
    position = node.layer.parameter.position
    return {
        "name": node.layer.name,
        "type": node.layer.type,
        "line": position.line if position else None,
        "shape": list(node.top[0].shape[1:]) if node.top else [],
        "weights": _weights(node),
        "flops": operations(node),
        "bytes": layer_bytes(node),
        "frozen": bool(node.layer.weights) and not any(node.layer.weight_needs_gradient),
    }


def _weights(node: Any) -> int:
    """Values of a layer that can be trained; the statistics of BatchNorm cannot."""
    return 0 if node.layer.type == "BatchNorm" else sum(blob.size for blob in node.layer.weights)


def _warnings(bound: Bound, name: str, facts: DataFacts, memory: int, options: Options) -> list[str]:
    """What does not keep a net from being trained, and may not be meant."""
    found = []
    size = next((net["size"] for net in gallery() if f'name: "{name}"' in net["text"]), None)
    low, high = min(facts.shape[1:]), max(facts.shape[1:])
    if options.crop:
        low = high = options.crop
    if size is not None and facts.shape[1:] != (1, 1) and not (size[0] <= low and high <= size[1]):
        found.append(
            texts.text(
                "%(net)s is meant for images of %(least)d to %(most)d pixels, and these have %(low)d x %(high)d",
                net=name,
                least=size[0],
                most=size[1],
                low=low,
                high=high,
            )
        )
    transform = next(layer.transform_param for layer in bound.net.layer if layer.type == "Data")
    is_random = transform.mirror or transform.crop_size
    if facts.counts["train"] < _FEW and min(facts.shape[1:]) >= _CUT and not is_random:
        found.append(
            texts.text(
                "%(images)d images are few, and a net will know them by heart: mirror them, where left and right are "
                "alike, and crop %(pixels)d pixels at random",
                images=facts.counts["train"],
                pixels=7 * min(facts.shape[1:]) // 8,
            )
        )
    most = current().load_limit
    if most is not None and memory > most and not options.memory_limit:
        found.append(
            texts.text(
                "training takes about %(memory)s, and this machine has %(most)s: choose a smaller batch, or a limit on "
                "memory",
                memory=format_bytes(memory),
                most=format_bytes(most),
            )
        )
    return found


def _said(error: JitdnnError) -> str:
    return error.message if isinstance(error, ParseError) else str(error)

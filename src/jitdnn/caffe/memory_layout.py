"""The memory of a net as a planner sees it: steps, and what lies between them (planner/recompute_chain.py)."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field

from jitdnn.caffe.blob import Blob
from jitdnn.caffe.graph import LayerGraph, Node
from jitdnn.planner.recompute import Buffer, Gradient


@dataclass
class Layout:
    """Which layers are a step, and which blobs are a buffer or a gradient of the chain (views of each other share one).

    `steps` are ranges of layers. `constant` are the bytes that stay: weights, their gradients, and the blobs that a
    caller fills or reads between passes (`fixed`).
    """

    steps: list[range]
    buffers: list[Buffer] = field(default_factory=list)
    blobs: list[list[Blob]] = field(default_factory=list)  # of each buffer, the owner of its memory first
    gradients: list[Gradient] = field(default_factory=list)
    gradient_blobs: list[list[Blob]] = field(default_factory=list)
    fixed: list[Blob] = field(default_factory=list)
    constant: int = 0


def lay_out(net: LayerGraph, *, is_trained: bool = True) -> Layout:
    """Find the layout of a net; without `is_trained` of its forward pass alone."""
    nodes = net.nodes
    layout = Layout(_steps(nodes))
    step_of = [step for step, members in enumerate(layout.steps) for _ in members]
    fixed = _fixed(net)
    layout.fixed = list(fixed.values())
    layout.constant = sum(blob.nbytes for blob in layout.fixed) + _weights(net, is_trained=is_trained)
    _data(layout, net, step_of, set(fixed), is_trained=is_trained)
    if is_trained:
        _gradients(layout, net, step_of)
    return layout


def _fixed(net: LayerGraph) -> dict[int, Blob]:
    """The owners of what a caller fills, reads after a pass, or sums up into the loss."""
    found = [net.blobs[name] for name in (*net.inputs, *net.outputs)]
    for node in net.nodes:
        found += [blob for blob, weight in zip(node.top, node.loss_weights, strict=True) if weight]
    return {id(blob.owner): blob.owner for blob in found}


def _weights(net: LayerGraph, *, is_trained: bool) -> int:
    owned = sum(blob.nbytes for blobs in net.weights.values() for blob in blobs if blob.owner is blob)
    return owned + (sum(parameter.blob.nbytes for parameter in net.parameters) if is_trained else 0)


def _writes(node: Node) -> list[Blob]:
    """The owners of the memory that the layer's forward pass fills: not those of views that it only makes."""
    return [blob.owner for blob in node.top if blob.owner is blob or blob in node.bottom]


def _steps(nodes: list[Node]) -> list[range]:
    """Ranges of layers, each as short as it can be with all that write to the same memory in one."""
    last_of: dict[int, int] = {}
    for index, node in enumerate(nodes):
        for owner in _writes(node):
            last_of[id(owner)] = index
    steps: list[range] = []
    index = 0
    while index < len(nodes):
        stop, position = index + 1, index
        while position < stop:
            stop = max([stop, *(last_of[id(owner)] + 1 for owner in _writes(nodes[position]))])
            position += 1
        steps.append(range(index, stop))
        index = stop
    return steps


def _data(layout: Layout, net: LayerGraph, step_of: list[int], fixed: set[int], *, is_trained: bool) -> None:
    views: dict[int, list[Blob]] = {}
    for blob in sorted(net.blobs.values(), key=lambda blob: blob.owner is not blob):
        views.setdefault(id(blob.owner), []).append(blob)
    made: dict[int, int] = {}
    read: dict[int, set[int]] = defaultdict(set)
    needed: dict[int, set[int]] = defaultdict(set)
    for index, node in enumerate(net.nodes):
        step = step_of[index]
        writes = _writes(node)
        for owner in writes:
            made.setdefault(id(owner), step)
        if writes or not node.top:
            for blob in node.bottom:
                if made[id(blob.owner)] != step:
                    read[id(blob.owner)].add(step)
        if not (node.needs_backward and is_trained):
            continue
        reads = node.layer.backward_reads()
        for blobs, is_read in ((node.bottom, reads.bottom), (node.top, reads.top)):
            for blob in blobs if is_read else ():
                needed[id(blob.owner)].add(step)

    for key, blobs in views.items():
        if key not in fixed:
            buffer = Buffer(
                blobs[0].name,
                blobs[0].nbytes,
                made[key],
                tuple(sorted(read[key])),
                tuple(sorted(needed[key])),
            )
            layout.buffers.append(buffer)
            layout.blobs.append(blobs)
    for index, node in enumerate(net.nodes):
        step = step_of[index]
        for blob in node.layer.saved.values():
            needs = (step,) if node.needs_backward and is_trained else ()
            layout.buffers.append(Buffer(blob.name, blob.nbytes, step, (), needs))
            layout.blobs.append([blob])


def _gradients(layout: Layout, net: LayerGraph, step_of: list[int]) -> None:
    inputs = {id(net.blobs[name].gradient_owner) for name in net.inputs}
    weighted = {
        id(blob.gradient_owner)
        for node in net.nodes
        for blob, weight in zip(node.top, node.loss_weights, strict=True)
        if weight
    }
    views: dict[int, list[Blob]] = {}
    for blob in sorted(net.blobs.values(), key=lambda blob: blob.gradient_owner is not blob):
        views.setdefault(id(blob.gradient_owner), []).append(blob)
    touched: dict[int, set[int]] = defaultdict(set)
    for index, node in enumerate(net.nodes):
        if node.needs_backward:
            for blob in _touched(node):
                touched[id(blob.gradient_owner)].add(step_of[index])
    for key, steps in touched.items():
        owner = views[key][0]
        if key in inputs | weighted:
            layout.constant += owner.nbytes  # a caller reads it afterwards, or it is the weight of a loss
            continue
        layout.gradients.append(Gradient(owner.name, owner.nbytes, max(steps), min(steps)))
        layout.gradient_blobs.append(views[key])


def _touched(node: Node) -> list[Blob]:
    """The blobs whose gradients the layer's backward pass reads or fills."""
    layer = node.layer
    filled = [blob for blob, is_wanted in zip(node.bottom, node.fills, strict=True) if is_wanted]
    if layer.type == "Split":
        tops = [blob for blob, has in zip(node.backward_top, layer.top_has_gradient, strict=True) if has]
        return [*filled, *tops] if filled else []
    top = node.backward_top
    if layer.weights:
        return [*filled, *top]
    is_computed = filled or any(node.propagate)
    return [*filled, *(top[:1] if layer.is_loss else top)] if is_computed else []

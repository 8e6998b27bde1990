"""All nodes of a graph lowered in order, and what leaves it written to memory of its own."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import nullcontext

import numpy as np

from jitdnn.graph.handle import names_of
from jitdnn.graph.ir import Node, Value
from jitdnn.graph.lower.builder import Builder, Event, order_of
from jitdnn.graph.lower.nodes import LOWER, channels_last
from jitdnn.graph.memory import descriptor_of
from jitdnn.settings import settings


def lower(b: Builder) -> None:
    """Record the launches of a graph's nodes."""
    for value in b.graph.inputs:
        buffer, array = b.place("input", descriptor_of(value.shape or (1,), value.dtype))
        b.inputs.append(buffer)
        b.arrays[value] = array.reshape(value.shape)
    made = {value for node in b.graph.nodes for value in node.outputs}
    late: list[tuple[Value, int]] = []
    for number, value in enumerate(b.graph.outputs):
        buffer, array = b.place("output", descriptor_of(value.shape or (1,), value.dtype))
        b.outputs.append((buffer, array.reshape(value.shape)))
        if value in made and value not in b.targets:
            b.targets[value] = b.outputs[-1][1]
        else:
            late.append((value, number))
    _place_turned(b)
    _place_joined(b)
    with b.recording():
        for node in b.graph.nodes:
            _node(b, node)
        for value, number in late:
            first = len(b.recorder)
            b.copy(b.kernel_array(value), b.outputs[number][1].reshape(value.shape or (1,)))
            b.events.append(Event(Node("copy", (value,), (), {}, ("an output",)), first, len(b.recorder)))


_UNPLANNED = {"quantized_lstm": "quantized_steps"}  # kernels of primitives that no planner chose
_WRITES_ANYWHERE = frozenset({"conv", "pointwise", "concat", "matmul"})


def _place_turned(b: Builder) -> None:
    """Have what leaves the graph with its axes in another order written there by the node that computes it, where that
    is a formula, or a convolution whose channels come out last."""
    maker = {value: node for node in b.graph.nodes for value in node.outputs}
    for value, target in list(b.targets.items()):
        node = maker[value]
        while node.op == "view" and node.attributes["kind"] == "transpose":
            (value,) = node.inputs
            if value in b.targets or value not in maker:
                break
            target = target.transpose(np.argsort(node.attributes["argument"]))
            node = maker[value]
            is_image = node.op == "conv" and b.is_last and order_of(target) == channels_last(target.ndim)
            if is_image or node.op == "pointwise":
                b.targets[value] = target


def _place_joined(b: Builder) -> None:
    """Have results that are joined along an axis written to their part of the whole."""
    maker = {value: node for node in b.graph.nodes for value in node.outputs}
    for node in reversed(b.graph.nodes):
        if node.op != "concat":
            continue
        axis, whole = node.attributes["axis"], b.targets.get(node.output)
        parts = list(_parts(node, axis))
        mine = [
            (value, part)
            for value, part in parts
            if value in maker
            and maker[value].op in _WRITES_ANYWHERE
            and value not in b.targets
            and node.inputs.count(value) == 1
        ]
        if not mine:
            continue
        if whole is None:
            rank = len(node.output.shape)
            is_image = any(maker[value].op == "conv" for value, _ in mine)
            whole = b.new(
                node.output.shape,
                node.output.dtype,
                channels_last(rank) if is_image and b.is_last and rank > 2 else None,
            )
        b.arrays[node.output] = whole
        for value, part in mine:
            b.targets[value] = whole[part]


def _parts(node: Node, axis: int) -> Iterator[tuple[Value, tuple[slice, ...]]]:
    start = 0
    for value in node.inputs:
        end = start + value.shape[axis]
        yield value, (*(slice(None),) * axis, slice(start, end))
        start = end


def _node(b: Builder, node: Node) -> None:
    first = len(b.recorder)
    if node.op == "call":
        b.host_call(node, node.attributes["run"])
        return
    b.handle.ran.clear()
    before = len(b.events)
    if all(value.size for value in node.outputs) or node.op == "view":
        math = node.attributes.get("math")
        with nullcontext() if math is None else settings(math=math):
            b.node(node, LOWER[node.op])
    else:
        for value in node.outputs:
            b.result(value)
    if len(b.events) > before:
        return  # the host runs it
    if len(b.recorder) > first or node.op == "view":
        names = names_of(b.handle.ran)
        if not names and len(b.recorder) > first:
            names = (_UNPLANNED.get(node.attributes.get("name", ""), "elementwise"),)
        seconds = sum(plan.seconds for plan in b.handle.ran)
        b.events.append(Event(node, first, len(b.recorder), names, seconds))

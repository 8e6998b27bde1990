"""Small tensors that a graph on a GPU gives, put together: numbers of channels that normalizations save, and gradients
of their weights.

Where our calls sum by channel no kernel of Inductor's is left that could compute in passing what is made of the sums,
or of weights alone, so each is a kernel of its own. What others read of it they compute anew.
"""

from __future__ import annotations

import operator
from collections import defaultdict
from collections.abc import Callable, Sequence
from math import prod
from typing import Any

import torch
from torch import Tensor
from torch.fx import Graph, Node

from jitdnn.frameworks.torch.channel_sums import channel_sums
from jitdnn.frameworks.torch.channel_values import channel_values
from jitdnn.frameworks.torch.inductor_forms import has_static_form, is_on_gpu
from jitdnn.frameworks.torch.inductor_formulas import is_in_memory
from jitdnn.frameworks.torch.inductor_groups import CALLS, MOST, cast_each
from jitdnn.frameworks.torch.pointwise import POINTWISE
from jitdnn.frameworks.torch.tail import CAST

aten = torch.ops.aten
_MOST_ELEMENTS = 1 << 14
_MOST_SUMMED = 8  # of as many Inductor makes no reduction (`unroll_reductions_threshold`)
_MOST_NODES = 48
_VIEWS = (
    aten.reshape.default, aten.view.default, aten._unsafe_view.default, aten.squeeze.dims, aten.squeeze.dim,
    aten.unsqueeze.default, aten.alias.default, aten.select.int, aten.slice.Tensor, aten.expand.default,
)  # fmt: skip
_SUMS = (aten.sum.dim_IntList, aten.mean.dim)
#: what reads numbers of channels from memory
_READERS = {*CALLS, channel_sums.default, channel_values.default}


def store_together(graph: Graph) -> int:
    """Rewrite a graph in place; how many results are written by kernels that write several."""
    (end,) = (node for node in graph.nodes if node.op == "output")
    order = {node: place for place, node in enumerate(graph.nodes)}
    first: dict[Any, list[Node]] = defaultdict(list)
    last: dict[Any, list[Node]] = defaultdict(list)
    for node in graph.nodes:
        if not _is_written(node):
            continue
        leaves = _leaves(node)
        if leaves is None:
            continue
        value = node.meta["val"]
        kind = (value.dtype, value.device)
        if all(leaf.op == "placeholder" for leaf in leaves):
            first[kind].append(node)
        elif not _is_read_by_calls(node):
            last[kind].append(node)
    count = 0
    for nodes in _parts(first):
        _become_one(graph, nodes, nodes[0], lambda user: False)
        count += len(nodes)
    for nodes in _parts(last):
        copied = [user for node in nodes for user in node.users if user.target is aten.copy_.default]
        before = min([end, *copied], key=lambda one: order.get(one, len(order)))
        _become_one(
            graph, nodes, before, lambda user: user.op != "output" and user.target is not aten.copy_.default
        )
        count += len(nodes)
    if count:
        from torch._inductor.pattern_matcher import stable_topological_sort

        stable_topological_sort(graph)  # what is made of weights alone comes first
    return count


def _parts(kinds: dict[Any, list[Node]]) -> list[list[Node]]:
    parts = [nodes[at : at + MOST] for nodes in kinds.values() for at in range(0, len(nodes), MOST)]
    return [nodes for nodes in parts if len(nodes) > 1]


def _is_small(node: Node) -> bool:
    value = node.meta.get("val")
    return isinstance(value, Tensor) and has_static_form(value) and 0 < value.numel() <= _MOST_ELEMENTS


def _is_written(node: Node) -> bool:
    """Whether a node is a small tensor that is computed, and that the graph gives."""
    return (
        node.op == "call_function"
        and _is_computed(node)
        and node.target not in _VIEWS
        and is_on_gpu(node)
        and _is_small(node)
        and node.meta["val"].is_contiguous()
        and any(user.op == "output" or _is_copied(user, node) for user in node.users)
    )


def _is_copied(user: Node, node: Node) -> bool:
    """Whether a user puts a value in the place of what the graph was given."""
    return user.target is aten.copy_.default and user.args[1] is node and not user.users


def _is_computed(node: Node) -> bool:
    """Whether Inductor computes a node element by element, of few others each."""
    if node.target in _SUMS:
        given = node.args[0].meta["val"].shape
        axes = node.args[1] if len(node.args) > 1 else None
        return isinstance(axes, (list, tuple)) and prod(given[axis] for axis in axes) <= _MOST_SUMMED
    return (
        node.target in POINTWISE
        or node.target is CAST
        or node.target is aten.repeat.default
        or node.target in _VIEWS
    )


def _leaves(node: Node) -> set[Node] | None:
    """What lies in memory of which a node is computed; None where a reduction of Inductor's is among it."""
    seen: set[Node] = set()
    leaves: set[Node] = set()
    left = [node]
    while left:
        one = left.pop()
        if one in seen:
            continue
        seen.add(one)
        if len(seen) > _MOST_NODES or not _is_small(one):
            return None
        if is_in_memory(one) or one.target in _READERS:
            leaves.add(one)
        elif one.op == "call_function" and _is_computed(one):
            left += one.all_input_nodes
        else:
            return None
    return leaves or None


def _is_read_by_calls(node: Node) -> bool:
    """Whether a node has to be in memory before the end, since a call reads it."""
    return any(
        user.target in _READERS or (user.target in _VIEWS and _is_read_by_calls(user)) for user in node.users
    )


def _become_one(
    graph: Graph, nodes: Sequence[Node], before: Node, computes_anew: Callable[[Node], bool]
) -> None:
    """Have several nodes be results of one kernel before another node; they keep their names, by which Inductor knows
    outputs. `computes_anew`: which of their users read what is computed, not what is written."""
    dtype, device = nodes[0].meta["val"].dtype, nodes[0].meta["val"].device
    assert all(one.meta["val"].device == device for one in nodes)
    computed = []
    for node in nodes:
        with graph.inserting_before(node):
            own = graph.node_copy(node, lambda one: one)
        own.meta = dict(node.meta)
        for user in list(node.users):
            if computes_anew(user):
                user.replace_input_with(node, own)
        computed.append(own)
    with graph.inserting_before(before):
        made = graph.call_function(cast_each.default, (computed, dtype))
    made.meta["val"] = [node.meta["val"] for node in nodes]
    place = made
    for number, node in enumerate(nodes):
        place.append(node)
        node.target, node.args, node.kwargs = operator.getitem, (made, number), {}
        place = node

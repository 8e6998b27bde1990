"""Captured graphs written so that operators translate one by one: results that nobody reads left out, parts as slices,
and products that PyTorch takes apart into reshapes and products of matrices as what they were.
"""

from __future__ import annotations

import operator
from typing import Any

import torch
from torch.fx import Graph, Node

from jitdnn.frameworks.torch.gpu_operators import First, linear
from jitdnn.frameworks.torch.graph import value
from jitdnn.frameworks.torch.pointwise import BATCH_NORMS
from jitdnn.frameworks.torch.replaced import simplify

aten = torch.ops.aten
#: operators of several results, of which translations give the first
_SEVERAL = {
    *BATCH_NORMS, aten.native_layer_norm.default, aten.native_group_norm.default,
    aten.max_pool2d_with_indices.default, aten.max_pool3d_with_indices.default, aten.adaptive_max_pool2d.default,
    aten._scaled_dot_product_flash_attention.default, aten._scaled_dot_product_efficient_attention.default,
    aten._scaled_dot_product_cudnn_attention.default, aten._scaled_dot_product_flash_attention_for_cpu.default,
    *([aten._fused_rms_norm.default] if hasattr(aten, "_fused_rms_norm") else []),
}  # fmt: skip


_PARTS = {aten.split.Tensor, aten.split_with_sizes.default, aten.unbind.int, aten.chunk.default}
_RESHAPES = (aten.view.default, aten._unsafe_view.default, aten.reshape.default)


def rewrite(graph: Graph) -> None:
    """Write a graph so, in place."""
    simplify(graph)
    for node in list(graph.nodes):
        if node.op != "call_function":
            continue
        if node.target in (aten.mm.default, aten.addmm.default):
            _as_linear(graph, node)
        elif node.target is aten.bmm.default:
            _as_product(graph, node)
        elif node.users and all(
            user.target is operator.getitem and user.args[0] is node for user in node.users
        ):
            _parts_apart(graph, node)


def _parts_apart(graph: Graph, node: Node) -> None:
    results = list(node.users)
    if node.target in _SEVERAL and all(user.args[1] == 0 for user in results):
        with graph.inserting_before(node):
            first = graph.call_function(First(node.target), node.args, node.kwargs)
        first.meta["val"] = value(results[0])
        for user in results:
            user.replace_all_uses_with(first)
            graph.erase_node(user)
        graph.erase_node(node)
    elif node.target in _PARTS:
        for user in results:
            _as_slice(graph, node, user)
        graph.erase_node(node)


def _as_linear(graph: Graph, node: Node) -> None:
    """A product of rows, which are a reshaped tensor, as one of that tensor, where its result is reshaped back."""
    *bias, rows, w = node.args
    (user,) = node.users if len(node.users) == 1 else (None,)
    if node.kwargs or user is None or user.target not in _RESHAPES:
        return
    if not isinstance(rows, Node) or rows.target not in _RESHAPES or (bias and value(bias[0]).dim() != 1):
        return
    x: Any = rows.args[0]
    held, whole = value(x), value(user)
    if held.dim() < 2 or held.shape[-1] != value(rows).shape[-1] or whole.shape[:-1] != held.shape[:-1]:
        return
    with graph.inserting_before(user):
        made = graph.call_function(linear, (x, w, *bias))
    _replaced(graph, made, user, node, rows)


def _replaced(graph: Graph, made: Node, last: Node, *gone: Node) -> None:
    """Put a node in the place of the last of some, and leave out those before it that nobody else reads."""
    made.meta["val"] = value(last)
    last.replace_all_uses_with(made)
    graph.erase_node(last)
    for node in dict.fromkeys(gone):
        if not node.users:
            graph.erase_node(node)


def _as_product(graph: Graph, node: Node) -> None:
    """A product of a row of matrices, which are reshaped tensors, as one of those, where its result is reshaped so."""
    (user,) = node.users if len(node.users) == 1 else (None,)
    if user is None or user.target not in _RESHAPES:
        return
    rows: list[Any] = list(node.args)
    if not all(isinstance(one, Node) and one.target in _RESHAPES for one in rows):
        return
    factors: list[Any] = [one.args[0] for one in rows]
    whole = value(user).shape
    for one, factor in zip(rows, factors, strict=True):
        shape = value(factor).shape
        if len(shape) != len(whole) or shape[:-2] != whole[:-2] or shape[-2:] != value(one).shape[-2:]:
            return
    with graph.inserting_before(user):
        made = graph.call_function(aten.matmul.default, tuple(factors))
    _replaced(graph, made, user, node, *rows)


def _as_slice(graph: Graph, node: Node, user: Node) -> None:
    """A part of a tensor as a slice of it."""
    x, number = node.args[0], user.args[1]
    place = 1 if node.target is aten.unbind.int else 2
    axis: Any = node.args[place] if len(node.args) > place else node.kwargs.get("dim", 0)
    with graph.inserting_before(user):
        if node.target is aten.unbind.int:
            made = graph.call_function(aten.select.int, (x, axis, number))
        else:
            extents = [part.shape[axis] for part in value(node)]
            start = sum(extents[:number])
            made = graph.call_function(aten.slice.Tensor, (x, axis, start, start + extents[number]))
    made.meta["val"] = value(user)
    user.replace_all_uses_with(made)
    graph.erase_node(user)

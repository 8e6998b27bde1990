"""Concatenations of channels in Inductor's graphs on a GPU: whatever computes a part writes it where it belongs.

The parts of a skip connection are written for those that read them, and read and written once more when they are put
side by side. Inductor has parts written in their place where it has not chosen how they lie in memory; it chooses by
what the graph says, which of volumes behind normalizations is channels first, and what is saved for the backward pass
it fixes. `jitdnn::cat_in_place` says how the whole lies, which is as convolutions read it, and what was saved of a part
is a view of the whole.
"""

from __future__ import annotations

import operator
from typing import Any

import torch
from torch import Tensor
from torch.fx import Graph, Node

from jitdnn.frameworks.torch import inductor_patches
from jitdnn.frameworks.torch.concatenation import cat_in_place, stored
from jitdnn.frameworks.torch.inductor_forms import has_static_form, is_on_gpu
from jitdnn.frameworks.torch.inductor_formulas import SAME
from jitdnn.frameworks.torch.inductor_groups import CALLS
from jitdnn.frameworks.torch.inductor_rewriting import may_save_otherwise, refresh, visible_results
from jitdnn.frameworks.torch.kernels import channels_last_strides
from jitdnn.frameworks.torch.pointwise import VIEWS

aten = torch.ops.aten
_CAT, _CHANNELS = aten.cat.default, 1
_LAID = "inductor_force_stride_order"


def concatenate_in_place(graph: Graph) -> int:
    """Rewrite a graph in place; how many concatenations there were.

    Taken are those of channels that are read from memory with channels last, by convolutions above all, of which
    Inductor computes a part that others read, too, and none of them in an order of its own.
    """
    found = [node for node in graph.nodes if node.target is _CAT and _is_laid_last(node)]
    count = 0
    for node in found:
        parts = node.args[0]
        if any(_is_written_apart(one, node) or _is_ours_alone(one, node) for one in parts):
            _become(graph, node)
            count += 1
    return count


def _is_laid_last(node: Node) -> bool:
    """Whether a concatenation of channels lies in memory anyway, with channels last."""
    value = node.meta.get("val")
    if not isinstance(value, Tensor) or not has_static_form(value) or not is_on_gpu(node):
        return False
    dim = node.args[1] if len(node.args) > 1 else node.kwargs.get("dim", 0)
    if value.dim() not in (4, 5) or not isinstance(dim, int) or dim % value.dim() != _CHANNELS:
        return False
    parts = node.args[0]
    if not isinstance(parts, (list, tuple)) or not all(_is_part(one, value) for one in parts):
        return False
    last, is_last = channels_last_strides(value.shape), tuple(value.stride())
    return any(_reads(user) for user in node.users) and all(
        tuple(user.args[1]) == last if _LAID in str(user.target) else is_last == last and _reads(user)
        for user in node.users
    )


def _reads(user: Node) -> bool:
    """Whether a user reads a node from memory as it is told to lie there."""
    if _LAID in str(user.target):
        return any(one.target in CALLS or one.op == "output" for one in user.users)
    return user.target in CALLS or user.op == "output"


def _is_part(one: Any, whole: Tensor) -> bool:
    value = one.meta.get("val") if isinstance(one, Node) else None
    return (
        isinstance(value, Tensor)
        and value.dtype == whole.dtype
        and has_static_form(value)
        and value.dim() > 1
    )


def _is_written_apart(one: Node, whole: Node) -> bool:
    """Whether Inductor writes a part by a kernel of its own, which may write it anywhere, for others to read."""
    below = one
    while below.target in (*SAME, *VIEWS, aten.slice.Tensor, aten.select.int, aten.expand.default):
        below = below.args[0]
    if below.op != "call_function" or below.target in (operator.getitem, *CALLS) or len(one.users) < 2:
        return False
    visible = visible_results(one.graph)
    if visible is None or one in visible:
        return False
    for user in one.users:
        if user is whole:
            continue
        if user.op == "output" and not may_save_otherwise():
            return False
        if user.target in (*CALLS, _CAT, aten.copy_.default) or _LAID in str(user.target):
            return False
    return True


def _is_ours_alone(one: Node, whole: Node) -> bool:
    """Whether a part is a result of ours that may lie anywhere, that nothing else reads, and whose place is aligned."""
    parts = whole.args[0]
    if len(one.users) > 1 or parts.count(one) > 1 or not inductor_patches.is_whole(one):
        return False
    widths = [part.meta["val"].shape[_CHANNELS] for part in parts]
    begins = (sum(widths[: parts.index(one)]), sum(widths))
    return all(begin % inductor_patches.VECTOR == 0 for begin in begins)


def _become(graph: Graph, node: Node) -> None:
    parts = list(node.args[0])
    strides = channels_last_strides(node.meta["val"].shape)
    for part in parts:
        if _is_ours_alone(part, node):
            inductor_patches.lay(part, strides)
    with graph.inserting_before(node):
        made = graph.call_function(cat_in_place.default, (parts, _CHANNELS, list(strides)))
        refresh(made)
    (end,) = (one for one in graph.nodes if one.op == "output")
    begin = 0
    for part in parts:
        width = part.meta["val"].shape[_CHANNELS]
        if _is_written_apart(part, node):
            if end in part.users:
                with graph.inserting_after(made):
                    view = graph.call_function(aten.slice.Tensor, (made, _CHANNELS, begin, begin + width))
                refresh(view)
                end.replace_input_with(part, view)
            with graph.inserting_after(part):
                held = graph.call_function(stored.default, (part,))
            held.meta = dict(part.meta)
            part.replace_all_uses_with(held, delete_user_cb=lambda user, held=held: user is not held)
        begin += width
    for user in list(node.users):
        if _LAID in str(user.target):
            user.replace_all_uses_with(made)
            graph.erase_node(user)
    node.replace_all_uses_with(made)
    graph.erase_node(node)

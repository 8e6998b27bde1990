"""Gradients of maxima over volumes in Inductor's graphs on a GPU, where the windows do not overlap.

Inductor calls PyTorch's kernel, which clears the gradient and adds to it, and whatever reads it reads it from memory.
Where each element lies in one window it is that window's gradient if the maximum was there, else 0: element by element,
so that Inductor computes it in the kernel that reads it.
"""

from __future__ import annotations

import operator
from functools import partial
from math import prod
from typing import Any

import torch
import torch._inductor.inductor_prims  # defines the operator of offsets
from torch import Tensor
from torch.fx import Graph, Node

from jitdnn.frameworks.torch.concatenation import interleave, places_of
from jitdnn.frameworks.torch.inductor_forms import has_static_form, is_on_gpu
from jitdnn.frameworks.torch.inductor_rewriting import call_like, laid_out, may_save_otherwise, save_as_laid
from jitdnn.frameworks.torch.kernels import channels_last_strides, contiguous_strides

aten = torch.ops.aten
_BACKWARD = aten.max_pool3d_with_indices_backward.default
_INDICES = getattr(getattr(torch.ops.prims, "_low_memory_max_pool_offsets_to_indices", None), "default", None)
_POOL = getattr(getattr(torch.ops.prims, "_low_memory_max_pool_with_offsets", None), "default", None)
_LAID = "inductor_force_stride_order"
_MOST_PLACES = 8  # of a window; each of them is written by itself


def select_gradients(graph: Graph, can_interleave: bool = False) -> int:
    """Rewrite a graph in place; how many gradients there were.

    `can_interleave`: whether Inductor writes each place of windows by itself (inductor_lowering.py). So a gradient is
    written to which another is added, as behind a skip connection: with windows in place of pixels to count.
    """
    found = [node for node in graph.nodes if node.target is _BACKWARD and _is_divided(node)]
    for node in found:
        if not can_interleave or not _interleave(graph, node):
            _select(graph, node)
    return len(found)


def save_offsets_as_read(graph: Graph) -> int:
    """Have a graph save where maxima were with channels last where the maxima are read so; how many there were.

    Inductor keeps the order that the graph says for what it saves, which behind a normalization is channels first.
    """
    count = 0
    for node in list(graph.nodes):
        if node.target is not _POOL or not may_save_otherwise():
            continue
        parts = {user.args[1]: user for user in node.users if user.target is operator.getitem}
        if set(parts) != {0, 1} or len(parts) != len(node.users):
            continue
        value = parts[1].meta["val"]
        if not has_static_form(value) or not 4 <= value.dim() <= 5 or not is_on_gpu(parts[1]):
            continue
        last = channels_last_strides(value.shape)
        is_last = any(_LAID in str(user.target) and tuple(user.args[1]) == last for user in parts[0].users)
        if is_last and any(user.op == "output" for user in parts[1].users):
            save_as_laid(graph, parts[1], laid_out(graph, parts[1].next, parts[1], last))
            count += 1
    return count


def _is_divided(node: Node) -> bool:
    """Whether the windows divide the volume, none left over."""
    if len(node.args) != 8 or node.kwargs or not is_on_gpu(node):
        return False
    dy, x, kernel, stride, padding, dilation, _, indices = node.args
    values = [one.meta["val"] for one in (dy, x, indices)]
    if not all(isinstance(one, Tensor) and has_static_form(one) and one.dim() == 5 for one in values):
        return False
    windows = _three(kernel)
    return (
        _three(stride or kernel) == windows
        and _three(padding) == (0, 0, 0)
        and _three(dilation) == (1, 1, 1)
        and all(size % one == 0 for size, one in zip(values[1].shape[2:], windows, strict=True))
        and values[1].numel() > 0
    )


def _three(given: Any) -> tuple[int, ...]:
    numbers = tuple(given)
    return numbers * 3 if len(numbers) == 1 else numbers


def _interleave(graph: Graph, node: Node) -> bool:
    """Put the sum of a gradient and another one in its place by windows; whether it is such a sum."""
    dy, x, kernel, *_, indices = node.args
    value, windows = x.meta["val"], _three(kernel)
    if len(node.users) != 1 or indices.target is not _INDICES or prod(windows) > _MOST_PLACES:
        return False
    (total,) = node.users
    if total.target is not aten.add.Tensor or total.kwargs or len(total.args) != 2:
        return False
    (other,) = (
        (one for one in total.args if one is not node) if total.args[0] is not total.args[1] else (None,)
    )
    if not isinstance(other, Node) or not isinstance(other.meta.get("val"), Tensor):
        return False
    held = other.meta["val"]
    if (
        tuple(held.shape) != tuple(value.shape)
        or held.dtype != dy.meta["val"].dtype
        or not has_static_form(held)
    ):
        return False
    offsets = indices.args[0]
    call = partial(call_like, graph, node)
    with graph.inserting_before(total):
        zero = _zero(graph, dy)
        parts = []
        for number, place in enumerate(places_of(windows)):
            own = call(aten.where.self, call(aten.eq.Scalar, offsets, number), dy, zero)
            part = other
            for axis, (begin, step) in enumerate(zip(place, windows, strict=True), 2):
                part = call(aten.slice.Tensor, part, axis, begin, value.shape[axis], step)
            parts.append(call(aten.add.Tensor, part, own))
        is_last = held.stride(1) == 1 and value.shape[1] > 1
        strides = (channels_last_strides if is_last else contiguous_strides)(value.shape)
        made = call(interleave.default, parts, list(windows), list(strides))
    total.replace_all_uses_with(made)
    graph.erase_node(total)
    graph.erase_node(node)
    return True


def _zero(graph: Graph, like: Node) -> Node:
    """A zero of a node's type."""
    value = like.meta["val"]
    made = graph.call_function(aten.full.default, ([], 0.0), {"dtype": value.dtype, "device": value.device})
    with value.fake_mode:
        made.meta["val"] = torch.empty((), dtype=value.dtype, device=value.device)
    return made


def _select(graph: Graph, node: Node) -> None:
    dy, x, kernel, *_, indices = node.args
    value = x.meta["val"]
    batch, channels, *space = value.shape
    windows = _three(kernel)

    call = partial(call_like, graph, node)

    def spread(one: Node) -> Node:
        """Each number for all elements of its window."""
        for axis in (3, 5, 7):
            one = call(aten.unsqueeze.default, one, axis)
        sizes = [n for size, of in zip(space, windows, strict=True) for n in (size // of, of)]
        one = call(aten.expand.default, one, [batch, channels, *sizes])
        return call(aten.reshape.default, one, [batch, channels, *space])

    with graph.inserting_before(node):
        count = space[0] * space[1] * space[2]
        places = graph.call_function(
            torch.ops.prims.iota.default,
            (count,),
            {"start": 0, "step": 1, "dtype": torch.int64, "device": value.device, "requires_grad": False},
        )
        with value.fake_mode:
            places.meta["val"] = torch.empty(count, dtype=torch.int64, device=value.device)
        places = call(aten.reshape.default, places, [1, 1, *space])
        is_there = call(aten.eq.Tensor, spread(indices), places)
        zero = _zero(graph, dy)
        gradient = spread(dy)
    # its form stays as it was noted: how it lies in memory is Inductor's choice
    node.target, node.args = aten.where.self, (is_there, gradient, zero)

"""Gradients of maxima over volumes in Inductor's graphs on a GPU, where the windows do not overlap.

Inductor calls PyTorch's kernel, which clears the gradient and adds to it, and whatever reads it reads it from memory.
Where each element lies in one window it is that window's gradient if the maximum was there, else 0: element by element,
so that Inductor computes it in the kernel that reads it.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.fx import Graph, Node

from jitdnn.frameworks.torch.inductor_forms import has_static_form, is_on_gpu
from jitdnn.frameworks.torch.inductor_rewriting import refresh

aten = torch.ops.aten
_BACKWARD = aten.max_pool3d_with_indices_backward.default


def select_gradients(graph: Graph) -> int:
    """Rewrite a graph in place; how many gradients there were."""
    found = [node for node in graph.nodes if node.target is _BACKWARD and _is_divided(node)]
    for node in found:
        _select(graph, node)
    return len(found)


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


def _select(graph: Graph, node: Node) -> None:
    dy, x, kernel, *_, indices = node.args
    value = x.meta["val"]
    batch, channels, *space = value.shape
    windows = _three(kernel)

    def call(target: Any, *arguments: Any, **named: Any) -> Node:
        made = graph.call_function(target, arguments, named)
        made.meta = {name: one for name, one in node.meta.items() if name != "val"}
        refresh(made)
        return made

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
        zero = graph.call_function(
            aten.full.default, ([], 0.0), {"dtype": dy.meta["val"].dtype, "device": value.device}
        )
        with value.fake_mode:
            zero.meta["val"] = torch.empty((), dtype=dy.meta["val"].dtype, device=value.device)
        gradient = spread(dy)
    # its form stays as it was noted: how it lies in memory is Inductor's choice
    node.target, node.args = aten.where.self, (is_there, gradient, zero)

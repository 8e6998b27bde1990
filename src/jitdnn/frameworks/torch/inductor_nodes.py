"""Nodes of Inductor's graphs that are convolutions, and how Inductor's own code would run them."""

from __future__ import annotations

import operator
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.fx import GraphModule, Node

from jitdnn.frameworks.torch.convolution import memory_format
from jitdnn.frameworks.torch.inductor_forms import (
    are_numbers,
    has_static_form,
    is_convolution,
    is_from_outside,
    is_on_gpu,
    is_packed,
    is_plain,
)
from jitdnn.frameworks.torch.inductor_tail import only_external
from jitdnn.frameworks.torch.kernels import channels_last_strides, contiguous_strides

aten = torch.ops.aten


@dataclass(frozen=True)
class Call:
    """A convolution of a graph: its nodes, and the arguments that are no tensors in the order of `aten::convolution`.

    `weight`: the filter where it is a constant. `stock` runs torch's kernel on (x, w, bias).
    """

    x: Node
    w: Node
    bias: Node | None
    geometry: tuple[Any, ...]
    weight: Tensor | None
    stock: Callable[..., Any]

    @property
    def is_transposed(self) -> bool:
        return bool(self.geometry[3])

    @property
    def pointwise_geometry(self) -> tuple[Any, ...]:
        stride, padding, dilation, _, _, groups = self.geometry
        return stride, padding, dilation, groups


def call_of(node: Node, module: GraphModule | None) -> Call | None:
    """A node as a convolution that ours may take; None for any other."""
    if node.target is aten.convolution.default and len(node.args) == 9 and not node.kwargs:
        x, w, bias, *geometry = node.args
        weight = constant_of(w, module)
        target: Any = node.target

        def stock(x: Tensor, w: Tensor, bias: Tensor | None) -> Any:
            return target(x, w, bias, *geometry)

    elif is_packed(node):
        x, w, bias, padding, stride, dilation, groups, *attributes = node.args
        geometry = [stride, padding, dilation, False, [0] * len(stride), groups]
        packed = constant_of(w, module)
        if packed is None or attributes[0] != "none":
            return None
        weight = packed.to_dense() if packed.is_mkldnn else packed
        mkldnn: Any = node.target

        def stock(x: Tensor, w: Tensor, bias: Tensor | None) -> Any:
            return mkldnn(x, packed, bias, padding, stride, dilation, groups, *attributes)

    else:
        return None
    tensors = [one for one in (x, w, bias) if one is not None]
    if not all(is_plain(one) for one in tensors) or not are_numbers(geometry):
        return None
    values = [one.meta["val"] for one in tensors]
    is_one = len({(value.dtype, value.device) for value in values}) == 1
    if not is_one or not 3 <= values[0].dim() <= 5 or values[0].dim() != values[1].dim():
        return None
    return Call(x, w, bias, tuple(geometry), weight, stock)


def constant_of(node: Any, module: GraphModule | None) -> Tensor | None:
    """The tensor that a node stands for in a frozen graph."""
    if not isinstance(node, Node) or node.op != "get_attr" or module is None:
        return None
    found = getattr(module, str(node.target), None)
    return found if isinstance(found, Tensor) else None


def strides_of(node: Node, operand: Node, wants_last: bool) -> tuple[int, ...] | None:
    """How an operand of a forward convolution lies in memory when Inductor's own code calls torch's kernel; None: as
    the graph says.

    With channels last where the graph has images so (`wants_last`); else in the order of axes of the result, as the
    graph has it: so sequences whose channels lie innermost are laid out anew for it, by what makes them.
    """
    value, result = operand.meta["val"], node.meta["val"]
    if not has_static_form(value) or not has_static_form(result):
        return None
    if wants_last and value.dim() == 4:
        return channels_last_strides(value.shape)
    if is_packed(node):
        return None
    from torch._inductor.ir import get_stride_order

    rank = get_stride_order(result.stride())
    order = sorted(range(result.dim()), key=lambda axis: rank[axis])
    if _is_ordered(value, order):
        return None
    strides, step = [0] * value.dim(), 1
    for axis in order:
        strides[axis] = step
        step *= value.shape[axis]
    return tuple(strides)


def has_channels_innermost(node: Node) -> bool:
    """Whether a node is sequences on a GPU whose channels lie innermost in memory as the graph has it.

    Torch's convolution has them with channels first, and Inductor lays them out anew for it.
    """
    value = node.meta["val"]
    return bool(
        value.dim() == 3
        and is_on_gpu(node)
        and has_static_form(value)
        and value.stride(1) == 1
        and min(value.shape[1:]) > 1
    )


def sequences_like(value: Tensor) -> Tensor:
    """Sequences without data of the same shape and type, with channels innermost."""
    return torch.empty_strided(
        value.shape, channels_last_strides(value.shape), dtype=value.dtype, device="meta"
    )


def says_last(filter: Tensor) -> bool:
    """Whether a filter of one channel, which lies alike in both orders, has the strides of channels last: torch's own
    convolutions then have results so."""
    if not 4 <= filter.dim() <= 5 or filter.shape[1] != 1:
        return False
    strides = tuple(filter.stride())
    return strides == channels_last_strides(filter.shape) != contiguous_strides(filter.shape)


def orders_of(node: Node, wants_last: bool, is_settled: bool) -> tuple[list[Any], list[Any]]:
    """How the operands of gradients lie in memory for ours, and for torch's: strides, or None where as the graph says.

    That is not what Inductor makes of it for images. Of volumes with channels last it has torch's call make copies,
    also of what a kernel of its own computes and could write in any order: for ours it does, and so for sequences.
    """
    operands = node.args[:3]
    values = [one.meta["val"] for one in operands]
    as_graph = [None] * len(values)
    if is_settled and has_channels_innermost(operands[1]) and not is_from_outside(operands[0]):
        return [channels_last_strides(values[0].shape), None, None], as_graph
    if not is_settled or not 4 <= values[0].dim() <= 5:
        return as_graph, as_graph
    is_first = memory_format(*values[1:]) is torch.contiguous_format and not says_last(values[2])
    if is_first and _is_one_channel(values[1], values[2]) and _is_of_channels_last(operands[0]):
        return [channels_last_strides(values[0].shape), None, None], as_graph
    if not wants_last and is_first:
        return as_graph, as_graph
    last = [channels_last_strides(one.shape) for one in values]
    if values[0].dim() == 4:
        return last, last
    return [None if is_from_outside(one) else own for one, own in zip(operands, last, strict=True)], as_graph


def _is_one_channel(x: Tensor, w: Tensor) -> bool:
    """Whether images and filters have one channel, and lie alike in both orders: they say nothing of results."""
    return x.shape[1] == w.shape[1] == 1 and not says_last(w)


def _is_of_channels_last(dy: Node) -> bool:
    """Whether a gradient is computed of tensors that the graph is given with channels last."""
    seen, left = set(), [dy]
    count = dy.meta["val"].numel()
    while left:
        one = left.pop()
        value = one.meta.get("val")
        if one in seen or not isinstance(value, Tensor) or value.numel() != count:
            continue
        seen.add(one)
        if one.op == "placeholder":
            if 4 <= value.dim() <= 5 and tuple(value.stride()) == channels_last_strides(value.shape):
                return one is not dy
        elif one.op == "call_function" and not is_convolution(one) and one.target is not operator.getitem:
            left += one.all_input_nodes
    return False


def _is_ordered(value: Tensor, order: list[int]) -> bool:
    """Whether strides grow along these axes, of those that have several elements."""
    strides = [value.stride(axis) for axis in order if value.shape[axis] > 1]
    return strides == sorted(strides)


def has_torch_the_bias(node: Node) -> bool:
    """Whether a bias is a matter of torch's kernel. On a GPU Inductor adds it in what reads the result, which costs
    nothing beside that; where only kernels of others read it, it is a pass over memory, as torch's own addition is."""
    return not is_on_gpu(node) or only_external(node)

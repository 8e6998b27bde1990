"""Transposed convolutions in Inductor's graphs on a GPU whose filter is as large as their stride: products.

No element of the result has two neighbours then: each pixel of x is multiplied by all taps, and the results are laid
side by side. So it is a convolution of one tap to as many times more channels, and its gradients are those of one;
to lay results side by side is a matter of addresses, which Inductor's kernels around it take care of.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.fx import Graph, Node

from jitdnn.frameworks.torch import choice, inductor_patches
from jitdnn.frameworks.torch.inductor_forms import (
    are_numbers,
    has_static_form,
    is_on_gpu,
    is_plain,
    measuring,
    real,
)
from jitdnn.frameworks.torch.inductor_rewriting import (
    call_like,
    laid_out,
    may_save_otherwise,
    save_as_laid,
    sum_by_channel,
)
from jitdnn.frameworks.torch.inductor_tail import only_external
from jitdnn.frameworks.torch.kernels import channels_last_strides
from jitdnn.frameworks.torch.kinds import words
from jitdnn.frameworks.torch.options import handle_of, parse

aten = torch.ops.aten
_PRODUCT, _WHOLE = "product", "whole"
_FORWARD, _BACKWARD = aten.convolution.default, aten.convolution_backward.default


def become_products(graph: Graph, options: str) -> int:
    """Rewrite a graph in place, where the product, or ours as it is, is faster than torch's kernel; how many nodes
    there were."""
    nodes = list(_nodes(graph))
    whole = [node for node in nodes if inductor_patches.can_be(node)]
    inductor_patches.compiled_ahead(whole, options)
    count = 0
    for node in nodes:
        way = _fastest(options, node, node in whole)
        count += way is not None
        if way == _WHOLE:
            replace = (
                inductor_patches.replace_forward
                if node.target is _FORWARD
                else inductor_patches.replace_backward
            )
            replace(graph, node, options)
        elif way == _PRODUCT and node.target is _FORWARD:
            _replace_forward(graph, node, *node.args[:3])
        elif way == _PRODUCT:
            _replace_backward(graph, node)
    return count


def _nodes(graph: Graph) -> Iterator[Node]:
    for node in graph.nodes:
        if (node.target is _FORWARD and _is_divided(node, node.args[0], node.args[1], node.args[3:])) or (
            node.target is _BACKWARD
            and _is_divided(node, node.args[1], node.args[2], node.args[4:10])
            and any(node.args[10][:2])
            and all(user.target is operator.getitem for user in node.users)
        ):
            yield node


def _is_divided(node: Node, x: Any, w: Any, geometry: Sequence[Any]) -> bool:
    """Whether a node is of a transposed convolution whose windows lie side by side."""
    if (
        node.kwargs
        or not are_numbers(geometry)
        or not all(is_plain(one) for one in (x, w))
        or not is_on_gpu(x)
    ):
        return False
    stride, padding, dilation, transposed, more, groups = geometry
    values = [x.meta["val"], w.meta["val"]]
    if (
        not transposed
        or groups != 1
        or not all(map(has_static_form, values))
        or values[0].dtype != values[1].dtype
    ):
        return False
    taps = tuple(values[1].shape[2:])
    return (
        w.op != "get_attr"
        and math.prod(taps) > 1
        and _each(stride, taps) == taps
        and {*padding, *more} == {0}
        and {*dilation} == {1}
    )


def _each(given: Sequence[int], taps: Sequence[int]) -> tuple[int, ...]:
    return tuple(given) * len(taps) if len(given) == 1 else tuple(given)


def _plain(axes: int) -> tuple[Any, ...]:
    """The geometry of a convolution of one tap."""
    return [1] * axes, [0] * axes, [1] * axes, False, [0] * axes, 1


def _filter_order(axes: int) -> list[int]:
    """Of (C, K, taps) as (taps, K, C)."""
    return [*range(2, 2 + axes), 1, 0]


def _apart_order(axes: int) -> list[int]:
    """Of (N, K, H, stride, W, stride) as (N, stride, stride, K, H, W)."""
    return [0, *range(3, 3 + 2 * axes, 2), 1, *range(2, 2 + 2 * axes, 2)]


def _shapes(x: Any, w: Any) -> tuple[list[int], list[int], list[int]]:
    """Of the filter with one tap, of its results, and of those with taps and channels apart."""
    (batch, c, *space), (_, k, *taps) = x.shape, w.shape
    count = math.prod(taps)
    return [count * k, c, *(1 for _ in taps)], [batch, count * k, *space], [batch, *taps, k, *space]


def _divided(x: Any, w: Any) -> list[int]:
    """The shape of the result with its axes of space divided by the stride."""
    (batch, _, *space), (_, k, *taps) = x.shape, w.shape
    return [batch, k, *(n for size, tap in zip(space, taps, strict=True) for n in (size, tap))]


def _order(node: Node, x: Node) -> tuple[int, ...] | None:
    """The strides of x for a product whose results lie as those of the convolution; None: as the graph says.

    A filter of one tap lies alike in both orders of channels, so that x alone says how results lie.
    """
    value = node.meta["val"]
    last = channels_last_strides(value.shape)
    return channels_last_strides(x.meta["val"].shape) if tuple(value.stride()) == last else None


def _fastest(options: str, node: Node, may_be_whole: bool) -> str | None:
    """How a node is to be computed, None by torch's kernel."""
    is_forward = node.target is _FORWARD
    operands = node.args[:2] if is_forward else node.args[:3]
    strides: list[Any] = [None] * len(operands)
    if is_forward:
        strides[0] = _order(node, node.args[0])
    elif may_be_whole:
        strides[0] = inductor_patches.order_of(node.args[0])
    try:
        with measuring(True):
            tensors = [real(one.meta["val"], own) for one, own in zip(operands, strides, strict=True)]
            product, stock = (_forward if is_forward else _backward)(node, *tensors)
            device = tensors[0].device
            handle, name = handle_of(options, device.type), f"torch {node.target} transposed"
            wanted = "" if is_forward else f" {[bool(one) for one in node.args[10][:2]]}"
            kind = f"{words(tuple(tensors))} {_is_laid(node)}{wanted} {options}"
            measure = parse(options).measure
            decision = choice.decide(f"{name} as product {kind}", handle, device, measure, product, stock)
            way = _PRODUCT if decision.is_ours else None
            if may_be_whole:
                call = inductor_patches.forward_call if is_forward else inductor_patches.backward_call
                ours, rival = call(node, options, *tensors), product if decision.is_ours else stock
                # of these two ours alone adds the bias: others leave it to what reads the result
                bias = " with a bias" if is_forward and node.args[2] is not None else ""
                decision = choice.decide(
                    f"{name} as it is{bias}, {way} {kind}", handle, device, measure, ours, rival
                )
                way = _WHOLE if decision.is_ours else way
    except torch.OutOfMemoryError:
        return None
    return way


def _is_laid(node: Node) -> bool:
    """Whether a result is written side by side by a kernel of its own: for calls, or beside other channels."""
    return only_external(node) or (len(node.users) == 1 and next(iter(node.users)).target is aten.cat.default)


def _forward(node: Node, x: Tensor, w: Tensor) -> tuple[Callable[[], Any], Callable[[], Any]]:
    axes, geometry = x.dim() - 2, node.args[3:]
    one, _, apart = _shapes(x, w)
    laid = w.permute(_filter_order(axes)).reshape(one)
    is_read = _is_laid(node)

    def product() -> Any:
        y = _FORWARD(x, laid, None, *_plain(axes))
        if is_read:  # Inductor lays it out by a kernel of its own
            y = y.reshape(apart).permute(_inverse(_apart_order(axes))).clone()
        return y

    return product, lambda: _FORWARD(x, w, None, *geometry)


def _backward(node: Node, dy: Tensor, x: Tensor, w: Tensor) -> tuple[Callable[[], Any], Callable[[], Any]]:
    axes, geometry = x.dim() - 2, node.args[4:10]
    mask = [*node.args[10][:2], False]
    one, wide, _ = _shapes(x, w)
    laid = w.permute(_filter_order(axes)).reshape(one)

    def product() -> Any:
        own = torch.empty_strided(wide, channels_last_strides(wide), dtype=dy.dtype, device=dy.device)
        own.copy_(dy.reshape(_divided(x, w)).permute(_apart_order(axes)).reshape(wide))
        return _BACKWARD(own, x, laid, None, *_plain(axes), mask)

    return product, lambda: _BACKWARD(dy, x, w, None, *geometry, mask)


def _inverse(order: Sequence[int]) -> list[int]:
    return [list(order).index(axis) for axis in range(len(order))]


def _with_one_tap(call: Callable[..., Node], x: Node, w: Node) -> Node:
    one, _, _ = _shapes(x.meta["val"], w.meta["val"])
    laid = call(aten.permute.default, w, _filter_order(len(one) - 2))
    return call(aten.reshape.default, laid, one)


def _replace_forward(graph: Graph, node: Node, x: Node, w: Node, bias: Node | None) -> None:
    call = partial(call_like, graph, node)
    value = node.meta["val"]
    axes = value.dim() - 2
    _, _, apart = _shapes(x.meta["val"], w.meta["val"])
    laid = laid_out(graph, node, x, _order(node, x))
    if may_save_otherwise():
        save_as_laid(graph, x, laid)
    with graph.inserting_before(node):
        y = call(_FORWARD, laid, _with_one_tap(call, x, w), None, *_plain(axes))
        y = call(aten.reshape.default, y, apart)
        y = call(aten.permute.default, y, _inverse(_apart_order(axes)))
        if bias is not None:
            y = call(aten.reshape.default, y, list(value.shape))
            bias = call(aten.reshape.default, bias, [-1, *(1 for _ in range(axes))])
    # its form stays as it was noted: how it lies in memory is Inductor's choice
    if bias is None:
        node.target, node.args = aten.reshape.default, (y, list(value.shape))
    else:
        node.target, node.args = aten.add.Tensor, (y, bias)


def _replace_backward(graph: Graph, node: Node) -> None:
    call = partial(call_like, graph, node)
    dy, x, w, *_, mask = node.args
    values = [one.meta["val"] for one in (x, w)]
    axes = values[0].dim() - 2
    _, wide, _ = _shapes(*values)
    with graph.inserting_before(node):
        own = call(aten.reshape.default, dy, _divided(*values))
        own = call(aten.permute.default, own, _apart_order(axes))
        own = call(aten.reshape.default, own, wide)
        with values[0].fake_mode:
            own.meta["val"] = torch.empty_strided(
                wide, channels_last_strides(wide), dtype=values[0].dtype, device=values[0].device
            )
        both = call(_BACKWARD, own, x, _with_one_tap(call, x, w), None, *_plain(axes), [*mask[:2], False])
    for user in list(node.users):
        place = user.args[1]
        with graph.inserting_before(user):
            if place == 2:
                sum_by_channel(graph, dy, user)
                continue
            part = graph.call_function(operator.getitem, (both, place))
            part.meta["val"] = both.meta["val"][place]
            if place == 1:
                part = call(
                    aten.reshape.default, part, [*values[1].shape[2:], *reversed(values[1].shape[:2])]
                )
                part = call(aten.permute.default, part, _inverse(_filter_order(axes)))
                part = laid_out(graph, user, part, user.meta["val"].stride())
        user.replace_all_uses_with(part)
        graph.erase_node(user)
    graph.erase_node(node)

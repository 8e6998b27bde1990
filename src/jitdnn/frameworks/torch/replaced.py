"""Operators that are no part of a group and that ours compute too: pools, means, layer normalization, softmax."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.fx import Graph, Node

from jitdnn.frameworks.torch.fresh import without_data
from jitdnn.frameworks.torch.kernels import contiguous_strides
from jitdnn.handle import Handle
from jitdnn.ops.layer_norm import layer_norm
from jitdnn.ops.pooling import avg_pool, max_pool
from jitdnn.ops.reduce import reduce
from jitdnn.ops.softmax import softmax

aten = torch.ops.aten


class Replacement(NamedTuple):
    """Ours in the place of an operator: `run(*tensors, out)` for the tensors of `reads`, and the strides of `out`."""

    reads: tuple[Node, ...]
    run: Callable[..., Any]
    strides: tuple[int, ...]


def simplify(graph: Graph) -> None:
    """Write operators of which only the first result is read as those that have no other, in place."""
    for node in list(graph.nodes):
        made = _SINGLE.get(node.target) if node.op == "call_function" else None
        if made is None or len(node.users) != 1:
            continue
        (result,) = node.users
        if result.target is not operator.getitem or result.args[1] != 0:
            continue
        with graph.inserting_before(node):
            single = graph.call_function(made, node.args, node.kwargs)
        single.meta["val"] = result.meta["val"]
        result.replace_all_uses_with(single)
        graph.erase_node(result)
        graph.erase_node(node)


_SINGLE = {
    aten.max_pool2d_with_indices.default: aten.max_pool2d.default,
    aten.native_layer_norm.default: aten.layer_norm.default,
}


def replacement(node: Node, tensors: Sequence[Tensor], handle: Handle) -> Replacement | None:
    """Ours for a node whose operands are `tensors`; None where there is none."""
    maker = _MAKERS.get(node.target)
    return None if maker is None else maker(node, tensors, handle)


def _arguments(node: Node, names: str) -> dict[str, Any]:
    """The arguments of a node by name, with what was not given as None."""
    found: dict[str, Any] = dict.fromkeys(names.split())
    found.update(zip(names.split(), node.args, strict=False))
    found.update(node.kwargs)
    return found


def _pooled_strides(node: Node, x: Tensor) -> tuple[int, ...]:
    held = node.meta["val"]
    order = sorted(range(x.dim()), key=lambda axis: (-x.stride(axis), axis))
    step, strides = 1, [0] * x.dim()
    for axis in reversed(order):
        strides[axis] = step
        step *= held.shape[axis]
    return tuple(strides)


def _max_pool(node: Node, tensors: Sequence[Tensor], handle: Handle) -> Replacement | None:
    a = _arguments(node, "x window stride padding dilation ceil_mode")
    x = tensors[0]
    if x.dim() != 4 or a["ceil_mode"]:
        return None
    window, stride = a["window"], a["stride"] or a["window"]
    padding, dilation = a["padding"] or 0, a["dilation"] or 1
    one, two, three, four = (_plain(v) for v in (window, stride, padding, dilation))

    def run(x: Tensor, out: Tensor) -> None:
        max_pool(x, one, two, three, "floor", four, out=out, handle=handle)

    return Replacement((a["x"],), run, _pooled_strides(node, x))


def _avg_pool(node: Node, tensors: Sequence[Tensor], handle: Handle) -> Replacement | None:
    a = _arguments(node, "x window stride padding ceil_mode count_include_pad divisor")
    x = tensors[0]
    if x.dim() != 4 or a["ceil_mode"] or a["divisor"] is not None:
        return None
    one, two, three = (_plain(v) for v in (a["window"], a["stride"] or a["window"], a["padding"] or 0))
    counted = a["count_include_pad"] is not False

    def run(x: Tensor, out: Tensor) -> None:
        avg_pool(x, one, two, three, counted, out=out, handle=handle)

    return Replacement((a["x"],), run, _pooled_strides(node, x))


def _plain(numbers: Any) -> Any:
    if isinstance(numbers, int):
        return numbers
    return tuple(numbers) if len(numbers) > 1 else numbers[0]


def _mean(node: Node, tensors: Sequence[Tensor], handle: Handle) -> Replacement | None:
    a = _arguments(node, "x axes keepdim")
    axes = a["axes"]
    if not axes or node.kwargs.get("dtype") is not None or node.meta["val"].dim() == 0:
        return None
    axes, keeps = tuple(axes), bool(a["keepdim"])

    def run(x: Tensor, out: Tensor) -> None:
        reduce(x, "avg", axes, keeps, out=out, handle=handle)

    return Replacement((a["x"],), run, contiguous_strides(node.meta["val"].shape))


def _layer_norm(node: Node, tensors: Sequence[Tensor], handle: Handle) -> Replacement | None:
    a = _arguments(node, "x shape weight bias eps cudnn_enable")
    reads = tuple(a[name] for name in ("x", "weight", "bias") if a[name] is not None)
    axis, eps = -len(a["shape"]), 1e-5 if a["eps"] is None else float(a["eps"])
    has_weight, has_bias = a["weight"] is not None, a["bias"] is not None

    def run(x: Tensor, *others: Tensor) -> None:
        *parameters, out = others
        weight = parameters[0] if has_weight else None
        bias = parameters[-1] if has_bias else None
        layer_norm(x, weight, bias, axis=axis, epsilon=eps, out=out, handle=handle)

    return Replacement(reads, run, _like(tensors[0]))


def _softmax(node: Node, tensors: Sequence[Tensor], handle: Handle) -> Replacement | None:
    a = _arguments(node, "x axis half_to_float")
    if a["half_to_float"] or tensors[0].dim() == 0:
        return None
    axis = a["axis"] % tensors[0].dim()
    algorithm = "accurate" if node.target is aten._softmax.default else "log"

    def run(x: Tensor, out: Tensor) -> None:
        softmax(x, axis, algorithm, out=out, handle=handle)

    return Replacement((a["x"],), run, _like(tensors[0]))


def _like(x: Tensor) -> tuple[int, ...]:
    return tuple(without_data(x).stride())


_MAKERS: dict[Any, Callable[[Node, Sequence[Tensor], Handle], Replacement | None]] = {
    aten.max_pool2d.default: _max_pool,
    aten.avg_pool2d.default: _avg_pool,
    aten.mean.dim: _mean,
    aten.layer_norm.default: _layer_norm,
    aten._softmax.default: _softmax,
    aten._log_softmax.default: _softmax,
}

"""Transposed convolutions in Inductor's graphs on a GPU whose windows touch, as calls of ours that are no products.

The convolution is the data's gradient of one whose patches do not overlap, and its own gradients are that one's result
and its filter's gradient. Ours read and write tensors of any strides: the result may lie among other channels, and the
gradient of some channels of a tensor is read where it lies, so that nothing is laid side by side in passes of its own.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.fx import Graph, Node

from jitdnn.frameworks.torch import convolution, inductor_lowering, operators
from jitdnn.frameworks.torch.inductor_formulas import is_in_memory
from jitdnn.frameworks.torch.inductor_rewriting import (
    become,
    laid_out,
    may_save_otherwise,
    save_as_laid,
    sum_by_channel,
)
from jitdnn.frameworks.torch.kernels import channels_last_strides
from jitdnn.frameworks.torch.kinds import at
from jitdnn.frameworks.torch.options import Options, handle_of, parse
from jitdnn.frameworks.torch.settled import parsed, text_of
from jitdnn.handle import Handle
from jitdnn.ops.ahead import compile_ahead

aten = torch.ops.aten
_TYPES = (torch.float16, torch.bfloat16)
VECTOR = 8  # elements of 16 bytes, at whose multiples pixels begin
_FORWARD, _BACKWARD = aten.convolution.default, aten.convolution_backward.default


def can_be(node: Node) -> bool:
    """Whether ours may take a transposed convolution whose windows touch, or its gradients: of 16 bits, its result and
    x with channels last."""
    if node.target is _FORWARD:
        x, w, *_ = node.args
        return _is_last(node.meta["val"]) and w.meta["val"].dtype in _TYPES
    dy, x, w, *_ = node.args
    return dy.meta["val"].dim() in (4, 5) and _is_last(x.meta["val"]) and w.meta["val"].dtype in _TYPES


def _is_last(value: Tensor) -> bool:
    return value.dim() in (4, 5) and tuple(value.stride()) == channels_last_strides(value.shape)


def _geometry(given: Sequence[Any]) -> tuple[Any, ...]:
    """That of the convolution from the result back to x, of the transposed one's."""
    stride, padding, dilation, _, more, groups = given
    return stride, padding, dilation, False, [0 for _ in more], groups


def _meta(value: Tensor, strides: Sequence[int]) -> Tensor:
    return torch.empty_strided(value.shape, strides, dtype=value.dtype, device="meta")


def _options(options: str) -> str:
    return str(Options("never", parse(options).settings))


def forward_text(node: Node, strides: Sequence[int], options: str) -> str:
    """What tells the call of a forward convolution all but its operands; `strides`: of the result."""
    x, w, bias, *geometry = node.args
    value = x.meta["val"]
    x_meta = _meta(value, channels_last_strides(value.shape))
    return text_of(
        "transposed", _meta(node.meta["val"], strides), w.meta["val"], x_meta, bias is not None,
        _geometry(geometry), _options(options),
    )  # fmt: skip


def order_of(dy: Node) -> tuple[int, ...]:
    """How the gradient of a result is read: some channels of what lies in memory where they lie."""
    value = dy.meta["val"]
    strides = tuple(value.stride())
    begins = (*(step for axis, step in enumerate(strides) if axis != 1), value.storage_offset())
    is_innermost = strides[1] == 1 and all(one % VECTOR == 0 for one in begins)
    return strides if is_in_memory(dy) and is_innermost else channels_last_strides(value.shape)


def backward_texts(node: Node, options: str) -> dict[int, str]:
    """The same of the gradients of x and of the filter that are wanted, by their places."""
    dy, x, w, _, *geometry, mask = node.args
    dy_meta = _meta(dy.meta["val"], order_of(dy))
    own, text = _geometry(geometry), _options(options)
    made = {}
    if mask[0]:
        x_meta = _meta(x.meta["val"], x.meta["val"].stride())
        made[0] = text_of("forward", dy_meta, w.meta["val"], x_meta, False, own, text)
    if mask[1]:
        made[1] = text_of("filter", dy_meta, w.meta["val"], x.meta["val"], False, own, text)
    return made


def forward_call(node: Node, options: str, x: Tensor, w: Tensor) -> Callable[[], object]:
    """A call as the code of a graph makes it, to measure."""
    y = node.meta["val"]
    bias = None if node.args[2] is None else torch.zeros(y.shape[1], dtype=y.dtype, device=x.device)
    text = forward_text(node, channels_last_strides(y.shape), options)
    return inductor_lowering.call(x, w, bias, text)


def backward_call(node: Node, options: str, dy: Tensor, x: Tensor, w: Tensor) -> Callable[[], object]:
    """Calls of all gradients, to measure."""
    texts = backward_texts(node, options)
    second = {0: w, 1: x}
    calls = [inductor_lowering.call(dy, second[place], None, text) for place, text in texts.items()]
    return lambda: [call() for call in calls]


def compiled_ahead(nodes: Sequence[Node], options: str) -> None:
    """Compile what ours need for some nodes, several modules at once."""
    devices = {node.args[0].meta["val"].device for node in nodes}
    for device in devices:
        if device.type == "cpu":
            continue
        calls: list[Callable[[], object]] = []
        handle = at(device, handle_of(options, device.type))
        for node in nodes:
            if node.target is _FORWARD:
                texts = [forward_text(node, channels_last_strides(node.meta["val"].shape), options)]
            else:
                texts = list(backward_texts(node, options).values())
            calls += [partial(_plan, text, handle) for text in texts]
        compile_ahead(handle, calls)


def _plan(text: str, handle: Handle) -> object:
    direction, forms, has_bias, geometry, _ = parsed(text)
    x, w, y = (torch.empty_strided(*form[:2], dtype=form[2], device="meta") for form in forms)
    problem = convolution.problem_of("data" if direction == "transposed" else direction, x, w, y, geometry)
    return problem and handle.plan(problem, None, convolution.bias_epilogue(problem, has_bias))


def replace_forward(graph: Graph, node: Node, options: str) -> None:
    x, w, bias, *_ = node.args
    value = x.meta["val"]
    text = forward_text(node, channels_last_strides(node.meta["val"].shape), options)
    laid = laid_out(graph, node, x, channels_last_strides(value.shape))
    if may_save_otherwise():
        save_as_laid(graph, x, laid)
    become(node, operators.settled_convolution.default, (laid, w, bias, text))


def replace_backward(graph: Graph, node: Node, options: str) -> None:
    dy, x, w, *_ = node.args
    texts = backward_texts(node, options)
    laid = laid_out(graph, node, dy, order_of(dy))
    second = {0: w, 1: x}
    for user in list(node.users):
        assert user.target is operator.getitem
        place = user.args[1]
        if place == 2:
            with graph.inserting_before(user):
                sum_by_channel(graph, dy, user)
            continue
        become(user, operators.settled_convolution.default, (laid, second[place], None, texts[place]))
    graph.erase_node(node)


def is_whole(node: Node) -> bool:
    """Whether a node is a transposed convolution of ours, whose result may have any strides."""
    return node.target is operators.settled_convolution.default and parsed(node.args[3])[0] == "transposed"


def lay(node: Node, strides: Sequence[int]) -> None:
    """Have the result of one lie so."""
    a, w, bias, text = node.args
    direction, (_, w_form, x_form), has_bias, geometry, options = parsed(text)
    w_meta, x_meta = (torch.empty_strided(*one[:2], dtype=one[2], device="meta") for one in (w_form, x_form))
    text = text_of(
        direction, _meta(node.meta["val"], strides), w_meta, x_meta, has_bias, geometry.arguments, options
    )
    become(node, operators.settled_convolution.default, (a, w, bias, text))

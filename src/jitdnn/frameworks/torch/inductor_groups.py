"""Small kernels of a graph on a GPU, put together: casts of weights and of their gradients, and counters of batches.

Nothing can be fused with them, since convolutions and products alone read or write what they do, so Inductor makes a
kernel of each. To launch one takes the host as long as to launch any other, and the GPU longer than what it does. As
one operator over a list they become horizontal fusions of Inductor's, as steps of its optimizers are.
"""

from __future__ import annotations

import operator
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.fx import Graph, Node

from jitdnn.frameworks.torch import operators
from jitdnn.frameworks.torch.convolution_sums import convolution_sums
from jitdnn.frameworks.torch.inductor_forms import has_static_form, is_on_gpu
from jitdnn.frameworks.torch.inductor_nodes import strides_of
from jitdnn.frameworks.torch.kernels import channels_last_strides
from jitdnn.frameworks.torch.registry import define

aten = torch.ops.aten
_CAST = torch.ops.prims.convert_element_type.default
_COUNT = aten.add.Tensor
#: tensors of one kernel at most: each of them is two arguments, and a result waits for the last operand
MOST = 32
#: what Inductor makes calls of, each with the operands that it would fuse with something else
CALLS: dict[Any, tuple[int, ...]] = {
    aten.convolution.default: (2,),
    aten.convolution_backward.default: (),
    aten.mm.default: (),
    aten.bmm.default: (),
    aten.addmm.default: (0,),
    aten.baddbmm.default: (0,),
    operators.settled_convolution.default: (),
    operators.convolution_pointwise.default: (),
    convolution_sums.default: (),
    operators.convolution.default: (),
    operators.convolution_backward.default: (),
}
#: the same memory with other strides, and in another shape
_TURNS = (aten.permute.default, aten.t.default)
_VIEWS = (*_TURNS, aten.reshape.default, aten.view.default)


def _cast_each(xs: Sequence[Tensor], dtype: torch.dtype) -> list[Tensor]:
    return [torch.empty_like(x, dtype=dtype).copy_(x) for x in xs]


def _fake(xs: Sequence[Tensor], dtype: torch.dtype) -> list[Tensor]:
    return [torch.empty_like(x, dtype=dtype) for x in xs]


cast_each = define(
    "cast_each(Tensor[] xs, ScalarType dtype) -> Tensor[]", _cast_each, _fake, has_batching=True
)


def put_together(graph: Graph, wants_last: bool) -> None:
    """Rewrite a graph in place, where several nodes of a kind do as much as one.

    `wants_last`: whether Inductor lays images out with channels last in it.
    """
    first: dict[Any, list[Node]] = defaultdict(list)
    last: dict[Any, list[Node]] = defaultdict(list)
    counters: dict[Any, list[Node]] = defaultdict(list)
    for node in graph.nodes:
        if not _is_small_kernel(node):
            continue
        given, number = node.args
        kind = (number, given.meta["val"].dtype, node.meta["val"].device)
        if node.target is _COUNT:
            if _counts(node):
                counters[kind].append(node)
        elif given.op == "placeholder":
            if all(_calls(user, node, wants_last) for user in node.users):
                first[kind].append(node)
        elif _is_called(given) and all(user.op == "output" for user in node.users):
            last[kind].append(node)
    (end,) = (node for node in graph.nodes if node.op == "output")
    for nodes in _parts(first.values()):
        _become_one(graph, cast_each.default, nodes, nodes[0])
    for nodes in _parts(counters.values()):
        _become_one(graph, aten._foreach_add.Scalar, nodes, nodes[0])
    for nodes in _parts(last.values()):
        _become_one(graph, cast_each.default, nodes, end)


def _parts(kinds: Iterable[list[Node]]) -> list[list[Node]]:
    """The nodes of each kind in parts, of which none has only one."""
    parts = [nodes[at : at + MOST] for nodes in kinds for at in range(0, len(nodes), MOST)]
    return [nodes for nodes in parts if len(nodes) > 1]


def _is_small_kernel(node: Node) -> bool:
    return (
        node.op == "call_function"
        and node.target in (_CAST, _COUNT)
        and len(node.args) == 2
        and not node.kwargs
        and isinstance(node.args[0], Node)
        and not isinstance(node.args[1], Node)
        and bool(node.users)
        and is_on_gpu(node)
        and has_static_form(node.meta["val"])
        and has_static_form(node.args[0].meta["val"])
        and node.meta["val"].device == node.args[0].meta["val"].device
        and node.meta["val"].numel() > 0
    )


def _counts(node: Node) -> bool:
    """Whether a node is how often something has run, as a buffer of a module counts it."""
    given = node.args[0]
    assert isinstance(given, Node)
    value = node.meta["val"]
    return (
        given.op == "placeholder"
        and value.numel() == 1
        and not value.is_floating_point()
        and value.dtype == given.meta["val"].dtype
        and all(user.target is aten.copy_.default or user.op == "output" for user in node.users)
    )


def _calls(user: Node, node: Node, wants_last: bool) -> bool:
    """Whether a user of a node reads it from memory as it lies there, whatever else becomes of it."""
    if user.op == "output":
        return True
    if user.target in _VIEWS:
        return all(_calls(one, user, wants_last) for one in user.users)
    fused = CALLS.get(user.target)
    if fused is None or any(user.args[place] is node for place in fused):
        return False
    value = node.meta["val"]
    if user.target is aten.convolution.default:
        wanted = strides_of(user, node, wants_last)
    elif user.target is aten.convolution_backward.default and wants_last and value.dim() == 4:
        wanted = channels_last_strides(value.shape)
    else:
        wanted = None
    # where Inductor lays it out anew its cast is part of that
    return wanted is None or all(
        extent == 1 or one == other
        for extent, one, other in zip(value.shape, value.stride(), wanted, strict=True)
    )


def _is_called(node: Node) -> bool:
    """Whether what a node gives lies in memory, whatever becomes of it."""
    while node.target is operator.getitem or node.target in _TURNS:
        node = node.args[0]
    return node.target in CALLS


def _become_one(graph: Graph, target: Callable[..., Any], nodes: Sequence[Node], before: Node) -> None:
    """Make one call of several, which become its results; they keep their names, by which Inductor knows outputs."""
    with graph.inserting_before(before):
        made = graph.call_function(target, ([node.args[0] for node in nodes], nodes[0].args[1]))
    made.meta["val"] = [node.meta["val"] for node in nodes]
    place = made
    for number, node in enumerate(nodes):
        place.append(node)
        node.target, node.args = operator.getitem, (made, number)
        place = node

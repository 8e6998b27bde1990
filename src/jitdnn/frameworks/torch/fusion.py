"""Which nodes of a graph run as one kernel: a convolution or product with the pointwise operators behind it.

A group begins at its root and takes pointwise operators in as long as everything that they read is in the group, or
known before. It ends at the last node whose value is the only one that is read from outside.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.fx import Graph, Node

from jitdnn.frameworks.torch.folded import Folded
from jitdnn.frameworks.torch.graph import shape_of, value
from jitdnn.frameworks.torch.pointwise import BATCH_NORMS, POINTWISE, VIEWS
from jitdnn.rtcg.expression import Expression, finish
from jitdnn.rtcg.expression import Graph as Steps

aten = torch.ops.aten
PRODUCTS = {aten.addmm.default, aten.mm.default}
_MOST_NODES = 32  # of a group: a kernel of more takes long to compile
_MOST_OPERANDS = 6
_REAL = (torch.float16, torch.bfloat16, torch.float32, torch.float64)

#: takes a tensor of a node's shape to the elements of the group's root; raises RuntimeError where that is no view
Back = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class Group:
    """Nodes that one kernel computes: the root first, the one whose value leaves last.

    The root is a convolution, `addmm` or `mm`, or the first of some pointwise operators.
    """

    nodes: tuple[Node, ...]

    @property
    def root(self) -> Node:
        return self.nodes[0]

    @property
    def last(self) -> Node:
        return self.nodes[-1]

    @property
    def is_pointwise(self) -> bool:
        return self.root.target in POINTWISE


def is_root(node: Node) -> bool:
    """Whether the node is a convolution (no transposed one) or product that ours may compute."""
    held = value(node)
    if (
        node.op != "call_function"
        or not isinstance(held, Tensor)
        or held.dtype not in _REAL
        or not held.numel()
    ):
        return False
    if node.target is aten.convolution.default:
        return not node.args[6] and 3 <= held.dim() <= 5
    if node.target is aten.addmm.default:
        bias = node.args[0]
        return not node.kwargs and isinstance(bias, Node) and len(shape_of(bias) or ()) == 1
    return node.target in PRODUCTS


def groups_of(graph: Graph, constants: Mapping[Node, Tensor]) -> list[Group]:
    """The groups of a graph, apart from each other; first those of convolutions and products."""
    nodes = list(graph.nodes)
    taken: set[Node] = set()
    found: list[Group] = []
    for is_first in (True, False):
        for place, node in enumerate(nodes):
            if node in taken or node in constants:
                continue
            if not (is_root(node) if is_first else _is_pointwise(node)):
                continue
            if is_first and _weight(node) not in constants:
                continue
            group = _grow(nodes, place, taken, constants)
            taken.update(group.nodes)
            found.append(group)
    return found


def _weight(node: Node) -> Any:
    return node.args[2] if node.target is aten.addmm.default else node.args[1]


def _is_pointwise(node: Node) -> bool:
    held = value(node)
    return (
        node.op == "call_function"
        and node.target in POINTWISE
        and isinstance(held, Tensor)
        and held.dtype in _REAL
        and 0 < held.dim() <= 8
        and held.numel() > 1
        and all(_fits(a, held) for a in node.all_input_nodes)
        and any(shape_of(a) == tuple(held.shape) for a in node.all_input_nodes)
    )


def _grow(nodes: list[Node], place: int, taken: set[Node], constants: Mapping[Node, Tensor]) -> Group:
    root = nodes[place]
    inside: dict[Node, tuple[Node, ...]] = {root: ()}  # and the views that lead to the node
    behind: set[Node] = set()  # outside, and made from what is inside
    closed: tuple[Node, ...] = (root,)
    for node in nodes[place + 1 :]:
        reads = node.all_input_nodes
        if any(read in inside or read in behind for read in reads):
            views = None
            if len(inside) < _MOST_NODES and node not in taken and not any(read in behind for read in reads):
                views = _views_to(node, inside, root, constants)
            if views is None:
                behind.add(node)
            else:
                inside[node] = views
                if all(user in inside for other in inside if other is not node for user in other.users):
                    closed = tuple(inside)
        if all(user in inside or user in behind for other in inside for user in other.users):
            break
    return Group(closed)


def _views_to(
    node: Node, inside: Mapping[Node, tuple[Node, ...]], root: Node, constants: Mapping[Node, Tensor]
) -> tuple[Node, ...] | None:
    """The views between the root and a node that may join the group; None if it may not."""
    held = value(node)
    if node.op != "call_function" or not isinstance(held, Tensor) or held.dtype != value(root).dtype:
        return None
    own = [read for read in node.all_input_nodes if read in inside]
    views = inside[own[0]]
    if any(inside[read] != views for read in own):
        return None
    if node.target in VIEWS:
        return (*views, node) if root.target in PRODUCTS else None
    if node.target not in POINTWISE:
        return None
    if any(shape_of(read) != tuple(held.shape) for read in own):
        return None
    others = [read for read in node.all_input_nodes if read not in inside]
    return views if all(_fits(read, held) for read in others) else None


def _fits(read: Node, held: Tensor) -> bool:
    """Whether a tensor can be an operand of a kernel whose result is `held`."""
    other = value(read)
    return isinstance(other, Tensor) and other.dtype == held.dtype and other.device == held.device


@dataclass(frozen=True)
class Tail:
    """What a group computes of its root's result: the formula, its operands, and what views do to them.

    `shapes`: what each operand is broadcast to. `has_bias`: the first operand is the root's bias, of one dimension.
    """

    expression: Expression
    operands: tuple[Node | Tensor, ...]
    shapes: tuple[tuple[int, ...], ...]
    backs: tuple[Back, ...]
    has_bias: bool


def tail_of(group: Group, bias: Node | Tensor | None) -> Tail:
    """The formula of a group. `bias` belongs to the channels, axis 1 of the root's result.

    Of a group of pointwise operators the first operand stands in the place of the root's result.
    """
    operands: list[Node | Tensor] = []
    shapes: list[tuple[int, ...]] = []
    backs: list[Back] = []
    steps = Steps([f"v{number}" for number in range(1 + _MOST_NODES * 3)])
    root = group.root
    shape = shape_of(root) or ()
    values: dict[Node, Any] = {}
    views: dict[Node, tuple[Node, ...]] = {root: ()}
    known: dict[tuple[Any, tuple[Node, ...]], Any] = {}
    first = 0 if group.is_pointwise else 1

    def operand(read: Node | Tensor, at: tuple[int, ...], through: tuple[Node, ...]) -> Any:
        if (read, through) not in known:
            known[read, through] = steps.input(first + len(operands))
            operands.append(read)
            shapes.append(at)
            backs.append(_back(through))
        return known[read, through]

    for node in group.nodes:
        held = shape_of(node) or ()
        if node is root and not group.is_pointwise:
            acc = steps.input(0)
            if bias is not None:
                acc = acc + operand(bias, shape, ())
            values[node] = acc
            continue
        inner = [read for read in node.all_input_nodes if read in values]
        before = views[inner[0]] if inner else ()
        if node.target in VIEWS:
            values[node], views[node] = values[inner[0]], (*before, node)
            continue
        views[node] = before

        def put(argument: Any, at: tuple[int, ...] = held, through: tuple[Node, ...] = before) -> Any:
            if not isinstance(argument, Node):
                return argument
            return values[argument] if argument in values else operand(argument, at, through)

        arguments = [put(argument) for argument in node.args]
        named = {name: put(argument) for name, argument in node.kwargs.items()}
        values[node] = POINTWISE[node.target](*arguments, **named)
    used = first + len(operands)
    whole = finish(steps, steps.lift(values[group.last]))
    expression = Expression(used, whole.instructions, whole.inputs[:used])
    return Tail(expression, tuple(operands), tuple(shapes), tuple(backs), bias is not None)


def _back(views: tuple[Node, ...]) -> Back:
    """From the shape behind some views back to that of the root."""

    def back(tensor: Tensor) -> Tensor:
        for node in reversed(views):
            tensor = _undone(node, tensor)
        return tensor

    return back


def _undone(node: Node, tensor: Tensor) -> Tensor:
    if node.target is aten.permute.default:
        axes = [axis % tensor.dim() for axis in node.args[1]]
        return tensor.permute([axes.index(axis) for axis in range(len(axes))])
    if node.target is aten.transpose.int:
        return tensor.transpose(node.args[1], node.args[2])
    return tensor.view(shape_of(node.args[0]) or ())


def through(group: Group, tensor: Tensor) -> Tensor:
    """The root's result as the group's last node shows it. Raises RuntimeError where that is no view."""
    for node in group.nodes:
        if node.target in (aten.permute.default, aten.transpose.int):
            tensor = node.target(tensor, *node.args[1:])
        elif node.target in VIEWS:
            tensor = tensor.view(shape_of(node) or ())
    return tensor


def fold_batch_norms(
    graph: Graph, constants: dict[Node, Tensor], shared: dict[Any, Any], folds_filters: bool = True
) -> None:
    """Fold normalizations by constant statistics into the convolution or product before them, in place.

    Others become a product and a sum by channel, which can be fused like every other; all do without `folds_filters`,
    by which filters stay the model's own. The folded weights are rounded once to their type; they are kept in `shared`
    for other graphs of the same constants.
    """
    for node in list(graph.nodes):
        if node.op != "call_function" or node.target not in BATCH_NORMS:
            continue
        if len(node.users) != 1 or next(iter(node.users)).target is not operator.getitem:
            continue
        x, weight, bias, mean, variance = node.args[:5]
        is_frozen = node.target is aten._native_batch_norm_legit_no_training.default or not node.args[5]
        if not is_frozen or any(a is not None and a not in constants for a in (weight, bias, mean, variance)):
            continue
        (result,) = node.users
        if not isinstance(x, Node) or result.args[1] != 0:
            continue
        scale = (constants[variance].double() + node.args[-1]).rsqrt()
        scale = scale if weight is None else scale * constants[weight].double()
        shift = -constants[mean].double() * scale
        shift = shift if bias is None else shift + constants[bias].double()
        replacement = None
        if folds_filters:
            replacement = _folded(graph, node, x, scale, shift, constants, shared)
        replacement = replacement or _scaled(graph, node, x, scale, shift, constants)
        result.replace_all_uses_with(replacement)
        graph.erase_node(result)
        graph.erase_node(node)
        if not x.users:
            graph.erase_node(x)


def _folded(
    graph: Graph,
    node: Node,
    x: Node,
    scale: Tensor,
    shift: Tensor,
    constants: dict[Node, Tensor],
    shared: dict[Any, Any],
) -> Node | None:
    """The convolution before a normalization with the latter in its filter; None where there is none."""
    held = value(x)
    if x.target is aten.convolution.default and not x.args[6] and len(x.users) == 1 and is_root(x):
        old_weight, old_bias = x.args[1], x.args[2]
        if old_weight in constants and (old_bias is None or old_bias in constants):
            key = ("folded", *(str(a) for a in (old_weight, old_bias, *node.args[1:])))
            folded = shared.get(key)
            if folded is None:
                weight = constants[old_weight]
                wide = scale.view(-1, *[1] * (weight.dim() - 1))
                biased = shift if old_bias is None else shift + constants[old_bias].double() * scale
                made_weight = torch.empty_like(weight)

                def make(into: Tensor, weight: Tensor = weight, wide: Tensor = wide) -> None:
                    into.copy_(weight.double() * wide)

                make(made_weight)
                folded = shared[key] = Folded(made_weight, biased.to(weight.dtype), make)
                shared["folded", id(made_weight)] = folded
            folded.restore()
            names = [constant(graph, tensor, constants) for tensor in (folded.weight, folded.bias)]
            with graph.inserting_before(node):
                made = graph.call_function(x.target, (x.args[0], *names, *x.args[3:]))
            made.meta["val"] = held
            return made
    return None


def _scaled(
    graph: Graph, node: Node, x: Node, scale: Tensor, shift: Tensor, constants: dict[Node, Tensor]
) -> Node:
    held = value(x)
    columns = [-1, *[1] * (held.dim() - 2)]
    names = [constant(graph, tensor.to(held.dtype).view(columns), constants) for tensor in (scale, shift)]
    with graph.inserting_before(node):
        product = graph.call_function(aten.mul.Tensor, (x, names[0]))
        made = graph.call_function(aten.add.Tensor, (product, names[1]))
    product.meta["val"] = made.meta["val"] = held
    return made


def constant(graph: Graph, tensor: Tensor, constants: dict[Node, Tensor]) -> Node:
    """A node for a tensor that is known."""
    with graph.inserting_before(next(iter(graph.nodes))):
        node = graph.placeholder(f"constant_{len(constants)}")
    node.meta["val"] = tensor
    constants[node] = tensor
    return node

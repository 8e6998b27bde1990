"""What the pass over Inductor's graphs changes in them: calls of nodes, and how they lie in memory."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.fx import Graph, Node
from torch.fx.node import map_arg

from jitdnn.frameworks.torch.inductor_nodes import constant_of

aten = torch.ops.aten


def become(node: Node, target: Any, arguments: tuple[Any, ...]) -> None:
    """Make another call of a node, which keeps its name: Inductor knows outputs by theirs."""
    node.target, node.args, node.kwargs = target, arguments, {}
    refresh(node)


def refresh(node: Node) -> None:
    """Note anew what form a node's call gives."""

    def value(one: Node) -> Any:
        return one.meta["val"]

    values = [value(one) for one in node.all_input_nodes]
    target: Any = node.target
    with next(one.fake_mode for one in values if hasattr(one, "fake_mode")):
        node.meta["val"] = target(*map_arg(node.args, value), **map_arg(node.kwargs, value))


def call_like(graph: Graph, like: Node, target: Any, *arguments: Any) -> Node:
    """A new call with what is noted of `like`, such as where it stands in the program, and the form of its result."""
    made = graph.call_function(target, arguments)
    made.meta = {name: one for name, one in like.meta.items() if name != "val"}
    if target is operator.getitem:
        made.meta["val"] = arguments[0].meta["val"][arguments[1]]
    else:
        refresh(made)
    return made


def laid_out(graph: Graph, before: Node, operand: Node, strides: Sequence[int] | None) -> Node:
    """The operand with other strides, None for the graph's."""
    if strides is None or tuple(operand.meta["val"].stride()) == tuple(strides):
        return operand
    from torch._inductor import inductor_prims  # noqa: F401  defines it

    forced = torch.ops.prims.inductor_force_stride_order.default
    with graph.inserting_before(before):
        made = graph.call_function(forced, (operand, list(strides)))
    refresh(made)
    return made


def may_save_otherwise() -> bool:
    """Whether what the graph that is being compiled gives beside the program's results is for its backward pass alone:
    not where results are views of what it gives, which PyTorch makes anew by strides."""
    context = torch._guards.TracingContext.try_get()
    return getattr(getattr(context, "fw_metadata", None), "num_intermediate_bases", None) == 0


def visible_results(graph: Graph) -> set[Node] | None:
    """What a graph gives to the program, not to its backward pass; None where that is not known."""
    (end,) = (one for one in graph.nodes if one.op == "output")
    shown, results = end.meta.get("user_visible_output_idxs"), end.args[0]
    if shown is None or not isinstance(results, (list, tuple)):
        return None
    return {results[number] for number in shown if isinstance(results[number], Node)}


def save_as_laid(graph: Graph, node: Node, laid: Node) -> None:
    """Have a graph give a node for its backward pass in the order of memory in which a convolution has it.

    Inductor keeps the order that the graph says for what it gives, and would write both.
    """
    (end,) = (one for one in graph.nodes if one.op == "output")
    shown = end.meta.get("user_visible_output_idxs")
    results = end.args[0]
    if laid is node or node.op == "placeholder" or shown is None or not isinstance(results, (list, tuple)):
        return
    end.args = (
        type(results)(
            laid if one is node and number not in shown else one for number, one in enumerate(results)
        ),
    )


def sum_by_channel(graph: Graph, dy: Node, result: Node) -> None:
    """Have the gradient of a bias by itself be a sum, which Inductor fuses with what gives its operand."""
    axes = [axis for axis in range(dy.meta["val"].dim()) if axis != 1]
    made = graph.call_function(aten.sum.dim_IntList, (dy, axes))
    refresh(made)
    result.replace_all_uses_with(made)
    graph.erase_node(result)


def dense(graph: Graph, before: Node, packed: Node, weight: Tensor, mode: Any) -> Node:
    """The node of a constant filter that is packed no more; `mode`: of tensors without data."""
    module = graph.owning_module
    if constant_of(packed, module) is weight:
        return packed
    number = 0
    while hasattr(module, f"_frozen_param_jitdnn_{number}"):
        number += 1
    name = f"_frozen_param_jitdnn_{number}"
    module.register_buffer(name, weight)
    with graph.inserting_before(before):
        made = graph.get_attr(name)
    made.meta["val"] = mode.from_tensor(weight, static_shapes=True)
    return made

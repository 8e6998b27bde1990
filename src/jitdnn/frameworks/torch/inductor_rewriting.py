"""What the pass over Inductor's graphs changes in them: calls of nodes, and how they lie in memory."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch.fx import Graph, Node


def become(node: Node, target: Any, arguments: tuple[Any, ...]) -> None:
    """Make another call of a node, which keeps its name: Inductor knows outputs by theirs."""
    node.target, node.args, node.kwargs = target, arguments, {}
    refresh(node)


def refresh(node: Node) -> None:
    """Note anew what form a node's call gives."""

    def value(one: Any) -> Any:
        if isinstance(one, (list, tuple)):
            return [value(part) for part in one]
        return one.meta["val"] if isinstance(one, Node) else one

    node.meta["val"] = _faked(node.target, [value(one) for one in node.args])


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


def _faked(target: Any, arguments: Sequence[Any]) -> Any:
    """What a function gives for tensors without data."""
    mode = next(one.fake_mode for one in arguments if hasattr(one, "fake_mode"))
    with mode:
        return target(*arguments)

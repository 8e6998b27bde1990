"""Pointwise operators behind a convolution in a graph of Inductor's: how far they can be fused into its end."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.fx import Node

from jitdnn.frameworks.torch.pointwise import POINTWISE
from jitdnn.frameworks.torch.tail import CAST, written

aten = torch.ops.aten
_MOST_STEPS = 32
_MOST_OPERANDS = 8
_REDUCED = (torch.float16, torch.bfloat16)
_WORDS = ("none", "tanh")
_COMPARISONS = {aten.gt.Scalar, aten.ge.Scalar, aten.lt.Scalar, aten.le.Scalar}
#: what reads its operands from memory whatever is before it
_EXTERNAL = {
    aten.convolution.default, aten.convolution_backward.default, aten.mm.default, aten.addmm.default, aten.bmm.default,
}  # fmt: skip


@dataclass(frozen=True)
class Tail:
    """Operators behind a convolution, in their order; the last one's result is the only one that others read.

    `operands`: the nodes outside that they read, the convolution's bias first. `text`: what tail.py makes of them.
    """

    steps: tuple[Node, ...]
    operands: tuple[Node, ...]
    text: str


def tail_of(root: Node, bias: Node | None, most: int = _MOST_STEPS) -> Tail:
    """The longest tail of a convolution, of `most` steps; without any where nothing can be fused."""
    inside: dict[Node, None] = {root: None}
    behind: set[Node] = set()
    closed: tuple[Node, ...] = ()
    node = root.next
    while node.op != "root" and len(inside) <= most:
        reads = node.all_input_nodes
        if any(read in inside or read in behind for read in reads):
            if not any(read in behind for read in reads) and _joins(node, inside, root):
                inside[node] = None
                rest = [user for other in inside if other is not node for user in other.users]
                is_closed = all(user in inside for user in rest)
                if is_closed and node.meta["val"].dtype == root.meta["val"].dtype:
                    closed = tuple(inside)[1:]
            else:
                behind.add(node)
        if all(user in inside or user in behind for other in inside for user in other.users):
            break
        node = node.next
    operands = _outside(closed, {root, *closed})
    text = written(closed, root, operands, bias is not None)
    return Tail(closed, (*(() if bias is None else (bias,)), *operands), text)


def _outside(steps: Sequence[Node], inside: set[Node]) -> list[Node]:
    return list(dict.fromkeys(read for node in steps for read in node.all_input_nodes if read not in inside))


def _joins(node: Node, inside: dict[Node, None], root: Node) -> bool:
    held, result = node.meta.get("val"), root.meta["val"]
    if node.op != "call_function" or not isinstance(held, Tensor) or held.shape != result.shape:
        return False
    # conditions are for `where` alone: in formulas they are no numbers
    numbers = node.args[1:] if node.target is aten.where.self else (*node.args, *node.kwargs.values())
    if any(
        isinstance(one, Node) and getattr(one.meta.get("val"), "dtype", None) is torch.bool for one in numbers
    ):
        return False
    wide = (result.dtype, torch.float32) if result.dtype in _REDUCED else (result.dtype,)
    if node.target is CAST:
        return held.dtype in wide and len(node.args) == 2 and not node.kwargs
    is_condition = node.target in _COMPARISONS
    if node.target not in POINTWISE or (held.dtype not in wide and not is_condition):
        return False
    if not all(isinstance(one, Node) or _is_simple(one) for one in (*node.args, *node.kwargs.values())):
        return False
    outside = _outside([*list(inside)[1:], node], set(inside))
    return len(outside) <= _MOST_OPERANDS and all(_is_operand(one, result, wide) for one in outside)


def _is_simple(one: Any) -> bool:
    return one is None or isinstance(one, (bool, int, float)) or one in _WORDS


def _is_operand(node: Node, result: Tensor, types: Sequence[torch.dtype]) -> bool:
    """Whether a tensor outside can be an operand: of these types, broadcast to the result by numbers."""
    held = node.meta.get("val")
    if not isinstance(held, Tensor) or held.dtype not in types or held.device != result.device:
        return False
    if not 2 <= held.dim() <= result.dim() or not all(isinstance(one, int) for one in held.shape):
        return False
    return all(
        one in (1, other) for one, other in zip(held.shape[::-1], tuple(result.shape)[::-1], strict=False)
    )


def saves_a_pass(last: Node) -> bool:
    """Whether a result would be written to memory and read again: some reader is no operator that Inductor fuses."""
    return any(map(_is_external, last.users))


def only_external(node: Node) -> bool:
    """Whether no reader of a result is an operator that Inductor fuses."""
    return all(map(_is_external, node.users))


def _is_external(user: Node) -> bool:
    return (
        user.op == "output"
        or user.target in _EXTERNAL
        or getattr(user.target, "namespace", "") in ("mkldnn", "jitdnn")
    )

"""Pointwise operators behind a convolution as text, which ours fuse into its end and torch runs one by one.

The text is JSON: a list of steps, each the name of an operator, its arguments and its named arguments. A number stands
for itself, `"%0"` for the result of the convolution, `"%1"` and so on for the operands, then for those of the steps.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import torch
import torch._prims  # defines the operator of casts
from torch import Tensor
from torch.fx import Node

from jitdnn.arguments import shown
from jitdnn.errors import InvalidArgument
from jitdnn.frameworks.torch.pointwise import POINTWISE
from jitdnn.limits import FORMULA_CHARACTERS
from jitdnn.rtcg.expression import Expression, Graph, finish

CAST = torch.ops.prims.convert_element_type.default
"""Between the types of the result and of the arithmetic: ours keep the wider one until the end."""
_OPERATORS = {str(operator): operator for operator in POINTWISE}
_DTYPES = {str(dtype): dtype for dtype in (torch.float16, torch.bfloat16, torch.float32, torch.float64)}


def written(steps: Sequence[Node], root: Node, operands: Sequence[Node], has_bias: bool = False) -> str:
    """The text of nodes in their order; all that they read is the root, an operand, or one of them before.

    With a bias, which is the first operand and none of `operands`, the first step adds it, and others read the sum.
    """
    places = {node: 1 + has_bias + number for number, node in enumerate(operands)}
    known = 1 + has_bias + len(operands)
    places[root] = known if has_bias else 0
    lines: list[Any] = [[str(torch.ops.aten.add.Tensor), ["%0", "%1"], {}]] if has_bias else []

    def word(argument: Any) -> Any:
        return f"%{places[argument]}" if isinstance(argument, Node) else argument

    for node in steps:
        places[node] = known + len(lines)
        if node.target is CAST:
            lines.append(["cast", [word(node.args[0]), str(node.args[1])], {}])
        else:
            named = {name: word(one) for name, one in node.kwargs.items()}
            lines.append([str(node.target), [word(one) for one in node.args], named])
    return json.dumps(lines, separators=(",", ":"))


@lru_cache(1024)
def _steps(text: str, operands: int) -> list[tuple[str, list[Any], dict[str, Any]]]:
    """The steps of a text, whose references are checked. Raises InvalidArgument for anything else than such text."""
    if len(text) > FORMULA_CHARACTERS:
        raise InvalidArgument(f"the tail has {len(text)} characters: at most {FORMULA_CHARACTERS} are read")
    try:
        lines = json.loads(text)
        steps = [(name, list(arguments), dict(named)) for name, arguments, named in lines]
    except (ValueError, TypeError, RecursionError) as error:
        raise InvalidArgument(f"the tail is {shown(text)}: it must be a list of steps in JSON") from error
    for number, (name, arguments, named) in enumerate(steps):
        if not isinstance(name, str) or (name not in _OPERATORS and name != "cast"):
            raise InvalidArgument(
                f"step {number} of the tail is {shown(name)}: it must be a pointwise operator"
            )
        if name == "cast" and (len(arguments) != 2 or str(arguments[1]) not in _DTYPES or named):
            raise InvalidArgument(f"step {number} of the tail casts to {shown(arguments[1:])}")
        given = [*arguments[: 1 if name == "cast" else None], *named.values()]
        for one in given:
            is_number = one is None or isinstance(one, (bool, int, float)) or one in ("none", "tanh")
            if not is_number and _place(one) not in range(1 + operands + number):
                raise InvalidArgument(
                    f"step {number} of the tail reads {shown(one)}: it must be a number, or % and the place of a value "
                    f"before it, of which there are {1 + operands + number}"
                )
    return steps


def _place(word: Any) -> int:
    is_place = isinstance(word, str) and word[:1] == "%" and word[1:].isascii() and word[1:].isdigit()
    return int(word[1:]) if is_place and len(word) < 9 else -1


def _run(text: str, values: list[Any], call: Any) -> Any:
    """The last result of the steps over some values; `call(name, arguments, named)` computes one."""

    def value(word: Any) -> Any:
        place = _place(word)
        return word if place < 0 else values[place]

    for name, arguments, named in _steps(text, len(values) - 1):
        values.append(call(name, [value(one) for one in arguments], {k: value(v) for k, v in named.items()}))
    return values[-1] if len(values) else None


@lru_cache(1024)
def expression_of(text: str, operands: int) -> Expression:
    """The function of the convolution's result and so many operands that a text says.

    Raises InvalidArgument for other text, and for steps that do not fit their operators.
    """
    graph = Graph(["acc", *(f"v{number}" for number in range(operands))])

    def call(name: str, arguments: list[Any], named: dict[str, Any]) -> Any:
        return arguments[0] if name == "cast" else POINTWISE[_OPERATORS[name]](*arguments, **named)

    try:
        steps = _steps(text, operands)
        last = _run(text, [graph.input(place) for place in range(1 + operands)], call)
    except TypeError as error:
        raise InvalidArgument(f"the tail is {shown(text)}: {error}") from error
    return finish(graph, graph.lift(last if steps else graph.input(0)))


def applied(text: str, y: Tensor, operands: Sequence[Tensor]) -> Tensor:
    """What the text makes of a result, by torch's operators; operands of one dimension belong to the channels."""
    channels = [-1, *[1] * (y.dim() - 2)]
    wide = [one.view(channels) if one.dim() == 1 else one for one in operands]
    if not _steps(text, len(operands)):
        return y
    return computed(text, [y, *wide]).expand(y.shape).to(y.dtype)


def computed(text: str, values: Sequence[Tensor]) -> Tensor:
    """What the text makes of some values, by torch's operators; the first of them where it has no step."""

    def call(name: str, arguments: list[Any], named: dict[str, Any]) -> Any:
        if name == "cast":
            return arguments[0].to(_DTYPES[arguments[1]])
        if name == str(torch.ops.aten.where.self):  # takes tensors alone
            arguments = [torch.as_tensor(one, device=values[0].device) for one in arguments]
        return _OPERATORS[name](*arguments, **named)

    found: Tensor = _run(text, list(values), call)
    return found if _steps(text, len(values) - 1) else values[0]

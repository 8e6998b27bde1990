"""Gradients of layers of few results in Inductor's graphs on a GPU, where a normalization's gradient reads them.

The last layer of a net that gives a class for each pixel has one tap and few results. The gradient of its data has as
many channels as the data, though each of its numbers is a sum of that few terms. Behind the other passes of ours those
who read it are `jitdnn::channel_sums` and `jitdnn::channel_values`: here they compute it from the gradients of the
results, and nobody writes it down, where that is faster.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch.fx import Graph, Node

from jitdnn.frameworks.torch import choice, inductor_lowering, settled
from jitdnn.frameworks.torch.channel_sums import Form, Sums, channel_sums
from jitdnn.frameworks.torch.channel_values import Values, channel_values
from jitdnn.frameworks.torch.inductor_forms import measuring, real
from jitdnn.frameworks.torch.inductor_formulas import compiled_ahead
from jitdnn.frameworks.torch.inductor_rewriting import refresh
from jitdnn.frameworks.torch.options import handle_of, parse

aten = torch.ops.aten
_MOST_RESULTS = 4  # each of which is two operands of a formula
_MOST_OPERANDS = 20
_READERS = (channel_sums.default, channel_values.default)


@dataclass(frozen=True)
class _Reader:
    """A call that reads a gradient, which operand it is, and what it says with terms in its place."""

    node: Node
    place: int
    says: Sums | Values

    @property
    def text(self) -> str:
        return str(self.says)


@dataclass(frozen=True)
class _Found:
    """The gradient of a layer's data, the forms of its terms' factors, and its readers."""

    gradient: Node
    terms: tuple[Form, ...]
    readers: tuple[_Reader, ...]


def compute_terms(graph: Graph, options: str) -> int:
    """Rewrite a graph in place, where ours are faster; how many gradients there were."""
    found = list(_all_found(graph))
    if not found:
        return 0
    steps = [reader.says.step for one in found for reader in one.readers]
    compiled_ahead(steps, found[0].gradient.meta["val"].device, options)
    count = 0
    for one in found:
        if _is_faster(one, options):
            _become(graph, one)
            count += 1
    if count:
        graph.eliminate_dead_code()
    return count


def _all_found(graph: Graph) -> Iterator[_Found]:
    for node in list(graph.nodes):
        if node.target is settled.settled_convolution.default:
            one = _found(node)
            if one is not None:
                yield one


def _found(node: Node) -> _Found | None:
    direction, (x, w, y), _, geometry, _ = settled.parsed(node.args[3])
    results, channels, *taps = w[0]
    is_plain = {*taps, *geometry.stride} == {1} and {*geometry.padding} == {0} and geometry.groups == 1
    if direction != "data" or not is_plain or results > _MOST_RESULTS or x[0][1] != channels:
        return None
    if not node.users or any(user.target not in _READERS for user in node.users):
        return None
    batch, _, *space = y[0]
    pixels: Form = ((batch, 1, *space), tuple(y[1]), str(y[2]).removeprefix("torch."))
    ones = [1] * len(space)
    numbers: Form = ((1, channels, *ones), tuple(w[1]), str(w[2]).removeprefix("torch."))
    terms = (*[pixels] * results, *[numbers] * results)
    readers = [_reader(user, node, terms) for user in node.users]
    if any(one is None for one in readers):
        return None
    return _Found(node, terms, tuple(one for one in readers if one is not None))


def _reader(user: Node, gradient: Node, terms: tuple[Form, ...]) -> _Reader | None:
    operands, text = user.args
    places = [number for number, one in enumerate(operands) if one is gradient]
    if len(places) != 1 or len(operands) - 1 + len(terms) > _MOST_OPERANDS:
        return None
    (place,) = places
    says: Sums | Values
    says = Sums.of(text) if user.target is channel_sums.default else Values.of(text)
    forms = (*says.forms[:place], *says.forms[place + 1 :], *terms)
    count, results = len(says.forms), len(terms) // 2
    if isinstance(says, Sums):
        formulas = tuple((kind, in_terms(steps, count, place, results)) for kind, steps in says.results)
        return _Reader(user, place, replace(says, forms=forms, results=formulas))
    return _Reader(user, place, replace(says, forms=forms, steps=in_terms(says.steps, count, place, results)))


def in_terms(steps: str, operands: int, place: int, results: int) -> str:
    """The steps of a formula (tail.py) of so many operands, of which number `place` is a sum of `results` products:
    behind the other operands come the first factors, then the second ones."""
    first = operands - 1
    known = first + 2 * results
    lines: list[Any] = [
        ["aten.mul.Tensor", [f"%{first + number}", f"%{first + results + number}"], {}]
        for number in range(results)
    ]
    for number in range(1, results):
        before = known if number == 1 else known + results + number - 2
        lines.append(["aten.add.Tensor", [f"%{before}", f"%{known + number}"], {}])
    total = known + len(lines) - 1

    def word(one: Any) -> Any:
        if not isinstance(one, str) or not one.startswith("%"):
            return one
        at = int(one[1:])
        if at == place:
            return f"%{total}"
        if at < operands:
            return f"%{at - (at > place)}"
        return f"%{total + 1 + at - operands}"

    for name, arguments, named in json.loads(steps):
        lines.append([name, [word(one) for one in arguments], {key: word(one) for key, one in named.items()}])
    return json.dumps(lines, separators=(",", ":"))


def _become(graph: Graph, one: _Found) -> None:
    dy, w = one.gradient.args[:2]
    results = len(one.terms) // 2

    def made(target: Any, *arguments: Any) -> Node:
        node = graph.call_function(target, arguments)
        refresh(node)
        return node

    with graph.inserting_before(one.gradient):
        factors = [made(aten.slice.Tensor, dy, 1, number, number + 1) for number in range(results)]
        factors += [made(aten.slice.Tensor, w, 0, number, number + 1) for number in range(results)]
    for reader in one.readers:
        operands = list(reader.node.args[0])
        del operands[reader.place]
        reader.node.args = ([*operands, *factors], reader.text)
    graph.erase_node(one.gradient)


def _is_faster(one: _Found, options: str) -> bool:
    try:
        with measuring(True):
            gradient = real(one.gradient.meta["val"])
            terms = [
                real(gradient.new_empty(shape, dtype=getattr(torch, name)), steps)
                for shape, steps, name in one.terms
            ]
            now, then = [], []
            for reader in one.readers:
                text, others = reader.node.args[1], list(reader.node.args[0])
                before = Sums.of(text) if isinstance(reader.says, Sums) else Values.of(text)
                operands = [
                    gradient if number == reader.place else real(node.meta["val"], strides)
                    for number, (node, (_, strides, _)) in enumerate(zip(others, before.forms, strict=True))
                ]
                now.append(_call(reader.says, operands, text))
                then.append(
                    _call(
                        reader.says,
                        [*operands[: reader.place], *operands[reader.place + 1 :], *terms],
                        reader.text,
                    )
                )
            forms = settled.forms_of_operands(one.gradient.args[3])
            a, w = (
                real(node.meta["val"], form[1])
                for node, form in zip(one.gradient.args[:2], forms, strict=True)
            )
            now.append(inductor_lowering.call(a, w, None, one.gradient.args[3]))
            device = gradient.device
            decision = choice.decide(
                f"torch gradient in terms {[reader.text for reader in one.readers]}",
                handle_of(options, device.type), device, parse(options).measure, _all(then), _all(now),
            )  # fmt: skip
    except torch.OutOfMemoryError:
        return False
    return decision.is_ours


def _call(says: Sums | Values, operands: Sequence[torch.Tensor], text: str) -> Callable[[], Any]:
    call = inductor_lowering.sums_call if isinstance(says, Sums) else inductor_lowering.values_call
    return call(operands, text)


def _all(calls: Sequence[Callable[[], Any]]) -> Callable[[], None]:
    def run() -> None:
        for one in calls:
            one()

    return run

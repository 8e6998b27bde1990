"""Values of Inductor's graphs as formulas of tensors in memory, with numbers that belong to a channel each.

What a normalization reads or gives is one number for each channel and pixel. A `Reader` follows pointwise operators,
casts and views from such a value up to what lies in memory anyway, or had better be written down, and writes the steps
of tail.py. Tensors of all elements are *wide* here, those of a number for each channel, or for each channel of each
image, are *narrow*.
"""

from __future__ import annotations

import json
import operator
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from math import prod
from typing import Any, TypeAlias

import torch
from torch import Tensor
from torch.fx import Graph, Node

from jitdnn.frameworks.torch.channel_sums import Form, channel_sums
from jitdnn.frameworks.torch.inductor_forms import has_static_form, real
from jitdnn.frameworks.torch.inductor_groups import CALLS
from jitdnn.frameworks.torch.inductor_rewriting import refresh
from jitdnn.frameworks.torch.kernels import channels_last_strides, contiguous_strides
from jitdnn.frameworks.torch.kinds import DEVICES, at
from jitdnn.frameworks.torch.options import handle_of
from jitdnn.frameworks.torch.pointwise import POINTWISE
from jitdnn.frameworks.torch.tail import CAST
from jitdnn.handle import Handle
from jitdnn.kernels.formulas.row_algorithms import Step
from jitdnn.kernels.tables import rows_kernel
from jitdnn.ops.ahead import compile_ahead

aten = torch.ops.aten
SHORT = (torch.float16, torch.bfloat16)
FLOATS = (*SHORT, torch.float32)
#: the same elements in the same order
SAME = {
    aten.reshape.default, aten.view.default, aten._unsafe_view.default, aten.clone.default, aten.squeeze.dims,
    aten.squeeze.dim, aten.unsqueeze.default, aten.alias.default,
}  # fmt: skip
#: other elements of the same memory
_PARTS = (aten.slice.Tensor,)
#: a number as a tensor, and where among the arguments it is
_NUMBERS = {aten.full.default: 1, aten.scalar_tensor.default: 0}
LEAST_BYTES = 4 << 20  # of the tensors that are read; two launches take as long
WORTH_A_CALL = 8  # times as many where the host makes each call, which takes it some 20 us
MOST_OPERANDS, _MOST_STEPS, _MOST_CHOICES = 12, 64, 8
#: an operand, and of a narrow one its first two extents; where groups of channels have a number also those that it has,
#: and those that it is spread to
Operand: TypeAlias = tuple[Node, tuple[Any, ...] | None]


class Cut(Exception):
    """A value is no formula of what lies in memory."""


@dataclass
class Formula:
    """A formula: operands by their places, steps whose words are numbers or (list, place), and the last word."""

    shape: tuple[int, ...]
    operands: dict[Operand, int] = field(default_factory=dict)
    steps: list[tuple[str, list[Any], dict[str, Any]]] = field(default_factory=list)
    last: Any = None

    @property
    def wide(self) -> set[Node]:
        return {node for node, form in self.operands if form is None}

    def text(self, places: dict[Operand, int]) -> str:
        """The steps as text, with the operands at these places."""

        def word(one: Any) -> Any:
            if not isinstance(one, tuple):
                return one
            where, place = one
            return f"%{len(places) + place if where == 'steps' else places[tuple(self.operands)[place]]}"

        lines = [
            [name, [word(each) for each in given], {key: word(each) for key, each in named.items()}]
            for name, given, named in self.steps
        ]
        if not lines or self.last != ("steps", len(lines) - 1):
            lines.append(["cast", [word(self.last), str(torch.float32)], {}])
        return json.dumps(lines, separators=(",", ":"))


def places_of(formulas: Iterable[Formula]) -> dict[Operand, int]:
    """The operands of some formulas, each once, and the place of each."""
    places: dict[Operand, int] = {}
    for one in formulas:
        for key in one.operands:
            places.setdefault(key, len(places))
    return places


def orders_of(places: Iterable[Operand]) -> set[bool]:
    """Whether wide operands have channels last, of those that lie in memory."""
    return {
        has_channels_last(node.meta["val"]) for node, form in places if form is None and is_in_memory(node)
    }


def forms_of(places: Iterable[Operand], shape: tuple[int, ...]) -> tuple[Form, ...]:
    """How operands are to lie in memory: as they do, or as the others do."""
    places, rank = list(places), len(shape)
    dense = channels_last_strides if orders_of(places) != {False} else contiguous_strides
    forms = []
    for node, form in places:
        value = node.meta["val"]
        extents, strides = shape, tuple(value.stride())
        if form is not None:
            extents = (*form[:2], *(1,) * (rank - 2))
            strides = (form[1], 1, *(1,) * (rank - 2))
        elif not is_in_memory(node):
            strides = dense(shape)
        forms.append((extents, strides, str(value.dtype).removeprefix("torch.")))
    return tuple(forms)


def put_operands(graph: Graph, places: Iterable[Operand], forms: Sequence[Form]) -> list[Node]:
    """The nodes of operands, narrow ones in the shape of their form."""
    found = []
    for (node, form), (shape, _, _) in zip(places, forms, strict=True):
        if form is not None:
            for wanted in form[2:]:  # groups of channels that have one number
                target = aten.reshape.default if wanted is form[2] else aten.expand.default
                node = graph.call_function(target, (node, list(wanted)))
                refresh(node)
            node = graph.call_function(aten.reshape.default, (node, list(shape)))
            refresh(node)
        found.append(node)
    return found


def reals(places: Iterable[Operand], forms: Sequence[Form]) -> list[Tensor]:
    """Operands to measure with."""
    found = []
    for (node, _), (shape, strides, _) in zip(places, forms, strict=True):
        value = node.meta["val"]
        found.append(real(value if tuple(value.shape) == shape else value.new_empty(shape), strides))
    return found


def compiled_ahead(steps: Iterable[Callable[[], Step]], device: torch.device, options: str) -> None:
    """Compile the kernels of programs over rows, several at once: measured one after the other each would wait for its
    own."""
    if device.type == "cpu":
        return
    handle = at(device, handle_of(options, device.type))
    compile_ahead(handle, [partial(_build, step, handle) for step in steps])


def _build(step: Callable[[], Step], handle: Handle) -> object:
    return rows_kernel(step(), handle.device)


def shape_below(node: Node, count: int) -> tuple[int, ...] | None:
    """The shape of a tensor in memory of which so many numbers are made, None without one; so on devices of others."""
    seen, left = set(), [node]
    while left:
        one = left.pop()
        value = one.meta.get("val")
        if one in seen or not isinstance(value, Tensor) or value.numel() != count:
            continue
        seen.add(one)
        if is_in_memory(one) and has_order(value):
            return tuple(value.shape)
        if one.op == "call_function" and (
            one.target in SAME or one.target in POINTWISE or one.target is CAST
        ):
            left += one.all_input_nodes
    return None


def has_order(value: Tensor) -> bool:
    """Whether a tensor's channels are innermost, or its pixels, one behind the other; of some channels, too."""
    return has_channels_last(value) or (
        3 <= value.dim() <= 5
        and value.device.type in DEVICES
        and has_static_form(value)
        and value.dtype in FLOATS
        and tuple(value.stride())[1:] == contiguous_strides(value.shape)[1:]
        and value.stride(0) >= value.shape[1] * value.stride(1)
    )


def has_channels_last(value: Tensor) -> bool:
    """Whether channels are innermost, and pixels follow each other at one step; of some of the channels, too."""
    if not 3 <= value.dim() <= 5 or not has_static_form(value) or value.dtype not in FLOATS:
        return False
    if value.device.type not in DEVICES:
        return False
    dense = channels_last_strides(value.shape)
    channels, pitch = value.shape[1], value.stride(-1)
    if channels < 2 or value.stride(1) != 1 or pitch < channels or pitch % channels:
        return False
    return all(
        extent == 1 or step == own * (pitch // channels)
        for axis, (extent, step, own) in enumerate(zip(value.shape, value.stride(), dense, strict=True))
        if axis != 1
    )


def is_in_memory(node: Node) -> bool:
    """Whether a node's value is written by whatever gives it, as its form says: it is given, or a call's."""
    while node.target in _PARTS:
        node = node.args[0]
    if node.target is operator.getitem:
        node = node.args[0]
    return node.op == "placeholder" or node.target in CALLS


def _is_read(node: Node) -> bool:
    """Whether a node's value is written down, since a call reads it."""
    return any(user.target in CALLS or user.target is channel_sums.default for user in node.users)


class Reader:
    """Writes the formula of a value.

    `readers`: so many read what is normalized anyway; what more read, and is made of several tensors, is written down.
    `read`: what is in memory and read beside this value, which costs nothing then. `computes_narrow`: whether numbers
    of channels are computed, too, from those that lie in memory; each would be a kernel by itself.
    """

    def __init__(
        self, formula: Formula, readers: int, read: Collection[Node] = (), computes_narrow: bool = False
    ) -> None:
        self._formula, self._readers_anyway, self._read = formula, readers, read
        self._computes_narrow = computes_narrow
        self._known: dict[Node, Any] = {}
        self._known_narrow: dict[tuple[Node, tuple[Any, ...]], Any] = {}
        self._count = prod(formula.shape)

    def value(self, node: Node, is_inside: bool = False) -> Any:
        """The word of a value of every element. `is_inside`: of what was short numbers already. Raises Cut."""
        if node not in self._known:
            self._known[node] = self._value(node, is_inside)
        return self._known[node]

    def _value(self, node: Node, is_inside: bool) -> Any:
        value = node.meta.get("val")
        if not isinstance(value, Tensor) or value.numel() != self._count:
            raise Cut
        if is_in_memory(node) or (_is_read(node) and tuple(value.shape) == self._formula.shape):
            return self._operand(node)
        if value.dtype not in SHORT or is_inside or node.target in SAME:
            return self.computed(node, is_inside)
        # the last of what may be written down, as short numbers
        kept = len(self._formula.steps), dict(self._formula.operands), dict(self._known)
        try:
            made = self.computed(node, True)
            if len(self._fresh(kept[1])) < 2 or len(self._readers(node)) <= self._readers_anyway:
                return made
            choices = [node]
        except Cut:
            choices = self._short_ones(node)
        best: tuple[int, Node] | None = None
        for choice in [*choices, None]:
            del self._formula.steps[kept[0] :]
            self._formula.operands, self._known = dict(kept[1]), dict(kept[2])
            leaf = choice if choice is not None else best and best[1]
            if leaf is None:
                raise Cut
            try:
                self._known[leaf] = self._operand(leaf)
                made = self._known[leaf] if leaf is node else self.computed(node, True)
            except Cut:
                continue
            if choice is None:
                return made
            count = len(self._fresh(kept[1]))
            if best is None or count <= best[0]:  # the lowest of those by which as few tensors are read
                best = count, leaf
        raise Cut

    def _fresh(self, before: dict[Any, int]) -> list[Any]:
        keys = [key for key in self._formula.operands if key[1] is None and key not in before]
        return [key for key in keys if key[0] not in self._read or not is_in_memory(key[0])]

    def _short_ones(self, node: Node) -> list[Node]:
        """What may be written down in place of a value, and its reads: short numbers, from the last to the first."""
        found: list[Node] = []
        left = [node]
        while left:
            one = left.pop(0)
            value = one.meta.get("val")
            if (
                one in found
                or not isinstance(value, Tensor)
                or value.numel() != self._count
                or is_in_memory(one)
            ):
                continue
            if value.dtype in SHORT and one.target not in SAME and tuple(value.shape) == self._formula.shape:
                found.append(one)
            if one.op == "call_function" and (
                one.target in SAME or one.target in POINTWISE or one.target is CAST
            ):
                left += one.all_input_nodes
        return found[:_MOST_CHOICES]

    def _readers(self, node: Node) -> set[Node]:
        """Whoever reads a value, its casts and its views."""
        found: set[Node] = set()
        for user in node.users:
            found |= self._readers(user) if user.target is CAST or user.target in SAME else {user}
        return found

    def computed(self, node: Node, is_inside: bool = True) -> Any:
        """The word of a value that is no operand itself. Raises Cut."""
        if node.op != "call_function":
            raise Cut
        if node.target is CAST or node.target in SAME:
            source = node.args[0]
            if not isinstance(source, Node) or node.meta["val"].dtype not in FLOATS:
                raise Cut
            if source.meta["val"].dtype not in FLOATS:
                raise Cut
            return self.value(source, is_inside)
        if node.target not in POINTWISE or len(self._formula.steps) >= _MOST_STEPS:
            raise Cut

        def word(argument: Any) -> Any:
            if not isinstance(argument, Node):
                if (
                    argument is None
                    or isinstance(argument, (bool, int, float))
                    or argument in ("none", "tanh")
                ):
                    return argument
                raise Cut
            held = argument.meta.get("val")
            if not isinstance(held, Tensor):
                raise Cut
            if held.numel() == 1 and argument.target in _NUMBERS:
                number = argument.args[_NUMBERS[argument.target]]
                if isinstance(number, (bool, int, float)):  # not one that is known when the graph runs
                    return number
            if held.numel() == self._count:
                return self.value(argument, is_inside)
            return self._narrow(argument, node.meta["val"].shape)

        arguments = [word(one) for one in node.args]
        named = {name: word(one) for name, one in node.kwargs.items()}
        self._formula.steps.append((str(node.target), arguments, named))
        return "steps", len(self._formula.steps) - 1

    def _operand(self, node: Node, form: tuple[Any, ...] | None = None) -> Any:
        value = node.meta["val"]
        if form is None and tuple(value.shape) != self._formula.shape:
            raise Cut
        if value.dtype not in FLOATS or (form is None and is_in_memory(node) and not has_order(value)):
            raise Cut
        return "operands", self._formula.operands.setdefault((node, form), len(self._formula.operands))

    def _narrow(self, node: Node, frame: Sequence[int]) -> Any:
        """One number for a channel, or for a channel of an image; `frame`: the shape that it is broadcast to."""
        shape = self._formula.shape
        extents = [1] * (len(frame) - node.meta["val"].dim()) + list(node.meta["val"].shape)
        head = next((at for at in range(len(frame) + 1) if prod(frame[:at]) == shape[0] * shape[1]), None)
        if head is None or any(extent != 1 for extent in extents[head:]):
            raise Cut
        count = node.meta["val"].numel()
        node = _below(node)
        if count == 1:
            return self._narrow_word(node, (1, 1))
        if list(frame[:head]) == list(shape[:2]):
            return self._narrow_word(node, (extents[0], extents[1]))
        if extents[:head] == list(frame[:head]):
            return self._narrow_word(node, shape[:2])
        return self._narrow_word(node, (*shape[:2], tuple(extents[:head]), tuple(frame[:head])))

    def _narrow_word(self, node: Node, form: tuple[Any, ...]) -> Any:
        """The word of numbers of channels in one form: computed of others in the same one, or an operand."""
        if not self._computes_narrow or node.op != "call_function" or node.target not in POINTWISE:
            return self._operand(node, form)
        if (node, form) in self._known_narrow:
            return self._known_narrow[node, form]
        given = [*node.args, *node.kwargs.values()]
        nodes = [one for one in given if isinstance(one, Node)]
        count = node.meta["val"].numel()
        if (
            len(self._formula.steps) + 1 >= _MOST_STEPS
            or not nodes
            or any(not isinstance(one, (Node, bool, int, float)) for one in given)
            or any(
                one.meta["val"].dtype not in FLOATS or one.meta["val"].numel() not in (1, count)
                for one in nodes
            )
        ):
            return self._operand(node, form)

        def word(one: Any) -> Any:
            if not isinstance(one, Node):
                return one
            return self._narrow_word(_below(one), form if one.meta["val"].numel() == count else (1, 1))

        arguments = [word(one) for one in node.args]
        named = {name: word(one) for name, one in node.kwargs.items()}
        self._formula.steps.append((str(node.target), arguments, named))
        self._known_narrow[node, form] = "steps", len(self._formula.steps) - 1
        return self._known_narrow[node, form]


def _below(node: Node) -> Node:
    """Where the numbers of a node lie in memory, or are computed: behind casts, and views of all of them."""
    count = node.meta["val"].numel()
    while node.op == "call_function" and (node.target is CAST or node.target in SAME):
        source = node.args[0] if node.args else None
        if not isinstance(source, Node) or source.meta["val"].numel() != count:
            break
        if source.meta["val"].dtype not in FLOATS:
            break
        node = source
    return node

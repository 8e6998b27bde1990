"""Gradients of normalizations in Inductor's graphs on a GPU: `jitdnn::channel_values` (channel_values.py).

Behind the sums (inductor_sums.py) a gradient is a formula of tensors in memory and of numbers that each channel has.
Where convolutions alone read it, it is a kernel by itself, ours or Inductor's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from math import prod

import torch
from torch import Tensor
from torch.fx import Graph, Node

from jitdnn.frameworks.torch import choice, inductor_lowering
from jitdnn.frameworks.torch.channel_values import Values, channel_values
from jitdnn.frameworks.torch.inductor_forms import has_static_form, is_on_gpu, measuring
from jitdnn.frameworks.torch.inductor_formulas import (
    FLOATS,
    LEAST_BYTES,
    MOST_OPERANDS,
    SAME,
    WORTH_A_CALL,
    Cut,
    Formula,
    Reader,
    compiled_ahead,
    forms_of,
    is_in_memory,
    orders_of,
    places_of,
    put_operands,
    reals,
    shape_below,
)
from jitdnn.frameworks.torch.inductor_groups import CALLS
from jitdnn.frameworks.torch.options import handle_of, parse
from jitdnn.frameworks.torch.pointwise import POINTWISE
from jitdnn.frameworks.torch.tail import CAST

_LAID = "inductor_force_stride_order"
_MOST_READS = 8  # of Inductor's kernels, where its settings do not say it
_LEAST_NARROW = 3  # numbers of a channel that Inductor's kernel would read for each element


@dataclass
class _Found:
    """A node whose value is a formula, in the shape of the tensors that it reads; `reads`: how many tensors a kernel
    of Inductor's would read for it."""

    node: Node
    formula: Formula
    reads: int


def compute_values(graph: Graph, options: str, is_captured: bool = True) -> int:
    """Rewrite a graph in place, where ours are faster; how many values there were. `is_captured` as for
    `sum_channels`."""
    least = LEAST_BYTES if is_captured else LEAST_BYTES * WORTH_A_CALL
    found = list(_found(graph, least))
    if not found:
        return 0
    texts = [_values(one, options) for one in found]
    compiled_ahead([one.step for one in texts], found[0].node.meta["val"].device, options)
    count = 0
    for one in _found(graph, least):
        values = _values(one, options)
        if _is_faster(values, one, options):
            _become(graph, one, values)
            count += 1
    if count:
        graph.eliminate_dead_code()
    return count


def _found(graph: Graph, least: int) -> Iterator[_Found]:
    for node in list(graph.nodes):
        one = _value(node, least)
        if one is not None:
            yield one


def _value(node: Node, least: int) -> _Found | None:
    """What a node is where calls alone read it from memory, and it is a formula with numbers of channels."""
    value = node.meta.get("val") if node.op == "call_function" else None
    if not isinstance(value, Tensor) or value.dtype not in FLOATS or not has_static_form(value):
        return None
    if not 3 <= value.dim() <= 5 or not is_on_gpu(node):
        return None
    if is_in_memory(node) or not _is_for_calls(node):
        return None
    if node.target not in POINTWISE and node.target not in SAME and node.target is not CAST:
        return None
    shape = shape_below(node, value.numel())
    if shape != tuple(value.shape):
        return None
    try:
        formula, reads = _formula(node, shape)
    except Cut:
        return None
    if sum(each.meta["val"].numel() * each.meta["val"].element_size() for each in formula.wide) < least:
        return None
    narrow = [each for each, form in formula.operands if form is not None]
    is_made = any(not is_in_memory(each) for each in narrow)
    if (
        len(narrow) < _LEAST_NARROW
        or not is_made
        or not formula.wide
        or len(formula.operands) > MOST_OPERANDS
    ):
        return None
    if len(orders_of(formula.operands)) > 1 or any(
        tuple(each.meta["val"].shape) != shape for each in formula.wide
    ):
        return None
    return _Found(node, formula, reads)


def _formula(node: Node, shape: tuple[int, ...]) -> tuple[Formula, int]:
    """The formula of a node, and how many tensors it reads where others compute the numbers of channels. Raises Cut."""
    plain, whole = Formula(shape), Formula(shape)
    plain.last = Reader(plain, 1 << 30).computed(node)
    reads = len(plain.operands)
    try:
        whole.last = Reader(whole, 1 << 30, computes_narrow=True).computed(node)
    except Cut:
        return plain, reads
    return (whole if len(whole.operands) <= max(reads, MOST_OPERANDS) else plain), reads


def _is_for_calls(node: Node) -> bool:
    """Whether calls alone read a node, as it is or laid out."""
    return bool(node.users) and all(
        user.target in CALLS or (_LAID in str(user.target) and _is_for_calls(user)) for user in node.users
    )


def _values(one: _Found, options: str) -> Values:
    places = places_of([one.formula])
    forms = forms_of(places, one.formula.shape)
    strides = next(form[1] for (_, narrow), form in zip(places, forms, strict=True) if narrow is None)
    dense = [form for form in forms if form[0] == one.formula.shape and prod(form[0]) == _reach(form)]
    result = (one.formula.shape, dense[0][1] if dense else strides, _name(one.node))
    return Values(forms, result, one.formula.text(places), options)


def _reach(form: tuple[tuple[int, ...], tuple[int, ...], str]) -> int:
    """Elements of memory from the first one of a tensor to its last."""
    return 1 + sum((extent - 1) * step for extent, step in zip(form[0], form[1], strict=True))


def _name(node: Node) -> str:
    return str(node.meta["val"].dtype).removeprefix("torch.")


def _become(graph: Graph, one: _Found, values: Values) -> None:
    with graph.inserting_before(one.node):
        operands = put_operands(graph, places_of([one.formula]), values.forms)
        made = graph.call_function(channel_values.default, (operands, str(values)))
    held = one.node.meta["val"]
    with held.fake_mode:
        made.meta = {
            **one.node.meta,
            "val": torch.empty_strided(held.shape, values.result[1], dtype=held.dtype, device=held.device),
        }
    one.node.replace_all_uses_with(made)
    graph.erase_node(one.node)


def _is_faster(values: Values, one: _Found, options: str) -> bool:
    try:
        with measuring(True):
            tensors = reals(places_of([one.formula]), values.forms)
            device, text = tensors[0].device, str(values)
            ours, is_divided = inductor_lowering.values_call(tensors, text), _is_divided(one.reads)
            decision = choice.decide(
                f"torch values {text} beside {1 + is_divided}", handle_of(options, device.type), device,
                parse(options).measure, ours, _passes(values, tensors, is_divided),
            )  # fmt: skip
    except torch.OutOfMemoryError:
        return False
    return decision.is_ours


def _is_divided(reads: int) -> bool:
    """Whether Inductor makes two passes: it writes down what reads more than so many tensors, small ones counted."""
    from torch._inductor import config

    return reads > (getattr(config, "realize_acc_reads_threshold", None) or _MOST_READS)


def _passes(values: Values, tensors: Sequence[Tensor], is_divided: bool) -> Callable[[], object]:
    """Passes over the same bytes that read no number of a channel, as many as Inductor makes."""
    wide = [one for one in tensors if one.shape == values.result[0]]
    out = torch.empty_like(wide[0], dtype=getattr(torch, values.result[2]))
    first = _one_pass(wide, out)
    if not is_divided:
        return first
    second = _one_pass([out, *wide[1:]][:2], torch.empty_like(out))

    def both() -> None:
        first()
        second()

    return both


def _one_pass(wide: Sequence[Tensor], out: Tensor) -> Callable[[], object]:
    if len(wide) == 1:
        return partial(torch.clamp_min, wide[0], 0.0, out=out)
    if len(wide) == 2:
        return partial(torch.add, *wide, out=out)
    return partial(torch.addcmul, *wide[:3], out=out)

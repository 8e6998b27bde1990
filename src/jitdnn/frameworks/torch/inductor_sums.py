"""Sums of normalizations in Inductor's graphs on a GPU: `jitdnn::channel_sums` (channel_sums.py).

The statistics of a batch, instance or group normalization, and the sums in its gradient, are sums over pixels of what
pointwise operators make of a few tensors in memory. Ours read these and compute that in passing. What else reads the
pointwise results, the pass that makes the normalization's result or gradient, is the only one then, and Inductor
computes them there in place of writing them down.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from math import prod
from typing import Any

import torch
from torch import Tensor
from torch.fx import Graph, Node

from jitdnn.frameworks.torch import choice, inductor_lowering
from jitdnn.frameworks.torch.channel_sums import MOMENTS, SUM, Sums, channel_sums
from jitdnn.frameworks.torch.inductor_forms import follows, has_static_form, is_on_gpu, measuring
from jitdnn.frameworks.torch.inductor_formulas import (
    FLOATS,
    LEAST_BYTES,
    MOST_OPERANDS,
    WORTH_A_CALL,
    Cut,
    Formula,
    Operand,
    Reader,
    compiled_ahead,
    forms_of,
    orders_of,
    places_of,
    put_operands,
    reals,
    shape_below,
)
from jitdnn.frameworks.torch.inductor_rewriting import refresh
from jitdnn.frameworks.torch.options import handle_of, parse
from jitdnn.frameworks.torch.tail import CAST

aten = torch.ops.aten
_KINDS = {aten.sum.dim_IntList: SUM, aten.var_mean.correction: MOMENTS}
_LEAST_PIXELS = 64
_MOST_APART = 3  # reductions between two that are taken together
#: readers of what is normalized: the statistics and the result; in the gradient both sums, and dx
_READERS = {MOMENTS: 2, SUM: 3}


@dataclass
class _Reduction:
    """A reduction: a node, of which formula, and the axes of its operand.

    `head`: how many of them count the channels of all images; `reduced`: those of them that are summed over.
    """

    node: Node
    kind: str
    formula: Formula
    head: int
    reduced: tuple[int, ...]

    @property
    def frame(self) -> tuple[int, ...]:
        found: tuple[int, ...] = tuple(self.node.args[0].meta["val"].shape)
        return found

    @property
    def shape(self) -> tuple[int, ...]:
        return self.formula.shape

    @property
    def wide(self) -> set[Node]:
        return self.formula.wide

    @property
    def is_by_image(self) -> bool:
        """Whether the kernel leaves a number for each image: not where images are all that is summed beside pixels."""
        return not (self.frame == self.shape and self.reduced == (0,))


def sum_channels(graph: Graph, options: str, is_captured: bool = True) -> int:
    """Rewrite a graph in place, where ours are faster; how many reductions there were.

    `is_captured`: whether it runs as a CUDA graph; the host takes longer for ours than for Inductor's kernels.
    """
    least = LEAST_BYTES if is_captured else LEAST_BYTES * WORTH_A_CALL
    found = list(_groups(graph, least))
    if found:
        device = found[0][0].node.args[0].meta["val"].device
        compiled_ahead([_sums(group, options).step for group in found], device, options)
    count = 0
    for group in _groups(graph, least):
        if _become(graph, group, options):
            count += len(group)
    if count:
        graph.eliminate_dead_code()
    return count


def _groups(graph: Graph, least: int) -> Iterator[list[_Reduction]]:
    """Reductions that may be taken together, from the first of a graph on; those of a group may be gone behind it."""
    nodes = [node for node in graph.nodes if node.target in _KINDS]
    while nodes:
        near = [_reduction(node, least) for node in nodes[: 1 + _MOST_APART]]
        node, first = nodes.pop(0), near.pop(0)
        if first is None:
            continue
        # tensors that one of them reads, all may read
        beside = [one for one in near if one is not None and one.wide & first.wide]
        read = first.wide.union(*(one.wide for one in beside))
        group = [_reduction(node, least, read) or first]
        for one in beside:
            again = _reduction(one.node, least, read) or one
            if _belong(group, again):
                group.append(again)
        taken = {one.node for one in group}
        nodes = [node for node in nodes if node not in taken]
        yield group


def _belong(group: Sequence[_Reduction], one: _Reduction) -> bool:
    """Whether a reduction may be taken together with others: of the same pixels, and none before it in the graph."""
    first = group[0]
    if (first.shape, first.is_by_image, first.kind) != (
        one.shape,
        one.is_by_image,
        one.kind,
    ) or one.kind != SUM:
        return False
    wide = set().union(*(other.wide for other in group))
    if not (wide <= one.wide or one.wide <= wide) or len(wide | one.wide) > 4:
        return False
    return not follows([node for node, _ in one.formula.operands], {other.node for other in group})


def _reduction(node: Node, least: int, read: Collection[Node] = ()) -> _Reduction | None:
    """A reduction of a graph as formulas of tensors in memory; None for any other node. `read`: what others read."""
    kind = _KINDS.get(node.target) if node.op == "call_function" else None
    if kind is None or not node.args or not isinstance(node.args[0], Node) or not is_on_gpu(node.args[0]):
        return None
    value = node.args[0].meta.get("val")
    axes = node.args[1] if len(node.args) > 1 else None
    if not isinstance(value, Tensor) or not has_static_form(value) or not isinstance(axes, (list, tuple)):
        return None
    if kind == MOMENTS and (len(node.args) > 2 or node.kwargs.get("correction") != 0):
        return None
    if kind == SUM and (len(node.args) > 3 or set(node.kwargs) - {"dtype"} or value.dtype not in FLOATS):
        return None
    if kind == SUM and node.meta["val"].dtype not in FLOATS:
        return None
    shape = shape_below(node.args[0], value.numel())
    if shape is None:
        return None
    batch, channels, *space = shape
    head = next((at for at in range(value.dim() + 1) if prod(value.shape[:at]) == batch * channels), None)
    if head is None or prod(space) < _LEAST_PIXELS:
        return None
    axes = {axis % value.dim() for axis in axes}
    if any(extent > 1 and axis >= head and axis not in axes for axis, extent in enumerate(value.shape)):
        return None
    reduced = tuple(sorted(axis for axis in axes if axis < head and value.shape[axis] > 1))
    if all(value.shape[axis] == 1 for axis in axes if axis >= head):
        return None
    formula = Formula(shape)
    try:
        formula.last = Reader(formula, _READERS[kind], read).value(node.args[0])
    except Cut:
        return None
    bytes = sum(each.meta["val"].numel() * each.meta["val"].element_size() for each in formula.wide)
    if not formula.wide or len(formula.operands) > MOST_OPERANDS or bytes < least:
        return None
    return _Reduction(node, kind, formula, head, reduced)


def _sums(group: Sequence[_Reduction], options: str) -> Sums:
    """What some reductions are together."""
    places = places_of(one.formula for one in group)
    results = tuple((one.kind, one.formula.text(places)) for one in group)
    return Sums(forms_of(places, group[0].shape), group[0].is_by_image, results, options)


def _become(graph: Graph, group: Sequence[_Reduction], options: str) -> bool:
    """Put one call in the place of some reductions, if it is faster."""
    places = places_of(one.formula for one in group)
    if len(orders_of(places)) > 1:
        return False
    sums = _sums(group, options)
    if not _is_faster(sums, str(sums), options, places):
        return False
    _take_together(graph, group, sums)
    return True


def moments_left(graph: Graph, options: str) -> list[tuple[Sums, Node, Callable[[], Node]]]:
    """Moments that are Inductor's still, of a call's result as it is: as a sum, of which node, and what makes a call of
    them."""
    found: list[tuple[Sums, Node, Callable[[], Node]]] = []
    for group in _groups(graph, LEAST_BYTES):
        (operand, *others), sums = places_of(one.formula for one in group), _sums(group, options)
        if sums.results[0][0] == MOMENTS and not others and operand[1] is None:
            found.append((sums, operand[0], partial(_take_together, graph, group, sums)))
    return found


def _take_together(graph: Graph, group: Sequence[_Reduction], sums: Sums) -> Node:
    """Put one call in the place of some reductions."""
    places, first = places_of(one.formula for one in group), group[0]
    order = {node: number for number, node in enumerate(graph.nodes)}
    place = order[first.node]
    with graph.inserting_before(first.node):
        operands = put_operands(graph, places, sums.forms)
        made = _call(graph, channel_sums.default, operands, str(sums))
        row = 0
        for one in group:
            row = _take(graph, one, made, row)
    for one in group:
        for user in list(one.node.users):
            graph.erase_node(user)
        graph.erase_node(one.node)
    if any(order[node] > place for node, _ in places):
        from torch._inductor.pattern_matcher import stable_topological_sort

        stable_topological_sort(graph)
    return made


def _call(graph: Graph, target: Any, *arguments: Any) -> Node:
    made = graph.call_function(target, arguments)
    refresh(made)
    return made


def _take(graph: Graph, one: _Reduction, made: Node, row: int) -> int:
    """Have whoever reads a reduction read rows of the call's result; the next row."""

    def part(number: int) -> Node:
        found = _call(graph, aten.select.int, made, 0, number)
        return _call(
            graph,
            aten.reshape.default,
            found,
            list(one.frame[: one.head]) if one.is_by_image else [one.shape[1]],
        )

    axes = list(one.reduced)
    if one.kind == SUM:
        total = part(row)
        if axes and one.is_by_image:
            total = _call(graph, aten.sum.dim_IntList, total, axes, True)
        total = _call(graph, aten.reshape.default, total, list(one.node.meta["val"].shape))
        if total.meta["val"].dtype != one.node.meta["val"].dtype:
            total = _call(graph, CAST, total, one.node.meta["val"].dtype)
        one.node.replace_all_uses_with(total)
        return row + 1
    mean, variance = part(row), part(row + 1)
    if axes and one.is_by_image:  # channels of a group, all of as many pixels
        own = mean
        mean = _call(graph, aten.mean.dim, own, axes, True)
        apart = _call(graph, aten.sub.Tensor, own, mean)
        squares = _call(graph, aten.mul.Tensor, apart, apart)
        variance = _call(graph, aten.mean.dim, _call(graph, aten.add.Tensor, variance, squares), axes, True)
    for user in list(one.node.users):
        found = variance if user.args[1] == 0 else mean
        found = _call(graph, aten.reshape.default, found, list(user.meta["val"].shape))
        if found.meta["val"].dtype != user.meta["val"].dtype:
            found = _call(graph, CAST, found, user.meta["val"].dtype)
        user.replace_all_uses_with(found)
    return row + 2


def _is_faster(sums: Sums, text: str, options: str, places: Collection[Operand]) -> bool:
    try:
        with measuring(True):
            tensors = reals(places, sums.forms)
            ways = inductor_lowering.sums_call(tensors, text), _stock(sums, tensors)
            device = tensors[0].device
            decision = choice.decide(
                f"torch sums {text}", handle_of(options, device.type), device, parse(options).measure, *ways
            )
    except torch.OutOfMemoryError:
        return False
    return decision.is_ours


def _stock(sums: Sums, tensors: Sequence[Tensor]) -> Callable[[], Any]:
    """Sums of the same bytes."""
    wide = [one for one in tensors if one.shape == sums.shape]
    return lambda: [one.sum(sums.axes, dtype=torch.float32) for one in wide]

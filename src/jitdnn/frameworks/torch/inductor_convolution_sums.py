"""Sums of convolutions' results in Inductor's graphs on a GPU: `jitdnn::convolution_sums` (convolution_sums.py).

A batch, instance or group normalization behind a convolution reads its result once for the mean and the variance of
each channel, and once to normalize it; its gradient reads the gradient of the next convolution's data once for two
sums, and once more. Behind the other passes of ours all four are calls: here one takes the place of the convolution and
of the first of these reads, where it is faster than the two.
"""

from __future__ import annotations

import json
import operator
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch.fx import Graph, Node

from jitdnn.errors import InvalidArgument, JitdnnError
from jitdnn.frameworks.torch import choice, inductor_lowering
from jitdnn.frameworks.torch.channel_sums import MOMENTS, SUM, Sums, channel_sums
from jitdnn.frameworks.torch.convolution_sums import Summed, convolution_sums
from jitdnn.frameworks.torch.inductor_forms import follows, measuring, real
from jitdnn.frameworks.torch.inductor_rewriting import call_like
from jitdnn.frameworks.torch.inductor_sums import moments_left
from jitdnn.frameworks.torch.kinds import at
from jitdnn.frameworks.torch.options import handle_of, parse
from jitdnn.frameworks.torch.settled import forms_of_operands, settled_convolution
from jitdnn.handle import Handle
from jitdnn.ops.ahead import compile_ahead

aten = torch.ops.aten
_MOST_CHANNELS = 128
#: algorithms that add up results as they leave; others take as long for it as a pass over the results
_FREE = ("implicit_gemm_wgmma_in_boxes", "stem")
_SHORT = (torch.float16, torch.bfloat16)


@dataclass(frozen=True)
class _Pair:
    """A convolution or gradient, the call of the sums that read its result, what they read and their text, and what of
    it is not the result. `part`: the first of its channels, and how many, of which alone there are sums. `make`: makes
    the call, which there is not yet."""

    convolution: Node
    sums: Node | None
    reads: tuple[Node, ...]
    text: str
    operands: tuple[Node, ...]
    summed: Summed
    part: tuple[int, int] | None = None
    make: Callable[[], Node] | None = None


def sum_results(graph: Graph, options: str) -> int:
    """Rewrite a graph in place, where ours are faster; how many convolutions there were."""
    pairs = [*_pairs(graph), *_pairs_left(graph, options)]
    if not pairs:
        return 0
    device = pairs[0].convolution.meta["val"].device
    handle = handle_of(options, device.type)
    if device.type != "cpu":
        handle = at(device, handle)
        compile_ahead(handle, [partial(_is_free, one.summed, handle) for one in pairs])
    taken: set[Node] = set()
    for given in pairs:
        if given.convolution in taken or not _is_free(given.summed, handle):
            continue
        one = _now(given)
        if not follows(one.operands, {one.convolution}) and _is_faster(one, options):
            taken.add(one.convolution)
            _become(graph, one)
    if taken:
        from torch._inductor.pattern_matcher import stable_topological_sort

        stable_topological_sort(graph)
        graph.eliminate_dead_code()
    return len(taken)


def _now(one: _Pair) -> _Pair:
    """A pair with what its sums read now: calls that were put in the place of others may give that."""
    if one.sums is None:
        return one
    reads = tuple(one.sums.args[0])
    operands = tuple(node for place, node in enumerate(reads) if place != one.summed.place)
    return replace(one, reads=reads, operands=operands)


def _is_free(summed: Summed, handle: Handle) -> bool:
    """Whether one kernel does both, which adds up in registers."""
    if not summed.is_moments:
        return not isinstance(summed.kernel(handle), str)
    problem = summed.problem()
    try:
        plan = problem and handle.plan(problem)
        return bool(plan and plan.algorithm in _FREE)
    except JitdnnError:
        return False


def _pairs(graph: Graph) -> Iterator[_Pair]:
    for node in list(graph.nodes):
        if node.target is not channel_sums.default:
            continue
        operands, text = node.args
        sums = Sums.of(text)
        plain = _plain_sum(node, operands, sums) if len(operands) == 1 else None
        if plain is not None:
            yield plain
            continue
        for place, source in enumerate(operands):
            found = _pair(node, source, operands, sums, place)
            if found is not None:
                yield found
                break


def _pairs_left(graph: Graph, options: str) -> Iterator[_Pair]:
    """Moments that are Inductor's, since its own pass is as fast as ours."""
    for sums, source, make in moments_left(graph, options):
        found = _pair(None, source, [source], sums, 0)
        if found is not None:
            yield replace(found, make=make)


def _plain_sum(node: Node, operands: Sequence[Node], sums: Sums) -> _Pair | None:
    """The sum of a result, or of some of its channels: the gradient of the bias of a layer before."""
    (source,), part = operands, None
    if source.target is aten.slice.Tensor and source.args[1] == 1 and len(source.args) < 5:
        first, last = (*source.args[2:], 1 << 62)[:2] if len(source.args) > 2 else (0, 1 << 62)
        source, count = source.args[0], source.meta["val"].shape[1]
        part = (first, count)
        if not isinstance(first, int) or not isinstance(last, int) or first < 0 or last < first:
            return None
    if len(sums.results) != 1 or sums.results[0][0] != SUM or not _is_plain(sums.results[0][1]):
        return None
    value = source.meta.get("val")
    if source.target is not settled_convolution.default or source.args[2] is not None:
        return None
    form = tuple(value.shape), tuple(value.stride()), str(value.dtype).removeprefix("torch.")
    # two formulas are summed, here the same one
    whole = Sums((form,), sums.is_by_image, sums.results * 2, sums.options)
    found = _pair(node, source, [source], whole, 0)
    own = part or (0, value.shape[1])
    return found and replace(found, part=own, reads=tuple(operands), text=str(sums))


def _pair(node: Node | None, source: Node, operands: Sequence[Node], sums: Sums, place: int) -> _Pair | None:
    if source.target is not settled_convolution.default or source.args[2] is not None:
        return None
    value = source.meta["val"]
    # sums of squares tell a variance from nothing where the mean is far larger: in f32 that would be seen
    if value.dtype not in _SHORT or value.shape[1] > _MOST_CHANNELS or operands.count(source) > 1:
        return None
    kinds = [kind for kind, _ in sums.results]
    if kinds == [MOMENTS]:
        if len(operands) > 1 or not _is_plain(sums.results[0][1]):
            return None
        if node is not None and not all(map(_is_part, node.users)):
            return None
    elif kinds != [SUM, SUM]:
        return None
    others = tuple(one for number, one in enumerate(operands) if number != place)
    try:
        summed = Summed.of(str(Summed(source.args[3], sums, place)))
    except InvalidArgument:  # of a filter's gradient, or laid out for the sums
        return None
    problem = summed.convolution()
    if problem is None or follows(others, {source}):
        return None
    return _Pair(source, node, tuple(operands), str(sums), others, summed)


def _is_plain(steps: str) -> bool:
    """Whether a formula is its operand."""
    return all(name == "cast" for name, *_ in json.loads(steps))


def _is_part(user: Node) -> bool:
    return user.target is aten.select.int and user.args[1] == 0 and user.args[2] in (0, 1)


def _become(graph: Graph, one: _Pair) -> None:
    """Put one call in the place of both; nodes are no longer in the order of what they read then."""
    node, summed = one.convolution, one.summed
    made = partial(call_like, graph, node)
    if one.make is not None:
        one = replace(one, sums=one.make())
    assert one.sums is not None
    with graph.inserting_before(node):
        both = made(convolution_sums.default, *node.args[:2], list(one.operands), str(summed))
        y, sums = (made(operator.getitem, both, place) for place in range(2))
        if summed.is_moments:
            total, squares = (made(aten.select.int, sums, 0, row) for row in range(2))
            mean, square = (made(aten.mul.Tensor, each, 1.0 / summed.count) for each in (total, squares))
            variance = made(aten.sub.Tensor, square, made(aten.mul.Tensor, mean, mean))
            variance = made(aten.clamp_min.default, variance, 0.0)
    node.replace_all_uses_with(y)
    if summed.is_moments:
        for user in list(one.sums.users):
            user.replace_all_uses_with((mean, variance)[user.args[2]])
            graph.erase_node(user)
    elif one.part is not None:
        first, count = one.part
        with graph.inserting_before(node):
            sums = made(aten.slice.Tensor, made(aten.slice.Tensor, sums, 0, 0, 1), 2, first, first + count)
        one.sums.replace_all_uses_with(sums)
    else:
        one.sums.replace_all_uses_with(sums)
    graph.erase_node(one.sums)
    graph.erase_node(node)


def _is_faster(one: _Pair, options: str) -> bool:
    try:
        with measuring(True):
            forms = forms_of_operands(one.summed.own)
            a, w = (
                real(node.meta["val"], form[1])
                for node, form in zip(one.convolution.args[:2], forms, strict=True)
            )
            text, place, own = one.text, one.summed.place, str(one.summed)
            every = [
                real(node.meta["val"], strides)
                for node, (_, strides, _) in zip(one.reads, Sums.of(text).forms, strict=True)
            ]
            others = [*every[:place], *every[place + 1 :]]
            first = inductor_lowering.call(a, w, None, one.convolution.args[3])
            second = inductor_lowering.sums_call(every, text)
            both, device = inductor_lowering.convolution_sums_call(a, w, others, own), a.device
            decision = choice.decide(
                _kind(one), handle_of(options, device.type), device, parse(options).measure, both,
                _one_by_one(first, second),
            )  # fmt: skip
    except torch.OutOfMemoryError:
        return False
    return decision.is_ours


def _kind(one: _Pair) -> str:
    """What tells the times of a pair from others: of sums of some channels those are measured that are read."""
    part = "" if one.part is None else f" of {one.part[1]} channels from {one.part[0]} on"
    return f"torch convolution with sums {one.summed}{part}"


def _one_by_one(*calls: Callable[[], Any]) -> Callable[[], None]:
    def run() -> None:
        for one in calls:
            one()

    return run

"""Statistics of convolutions' results in Inductor's graphs on a GPU: `jitdnn::convolution_sums` (convolution_sums.py).

A batch, instance or group normalization behind a convolution reads its result once for the mean and the variance of
each channel, and once to normalize it. Behind the other passes of ours both are calls: here one takes the place of the
convolution and of the first of these reads, where it is faster than the two.
"""

from __future__ import annotations

import json
import operator
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from math import prod
from typing import Any

import torch
from torch.fx import Graph, Node

from jitdnn.errors import InvalidArgument, JitdnnError
from jitdnn.frameworks.torch import choice, inductor_lowering
from jitdnn.frameworks.torch.channel_sums import MOMENTS, Sums, channel_sums
from jitdnn.frameworks.torch.convolution_sums import call, convolution_sums, problem_of_text, text_of
from jitdnn.frameworks.torch.inductor_forms import measuring, real
from jitdnn.frameworks.torch.inductor_rewriting import refresh
from jitdnn.frameworks.torch.kinds import at
from jitdnn.frameworks.torch.options import handle_of, parse
from jitdnn.frameworks.torch.settled import settled_convolution
from jitdnn.handle import current_handle
from jitdnn.ops.ahead import compile_ahead
from jitdnn.problems.convolution_fused import FusedConvolution

aten = torch.ops.aten
_MOST_CHANNELS = 128
#: algorithms that add up results as they leave; others take as long for it as a pass over the results
_FREE = ("implicit_gemm_wgmma_in_boxes",)
_SHORT = (torch.float16, torch.bfloat16)


@dataclass(frozen=True)
class _Pair:
    """A convolution, and the moments of its results."""

    convolution: Node
    moments: Node
    count: int
    text: str
    problem: FusedConvolution


def sum_results(graph: Graph, options: str) -> int:
    """Rewrite a graph in place, where ours are faster; how many convolutions there were."""
    pairs = [one for one in _pairs(graph) if _may_gain(one.problem)]
    if not pairs:
        return 0
    device = pairs[0].convolution.meta["val"].device
    if device.type != "cpu":
        own = handle_of(options, device.type)
        compile_ahead(at(device, own), [partial(_plan, one.problem) for one in pairs])
    count = 0
    for one in pairs:
        if _is_one_kernel(one, options) and _is_faster(one, options):
            _become(graph, one)
            count += 1
    if count:
        graph.eliminate_dead_code()
    return count


def _plan(problem: FusedConvolution) -> object:
    return current_handle().plan(problem)


def _may_gain(problem: FusedConvolution) -> bool:
    """Whether sums may be nearly free, before a plan says it: of few channels whose sums stay in registers."""
    own = problem.convolution
    return own.k <= _MOST_CHANNELS and max(own.stride) == 1


def _is_one_kernel(one: _Pair, options: str) -> bool:
    device = one.convolution.meta["val"].device
    handle = handle_of(options, device.type)
    handle = handle if device.type == "cpu" else at(device, handle)
    try:
        return handle.plan(one.problem).algorithm in _FREE
    except JitdnnError:
        return False


def _pairs(graph: Graph) -> Iterator[_Pair]:
    for node in list(graph.nodes):
        if node.target is not channel_sums.default or len(node.args[0]) != 1:
            continue
        (source,), text = node.args
        if source.target is not settled_convolution.default or source.args[2] is not None:
            continue
        # sums of squares tell a variance from nothing where the mean is far larger: in f32 that would be seen
        if source.meta["val"].dtype not in _SHORT or not all(map(_is_part, node.users)):
            continue
        sums = Sums.of(text)
        if len(sums.results) != 1 or sums.results[0][0] != MOMENTS or not _is_plain(sums.results[0][1]):
            continue
        if tuple(source.meta["val"].shape) != sums.shape or source.meta["val"].stride() != sums.forms[0][1]:
            continue
        own = text_of(source.args[3], sums.is_by_image)
        try:
            problem = problem_of_text(own)
        except InvalidArgument:  # of a gradient
            continue
        if problem is not None:
            yield _Pair(source, node, prod(sums.shape[axis] for axis in sums.axes), own, problem)


def _is_plain(steps: str) -> bool:
    """Whether a formula is its operand."""
    return all(name == "cast" for name, *_ in json.loads(steps))


def _is_part(user: Node) -> bool:
    return user.target is aten.select.int and user.args[1] == 0 and user.args[2] in (0, 1)


def _become(graph: Graph, one: _Pair) -> None:
    node = one.convolution
    with graph.inserting_before(node):
        both = _call(graph, node, convolution_sums.default, *node.args[:2], one.text)
        y, sums = (_call(graph, node, operator.getitem, both, place) for place in range(2))
    node.replace_all_uses_with(y)
    with graph.inserting_before(one.moments):
        total, squares = (_call(graph, node, aten.select.int, sums, 0, row) for row in range(2))
        mean = _call(graph, node, aten.mul.Tensor, total, 1.0 / one.count)
        square = _call(graph, node, aten.mul.Tensor, mean, mean)
        variance = _call(graph, node, aten.mul.Tensor, squares, 1.0 / one.count)
        variance = _call(graph, node, aten.sub.Tensor, variance, square)
        variance = _call(graph, node, aten.clamp_min.default, variance, 0.0)
    for user in list(one.moments.users):
        user.replace_all_uses_with((mean, variance)[user.args[2]])
        graph.erase_node(user)
    graph.erase_node(one.moments)
    graph.erase_node(node)


def _call(graph: Graph, like: Node, target: Any, *arguments: Any) -> Node:
    made = graph.call_function(target, arguments)
    made.meta = {name: one for name, one in like.meta.items() if name != "val"}
    if target is operator.getitem:
        made.meta["val"] = arguments[0].meta["val"][arguments[1]]
    else:
        refresh(made)
    return made


def _is_faster(one: _Pair, options: str) -> bool:
    try:
        with measuring(True):
            x, w = (real(node.meta["val"]) for node in one.convolution.args[:2])
            y = real(one.convolution.meta["val"])
            first = inductor_lowering.call(x, w, None, one.convolution.args[3])
            second = inductor_lowering.sums_call([y], one.moments.args[1])

            def apart() -> None:
                first()
                second()

            ours, device = call(x, w, one.text), x.device
            decision = choice.decide(
                f"torch convolution and sums {one.text}", handle_of(options, device.type), device,
                parse(options).measure, ours, apart,
            )  # fmt: skip
    except torch.OutOfMemoryError:
        return False
    return decision.is_ours

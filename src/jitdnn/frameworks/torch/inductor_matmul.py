"""Products of float32 matrices in Inductor's graphs on a GPU, where PyTorch may not round to tf32.

Its own then multiply without the tensor cores. Ours are the product of a convolution of one tap or of one of its
gradients, whose rows are pixels, and have no larger error; where they are faster the graph calls them as it calls
convolutions. Half precision and tf32 stay PyTorch's.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.fx import Graph, Node

from jitdnn.frameworks.torch import choice, convolution, inductor_lowering, operators
from jitdnn.frameworks.torch.convolution import Geometry
from jitdnn.frameworks.torch.gpu_stretches import allowed_math
from jitdnn.frameworks.torch.inductor_forms import has_static_form, is_on_gpu, is_plain, measuring, real
from jitdnn.frameworks.torch.inductor_rewriting import call_like, refresh
from jitdnn.frameworks.torch.kinds import Kind, at, words
from jitdnn.frameworks.torch.options import Options, handle_of, parse
from jitdnn.frameworks.torch.progress import part, parts
from jitdnn.frameworks.torch.settled import text_of
from jitdnn.handle import current_handle
from jitdnn.kernels.algorithm import Epilogue
from jitdnn.ops.ahead import compile_ahead
from jitdnn.problems.problem import Problem

aten = torch.ops.aten
_GEOMETRY = ([1, 1], [0, 0], [1, 1], False, [0, 0], 1)


class _Product(NamedTuple):
    """A product of matrices a (M, K) and b (K, N) as one of a layer's, each of which lies by rows or by columns."""

    node: Node
    direction: str
    a: Node
    b: Node
    bias: Node | None


def take_products(graph: Graph, options: str) -> list[tuple[Node, Kind]]:
    """Rewrite a graph in place where ours are faster; says of every such product who runs it."""
    found = [one for node in graph.nodes if (one := _product_of(node)) is not None]
    kinds: list[tuple[Node, Kind]] = []
    if not found or allowed_math()[1] == "tf32":
        return kinds
    settled = str(Options("never", parse(options).settings))  # of what is chosen now, not at run time
    with measuring(True):
        _compile_ahead(found, options)
        with parts(len(found)):
            for one in found:
                try:
                    with part():
                        decision = _chosen(one, options, settled)
                except torch.OutOfMemoryError:
                    continue
                kinds.append((one.node, Kind(one.direction, decision, one.node.target)))
                if decision.is_ours:
                    _replace(graph, one, settled)
    return kinds


def _product_of(node: Node) -> _Product | None:
    """A node as a product that ours may take; None for any other."""
    if node.target is aten.mm.default and len(node.args) == 2 and not node.kwargs:
        (a, b), bias = node.args, None
    elif node.target is aten.addmm.default and len(node.args) == 3 and not node.kwargs:
        bias, a, b = node.args
    else:
        return None
    if not all(is_plain(one) and is_on_gpu(one) for one in (a, b, node)):
        return None
    values = [one.meta["val"] for one in (a, b, node)]
    if not all(has_static_form(one) and one.dtype is torch.float32 for one in values):
        return None
    if not values[2].is_contiguous() or (bias is not None and not _is_column(bias, values[2].shape[1])):
        return None
    by_rows = tuple(one.is_contiguous() for one in values[:2])
    by_columns = tuple(one.t().is_contiguous() for one in values[:2])
    if by_rows[0] and by_columns[1]:
        return _Product(node, "forward", a, b, bias)
    if bias is None and by_rows[0] and by_rows[1]:
        return _Product(node, "data", a, b, None)
    if bias is None and by_columns[0] and by_rows[1]:
        return _Product(node, "filter", a, b, None)
    return None


def _is_column(bias: Any, count: int) -> bool:
    if not is_plain(bias):
        return False
    value = bias.meta["val"]
    return tuple(value.shape) == (count,) and value.dtype is torch.float32 and value.stride() == (1,)


def _image(rows: Tensor) -> Tensor:
    """(M, K) as (1, K, M, 1), channels last."""
    return rows.reshape(1, rows.shape[0], 1, rows.shape[1]).permute(0, 3, 1, 2)


def _filter(rows: Tensor) -> Tensor:
    return rows.reshape(*rows.shape, 1, 1)


def _layer(direction: str, a: Tensor, b: Tensor, y: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """x, the filter and the result of the layer whose product it is."""
    if direction == "forward":
        return _image(a), _filter(b.t()), _image(y)
    return (
        (_image(y), _filter(b), _image(a)) if direction == "data" else (_image(b), _filter(y), _image(a.t()))
    )


def _operands(direction: str, x: Any, w: Any, y: Any) -> tuple[Any, Any]:
    """What a call of ours reads."""
    return {"forward": (x, w), "data": (y, w), "filter": (x, y)}[direction]


def _forms(one: _Product) -> tuple[Tensor, Tensor, Tensor]:
    a, b, y = (
        torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device="meta")
        for value in (node.meta["val"] for node in (one.a, one.b, one.node))
    )
    return _layer(one.direction, a, b, y)


def _text(one: _Product, forms: Sequence[Tensor], options: str) -> str:
    x, w, y = forms
    return text_of(one.direction, x, w, y, one.bias is not None, _GEOMETRY, options)


def _compile_ahead(found: Sequence[_Product], options: str) -> None:
    """Compile what ours need, several modules at once."""
    plans: dict[torch.device, list[Callable[[], object]]] = {}
    geometry = Geometry.of(2, *_GEOMETRY)
    for one in found:
        x, w, y = _forms(one)
        problem = convolution.problem_of(one.direction, x, w, y, geometry)
        device = one.node.meta["val"].device
        if problem is not None and device.type != "cpu":
            epilogue = convolution.bias_epilogue(problem, one.bias is not None)
            plans.setdefault(device, []).append(partial(_plan, problem, epilogue))
    for device, calls in plans.items():
        with part():
            compile_ahead(at(device, handle_of(options, device.type)), calls)


def _plan(problem: Problem, epilogue: Epilogue | None) -> object:
    """The plan of a problem by the handle in force."""
    return current_handle().plan(problem, None, epilogue)


def _chosen(one: _Product, options: str, settled: str) -> choice.Decision:
    """Who runs a product."""
    a, b, *bias = (real(node.meta["val"]) for node in (one.a, one.b, one.bias) if node is not None)
    y = torch.empty(one.node.meta["val"].shape, device="meta")
    first, second = _operands(one.direction, *_layer(one.direction, a, b, y))
    text = _text(one, _forms(one), settled)
    ours = inductor_lowering.call(first, second, bias[0] if bias else None, text)

    def stock() -> Any:
        return aten.addmm.default(bias[0], a, b) if bias else aten.mm.default(a, b)

    kind = f"torch product in a compiled graph {words((a, b))} {len(bias)} {options}"
    decision = choice.decide(
        kind, handle_of(options, a.device.type), a.device, parse(options).measure, ours, stock
    )
    for pending in decision.waits_for:
        pending.wait()
    if decision.waits_for:
        decision = choice.decide(
            kind, handle_of(options, a.device.type), a.device, parse(options).measure, ours, stock
        )
    return decision


def _replace(graph: Graph, one: _Product, options: str) -> None:
    node = one.node

    call = partial(call_like, graph, node)

    def rows(of: Node, is_turned: bool) -> Node:
        return call(aten.permute.default, of, [1, 0]) if is_turned else of

    def image(of: Node) -> Node:
        count, channels = of.meta["val"].shape
        return call(
            aten.permute.default, call(aten.reshape.default, of, [1, count, 1, channels]), [0, 3, 1, 2]
        )

    def filters(of: Node) -> Node:
        return call(aten.reshape.default, of, [*of.meta["val"].shape, 1, 1])

    with graph.inserting_before(node):
        if one.direction == "forward":
            operands = image(one.a), filters(rows(one.b, True))
        elif one.direction == "data":
            operands = image(one.a), filters(one.b)
        else:
            operands = image(one.b), image(rows(one.a, True))
        text = _text(one, _forms(one), options)
        made = call(operators.settled_convolution.default, *operands, one.bias, text)
        if one.direction != "filter":
            made = call(aten.permute.default, made, [0, 2, 3, 1])
    # it keeps its name: Inductor knows outputs by theirs
    node.target, node.args = aten.reshape.default, (made, list(node.meta["val"].shape))
    refresh(node)

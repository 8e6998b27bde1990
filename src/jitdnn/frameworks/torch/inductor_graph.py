"""A graph of Inductor's after the partition into forward and backward: convolutions and their gradients become ours.

Each is measured beside torch's kernel, once, on operands of its shapes, strides and types; where ours does not win the
node stays Inductor's. So does all that is no convolution. Pointwise operators behind a convolution join it where that
saves a pass over memory; in a frozen graph the filter is a constant, and what is prepared of it is kept.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.fx import Graph, Node

from jitdnn.errors import InvalidArgument, NotSupported
from jitdnn.frameworks.torch import (
    choice,
    convolution,
    convolution_pointwise,
    inductor_lowering,
    operators,
)
from jitdnn.frameworks.torch.choice import Decision
from jitdnn.frameworks.torch.inductor_forms import (
    are_numbers,
    has_static_form,
    is_convolution,
    is_on_gpu,
    is_plain,
    lie_alike,
    measuring,
    real,
    wants_last,
)
from jitdnn.frameworks.torch.inductor_host import left_to_torch, taken_from_torch
from jitdnn.frameworks.torch.inductor_nodes import (
    Call,
    call_of,
    has_channels_innermost,
    has_torch_the_bias,
    orders_of,
    says_last,
    sequences_like,
    strides_of,
)
from jitdnn.frameworks.torch.inductor_rewriting import (
    become,
    dense,
    laid_out,
    may_save_otherwise,
    refresh,
    save_as_laid,
    sum_by_channel,
)
from jitdnn.frameworks.torch.inductor_tail import Tail, saves_a_pass, tail_of
from jitdnn.frameworks.torch.kernels import channels_last_strides
from jitdnn.frameworks.torch.kinds import Computation, Kind, Way, at, words
from jitdnn.frameworks.torch.options import Options, handle_of, parse
from jitdnn.frameworks.torch.progress import part, parts
from jitdnn.frameworks.torch.settled import text_of
from jitdnn.handle import current_handle
from jitdnn.kernels.algorithm import Epilogue
from jitdnn.ops.ahead import compile_ahead
from jitdnn.problems.problem import Problem

aten = torch.ops.aten
_GRAPH = "called in a compiled graph"  # of the times of calls as Inductor makes them
_FOR_THE_HOST = "left to torch, whose calls cost the host less"
_TAKEN = "nearly as fast, and costs the host less"
_BIAS = 2  # the place of its gradient


class Rewriter:
    """Rewrites one graph in place; `kinds` then says of every convolution who runs it, `wants_last` whether Inductor
    lays images out with channels last in it.

    `options`: the text of options.py. On a GPU the kernels' time decides. `is_captured`: whether the graph runs as a
    CUDA graph; where not, the calls that it makes for its convolutions never cost the host more than torch's did.
    """

    def __init__(self, graph: Graph, options: str, is_captured: bool) -> None:
        self.kinds: list[tuple[Node, Kind]] = []
        self._graph, self._options, self._is_captured = graph, options, is_captured
        own = parse(options)
        self._settled = str(Options("never", own.settings))  # of what is chosen now, not at run time
        self._module = graph.owning_module
        self.wants_last = wants_last(graph)
        self._may_save_otherwise = may_save_otherwise()
        self._only_looks = False
        #: nodes that stay torch's, for the sake of the host
        self._left: set[Node] = set()
        #: nodes that are ours altogether, for its sake
        self._taken: set[Node] = set()
        #: while it is only asked what ours would need: what makes the plans on each device
        self._plans: dict[torch.device, list[Callable[[], object]]] | None = None

    def run(self) -> None:
        """Measure and replace. Raises DeviceError for what the device reports, nothing for what ours refuses."""
        self._compile_ahead()
        if any(is_on_gpu(node) for node in self._graph.nodes):
            if not self._is_captured:
                self._leave()
            with measuring(True):
                self._visit()
        else:
            with measuring(False):
                self._visit()

    def _visit(self) -> None:
        nodes = [
            node
            for node in self._graph.nodes
            if node.op == "call_function" and is_convolution(node) and node not in self._left
        ]
        with parts(len(nodes)):
            for node in nodes:
                with part():
                    if node.target is aten.convolution_backward.default:
                        self._backward(node)
                    elif (call := call_of(node, self._module)) is not None:
                        self._forward(node, call)

    def _compile_ahead(self) -> None:
        """Compile what ours need on a GPU for all convolutions of this graph, several modules at once: measured one
        after the other each would wait for its own compiler."""
        if not any(is_on_gpu(node) for node in self._graph.nodes):
            return
        plans: dict[torch.device, list[Callable[[], object]]] = {}
        self._only_looks, self._plans = True, plans
        try:
            with measuring(True):
                self._visit()
        finally:
            self._plans, self._only_looks = None, False
            self.kinds.clear()
        for device, calls in plans.items():
            with part():
                compile_ahead(at(device, handle_of(self._options, device.type)), calls)

    def _leave(self) -> None:
        """Choose by the GPU's time; take what costs it little and the host less, leave what costs the host more."""
        self._only_looks = True
        try:
            with measuring(True):
                self._visit()
        finally:
            self._only_looks = False
        self._taken = taken_from_torch([(node, kind.decision) for node, kind in self.kinds])
        self._left = left_to_torch([(node, self._as_taken(node, kind).decision) for node, kind in self.kinds])
        self.kinds = [
            (node, replace(kind, decision=replace(kind.decision, is_ours=False, reason=_FOR_THE_HOST)))
            for node, kind in self.kinds
            if node in self._left
        ]

    def _as_taken(self, node: Node, kind: Kind) -> Kind:
        """A choice, which is ours where all of the node is."""
        if node not in self._taken or kind.decision.is_ours:
            return kind
        return replace(kind, decision=replace(kind.decision, is_ours=True, reason=_TAKEN))

    def _forward(self, node: Node, call: Call) -> None:
        is_static = all(has_static_form(one.meta["val"]) for one in (call.x, call.w))
        weight = None if call.weight is not None else call.w
        as_torch = [one and strides_of(node, one, self.wants_last) for one in (call.x, weight)]
        laid, result = as_torch, None
        try:
            by_torch = operands = [
                None if one is None else real(one.meta["val"], strides)
                for one, strides in zip((call.x, weight, call.bias), (*as_torch, None), strict=True)
            ]
            if self._may_lie_otherwise(call, weight):
                laid, result = [None, as_torch[1]], sequences_like(node.meta["val"])
                operands = [real(call.x.meta["val"]).copy_(by_torch[0]), *by_torch[1:]]
            elif weight is not None and self._lies_last(node, call):
                result = torch.empty_like(node.meta["val"], device="meta")
            kind, tail = self._choice(node, call, operands, is_static, by_torch, result)
        except (torch.OutOfMemoryError, InvalidArgument, NotSupported):
            return  # as it was: no room for a second set of operands, or a tail that ours cannot say
        self.kinds.append((node, kind))
        if self._only_looks or not kind.decision.is_ours:
            return
        options = self._settled if is_static else self._options
        if tail is None:
            x, w = (laid_out(self._graph, node, *one) for one in zip((call.x, call.w), laid, strict=True))
            if self._may_save_otherwise:
                save_as_laid(self._graph, call.x, x)
            if is_static and not call.is_transposed:
                has_bias = call.bias is not None
                text = self._text("forward", operands[0], operands[1], result, has_bias, call.geometry)
                become(node, operators.settled_convolution.default, (x, w, call.bias, text))
                return
            arguments = (x, w, call.bias, *call.geometry, options)
            become(node, operators.convolution.default, arguments)
            return
        last = tail.steps[-1] if tail.steps else node
        x = laid_out(self._graph, last, call.x, as_torch[0])
        w = (
            laid_out(self._graph, last, call.w, as_torch[1])
            if call.weight is None
            else dense(self._graph, last, call.w, call.weight, call.x.meta["val"].fake_mode)
        )
        arguments = (
            x, w, list(tail.operands), *call.pointwise_geometry, tail.text, call.weight is not None, options,
        )  # fmt: skip
        become(last, operators.convolution_pointwise.default, arguments)
        for inner in reversed((node, *tail.steps)):
            if inner is not last:
                self._graph.erase_node(inner)

    def _may_lie_otherwise(self, call: Call, weight: Node | None) -> bool:
        """Whether ours may have x, and the result, with channels innermost where torch's have them first: in training,
        where nothing that follows would join a convolution."""
        if weight is None or call.is_transposed or not has_static_form(weight.meta["val"]):
            return False
        return has_channels_innermost(call.x) and self._is_of_training

    def _lies_last(self, node: Node, call: Call) -> bool:
        """Whether the graph has a result with channels last, where ours would have them first: in training."""
        value, w = node.meta["val"], call.w.meta["val"]
        if call.is_transposed or not all(map(has_static_form, (value, w))) or not says_last(w):
            return False
        is_first = convolution.memory_format(call.x.meta["val"], w) is torch.contiguous_format
        return is_first and value.stride() == channels_last_strides(value.shape) and self._is_of_training

    @property
    def _is_of_training(self) -> bool:
        names = (one.name for one in self._graph.nodes if one.op == "placeholder")
        return any(name.startswith("primals_") for name in names)

    def _choice(
        self,
        node: Node,
        call: Call,
        operands: Sequence[Tensor | None],
        is_static: bool,
        of_torch: Sequence[Tensor | None],
        result: Tensor | None,
    ) -> tuple[Kind, Tail | None]:
        """Who runs a convolution, and which operators behind it ours take with it; None for our plain operator.

        `of_torch`: the operands as torch's kernel has them; `result`: how ours is to lie, if otherwise than torch's.
        """
        x, w, bias = operands
        assert x is not None
        has_tail = is_static and not call.is_transposed and result is None
        if call.weight is None:
            given = (x, w, bias, *call.geometry)
            way = Way(_GRAPH, lambda: operators.convolution.default(*given, self._settled))
            if is_static and not call.is_transposed:
                assert w is not None
                text = self._text("forward", x, w, result, bias is not None, call.geometry)
                name = _GRAPH if result is None else f"{_GRAPH}, torch's on {words(tuple(of_torch[:2]))}"
                way = Way(name, inductor_lowering.call(x, w, bias, text))
            by_torch = (*of_torch[:2], bias if has_torch_the_bias(node) else None)
            way = replace(way, stock=lambda: call.stock(*by_torch))
            plain = self._as_taken(node, self._chosen(convolution.computation, given, way))

            def best() -> Any:
                return way.ours() if plain.decision.is_ours else call.stock(*by_torch)

            tail = tail_of(node, call.bias) if has_tail else None
            if tail is None or not tail.steps:
                return plain, None
            kind = self._with_tail(node, call, tail, (x, w, *call.pointwise_geometry), best)
            return (kind, tail) if kind.decision.is_ours else (plain, None)

        def packed() -> Any:
            return call.stock(x, w, bias)

        bare = tail_of(node, call.bias, most=0)
        if not has_tail:
            refusal = Decision(
                False, "refused: a constant filter of a transposed convolution, or of symbolic shapes"
            )
            return Kind("forward", refusal, call.stock), bare
        tail = tail_of(node, call.bias)
        arguments = (x, call.weight, *call.pointwise_geometry)
        kind = self._with_tail(node, call, tail, arguments, packed)
        if tail.steps and not kind.decision.is_ours:
            return self._with_tail(node, call, bare, arguments, packed), bare
        return kind, tail

    def _with_tail(
        self, node: Node, call: Call, tail: Tail, arguments: tuple[Any, ...], best: Callable[[], Any]
    ) -> Kind:
        """The choice between our operator with a tail, and the best without: what Inductor does of the tail is a pass
        over the result, with one operand that is as large, where something reads it from memory."""
        reals = [real(one.meta["val"]) for one in tail.operands]
        if self._plans is not None:
            planned = convolution_pointwise.planned(arguments, tail.text, reals)
            if planned is not None:
                self._plans.setdefault(arguments[0].device, []).append(partial(_plan, *planned))
            return Kind("forward", Decision(False, "not chosen yet"), call.stock)
        last = tail.steps[-1] if tail.steps else node
        y = best()
        wide = [one for one in reals if one.numel() == y.numel()]
        out = torch.empty_like(y) if tail.steps and saves_a_pass(last) else None

        def stock() -> Any:
            made = best()
            if out is not None and wide:
                torch.add(made, wide[0].view(made.shape), out=out)
            elif out is not None:
                torch.clamp_min(made, 0.0, out=out)
            return made

        is_constant = call.weight is not None
        given = (*arguments, tail.text, is_constant, *reals)
        x, w, *geometry = arguments

        end = (*geometry, tail.text, is_constant, self._settled)
        assert w is not None
        ours = inductor_lowering.pointwise_call(x, w, reals, end)
        name = f"{_GRAPH}{' packed' if is_constant else ''}{'' if out is None else ' and a pass'}"
        return self._chosen(convolution_pointwise.computation, given, Way(name, ours, stock))

    def _chosen(self, computation: Computation, operands: tuple[Any, ...], way: Way) -> Kind:
        """The choice for operands, when what is being compiled for it is ready."""
        if self._plans is not None:
            found = computation.problem(self._options, operands)
            if found is not None:
                problem, has_bias = found
                plan = partial(_plan, problem, convolution.bias_epilogue(problem, has_bias))
                self._plans.setdefault(operands[0].device, []).append(plan)
            return Kind(computation.name, Decision(False, "not chosen yet"), computation)
        kind = computation.choose(self._options, operands, way)
        for pending in kind.decision.waits_for:
            pending.wait()
        return computation.choose(self._options, operands, way) if kind.decision.waits_for else kind

    def _backward(self, node: Node) -> None:
        if len(node.args) != 11 or node.kwargs:
            return
        dy, x, w, _, *geometry, mask = node.args
        if not all(is_plain(one) for one in (dy, x, w)) or not are_numbers(geometry):
            return
        values = [one.meta["val"] for one in (dy, x, w)]
        if len({(value.dtype, value.device) for value in values}) > 1 or not 3 <= values[0].dim() <= 5:
            return
        if any(user.target is not operator.getitem for user in node.users):
            return
        results = {user.args[1]: user for user in node.users}
        if len(results) < len(node.users):
            return  # the same one is taken twice
        wanted = [place for place in range(len(convolution.GRADIENTS)) if mask[place] and place in results]
        try:
            is_settled = all(map(has_static_form, values)) and not geometry[3]
            laid, as_torch = orders_of(node, self.wants_last, is_settled)
            operands = (*(real(*one) for one in zip(values, laid, strict=True)), *geometry)
            by_torch, name = operands, _GRAPH
            if as_torch != laid:
                by_torch = (*(real(*one) for one in zip(values, as_torch, strict=True)), *geometry)
                name = f"{_GRAPH}, torch's on {words(by_torch[:3])}"
            chosen = {
                place: self._chosen(
                    convolution.GRADIENTS[place],
                    operands,
                    Way(
                        name, self._gradient(place, operands, is_settled), _by_torch(by_torch, _mask([place]))
                    ),
                )
                for place in wanted
                if place != _BIAS
            }
            chosen = {place: self._as_taken(node, kind) for place, kind in chosen.items()}
            ours = [place for place, kind in chosen.items() if kind.decision.is_ours]
            if len(chosen) > 1 and ours and not lie_alike(by_torch[:3]):
                together = self._together(ours, operands, by_torch, is_settled)
                if not together.is_ours:
                    chosen = {place: _left(kind, together) for place, kind in chosen.items()}
                    ours = []
            self.kinds.extend((node, kind) for kind in chosen.values())
        except torch.OutOfMemoryError:
            return
        if self._only_looks or not ours:
            return
        left = [place for place in wanted if place not in ours]
        with self._graph.inserting_before(node):
            if is_settled:
                nodes = [laid_out(self._graph, node, *one) for one in zip((dy, x, w), laid, strict=True)]
                self._replace_settled(ours, results, nodes, operands)
            else:
                arguments = (dy, x, w, *geometry, _mask(ours), self._options)
                self._replace(node, ours, results, arguments)
            if left == [_BIAS]:
                sum_by_channel(self._graph, dy, results[_BIAS])
                left = []
        # users of the old node stand behind it, and it behind the new ones
        if left:
            node.args = (*node.args[:-1], _mask(left))
            refresh(node)
        else:
            self._graph.erase_node(node)

    def _gradient(self, place: int, operands: tuple[Any, ...], is_settled: bool) -> Callable[[], Any]:
        """A call of ours of one gradient, as the graph would make it."""
        if not is_settled:
            mask = _mask([place])
            return lambda: operators.convolution_backward.default(*operands, mask, self._settled)
        dy, x, w, *geometry = operands
        direction = convolution.DIRECTIONS[1 + place]
        first, second = (dy, w) if place == 0 else (x, dy)
        text = self._text(direction, x, w, dy, False, geometry)
        return inductor_lowering.call(first, second, None, text)

    def _together(
        self, ours: Sequence[int], operands: tuple[Any, ...], by_torch: tuple[Any, ...], is_settled: bool
    ) -> Decision:
        """Whether gradients chosen one by one are faster than torch's one call for both, which lays operands that do
        not lie alike out once."""
        calls = [self._gradient(place, operands, is_settled) for place in ours]
        left = [place for place in range(_BIAS) if place not in ours]
        if left:
            calls.append(_by_torch(by_torch, _mask(left)))
        names = " and ".join(convolution.GRADIENTS[place].name for place in ours)
        return choice.decide(
            f"torch gradients {words(operands)} {names} {_GRAPH} {words(by_torch[:3])} {self._options}",
            handle_of(self._options, operands[0].device.type),
            operands[0].device,
            parse(self._options).measure,
            lambda: [call() for call in calls],
            _by_torch(by_torch, _mask(range(_BIAS))),
        )

    def _text(self, direction: str, x: Any, w: Any, dy: Any, has_bias: bool, geometry: Sequence[Any]) -> str:
        return text_of(direction, x, w, dy, has_bias, geometry, self._settled)

    def _replace_settled(
        self,
        places: Sequence[int],
        results: dict[int, Node],
        nodes: Sequence[Node],
        operands: tuple[Any, ...],
    ) -> None:
        """Take gradients from calls of ours, one each."""
        dy, x, w = nodes
        for place in places:
            first, second = (dy, w) if place == 0 else (x, dy)
            direction = convolution.DIRECTIONS[1 + place]
            text = self._text(direction, operands[1], operands[2], operands[0], False, operands[3:])
            made = self._graph.call_function(
                operators.settled_convolution.default, (first, second, None, text)
            )
            refresh(made)
            results[place].replace_all_uses_with(made)
            self._graph.erase_node(results[place])

    def _replace(
        self, node: Node, places: Sequence[int], results: dict[int, Node], arguments: tuple[Any, ...]
    ) -> None:
        """Take gradients from a call of ours."""
        made = self._graph.call_function(operators.convolution_backward.default, arguments)
        made.meta = dict(node.meta)
        refresh(made)
        for place in places:
            results[place].args = (made, place)
            results[place].meta["val"] = made.meta["val"][place]


def _plan(problem: Problem, epilogue: Epilogue | None) -> object:
    """The plan of a problem by the handle in force."""
    return current_handle().plan(problem, None, epilogue)


def _by_torch(operands: tuple[Any, ...], mask: list[bool]) -> Callable[[], Any]:
    """Torch's call of gradients, as short as Inductor's code makes it: it is told what the host takes for it."""
    dy, x, w, *geometry = operands
    function, bias = aten.convolution_backward.default, [dy.shape[1]]
    return lambda: function(dy, x, w, bias, *geometry, mask)


def _left(kind: Kind, together: Decision) -> Kind:
    """A gradient that torch computes together with the other one."""
    reason = f"{together.reason} than both gradients by torch's one call"
    if together.seconds is not None and together.stock_seconds is not None:
        reason += f" ({1e3 * together.seconds:.3f} and {1e3 * together.stock_seconds:.3f} ms)"
    return replace(kind, decision=replace(kind.decision, is_ours=False, reason=reason))


def _mask(places: Sequence[int]) -> list[bool]:
    return [place in places for place in range(len(convolution.GRADIENTS))]

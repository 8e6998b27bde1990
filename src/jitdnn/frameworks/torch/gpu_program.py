"""A captured graph by the engine of graphs on GPUs: what runs for one kind of inputs.

Stretches of nodes that have a translation (`gpu_operators.py`) are plans of `jitdnn.graph`: folded, fused, and captured
as CUDA graphs. PyTorch runs the others in between, on the same stream.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.fx import Graph, GraphModule, Node

from jitdnn import log
from jitdnn.errors import NotSupported
from jitdnn.frameworks.torch.fused_memory import Footprint
from jitdnn.frameworks.torch.gpu_operators import MOVING, kind_of
from jitdnn.frameworks.torch.gpu_rewriting import rewrite
from jitdnn.frameworks.torch.gpu_stretches import (
    Constants,
    Division,
    Stretch,
    divided,
    math_of,
    order_in_memory,
    to_array,
    to_tensor,
)
from jitdnn.frameworks.torch.graph import value
from jitdnn.frameworks.torch.options import parse
from jitdnn.frameworks.torch.program import caller
from jitdnn.frameworks.torch.progress import part, parts
from jitdnn.graph.engine import new_shared
from jitdnn.graph.gpu_plan import GpuPlan
from jitdnn.graph.handle import EngineHandle
from jitdnn.graph.lower.builder import Builder
from jitdnn.graph.lower.gpu import GpuBuilder
from jitdnn.graph.passes import optimized
from jitdnn.graph.passes.attention import with_attention
from jitdnn.graph.plan import Host, Plan
from jitdnn.graph.tracer import Tracer
from jitdnn.handle import find_device

aten = torch.ops.aten
MOST_BY_TORCH = 0.5
"""Of the operators that compute something: where more are PyTorch's it runs the whole graph."""


class Engines:
    """What programs of the same constants share: the handle, constants on the device, and what was prepared of them.

    `device`: a GPU by its name, `cuda:0`; None for the processor, on which tests run translations.
    """

    def __init__(self, device: str | None, options: str, captured: list[Any] | None = None) -> None:
        settings: dict[str, Any] = dict(parse(options).settings)
        settings.pop("threads", None)
        self.math = math_of(settings)
        if device is not None:
            settings |= {"device": find_device(device), "compile": "wait"}
        self.handle = EngineHandle(**settings)
        self.shared = new_shared(device is not None)
        self.arrays: dict[Any, Any] = {}
        #: programs whose launches are part of graphs that somebody captured, which read what they hold
        self.captured: list[Any] = [] if captured is None else captured


def division_of(traced: GraphModule, constants: int, options: str) -> Division:
    """How a captured graph would be divided, of which the first placeholders are constants."""
    graph = copy.deepcopy(traced.graph)
    rewrite(graph)
    placeholders = [node for node in graph.nodes if node.op == "placeholder"]
    known: dict[Node, Any] = {node: value(node) for node in placeholders[:constants]}
    for node in graph.nodes:
        if node.op == "get_attr" or (
            node.op == "call_function" and all(read in known for read in node.all_input_nodes)
        ):
            known[node] = value(node)
    return divided(graph, known, math_of(dict(parse(options).settings)))


def refusal_of(division: Division, most: float = MOST_BY_TORCH) -> str | None:
    """Why PyTorch runs the whole graph; None where at most this share of it is left to PyTorch."""
    ours = sum(node.target not in MOVING for stretch in division.stretches for node in stretch.nodes)
    theirs = sum(node.target not in MOVING for node in division.others)
    if ours and theirs <= most * (ours + theirs):
        return None
    reasons = "; ".join(f"{name}: {reason}" for name, reason in list(division.reasons.items())[:4])
    return f"{ours} of {ours + theirs} operators that compute something are covered on a GPU ({reasons})"


class GpuProgram:
    """A graph ready to run for inputs of the kind that it was made with: `traced`, whose placeholders are the
    constants, then the inputs.

    Raises NotSupported where too little of it can be translated.
    """

    def __init__(
        self, traced: GraphModule, constants: Sequence[Tensor], options: str, engines: Engines
    ) -> None:
        self._engines = engines
        graph = copy.deepcopy(traced.graph)
        rewrite(graph)
        placeholders = [node for node in graph.nodes if node.op == "placeholder"]
        given: dict[Node, Any] = dict(zip(placeholders, constants, strict=False))
        self._inputs = placeholders[len(given) :]
        for node in graph.nodes:
            if node.op == "get_attr":
                given[node] = getattr(traced, node.target)
        shared = engines.shared
        with torch.no_grad():
            known = Constants(graph, given, engines.arrays, shared.originals, caller_of)
        self.division, plans = self._planned(graph, known)
        (output,) = (node for node in graph.nodes if node.op == "output")
        held = output.args[0]
        self._results = list(held) if isinstance(held, (list, tuple)) else [held]
        self._steps: list[_Ours | _Theirs] = [
            _Ours(one, plans[id(one)]) if isinstance(one, Stretch) else _Theirs(one, known)
            for one in self.division.parts
        ]
        self._dropped = self._last_reads()
        self._known = {n: known.tensors[n] for n in self._results if isinstance(n, Node) and n in known}

    def _planned(self, graph: Graph, known: Constants) -> tuple[Division, dict[int, Any]]:
        """The division and the plan of each stretch; what the host would run is PyTorch's instead."""
        left: dict[Node, str] = {}
        while True:
            division = divided(graph, known.tensors, self._engines.math, left)
            refusal = refusal_of(division)
            if refusal is not None:
                raise NotSupported(refusal)
            for name, reason in division.reasons.items():
                log.fallback_once(
                    ("torch gpu", name, reason), f"{name} runs by PyTorch's own kernel: {reason}"
                )
            plans = {}
            before = len(left)
            with self._engines.shared.originals.making(), parts(len(division.stretches)):
                for stretch in division.stretches:
                    with part():
                        plan = plans[id(stretch)] = self._plan(stretch, known)
                    left |= _of_host(stretch, plan)
            if len(left) == before:
                return division, plans

    def _plan(self, stretch: Stretch, known: Constants) -> Any:
        engines, shared = self._engines, self._engines.shared
        handle = engines.handle
        tracer = Tracer(shared.memo, has_dot=handle.has_dot)
        values: dict[str, Any] = {}
        inputs = []
        for node in stretch.reads:
            held, order = value(node), order_in_memory(node)
            shape = tuple(held.shape[axis] for axis in order)
            inputs.append(tracer.input(shape, _dtype(node)))
            values[node.name] = inputs[-1].transpose(_inverse(order)) if order else inputs[-1]
        for node in stretch.nodes:
            for read in node.all_input_nodes:
                if read in known and read.name not in values:
                    values[read.name] = known.array(read)
        rest = tracer.run(stretch.steps, values)
        if rest is not None:
            raise NotSupported(f"{rest.step.title}: {rest.reason}")
        outputs = [
            values[node.name].transpose(order_in_memory(node)) if value(node).dim() else values[node.name]
            for node in stretch.makes
        ]
        graph = tracer.graph(inputs, outputs)
        if handle.has_attention:
            graph = with_attention(graph)
        graph = optimized(graph, shared.memo, handle.has_dot)
        if handle.on_gpu is None:
            return Plan(graph, Builder(graph, shared, handle))
        return GpuPlan(graph, GpuBuilder(graph, shared, handle))

    def _last_reads(self) -> list[list[Node]]:
        """Which values nobody reads after each step."""
        alive = {r for r in self._results if isinstance(r, Node)}
        found: list[list[Node]] = []
        for step in reversed(self._steps):
            found.append([read for read in dict.fromkeys(step.reads) if read not in alive])
            alive.update(step.reads)
        return found[::-1]

    def __call__(self, *inputs: Tensor) -> list[Any]:
        """The outputs of the graph, in memory of their own."""
        env: dict[Node, Any] = dict(zip(self._inputs, inputs, strict=True))
        for step, dropped in zip(self._steps, self._dropped, strict=True):
            step(env, self)
            for node in dropped:
                env.pop(node, None)
        return [self._result(node, env) for node in self._results]

    def _result(self, node: Any, env: dict[Node, Any]) -> Any:
        if not isinstance(node, Node):
            return node
        if node in self._known:
            return self._known[node].clone()
        return env[node].clone() if node in self._inputs else env[node]

    def capture(self) -> None:
        """Say that a call's launches have become part of somebody's graph."""
        if self not in self._engines.captured:
            self._engines.captured.append(self)

    @property
    def plans(self) -> list[Any]:
        """Those of the stretches."""
        return [step.plan for step in self._steps if isinstance(step, _Ours)]

    @property
    def footprint(self) -> Footprint:
        """What it takes on the GPU."""
        shared = self._engines.shared
        uploaded = sum(one.memory.size for _, one in getattr(shared, "_uploaded", {}).values())
        arena = max((plan.nbytes for plan in self.plans), default=0)
        results = sum(value(node).nbytes for step in self._steps for node in step.makes)
        return Footprint(uploaded, arena, 0, results)


def _dtype(node: Node) -> Any:
    """NumPy's dtype for a node's tensor."""
    kind = kind_of(node)
    if kind is None:
        raise NotSupported(f"{node.name} is no tensor that has elements")
    return kind.dtype


def _inverse(order: Sequence[int]) -> tuple[int, ...]:
    return tuple(order.index(axis) for axis in range(len(order)))


def _of_host(stretch: Stretch, plan: Any) -> dict[Node, str]:
    """The nodes of a stretch that the host would run, and why."""
    if not any(isinstance(step, Host) for step in plan._program):
        return {}
    by_title = {step.title: step.node for step in stretch.steps}
    found: dict[Node, str] = {}
    for event in plan.events:
        if event.host is not None:
            for title in event.node.origin:
                if title in by_title:
                    found[by_title[title]] = event.note or "the GPU has no kernels for it"
    if not found:
        raise NotSupported("the host would run a part of it")
    return found


def caller_of(node: Node) -> Callable[..., Any]:
    """A function of what a node reads, in order."""
    return caller(node, list(node.all_input_nodes))


class _Ours:
    """A stretch in a program."""

    def __init__(self, stretch: Stretch, plan: Any) -> None:
        self.reads, self.makes, self.plan = stretch.reads, stretch.makes, plan
        self._orders = [order_in_memory(node) for node in stretch.reads]
        self._plain = [order == tuple(range(len(order))) for order in self._orders]
        self._outputs = []
        for node in stretch.makes:
            held, order = value(node), order_in_memory(node)
            shape = tuple(held.shape[axis] for axis in order)
            back = None if order == tuple(range(len(order))) else _inverse(order)
            self._outputs.append((shape, held.dtype, back))

    def __call__(self, env: dict[Node, Any], program: GpuProgram) -> None:
        given = []
        for node, order, is_plain in zip(self.reads, self._orders, self._plain, strict=True):
            x = env[node]
            x = x if is_plain else x.permute(order)
            given.append(x if x.is_contiguous() and not x.is_neg() else x.contiguous().resolve_neg())
        if given and given[0].is_cuda:
            made = self._on_gpu(given, program)
        else:
            made = [to_tensor(one) for one in self.plan.run([to_array(x) for x in given])]
        for node, one, (_, _, back) in zip(self.makes, made, self._outputs, strict=True):
            env[node] = one if back is None else one.permute(back)

    def _on_gpu(self, given: Sequence[Tensor], program: GpuProgram) -> list[Tensor]:
        device = given[0].device
        made = [torch.empty(shape, dtype=dtype, device=device) for shape, dtype, _ in self._outputs]
        stream = torch._C._cuda_getCurrentRawStream(device.index)
        plan = self.plan
        inputs, outputs = [x.data_ptr() for x in given], [y.data_ptr() for y in made]
        if torch.cuda.is_current_stream_capturing():
            program.capture()
            given = [x if x.data_ptr() % 256 == 0 else x.clone() for x in given]
            inputs = [x.data_ptr() for x in given]
            arena = torch.empty(plan.arena_bytes, dtype=torch.uint8, device=device)
            plan.run_at_once(inputs, outputs, arena.data_ptr(), stream)
        else:
            plan.run_at(inputs, outputs, stream)
        return made


class _Theirs:
    """An operator of PyTorch's in a program."""

    def __init__(self, node: Node, known: Constants) -> None:
        self.node, self.makes = node, (node,)
        self.reads = [read for read in node.all_input_nodes if read not in known]
        call, own = caller_of(node), {r: known.tensors[r] for r in node.all_input_nodes if r in known}
        self._call, self._own, self._all = call, own, list(node.all_input_nodes)

    def __call__(self, env: dict[Node, Any], program: GpuProgram) -> None:
        own = self._own
        env[self.node] = self._call(*(own[r] if r in own else env[r] for r in self._all))

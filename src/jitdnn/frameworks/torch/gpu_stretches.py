"""A captured graph divided into what runs as a graph of `jitdnn.graph`, and operators of PyTorch's in between."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import FunctionType
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.fx import Graph, Node

from jitdnn.errors import JitdnnError
from jitdnn.frameworks.torch.gpu_operators import Kind, Translation, kind_of, translation_of
from jitdnn.frameworks.torch.graph import is_random, value
from jitdnn.frameworks.torch.kernels import is_dense
from jitdnn.graph.ir import AnyArray
from jitdnn.graph.operand import Operand, Untraceable, hollow
from jitdnn.graph.originals import Originals
from jitdnn.graph.tracer import Bodies, Tracer, operands_in
from jitdnn.graph.tracer import Kind as StepKind
from jitdnn.tensor import dtype_of, numpy_dtype

aten = torch.ops.aten
_FAILURES = (
    JitdnnError, Untraceable, ValueError, TypeError, IndexError, AttributeError, KeyError, ArithmeticError,
)  # fmt: skip
#: the operation whose flag says what float32 is computed in, by the operation or function of a node
_MATH = {"conv": "conv", "conv_transpose": "conv", "matmul": "matmul", "attention": "matmul"}


class NodeStep:
    """A node with a translation, as a step of a tracer. `math` says which arithmetic nodes of an operation may use."""

    is_pure = True

    def __init__(self, node: Node, kind: Kind, run: Translation, math: Mapping[str, str]) -> None:
        self.node, self._kind, self._run, self._math = node, kind, run, math
        self.title = f"{target_name(node)} {node.name!r}"
        self.reads = tuple(read.name for read in node.all_input_nodes)
        self.makes = (node.name,)

    def compute(self, values: Mapping[str, Any], bodies: Bodies | None = None) -> tuple[Any, ...]:
        """The result for named operands and arrays. Raises what the functions of operands raise."""

        def put(argument: Any) -> Any:
            if isinstance(argument, Node):
                return values[argument.name]
            if isinstance(argument, (list, tuple)):
                return [put(one) for one in argument]
            return argument

        args = [put(one) for one in self.node.args]
        kwargs = {name: put(one) for name, one in self.node.kwargs.items() if name not in _WHERE}
        tracer = next(operands_in([*args, *kwargs.values(), *(values[r] for r in self.reads)])).tracer
        before = len(tracer.nodes)
        result = self._run(self._kind, *args, **kwargs)
        for number, made in enumerate(tracer.nodes[before:], before):
            math = self._math.get(_MATH.get(made.attributes.get("name", made.op), ""))
            if math is not None:
                tracer.nodes[number] = made.replaced(attributes={"math": math})
        if not isinstance(result, Operand):
            raise Untraceable("a result that depends on constants alone")
        if result.shape != self._kind.shape or result.dtype != self._kind.dtype:
            raise Untraceable(f"a result of {result.dtype} {result.shape}, and PyTorch's is {self._kind}")
        return (result,)

    def kinds(self, values: Mapping[str, Any]) -> Sequence[StepKind | None] | None:
        """None: what cannot be traced is not run by the host."""
        return None


_WHERE = (
    "device",
    "layout",
    "pin_memory",
    "non_blocking",
    "memory_format",
    "enable_gqa",
    "return_debug_mask",
)


def target_name(node: Node) -> str:
    """The operator of a node in words."""
    target: Any = node.target
    return getattr(target, "__name__", str(target)) if isinstance(target, FunctionType) else str(target)


class Constants:
    """What of a graph is known: constants, and what follows from them alone, as tensors and as arrays of the host.

    `kept` has the arrays of all graphs of the same constants, by what they were made of.
    """

    def __init__(
        self, graph: Graph, given: Mapping[Node, Any], kept: dict[Any, AnyArray], originals: Originals,
        call: Callable[[Node], Callable[..., Any]],
    ) -> None:  # fmt: skip
        self.tensors: dict[Node, Any] = dict(given)
        self._kept, self._originals = kept, originals
        self._keys: dict[Node, Any] = {node: number for number, node in enumerate(given)}
        for node in graph.nodes:
            if node.op != "call_function" or is_random(node):
                continue
            if all(read in self.tensors for read in node.all_input_nodes):
                self.tensors[node] = call(node)(*(self.tensors[read] for read in node.all_input_nodes))
                reads = {read: f"%{self._keys[read]}" for read in node.all_input_nodes}
                self._keys[node] = (str(node.target), _words(node.args, reads), _words(node.kwargs, reads))

    def __contains__(self, node: Any) -> bool:
        return node in self.tensors

    def array(self, node: Node) -> AnyArray:
        """The elements in the memory of the host."""
        key = self._keys[node]
        found = self._kept.get(key)
        if found is None:
            tensor = self.tensors[node]
            found = self._kept[key] = to_array(tensor)
            if isinstance(key, int):  # the model has it anyway
                self._originals.add([found], lambda: [to_array(tensor)], is_sure=True)
        return found


def _words(held: Any, reads: Mapping[Node, str]) -> str:
    if isinstance(held, Node):
        return reads[held]
    if isinstance(held, (list, tuple)):
        return f"[{', '.join(_words(one, reads) for one in held)}]"
    if isinstance(held, dict):
        return ", ".join(f"{name}={_words(one, reads)}" for name, one in sorted(held.items()))
    return repr(held)


def to_array(tensor: Tensor) -> AnyArray:
    """A copy in the memory of the host, its axes in the same order in memory."""
    tensor = tensor.detach().resolve_neg()
    if tensor.dtype is torch.bfloat16:
        bits: AnyArray = tensor.view(torch.int16).cpu().clone().numpy()
        return bits.view(numpy_dtype("bf16"))
    array: AnyArray = tensor.cpu().clone().numpy()
    return array


def to_tensor(array: AnyArray) -> Tensor:
    """A tensor on the memory of an array of the host."""
    if array.dtype.name == "bfloat16":
        return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(array)


def _stand_in(tensor: Any) -> AnyArray:
    """An array that has the shape and type of a constant, of one element in memory."""
    if not isinstance(tensor, Tensor):
        raise Untraceable("a constant that is no tensor")
    return hollow(tuple(tensor.shape), numpy_dtype(dtype_of(tensor.dtype)))


@dataclass
class Stretch:
    """Nodes that run as one graph, in order; what they read of others and what others read of them."""

    nodes: list[Node]
    steps: list[NodeStep]
    reads: list[Node] = field(default_factory=list)
    makes: list[Node] = field(default_factory=list)


@dataclass
class Division:
    """Stretches, and single nodes of PyTorch's, in an order in which they can run. `reasons`: of those, by operator."""

    parts: list[Stretch | Node]
    reasons: dict[str, str]

    @property
    def stretches(self) -> list[Stretch]:
        """Those among the parts."""
        return [part for part in self.parts if isinstance(part, Stretch)]

    @property
    def others(self) -> list[Node]:
        """The nodes of PyTorch's."""
        return [part for part in self.parts if isinstance(part, Node)]


def divided(
    graph: Graph,
    constants: Mapping[Node, Any],
    math: Mapping[str, str],
    left: Mapping[Node, str] | None = None,
) -> Division:
    """Divide a graph by what can be translated; `left`: nodes that are PyTorch's in any case, with the reason."""
    left = left or {}
    tracer = Tracer()
    values: dict[str, Any] = {}
    steps: dict[Node, NodeStep] = {}
    reasons: dict[str, str] = {}
    level: dict[Node, int] = {}
    nodes = []
    for node in graph.nodes:
        if node.op == "output" or node in constants:
            continue
        kind = kind_of(node)
        if node.op == "placeholder":
            level[node] = 0
        else:
            nodes.append(node)
            step, reason = None, left.get(node)
            if reason is None:
                step, reason = _tried(node, kind, values, constants, math)
            reads = [read for read in node.all_input_nodes if read not in constants]
            # levels of PyTorch's nodes are even, those of stretches odd
            level[node] = max(
                (level[read] + ((level[read] % 2) != (step is not None)) for read in reads),
                default=int(step is not None),
            )
            if step is not None:
                steps[node] = step
                continue
            reasons.setdefault(target_name(node), reason or "")
        if kind is not None:
            values[node.name] = tracer.input(*kind)
    return Division(_parts(graph, nodes, steps, level, constants), reasons)


def _tried(
    node: Node,
    kind: Kind | None,
    values: dict[str, Any],
    constants: Mapping[Node, Any],
    math: Mapping[str, str],
) -> tuple[NodeStep | None, str | None]:
    """The step of a node, or why there is none. The result is put into `values`."""
    run = translation_of(node)
    if run is None:
        return None, "it has no translation"
    if kind is None:
        return None, "its result is no tensor that has elements, of a type that is covered"
    step = NodeStep(node, kind, run, math)
    try:
        read = {}
        for one in node.all_input_nodes:
            if one in constants:
                read[one.name] = _stand_in(constants[one])
            elif one.name in values:
                read[one.name] = values[one.name]
            else:
                return None, "an operand is no tensor that is covered"
        with np.errstate(all="ignore"):
            (values[node.name],) = step.compute(read)
    except _FAILURES as error:
        return None, str(error).splitlines()[0] if str(error) else type(error).__name__
    return step, None


def _parts(
    graph: Graph, nodes: Sequence[Node], steps: Mapping[Node, NodeStep], level: Mapping[Node, int],
    constants: Mapping[Node, Any],
) -> list[Stretch | Node]:  # fmt: skip
    (output,) = (node for node in graph.nodes if node.op == "output")
    leaving = set(output.all_input_nodes)
    parts: list[Stretch | Node] = []
    for number in sorted(set(level.values())):
        at = [node for node in nodes if level[node] == number]
        if number % 2 == 0:
            parts += at
            continue
        inside = set(at)
        reads = dict.fromkeys(
            read
            for node in at
            for read in node.all_input_nodes
            if read not in inside and read not in constants
        )
        makes = [node for node in at if node in leaving or any(user not in inside for user in node.users)]
        if makes:
            parts.append(Stretch(at, [steps[node] for node in at], list(reads), makes))
    return parts


def math_of(settings: Mapping[str, Any]) -> dict[str, str]:
    """The arithmetic of float32 by operation: as PyTorch's flags allow, unless an option says it."""
    if "math" in settings:
        return {}
    return dict(zip(("conv", "matmul"), allowed_math(), strict=True))


def allowed_math() -> tuple[str, str]:
    """What PyTorch's flags let convolutions and products of float32 be computed in: tf32 or fp32."""
    try:
        flags = torch._C._get_cudnn_allow_tf32(), torch._C._get_cublas_allow_tf32()
    except RuntimeError:  # they were set by the newer names, and not all alike
        conv, matmul = torch.backends.cudnn.conv, torch.backends.cuda.matmul
        flags = conv.fp32_precision == "tf32", matmul.fp32_precision == "tf32"
    return "tf32" if flags[0] else "fp32", "tf32" if flags[1] else "fp32"


def order_in_memory(node: Node) -> tuple[int, ...]:
    """The axes of a node's tensor from the outermost in memory to the innermost, where it is dense."""
    held = value(node)
    axes = range(held.dim())
    if not is_dense(held):
        return tuple(axes)
    return tuple(sorted(axes, key=lambda axis: (-held.stride(axis), -held.shape[axis], axis)))


__all__ = [
    "Constants", "Division", "NodeStep", "Stretch", "divided", "math_of", "order_in_memory", "target_name",
    "to_array", "to_tensor",
]  # fmt: skip

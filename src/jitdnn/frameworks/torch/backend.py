"""`torch.compile(model, backend="jitdnn")`: fused graphs without gradients, our convolutions in those with them.

A graph that needs no gradients runs as `fuse` runs it, prepared for each kind of inputs that comes; with symbolic
shapes the graph is compiled once and prepared at the first call of each shape. A graph with gradients is Inductor's
with our pass (inductor.py) where there is a C++ compiler; else AOTAutograd's in eager mode, with our convolutions. So
is one on a GPU for which Inductor's `mode` is given, or of which too much cannot be translated.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.fx import GraphModule

from jitdnn import log
from jitdnn.errors import JitdnnError, NotSupported
from jitdnn.frameworks.torch.fused import FusedFunction
from jitdnn.frameworks.torch.gpu_program import division_of, refusal_of
from jitdnn.frameworks.torch.options import Options, is_disabled

#: of a graph's operators on a GPU, what may be left to PyTorch's one by one: the rest Inductor would fuse
MOST_BY_TORCH = 0.1
_CONVOLUTIONS = {torch.conv1d: 1, torch.conv2d: 2, torch.conv3d: 3}
_TRANSPOSED = {torch.conv_transpose1d: 1, torch.conv_transpose2d: 2, torch.conv_transpose3d: 3}


def backend(
    graph: GraphModule,
    example_inputs: Sequence[Any],
    *,
    options: Mapping[str, Any] | None = None,
    mode: str | None = None,
) -> Callable[..., Any]:
    """Compile a graph of Dynamo's. `options` are those of `jitdnn.torch.convert`; `mode` is Inductor's, for graphs
    that it compiles, and may be one of the options. `memory_limit` bounds the memory of a training step
    (inductor_memory.py).

    Raises InvalidArgument for unknown options or modes.
    """
    options = dict(options or {})
    mode = options.pop("mode", mode)
    text = str(Options.of(**{name: value for name, value in options.items() if name != "memory_limit"}))
    tensors = [x for x in example_inputs if isinstance(x, Tensor)]
    needs_gradients = torch.is_grad_enabled() and any(x.requires_grad for x in tensors)
    devices = {x.device for x in tensors if x.dim() or x.device.type != "cpu"}
    is_fusible = len(devices) == 1 and all(one.type in ("cpu", "cuda") for one in devices)
    if is_disabled() or needs_gradients or not is_fusible:
        return _compiled(graph, example_inputs, options, mode)
    on_gpu = any(one.type == "cuda" for one in devices)
    if on_gpu and (mode is not None or "memory_limit" in options):
        return _compiled(graph, example_inputs, options, mode)  # whose choice it is how Inductor compiles
    fused = FusedGraph(graph, example_inputs, text, options if on_gpu else None)
    try:
        fused.check(example_inputs)
    except JitdnnError as error:
        log.fallback_once(("torch backend", str(error)), f"a graph is not fused: {error}")
        return _compiled(graph, example_inputs, options, mode)
    return fused


class FusedGraph:
    """A graph of Dynamo's without gradients, called with all of its inputs: parameters, numbers and tensors."""

    def __init__(
        self,
        graph: GraphModule,
        example_inputs: Sequence[Any],
        options: str,
        compiling: Mapping[str, Any] | None = None,
    ) -> None:
        """`compiling`: options of Inductor, which takes the graph where that is faster eagerly than fused; None where
        that is not asked."""
        self._graph, self._options, self._compiling = graph, options, compiling
        self._constant_places = [place for place, x in enumerate(example_inputs) if _is_constant(x)]
        self._input_places = [
            place for place, x in enumerate(example_inputs) if isinstance(x, Tensor) and not _is_constant(x)
        ]
        self._number_places = [place for place, x in enumerate(example_inputs) if not isinstance(x, Tensor)]
        self._functions: dict[tuple[Any, ...], FusedFunction] = {}
        self._compiled: dict[tuple[Any, ...], Callable[..., Any]] = {}

    def __call__(self, *arguments: Any) -> tuple[Any, ...]:
        numbers = tuple(arguments[place] for place in self._number_places)
        function = self._functions.get(numbers)
        if function is None:
            if len(self._functions) >= 64:
                self._functions.clear()
            function = self._functions[numbers] = self._function(numbers)
        constants = [arguments[place] for place in self._constant_places]
        inputs = [arguments[place] for place in self._input_places]
        with torch.no_grad():
            if self._compiling is None:
                return tuple(function(constants, inputs))
            return tuple(
                function(
                    constants,
                    inputs,
                    lambda: list(self._graph(*arguments)),
                    lambda: list(self._by_inductor(numbers, arguments)(*arguments)),
                )
            )

    def _by_inductor(self, numbers: tuple[Any, ...], arguments: Sequence[Any]) -> Callable[..., Any]:
        """The graph compiled as if it were not fused, for these numbers."""
        found = self._compiled.get(numbers)
        if found is None:
            made = _compiled(self._graph, arguments, self._compiling or {}, None)
            found = self._compiled.setdefault(numbers, made)
        return found

    def check(self, example_inputs: Sequence[Any]) -> None:
        """Capture the graph without preparing anything. Raises NotSupported where that is refused."""
        from jitdnn.frameworks.torch.graph import capture

        numbers = tuple(_number(example_inputs[place]) for place in self._number_places)
        places = (*self._constant_places, *self._input_places)
        with torch._guards.tracing(None):
            tensors = [_plain(example_inputs[place]) for place in places]
            traced = capture(self._run(numbers), tensors, "a graph of Dynamo's", self._options)
            if self._compiling is None:
                return
            division = division_of(traced, len(self._constant_places), self._options)
        refusal = refusal_of(division, MOST_BY_TORCH)
        if refusal is not None:
            raise NotSupported(refusal)

    def _function(self, numbers: tuple[Any, ...]) -> FusedFunction:
        return FusedFunction(self._run(numbers), self._options, "a graph of Dynamo's")

    def _run(self, numbers: tuple[Any, ...]) -> Callable[..., list[Any]]:
        places = (*self._constant_places, *self._input_places)

        def run(*tensors: Tensor) -> list[Any]:
            arguments: list[Any] = [None] * (len(places) + len(numbers))
            for place, tensor in zip(places, tensors, strict=True):
                arguments[place] = tensor
            for place, number in zip(self._number_places, numbers, strict=True):
                arguments[place] = number
            return list(self._graph(*arguments))

        return run


def _is_constant(x: Any) -> bool:
    """Whether Dynamo took a tensor from a module: a parameter or a buffer."""
    return isinstance(x, torch.nn.Parameter) or getattr(x, "_dynamo_static_input_type", None) is not None


def _number(x: Any) -> Any:
    return x.node.hint if isinstance(x, (torch.SymInt, torch.SymFloat, torch.SymBool)) else x


def _plain(x: Tensor) -> Tensor:
    """A tensor of the same kind whose shape is made of numbers; its values do not matter."""
    shape, strides = [_number(n) for n in x.shape], [_number(n) for n in x.stride()]
    return torch.empty_strided(shape, strides, dtype=x.dtype, device=x.device) if _is_fake(x) else x.detach()


def _is_fake(x: Tensor) -> bool:
    return type(x) not in (Tensor, torch.nn.Parameter)


def with_convolutions(graph: GraphModule, options: str) -> GraphModule:
    """The graph with our convolutions, with gradients of our own, in the place of torch's."""
    from jitdnn.frameworks.torch.operators import convolution

    for node in graph.graph.nodes:
        if node.op != "call_function":
            continue
        is_transposed = node.target in _TRANSPOSED
        space = _CONVOLUTIONS.get(node.target) or _TRANSPOSED.get(node.target)
        if space is None:
            continue
        names = ["x", "w", "b", "stride", "padding"]
        names += ["output_padding", "groups", "dilation"] if is_transposed else ["dilation", "groups"]
        a: dict[str, Any] = dict.fromkeys(["b"])
        a.update(stride=1, padding=0, dilation=1, groups=1, output_padding=0)
        a.update(zip(names, node.args, strict=False))
        a.update({{"input": "x", "weight": "w", "bias": "b"}.get(k, k): v for k, v in node.kwargs.items()})
        x = a["x"].meta.get("example_value")
        if isinstance(a["padding"], str) or not isinstance(x, Tensor) or x.dim() != space + 2:
            continue
        each = {key: _each(a[key], space) for key in ("stride", "padding", "dilation", "output_padding")}
        arguments = (
            a["x"], a["w"], a["b"], each["stride"], each["padding"], each["dilation"], is_transposed,
            each["output_padding"], a["groups"], options,
        )  # fmt: skip
        node.target, node.args, node.kwargs = convolution.default, arguments, {}
    graph.recompile()
    return graph


def _each(numbers: Any, space: int) -> list[Any]:
    if isinstance(numbers, (list, tuple)):
        return list(numbers) * space if len(numbers) == 1 else list(numbers)
    return [numbers] * space


def has_compiler() -> bool:
    """Whether Inductor finds a C++ compiler."""
    try:
        from torch._inductor.cpp_builder import get_cpp_compiler

        return bool(get_cpp_compiler())
    except Exception:
        return False


def _compiled(
    graph: GraphModule, example_inputs: Sequence[Any], options: Mapping[str, Any], mode: str | None
) -> Callable[..., Any]:
    """The graph by Inductor with our pass, or by AOTAutograd in eager mode where there is no compiler."""
    if has_compiler():
        from jitdnn.frameworks.torch.inductor import inductor

        return inductor(graph, example_inputs, options=options, mode=mode)
    from torch._dynamo.backends.common import aot_autograd
    from torch._dynamo.backends.debugging import aot_eager, boxed_nop

    options = dict(options)
    limit = options.pop("memory_limit", None)
    text = str(Options.of(**options))
    if is_disabled():
        return aot_eager(graph, list(example_inputs))  # type: ignore[no-any-return]
    graph = with_convolutions(graph, text)
    if limit is None:
        return aot_eager(graph, list(example_inputs))  # type: ignore[no-any-return]
    from jitdnn.frameworks.torch.inductor_memory import partitioner

    divided = aot_autograd(fw_compiler=boxed_nop, partition_fn=partitioner(limit, False))
    return divided(graph, list(example_inputs))  # type: ignore[no-any-return]


def register() -> None:
    """Make the backends "jitdnn" and "jitdnn_inductor" known to torch; nothing happens where they are."""
    from torch._dynamo.backends.registry import list_backends, register_backend

    from jitdnn.frameworks.torch.inductor import inductor

    known = list_backends(exclude_tags=())
    for name, function in (("jitdnn", backend), ("jitdnn_inductor", inductor)):
        if name not in known:
            register_backend(function, name=name)

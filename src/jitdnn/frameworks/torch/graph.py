"""A function of tensors as a graph of ATen operators for one set of shapes, without gradients.

The graph has no mutation left, its shapes are numbers, and values of tensors decide nothing in it: where a model asks
for one (`if x.sum() > 0`, `int(x.max())`) the capture is refused, with the module that asks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functionalize
from torch.fx import GraphModule, Node
from torch.fx.experimental.proxy_tensor import make_fx
from torch.overrides import TorchFunctionMode

from jitdnn.errors import JitdnnError, NotSupported
from jitdnn.frameworks.torch.pointwise import POINTWISE, VIEWS
from jitdnn.frameworks.torch.recurrent import AsNodes
from jitdnn.locks import lock

aten = torch.ops.aten
#: PyTorch's tracer serves one thread: two at once end both, and leave what it changed of torch.nn for ever
_tracer = lock()
#: operators that only check, or whose result is never used for anything but its memory
_IDLE = ("aten::_assert_async", "aten::_assert_tensor_metadata", "aten::sym_constrain_range")


def capture(
    function: Callable[..., Any], tensors: Sequence[Tensor], what: str, options: str = ""
) -> GraphModule:
    """The graph of `function(*tensors)`; its placeholders are the tensors, its output is a flat tuple.

    `what` names the function in errors, `options` are those of nodes that choose who runs. Raises NotSupported where
    values of tensors decide what is computed, and where a tensor that is given is written to.
    """
    try:
        with _tracer, torch.no_grad():
            made = partial(make_fx, tracing_mode="fake", _allow_non_fake_inputs=True)
            with _FlatProducts(), AsNodes(options):
                traced: GraphModule = made(functionalize(function))(*tensors)
            _drop_idle(traced)
            if any(is_mutating(node.target) for node in traced.graph.nodes):
                # operators that are made of others, such as rms_norm, write to their own results in there
                traced = made(functionalize(traced))(*tensors)
                _drop_idle(traced)
    except JitdnnError:
        raise
    except Exception as error:
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise NotSupported(
            f"{what} cannot be captured as one graph: {type(error).__name__}: {reason}. "
            "Control flow that depends on the values of tensors has no graph; torch.compile(model, "
            'backend="jitdnn") compiles what lies between'
        ) from error
    graph = traced.graph
    placeholders = {node for node in graph.nodes if node.op == "placeholder"}
    for node in graph.nodes:
        if node.op == "call_function" and is_mutating(node.target):
            written = [a.name for a in node.args if isinstance(a, Node) and a in placeholders]
            raise NotSupported(
                f"{what} writes to its inputs, parameters or buffers ({node.target}"
                f"{', ' + written[0] if written else ''}): call .eval() on modules that keep statistics"
            )
    for node in reversed(list(graph.nodes)):
        if node.op == "call_function" and not node.users and not is_random(node):
            graph.erase_node(node)
    traced.recompile()
    return traced


class _FlatProducts(TorchFunctionMode):
    """Products of more than two axes as those of two, whatever lies where: torch makes batches of some of them."""

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if function is nn.functional.linear and not kwargs and len(args) >= 2:
            x, w, bias = (*args, None)[:3]
            if isinstance(x, Tensor) and x.dim() > 2 and w.dim() == 2 and x.numel():
                y = function(x.reshape(-1, x.shape[-1]), w, bias)
                return y.view(*x.shape[:-1], w.shape[0])
        return function(*args, **kwargs)


def _drop_idle(traced: GraphModule) -> None:
    """Take out nodes that change nothing."""
    for node in list(traced.graph.nodes):
        if node.op == "call_function" and _changes_nothing(node):
            node.replace_all_uses_with(node.args[0])
            traced.graph.erase_node(node)
    traced.recompile()


def _changes_nothing(node: Node) -> bool:
    """Whether a node only moves elements in memory, and nobody cares.

    Torch's mean of an image says anew how axes of one element are counted; copies are there for views that follow, and
    those are written so that they copy where they must.
    """
    x = node.args[0] if node.args else None
    if not isinstance(x, Node) or x.op == "placeholder" or shape_of(x) != shape_of(node):
        return False
    if node.target is aten.as_strided_.default:
        return True
    if node.target is aten.expand.default:
        return bool(value(x).stride() == value(node).stride())
    return node.target is aten.clone.default and all(user.target in _READERS for user in node.users)


_READERS = {
    *POINTWISE, *VIEWS, aten.convolution.default, aten.addmm.default, aten.mm.default, aten.bmm.default,
    aten.native_layer_norm.default, aten._softmax.default, aten.mean.dim,
}  # fmt: skip


def is_mutating(target: Any) -> bool:
    """Whether an operator writes to one of its arguments."""
    schema = getattr(target, "_schema", None)
    if schema is None or schema.name in _IDLE:
        return False
    return any(a.alias_info is not None and a.alias_info.is_write for a in schema.arguments)


def is_random(node: Node) -> bool:
    """Whether an operator draws random numbers, so that no two calls give the same."""
    tags = getattr(node.target, "tags", ())
    return torch.Tag.nondeterministic_seeded in tags


def value(node: Node) -> Any:
    """What the node holds, as fake tensors: shape, strides and dtype."""
    return node.meta.get("val")


def shape_of(node: Node) -> tuple[int, ...] | None:
    """The shape of a node that is one tensor, else None."""
    held = value(node)
    return tuple(held.shape) if isinstance(held, Tensor) else None


@contextmanager
def calling_module(model: nn.Module, running: list[str]) -> Iterator[None]:
    """For the time of a `with` block, `running` holds the names of the modules being called, innermost last.

    It is left as it is where an exception ends the block.
    """
    handles = []

    def enter(name: str) -> Callable[..., None]:
        return lambda *_: running.append(name)

    def leave(*_: Any) -> None:
        running.pop()

    try:
        for name, module in model.named_modules():
            handles.append(module.register_forward_pre_hook(enter(name)))
            handles.append(module.register_forward_hook(leave))
        yield
    finally:
        for handle in handles:
            handle.remove()


def fits(traced: GraphModule, constants: Sequence[Tensor]) -> bool:
    """Whether a graph was captured with constants of these shapes and types."""
    placeholders = [node for node in traced.graph.nodes if node.op == "placeholder"]
    return all(
        node.meta["val"].shape == c.shape and node.meta["val"].dtype == c.dtype
        for node, c in zip(placeholders, constants, strict=False)
    )


def has_images(traced: GraphModule) -> bool:
    """Whether something in the graph may lie in memory with its channels first or last."""
    return any(node.target is aten.convolution.default for node in traced.graph.nodes)


def words(traced: GraphModule) -> str:
    """The graph with the shape and type of everything, the same in every process."""
    lines = []
    for node in traced.graph.nodes:
        held = node.meta.get("val")
        kind = f"{tuple(held.shape)} {held.stride()} {held.dtype}" if isinstance(held, Tensor) else ""
        lines.append(f"{node.format_node()} {kind}")
    return "\n".join(lines)

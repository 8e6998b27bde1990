"""What the nodes of a graph of Inductor's say of their tensors, and real ones of the same form to measure with."""

from __future__ import annotations

import operator
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor
from torch.fx import Graph, Node
from torch.utils._python_dispatch import _disable_current_modes

from jitdnn.frameworks.torch import choice
from jitdnn.frameworks.torch.kernels import channels_last_strides, contiguous_strides
from jitdnn.frameworks.torch.kinds import DEVICES, DTYPES, apart

aten = torch.ops.aten


def is_convolution(node: Node) -> bool:
    """Whether ours may take a node or one of its gradients."""
    return node.target in (aten.convolution.default, aten.convolution_backward.default) or is_packed(node)


def is_packed(node: Node) -> bool:
    """Whether a node is a convolution whose filter oneDNN has packed, as freezing leaves it."""
    return (
        node.target is getattr(torch.ops.mkldnn._convolution_pointwise, "default", None)
        and len(node.args) >= 8
    )


def is_plain(node: Any) -> bool:
    value = node.meta.get("val") if isinstance(node, Node) else None
    return (
        isinstance(value, Tensor)
        and value.dtype in DTYPES
        and value.device.type in DEVICES
        and value.layout in (torch.strided, torch._mkldnn)
        and all(hint(one) not in (None, 0) for one in value.shape)
    )


def are_numbers(one: Any) -> bool:
    if isinstance(one, (list, tuple)):
        return all(map(are_numbers, one))
    return isinstance(one, (int, bool))


def has_static_form(value: Tensor) -> bool:
    return all(isinstance(one, int) for one in (*value.shape, *value.stride()))


def hint(number: Any) -> int | None:
    """The number that a symbolic one was when the graph was made; None if nothing is known of it."""
    if isinstance(number, int):
        return number
    try:
        return int(number.node.hint) if number.node.has_hint() else None
    except Exception:  # of what depends on values
        return None


def real(value: Tensor, strides: Sequence[int] | None = None) -> Tensor:
    """A tensor of the form of one without data, or with other strides, of numbers between -1 and 1."""
    shape = [hint(one) or 0 for one in value.shape]
    strides = [hint(one) or 0 for one in (value.stride() if strides is None else strides)]
    if not value.is_floating_point() or value.layout is not torch.strided:
        return torch.zeros(shape, dtype=value.dtype, device=value.device)
    single = [1 if stride == 0 else extent for extent, stride in zip(shape, strides, strict=True)]
    size = 1 + sum((extent - 1) * stride for extent, stride in zip(single, strides, strict=True))
    generator = torch.Generator(value.device).manual_seed(0)
    memory = torch.empty(max(size, 1), dtype=value.dtype, device=value.device)
    memory.uniform_(-1.0, 1.0, generator=generator)
    return memory.as_strided(shape, strides)


def lie_alike(tensors: Sequence[Tensor]) -> bool:
    """Whether all have their channels first in memory, or all have them last."""
    firsts = (one.stride() == contiguous_strides(one.shape) for one in tensors)
    lasts = (one.stride() == channels_last_strides(one.shape) for one in tensors)
    return all(firsts) or all(lasts)


def wants_last(graph: Graph) -> bool:
    """Whether Inductor would lay images out with channels last in this graph."""
    from torch._inductor.graph import GraphLowering

    if graph.owning_module is None:
        return False
    names = [node.name for node in graph.nodes if node.op == "placeholder"]
    is_inference = not any(name.startswith(("primals_", "tangents_")) for name in names)
    try:
        return bool(GraphLowering.decide_layout_opt(graph.owning_module, is_inference=is_inference))
    except Exception:  # of another version: the layout of the graph
        return False


#: the same elements of memory in another shape, or with other strides, or some of them
_VIEWS = (
    aten.permute.default, aten.t.default, aten.transpose.int, aten.reshape.default, aten.view.default,
    aten.slice.Tensor, aten.select.int, aten.squeeze.dim, aten.unsqueeze.default, aten.expand.default,
)  # fmt: skip


def is_from_outside(node: Node) -> bool:
    """Whether a node lies in memory as the graph was given it, or as a call gave it: its order is chosen already."""
    while node.target in _VIEWS:
        node = node.args[0]
    return node.op == "placeholder" or node.target is operator.getitem


def is_on_gpu(node: Node) -> bool:
    value = node.meta.get("val")
    return isinstance(value, Tensor) and value.device.type != "cpu"


@contextmanager
def measuring(is_captured: bool) -> Iterator[None]:
    """Real tensors, no gradients, no modes, no autocast: as what is measured runs later; and nobody who observes."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    with (
        torch.no_grad(),
        _disable_current_modes(),
        torch._guards.tracing(None),
        torch.autocast(device, enabled=False),
        torch.autocast("cpu", enabled=False),
        choice.without_host() if is_captured else nullcontext(),
        apart(),
    ):
        yield


def follows(nodes: Iterable[Node], sources: Collection[Node]) -> bool:
    """Whether some nodes are made of what some others give, or are these."""
    seen, left = set[Node](), list(nodes)
    while left:
        one = left.pop()
        if one in sources:
            return True
        if one not in seen:
            seen.add(one)
            left += one.all_input_nodes
    return False

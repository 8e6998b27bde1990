"""`torch.ops.jitdnn.activation`: activations by name, forward and backward."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812

from jitdnn.frameworks.torch.double import alone, derivatives_of_gradients
from jitdnn.frameworks.torch.fresh import fresh_like, is_kept, without_data
from jitdnn.frameworks.torch.kinds import Computation, Operation, Ways
from jitdnn.frameworks.torch.launch import descriptor, prepared
from jitdnn.frameworks.torch.registry import define
from jitdnn.handle import Handle
from jitdnn.ops import activation as ours
from jitdnn.problems.activation import Activation
from jitdnn.tensor import TensorDescriptor

aten = torch.ops.aten


class _Function(NamedTuple):
    """An activation: its name and coefficient in problems of ours, ours, its gradient from (dy, x) or (dy, y), torch's,
    and torch's gradient of the same operands; torch's kernels that write into memory which is given, where it has them:
    (x, y) and (dy, x or y, dx)."""

    problem: tuple[str, float | None]
    forward: Callable[..., Any]
    backward: Callable[..., Any]
    stock: Callable[..., Any]
    stock_backward: Callable[..., Any]
    keeps_result: bool = False
    into: Callable[..., Any] | None = None
    backward_into: Callable[..., Any] | None = None


def _by_result(backward: Callable[..., Any]) -> Callable[..., Any]:
    """A gradient of ours from dy and what the activation returned."""
    return lambda dy, y, **named: backward(dy, y=y, **named)


def _into(operator: Any, **named: Any) -> Callable[..., Any]:
    """An operator's kernel whose last argument is the result."""
    return lambda *given: operator.out(*given[:-1], out=given[-1], **named)


def _gradient_into(operator: Any, *more: Any, **named: Any) -> Callable[..., Any]:
    return lambda dy, kept, dx: operator.grad_input(dy, *more, kept, grad_input=dx, **named)


FUNCTIONS: dict[str, _Function] = {
    "gelu": _Function(
        ("gelu", None), ours.gelu, ours.gelu_backward, F.gelu, aten.gelu_backward.default,
        into=_into(aten.gelu), backward_into=_gradient_into(aten.gelu_backward),
    ),
    "gelu_tanh": _Function(
        ("gelu_tanh", None),
        lambda x, **named: ours.gelu(x, "tanh", **named),
        lambda dy, x, **named: ours.gelu_backward(dy, x, "tanh", **named),
        lambda x: F.gelu(x, approximate="tanh"),
        lambda dy, x: aten.gelu_backward.default(dy, x, approximate="tanh"),
        into=_into(aten.gelu, approximate="tanh"),
        backward_into=_gradient_into(aten.gelu_backward, approximate="tanh"),
    ),
    "silu": _Function(
        ("swish", 1.0), ours.swish, ours.swish_backward, F.silu, aten.silu_backward.default,
        into=_into(aten.silu), backward_into=_gradient_into(aten.silu_backward),
    ),
    "mish": _Function(
        ("mish", None), ours.mish, ours.mish_backward, F.mish, aten.mish_backward.default, into=_into(aten.mish),
    ),
    "hardswish": _Function(
        ("hard_swish", None), ours.hard_swish, ours.hard_swish_backward, F.hardswish, aten.hardswish_backward.default,
        into=_into(aten.hardswish),
    ),
    "elu": _Function(
        ("elu", 1.0),
        ours.elu,
        ours.elu_backward,
        F.elu,
        lambda dy, x: aten.elu_backward.default(dy, 1.0, 1.0, 1.0, False, x),
        into=_into(aten.elu),
        backward_into=_gradient_into(aten.elu_backward, 1.0, 1.0, 1.0, False),
    ),
    "tanh": _Function(
        ("tanh", None), ours.tanh, _by_result(ours.tanh_backward), torch.tanh, aten.tanh_backward.default, True,
        _into(aten.tanh), _gradient_into(aten.tanh_backward),
    ),
    "sigmoid": _Function(
        ("sigmoid", None), ours.sigmoid, _by_result(ours.sigmoid_backward), torch.sigmoid,
        aten.sigmoid_backward.default, True, _into(aten.sigmoid), _gradient_into(aten.sigmoid_backward),
    ),
}  # fmt: skip
"""Activations without parameters that ours compute faster than torch on some machine, by name."""


def _problem(
    function: _Function, direction: str, kept: TensorDescriptor, dy: TensorDescriptor | None = None
) -> Activation:
    name, coefficient = function.problem
    saved = "y" if function.keeps_result and dy is not None else "x"
    return Activation.make(direction, name, kept, saved, y=kept, dx=dy and kept, dy=dy, coef=coefficient)


def _forward_ways(handle: Handle, x: Tensor, name: str) -> Ways:
    function, made, run = FUNCTIONS[name], fresh_like(x, x.device), None
    refusal, into = _refusal(x), function.into
    if refusal is None:
        run = prepared(
            handle, lambda: _problem(function, "fwd", descriptor(x)), (x,), (without_data(x),), x.device, True
        )

    def mine(x: Tensor, _: str) -> Tensor:
        y: Tensor = function.forward(x, out=made(), handle=handle)
        return y

    def theirs(x: Tensor, _: str) -> Tensor:
        y: Tensor = function.stock(x)
        return y

    if refusal is None and into is not None and is_kept(x, x.device):
        return Ways(run or mine, lambda x, _: into(x, made()), what="of")
    return Ways(run or mine, theirs, what="of", refusal=refusal)


def _backward_ways(handle: Handle, dy: Tensor, kept: Tensor, name: str) -> Ways:
    function, made, run = FUNCTIONS[name], fresh_like(kept, dy.device), None
    refusal, into = _refusal(dy) or _refusal(kept), function.backward_into
    if refusal is None:

        def make() -> Activation:
            return _problem(function, "bwd", descriptor(kept), descriptor(dy))

        run = prepared(handle, make, (dy, kept), (without_data(kept),), dy.device, True)

    def mine(dy: Tensor, kept: Tensor, _: str) -> Tensor:
        dx: Tensor = function.backward(dy, kept, out=made(), handle=handle)
        return dx

    def theirs(dy: Tensor, kept: Tensor, _: str) -> Tensor:
        dx: Tensor = function.stock_backward(dy, kept)
        return dx

    if refusal is None and into is not None and is_kept(kept, dy.device):
        return Ways(run or mine, lambda dy, kept, _: into(dy, kept, made()), what="of")
    return Ways(run or mine, theirs, what="of", refusal=refusal)


def _refusal(x: Tensor) -> str | None:
    if x.dim() == 0 or x.dim() > 8:
        return "ours take 1 to 8 dimensions"
    return None if _is_dense(x) else "the operand has gaps or overlaps in memory"


def _is_dense(x: Tensor) -> bool:
    return (
        bool(torch._prims_common.is_non_overlapping_and_dense_or_false(x)) if not x.is_contiguous() else True
    )


_forward = Computation("forward", _forward_ways, 2)
_gradient = Computation("data", _backward_ways, 3)


def _keep(ctx: Any, x: Tensor, output: Tensor, arguments: Sequence[Any]) -> None:
    ctx.save_for_backward(output if FUNCTIONS[arguments[0]].keeps_result else x)


def _save(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    x, *ctx.arguments, ctx.options = inputs
    _keep(ctx, x, output, ctx.arguments)


def _derivative(
    ctx: Any, dy: Tensor, saved: Sequence[Tensor], arguments: Sequence[Any], options: str
) -> tuple[Tensor]:
    (kept,) = saved
    if dy.stride() != kept.stride():
        form = torch.empty_like(kept)
        dy = dy.new_empty_strided(form.shape, form.stride()).copy_(dy)  # dy may be a batch of vmap's
    return (activation_backward(dy, kept, *arguments, options),)


def _gradients(ctx: Any, dy: Tensor) -> tuple[Any, ...]:
    return (*_derivative(ctx, dy, ctx.saved_tensors, ctx.arguments, ctx.options), None, None)


def _save_gradient(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    dy, kept, ctx.name, _ = inputs
    ctx.save_for_backward(dy, kept)


def _double(ctx: Any, ddx: Tensor) -> tuple[Any, ...]:
    dy, kept = ctx.saved_tensors
    function = FUNCTIONS[ctx.name]
    if function.keeps_result:  # torch's gradient of the same operands has a derivative
        has_more = torch.is_grad_enabled()
        with torch.enable_grad():
            dy, kept = alone(dy, has_more), alone(kept, has_more)
            dx = function.stock_backward(dy, kept)
            found = torch.autograd.grad(dx, (dy, kept), ddx, create_graph=has_more)
        return (*found, None, None)
    return (
        *derivatives_of_gradients(lambda x, *_: function.stock(x), (dy, kept, None), [ddx])[:2],
        None,
        None,
    )


activation_backward = define(
    'activation_backward(Tensor dy, Tensor kept, str name, str options="") -> Tensor',
    _gradient.kernel,
    lambda dy, kept, name, options="": torch.empty_like(kept),
    _save_gradient,
    _double,
)
activation = define(
    'activation(Tensor x, str name, str options="") -> Tensor',
    _forward.kernel,
    lambda x, name, options="": torch.empty_like(x),
    _save,
    _gradients,
)
ACTIVATION = Operation(_forward, _gradient, _keep, _derivative, lambda _, *arguments: arguments)

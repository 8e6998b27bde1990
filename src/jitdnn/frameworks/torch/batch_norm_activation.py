"""`torch.ops.jitdnn.batch_norm_activation`: a batch's own normalization and an activation behind it, as one operation.

By itself an activation reads and writes all of memory once more in the forward pass, and reads twice and writes once in
the backward pass; what it was of is kept for that, and an activation that works in place copies it. Here there are no
such passes and nothing is kept: the backward pass computes it anew from the normalization's input.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812

from jitdnn.frameworks.torch import normalization
from jitdnn.frameworks.torch.convolution import memory_format
from jitdnn.frameworks.torch.double import derivatives_of_gradients
from jitdnn.frameworks.torch.kinds import Computation, Ways
from jitdnn.frameworks.torch.registry import define, in_order
from jitdnn.handle import Handle

aten = torch.ops.aten

#: torch's functions by the names that ours have for them
FUNCTIONS: dict[str, Callable[..., Tensor]] = {"relu": F.relu, "clipped_relu": F.relu6, "swish": F.silu}
_SLOPES: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "relu": lambda dy, z: aten.threshold_backward.default(dy, z, 0),
    "clipped_relu": lambda dy, z: aten.hardtanh_backward.default(dy, z, 0.0, 6.0),
    "swish": lambda dy, z: aten.silu_backward.default(dy, z),
}


def stock(
    input: Tensor, running_mean: Tensor | None, running_var: Tensor | None, weight: Tensor, bias: Tensor,
    training: bool, activation: str, inplace: bool, momentum: float, eps: float,
) -> Tensor:  # fmt: skip
    """By torch's functions."""
    y = F.batch_norm(input, running_mean, running_var, weight, bias, training, momentum, eps)
    return FUNCTIONS[activation](y, inplace=inplace)


stock.__name__ = "batch_norm_activation"  # by which times of its calls are kept


def _forward_ways(
    handle: Handle, x: Tensor, weight: Tensor, bias: Tensor, epsilon: float, activation: str
) -> Ways:
    def theirs(x: Tensor, weight: Tensor, bias: Tensor, *_: Any) -> tuple[Tensor, ...]:
        running = normalization.states(x)
        z, mean, rstd = aten.native_batch_norm.default(x, weight, bias, *running, True, 1.0, epsilon)
        y = FUNCTIONS[activation](z, inplace=True)
        return y.contiguous(memory_format=memory_format(x)), mean, rstd, running[1]

    ours = normalization.ours_forward(handle, x, weight, bias, epsilon, activation)
    return Ways(ours, theirs, what="of batch normalization with an activation", has_several_types=True)


def _backward_ways(
    handle: Handle, dy: Tensor, x: Tensor, weight: Tensor, bias: Tensor, mean: Tensor, rstd: Tensor,
    epsilon: float, activation: str,
) -> Ways:  # fmt: skip
    column = (1, -1, *[1] * (x.dim() - 2))

    def theirs(
        dy: Tensor, x: Tensor, weight: Tensor, bias: Tensor, mean: Tensor, rstd: Tensor, *_: Any
    ) -> tuple[Tensor, ...]:
        z = torch.addcmul(
            bias.detach().view(column), x - mean.view(column), (rstd * weight.detach()).view(column)
        ).to(x.dtype)
        g = _SLOPES[activation](dy, z)
        dx, dw, db = aten.native_batch_norm_backward.default(
            g, x, weight, None, None, mean, rstd, True, epsilon, [True] * 3
        )
        return dx.contiguous(memory_format=memory_format(x)), dw, db

    run = normalization.ours_backward(handle, dy, x, weight, bias, activation)

    def ours(
        dy: Tensor, x: Tensor, weight: Tensor, bias: Tensor, mean: Tensor, rstd: Tensor, *_: Any
    ) -> tuple[Tensor, ...]:
        return run(dy, x, weight, bias, mean, rstd)

    return Ways(ours, theirs, what="of batch normalization with an activation", has_several_types=True)


#: both directions
BOTH = (Computation("forward", _forward_ways, 5), Computation("gradients", _backward_ways, 8))


def _fake(x: Tensor, weight: Tensor, bias: Tensor, epsilon: float, *_: str) -> tuple[Tensor, ...]:
    return normalization.batch_fake(x, weight, bias, epsilon)


def _save(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    x, weight, bias, *ctx.rest = inputs
    ctx.save_for_backward(x, weight, bias, output[1], output[2])
    ctx.mark_non_differentiable(*output[1:])


def _gradients(ctx: Any, dy: Tensor, *_: Any) -> tuple[Any, ...]:
    saved = ctx.saved_tensors
    dy = in_order(dy, memory_format(saved[0]))
    found = batch_norm_activation_backward(dy, *saved, *ctx.rest)
    return (*normalization.wanted(ctx, found), None, None, None)


def _backward_fake(dy: Tensor, x: Tensor, weight: Tensor, bias: Tensor, *rest: Any) -> tuple[Tensor, ...]:
    return normalization.batch_backward_fake(dy, x, weight, *rest)


def _save_gradients(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    dy, x, weight, bias, _, _, ctx.epsilon, ctx.activation, _ = inputs
    ctx.save_for_backward(dy, x, weight, bias)
    ctx.set_materialize_grads(False)


def _double(ctx: Any, *grads: Tensor | None) -> tuple[Any, ...]:
    function, epsilon = FUNCTIONS[ctx.activation], ctx.epsilon

    def of(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        return function(F.batch_norm(x, None, None, weight, bias, True, 0.0, epsilon))

    return (*derivatives_of_gradients(of, ctx.saved_tensors, grads), *[None] * 5)


batch_norm_activation_backward = define(
    "batch_norm_activation_backward(Tensor dy, Tensor x, Tensor weight, Tensor bias, Tensor mean, Tensor rstd, "
    'float epsilon, str activation, str options="") -> (Tensor, Tensor, Tensor)',
    BOTH[1].kernel,
    _backward_fake,
    _save_gradients,
    _double,
)
batch_norm_activation = define(
    "batch_norm_activation(Tensor x, Tensor weight, Tensor bias, float epsilon, str activation, "
    'str options="") -> (Tensor, Tensor, Tensor, Tensor)',
    BOTH[0].kernel,
    _fake,
    _save,
    _gradients,
)

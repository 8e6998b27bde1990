"""`torch.ops.jitdnn.batch_norm` (with the batch's own statistics) and `layer_norm`, with their gradients."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from jitdnn.frameworks.torch.convolution import memory_format
from jitdnn.frameworks.torch.double import derivatives_of_gradients
from jitdnn.frameworks.torch.fresh import fresh_like, without_data
from jitdnn.frameworks.torch.kinds import Computation, Operation, Ways
from jitdnn.frameworks.torch.launch import Direct, Run, descriptor, direct, prepared
from jitdnn.frameworks.torch.registry import define, in_order
from jitdnn.handle import Handle
from jitdnn.ops import batch_norm as batch
from jitdnn.ops import layer_norm as layer
from jitdnn.ops.normalization import Named, describe
from jitdnn.problems.batch_norm import BatchNorm
from jitdnn.problems.layer_norm import LayerNorm
from jitdnn.problems.normalization import Normalization
from jitdnn.problems.problem import Problem

aten = torch.ops.aten
_NORMALIZED = "(Tensor x, Tensor? weight, Tensor? bias, "


def statistics_dtype(x: Tensor) -> torch.dtype:
    """Of means and variances of x."""
    return torch.float64 if x.dtype is torch.float64 else torch.float32


# ---- batch normalization ----


def states(x: Tensor) -> list[Tensor]:
    """For running statistics: with momentum 1 they become the batch's mean and its variance without bias."""
    return [x.new_zeros(x.shape[1], dtype=statistics_dtype(x)) for _ in range(2)]


def batch_launch(
    handle: Handle, direction: str, given: dict[str, Tensor | None], **attributes: Any
) -> Direct:
    """The launches of batch normalization, prepared for tensors of these forms, in the order of the problem's operands.

    None where they cannot be run by addresses alone. Raises what the problem does for tensors that do not fit.
    """
    there = {name: one for name, one in given.items() if one is not None}
    absent = {*_ABSENT[direction]} - {*there}
    device = next(one.device for one in there.values() if one.device.type != "meta")
    described: Named = {name: descriptor(one) for name, one in there.items()}
    problem = describe(BatchNorm, direction, described, absent, mode="spatial", **attributes)
    return direct(handle, problem, tuple(there.values()), device)


_ABSENT = {
    "fwd": ("z", "weight", "bias", "mean", "rstd", "running_mean", "running_var"),
    "bwd": ("weight", "bias", "dweight", "dbias", "dz"),
}


def ours_forward(
    handle: Handle, x: Tensor, weight: Tensor | None, bias: Tensor | None, epsilon: float, activation: str = "identity"
) -> Callable[..., tuple[Tensor, ...]]:  # fmt: skip
    """By ours: y, the mean, 1 / sigma, and the variance without bias."""
    y, dtype = without_data(x), statistics_dtype(x)
    column = torch.empty(x.shape[1], dtype=dtype, device="meta")
    statistics = dict.fromkeys(("mean", "rstd", "running_mean", "running_var"), column)
    given = {"x": x, "weight": weight, "bias": bias, "y": y, **statistics}
    launch = batch_launch(handle, "fwd", given, factor=1.0, epsilon=epsilon, activation=activation)
    made, made_column = fresh_like(y, x.device), fresh_like(column, x.device)

    def ours(x: Tensor, weight: Tensor | None, bias: Tensor | None, *_: Any) -> tuple[Tensor, ...]:
        y, (mean, rstd, *running) = made(), [made_column() for _ in range(4)]
        if launch is None:
            batch.batch_norm(
                x, weight, bias, *running, factor=1.0, epsilon=epsilon, activation=activation, save=True,
                out=(y, mean, rstd), handle=handle,
            )  # fmt: skip
        else:
            launch(*[one for one in (x, weight, bias) if one is not None], y, mean, rstd, *running)
        return y, mean, rstd, running[1]

    return ours


def ours_backward(
    handle: Handle, dy: Tensor, x: Tensor, weight: Tensor | None, bias: Tensor | None, activation: str = "identity"
) -> Callable[..., tuple[Tensor, ...]]:  # fmt: skip
    """By ours: the gradients of x, weight and bias. `bias` is needed with an activation alone."""
    dx = without_data(x)
    column = torch.empty(x.shape[1], dtype=statistics_dtype(x), device="meta")
    own = without_data(column if weight is None else weight)
    # of a weight that is given nothing is kept: it is a model's
    ones = torch.ones_like(column, device=x.device) if weight is None else None
    given = {
        "dy": dy, "x": x, "weight": weight if ones is None else ones, "bias": bias, "mean": column, "rstd": column,
        "dx": dx, "dweight": own, "dbias": own,
    }  # fmt: skip
    saved = "y" if bias is None else "x"
    launch = batch_launch(handle, "bwd", given, activation=activation, saved=saved)
    made, made_own = fresh_like(dx, x.device), fresh_like(own, x.device)

    def ours(
        dy: Tensor, x: Tensor, weight: Tensor | None, bias: Tensor | None, mean: Tensor, rstd: Tensor
    ) -> tuple[Tensor, ...]:
        dx, dweight, dbias = made(), made_own(), made_own()
        factor = ones if weight is None else weight
        if launch is None:
            batch.batch_norm_backward(
                dy, x, factor, mean, rstd, bias=bias, activation=activation, out=(dx, dweight, dbias), handle=handle
            )  # fmt: skip
        else:
            launch(*[one for one in (dy, x, factor, bias) if one is not None], mean, rstd, dx, dweight, dbias)
        return dx, dweight, dbias

    return ours


def _batch_ways(
    handle: Handle, x: Tensor, weight: Tensor | None, bias: Tensor | None, epsilon: float
) -> Ways:
    def theirs(x: Tensor, weight: Tensor | None, bias: Tensor | None, _: float) -> tuple[Tensor, ...]:
        running = states(x)
        y, mean, rstd = aten.native_batch_norm.default(x, weight, bias, *running, True, 1.0, epsilon)
        return y.contiguous(memory_format=memory_format(x)), mean, rstd, running[1]

    ours = ours_forward(handle, x, weight, bias, epsilon)
    return Ways(ours, theirs, what="of batch normalization", has_several_types=True)


def _batch_backward_ways(
    handle: Handle, dy: Tensor, x: Tensor, weight: Tensor | None, mean: Tensor, rstd: Tensor, epsilon: float
) -> Ways:
    def theirs(
        dy: Tensor, x: Tensor, weight: Tensor | None, mean: Tensor, rstd: Tensor, _: float
    ) -> tuple[Tensor, ...]:
        dx, dw, db = aten.native_batch_norm_backward.default(
            dy, x, weight, None, None, mean, rstd, True, epsilon, [True] * 3
        )
        return dx.contiguous(memory_format=memory_format(x)), dw, db

    run = ours_backward(handle, dy, x, weight, None)

    def ours(
        dy: Tensor, x: Tensor, weight: Tensor | None, mean: Tensor, rstd: Tensor, _: float
    ) -> tuple[Tensor, ...]:
        return run(dy, x, weight, None, mean, rstd)

    return Ways(ours, theirs, what="of batch normalization", has_several_types=True)


#: both directions of batch normalization
BATCH = (Computation("forward", _batch_ways, 4), Computation("gradients", _batch_backward_ways, 6))


def batch_fake(
    x: Tensor, weight: Tensor | None, bias: Tensor | None, epsilon: float, options: str = ""
) -> tuple[Tensor, ...]:
    statistics = [x.new_empty(x.shape[1], dtype=statistics_dtype(x)) for _ in range(3)]
    return torch.empty(x.shape, dtype=x.dtype, device=x.device, memory_format=memory_format(x)), *statistics


def _batch_save(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    x, weight, _, ctx.epsilon, ctx.options = inputs
    ctx.save_for_backward(x, weight, output[1], output[2])
    ctx.mark_non_differentiable(*output[1:])


def _batch_gradients(ctx: Any, dy: Tensor, *_: Any) -> tuple[Any, ...]:
    x, weight, mean, rstd = ctx.saved_tensors
    dy = in_order(dy, memory_format(x))
    found = batch_norm_backward(dy, x, weight, mean, rstd, ctx.epsilon, ctx.options)
    return (*wanted(ctx, found), None, None)


def wanted(ctx: Any, found: tuple[Tensor, ...]) -> list[Tensor | None]:
    """The gradients of x, weight and bias that somebody asks for."""
    return [one if is_wanted else None for one, is_wanted in zip(found, ctx.needs_input_grad, strict=False)]


def batch_backward_fake(dy: Tensor, x: Tensor, *rest: Any) -> tuple[Tensor, ...]:
    weight, mean = rest[0], rest[1]
    like = mean if weight is None else weight
    dx = torch.empty(x.shape, dtype=x.dtype, device=x.device, memory_format=memory_format(x))
    return dx, torch.empty_like(like), torch.empty_like(like)


def _save_gradients(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    dy, x, weight, *ctx.rest = inputs
    ctx.save_for_backward(dy, x, weight)
    ctx.set_materialize_grads(False)


def _batch_double(ctx: Any, *grads: Tensor | None) -> tuple[Any, ...]:
    epsilon = ctx.rest[2]

    def stock(x: Tensor, weight: Tensor | None, bias: Tensor | None) -> Tensor:
        return torch.nn.functional.batch_norm(x, None, None, weight, bias, True, 0.0, epsilon)

    return (*derivatives_of_gradients(stock, ctx.saved_tensors, grads), *[None] * 4)


batch_norm_backward = define(
    "batch_norm_backward(Tensor dy, Tensor x, Tensor? weight, Tensor mean, Tensor rstd, float epsilon, "
    'str options="") -> (Tensor, Tensor, Tensor)',
    BATCH[1].kernel,
    batch_backward_fake,
    _save_gradients,
    _batch_double,
)
batch_norm = define(
    f'batch_norm{_NORMALIZED}float epsilon, str options="") -> (Tensor, Tensor, Tensor, Tensor)',
    BATCH[0].kernel,
    batch_fake,
    _batch_save,
    _batch_gradients,
)


# ---- layer normalization ----


def _column(x: Tensor, axes: int) -> Tensor:
    """The form of the mean and 1 / sigma of x over the last axes."""
    shape = (*x.shape[: x.dim() - axes], *[1] * axes)
    return torch.empty(shape, dtype=statistics_dtype(x), device="meta")


def dense_form(x: Tensor) -> Tensor:
    """The form of x in the order of its axes."""
    return torch.empty(x.shape, dtype=x.dtype, device="meta")


def normalizing(
    handle: Handle, kind: type[Normalization], direction: str, given: dict[str, Tensor | None],
    results: dict[str, Tensor | None], device: torch.device, **attributes: Any,
) -> Run | None:  # fmt: skip
    """What runs a normalization on tensors of the forms of those that are `given`, in the order of the problem's
    operands, and returns the results; None where addresses do not do."""
    there = {name: one for name, one in {**given, **results}.items() if one is not None}

    def make() -> Problem:
        described: Named = {name: descriptor(one) for name, one in there.items()}
        return describe(kind, direction, described, _MAY_LACK[direction] - {*there}, **attributes)

    return prepared(handle, make, tuple(given.values()), tuple(results.values()), device)


_MAY_LACK = {"fwd": {"weight", "bias", "mean", "rstd"}, "bwd": {"weight", "dweight", "dbias"}}


def _layer_ways(
    handle: Handle, x: Tensor, weight: Tensor | None, bias: Tensor | None, axes: int, epsilon: float
) -> Ways:
    shape = list(x.shape[-axes:])

    def theirs(x: Tensor, weight: Tensor | None, bias: Tensor | None, *_: Any) -> tuple[Tensor, ...]:
        found: tuple[Tensor, ...] = aten.native_layer_norm.default(x, shape, weight, bias, epsilon)
        return found

    dense, column = dense_form(x), _column(x, axes)
    run = normalizing(
        handle, LayerNorm, "fwd", {"x": dense, "weight": weight, "bias": bias},
        {"y": dense, "mean": column, "rstd": column}, x.device, form="layer", axis=-axes, epsilon=epsilon,
    )  # fmt: skip

    def ours(x: Tensor, weight: Tensor | None, bias: Tensor | None, *_: Any) -> tuple[Tensor, ...]:
        x = (
            x.contiguous()
        )  # not what is kept: the program mostly holds x itself, and a copy would be there besides
        if run is not None:
            return run(x, weight, bias)
        found: tuple[Tensor, ...] = layer.layer_norm(
            x, weight, bias, axis=-axes, epsilon=epsilon, save=True, handle=handle
        )
        return found

    found = ours if run is None or not x.is_contiguous() else run
    return Ways(found, theirs, what="of layer normalization")


def _layer_backward_ways(
    handle: Handle, dy: Tensor, x: Tensor, weight: Tensor | None, mean: Tensor, rstd: Tensor, axes: int,
    epsilon: float,
) -> Ways:  # fmt: skip
    shape = list(x.shape[-axes:])

    def theirs(
        dy: Tensor, x: Tensor, weight: Tensor | None, mean: Tensor, rstd: Tensor, *_: Any
    ) -> tuple[Tensor, ...]:
        scale = x.new_ones(shape) if weight is None else weight
        found: tuple[Tensor, ...] = aten.native_layer_norm_backward.default(
            dy, x, shape, mean, rstd, scale, scale, [True] * 3
        )
        return found

    dense, own = dense_form(x), torch.empty(shape, dtype=x.dtype, device="meta")
    given = {"dy": dense, "x": dense, "weight": own if weight is None else weight, "mean": mean, "rstd": rstd}
    results = {"dx": dense, "dweight": own, "dbias": own}
    run = normalizing(handle, LayerNorm, "bwd", given, results, x.device, form="layer", axis=-axes)

    def ours(
        dy: Tensor, x: Tensor, weight: Tensor | None, mean: Tensor, rstd: Tensor, *_: Any
    ) -> tuple[Tensor, ...]:
        dy, x = dy.contiguous(), x.contiguous()
        scale = x.new_ones(shape) if weight is None else weight
        if run is not None:
            return run(dy, x, scale, mean, rstd)
        found: tuple[Tensor, ...] = layer.layer_norm_backward(
            dy, x, scale, mean, rstd, axis=-axes, handle=handle
        )
        return found

    is_dense = dy.is_contiguous() and x.is_contiguous()
    found = ours if run is None or weight is None or not is_dense else run
    return Ways(found, theirs, what="of layer normalization")


_layer_forward = Computation("forward", _layer_ways, 5)
_layer_gradient = Computation("gradients", _layer_backward_ways, 7)


def _layer_fake(
    x: Tensor, weight: Tensor | None, bias: Tensor | None, axes: int, epsilon: float, options: str = ""
) -> tuple[Tensor, ...]:
    shape = (*x.shape[: x.dim() - axes], *[1] * axes)
    statistics = (x.new_empty(shape, dtype=statistics_dtype(x)) for _ in range(2))
    return torch.empty(x.shape, dtype=x.dtype, device=x.device), *statistics


def _layer_keep(ctx: Any, x: Tensor, output: tuple[Tensor, ...], _: Any, weight: Any, bias: Any) -> None:
    ctx.save_for_backward(x, weight, output[1], output[2])


def _layer_save(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    x, weight, bias, *ctx.arguments, ctx.options = inputs
    _layer_keep(ctx, x, output, None, weight, bias)
    ctx.mark_non_differentiable(*output[1:])


def _layer_derivative(
    ctx: Any, dy: Tensor, kept: Sequence[Any], arguments: Sequence[Any], options: str
) -> list[Tensor | None]:
    return wanted(ctx, layer_norm_backward(dy, *kept, *arguments, options))


def _layer_gradients(ctx: Any, dy: Tensor, *_: Any) -> tuple[Any, ...]:
    return (*_layer_derivative(ctx, dy, ctx.saved_tensors, ctx.arguments, ctx.options), None, None, None)


def _layer_backward_fake(dy: Tensor, x: Tensor, *rest: Any) -> tuple[Tensor, ...]:
    weight, _, _, axes = rest[:4]
    like = x.new_empty(x.shape[x.dim() - axes :]) if weight is None else weight
    return (
        torch.empty(x.shape, dtype=x.dtype, device=x.device),
        torch.empty_like(like),
        torch.empty_like(like),
    )


def _layer_double(ctx: Any, *grads: Tensor | None) -> tuple[Any, ...]:
    axes, epsilon = ctx.rest[2:4]

    def stock(x: Tensor, weight: Tensor | None, bias: Tensor | None) -> Tensor:
        return torch.nn.functional.layer_norm(x, x.shape[-axes:], weight, bias, epsilon)

    return (*derivatives_of_gradients(stock, ctx.saved_tensors, grads), *[None] * 5)


layer_norm_backward = define(
    "layer_norm_backward(Tensor dy, Tensor x, Tensor? weight, Tensor mean, Tensor rstd, int axes, float epsilon, "
    'str options="") -> (Tensor, Tensor, Tensor)',
    _layer_gradient.kernel,
    _layer_backward_fake,
    _save_gradients,
    _layer_double,
)
layer_norm = define(
    f'layer_norm{_NORMALIZED}int axes, float epsilon, str options="") -> (Tensor, Tensor, Tensor)',
    _layer_forward.kernel,
    _layer_fake,
    _layer_save,
    _layer_gradients,
)
LAYER = Operation(
    _layer_forward,
    _layer_gradient,
    _layer_keep,
    _layer_derivative,
    lambda _, *arguments: arguments,
    parameters=2,
)

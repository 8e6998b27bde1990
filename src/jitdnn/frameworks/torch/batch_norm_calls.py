"""Batch normalization in training, and the activation behind it, in the shortest way to kernels chosen before.

By its operator (normalization.py, batch_norm_activation.py) a call looks its kind up, allocates each result by itself,
and updates the running statistics by six operations of PyTorch's, each of which is a launch on a GPU. Here the kernel
updates them, the launches of both directions are prepared for one kind of tensors, and one node of autograd stands for
all. Converted modules remember these calls as those of calls.py do.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import increment_version

from jitdnn.errors import JitdnnError
from jitdnn.frameworks.torch import batch_norm_activation, guards, kinds, normalization
from jitdnn.frameworks.torch.convolution import memory_format
from jitdnn.frameworks.torch.fresh import fresh, fresh_like, without_data
from jitdnn.frameworks.torch.guards import Remembered
from jitdnn.frameworks.torch.kinds import decided, watching
from jitdnn.frameworks.torch.launch import Direct, GpuLaunch, Launch, native, offering, shortening
from jitdnn.frameworks.torch.native_run import Place
from jitdnn.frameworks.torch.normalization import batch_launch
from jitdnn.frameworks.torch.options import handle_of
from jitdnn.frameworks.torch.registry import hooks_of_saved, in_order, node, plain_device
from jitdnn.retention import Recent

IDENTITY = "identity"
_MOST_MOMENTA = 4  # which are compiled in: of more that come and go there are none

#: by momentum
_prepared: Recent[tuple[Any, ...], dict[float, Batch]] = Recent(1024)
_NEVER: dict[float, Batch] = {}
"""In the place of those where kernels of PyTorch's were chosen."""


class Batch:
    """The launches of both directions for tensors of one form.

    `forward(x, weight, bias, mean, var)` gives the result, and the statistics of the batch, their mean and 1 / sigma;
    the running ones, if there are any, are written. `backward(dy, x, weight, bias, statistics)` gives the gradients of
    x, weight and bias, which with the identity there need not be.
    """

    __slots__ = (
        "activation", "apply", "backward", "check", "epsilon", "forms", "forward", "options", "strides",
    )  # fmt: skip

    def __init__(
        self, forward: Direct, backward: Direct, made: tuple[Callable[[], Tensor], ...], step: int,
        strides: tuple[int, ...], epsilon: float, activation: str, options: str, has_running: bool,
        forms: tuple[tuple[Any, ...], ...],
    ) -> None:  # fmt: skip
        assert forward is not None
        assert backward is not None
        self.strides, self.epsilon, self.activation, self.options = strides, epsilon, activation, options
        self.forward = shortening(self, "forward", _forward(forward, made, step, has_running))
        has_bias = activation != IDENTITY
        self.backward = shortening(self, "backward", _backward(backward, made, step, has_bias))
        #: of x, weight and bias, as they are saved
        self.forms = forms
        #: the result with a history, of x, weight, bias and the running statistics
        self.apply = _node(self)
        #: whether a gradient of the result is of the form that the launches take; set by the first one
        self.check: Callable[[Tensor], bool] | None = None


def _forward(
    launch: Launch | GpuLaunch, made: tuple[Callable[[], Tensor], ...], step: int, has_running: bool
) -> Callable[..., tuple[Tensor, Tensor]]:
    at, (make, make_statistics, *_) = launch.at, made

    def run(
        x: Tensor, weight: Tensor, bias: Tensor, mean: Tensor | None, var: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        y, statistics = make(), make_statistics()
        here = statistics.data_ptr()
        addresses = (x.data_ptr(), weight.data_ptr(), bias.data_ptr(), y.data_ptr(), here, here + step)
        at(addresses if mean is None or var is None else (*addresses, mean.data_ptr(), var.data_ptr()))
        return y, statistics

    places = [Place(0), Place(1), Place(2), Place(5), Place(6), Place(6, step)]
    places += [Place(3), Place(4)] if has_running else []
    return offering(run, partial(native, launch, 5, [make, make_statistics], places, run), [launch])


def _backward(
    launch: Launch | GpuLaunch, made: tuple[Callable[[], Tensor], ...], step: int, has_bias: bool
) -> Callable[..., tuple[Tensor, Tensor, Tensor]]:
    at, (make, _, make_weight, make_bias) = launch.at, made

    def run(
        dy: Tensor, x: Tensor, weight: Tensor, bias: Tensor | None, statistics: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        dx, dweight, dbias = make(), make_weight(), make_bias()
        here = statistics.data_ptr()
        behind = (here, here + step, dx.data_ptr(), dweight.data_ptr(), dbias.data_ptr())
        given = (dy.data_ptr(), x.data_ptr(), weight.data_ptr())
        at((*given, *behind) if bias is None else (*given, bias.data_ptr(), *behind))
        return dx, dweight, dbias

    places = [Place(0), Place(1), Place(2), *([Place(3)] if has_bias else []), Place(4), Place(4, step)]
    places += [Place(5), Place(6), Place(7)]
    return offering(run, partial(native, launch, 5, [make, make_weight, make_bias], places, run), [launch])


def prepared(
    x: Tensor, running_mean: Tensor | None, running_var: Tensor | None, weight: Tensor | None, bias: Tensor | None,
    momentum: float, epsilon: float, activation: str, options: str,
) -> Batch | None:  # fmt: skip
    """What runs such a call, if it is eager, nobody watches, and kernels of ours were chosen for all of it.

    On a GPU the call is chosen as a whole (whole.py), so that this is measured there: no choice of kernels comes first.
    """
    if (
        torch.compiler.is_compiling()
        or weight is None
        or bias is None
        or not guards.are_there()
        or watching()
    ):
        return None
    tensors = (x, weight, bias, running_mean, running_var)
    if not plain_device(tensors):
        return None
    key = (
        options, activation, epsilon, torch.get_num_threads(), torch.is_grad_enabled(), kinds.epoch, x.device,
        *[one if one is None else (one.shape, one.stride(), one.dtype) for one in tensors],
    )  # fmt: skip
    by_momentum = _prepared.recall(key)
    if by_momentum is None:
        is_ours = x.is_cuda or _is_ours(x, weight, bias, epsilon, activation, options)
        if is_ours is None:
            return None
        dtype = normalization.statistics_dtype(x)
        are_right = all(
            one is None or (one.dtype is dtype and one.is_contiguous()) for one in (running_mean, running_var)
        )
        by_momentum = _prepared.put(key, {} if is_ours and are_right else _NEVER)
    if by_momentum is _NEVER:
        return None
    found = by_momentum.get(momentum)
    if found is None and len(by_momentum) < _MOST_MOMENTA:
        found = _made(x, weight, bias, running_mean is not None, momentum, epsilon, activation, options)
        if found is not None:
            by_momentum[momentum] = found
    return found


def _is_ours(
    x: Tensor, weight: Tensor, bias: Tensor, epsilon: float, activation: str, options: str
) -> bool | None:
    """Whether kernels of ours were chosen for the forward pass, and for the backward pass if there is to be one; None
    where that is not settled."""
    column = weight.new_empty(weight.shape, dtype=normalization.statistics_dtype(x))
    if activation == IDENTITY:
        both = normalization.BATCH
        operands: tuple[Any, ...] = (x, weight, bias, epsilon)
        backward: tuple[Any, ...] = (x, x, weight, column, column, epsilon)
    else:
        both = batch_norm_activation.BOTH
        operands = (x, weight, bias, epsilon, activation)
        backward = (x, x, weight, bias, column, column, epsilon, activation)
    wanted = [(both[0], operands)]
    if torch.is_grad_enabled() and (x.requires_grad or weight.requires_grad or bias.requires_grad):
        wanted.append((both[1], backward))
    for computation, given in wanted:
        found = decided((computation,), options, given)
        if found is None or found[0] is None:
            return None
        if not found[0].decision.is_ours:
            return False
    return True


def _made(
    x: Tensor, weight: Tensor, bias: Tensor, has_running: bool, momentum: float, epsilon: float, activation: str,
    options: str,
) -> Batch | None:  # fmt: skip
    handle = handle_of(options, x.device.type)
    dtype = normalization.statistics_dtype(x)
    like = without_data(x)
    column = torch.empty(weight.shape, dtype=dtype, device="meta")
    own = without_data(weight)
    state = column if has_running else None
    parameters = {"weight": weight, "bias": bias}
    statistics = {"mean": column, "rstd": column}
    results = {"dx": like, "dweight": own, "dbias": own}
    is_identity = activation == IDENTITY
    try:
        forward = batch_launch(
            handle, "fwd",
            {"x": x, **parameters, "y": like, **statistics, "running_mean": state, "running_var": state},
            factor=momentum, epsilon=epsilon, activation=activation,
        )  # fmt: skip
        backward = batch_launch(
            handle, "bwd",
            {"dy": like, "x": x, "weight": weight, "bias": None if is_identity else bias, **statistics, **results},
            activation=activation, saved="y" if is_identity else "x",
        )  # fmt: skip
        if forward is None or backward is None:
            return None
        forward.prepare(), backward.prepare()
    except JitdnnError:
        return None
    made = (
        fresh_like(like, x.device), fresh((2, *column.shape), (column.numel(), 1), dtype, x.device),
        fresh_like(own, x.device), fresh_like(own, x.device),
    )  # fmt: skip
    step = column.numel() * column.element_size()
    forms = tuple(map(_form, (x, weight, bias)))
    return Batch(
        forward, backward, made, step, like.stride(), epsilon, activation, options, has_running, forms
    )


def _form(tensor: Tensor) -> tuple[Any, ...]:
    return tensor.shape, tensor.stride(), tensor.dtype, tensor.device


def run(
    batch: Batch,
    x: Tensor,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    weight: Tensor,
    bias: Tensor,
) -> Tensor:
    """The result of a call, with a node of autograd where a gradient is wanted."""
    if torch.is_grad_enabled() and (x.requires_grad or weight.requires_grad or bias.requires_grad):
        found: Tensor = batch.apply(x, weight, bias, running_mean, running_var)
        return found
    return _updated(batch, x, weight, bias, running_mean, running_var)[0]


def _updated(
    batch: Batch, x: Tensor, weight: Tensor, bias: Tensor, mean: Tensor | None, var: Tensor | None
) -> tuple[Tensor, Tensor]:
    """The result and the statistics of the batch. The running ones count as changed."""
    found: tuple[Tensor, Tensor] = batch.forward(x, weight, bias, mean, var)
    if mean is not None and var is not None:
        increment_version((mean, var))
    return found


def _node(batch: Batch) -> Any:
    """What applies a node of autograd for such calls, of x, weight, bias and the running statistics."""
    has_activation = batch.activation != IDENTITY
    operands = 2 + has_activation  # that are saved

    def forward(
        ctx: Any, x: Tensor, weight: Tensor, bias: Tensor, mean: Tensor | None, var: Tensor | None
    ) -> Tensor:
        y, statistics = _updated(batch, x, weight, bias, mean, var)
        # a checkpoint may have begun with the operator, and counts on what that saves
        behind = (statistics,) if hooks_of_saved(False) is None else statistics.unbind(0)
        if has_activation:
            ctx.save_for_backward(x, weight, bias, *behind)
        else:
            ctx.save_for_backward(x, weight, *behind)
        return y

    def gradients(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
        saved = ctx.saved_tensors
        x, weight = saved[:2]
        bias = saved[2] if has_activation else None
        has_hooks = len(saved) != operands + 1
        statistics = torch.stack(saved[operands:]) if has_hooks else saved[operands]
        wants_x, wants_weight, wants_bias, *_ = ctx.needs_input_grad
        is_plain = not (torch.is_grad_enabled() or ((kinds.observers or kinds.threads_apart) and watching()))
        if (
            is_plain and has_hooks
        ):  # which may hand out what lies otherwise, as those that save on the host do
            is_plain = all(
                _form(one) == form for one, form in zip(saved[:operands], batch.forms, strict=False)
            )
        if is_plain and batch.check is None and plain_device((dy, x)) and dy.dtype is x.dtype:
            dy = dy if dy.stride() == batch.strides else torch.empty_strided(
                dy.shape, batch.strides, dtype=dy.dtype, device=dy.device
            ).copy_(dy)  # fmt: skip
            batch.check = guards.guard(dy)
        if is_plain and batch.check is not None and batch.check(dy):
            dx, dweight, dbias = batch.backward(dy, x, weight, bias, statistics)
        else:
            dx, dweight, dbias = _by_operator(batch, dy, x, weight, bias, statistics)
        return (
            dx if wants_x else None,
            dweight if wants_weight else None,
            dbias if wants_bias else None,
            None,
            None,
        )

    return node(forward, gradients)


def _by_operator(
    batch: Batch, dy: Tensor, x: Tensor, weight: Tensor, bias: Tensor | None, statistics: Tensor
) -> tuple[Tensor, ...]:
    """The gradients by the operator, which has gradients itself."""
    dy = in_order(dy, memory_format(x))
    mean, rstd = statistics.unbind(0)
    found: tuple[Tensor, ...]
    if batch.activation == IDENTITY:
        found = normalization.batch_norm_backward(dy, x, weight, mean, rstd, batch.epsilon, batch.options)
    else:
        found = batch_norm_activation.batch_norm_activation_backward(
            dy, x, weight, bias, mean, rstd, batch.epsilon, batch.activation, batch.options
        )
    return found


class Known:
    """A call that a module has made before."""

    __slots__ = ("batch", "check", "state")

    def __init__(self, batch: Batch, state: tuple[Any, ...], check: Callable[..., bool]) -> None:
        self.batch, self.state, self.check = batch, state, check


def learn(calls: Remembered, batch: Batch, tensors: tuple[Tensor | None, ...], now: tuple[Any, ...]) -> None:
    """Remember a call. `now`: what else than the tensors tells calls apart, as of calls.py."""
    if calls.is_learning:
        calls.add(Known(batch, now, guards.guard(*[one for one in tensors if one is not None])))

"""Batch normalization in training, and the activation behind it, in the shortest way to kernels chosen before.

By its operator (normalization.py, batch_norm_activation.py) a call looks its kind up, allocates each result by itself,
and updates the running statistics by six operations of PyTorch's, each of which is a launch on a GPU. Here the kernel
updates them, the launches of both directions are prepared for one kind of tensors, and one node of autograd stands for
all. Converted modules remember these calls as those of calls.py do.
"""

from __future__ import annotations

from collections.abc import Callable
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
from jitdnn.frameworks.torch.launch import Direct
from jitdnn.frameworks.torch.normalization import batch_launch
from jitdnn.frameworks.torch.options import handle_of
from jitdnn.frameworks.torch.registry import applied, hooks_of_saved, plain_device
from jitdnn.retention import Recent

IDENTITY = "identity"
_MOST_MOMENTA = 4  # which are compiled in: of more that come and go there are none
_EPOCH = 2  # its place in what tells calls apart

#: by momentum
_prepared: Recent[tuple[Any, ...], dict[float, Batch]] = Recent(1024)
_NEVER: dict[float, Batch] = {}
"""In the place of those where kernels of PyTorch's were chosen."""


class Batch:
    """The launches of both directions for tensors of one form."""

    __slots__ = (
        "_backward",
        "_forward",
        "_made",
        "_step",
        "activation",
        "check",
        "epsilon",
        "options",
        "strides",
    )

    def __init__(
        self, forward: Direct, backward: Direct, made: tuple[Callable[[], Tensor], ...], step: int,
        strides: tuple[int, ...], epsilon: float, activation: str, options: str,
    ) -> None:  # fmt: skip
        assert forward is not None
        assert backward is not None
        self._forward, self._backward, self._made, self._step = forward.at, backward.at, made, step
        self.strides, self.epsilon, self.activation, self.options = strides, epsilon, activation, options
        #: whether a gradient of the result is of the form that the launches take; set by the first one
        self.check: Callable[[Tensor], bool] | None = None

    def forward(
        self, x: Tensor, weight: Tensor, bias: Tensor, mean: Tensor | None, var: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """The result, and the statistics of the batch: their mean and 1 / sigma. The running ones are updated."""
        y, statistics = self._made[0](), self._made[1]()
        here = statistics.data_ptr()
        addresses = (x.data_ptr(), weight.data_ptr(), bias.data_ptr(), y.data_ptr(), here, here + self._step)
        if mean is None or var is None:
            self._forward(addresses)
        else:
            self._forward((*addresses, mean.data_ptr(), var.data_ptr()))
            increment_version((mean, var))
        return y, statistics

    def backward(
        self, dy: Tensor, x: Tensor, weight: Tensor, bias: Tensor | None, mean: Tensor, rstd: Tensor | None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """The gradients of x, weight and bias. Without an `rstd` the mean has it behind it."""
        made = self._made
        dx, dweight, dbias = made[0](), made[2](), made[3]()
        here = mean.data_ptr()
        there = here + self._step if rstd is None else rstd.data_ptr()
        behind = (here, there, dx.data_ptr(), dweight.data_ptr(), dbias.data_ptr())
        given = (dy.data_ptr(), x.data_ptr(), weight.data_ptr())
        self._backward((*given, *behind) if bias is None else (*given, bias.data_ptr(), *behind))
        return dx, dweight, dbias


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
    return Batch(forward, backward, made, step, like.stride(), epsilon, activation, options)


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
        found: Tensor = _apply(batch, x, weight, bias, running_mean, running_var)
        return found
    return batch.forward(x, weight, bias, running_mean, running_var)[0]


def _gradients(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
    """What the node of a call hands back to autograd."""
    batch: Batch = ctx.batch
    saved = ctx.saved_tensors
    x, weight = saved[:2]
    bias = None if batch.activation == IDENTITY else saved[2]
    mean, rstd = (saved[-1], None) if ctx.is_short else saved[-2:]
    _, wants_x, wants_weight, wants_bias, *_ = ctx.needs_input_grad
    is_plain = not (torch.is_grad_enabled() or watching())
    if is_plain and batch.check is None and plain_device((dy, x)) and dy.dtype is x.dtype:
        dy = dy if dy.stride() == batch.strides else torch.empty_strided(
            dy.shape, batch.strides, dtype=dy.dtype, device=dy.device
        ).copy_(dy)  # fmt: skip
        batch.check = guards.guard(dy)
    if is_plain and batch.check is not None and batch.check(dy):
        dx, dweight, dbias = batch.backward(dy, x, weight, bias, mean, rstd)
    else:
        dy = dy.contiguous(memory_format=memory_format(x))
        mean, rstd = mean.unbind(0) if rstd is None else (mean, rstd)
        if batch.activation == IDENTITY:
            given: tuple[Any, ...] = (dy, x, weight, mean, rstd, batch.epsilon, batch.options)
            dx, dweight, dbias = normalization.batch_norm_backward(*given)
        else:
            given = (dy, x, weight, bias, mean, rstd, batch.epsilon, batch.activation, batch.options)
            dx, dweight, dbias = batch_norm_activation.batch_norm_activation_backward(*given)
    return (
        None,
        dx if wants_x else None,
        dweight if wants_weight else None,
        dbias if wants_bias else None,
        None,
        None,
    )


class _Layer(torch.autograd.Function):
    """A normalization with gradients."""

    @staticmethod
    def forward(
        ctx: Any,
        batch: Batch,
        x: Tensor,
        weight: Tensor,
        bias: Tensor,
        mean: Tensor | None,
        var: Tensor | None,
    ) -> Tensor:
        y, statistics = batch.forward(x, weight, bias, mean, var)
        ctx.batch, ctx.is_short = batch, hooks_of_saved(False) is None
        given = (x, weight) if batch.activation == IDENTITY else (x, weight, bias)
        # a checkpoint may have begun with the operator, and counts on what that saves
        ctx.save_for_backward(*given, *((statistics,) if ctx.is_short else statistics.unbind(0)))
        return y

    backward = staticmethod(_gradients)


_apply = applied(_Layer, _gradients)


class Known:
    """A call that a module has made before."""

    __slots__ = ("batch", "check", "state")

    def __init__(self, batch: Batch, state: tuple[Any, ...], check: Callable[..., bool]) -> None:
        self.batch, self.state, self.check = batch, state, check


def recalled(
    calls: Remembered, x: Tensor, tensors: tuple[Tensor | None, ...], now: tuple[Any, ...]
) -> Batch | None:
    """What runs this call, if the module has made it before. `now`: see `learn`."""
    if not (kinds.observers or kinds.threads_apart or x.is_nested):
        for known in calls.entries:
            if known.state == now and known.check(x, *[one for one in tensors if one is not None]):
                batch: Batch = known.batch
                return batch
    return None


def learn(
    calls: Remembered, batch: Batch, x: Tensor, tensors: tuple[Tensor | None, ...], now: tuple[Any, ...]
) -> None:
    """Remember a call. `now`: what else than the tensors tells calls apart, the epoch of kinds.py at `_EPOCH`."""
    if not (calls.is_full or kinds.observers or kinds.threads_apart):
        check = guards.guard(x, *[one for one in tensors if one is not None])
        calls.add(Known(batch, now, check), _EPOCH)

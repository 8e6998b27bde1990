"""Batch normalization in training, a sum and a rectifier behind it, as one operation: the end of a residual block.

    y = max((x - mean) * rstd * weight + bias + z, 0)

By themselves the sum and the rectifier read three tensors and write two, and the rectifier's gradient reads two and
writes one. Here the kernel of the normalization reads z besides, and that of its gradients y; x and y are kept for the
backward pass, as before. Calls are chosen as a whole (whole.py); deferred.py finds them in models.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import increment_version
from torch.nn import functional as F  # noqa: N812

from jitdnn.frameworks.torch import kinds, normalization
from jitdnn.frameworks.torch.eager import is_taken
from jitdnn.frameworks.torch.fresh import fresh, fresh_like, without_data
from jitdnn.frameworks.torch.launch import Direct
from jitdnn.frameworks.torch.normalization import batch_launch
from jitdnn.frameworks.torch.options import handle_of
from jitdnn.frameworks.torch.registry import plain_device
from jitdnn.retention import Recent

_TYPES = (torch.float32, torch.float64)
_prepared: Recent[tuple[Any, ...], _Launches | None] = Recent(1024)


def stock(
    input: Tensor, z: Tensor, running_mean: Tensor | None, running_var: Tensor | None, weight: Tensor, bias: Tensor,
    training: bool, eps: float, momentum: float,
) -> Tensor:  # fmt: skip
    """By torch's functions, with as few tensors as they can do with."""
    y = F.batch_norm(input, running_mean, running_var, weight, bias, training, momentum, eps)
    return F.relu(y.add_(z), inplace=True)


stock.__name__ = "batch_norm_sum_relu"  # by which times of its calls are kept


class _Launches:
    """The launches of both directions for tensors of one form."""

    __slots__ = ("_backward", "_forward", "_made", "_step", "epsilon", "options", "strides")

    def __init__(
        self, forward: Direct, backward: Direct, made: tuple[Callable[[], Tensor], ...], step: int,
        strides: tuple[int, ...], epsilon: float, options: str,
    ) -> None:  # fmt: skip
        assert forward is not None
        assert backward is not None
        self._forward, self._backward, self._made, self._step = forward.at, backward.at, made, step
        self.strides, self.epsilon, self.options = strides, epsilon, options

    def forward(
        self, x: Tensor, z: Tensor, weight: Tensor, bias: Tensor, mean: Tensor | None, var: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """The result, and the statistics of the batch: their mean and 1 / sigma. The running ones are updated."""
        y, statistics = self._made[0](), self._made[1]()
        here = statistics.data_ptr()
        given = (x.data_ptr(), z.data_ptr(), weight.data_ptr(), bias.data_ptr())
        written = (y.data_ptr(), here, here + self._step)
        if mean is None or var is None:
            self._forward((*given, *written))
        else:
            self._forward((*given, *written, mean.data_ptr(), var.data_ptr()))
            increment_version(mean)
            increment_version(var)
        return y, statistics

    def backward(
        self, dy: Tensor, x: Tensor, y: Tensor, weight: Tensor, statistics: Tensor
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """The gradients of x, z, weight and bias."""
        made, here = self._made, statistics.data_ptr()
        dx, dz, dweight, dbias = made[0](), made[0](), made[2](), made[2]()
        given = (dy.data_ptr(), x.data_ptr(), y.data_ptr(), weight.data_ptr(), here, here + self._step)
        self._backward((*given, dx.data_ptr(), dweight.data_ptr(), dbias.data_ptr(), dz.data_ptr()))
        return dx, dz, dweight, dbias


def _made(
    x: Tensor, z: Tensor, weight: Tensor, bias: Tensor, has_running: bool, momentum: float, epsilon: float, options: str
) -> _Launches | None:  # fmt: skip
    handle = handle_of(options, x.device.type)
    like, column = without_data(x), without_data(weight)
    state = column if has_running else None
    statistics = {"mean": column, "rstd": column}
    forward = batch_launch(
        handle, "fwd",
        {
            "x": x, "z": z, "weight": weight, "bias": bias, "y": like, **statistics, "running_mean": state,
            "running_var": state,
        },
        factor=momentum, epsilon=epsilon, activation="relu",
    )  # fmt: skip
    backward = batch_launch(
        handle, "bwd",
        {
            "dy": like, "x": x, "y": like, "weight": weight, **statistics, "dx": like, "dweight": column,
            "dbias": column, "dz": like,
        },
        activation="relu",
    )  # fmt: skip
    if forward is None or backward is None:
        return None
    forward.prepare(), backward.prepare()
    made = (
        fresh_like(like, x.device), fresh((2, *column.shape), (column.numel(), 1), column.dtype, x.device),
        fresh_like(column, x.device),
    )  # fmt: skip
    return _Launches(
        forward, backward, made, column.numel() * column.element_size(), like.stride(), epsilon, options
    )


def is_one(input: Tensor, z: Tensor, weight: Tensor | None, bias: Tensor | None) -> bool:
    """Whether ours may normalize, add and rectify tensors of these forms as one operation."""
    return (
        input.dim() >= 2
        and input.device.type == "cpu"
        and input.dtype in _TYPES
        and weight is not None
        and bias is not None
        and weight.shape == bias.shape == input.shape[1:2]
        and z.shape == input.shape
        and z.stride() == input.stride()
        and input.numel() > input.shape[1]  # torch refuses one element of a channel
        and is_taken(input, z, weight, bias)
    )


def route(
    input: Tensor, z: Tensor, running_mean: Tensor | None, running_var: Tensor | None, weight: Tensor, bias: Tensor,
    training: bool, eps: float, momentum: float, *, options: str = "",
) -> Any:  # fmt: skip
    """By ours. Raises what ours raise."""
    running = (running_mean, running_var)
    if not training or not is_one(input, z, weight, bias):
        return NotImplemented
    if not all(one is None or (one.dtype is input.dtype and one.is_contiguous()) for one in running):
        return NotImplemented
    key = (
        options, eps, momentum, torch.get_num_threads(), kinds.epoch, running_mean is None,
        *[(one.shape, one.stride(), one.dtype) for one in (input, weight, bias)],
    )  # fmt: skip
    launches = _prepared.recall(key)
    if launches is None:
        launches = _made(input, z, weight, bias, running_mean is not None, momentum, eps, options)
        if launches is None:
            return NotImplemented
        _prepared.put(key, launches)
    if torch.is_grad_enabled() and any(one.requires_grad for one in (input, z, weight, bias)):
        return _Summed.apply(launches, input, z, weight, bias, *running)
    return launches.forward(input, z, weight, bias, *running)[0]


class _Summed(torch.autograd.Function):
    """A call with gradients."""

    @staticmethod
    def forward(
        ctx: Any, launches: _Launches, x: Tensor, z: Tensor, weight: Tensor, bias: Tensor, mean: Tensor | None,
        var: Tensor | None,
    ) -> Tensor:  # fmt: skip
        y, statistics = launches.forward(x, z, weight, bias, mean, var)
        ctx.launches, ctx.laid = launches, [one.stride() for one in (x, weight, y)]
        ctx.save_for_backward(x, weight, y, statistics)
        return y

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> Any:
        x, weight, y, statistics = ctx.saved_tensors
        launches: _Launches = ctx.launches
        # hooks may hand out what lies otherwise, as those that save on the host do
        is_laid = [one.stride() for one in (x, weight, y)] == ctx.laid
        if torch.is_grad_enabled() or not (is_laid and plain_device((dy, x))):
            dz = torch.ops.aten.threshold_backward.default(dy, y, 0)  # by operators that have gradients
            mean, rstd = statistics.unbind(0)
            dx, dweight, dbias = normalization.batch_norm_backward(
                dz, x, weight, mean, rstd, launches.epsilon, launches.options
            )
        else:
            if dy.stride() != launches.strides:
                dy = torch.empty_strided(dy.shape, launches.strides, dtype=dy.dtype).copy_(dy)
            dx, dz, dweight, dbias = launches.backward(dy, x, y, weight, statistics)
        found = (None, dx, dz, dweight, dbias)
        return (
            *(
                one if is_wanted else None
                for one, is_wanted in zip(found, ctx.needs_input_grad, strict=False)
            ),
            None,
            None,
        )

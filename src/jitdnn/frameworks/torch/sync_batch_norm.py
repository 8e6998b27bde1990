"""Batch normalization with the statistics of a process group (`torch.nn.SyncBatchNorm`), and the activation behind it.

With n of all N elements of a channel in a process, mean m and variance v of them, x̂ = (x − M) / σ, z = γ x̂ + β and
y = f(z):

    M = Σ n/N m,   V = Σ n/N (v + (m − M)²)                        one gathering in the forward pass
    g = dy f'(z),  dx = γ/σ (g − Σ g / N − x̂ Σ g x̂ / N)           one sum in the backward pass

(Chan, Golub and LeVeque 1983 for V: sums of squares would cancel.) The numbers of all processes are joined in float64
and in the order of the processes, so each has the same bits. Neither z nor y is kept for the backward pass.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any, NamedTuple
from weakref import WeakSet

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from jitdnn.frameworks.torch.convolution import memory_format
from jitdnn.frameworks.torch.eager import is_taken
from jitdnn.frameworks.torch.options import handle_of, parse
from jitdnn.handle import Handle
from jitdnn.ops.elementwise import elementwise
from jitdnn.ops.reduction import reduction
from jitdnn.rtcg.activations import activation

Function = tuple[str, float | None]
"""An activation by its name and coefficient."""
IDENTITY: Function = ("identity", None)
_TYPES = (torch.float32, torch.float64)
UNSEEING: WeakSet[Any] = WeakSet()
"""Hooks that look at no tensor: modules that have no others may be joined."""
_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")


class _Kernels(NamedTuple):
    """With m, r the statistics M and 1/σ, s = γ/σ, b = β: z = (x − m) s + b."""

    normalize: Any
    sums: Any
    gradient: Any


_mean = reduction("x, share: x * share")
_variance = reduction("x, m, share: (x - m) * (x - m) * share")


@lru_cache(64)
def _kernels(function: Function) -> _Kernels:
    f = activation(*function)
    slope = f.backward()

    def normalize(x: Any, m: Any, s: Any, b: Any) -> Any:
        return f.forward.of((x - m) * s + b)

    def sums(dy: Any, x: Any, m: Any, r: Any, s: Any, b: Any) -> Any:
        g = slope.of(dy, (x - m) * s + b)
        return g, g * ((x - m) * r)

    def gradient(dy: Any, x: Any, m: Any, r: Any, s: Any, b: Any, first: Any, second: Any) -> Any:
        return s * (slope.of(dy, (x - m) * s + b) - first - (x - m) * r * second)

    return _Kernels(elementwise(normalize), reduction(sums), elementwise(gradient))


def function_of(kind: type[nn.Module], module: nn.Module) -> Function | None:
    """The activation that a module of PyTorch's class `kind` is, None for another one."""
    named = _NAMED.get(kind)
    return None if named is None else named(module)


_NAMED: dict[type[nn.Module], Callable[[Any], Function | None]] = {
    nn.ReLU: lambda module: ("relu", None),
    nn.ReLU6: lambda module: ("clipped_relu", 6.0),
    nn.LeakyReLU: lambda module: (
        ("leaky_relu", module.negative_slope) if module.negative_slope >= 0 else None
    ),
    nn.SiLU: lambda module: ("swish", 1.0),
    nn.ELU: lambda module: ("elu", 1.0) if module.alpha == 1.0 else None,
    nn.GELU: lambda module: ("gelu" if module.approximate == "none" else "gelu_tanh", None),
    nn.Mish: lambda module: ("mish", None),
    nn.Hardswish: lambda module: ("hard_swish", None),
    nn.Tanh: lambda module: ("tanh", None),
    nn.Sigmoid: lambda module: ("sigmoid", None),
}


def group_of(module: Any, x: Tensor, options: str) -> Any:
    """The processes whose statistics a call of a layer exchanges by ours, None where torch's own function runs.

    On processors torch has none. On GPUs its own runs unless nothing is to be measured: all processes must run the
    same, and times that each takes for itself may tell them different things.
    """
    if not module.training or not (dist.is_available() and dist.is_initialized()):
        return None
    group = module.process_group or dist.group.WORLD
    if dist.get_world_size(group) < 2 or (x.is_cuda and parse(options).measure != "never"):
        return None
    of = (module.weight, module.bias, module.running_mean, module.running_var)
    is_good = x.dtype in _TYPES and x.dim() >= 2 and 0 < x.shape[1] == module.num_features
    if not is_good or not _is_taken(x) or any(one is not None and one.dtype != x.dtype for one in of):
        return None
    return group


def _is_taken(x: Tensor) -> bool:
    """Also of no rows: a process that has none takes part in the exchange."""
    return is_taken(x if x.numel() else x.new_empty((1,)))


def synchronized(
    x: Tensor, module: Any, momentum: float, function: Function, group: Any, options: str
) -> Tensor:
    """f((x − M) γ/σ + β) with the statistics of the group's batches, which also update the running ones."""
    running = (module.running_mean, module.running_var) if module.track_running_stats else (None, None)
    handle = handle_of(options, x.device.type)
    y: Tensor = _Synchronized.apply(
        x, module.weight, module.bias, *running, momentum, module.eps, function, group, handle
    )
    return y


class _Synchronized(torch.autograd.Function):
    """The normalization of one call."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor | None, bias: Tensor | None, running_mean: Tensor | None,
        running_var: Tensor | None, momentum: float, epsilon: float, function: Function, group: Any, handle: Handle,
    ) -> Tensor:  # fmt: skip
        mean, variance, count = _statistics(x, group, handle)
        if count:
            unbiased = variance * (count / max(1.0, count - 1.0))
            for running, new in ((running_mean, mean), (running_var, unbiased)):
                if running is not None:
                    running.lerp_(new.to(running.dtype), momentum)
        rstd = (variance + epsilon).rsqrt_()
        scale = rstd if weight is None else rstd * weight.detach()
        shift = torch.zeros_like(mean) if bias is None else bias.detach().double()
        column = (1, -1, *[1] * (x.dim() - 2))
        m, r, s, b = (one.to(x.dtype).view(column) for one in (mean, rstd, scale, shift))
        y = torch.empty_like(x, memory_format=memory_format(x))
        if x.numel():
            _kernels(function).normalize(x, m, s, b, out=y, handle=handle)
        ctx.save_for_backward(x, m, r, s, b)
        ctx.function, ctx.group, ctx.count, ctx.handle = function, group, count, handle
        return y

    @staticmethod
    @once_differentiable  # type: ignore[untyped-decorator]
    def backward(ctx: Any, *grads: Tensor) -> Any:
        x, m, r, s, b = ctx.saved_tensors
        kernels = _kernels(ctx.function)
        dy = grads[0].contiguous(memory_format=memory_format(x))
        sums = x.new_zeros((2, x.shape[1]))
        if x.numel():
            axes = (0, *range(2, x.dim()))
            kernels.sums(dy, x, m, r, s, b, axes=axes, out=(sums[0], sums[1]), handle=ctx.handle)
        needs = ctx.needs_input_grad
        dbias, dweight = (
            own.clone() if needed else None for own, needed in zip(sums, (needs[2], needs[1]), strict=True)
        )
        dx = None
        if needs[0]:
            dist.all_reduce(sums, group=ctx.group)
            dx = torch.empty_like(x, memory_format=memory_format(x))
            if x.numel():
                first, second = (one.view(m.shape) for one in sums.div_(ctx.count))
                kernels.gradient(dy, x, m, r, s, b, first, second, out=dx, handle=ctx.handle)
        return (dx, dweight, dbias, *[None] * 7)


def _statistics(x: Tensor, group: Any, handle: Handle) -> tuple[Tensor, Tensor, float]:
    """Mean and variance of each channel over all processes, of float64, and the number of elements of a channel."""
    channels = x.shape[1]
    own = torch.zeros(2 * channels + 1, dtype=torch.float64, device=x.device)
    if x.numel():
        axes, share = (0, *range(2, x.dim())), channels / x.numel()
        mean = x.new_empty((1, channels, *[1] * (x.dim() - 2)))
        _mean(x, share, axes=axes, keepdims=True, out=mean, handle=handle)
        variance = torch.empty_like(mean)
        _variance(x, mean, share, axes=axes, keepdims=True, out=variance, handle=handle)
        torch.cat((mean.view(-1), variance.view(-1)), out=own[:-1])
        own[-1] = x.numel() // channels
    parts = own.new_empty((dist.get_world_size(group), own.numel()))
    dist.all_gather(list(parts.unbind(0)), own, group=group)
    counts = parts[:, -1:]
    count = float(counts.sum())
    shares = counts / max(1.0, count)
    means, variances = parts[:, :channels], parts[:, channels:-1]
    mean = (shares * means).sum(0)
    return mean, (shares * (variances + (means - mean).square_())).sum(0), count


def is_watched(module: nn.Module) -> bool:
    """Whether somebody sees what goes into a module or comes out of it, or has put another function in its place."""
    own = module.__dict__
    if "forward" in own:
        return True
    for name in _HOOKS:
        if own[name] and any(hook not in UNSEEING for hook in own[name].values()):
            return True
    return bool(nn.modules.module._has_any_global_hook())

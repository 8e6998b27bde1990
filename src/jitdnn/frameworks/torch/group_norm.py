"""`torch.nn.functional.group_norm`, `instance_norm` and `rms_norm` by ours."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812

from jitdnn.frameworks.torch.eager import Eager, EagerOperation, is_taken
from jitdnn.frameworks.torch.fresh import without_data
from jitdnn.frameworks.torch.launch import Run
from jitdnn.frameworks.torch.normalization import dense_form, normalizing, statistics_dtype
from jitdnn.frameworks.torch.registry import is_autocast_on
from jitdnn.ops.group_norm import group_norm, group_norm_backward
from jitdnn.ops.layer_norm import rms_norm, rms_norm_backward
from jitdnn.problems.group_norm import GroupNorm
from jitdnn.problems.layer_norm import LayerNorm

_HALVES = (torch.float16, torch.bfloat16)
#: kinds of calls, a part of their settings: `_WIDE` ones are of half precision and give float32, as autocast wants it
_INSTANCES, _GROUPS_APART, _WIDE = "instances", "groups", "groups, wide"
#: torch's functions by the names that ours have for them
ACTIVATIONS: dict[str, Callable[..., Tensor]] = {
    "identity": lambda y: y, "relu": F.relu, "leaky_relu": F.leaky_relu, "clipped_relu": F.relu6, "swish": F.silu,
}  # fmt: skip
_ROOT_TYPES = (torch.float32, torch.float64)  # root mean squares of half precision are left to torch


def _forward(handle: Any, settings: Any, is_training: bool, tensors: Any) -> Any:
    x, weight, bias = tensors
    groups, epsilon, kind, activation = settings
    out: Any = None
    if kind == _WIDE:
        out = torch.empty_like(x, dtype=torch.float32)
        column = torch.empty((x.shape[0], groups), dtype=torch.float32, device=x.device)
        out = (out, column, torch.empty_like(column)) if is_training else out
    found = group_norm(
        x, groups, weight, bias,
        epsilon=epsilon, activation=activation, save=is_training, out=out, handle=handle,
    )  # fmt: skip
    return ((found[0],), found[1:]) if is_training else ((found,), ())


def _backward(handle: Any, settings: Any, grads: Any, tensors: Any, outputs: Any, saved: Any) -> Any:
    x, weight, bias = tensors
    groups, _, _, activation = settings
    return group_norm_backward(
        grads[0], x, weight, *saved, groups=groups, bias=None if activation == "identity" else bias,
        activation=activation, wants_bias=bias is not None, handle=handle,
    )  # fmt: skip


def _stock(settings: Any, tensors: Any) -> Any:
    x, weight, bias = tensors
    groups, epsilon, kind, activation = settings
    if kind == _INSTANCES:
        return (ACTIVATIONS[activation](F.instance_norm(x, None, None, weight, bias, eps=epsilon)),)
    if kind == _WIDE:
        x, weight, bias = (None if one is None else one.float() for one in tensors)
    return (F.group_norm(x, groups, weight, bias, epsilon),)


def _prepare(handle: Any, settings: Any, is_training: bool, tensors: Any) -> Run | None:
    x, weight, bias = tensors
    groups, epsilon, kind, activation = settings
    given = {"x": x, "weight": weight, "bias": bias}
    results = {"y": without_data(x, torch.float32 if kind == _WIDE else None)}
    if is_training:
        column = torch.empty((x.shape[0], groups), dtype=statistics_dtype(x), device="meta")
        results |= {"mean": column, "rstd": column}
    return normalizing(
        handle, GroupNorm, "fwd", given, results, x.device,
        groups=groups, epsilon=epsilon, activation=activation,
    )  # fmt: skip


def _prepare_gradient(handle: Any, settings: Any, dy: Tensor, kept: Any) -> Run | None:
    x, weight, bias, mean, rstd = kept
    groups, _, _, activation = settings
    read = None if activation == "identity" else bias
    given = {"dy": dy, "x": x, "weight": weight, "bias": read, "mean": mean, "rstd": rstd}
    results = {"dx": without_data(dy, x.dtype), "dweight": weight, "dbias": bias}
    return normalizing(
        handle, GroupNorm, "bwd", given, results, x.device, groups=groups, activation=activation
    )


_GROUPS = Eager(_forward, _backward, _stock, needs_outputs=False)


def _rms_forward(handle: Any, settings: Any, is_training: bool, tensors: Any) -> Any:
    axes, epsilon = settings
    x, weight = tensors
    found = rms_norm(x.contiguous(), weight, axis=-axes, epsilon=epsilon, save=is_training, handle=handle)
    return ((found[0],), found[1:]) if is_training else ((found,), ())


def _rms_backward(handle: Any, settings: Any, grads: Any, tensors: Any, outputs: Any, saved: Any) -> Any:
    x, weight = tensors
    return rms_norm_backward(
        grads[0].contiguous(), x.contiguous(), weight, *saved, axis=-settings[0], handle=handle
    )


def _rms_stock(settings: Any, tensors: Any) -> Any:
    axes, epsilon = settings
    x, weight = tensors
    return (F.rms_norm(x, x.shape[-axes:], weight, epsilon),)


def _prepare_rms(handle: Any, settings: Any, is_training: bool, tensors: Any) -> Run | None:
    x, weight = tensors
    axes, epsilon = settings
    dense = dense_form(x)
    given, results = {"x": dense, "weight": weight}, {"y": dense}
    if is_training:
        results |= {
            "rstd": torch.empty((*x.shape[: x.dim() - axes], *[1] * axes), dtype=x.dtype, device="meta")
        }
    run = normalizing(
        handle, LayerNorm, "fwd", given, results, x.device, form="rms", axis=-axes, epsilon=epsilon
    )
    if run is None or x.is_contiguous():
        return run
    return lambda x, weight: run(x.contiguous(), weight)


def _prepare_rms_gradient(handle: Any, settings: Any, dy: Tensor, kept: Any) -> Run | None:
    x, weight, rstd = kept
    dense = dense_form(x)
    given, results = (
        {"dy": dense, "x": dense, "weight": weight, "rstd": rstd},
        {"dx": dense, "dweight": weight},
    )
    run = normalizing(handle, LayerNorm, "bwd", given, results, x.device, form="rms", axis=-settings[0])
    if run is None or (dy.is_contiguous() and x.is_contiguous()):
        return run
    return lambda dy, x, *others: run(dy.contiguous(), x.contiguous(), *others)


_RMS = Eager(_rms_forward, _rms_backward, _rms_stock, needs_outputs=False)


def _is_ours(input: Tensor, weight: Tensor | None, bias: Tensor | None, channels: int) -> bool:
    """Whether ours normalize an image (N, C, space) with these parameters."""
    return (
        2 <= input.dim() <= 7
        and all(one is None or tuple(one.shape) == (channels,) for one in (weight, bias))
        and (weight is not None or bias is None)
        and is_taken(input, weight, bias, is_cast=False)
    )


Described = tuple[EagerOperation, tuple[Tensor | None, ...]]


def groups(
    input: Tensor, num_groups: int, weight: Tensor | None = None, bias: Tensor | None = None, eps: float = 1e-5,
) -> Described | None:  # fmt: skip
    """What runs calls of `group_norm` with these arguments, and its operands."""
    if not isinstance(num_groups, int) or num_groups < 1 or input.dim() < 2 or input.shape[1] % num_groups:
        return None
    kind = _GROUPS_APART
    if is_autocast_on(input.device.type):
        if not input.is_cuda:
            return None
        if input.dtype in _HALVES:  # autocast has it done in float32
            kind = _WIDE
    return _groups_of(kind, input, num_groups, weight, bias, eps)


def _groups_of(
    kind: str, input: Tensor, num_groups: int, weight: Tensor | None, bias: Tensor | None, eps: float
) -> Described | None:
    if not _is_ours(input, weight, bias, input.shape[1]) or input.numel() <= input.shape[0] * num_groups:
        return None
    return _described(_GROUPS, (num_groups, eps, kind, "identity"), input, weight, bias)


def instances(
    input: Tensor, running_mean: Tensor | None = None, running_var: Tensor | None = None,
    weight: Tensor | None = None, bias: Tensor | None = None, use_input_stats: bool = True, momentum: float = 0.1,
    eps: float = 1e-5, *, activation: str = "identity",
) -> Described | None:  # fmt: skip
    """And of `instance_norm`, with an activation behind it."""
    if running_mean is not None or running_var is not None or not use_input_stats or input.dim() < 3:
        return None
    channels = input.shape[1]
    if not _is_ours(input, weight, bias, channels) or input.numel() <= input.shape[0] * channels:
        return None  # torch refuses one element of a channel
    settings = channels, eps, _INSTANCES, activation
    return _described(
        _GROUPS, settings, input, weight, bias, told="" if activation == "identity" else activation
    )


def roots(
    input: Tensor, normalized_shape: Sequence[int], weight: Tensor | None = None, eps: float | None = None,
) -> Described | None:  # fmt: skip
    """And of `rms_norm`."""
    axes = len(normalized_shape)
    if not axes or tuple(input.shape[input.dim() - axes :]) != tuple(normalized_shape):
        return None
    if input.dtype not in _ROOT_TYPES or not is_taken(input, weight):
        return None
    if weight is not None and tuple(weight.shape) != tuple(normalized_shape):
        return None
    epsilon = torch.finfo(input.dtype).eps if eps is None else eps
    return _described(_RMS, (axes, epsilon), input, weight)


def _described(eager: Eager, settings: tuple[Any, ...], *tensors: Tensor | None, told: str = "") -> Described:
    prepare = (_prepare, _prepare_gradient) if eager is _GROUPS else (_prepare_rms, _prepare_rms_gradient)
    return EagerOperation(eager, settings, *prepare, parameters=len(tensors) - 1, told=told), tensors

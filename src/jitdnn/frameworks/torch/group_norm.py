"""`torch.nn.functional.group_norm`, `instance_norm` and `rms_norm` by ours."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812

from jitdnn.frameworks.torch.eager import Eager, is_taken
from jitdnn.ops.group_norm import group_norm, group_norm_backward
from jitdnn.ops.layer_norm import rms_norm, rms_norm_backward

_TYPES = (torch.float32, torch.float64)  # statistics of half precision are left to torch


def _forward(handle: Any, settings: Any, is_training: bool, tensors: Any) -> Any:
    x, weight, bias = tensors
    groups, epsilon, _ = settings
    found = group_norm(x, groups, weight, bias, epsilon=epsilon, save=is_training, handle=handle)
    return ((found[0],), found[1:]) if is_training else ((found,), ())


def _backward(handle: Any, settings: Any, grads: Any, tensors: Any, outputs: Any, saved: Any) -> Any:
    x, weight, bias = tensors
    return group_norm_backward(
        grads[0], x, weight, *saved, groups=settings[0], wants_bias=bias is not None, handle=handle
    )


def _stock(settings: Any, tensors: Any) -> Any:
    x, weight, bias = tensors
    groups, epsilon, is_instance = settings
    if is_instance:
        return (F.instance_norm(x, None, None, weight, bias, eps=epsilon),)
    return (F.group_norm(x, groups, weight, bias, epsilon),)


_GROUPS = Eager(_forward, _backward, _stock, needs_outputs=False)


def _rms_forward(handle: Any, settings: Any, is_training: bool, tensors: Any) -> Any:
    axes, epsilon = settings
    found = rms_norm(*tensors, axis=-axes, epsilon=epsilon, save=is_training, handle=handle)
    return ((found[0],), found[1:]) if is_training else ((found,), ())


def _rms_backward(handle: Any, settings: Any, grads: Any, tensors: Any, outputs: Any, saved: Any) -> Any:
    x, weight = tensors
    return rms_norm_backward(grads[0].contiguous(), x, weight, *saved, axis=-settings[0], handle=handle)


def _rms_stock(settings: Any, tensors: Any) -> Any:
    axes, epsilon = settings
    x, weight = tensors
    return (F.rms_norm(x, x.shape[-axes:], weight, epsilon),)


_RMS = Eager(_rms_forward, _rms_backward, _rms_stock, needs_outputs=False)


def _is_ours(input: Tensor, weight: Tensor | None, bias: Tensor | None, channels: int) -> bool:
    """Whether ours normalize an image (N, C, space) with these parameters."""
    return (
        2 <= input.dim() <= 7
        and input.dtype in _TYPES
        and all(one is None or tuple(one.shape) == (channels,) for one in (weight, bias))
        and (weight is not None or bias is None)
        and is_taken(input, weight, bias)
    )


def group_route(
    input: Tensor, num_groups: int, weight: Tensor | None = None, bias: Tensor | None = None, eps: float = 1e-5, *,
    options: str = "",
) -> Any:  # fmt: skip
    if not isinstance(num_groups, int) or num_groups < 1 or input.dim() < 2 or input.shape[1] % num_groups:
        return NotImplemented
    if not _is_ours(input, weight, bias, input.shape[1]) or input.numel() <= input.shape[0] * num_groups:
        return NotImplemented
    return _GROUPS(options, (num_groups, eps, False), input, weight, bias)[0]


def instance_route(
    input: Tensor, running_mean: Tensor | None = None, running_var: Tensor | None = None,
    weight: Tensor | None = None, bias: Tensor | None = None, use_input_stats: bool = True, momentum: float = 0.1,
    eps: float = 1e-5, *, options: str = "",
) -> Any:  # fmt: skip
    if running_mean is not None or running_var is not None or not use_input_stats or input.dim() < 3:
        return NotImplemented
    channels = input.shape[1]
    if not _is_ours(input, weight, bias, channels) or input.numel() <= input.shape[0] * channels:
        return NotImplemented  # torch refuses one element of a channel
    return _GROUPS(options, (channels, eps, True), input, weight, bias)[0]


def rms_route(
    input: Tensor, normalized_shape: Sequence[int], weight: Tensor | None = None, eps: float | None = None, *,
    options: str = "",
) -> Any:  # fmt: skip
    axes = len(normalized_shape)
    if not axes or tuple(input.shape[input.dim() - axes :]) != tuple(normalized_shape):
        return NotImplemented
    if input.dtype not in _TYPES or not is_taken(input, weight):
        return NotImplemented
    if weight is not None and tuple(weight.shape) != tuple(normalized_shape):
        return NotImplemented
    epsilon = torch.finfo(input.dtype).eps if eps is None else eps
    return _RMS(options, (axes, epsilon), input.contiguous(), weight)[0]

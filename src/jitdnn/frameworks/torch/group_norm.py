"""`torch.nn.functional.group_norm`, `instance_norm` and `rms_norm` by ours."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812

from jitdnn.frameworks.torch.eager import Eager, EagerOperation, is_taken
from jitdnn.frameworks.torch.fresh import without_data
from jitdnn.frameworks.torch.launch import Run
from jitdnn.frameworks.torch.normalization import dense_form, normalizing
from jitdnn.ops.group_norm import group_norm, group_norm_backward
from jitdnn.ops.layer_norm import rms_norm, rms_norm_backward
from jitdnn.problems.group_norm import GroupNorm
from jitdnn.problems.layer_norm import LayerNorm

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


def _prepare(handle: Any, settings: Any, is_training: bool, tensors: Any) -> Run | None:
    x, weight, bias = tensors
    groups, epsilon, _ = settings
    given, results = {"x": x, "weight": weight, "bias": bias}, {"y": without_data(x)}
    if is_training:
        column = torch.empty((x.shape[0], groups), dtype=x.dtype, device="meta")
        results |= {"mean": column, "rstd": column}
    return normalizing(handle, GroupNorm, "fwd", given, results, x.device, groups=groups, epsilon=epsilon)


def _prepare_gradient(handle: Any, settings: Any, dy: Tensor, kept: Any) -> Run | None:
    x, weight, bias, mean, rstd = kept
    given = {"dy": dy, "x": x, "weight": weight, "bias": None, "mean": mean, "rstd": rstd}  # it reads no bias
    results = {"dx": without_data(dy), "dweight": weight, "dbias": bias}
    return normalizing(handle, GroupNorm, "bwd", given, results, x.device, groups=settings[0])


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
        and input.dtype in _TYPES
        and all(one is None or tuple(one.shape) == (channels,) for one in (weight, bias))
        and (weight is not None or bias is None)
        and is_taken(input, weight, bias)
    )


Described = tuple[EagerOperation, tuple[Tensor | None, ...]]


def groups(
    input: Tensor, num_groups: int, weight: Tensor | None = None, bias: Tensor | None = None, eps: float = 1e-5,
) -> Described | None:  # fmt: skip
    """What runs calls of `group_norm` with these arguments, and its operands."""
    if not isinstance(num_groups, int) or num_groups < 1 or input.dim() < 2 or input.shape[1] % num_groups:
        return None
    if not _is_ours(input, weight, bias, input.shape[1]) or input.numel() <= input.shape[0] * num_groups:
        return None
    return _described(_GROUPS, (num_groups, eps, False), input, weight, bias)


def instances(
    input: Tensor, running_mean: Tensor | None = None, running_var: Tensor | None = None,
    weight: Tensor | None = None, bias: Tensor | None = None, use_input_stats: bool = True, momentum: float = 0.1,
    eps: float = 1e-5,
) -> Described | None:  # fmt: skip
    """And of `instance_norm`."""
    if running_mean is not None or running_var is not None or not use_input_stats or input.dim() < 3:
        return None
    channels = input.shape[1]
    if not _is_ours(input, weight, bias, channels) or input.numel() <= input.shape[0] * channels:
        return None  # torch refuses one element of a channel
    return _described(_GROUPS, (channels, eps, True), input, weight, bias)


def roots(
    input: Tensor, normalized_shape: Sequence[int], weight: Tensor | None = None, eps: float | None = None,
) -> Described | None:  # fmt: skip
    """And of `rms_norm`."""
    axes = len(normalized_shape)
    if not axes or tuple(input.shape[input.dim() - axes :]) != tuple(normalized_shape):
        return None
    if input.dtype not in _TYPES or not is_taken(input, weight):
        return None
    if weight is not None and tuple(weight.shape) != tuple(normalized_shape):
        return None
    epsilon = torch.finfo(input.dtype).eps if eps is None else eps
    return _described(_RMS, (axes, epsilon), input, weight)


def _described(eager: Eager, settings: tuple[Any, ...], *tensors: Tensor | None) -> Described:
    prepare = (_prepare, _prepare_gradient) if eager is _GROUPS else (_prepare_rms, _prepare_rms_gradient)
    return EagerOperation(eager, settings, *prepare, parameters=len(tensors) - 1), tensors

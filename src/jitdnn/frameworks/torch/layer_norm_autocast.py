"""`torch.nn.functional.layer_norm` of half precision under autocast on GPUs, which has it done in float32.

PyTorch copies what is normalized to float32 first, and its gradient back. Ours read half precision and give float32,
and the other way round in the backward pass: the same numbers in half the passes over memory.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812

from jitdnn.frameworks.torch.eager import Eager, EagerOperation, is_taken
from jitdnn.frameworks.torch.fresh import without_data
from jitdnn.frameworks.torch.launch import Run
from jitdnn.frameworks.torch.normalization import normalizing
from jitdnn.frameworks.torch.registry import is_autocast_on
from jitdnn.ops.layer_norm import layer_norm, layer_norm_backward
from jitdnn.problems.layer_norm import LayerNorm

_HALVES = (torch.float16, torch.bfloat16)


def _results(x: Tensor, axes: int, device: Any) -> tuple[Tensor, ...]:
    """Tensors for y and the statistics."""
    rows = (*x.shape[: x.dim() - axes], *[1] * axes)
    return tuple(torch.empty(shape, dtype=torch.float32, device=device) for shape in (x.shape, rows, rows))


def _forward(handle: Any, settings: Any, is_training: bool, tensors: Any) -> Any:
    x, weight, bias = tensors
    axes, epsilon = settings
    made = _results(x, axes, x.device)
    out = made if is_training else made[0]
    layer_norm(x, weight, bias, axis=-axes, epsilon=epsilon, save=is_training, out=out, handle=handle)
    return made[:1], made[1:] if is_training else ()


def _backward(handle: Any, settings: Any, grads: Any, tensors: Any, outputs: Any, saved: Any) -> Any:
    x, weight, bias = tensors
    dy = grads[0].contiguous()
    return layer_norm_backward(
        dy, x, weight, *saved, axis=-settings[0], wants_bias=bias is not None, handle=handle
    )


def _stock(settings: Any, tensors: Any) -> Any:
    x, weight, bias = tensors
    axes, epsilon = settings
    weight, bias = (None if one is None else one.float() for one in (weight, bias))
    return (F.layer_norm(x.float(), x.shape[-axes:], weight, bias, epsilon),)


def _prepare(handle: Any, settings: Any, is_training: bool, tensors: Any) -> Run | None:
    x, weight, bias = tensors
    axes, epsilon = settings
    names = ("y", "mean", "rstd") if is_training else ("y",)
    results: dict[str, Tensor | None] = dict(zip(names, _results(x, axes, "meta"), strict=False))
    given = {"x": x, "weight": weight, "bias": bias}
    return normalizing(
        handle, LayerNorm, "fwd", given, results, x.device, form="layer", axis=-axes, epsilon=epsilon
    )


def _prepare_gradient(handle: Any, settings: Any, dy: Tensor, kept: Any) -> Run | None:
    x, weight, bias, mean, rstd = kept
    if not dy.is_contiguous():
        return None
    given = {"dy": dy, "x": x, "weight": weight, "bias": None, "mean": mean, "rstd": rstd}  # it reads no bias
    results = {"dx": without_data(x), "dweight": weight, "dbias": bias}
    return normalizing(handle, LayerNorm, "bwd", given, results, x.device, form="layer", axis=-settings[0])


_WIDE = Eager(_forward, _backward, _stock, needs_outputs=False)


def widened(
    input: Tensor, normalized_shape: Sequence[int], weight: Tensor | None = None, bias: Tensor | None = None,
    eps: float = 1e-5,
) -> tuple[EagerOperation, tuple[Tensor | None, ...]] | None:  # fmt: skip
    """What runs calls with these arguments whose result is of float32, and its operands."""
    axes, shape = len(normalized_shape), tuple(normalized_shape)
    if not axes or tuple(input.shape[input.dim() - axes :]) != shape or input.dtype not in _HALVES:
        return None
    if any(one is not None and tuple(one.shape) != shape for one in (weight, bias)):
        return None
    if (weight is None) != (bias is None) or not is_taken(input, weight, bias, is_cast=False):
        return None
    operation = EagerOperation(_WIDE, (axes, eps), _prepare, _prepare_gradient, parameters=2)
    return operation, (input.contiguous(), weight, bias)


def described(
    input: Tensor, *arguments: Any, **named: Any
) -> tuple[EagerOperation, tuple[Tensor | None, ...]] | None:
    """The same where autocast has calls done so: on GPUs."""
    if torch.compiler.is_compiling() or not (input.is_cuda and is_autocast_on("cuda")):
        return None
    return widened(input, *arguments, **named)

"""`torch.nn.functional.cross_entropy` by ours."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812

from jitdnn.frameworks.torch.eager import Eager, is_taken
from jitdnn.ops.cross_entropy import cross_entropy, cross_entropy_backward


def _forward(handle: Any, settings: Any, is_training: bool, tensors: Any) -> Any:
    x, weight, target = tensors
    ignore, smoothing, reduction = settings
    loss, *saved = cross_entropy(x, target, weight, ignore, smoothing, reduction, True, handle=handle)
    if reduction != "none":
        loss.squeeze_()  # a view could not be changed in place, as a part of a sum is
    return (loss,), tuple(saved)


def _backward(handle: Any, settings: Any, grads: Any, tensors: Any, outputs: Any, saved: Any) -> Any:
    x, weight, target = tensors
    lse, total = (*saved, None)[:2]
    dloss = grads[0] if settings[2] == "none" else grads[0].reshape(1)
    ignore, smoothing, reduction = settings
    dx = cross_entropy_backward(
        dloss, x, target, lse, total, weight, ignore, smoothing, reduction, handle=handle
    )
    return dx, None, None


def _stock(settings: Any, tensors: Any) -> Any:
    x, weight, target = tensors
    ignore, smoothing, reduction = settings
    loss = F.cross_entropy(
        x, target, weight, ignore_index=ignore, label_smoothing=smoothing, reduction=reduction
    )
    return (loss,)


_EAGER = Eager(_forward, _backward, _stock, needs_outputs=False)


def route(
    input: Tensor, target: Tensor, weight: Tensor | None = None, size_average: Any = None, ignore_index: int = -100,
    reduce: Any = None, reduction: str = "mean", label_smoothing: float = 0.0, *, options: str = "",
) -> Any:  # fmt: skip
    """Of classes, with weights that want no gradient; others are torch's."""
    if size_average is not None or reduce is not None or input.dim() < 2 or target.dtype is not torch.int64:
        return NotImplemented
    if target.shape != (input.shape[0], *input.shape[2:]) or target.device != input.device:
        return NotImplemented
    if weight is not None and (weight.requires_grad or weight.shape != input.shape[1:2]):
        return NotImplemented
    if not is_taken(input, weight) or type(target) is not Tensor or reduction not in ("mean", "sum", "none"):
        return NotImplemented
    return _EAGER(options, (ignore_index, label_smoothing, reduction), input, weight, target)[0]

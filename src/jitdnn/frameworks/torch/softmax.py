"""`torch.nn.functional.softmax` and `log_softmax` by ours."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812

from jitdnn.frameworks.torch.eager import Eager, is_taken
from jitdnn.ops.softmax import softmax, softmax_backward

aten = torch.ops.aten


def _forward(handle: Any, settings: Any, is_training: bool, tensors: Any) -> Any:
    axis, algorithm = settings
    return (softmax(tensors[0], axis, algorithm, handle=handle),), ()


def _backward(handle: Any, settings: Any, grads: Any, tensors: Any, outputs: Any, saved: Any) -> Any:
    axis, algorithm = settings
    return (softmax_backward(grads[0], outputs[0], axis, algorithm, handle=handle),)


def _stock(settings: Any, tensors: Any) -> Any:
    axis, algorithm = settings
    return ((F.log_softmax if algorithm == "log" else F.softmax)(tensors[0], axis),)


def _derivative(settings: Any, grads: Any, outputs: Any) -> Any:
    axis, algorithm = settings
    (dy,), (y,) = grads, outputs
    function = aten._log_softmax_backward_data if algorithm == "log" else aten._softmax_backward_data
    return (function(dy, y, axis, y.dtype),)


_EAGER = Eager(_forward, _backward, _stock, derivative=_derivative)


def _route(
    algorithm: str,
    input: Tensor,
    dim: int | None = None,
    _stacklevel: int = 3,
    dtype: Any = None,
    *,
    options: str = "",
) -> Any:
    if dim is None or dtype is not None or not 0 < input.dim() <= 8 or not is_taken(input):
        return NotImplemented
    if not -input.dim() <= dim < input.dim():
        return NotImplemented
    return _EAGER(options, (dim % input.dim(), algorithm), input)[0]


softmax_route = partial(_route, "accurate")
log_softmax_route = partial(_route, "log")

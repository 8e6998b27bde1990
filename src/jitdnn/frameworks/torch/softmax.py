"""`torch.nn.functional.softmax` and `log_softmax` by ours."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812

from jitdnn.frameworks.torch.eager import Eager, EagerOperation, is_taken
from jitdnn.frameworks.torch.fresh import without_data
from jitdnn.frameworks.torch.launch import Run, descriptor, prepared
from jitdnn.ops.softmax import softmax, softmax_backward
from jitdnn.problems.softmax import Softmax

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


def _prepare(handle: Any, settings: Any, is_training: bool, tensors: Any) -> Run | None:
    (x,), (axis, algorithm) = tensors, settings
    return prepared(
        handle, lambda: Softmax.make("fwd", descriptor(x), axis, algorithm, y=descriptor(x)), (x,), (without_data(x),),
        x.device, True,
    )  # fmt: skip


def _prepare_gradient(handle: Any, settings: Any, dy: Tensor, kept: Any) -> Run | None:
    (y,), (axis, algorithm) = kept, settings

    def make() -> Softmax:
        result, gradient = descriptor(y), descriptor(dy)
        return Softmax.make("bwd", result, axis, algorithm, y=result, dx=gradient, dy=gradient)

    return prepared(handle, make, (dy, y), (without_data(dy),), dy.device, True)


def described(
    algorithm: str, input: Tensor, dim: int | None = None, _stacklevel: int = 3, dtype: Any = None
) -> tuple[EagerOperation, tuple[Tensor]] | None:
    """What runs calls of `softmax` or `log_softmax` with these arguments, and its operand."""
    if dim is None or dtype is not None or not 0 < input.dim() <= 8 or not is_taken(input):
        return None
    if not -input.dim() <= dim < input.dim():
        return None
    settings = dim % input.dim(), algorithm
    return EagerOperation(_EAGER, settings, _prepare, _prepare_gradient), (input,)

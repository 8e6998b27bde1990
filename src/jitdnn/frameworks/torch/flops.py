"""What PyTorch's `FlopCounterMode` counts for our operators: as much as for its own."""

from __future__ import annotations

from math import prod
from typing import Any

import torch
from torch.utils.flop_counter import flop_registry, register_flop_formula

from jitdnn.frameworks.torch.convolution_operators import convolution, convolution_backward
from jitdnn.frameworks.torch.linear import linear, linear_backward

aten = torch.ops.aten


def _convolution(x: Any, w: Any, bias: Any, *arguments: Any, **named: Any) -> int:
    found: int = _of_shapes(aten.convolution, x, w, bias, *arguments[:6], **named)
    return found


def _convolution_backward(dy: Any, x: Any, w: Any, *arguments: Any, **named: Any) -> int:
    found: int = _of_shapes(aten.convolution_backward, dy, x, w, None, *arguments[:7], **named)
    return found


def _linear(x: Any, w: Any, *_: Any, **named: Any) -> int:
    return int(2 * prod(x) * w[0])


def _linear_backward(dy: Any, x: Any, w: Any, mask: Any, *_: Any, **named: Any) -> int:
    return int(2 * prod(x) * w[0] * sum(map(bool, mask[:2])))


def _of_shapes(operator: Any, *shapes: Any, out_shape: Any, **_: Any) -> Any:
    """PyTorch's own formula, which takes shapes in the places of tensors."""
    return flop_registry[operator](*shapes, out_val=out_shape)


for _operator, _formula in (
    (convolution, _convolution),
    (convolution_backward, _convolution_backward),
    (linear, _linear),
    (linear_backward, _linear_backward),
):
    register_flop_formula(_operator.default.overloadpacket)(_formula)

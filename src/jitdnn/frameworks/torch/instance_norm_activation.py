"""Instance normalization and the activation behind it, as one operation of eager calls.

As with batches (batch_norm_activation.py) the activation takes no passes over memory of its own, and what it was of is
computed anew in the backward pass.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor
from torch.nn import functional as F  # noqa: N812

from jitdnn.frameworks.torch import group_norm

#: activations that are one operation with the normalization before them (function and coefficient), and ours' names
FUSED: dict[Any, str] = {
    ("relu", None): "relu",
    ("leaky_relu", 0.01): "leaky_relu",
    ("clipped_relu", 6.0): "clipped_relu",
    ("swish", 1.0): "swish",
}


def stock(input: Tensor, weight: Tensor, bias: Tensor, activation: str, inplace: bool, eps: float) -> Tensor:
    """By torch's functions."""
    y = F.instance_norm(input, None, None, weight, bias, eps=eps)
    found: Tensor = group_norm.ACTIVATIONS[activation](y, inplace=inplace)
    return found


stock.__name__ = "instance_norm_activation"  # by which times of its calls are kept


def described(
    input: Tensor, weight: Tensor, bias: Tensor, activation: str, inplace: bool, eps: float
) -> group_norm.Described | None:
    """What runs calls with these arguments, and its operands."""
    return group_norm.instances(input, None, None, weight, bias, eps=eps, activation=activation)

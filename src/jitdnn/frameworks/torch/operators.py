"""The operators `torch.ops.jitdnn.*`; importing this defines them all."""

from __future__ import annotations

from jitdnn.frameworks.torch import flops  # noqa: F401  registers what PyTorch counts
from jitdnn.frameworks.torch.activation import activation, activation_backward
from jitdnn.frameworks.torch.batch_norm_activation import (
    batch_norm_activation,
    batch_norm_activation_backward,
)
from jitdnn.frameworks.torch.convolution_operators import convolution, convolution_backward
from jitdnn.frameworks.torch.convolution_pointwise import convolution_pointwise
from jitdnn.frameworks.torch.linear import linear, linear_backward
from jitdnn.frameworks.torch.normalization import (
    batch_norm,
    batch_norm_backward,
    layer_norm,
    layer_norm_backward,
)
from jitdnn.frameworks.torch.pooling import avg_pool, avg_pool_backward, max_pool, max_pool_backward
from jitdnn.frameworks.torch.settled import settled_convolution

__all__ = [
    "activation",
    "activation_backward",
    "avg_pool",
    "avg_pool_backward",
    "batch_norm",
    "batch_norm_activation",
    "batch_norm_activation_backward",
    "batch_norm_backward",
    "convolution",
    "convolution_backward",
    "convolution_pointwise",
    "layer_norm",
    "layer_norm_backward",
    "linear",
    "linear_backward",
    "max_pool",
    "max_pool_backward",
    "settled_convolution",
]

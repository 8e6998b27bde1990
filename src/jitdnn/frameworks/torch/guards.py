"""PyTorch's own guards of compiled graphs, written in C++: whether tensors are like others that were seen before."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

_Guards: Any = getattr(getattr(getattr(torch._C, "_dynamo", None), "guards", None), "TensorGuards", None)


def are_there() -> bool:
    """Whether this PyTorch has them."""
    return _Guards is not None


def guard(*tensors: Tensor) -> Callable[..., bool]:
    """Whether tensors are like these ones, each the one in its place: classes, dispatch keys with those that modes,
    autocast and transforms add, types, devices, shapes, strides, and who wants a gradient."""
    sizes, strides = [list(one.shape) for one in tensors], [list(one.stride()) for one in tensors]
    check: Callable[..., bool] = _Guards(
        *tensors, dynamic_dims_sizes=sizes, dynamic_dims_strides=strides
    ).check
    return check

"""Tensors for results in the shortest way that PyTorch has: its compiled graphs allocate by the same functions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

_guards: Any = getattr(getattr(torch._C, "_dynamo", None), "guards", None)


def fresh(
    shape: Sequence[int], strides: Sequence[int], dtype: torch.dtype, device: torch.device
) -> Callable[[], Tensor]:
    """What makes a tensor of this form at each call, without values."""
    shape, strides = tuple(shape), tuple(strides)
    quick = getattr(_guards, f"_empty_strided_{device.type}", None)

    def made() -> Tensor:
        return torch.empty_strided(shape, strides, dtype=dtype, device=device)

    if quick is None:
        return made
    if device.type == "cpu":
        return partial(quick, shape, strides, dtype)

    def on_its_device() -> Tensor:
        found: Tensor = quick(shape, strides, dtype)  # of the current GPU
        return found if found.device == device else made()

    return on_its_device


def fresh_like(form: Tensor, device: torch.device) -> Callable[[], Tensor]:
    """The same of a tensor that may be without data; dense, in its order of axes, as `torch.empty_like` gives it."""
    like = torch.empty_like(form, device="meta")
    return fresh(like.shape, like.stride(), like.dtype, device)

"""Torch's own kernels, within reach also where ours stand in their place."""

from __future__ import annotations

from typing import Any

import torch

KEYS = {"cpu": "CPU", "cuda": "CUDA"}
"""Types of devices, and the dispatch keys of their kernels."""

#: the kernels that ours have replaced, by operator and type of device
originals: dict[tuple[Any, str], Any] = {}


def stock(function: Any, *arguments: Any) -> Any:
    """Call an operator of `torch.ops.aten` with torch's kernel; all arguments by place, a tensor first."""
    if originals:
        device = arguments[0].device.type
        original = originals.get((function, device))
        if original is not None:
            key = torch._C.DispatchKeySet(getattr(torch._C.DispatchKey, KEYS[device]))
            return original.call_boxed(key, *arguments)
    return function(*arguments)

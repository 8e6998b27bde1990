"""`torch.ops.jitdnn.cat_in_place`, `interleave` and `stored`: tensors side by side, and what lies in memory.

In graphs of Inductor's (inductor_concatenation.py), which it lowers as `torch.cat`, and to nothing
(inductor_lowering.py): whatever computes a part of a concatenation writes it where it belongs.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product

import torch
from torch import Tensor

from jitdnn.frameworks.torch.registry import define


def _kernel(tensors: Sequence[Tensor], dim: int, strides: Sequence[int]) -> Tensor:
    out = _fake(tensors, dim, strides)
    begin = 0
    for one in tensors:
        out.narrow(dim, begin, one.shape[dim]).copy_(one)
        begin += one.shape[dim]
    return out


def _fake(tensors: Sequence[Tensor], dim: int, strides: Sequence[int]) -> Tensor:
    first = tensors[0]
    shape = list(first.shape)
    shape[dim] = sum(one.shape[dim] for one in tensors)
    return torch.empty_strided(shape, strides, dtype=first.dtype, device=first.device)


cat_in_place = define(
    "cat_in_place(Tensor[] tensors, int dim, int[] strides) -> Tensor", _kernel, _fake, has_batching=True
)


def places_of(windows: Sequence[int]) -> list[tuple[int, ...]]:
    """The places in a window, in their order."""
    return list(product(*(range(one) for one in windows)))


def _interleave(tensors: Sequence[Tensor], windows: Sequence[int], strides: Sequence[int]) -> Tensor:
    out = _interleave_fake(tensors, windows, strides)
    for one, place in zip(tensors, places_of(windows), strict=True):
        steps = (slice(begin, None, step) for begin, step in zip(place, windows, strict=True))
        out[(slice(None), slice(None), *steps)].copy_(one)
    return out


def _interleave_fake(tensors: Sequence[Tensor], windows: Sequence[int], strides: Sequence[int]) -> Tensor:
    batch, channels, *space = tensors[0].shape
    shape = (batch, channels, *(size * of for size, of in zip(space, windows, strict=True)))
    return torch.empty_strided(shape, strides, dtype=tensors[0].dtype, device=tensors[0].device)


interleave = define(
    "interleave(Tensor[] tensors, int[] windows, int[] strides) -> Tensor",
    _interleave,
    _interleave_fake,
    has_batching=True,
)
"""Pixels of a window from a tensor each: (N, C, space) of each place make (N, C, space times windows)."""

stored = define(
    "stored(Tensor x) -> Tensor", lambda x: x.clone(), lambda x: torch.empty_like(x), has_batching=True
)
"""What lies in memory when others read it, wherever that is: of what is cheap Inductor would have each compute it."""

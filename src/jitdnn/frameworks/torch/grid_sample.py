"""`torch.nn.functional.grid_sample` by ours."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812

from jitdnn.frameworks.torch.eager import Eager, is_taken
from jitdnn.ops.spatial_transformer import grid_sample, grid_sample_backward


def _forward(handle: Any, settings: Any, is_training: bool, tensors: Any) -> Any:
    (x, grid), (mode, padding, align) = tensors, settings
    return (grid_sample(x, grid, mode, padding, align, handle=handle),), ()


def _backward(handle: Any, settings: Any, grads: Any, tensors: Any, outputs: Any, saved: Any) -> Any:
    (x, grid), (mode, padding, align) = tensors, settings
    return grid_sample_backward(grads[0], x, grid, mode, padding, align, handle=handle)


def _stock(settings: Any, tensors: Any) -> Any:
    mode, padding, align = settings
    x, grid = tensors
    return (F.grid_sample(x, grid, "bilinear" if mode == "linear" else mode, padding, align),)


_EAGER = Eager(_forward, _backward, _stock, needs_outputs=False)


def route(
    input: Tensor, grid: Tensor, mode: str = "bilinear", padding_mode: str = "zeros", align_corners: bool | None = None,
    *, options: str = "",
) -> Any:  # fmt: skip
    """Of images (N, C, H, W) and volumes, "bilinear" and "nearest". Without `align_corners` torch's, which warns.

    In half precision torch rounds the places too, and reads other elements.
    """
    if mode not in ("bilinear", "nearest") or padding_mode not in ("zeros", "border", "reflection"):
        return NotImplemented
    space = input.dim() - 2
    if align_corners is None or space not in (2, 3) or input.dtype not in (torch.float32, torch.float64):
        return NotImplemented
    if not is_taken(input, grid):
        return NotImplemented
    if grid.dim() != input.dim() or grid.shape[0] != input.shape[0] or grid.shape[-1] != space:
        return NotImplemented
    return _EAGER(
        options, ("linear" if mode == "bilinear" else mode, padding_mode, align_corners), input, grid
    )[0]

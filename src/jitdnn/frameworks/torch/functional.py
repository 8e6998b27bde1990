"""The functions of `torch.nn.functional` that are ours: their arguments, checked and turned into those of operators."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812

from jitdnn.frameworks.torch.convolution_operators import convolution as operator

PerAxis = int | Sequence[int]

_STOCK = {1: F.conv1d, 2: F.conv2d, 3: F.conv3d}
_STOCK_TRANSPOSED = {1: F.conv_transpose1d, 2: F.conv_transpose2d, 3: F.conv_transpose3d}


def convolution(
    x: Tensor,
    w: Tensor,
    bias: Tensor | None,
    stride: PerAxis = 1,
    padding: PerAxis | str = 0,
    dilation: PerAxis = 1,
    groups: int = 1,
    output_padding: PerAxis | None = None,
    options: str = "",
) -> Tensor:
    """The convolution of x (N, C, space) or (C, space) by w, as `torch.nn.functional.conv2d` and its kin give it.

    With `output_padding`, the transposed one. What torch refuses is refused by torch's own function.
    """
    space = w.dim() - 2
    is_transposed = output_padding is not None
    if x.dim() == space + 1 and space in _STOCK:
        y = convolution(x.unsqueeze(0), w, bias, stride, padding, dilation, groups, output_padding, options)
        return y.squeeze(0)
    if x.dim() != space + 2 or space not in _STOCK or x.is_complex():
        stock: Any = (_STOCK_TRANSPOSED if is_transposed else _STOCK).get(space, F.conv2d)
        last = (output_padding, groups, dilation) if is_transposed else (dilation, groups)
        result: Tensor = stock(x, w, bias, stride, padding, *last)
        return result
    strides, dilations = _each(stride, space), _each(dilation, space)
    if isinstance(padding, str):
        x, padding = _padded(x, w, padding, strides, dilations)
    return operator(
        x, w, bias, strides, _each(padding, space), dilations, is_transposed, _each(output_padding or 0, space),
        groups, options,
    )  # fmt: skip


def _each(value: PerAxis, space: int) -> list[int]:
    """One number for each axis."""
    if isinstance(value, int):
        return [value] * space
    return [*value] * (space if len(value) == 1 else 1)


def _padded(
    x: Tensor, w: Tensor, padding: str, stride: Sequence[int], dilation: Sequence[int]
) -> tuple[Tensor, list[int]]:
    """x and the padding in numbers for "valid" and "same"; where the two sides differ x is padded before."""
    if padding == "valid":
        return x, [0] * len(dilation)
    if padding != "same" or any(step != 1 for step in stride):
        raise RuntimeError(
            f"padding is {padding!r} with stride {tuple(stride)}: it must be 'valid', 'same' with stride 1, or numbers"
        )
    total = [d * (taps - 1) for d, taps in zip(dilation, w.shape[2:], strict=True)]
    if any(one % 2 for one in total):
        sides = [side for one in reversed(total) for side in (0, one % 2)]
        x = F.pad(x, sides)
    return x, [one // 2 for one in total]


def conv(x: Tensor, w: Tensor, bias: Tensor | None = None, stride: PerAxis = 1, padding: PerAxis | str = 0,
           dilation: PerAxis = 1, groups: int = 1, *, options: str = "") -> Tensor:  # fmt: skip
    """`torch.nn.functional.conv2d` and its kin, by the dimensions of w."""
    return convolution(x, w, bias, stride, padding, dilation, groups, options=options)


def conv_transpose(x: Tensor, w: Tensor, bias: Tensor | None = None, stride: PerAxis = 1, padding: PerAxis = 0,
                   output_padding: PerAxis = 0, groups: int = 1, dilation: PerAxis = 1, *,
                   options: str = "") -> Tensor:  # fmt: skip
    """`torch.nn.functional.conv_transpose2d` and its kin, by the dimensions of w."""
    return convolution(x, w, bias, stride, padding, dilation, groups, output_padding, options)


#: functions of torch -> ours
ROUTES: dict[Any, Any] = {
    **dict.fromkeys((F.conv1d, F.conv2d, F.conv3d, torch.conv1d, torch.conv2d, torch.conv3d), conv),
    **dict.fromkeys(
        (
            F.conv_transpose1d, F.conv_transpose2d, F.conv_transpose3d,
            torch.conv_transpose1d, torch.conv_transpose2d, torch.conv_transpose3d,
        ),
        conv_transpose,
    ),
}  # fmt: skip

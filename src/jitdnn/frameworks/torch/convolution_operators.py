"""`torch.ops.jitdnn.convolution` and its gradient: schemas, shapes, gradients, types under autocast, rules of vmap.

`jitdnn::convolution` has the meaning of `aten::convolution`, of any number of derivatives.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from jitdnn.frameworks.torch import convolution as kernels
from jitdnn.frameworks.torch.calls import Layer
from jitdnn.frameworks.torch.registry import define, library

aten = torch.ops.aten
_ARGUMENTS = (
    "SymInt[] stride, SymInt[] padding, SymInt[] dilation, bool transposed, SymInt[] output_padding, "
    "SymInt groups"
)


def _fake_convolution(
    x: Tensor, w: Tensor, bias: Tensor | None, stride: Sequence[int], padding: Sequence[int], dilation: Sequence[int],
    transposed: bool, output_padding: Sequence[int], groups: int, options: str = "",
) -> Tensor:  # fmt: skip
    # torch's own checks and shape rule; what lies where is ours
    y = aten.convolution.default(x, w, bias, stride, padding, dilation, transposed, output_padding, groups)
    return torch.empty(y.shape, dtype=x.dtype, device=x.device, memory_format=kernels.memory_format(x, w))


def _fake_backward(
    dy: Tensor, x: Tensor, w: Tensor, stride: Sequence[int], padding: Sequence[int], dilation: Sequence[int],
    transposed: bool, output_padding: Sequence[int], groups: int, output_mask: Sequence[bool], options: str = "",
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    nothing = x.new_empty((0,))
    return (
        torch.empty_like(x) if output_mask[0] else nothing,
        torch.empty_like(w) if output_mask[1] else x.new_empty((0,)),
        x.new_empty((dy.shape[1],)) if output_mask[2] else x.new_empty((0,)),
    )


def _save_convolution(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    x, w, bias, *arguments, options = inputs
    ctx.save_for_backward(x, w)
    ctx.arguments, ctx.options, ctx.has_bias = arguments, options, bias is not None


def _backward_of_convolution(ctx: Any, dy: Tensor) -> tuple[Any, ...]:
    x, w = ctx.saved_tensors
    needs = ctx.needs_input_grad
    mask = [needs[0], needs[1], ctx.has_bias and needs[2]]
    grads = convolution_backward(dy, x, w, *ctx.arguments, mask, ctx.options)
    return (*(grad if is_wanted else None for grad, is_wanted in zip(grads, mask, strict=True)), *[None] * 7)


def _save_backward(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    dy, x, w, *arguments, mask, _options = inputs
    ctx.save_for_backward(dy, x, w)
    ctx.arguments, ctx.mask = arguments, mask
    ctx.set_materialize_grads(False)


def _double_backward(ctx: Any, *grads: Tensor | None) -> tuple[Any, ...]:
    dy, x, w = ctx.saved_tensors
    wanted = [*ctx.needs_input_grad[:3]]
    found = aten._convolution_double_backward.default(
        grads[0] if ctx.mask[0] else None, grads[1] if ctx.mask[1] else None,
        grads[2] if ctx.mask[2] else None, dy, w, x, *ctx.arguments, wanted,
    )  # fmt: skip
    ddy, dx, dw = found[0], found[1], found[2]
    return (
        *(g if is_wanted else None for g, is_wanted in zip((ddy, dx, dw), wanted, strict=True)),
        *[None] * 8,
    )


convolution = define(
    f'convolution(Tensor x, Tensor w, Tensor? bias, {_ARGUMENTS}, str options="") -> Tensor',
    kernels.forward,
    _fake_convolution,
    _save_convolution,
    _backward_of_convolution,
    is_lowered=True,
    has_batching=True,
)
convolution_backward = define(
    f"convolution_backward(Tensor dy, Tensor x, Tensor w, {_ARGUMENTS}, bool[3] output_mask, "
    'str options="") -> (Tensor, Tensor, Tensor)',
    kernels.backward,
    _fake_backward,
    _save_backward,
    _double_backward,
    has_batching=True,
)

CONVOLUTION = Layer(kernels.computation, kernels.GRADIENTS, convolution_backward, kernels.gradients_by_torch)


_COUNT = len(_ARGUMENTS.split(","))
"""Arguments behind the tensors; the dispatcher leaves out what comes last where it is the default."""


def _batched(operand: Tensor, axis: int | None, size: int) -> Tensor:
    """The operand with the axis of vmap in front, repeated where it has none."""
    return operand.expand(size, *operand.shape) if axis is None else operand.movedim(axis, 0)


def _as_channels(operand: Tensor) -> Tensor:
    """(batch, N, C, space) as (N, batch * C, space): every call of the batch becomes groups of its own."""
    return operand.transpose(0, 1).flatten(1, 2)


def _from_channels(operand: Tensor, size: int) -> Tensor:
    return operand.unflatten(1, (size, -1)).transpose(0, 1)


def _convolution_over_batch(
    info: Any, in_dims: tuple[int | None, ...], x: Tensor, w: Tensor, bias: Tensor | None, *arguments: Any
) -> tuple[Tensor, int]:
    (*shape, groups), options = arguments[:_COUNT], arguments[_COUNT:]
    size = info.batch_size
    if in_dims[1] is None and in_dims[2] is None and in_dims[0] is not None:
        images = x.movedim(in_dims[0], 0)
        y = convolution(images.flatten(0, 1), w, bias, *shape, groups, *options)
        return y.unflatten(0, images.shape[:2]), 0
    x, w = (_batched(operand, axis, size) for operand, axis in zip((x, w), in_dims, strict=False))
    bias = None if bias is None else _batched(bias, in_dims[2], size).flatten()
    y = convolution(_as_channels(x), w.flatten(0, 1), bias, *shape, size * groups, *options)
    return _from_channels(y, size), 0


def _backward_over_batch(
    info: Any, in_dims: tuple[int | None, ...], dy: Tensor, x: Tensor, w: Tensor, *arguments: Any
) -> tuple[tuple[Tensor, ...], tuple[int, ...]]:
    (*shape, groups), (mask, *options) = arguments[:_COUNT], arguments[_COUNT:]
    size = info.batch_size
    dy, x, w = (_batched(operand, axis, size) for operand, axis in zip((dy, x, w), in_dims, strict=False))
    dx, dw, db = convolution_backward(
        _as_channels(dy), _as_channels(x), w.flatten(0, 1), *shape, size * groups, mask, *options
    )
    nothing = x.new_empty((size, 0))
    return (
        _from_channels(dx, size) if mask[0] else nothing,
        dw.unflatten(0, (size, -1)) if mask[1] else nothing,
        db.unflatten(0, (size, -1)) if mask[2] else nothing,
    ), (0, 0, 0)


torch.library.register_vmap("jitdnn::convolution", _convolution_over_batch, lib=library)
torch.library.register_vmap("jitdnn::convolution_backward", _backward_over_batch, lib=library)

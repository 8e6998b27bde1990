"""`torch.ops.jitdnn.linear`: rows times a matrix plus a bias, as a convolution by one tap, or by torch's BLAS.

The rows (M, K) are an image of M pixels and K channels, channels last; the weight (N, K) is the filter.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from jitdnn.frameworks.torch.kinds import Computation, Ways
from jitdnn.frameworks.torch.registry import define
from jitdnn.handle import Handle
from jitdnn.ops.convolution import conv, conv_backward_bias, conv_backward_data, conv_backward_filter

aten = torch.ops.aten


def _image(rows: Tensor) -> Tensor:
    """(M, K) as (1, K, M, 1), channels last."""
    return rows.view(1, rows.shape[0], 1, rows.shape[1]).permute(0, 3, 1, 2)


def _filter(weight: Tensor) -> Tensor:
    return weight.view(*weight.shape, 1, 1)


def _dense(*operands: Tensor) -> str | None:
    return None if all(one.is_contiguous() for one in operands) else "an operand is not dense by rows"


def _forward_ways(handle: Handle, x: Tensor, w: Tensor, bias: Tensor | None) -> Ways:
    def theirs(x: Tensor, w: Tensor, bias: Tensor | None) -> Tensor:
        y: Tensor = aten.mm.default(x, w.t()) if bias is None else aten.addmm.default(bias, x, w.t())
        return y

    def ours(x: Tensor, w: Tensor, bias: Tensor | None) -> Tensor:
        y = x.new_empty((x.shape[0], w.shape[0]))
        conv(_image(x), _filter(w), bias, out=_image(y), handle=handle)
        return y

    return Ways(ours, theirs, what="of linear", refusal=_dense(x, w))


def _data_ways(handle: Handle, dy: Tensor, w: Tensor) -> Ways:
    def theirs(dy: Tensor, w: Tensor) -> Tensor:
        dx: Tensor = aten.mm.default(dy, w)
        return dx

    def ours(dy: Tensor, w: Tensor) -> Tensor:
        dx = dy.new_empty((dy.shape[0], w.shape[1]))
        conv_backward_data(
            _image(dy), _filter(w), (1, w.shape[1], dy.shape[0], 1), out=_image(dx), handle=handle
        )
        return dx

    return Ways(ours, theirs, what="of linear", refusal=_dense(dy, w))


def _filter_ways(handle: Handle, dy: Tensor, x: Tensor) -> Ways:
    def theirs(dy: Tensor, x: Tensor) -> Tensor:
        dw: Tensor = aten.mm.default(dy.t(), x)
        return dw

    def ours(dy: Tensor, x: Tensor) -> Tensor:
        dw = x.new_empty((dy.shape[1], x.shape[1]))
        conv_backward_filter(_image(x), _image(dy), (*dw.shape, 1, 1), out=_filter(dw), handle=handle)
        return dw

    return Ways(ours, theirs, what="of linear", refusal=_dense(dy, x))


def _bias_ways(handle: Handle, dy: Tensor) -> Ways:
    def theirs(dy: Tensor) -> Tensor:
        return dy.sum(0)

    def ours(dy: Tensor) -> Tensor:
        db: Tensor = conv_backward_bias(_image(dy), handle=handle)
        return db

    return Ways(ours, theirs, what="of linear", refusal=_dense(dy))


_forward = Computation("forward", _forward_ways, 3)
_data = Computation("data", _data_ways, 2)
_weights = Computation("filter", _filter_ways, 2)
_bias = Computation("bias", _bias_ways, 1)


def _backward(
    dy: Tensor, x: Tensor, w: Tensor, mask: list[bool], options: str = ""
) -> tuple[Tensor, Tensor, Tensor]:
    dy = dy.contiguous()
    return (
        _data(options, dy, w) if mask[0] else dy.new_empty((0,)),
        _weights(options, dy, x) if mask[1] else dy.new_empty((0,)),
        _bias(options, dy) if mask[2] else dy.new_empty((0,)),
    )


def _backward_fake(
    dy: Tensor, x: Tensor, w: Tensor, mask: list[bool], options: str = ""
) -> tuple[Tensor, Tensor, Tensor]:
    return (
        dy.new_empty((dy.shape[0], w.shape[1])) if mask[0] else dy.new_empty((0,)),
        dy.new_empty((dy.shape[1], x.shape[1])) if mask[1] else dy.new_empty((0,)),
        dy.new_empty((dy.shape[1],)) if mask[2] else dy.new_empty((0,)),
    )


def _save(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    x, w, bias, ctx.options = inputs
    ctx.save_for_backward(x, w)
    ctx.has_bias = bias is not None


def _gradients(ctx: Any, dy: Tensor) -> tuple[Any, ...]:
    x, w = ctx.saved_tensors
    needs = ctx.needs_input_grad
    mask = [needs[0], needs[1], ctx.has_bias and needs[2]]
    found = linear_backward(dy, x, w, mask, ctx.options)
    return (*(one if is_wanted else None for one, is_wanted in zip(found, mask, strict=True)), None)


def _save_backward(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    dy, x, w, ctx.mask, _ = inputs
    ctx.save_for_backward(dy, x, w)
    ctx.set_materialize_grads(False)


def _double(ctx: Any, *grads: Tensor | None) -> tuple[Any, ...]:
    dy, x, w = ctx.saved_tensors
    ddx, ddw, ddb = (one if is_there else None for one, is_there in zip(grads, ctx.mask, strict=True))
    terms = [ddx @ w.t() if ddx is not None else None, x @ ddw.t() if ddw is not None else None, ddb]
    ddy = sum((one for one in terms if one is not None), torch.zeros_like(dy))
    return (
        ddy, None if ddw is None else dy @ ddw, None if ddx is None else dy.t() @ ddx, None, None,
    )  # fmt: skip


linear_backward = define(
    'linear_backward(Tensor dy, Tensor x, Tensor w, bool[3] mask, str options="") -> (Tensor, Tensor, Tensor)',
    _backward,
    _backward_fake,
    _save_backward,
    _double,
)
linear = define(
    'linear(Tensor x, Tensor w, Tensor? bias, str options="") -> Tensor',
    _forward.kernel,
    lambda x, w, bias, options="": x.new_empty((x.shape[0], w.shape[0])),
    _save,
    _gradients,
    is_lowered=True,
)

"""`torch.ops.jitdnn.linear`: rows times a matrix plus a bias, as a convolution by one tap, or by torch's BLAS.

The rows (M, K) are an image of M pixels and K channels, channels last; the weight (N, K) is the filter.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from jitdnn.frameworks.torch.calls import Layer
from jitdnn.frameworks.torch.convolution import FORWARD, Geometry, launched, prepared, problem_of
from jitdnn.frameworks.torch.fresh import fresh_like, is_kept
from jitdnn.frameworks.torch.kinds import RESULT, Computation, Ways, run_together
from jitdnn.frameworks.torch.registry import define
from jitdnn.handle import Handle
from jitdnn.ops.convolution import conv, conv_backward_bias, conv_backward_data, conv_backward_filter
from jitdnn.problems.problem import Problem

aten = torch.ops.aten
_GEOMETRY = Geometry((1, 1), (0, 0), (1, 1), False, (0, 0), 1)


def _image(rows: Tensor) -> Tensor:
    """(M, K) as (1, K, M, 1), channels last."""
    return rows.view(1, rows.shape[0], 1, rows.shape[1]).permute(0, 3, 1, 2)


def _filter(weight: Tensor) -> Tensor:
    return weight.view(*weight.shape, 1, 1)


def _dense(*operands: Tensor) -> str | None:
    return None if all(one.is_contiguous() for one in operands) else "an operand is not dense by rows"


def _form(shape: tuple[int, ...], x: Tensor) -> Tensor:
    return torch.empty(shape, dtype=x.dtype, device="meta")


def _problem(kind: str, x: Tensor, w: Tensor, y: Tensor) -> Problem | None:
    """What ours compute of rows x and y and a weight."""
    if not all(one.is_contiguous() and one.numel() for one in (x, w, y)):
        return None
    return problem_of(kind, _image(x), _filter(w), _image(y), _GEOMETRY)


def _forward_by_torch(x: Tensor, w: Tensor, bias: Tensor | None) -> Tensor:
    y: Tensor = aten.mm.default(x, w.t()) if bias is None else aten.addmm.default(bias, x, w.t())
    return y


def _forward_ways(handle: Handle, x: Tensor, w: Tensor, bias: Tensor | None) -> Ways:
    def theirs(x: Tensor, w: Tensor, bias: Tensor | None) -> Tensor:
        y: Tensor = (
            aten.mm.out(x, w.t(), out=made()) if bias is None else aten.addmm.out(bias, x, w.t(), out=made())
        )
        return y

    def ours(x: Tensor, w: Tensor, bias: Tensor | None) -> Tensor:
        y = made()
        if run is None:
            conv(_image(x), _filter(w), bias, out=_image(y), handle=handle)
        elif bias is None:
            run(x, w, y)
        else:
            run(x, w, y, bias)
        return y

    form = _form((x.shape[0], w.shape[0]), x)
    made, problem, run = fresh_like(form, x.device), _problem("forward", x, w, form), None
    if problem is not None:
        operands = (_image(x), _filter(w), _image(form), *(() if bias is None else (bias,)))
        run = prepared(handle, problem, operands, x.device)
    kernel = launched(run, FORWARD[bias is not None], made)
    into = is_kept(form, x.device)
    return Ways(
        ours, theirs if into else _forward_by_torch, problem, bias is not None, what="of linear",
        refusal=_dense(x, w), launched=kernel, is_stock_kept=into,
    )  # fmt: skip


def _data_by_torch(dy: Tensor, x: Tensor, w: Tensor) -> Tensor:
    dx: Tensor = aten.mm.default(dy, w)
    return dx


def _data_ways(handle: Handle, dy: Tensor, x: Tensor, w: Tensor) -> Ways:
    def theirs(dy: Tensor, x: Tensor, w: Tensor) -> Tensor:
        dx: Tensor = aten.mm.out(dy, w, out=made())
        return dx

    def ours(dy: Tensor, x: Tensor, w: Tensor) -> Tensor:
        dx = made()
        if run is None:
            shape = (1, w.shape[1], dy.shape[0], 1)
            conv_backward_data(_image(dy), _filter(w), shape, out=_image(dx), handle=handle)
        else:
            run(dy, w, dx)
        return dx

    form = _form((dy.shape[0], w.shape[1]), dy)
    made, problem, run = fresh_like(form, dy.device), _problem("data", form, w, dy), None
    if problem is not None:
        run = prepared(handle, problem, (_image(dy), _filter(w), _image(form)), dy.device)
    kernel = launched(run, (0, 2, RESULT), made)
    into = is_kept(form, dy.device)
    return Ways(
        ours, theirs if into else _data_by_torch, problem, what="of linear", refusal=_dense(dy, w),
        launched=kernel, is_stock_kept=into,
    )  # fmt: skip


def _filter_by_torch(dy: Tensor, x: Tensor, w: Tensor) -> Tensor:
    dw: Tensor = aten.mm.default(dy.t(), x)
    return dw


def _filter_ways(handle: Handle, dy: Tensor, x: Tensor, w: Tensor) -> Ways:
    def theirs(dy: Tensor, x: Tensor, w: Tensor) -> Tensor:
        dw: Tensor = aten.mm.out(dy.t(), x, out=made())
        return dw

    def ours(dy: Tensor, x: Tensor, w: Tensor) -> Tensor:
        dw = made()
        if run is None:
            conv_backward_filter(_image(x), _image(dy), (*dw.shape, 1, 1), out=_filter(dw), handle=handle)
        else:
            run(x, dy, dw)
        return dw

    form = _form((dy.shape[1], x.shape[1]), x)
    made, problem, run = fresh_like(form, dy.device), _problem("filter", x, form, dy), None
    if problem is not None:
        run = prepared(handle, problem, (_image(x), _image(dy), _filter(form)), dy.device)
    kernel = launched(run, (1, 0, RESULT), made)
    into = is_kept(form, dy.device)
    return Ways(
        ours, theirs if into else _filter_by_torch, problem, what="of linear", refusal=_dense(dy, x),
        launched=kernel, is_stock_kept=into,
    )  # fmt: skip


def _bias_by_torch(dy: Tensor, x: Tensor, w: Tensor) -> Tensor:
    return dy.sum(0)


def _bias_ways(handle: Handle, dy: Tensor, x: Tensor, w: Tensor) -> Ways:
    theirs = _bias_by_torch

    def ours(dy: Tensor, x: Tensor, w: Tensor) -> Tensor:
        db = made()
        if run is None:
            conv_backward_bias(_image(dy), out=db, handle=handle)
        else:
            run(dy, db)
        return db

    form = _form((dy.shape[1],), dy)
    made, problem, run = fresh_like(form, dy.device), _problem("bias", dy, w, dy), None
    if problem is not None:
        run = prepared(handle, problem, (_image(dy), form), dy.device)
    kernel = launched(run, (0, RESULT), made)
    return Ways(ours, theirs, problem, what="of linear", refusal=_dense(dy), launched=kernel)


_forward = Computation("forward", _forward_ways, 3, weight=1, torchs=lambda *_: _forward_by_torch)
_gradients_of = (
    Computation("data", _data_ways, 3, weight=2, torchs=lambda *_: _data_by_torch),
    Computation("filter", _filter_ways, 3, weight=2, torchs=lambda *_: _filter_by_torch),
    Computation("bias", _bias_ways, 3, weight=2, torchs=lambda *_: _bias_by_torch),
)


def _backward(
    dy: Tensor, x: Tensor, w: Tensor, mask: list[bool], options: str = ""
) -> tuple[Tensor, Tensor, Tensor]:
    wanted = tuple(one if is_wanted else None for one, is_wanted in zip(_gradients_of, mask, strict=True))
    found = run_together(wanted, options, (dy.contiguous(), x, w))
    dx, dw, db = (dy.new_empty((0,)) if one is None else one for one in found)
    return dx, dw, db


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
LINEAR = Layer(_forward, _gradients_of, linear_backward)

"""Convolutions for JAX: each of the three directions is the gradient of the others, so there are those of any order."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

import jax

import jitdnn as jd
from jitdnn.arguments import integer_number, padding_pairs, per_axis
from jitdnn.errors import InvalidShape, InvalidType
from jitdnn.frameworks.jax.callback import alike, called, checked
from jitdnn.problems.convolution import Convolution
from jitdnn.tensor import COMMON_DTYPES, dtype_of

PerAxis = int | Sequence[int]
Padding = int | Sequence[int | Sequence[int]]


class Form(NamedTuple):
    """What a convolution says beside its arrays: of each axis of space, and the groups."""

    strides: tuple[int, ...]
    pads: tuple[tuple[int, int], ...]
    dilations: tuple[int, ...]
    groups: int
    mode: str

    @property
    def named(self) -> dict[str, Any]:
        return {
            "stride": self.strides, "padding": self.pads, "dilation": self.dilations, "groups": self.groups,
            "mode": self.mode,
        }  # fmt: skip


def conv(
    x: Any,
    w: Any,
    bias: Any = None,
    *,
    stride: PerAxis = 1,
    padding: Padding = 0,
    dilation: PerAxis = 1,
    groups: int = 1,
    mode: str = "cross_correlation",
) -> Any:
    """Return the convolution of x (N, C, space) by w (K, C/groups, taps), plus `bias` (K,): (N, K, output space).

    1 to 3 axes of space; float16, bfloat16, float32 or float64, all of one type. The arguments are those of
    `jitdnn.conv`. It may be used in `jit`, `grad` (of any order, reverse mode) and `vmap`: batches of x become
    more images, batches of w are a call each.

    Raises InvalidShape, InvalidType and InvalidArgument for what does not fit.
    """
    form = _form(x, w, stride, padding, dilation, groups, mode)
    y = _forward(*alike(x, w), form)
    return y if bias is None else _with_bias(y, bias)


def conv_transpose(
    x: Any,
    w: Any,
    bias: Any = None,
    *,
    stride: PerAxis = 1,
    padding: Padding = 0,
    output_padding: PerAxis = 0,
    dilation: PerAxis = 1,
    groups: int = 1,
    mode: str = "cross_correlation",
) -> Any:
    """Return the transposed convolution of x (N, C, space) by w (C, K/groups, taps), plus `bias` (K,).

    The extents are those of `jitdnn.conv_transpose`; all else is as for `conv`.
    """
    form = _form(x, w, stride, padding, dilation, groups, mode)
    if x.shape[1] != w.shape[0]:
        raise InvalidShape(f"w takes {w.shape[0]} channels, x has {x.shape[1]}: they must be equal")
    problem = Convolution.make_transposed(
        x.shape, w.shape, form.strides, form.pads, form.dilations, output_padding, form.groups, form.mode,
        dtype_of(x.dtype),
    )  # fmt: skip
    y = _data(*alike(x, w), problem.x.shape, form)
    return y if bias is None else _with_bias(y, bias)


def _with_bias(y: Any, bias: Any) -> Any:
    if checked(bias, "bias").shape != y.shape[1:2]:
        raise InvalidShape(f"bias has shape {bias.shape}: for a result {y.shape} it must be {y.shape[1:2]}")
    return y + bias.reshape(-1, *[1] * (y.ndim - 2))


def _form(
    x: Any, w: Any, stride: PerAxis, padding: Padding, dilation: PerAxis, groups: int, mode: str
) -> Form:
    checked(x, "x"), checked(w, "w")
    if x.dtype != w.dtype:
        raise InvalidType(f"x is {x.dtype} and w is {w.dtype}: they must be of one type")
    if dtype_of(x.dtype) not in COMMON_DTYPES:
        raise InvalidType(f"x is {x.dtype}: it must be one of float16, bfloat16, float32 and float64")
    if x.ndim != w.ndim or not 3 <= x.ndim <= 5:
        raise InvalidShape(f"x has shape {x.shape} and w {w.shape}: both must have 3 to 5 dimensions")
    rank = x.ndim - 2
    pairs = tuple((before, after) for before, after in padding_pairs(padding, rank))
    steps, apart = per_axis(stride, rank, "stride"), per_axis(dilation, rank, "dilation")
    return Form(steps, pairs, apart, integer_number(groups, "groups", 1), mode)


def _result_shape(x: Any, w: Any, form: Form) -> tuple[int, ...]:
    return Convolution.make(
        "fwd", tuple(x.shape), tuple(w.shape), form.strides, form.pads, form.dilations, form.groups, form.mode,
        dtype_of(x.dtype),
    ).y.shape  # fmt: skip


@partial(jax.custom_vjp, nondiff_argnums=(2,))
def _forward(x: Any, w: Any, form: Form) -> Any:
    shape = _result_shape(x, w, form)
    return called(
        partial(jd.conv, **form.named), (shape, x.dtype), (x, w), (True, False), True, f"conv {form}"
    )


def _forward_saving(x: Any, w: Any, form: Form) -> Any:
    return _forward(x, w, form), (x, w)


def _forward_gradients(form: Form, saved: Any, dy: Any) -> Any:
    x, w = saved
    return _data(dy, w, tuple(x.shape), form), _filter(x, dy, tuple(w.shape), form)


@partial(jax.custom_vjp, nondiff_argnums=(2, 3))
def _data(dy: Any, w: Any, x_shape: tuple[int, ...], form: Form) -> Any:
    """The gradient of the data, and the transposed convolution."""

    def run(slopes: Any, filters: Any, out: Any = None) -> Any:
        shape = (slopes.shape[0], *x_shape[1:])  # of more images in a batch of vmap
        return jd.conv_backward_data(slopes, filters, shape, out=out, **form.named)

    return called(run, (x_shape, dy.dtype), (dy, w), (True, False), True, f"conv_backward_data {form}")


def _data_saving(dy: Any, w: Any, x_shape: tuple[int, ...], form: Form) -> Any:
    return _data(dy, w, x_shape, form), (dy, w)


def _data_gradients(x_shape: tuple[int, ...], form: Form, saved: Any, dx: Any) -> Any:
    dy, w = saved
    return _forward(dx, w, form), _filter(dx, dy, tuple(w.shape), form)


@partial(jax.custom_vjp, nondiff_argnums=(2, 3))
def _filter(x: Any, dy: Any, w_shape: tuple[int, ...], form: Form) -> Any:
    """The gradient of the filter."""

    def run(images: Any, slopes: Any, out: Any = None) -> Any:
        return jd.conv_backward_filter(images, slopes, w_shape, out=out, **form.named)

    return called(run, (w_shape, x.dtype), (x, dy), (True, True), False, f"conv_backward_filter {form}")


def _filter_saving(x: Any, dy: Any, w_shape: tuple[int, ...], form: Form) -> Any:
    return _filter(x, dy, w_shape, form), (x, dy)


def _filter_gradients(w_shape: tuple[int, ...], form: Form, saved: Any, dw: Any) -> Any:
    x, dy = saved
    return _data(dy, dw, tuple(x.shape), form), _forward(x, dw, form)


_forward.defvjp(_forward_saving, _forward_gradients)
_data.defvjp(_data_saving, _data_gradients)
_filter.defvjp(_filter_saving, _filter_gradients)

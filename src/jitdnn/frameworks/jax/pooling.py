"""Pooling and local response normalization for JAX."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

import jax

import jitdnn as jd
from jitdnn.arguments import integer_number, padding_pairs, per_axis, real_number
from jitdnn.errors import InvalidShape
from jitdnn.frameworks.jax.callback import called, checked
from jitdnn.problems.lrn import LRN
from jitdnn.problems.pooling import Pooling
from jitdnn.tensor import TensorDescriptor, dtype_of

PerAxis = int | Sequence[int]
Padding = int | Sequence[int | Sequence[int]]


class Window(NamedTuple):
    """What a pooling says beside its array."""

    extents: tuple[int, ...]
    strides: tuple[int, ...]
    pads: tuple[tuple[int, int], ...]
    counts_padding: bool = True

    def output_of(self, shape: Sequence[int], dtype: Any, mode: str) -> tuple[int, ...]:
        x = TensorDescriptor.packed(tuple(shape), dtype_of(dtype))
        return Pooling.make("fwd", mode, x, self.extents, self.strides, self.pads).y.shape

    @property
    def placed(self) -> tuple[Any, ...]:
        return self.extents, self.strides, self.pads


class Response(NamedTuple):
    """What a normalization says beside its array."""

    size: int
    alpha: float
    beta: float
    k: float
    mode: str


def _window(x: Any, window: PerAxis, stride: PerAxis | None, padding: Padding) -> Window:
    rank = checked(x, "x").ndim - 2
    if not 1 <= rank <= 3:
        raise InvalidShape(f"x has shape {x.shape}: it must be (N, C, space) with 1 to 3 axes of space")
    extents = per_axis(window, rank, "window")
    strides = extents if stride is None else per_axis(stride, rank, "stride")
    pads = tuple((before, after) for before, after in padding_pairs(padding, rank))
    return Window(extents, strides, pads)


def max_pool(x: Any, window: PerAxis, stride: PerAxis | None = None, padding: Padding = 0) -> Any:
    """Return the maximum of each window of x (N, C, space); arguments and errors are those of `jitdnn.max_pool`.

    It may be used in `jit`, `grad` and `vmap`.
    """
    return _max_pool(x, _window(x, window, stride, padding))


def avg_pool(
    x: Any,
    window: PerAxis,
    stride: PerAxis | None = None,
    padding: Padding = 0,
    count_include_pad: bool = True,
) -> Any:
    """Return the average of each window of x (N, C, space); arguments and errors are those of `jitdnn.avg_pool`.

    It may be used in `jit`, `grad` (of any order, reverse mode) and `vmap`.
    """
    known = _window(x, window, stride, padding)._replace(counts_padding=bool(count_include_pad))
    return _avg_pool(x, known)


def lrn(
    x: Any,
    size: int = 5,
    lrn_alpha: float = 1e-4,
    lrn_beta: float = 0.75,
    k: float = 2.0,
    mode: str = "across",
) -> Any:
    """Return the local response normalization of x (N, C, space); arguments and errors are those of `jitdnn.lrn`.

    It may be used in `jit`, `grad` and `vmap`.
    """
    how = Response(
        integer_number(size, "size"), real_number(lrn_alpha, "lrn_alpha"), real_number(lrn_beta, "lrn_beta"),
        real_number(k, "k"), mode,
    )  # fmt: skip
    # what does not fit is said here: raised in a call of the host it would come out as an error of JAX
    tensor = TensorDescriptor.packed(tuple(checked(x, "x").shape), dtype_of(x.dtype))
    LRN.make("fwd", mode, tensor, how.size, how.alpha, how.beta, how.k)
    return _lrn(x, how)


@partial(jax.custom_vjp, nondiff_argnums=(1,))
def _max_pool(x: Any, window: Window) -> Any:
    shape = window.output_of(x.shape, x.dtype, "max")

    extents, strides, pads = window.placed

    def run(images: Any, out: Any = None) -> Any:
        return jd.max_pool(images, extents, strides, pads, out=out)

    return called(run, (shape, x.dtype), (x,), (True,), True, f"max_pool {window}")


def _max_pool_saving(x: Any, window: Window) -> Any:
    y = _max_pool(x, window)
    return y, (x, y)


def _max_pool_gradient(window: Window, saved: Any, dy: Any) -> Any:
    x, y = saved

    extents, strides, pads = window.placed

    def run(slopes: Any, images: Any, results: Any, out: Any = None) -> Any:
        return jd.max_pool_backward(slopes, images, results, extents, strides, pads, out=out)

    folds = (True, True, True)
    return (called(run, (x.shape, x.dtype), (dy, x, y), folds, True, f"max_pool_backward {window}"),)


@partial(jax.custom_vjp, nondiff_argnums=(1,))
def _avg_pool(x: Any, window: Window) -> Any:
    shape = window.output_of(x.shape, x.dtype, "avg")
    extents, strides, pads, counts = window

    def run(images: Any, out: Any = None) -> Any:
        return jd.avg_pool(images, extents, strides, pads, counts, out=out)

    return called(run, (shape, x.dtype), (x,), (True,), True, f"avg_pool {window}")


def _avg_pool_saving(x: Any, window: Window) -> Any:
    return _avg_pool(x, window), tuple(x.shape)


def _avg_pool_gradient(window: Window, shape: Any, dy: Any) -> Any:
    return (_spread(dy, tuple(map(int, shape)), window),)


@partial(jax.custom_vjp, nondiff_argnums=(1, 2))
def _spread(dy: Any, x_shape: tuple[int, ...], window: Window) -> Any:
    """The gradient of averages."""

    def run(slopes: Any, out: Any = None) -> Any:
        shape = (slopes.shape[0], *x_shape[1:])
        extents, strides, pads, counts = window
        return jd.avg_pool_backward(slopes, shape, extents, strides, pads, counts, out=out)

    return called(run, (x_shape, dy.dtype), (dy,), (True,), True, f"avg_pool_backward {window}")


def _spread_saving(dy: Any, x_shape: tuple[int, ...], window: Window) -> Any:
    return _spread(dy, x_shape, window), None


def _spread_gradient(x_shape: tuple[int, ...], window: Window, saved: None, dx: Any) -> Any:
    return (_avg_pool(dx, window),)


@partial(jax.custom_vjp, nondiff_argnums=(1,))
def _lrn(x: Any, how: Response) -> Any:
    def run(images: Any, out: Any = None) -> Any:
        return jd.lrn(images, *how, out=out)

    return called(run, (x.shape, x.dtype), (x,), (True,), True, f"lrn {how}")


def _lrn_saving(x: Any, how: Response) -> Any:
    return _lrn(x, how), x


def _lrn_gradient(how: Response, x: Any, dy: Any) -> Any:
    def run(slopes: Any, images: Any, out: Any = None) -> Any:
        return jd.lrn_backward(slopes, images, *how, out=out)

    return (called(run, (x.shape, x.dtype), (dy, x), (True, True), True, f"lrn_backward {how}"),)


_max_pool.defvjp(_max_pool_saving, _max_pool_gradient)
_avg_pool.defvjp(_avg_pool_saving, _avg_pool_gradient)
_spread.defvjp(_spread_saving, _spread_gradient)
_lrn.defvjp(_lrn_saving, _lrn_gradient)

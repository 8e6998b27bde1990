"""Convolutions in all directions, and the matrix product, against PyTorch in float64."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch

import jitdnn as jd
from fuzz.draw import Draw
from fuzz.operations.pointwise import operand
from fuzz.problem import Array, Expected, Named, Problem, Result, operation

F = torch.nn.functional
_CONV = {1: F.conv1d, 2: F.conv2d, 3: F.conv3d}
#: error relative to the largest sum of the terms' sizes: what `accuracy="standard"` allows, and half as much again
_ERROR = {"f64": 1e-13}


def _error(dtype: str, sizes: Array) -> Array:
    """Minimal filtering and Fourier transforms have the error of the largest results, not of each one's terms."""
    most = np.max(sizes, initial=0.0, where=np.isfinite(sizes))
    return np.full(sizes.shape, _ERROR.get(dtype, 1.2e-5) * most)


class _Convolution:
    """The arguments of a convolution, and its definition."""

    def __init__(self, draw: Draw) -> None:
        self.rank = draw.weighted((4, 2), (2, 1), (1, 3))
        self.groups = draw.weighted((6, 1), (2, 2), (1, 3), (2, 0))
        self.batch = draw.pick((1, 2, 3, 5, 0)) if draw.chance(0.9) else draw.extent(17)
        few = draw.pick((1, 2, 3, 4, 5, 7, 8, 16, 17, 33))
        if self.groups == 0:  # one channel a group
            self.groups = draw.pick((1, 3, 8, 16, 17, 33))
            few = self.groups
            each = 1
        else:
            each = few = max(1, few // self.groups)
            few = each * self.groups
        self.channels = few
        self.outputs = self.groups * draw.pick(
            (1, 2, 3, 5, 8, 16) if each == 1 else (1, 2, 4, 7, 8, 13, 16, 32)
        )
        while self.outputs > 128:
            self.outputs //= 2
        self.outputs = max(self.groups, self.outputs // self.groups * self.groups)
        most = {1: 65, 2: 19, 3: 8}[self.rank]
        self.taps = tuple(
            draw.pick((1, 3, 2, 5, 4, 7)[: 6 if self.rank < 3 else 3]) for _ in range(self.rank)
        )
        self.dilation = tuple(draw.pick((1, 1, 1, 2, 3)) for _ in range(self.rank))
        self.stride = tuple(draw.pick((1, 1, 2, 3)) for _ in range(self.rank))
        self.padding = tuple((draw.whole(0, 3), draw.whole(0, 3)) for _ in range(self.rank))
        if draw.chance(0.6):
            self.padding = tuple((before, before) for before, _ in self.padding)
        reach = [d * (t - 1) + 1 for d, t in zip(self.dilation, self.taps, strict=True)]
        self.space = tuple(
            max(draw.extent(most), r - before - after, 1)
            for r, (before, after) in zip(reach, self.padding, strict=True)
        )
        self.mode = draw.weighted((5, "cross_correlation"), (1, "convolution"))
        self.layout = draw.weighted((3, None), (1, "NHWC"))
        self.out = tuple(
            (n + before + after - r) // s + 1
            for n, (before, after), r, s in zip(self.space, self.padding, reach, self.stride, strict=True)
        )

    @property
    def kwargs(self) -> dict[str, Any]:
        made: dict[str, Any] = {
            "stride": self.stride, "padding": self.padding, "dilation": self.dilation, "groups": self.groups,
            "mode": self.mode, "layout": self.layout,
        }  # fmt: skip
        if len(set(self.stride)) == 1:
            made["stride"] = self.stride[0]
        if all(before == after for before, after in self.padding):
            made["padding"] = [before for before, _ in self.padding]
        return made

    def seen(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """A shape (N, C, space) in the caller's order."""
        return (shape[0], *shape[2:], shape[1]) if self.layout else shape

    def inner(self, array: Array) -> torch.Tensor:
        """A caller's array with its axes as (N, C, space)."""
        made = np.moveaxis(array, -1, 1) if self.layout else array
        return torch.from_numpy(np.ascontiguousarray(made, np.float64))

    def outer(self, tensor: torch.Tensor) -> Array:
        made = tensor.detach().numpy()
        return np.moveaxis(made, 1, -1) if self.layout else made

    def outer_array(self, array: Array) -> Array:
        return np.moveaxis(array, 1, -1) if self.layout else array

    @property
    def x_shape(self) -> tuple[int, ...]:
        return (self.batch, self.channels, *self.space)

    @property
    def w_shape(self) -> tuple[int, ...]:
        return (self.outputs, self.channels // self.groups, *self.taps)

    @property
    def y_shape(self) -> tuple[int, ...]:
        return (self.batch, self.outputs, *self.out)

    def forward(self, x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        if self.mode == "convolution":
            w = w.flip(tuple(range(2, w.ndim)))
        if 0 in x.shape:
            return torch.zeros(self.y_shape, dtype=torch.float64) + x.sum() + 0 * w.sum()
        pads = [n for pair in reversed(self.padding) for n in pair]
        return _CONV[self.rank](F.pad(x, pads), w, None, self.stride, 0, self.dilation, self.groups)

    def gradient(self, wrt: str, given: torch.Tensor, dy: torch.Tensor) -> torch.Tensor:
        """The gradient with respect to "x" or "w", `given` the other one."""
        shape = self.x_shape if wrt == "x" else self.w_shape
        own = torch.zeros(shape, dtype=torch.float64, requires_grad=True)
        y = self.forward(own, given) if wrt == "x" else self.forward(given, own)
        (made,) = torch.autograd.grad(y, own, dy)
        return made


def _limits(draw: Draw, dtype: str, sums_batch: bool = False) -> dict[str, Any]:
    """Settings: little workspace now and then, so that some problems run in parts.

    Parts of what is summed meet in the result, and each is rounded to its type. That is in a plan's error bound, but
    would hide other errors of 16 bits here: these have no such parts. `sums_batch`: images are what is summed.
    """
    if not draw.chance(0.35):
        return {}
    limit = draw.pick((0, 4096, 256, 65536))
    division = draw.pick(("power_of_two", "all", "undivided"))
    axes = draw.pick(("any", "batch"))
    if dtype in ("f16", "bf16"):
        division, axes = "undivided" if sums_batch else division, "batch"
    return {"workspace_limit": limit, "division": division, "division_axes": axes}


# torch's own convolution is finite where zeros of the padding meet infinities; strict accuracy spreads nothing
_FLAVOURS = ("normal", "whole")


@operation("conv", 12)
def _conv(draw: Draw) -> Problem:
    c = _Convolution(draw)
    dtype = draw.dtype()
    args: list[Any] = [
        operand(draw, "x", c.seen(c.x_shape), dtype),
        operand(draw, "w", c.seen(c.w_shape), dtype),
    ]
    bias = draw.chance(0.4)
    if bias:
        args.append(operand(draw, "bias", (c.outputs,), dtype if draw.chance(0.7) else _wide(dtype)))
    residual = bias and draw.chance(0.3)
    if residual:
        args.append(operand(draw, "residual", c.seen(c.y_shape), dtype))

    def oracle(a: Named) -> list[Expected]:
        x, w = c.inner(a["x"]), c.inner(a["w"])
        y, sizes = c.outer(c.forward(x, w)), c.outer(c.forward(x.abs(), w.abs()))
        if bias:
            added = a["bias"] if c.layout else a["bias"].reshape(-1, *[1] * c.rank)
            y, sizes = y + added, sizes + np.abs(added)
        if residual:
            y, sizes = y + a["residual"], sizes + np.abs(a["residual"])
        return [Expected(y, _error(dtype, sizes))]

    return Problem(
        "conv", args, c.kwargs, [Result("y", c.seen(c.y_shape), dtype)], oracle, flavours=_FLAVOURS,
        settings=_limits(draw, dtype),
    )  # fmt: skip


def _wide(dtype: str) -> str:
    return "f64" if dtype == "f64" else "f32"


def _add_relu(a: Any, b: Any) -> Any:
    return jd.relu(a + b)


def _swish_of(a: Any) -> Any:
    return a * jd.sigmoid(a)


def _clip_residual(a: Any, b: Any, r: Any) -> Any:
    return jd.clip(a * 0.5 + b, -1.0, 1.0) + r


_EPILOGUES: tuple[tuple[int, Any, Any], ...] = (
    (0, _swish_of, lambda y: y / (1 + np.exp(-y))),
    (0, jd.relu, lambda y: np.maximum(y, 0)),
    (1, _add_relu, lambda y, b: np.maximum(y + b, 0)),
    (2, _clip_residual, lambda y, b, r: np.clip(y * 0.5 + b, -1, 1) + r),
)


@operation("conv_epilogue", 4, functions=("conv",))
def _conv_epilogue(draw: Draw) -> Problem:
    c = _Convolution(draw)
    dtype = draw.dtype()
    count, function, definition = draw.pick(_EPILOGUES)
    args: list[Any] = [
        operand(draw, "x", c.seen(c.x_shape), dtype),
        operand(draw, "w", c.seen(c.w_shape), dtype),
    ]
    if count:
        args.append(operand(draw, "bias", (c.outputs,), dtype))
    if count == 2:
        shape = c.seen(c.y_shape)
        args.append(operand(draw, "residual", tuple(1 if draw.chance(0.2) else n for n in shape), dtype))

    def oracle(a: Named) -> list[Expected]:
        x, w = c.inner(a["x"]), c.inner(a["w"])
        y, sizes = c.outer(c.forward(x, w)), c.outer(c.forward(x.abs(), w.abs()))
        fused = []
        if count:
            fused.append(a["bias"] if c.layout else a["bias"].reshape(-1, *[1] * c.rank))
        if count == 2:
            fused.append(a["residual"])
        more = sum((np.abs(one) for one in fused), np.zeros(()))
        return [
            Expected(
                definition(y, *fused),
                _error(dtype, np.broadcast_to(2 * sizes + more + 1, y.shape)),
            )
        ]

    kwargs = c.kwargs | {"epilogue": function}
    return Problem(
        "conv", args, kwargs, [Result("y", c.seen(c.y_shape), dtype)], oracle, flavours=_FLAVOURS,
        settings=_limits(draw, dtype),
    )  # fmt: skip


@operation("conv_infinite", 3, functions=("conv",))
def _conv_infinite(draw: Draw) -> Problem:
    """Infinities and NaN reach what reads them, and with strict accuracy nothing else."""
    c = _Convolution(draw)
    dtype = draw.dtype()
    most = 400_000
    while c.batch * c.outputs * c.channels // c.groups * int(np.prod(c.taps)) * int(np.prod(c.out)) > most:
        c.batch = 1
        c.outputs = max(c.groups, c.outputs // 2 // c.groups * c.groups)
        if c.outputs == c.groups:
            break
    x, w = operand(draw, "x", c.seen(c.x_shape), dtype), operand(draw, "w", c.seen(c.w_shape), dtype)

    def oracle(a: Named) -> list[Expected]:
        given, filters = c.inner(a["x"]).numpy(), c.inner(a["w"]).numpy()
        if c.mode == "convolution":
            filters = np.flip(filters, tuple(range(2, filters.ndim)))
        here = np.pad(np.ones(given.shape[2:], bool), c.padding)
        padded = np.pad(given, ((0, 0), (0, 0), *c.padding))
        each, many = c.channels // c.groups, c.outputs // c.groups
        inside, with_padding = (np.zeros(c.y_shape) for _ in range(2))
        sizes = np.zeros(c.y_shape)
        for tap in np.ndindex(*c.taps):
            cut = tuple(
                slice(t * d, t * d + (o - 1) * s + 1, s)
                for t, d, o, s in zip(tap, c.dilation, c.out, c.stride, strict=True)
            )
            seen = padded[:, :, *cut].reshape(c.batch, c.groups, 1, each, *c.out)
            weights = filters[:, :, *tap].reshape(1, c.groups, many, each, *[1] * c.rank)
            products = seen * weights
            with_padding += products.sum(3).reshape(c.y_shape)
            inside += np.where(here[cut], products, 0.0).sum(3).reshape(c.y_shape)
            finite = np.where(np.isfinite(products), np.abs(products), 0.0)
            sizes += np.where(here[cut], finite, 0.0).sum(3).reshape(c.y_shape)
        # zeros of the padding may or may not be multiplied with what is not finite
        open_ = ~((with_padding == inside) | (np.isnan(with_padding) & np.isnan(inside)))
        error = np.where(open_ & ~np.isfinite(with_padding), np.inf, _error(dtype, sizes))
        return [Expected(c.outer_array(inside), c.outer_array(error), infinities_alike=True)]

    return Problem(
        "conv", [x, w], c.kwargs, [Result("y", c.seen(c.y_shape), dtype)], oracle, flavours=("infinite",),
        settings={"accuracy": "strict"},
    )  # fmt: skip


@operation("conv_integers", 4, functions=("conv",))
def _conv_integers(draw: Draw) -> Problem:
    c = _Convolution(draw)
    first = draw.pick(("i8", "u8"))
    x, w = operand(draw, "x", c.seen(c.x_shape), first), operand(draw, "w", c.seen(c.w_shape), "i8")

    def oracle(a: Named) -> list[Expected]:
        return [Expected(c.outer(c.forward(c.inner(a["x"]), c.inner(a["w"]))), 0.0)]

    return Problem(
        "conv",
        [x, w],
        c.kwargs,
        [Result("y", c.seen(c.y_shape), "f32", ("i32", "i8", "u8"))],
        oracle,
        flavours=_FLAVOURS,
    )


def _gradient(
    c: _Convolution, wrt: str, given: str, dy: str, dtype: str
) -> Callable[[Named], list[Expected]]:
    """The oracle of a gradient, `given` and `dy` the names of its operands."""

    def oracle(a: Named) -> list[Expected]:
        other, slope = c.inner(a[given]), c.inner(a[dy])
        sizes = c.outer(c.gradient(wrt, other.abs(), slope.abs()))
        return [Expected(c.outer(c.gradient(wrt, other, slope)), _error(dtype, sizes))]

    return oracle


@operation("conv_backward_data", 8)
def _backward_data(draw: Draw) -> Problem:
    c = _Convolution(draw)
    dtype = draw.dtype()
    dy, w = operand(draw, "dy", c.seen(c.y_shape), dtype), operand(draw, "w", c.seen(c.w_shape), dtype)
    return Problem(
        "conv_backward_data", [dy, w, c.seen(c.x_shape)], c.kwargs, [Result("dx", c.seen(c.x_shape), dtype)],
        _gradient(c, "x", "w", "dy", dtype), flavours=_FLAVOURS, settings=_limits(draw, dtype),
    )  # fmt: skip


@operation("conv_backward_filter", 8)
def _backward_filter(draw: Draw) -> Problem:
    c = _Convolution(draw)
    dtype = draw.dtype()
    x, dy = operand(draw, "x", c.seen(c.x_shape), dtype), operand(draw, "dy", c.seen(c.y_shape), dtype)
    return Problem(
        "conv_backward_filter", [x, dy, c.seen(c.w_shape)], c.kwargs, [Result("dw", c.seen(c.w_shape), dtype)],
        _gradient(c, "w", "x", "dy", dtype), flavours=_FLAVOURS, settings=_limits(draw, dtype, sums_batch=True),
    )  # fmt: skip


@operation("conv_backward_bias", 3)
def _backward_bias(draw: Draw) -> Problem:
    dtype, layout = draw.dtype(), draw.pick((None, "NHWC"))
    batch, *rest = draw.shape(draw.whole(2, 5))
    shape = (batch, *(max(1, extent) for extent in rest))  # a convolution makes no results but of no images
    dy = operand(draw, "dy", shape, dtype)
    axis = len(shape) - 1 if layout and len(shape) > 2 else 1
    axes = tuple(n for n in range(len(shape)) if n != axis)

    def oracle(a: Named) -> list[Expected]:
        sizes = np.abs(a["dy"]).sum(axes)
        return [Expected(a["dy"].sum(axes), _error(dtype, sizes))]

    return Problem(
        "conv_backward_bias", [dy], {"layout": layout}, [Result("db", (shape[axis],), dtype)], oracle,
        flavours=("normal", "whole", "infinite"),
    )  # fmt: skip


@operation("conv_transpose", 5)
def _transpose(draw: Draw) -> Problem:
    c = _Convolution(draw)
    dtype = draw.dtype()
    # it goes from what is the output of a convolution to its input
    extra = tuple(draw.below(s) for s in c.stride)
    reach = [d * (t - 1) + 1 for d, t in zip(c.dilation, c.taps, strict=True)]

    def space_with(extra: tuple[int, ...]) -> tuple[int, ...]:
        return tuple(
            (o - 1) * s + r - before - after + e
            for o, s, r, (before, after), e in zip(c.out, c.stride, reach, c.padding, extra, strict=True)
        )

    if min(space_with(extra)) < 1:
        extra = tuple(s - 1 for s in c.stride)
    if min(space_with(extra)) < 1:  # such padding leaves nothing: take none
        c.padding = tuple((0, 0) for _ in c.stride)
    c.space = space_with(extra)
    x, w = operand(draw, "x", c.seen(c.y_shape), dtype), operand(draw, "w", c.seen(c.w_shape), dtype)
    return Problem(
        "conv_transpose", [x, w], c.kwargs | {"output_padding": extra}, [Result("y", c.seen(c.x_shape), dtype)],
        _gradient(c, "x", "w", "x", dtype), flavours=_FLAVOURS, settings=_limits(draw, dtype),
    )  # fmt: skip


@operation("matmul", 5)
def _matmul(draw: Draw) -> Problem:
    dtype = draw.dtype()
    m, n, k = (draw.extent(65, empty=True) for _ in range(3))
    batch = draw.shape(draw.below(3), 12)
    left, right = (tuple(1 if draw.chance(0.2) else e for e in batch) for _ in range(2))
    if draw.chance(0.2):
        right = ()
    a, b = operand(draw, "a", (*left, m, k), dtype), operand(draw, "b", (*right, k, n), dtype)
    shape = (*np.broadcast_shapes(left, right), m, n)

    def oracle(given: Named) -> list[Expected]:
        sizes = np.abs(given["a"]) @ np.abs(given["b"])
        return [Expected(given["a"] @ given["b"], _error(dtype, sizes))]

    return Problem("matmul", [a, b], {}, [Result("c", shape, dtype)], oracle, flavours=("normal", "whole"))

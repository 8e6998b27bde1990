"""Pooling, unpooling and the normalizations over windows, by loops over the elements of a window."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch

from fuzz.draw import REALS, Draw
from fuzz.operations.pointwise import operand
from fuzz.problem import Array, Expected, Named, Operand, Problem, Result, operation, roundoff

_EMPTY = -float(np.finfo(np.float32).max)  # the maximum of no elements, as Caffe has it
_FLAVOURS = ("whole", "normal", "infinite")


class Images:
    """Images (N, C, space), channels first or last."""

    def __init__(self, draw: Draw, most: int = 33, elements: int = 1200) -> None:
        self.rank = draw.weighted((4, 2), (2, 1), (1, 3))
        self.layout = draw.weighted((3, None), (1, "NHWC"))
        self.batch, self.channels = draw.pick((1, 2, 3, 0, 5)), draw.pick((1, 2, 3, 5, 8, 16, 17, 33))
        limit = {1: most, 2: min(most, 17), 3: 8}[self.rank]
        self.space = tuple(draw.extent(limit) for _ in range(self.rank))
        while self.channels > 1 and self.channels * int(np.prod(self.space)) > elements:
            self.channels //= 2

    def seen(self, *space: int, channels: int | None = None) -> tuple[int, ...]:
        """A shape in the caller's order; by default of these images."""
        space, channels = space or self.space, channels or self.channels
        return (self.batch, *space, channels) if self.layout else (self.batch, channels, *space)

    def inner(self, array: Array) -> Array:
        """A caller's array as (N, C, space)."""
        return np.moveaxis(array, -1, 1) if self.layout else array

    def outer(self, array: Array) -> Array:
        return np.moveaxis(array, 1, -1) if self.layout else array


class Windows:
    """For each axis which elements each window has: `index` (windows, taps), whether each is inside of the image, and
    whether it is inside of the padded image."""

    def __init__(self) -> None:
        self.index: list[Array] = []
        self.inside: list[Array] = []
        self.counted: list[Array] = []

    def add(self, index: Array, extent: int, before: int = 0, after: int = 0) -> None:
        inside = (index >= 0) & (index < extent)
        self.index.append(np.where(inside, index, 0))
        self.inside.append(inside)
        self.counted.append((index >= -before) & (index < extent + after))

    @property
    def out(self) -> tuple[int, ...]:
        return tuple(index.shape[0] for index in self.index)

    @property
    def most(self) -> int:
        """Windows at most that an element is in."""
        made = 1
        for index, inside in zip(self.index, self.inside, strict=True):
            made *= int(np.bincount(index[inside]).max(initial=1))
        return made

    def taps(self) -> Iterator[tuple[Any, Array, Array]]:
        """For each element of a window: an index into (N, C, space) that gives (N, C, windows), which windows have it,
        and its number in the image for each window."""
        for tap in itertools.product(*(range(index.shape[1]) for index in self.index)):
            along = [index[:, t] for index, t in zip(self.index, tap, strict=True)]
            inside = np.ones(self.out, bool)
            for axis, (mask, t) in enumerate(zip(self.inside, tap, strict=True)):
                inside &= mask[:, t].reshape([-1 if a == axis else 1 for a in range(len(tap))])
            grid = np.ix_(*along)
            yield (slice(None), slice(None), *grid), inside, grid

    def counts(self, padded: bool) -> Array:
        """How many elements each window has, those of the padding too if `padded`."""
        made = np.ones(self.out)
        for axis, mask in enumerate(self.counted if padded else self.inside):
            made = made * mask.sum(1).reshape([-1 if a == axis else 1 for a in range(len(self.out))])
        return made

    def maximum(self, x: Array) -> tuple[Array, Array]:
        """The maxima of x (N, C, space), and the number of the first one in the image, -1 for none."""
        best = np.full((*x.shape[:2], *self.out), _EMPTY)
        found = np.full(best.shape, -1, np.int64)
        space = x.shape[2:]
        for at, inside, grid in self.taps():
            value = x[at]
            number = np.ravel_multi_index(np.broadcast_arrays(*grid), space)
            better = inside & ((found < 0) | (value > best) | (np.isnan(value) & ~np.isnan(best)))
            best, found = np.where(better, value, best), np.where(better, number, found)
        return best, found

    def average(self, x: Array, padded: bool) -> tuple[Array, Array]:
        """Averages, and those of the sizes of the terms."""
        total, sizes = (np.zeros((*x.shape[:2], *self.out)) for _ in range(2))
        for at, inside, _ in self.taps():
            total += np.where(inside, x[at], 0.0)
            sizes += np.where(inside, np.abs(x[at]), 0.0)
        count = np.maximum(self.counts(padded), 1)
        return total / count, sizes / count

    def spread(self, dy: Array, space: tuple[int, ...], padded: bool) -> Array:
        """The gradient of the averages."""
        made = np.zeros((*dy.shape[:2], *space))
        share = dy / np.maximum(self.counts(padded), 1)
        for at, inside, _ in self.taps():
            np.add.at(made, at, np.where(inside, share, 0.0))
        return made


def _added(dtype: str, windows: Windows) -> float:
    """The error of gradients that are added up window by window in the memory of the result, relative to their terms:
    in half precision every sum is rounded."""
    return 64 * roundoff(dtype) + (windows.most - 1) * {"f16": 2.0**-11, "bf16": 2.0**-8}.get(dtype, 0.0)


def _gather_gradient(dy: Array, found: Array, space: tuple[int, ...]) -> Array:
    """dy added up at the numbers `found` of the images."""
    batch, channels = dy.shape[:2]
    made = np.zeros((batch, channels, int(np.prod(space))))
    n, c = np.ix_(range(batch), range(channels))
    count = int(np.prod(dy.shape[2:]))
    flat, where = dy.reshape(batch, channels, count), found.reshape(batch, channels, count)
    np.add.at(made, (n[..., None], c[..., None], np.maximum(where, 0)), np.where(where >= 0, flat, 0.0))
    return made.reshape(batch, channels, *space)


def _ordinary(draw: Draw, images: Images) -> tuple[Windows, dict[str, Any]]:
    """Windows of one size, and the arguments that say so."""
    rounding = draw.weighted((3, "floor"), (1, "ceil"), (1, "caffe"))
    windows = Windows()
    sizes, strides, dilations, pads = [], [], [], []
    dilate = draw.chance(0.25)
    for extent in images.space:
        taps, dilation = draw.pick((2, 3, 1, 5, 4)), draw.whole(1, 3) if dilate else 1
        reach = (taps - 1) * dilation + 1
        before, after = (draw.below(min(3, reach)), draw.below(min(3, reach))) if draw.chance(0.5) else (0, 0)
        if reach > extent + before + after:
            taps, dilation, reach, before, after = 1, 1, 1, 0, 0
        sizes.append(taps)
        strides.append(draw.pick((1, 2, 3, taps)))
        dilations.append(dilation)
        pads.append((before, after))
    padded = any(sum(pair) for pair in pads)
    for extent, taps, stride, dilation, (before, after) in zip(
        images.space, sizes, strides, dilations, pads, strict=True
    ):
        free = extent + before + after - (taps - 1) * dilation - 1
        out = (free // stride if rounding == "floor" else -(-free // stride)) + 1
        if (rounding == "ceil" or (rounding == "caffe" and padded)) and (out - 1) * stride >= extent + before:
            out -= 1
        index = np.arange(out)[:, None] * stride - before + np.arange(taps) * dilation
        windows.add(index, extent, before, after)
    same = all(before == after for before, after in pads)
    arguments = {
        "window": tuple(sizes), "stride": tuple(strides), "rounding": rounding, "dilation": tuple(dilations),
        "padding": [before for before, _ in pads] if same else pads, "layout": images.layout,
    }  # fmt: skip
    return windows, arguments


def _adaptive(draw: Draw, images: Images) -> tuple[Windows, tuple[int, ...]]:
    """Bins of which the number is given."""
    windows, counts = Windows(), tuple(draw.pick((1, 2, 3, 5, 7)) for _ in images.space)
    for extent, count in zip(images.space, counts, strict=True):
        starts = [o * extent // count for o in range(count)]
        ends = [-(-(o + 1) * extent // count) for o in range(count)]
        longest = max(e - s for s, e in zip(starts, ends, strict=True))
        index = np.array(
            [[s + t if s + t < e else -1 for t in range(longest)] for s, e in zip(starts, ends, strict=True)]
        )
        windows.add(index, extent)
    return windows, counts


def _pools(draw: Draw, images: Images, name: str) -> tuple[Windows, list[Any], dict[str, Any]]:
    """The windows of a pooling function of this name, and its arguments behind the arrays."""
    if name.startswith("adaptive"):
        windows, counts = _adaptive(draw, images)
        return windows, [counts], {"layout": images.layout}
    if name.startswith("global"):
        windows = Windows()
        for extent in images.space:
            windows.add(np.arange(extent)[None, :], extent)
        return windows, [], {"layout": images.layout}
    windows, arguments = _ordinary(draw, images)
    return windows, [], arguments


@operation("max_pool", 8, functions=("max_pool", "adaptive_max_pool", "global_max_pool"))
def _max_pool(draw: Draw) -> Problem:
    name = draw.weighted((6, "max_pool"), (2, "adaptive_max_pool"), (1, "global_max_pool"))
    images = Images(draw)
    windows, args, kwargs = _pools(draw, images, name)
    dtype = draw.dtype((*REALS, "u8", "i8"))
    x = operand(draw, "x", images.seen(), dtype)
    results = [Result("y", images.seen(*windows.out), dtype)]
    if name != "global_max_pool" and draw.chance(0.3):
        kind = draw.pick(("i64", "i32", True))
        kwargs["return_indices"] = kind
        results.append(Result("indices", results[0].shape, "i64" if kind is True else kind, saved=True))

    def oracle(a: Named) -> list[Expected]:
        best, found = windows.maximum(images.inner(a["x"]).astype(np.float64))
        return [Expected(images.outer(best)), Expected(images.outer(found))][: len(results)]

    return Problem(name, [x, *args], kwargs, results, oracle, flavours=_FLAVOURS)


@operation("avg_pool", 6, functions=("avg_pool", "adaptive_avg_pool", "global_avg_pool"))
def _avg_pool(draw: Draw) -> Problem:
    name = draw.weighted((6, "avg_pool"), (2, "adaptive_avg_pool"), (1, "global_avg_pool"))
    images = Images(draw)
    windows, args, kwargs = _pools(draw, images, name)
    padded = name != "avg_pool" or draw.chance(0.5)
    if name == "avg_pool":
        kwargs["count_include_pad"] = padded
    dtype = draw.dtype((*REALS, "u8", "i8"))
    x = operand(draw, "x", images.seen(), dtype)

    def oracle(a: Named) -> list[Expected]:
        value, sizes = windows.average(images.inner(a["x"]).astype(np.float64), padded and name == "avg_pool")
        error = (8 + int(np.prod([i.shape[1] for i in windows.index]))) * roundoff(dtype) * sizes
        return [Expected(images.outer(value), images.outer(np.where(np.isfinite(error), error, 0.0)))]

    return Problem(
        name, [x, *args], kwargs, [Result("y", images.seen(*windows.out), dtype)], oracle, flavours=_FLAVOURS
    )


@operation("max_pool_backward", 5, functions=("max_pool_backward", "adaptive_max_pool_backward"))
def _max_pool_backward(draw: Draw) -> Problem:
    name = draw.weighted((3, "max_pool_backward"), (1, "adaptive_max_pool_backward"))
    images = Images(draw)
    windows, args, kwargs = _pools(draw, images, name)
    dtype = draw.dtype()
    out = images.seen(*windows.out)
    dy, x = operand(draw, "dy", out, dtype), operand(draw, "x", images.seen(), dtype)
    y = operand(
        draw, "y", out, dtype, derive=lambda a: images.outer(windows.maximum(images.inner(a["x"]))[0])
    )
    y.strides = None if -1 in np.sign(y.strides or ()) else _apart(y)

    def oracle(a: Named) -> list[Expected]:
        _, found = windows.maximum(images.inner(a["x"]))
        given = images.inner(a["dy"])
        value = _gather_gradient(given, found, images.space)
        error = _added(dtype, windows) * _gather_gradient(np.abs(given), found, images.space)
        fitting = images.outer(np.where(np.isfinite(error), error, 0.0))
        return [Expected(images.outer(value), fitting, additions=windows.most + 4, adds_in_place=True)]

    if name == "adaptive_max_pool_backward":
        args = []
    return Problem(
        name,
        [dy, x, y, *args],
        kwargs,
        [Result("dx", images.seen(), dtype)],
        oracle,
        flavours=("whole", "normal"),
    )


def _apart(one: Operand) -> tuple[int, ...] | None:
    """The strides of an operand that is derived from others: each element has a place of its own, or packed ones."""
    from fuzz.run import structure_is_apart

    return one.strides if structure_is_apart(one) else None


@operation("avg_pool_backward", 4, functions=("avg_pool_backward", "adaptive_avg_pool_backward"))
def _avg_pool_backward(draw: Draw) -> Problem:
    name = draw.weighted((3, "avg_pool_backward"), (1, "adaptive_avg_pool_backward"))
    images = Images(draw)
    windows, args, kwargs = _pools(draw, images, name)
    padded = draw.chance(0.5)
    if name == "avg_pool_backward":
        kwargs["count_include_pad"] = padded
    else:
        args, padded = [], False
    dtype = draw.dtype()
    dy = operand(draw, "dy", images.seen(*windows.out), dtype)

    def oracle(a: Named) -> list[Expected]:
        given = images.inner(a["dy"])
        value = windows.spread(given, images.space, padded)
        error = _added(dtype, windows) * windows.spread(np.abs(given), images.space, padded)
        return [
            Expected(images.outer(value), images.outer(error), additions=windows.most + 4, adds_in_place=True)
        ]

    return Problem(
        name, [dy, images.seen(), *args], kwargs, [Result("dx", images.seen(), dtype)], oracle,
        flavours=("normal", "whole"),
    )  # fmt: skip


@operation("max_unpool", 4)
def _max_unpool(draw: Draw) -> Problem:
    images, dtype = Images(draw), draw.dtype()
    out = tuple(draw.extent(9) for _ in images.space)
    shape, kind = images.seen(*out), draw.pick(("i64", "i32"))
    x = operand(draw, "x", shape, dtype)
    count = int(np.prod(images.space))
    indices = operand(draw, "indices", shape, kind, values=lambda g, s, f: g.integers(-2, count + 2, s))

    def oracle(a: Named) -> list[Expected]:
        given, where = images.inner(a["x"]), images.inner(a["indices"])
        made = np.zeros((images.batch, images.channels, count))
        flat, at = (one.reshape(*one.shape[:2], int(np.prod(out))) for one in (given, where))
        for n, c, i in np.ndindex(flat.shape):
            if 0 <= at[n, c, i] < count:
                made[n, c, at[n, c, i]] = flat[n, c, i]
        return [Expected(images.outer(made.reshape(images.batch, images.channels, *images.space)))]

    return Problem(
        "max_unpool", [x, indices, images.space], {"layout": images.layout}, [Result("y", images.seen(), dtype)],
        oracle,
        flavours=_FLAVOURS,
    )  # fmt: skip


@operation("max_unpool_backward", 3)
def _max_unpool_backward(draw: Draw) -> Problem:
    images, dtype = Images(draw), draw.dtype()
    out = tuple(draw.extent(9) for _ in images.space)
    shape, kind = images.seen(*out), draw.pick(("i64", "i32"))
    count = int(np.prod(images.space))
    dy = operand(draw, "dy", images.seen(), dtype)
    indices = operand(draw, "indices", shape, kind, values=lambda g, s, f: g.integers(-2, count + 2, s))

    def oracle(a: Named) -> list[Expected]:
        flat = images.inner(a["dy"]).reshape(images.batch, images.channels, count)
        at = images.inner(a["indices"]).reshape(images.batch, images.channels, int(np.prod(out)))
        inside = (at >= 0) & (at < count)
        made = np.where(inside, np.take_along_axis(flat, np.where(inside, at, 0), 2), 0.0)
        return [Expected(images.outer(made.reshape(images.batch, images.channels, *out)))]

    return Problem(
        "max_unpool_backward", [dy, indices], {"layout": images.layout}, [Result("dx", shape, dtype)], oracle,
        flavours=_FLAVOURS,
    )  # fmt: skip


def _window_sum(squares: torch.Tensor, size: int, axes: list[int]) -> torch.Tensor:
    """Sums over a window of `size` elements along each of the axes, zeros outside."""
    before = (size - 1) // 2
    for axis in axes:
        extent = squares.shape[axis]
        pads = [0, 0] * (squares.ndim - 1 - axis) + [before, size - 1 - before]
        padded = torch.nn.functional.pad(squares, pads)
        squares = sum((padded.narrow(axis, t, extent) for t in range(size)), torch.zeros_like(squares))
    return squares


def _normalized(
    x: torch.Tensor, means: torch.Tensor | None, size: int, numbers: Any, axes: list[int]
) -> torch.Tensor:
    alpha, beta, k = numbers
    from_mean = x if means is None else x - means
    return x * (k + alpha / size ** len(axes) * _window_sum(from_mean * from_mean, size, axes)) ** -beta


def _norm_arguments(draw: Draw) -> tuple[int, tuple[float, float, float]]:
    numbers = draw.pick((1e-4, 1.0, 0.1)), draw.pick((0.75, 0.5, 1.0)), draw.pick((2.0, 1.0))
    return draw.pick((5, 3, 1, 2, 4, 7)), numbers


def _window_norm(draw: Draw, name: str) -> Problem:
    """`lrn` or `divisive_norm`, forward or backward."""
    images, dtype = Images(draw), draw.dtype()
    size, numbers = _norm_arguments(draw)
    shape = images.seen()
    backward, divisive = name.endswith("backward"), name.startswith("divisive")
    kwargs: dict[str, Any] = {"size": size, "layout": images.layout, "k": numbers[2]}
    prefix = "norm" if divisive else "lrn"
    kwargs |= {f"{prefix}_alpha": numbers[0], f"{prefix}_beta": numbers[1]}
    axes = list(range(2, 2 + images.rank))
    if not divisive:
        kwargs["mode"] = draw.pick(("across", "within"))
        axes = [1] if kwargs["mode"] == "across" else axes
    x = operand(draw, "x", shape, dtype)
    args = [x]
    if divisive and draw.chance(0.6):
        args.append(operand(draw, "means", shape, dtype))
    if backward:
        args.insert(0, operand(draw, "dy", shape, dtype))
    results = [Result("dx" if backward else "y", shape, dtype)]
    if backward and divisive and len(args) == 3:
        results.append(Result("dmeans", shape, dtype))

    def oracle(a: Named) -> list[Expected]:
        given = [torch.from_numpy(images.inner(a[n]).copy()) for n in ("x", "means") if n in a]
        given = [one.requires_grad_(True) for one in given]
        y = _normalized(given[0], given[1] if len(given) > 1 else None, size, numbers, axes)
        made = [y.detach().numpy()]
        unit = 64 * roundoff(dtype)
        if not backward:
            return [Expected(images.outer(made[0]), unit * np.abs(images.outer(made[0])))]
        dy = torch.from_numpy(images.inner(a["dy"]).copy())
        gradients = torch.autograd.grad(y, given, dy)
        most = (
            float(dy.abs().max()) * (1 + 2 * float(max(one.detach().abs().max() for one in given)) ** 2)
            if dy.numel()
            else 0.0
        )
        return [Expected(images.outer(one.numpy()), unit * most) for one in gradients]

    return Problem(name, args, kwargs, results, oracle, flavours=("normal", "whole"))


for _name in ("lrn", "lrn_backward", "divisive_norm", "divisive_norm_backward"):
    operation(_name, 3)(lambda draw, name=_name: _window_norm(draw, name))

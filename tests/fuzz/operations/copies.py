"""What copies: layouts and types, borders, joining and cutting; and what draws random numbers."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

import jitdnn as jd
from fuzz.draw import BYTES, REALS, Draw
from fuzz.operations.pointwise import operand
from fuzz.operations.windows import Images
from fuzz.problem import Array, Expected, Named, Operand, Problem, Result, operation, roundoff

_ALL = (*REALS, "u8", "i8", "i32", "i64", "i16", "u16", "u32", "u64")
_FLAVOURS = ("normal", "whole", "infinite")


def _exact(dtype: str, value: Array) -> Expected:
    """A copy: alpha and beta are applied in float32 or float64."""
    if dtype[0] in "iu":
        return Expected(value.astype(np.longdouble))
    return Expected(value)


@operation("transform", 6)
def _transform(draw: Draw) -> Problem:
    rank = draw.whole(1, 5)
    shape, dtype = draw.shape(rank), draw.dtype(_ALL)
    kwargs: dict[str, Any] = {}
    result = dtype
    if draw.chance(0.5):
        result = draw.pick(("f32", "f16", "bf16", "f64", "u8", "i8", "i32"))
        kwargs["dtype"] = result
    if draw.chance(0.4):
        kwargs["layout"] = draw.pick(("nchw", "nhwc"))
    pairs = [(0, 0)] * rank
    if draw.chance(0.4):
        pairs = [(draw.below(3), draw.below(3)) for _ in shape]
        kwargs["pad"] = pairs
        kwargs["value"] = draw.pick((0.0, 1.0, -2.0, 0.5))
    x = operand(draw, "x", shape, dtype)
    out = tuple(n + b + a for n, (b, a) in zip(shape, pairs, strict=True))

    def oracle(a: Named) -> list[Expected]:
        wide = a["x"].astype(np.longdouble)
        value = np.pad(wide, pairs, constant_values=kwargs.get("value", 0.0))
        error = (
            2
            * (2.0**-53 if "64" in dtype or "32" in dtype[1:] or result == "f64" else 2.0**-24)
            * np.abs(value)
        )
        return [
            Expected(value, np.where(np.isfinite(error), error, 0.0) * (dtype != result or dtype[0] in "iu"))
        ]

    # integers that neither side holds exactly in the other's arithmetic are not what is tested here
    flavours = ("whole",) if dtype in ("i64", "u64", "u32", "i32") else _FLAVOURS
    if dtype in REALS and result not in REALS:
        flavours = ("normal", "whole")
    return Problem("transform", [x], kwargs, [Result("y", out, result)], oracle, flavours=flavours)


@operation("concat", 3)
def _concat(draw: Draw) -> Problem:
    rank = draw.whole(1, 4)
    shape, dtype = list(draw.shape(rank, 500)), draw.dtype(_ALL)
    axis = draw.below(rank)
    parts = []
    for number in range(draw.whole(1, 4)):
        shape[axis] = draw.extent(17, empty=True)
        parts.append(operand(draw, f"x{number}", tuple(shape), dtype))
    shape[axis] = sum(one.shape[axis] for one in parts)

    def oracle(a: Named) -> list[Expected]:
        return [_exact(dtype, np.concatenate([a[one.name] for one in parts], axis))]

    flavours = ("whole",) if dtype in ("i64", "u64", "u32", "i32") else _FLAVOURS
    return Problem(
        "concat", [parts], {"axis": axis - (rank if draw.chance(0.3) else 0)}, [Result("y", tuple(shape), dtype)],
        oracle,
        flavours=flavours,
    )  # fmt: skip


@operation("slice", 3)
def _slice(draw: Draw) -> Problem:
    rank = draw.whole(1, 4)
    shape, dtype = draw.shape(rank, 500), draw.dtype(_ALL)
    count = draw.whole(1, rank)
    starts, stops = ([draw.pick((None, 0, 1, -1, 2, -3, 100, -100)) for _ in range(count)] for _ in range(2))
    steps = [draw.pick((1, 1, 2, 3, -1, -2)) for _ in range(count)]
    cut = tuple(slice(*one) for one in zip(starts, stops, steps, strict=True))
    x = operand(draw, "x", shape, dtype)
    out = np.empty(shape, np.int8)[cut].shape

    def oracle(a: Named) -> list[Expected]:
        return [_exact(dtype, a["x"][cut])]

    flavours = ("whole",) if dtype in ("i64", "u64", "u32", "i32") else _FLAVOURS
    return Problem(
        "slice", [x, starts, stops, steps], {}, [Result("y", out, dtype)], oracle, flavours=flavours
    )


@operation("split", 2)
def _split(draw: Draw) -> Problem:
    rank = draw.whole(1, 4)
    shape, dtype = list(draw.shape(rank, 500)), draw.dtype(_ALL)
    axis = draw.below(rank)
    sizes = [draw.extent(7, empty=True) for _ in range(draw.whole(1, 4))]
    shape[axis] = sum(sizes)
    x = operand(draw, "x", tuple(shape), dtype)
    ends = np.cumsum(sizes)[:-1]

    def oracle(a: Named) -> list[Expected]:
        return [_exact(dtype, one) for one in np.split(a["x"], ends, axis)]

    results = [Result(f"y{k}", (*shape[:axis], n, *shape[axis + 1 :]), dtype) for k, n in enumerate(sizes)]
    return Problem(
        "split",
        [x, sizes],
        {"axis": axis},
        results,
        oracle,
        scales=False,
        takes_out=False,
        flavours=("normal", "whole"),
    )


@operation("fold", 3, functions=("fold", "unfold"))
def _fold(draw: Draw) -> Problem:
    images, dtype = Images(draw, 9, 300), draw.dtype(_ALL)
    factors = tuple(draw.pick((1, 2, 3)) for _ in images.space)
    order, back = draw.pick(("crd", "dcr")), draw.chance(0.5)
    product = math.prod(factors)
    small, few = images.space, images.channels
    large, many = tuple(n * f for n, f in zip(small, factors, strict=True)), few * product
    given = images.seen(*small, channels=many) if back else images.seen(*large, channels=few)
    out = images.seen(*large, channels=few) if back else images.seen(*small, channels=many)
    x = operand(draw, "x", given, dtype)
    rank = len(small)

    def oracle(a: Named) -> list[Expected]:
        inner = images.inner(a["x"])
        n = images.batch
        if back:
            blocks = (few, *factors) if order == "crd" else (*factors, few)
            made = inner.reshape(n, *blocks, *small)
            channel = 1 if order == "crd" else 1 + rank
            first = 2 if order == "crd" else 1
            axes = [0, channel]
            for k in range(rank):
                axes += [2 + rank + k, first + k]
            return [_exact(dtype, images.outer(made.transpose(axes).reshape(n, few, *large)))]
        pairs = [m for s, f in zip(small, factors, strict=True) for m in (s, f)]
        made = inner.reshape(n, few, *pairs)
        blocks_ = [3 + 2 * k for k in range(rank)]
        axes = [0, *([1, *blocks_] if order == "crd" else [*blocks_, 1]), *(2 + 2 * k for k in range(rank))]
        return [_exact(dtype, images.outer(made.transpose(axes).reshape(n, many, *small)))]

    flavours = ("whole",) if dtype in ("i64", "u64", "u32", "i32") else _FLAVOURS
    return Problem(
        "unfold" if back else "fold", [x, factors], {"order": order, "layout": images.layout},
        [Result("y", out, dtype)],
        oracle, flavours=flavours,
    )  # fmt: skip


@operation("dropout", 3, functions=("dropout", "dropout_backward"))
def _dropout(draw: Draw) -> Problem:
    shape, dtype = draw.shape(draw.whole(1, 5)), draw.dtype()
    p = draw.pick((0.5, 0.0, 1.0, 0.1, 0.9, 0.99, 1 - 2**-16, 2**-16))
    x = operand(draw, "x", shape, dtype, values=lambda g, s, f: g.standard_normal(s) + 3)
    dy = operand(draw, "dy", shape, dtype, values=lambda g, s, f: g.standard_normal(s) - 3)
    seed = draw.below(1 << 30)
    scale = 1 / (1 - p) if p < 1 else 0.0

    def call(x_: Any, dy_: Any) -> Any:
        state = jd.DropoutState(seed)
        y, reserve, mask = jd.dropout(x_, p, state, return_mask=True)
        again, _ = jd.dropout(x_, p, jd.DropoutState(seed))
        return y, mask, jd.dropout_backward(dy_, p, reserve), again

    def judge(a: Named, made: Sequence[Array]) -> str | None:
        y, mask, dx, again = made
        if not np.array_equal(y, again):
            return "the same state gave other numbers"
        largest = {"f16": 65504.0, "bf16": 3.3e38, "f32": 3.3e38, "f64": 1e308}[dtype]
        for name, got, source in (("y", y, a["x"]), ("dx", dx, a["dy"])):
            exact = np.where(mask, source.astype(np.float64) * scale, 0.0)
            unit = {"f16": 2.0**-11, "bf16": 2.0**-8}.get(dtype, 0.0) + 4 * roundoff(dtype)
            fits = np.abs(exact) < largest * (1 - unit)
            with np.errstate(invalid="ignore"):
                far = (
                    ~(
                        np.abs(got.astype(np.float64) - exact)
                        <= unit * np.abs(exact) + 6e-8 * (dtype == "f16")
                    )
                    & fits
                )
            if far.any():
                return f"{name} is {got[far][0]} where {exact[far][0]} is right, p = {p}, at {far.sum()} of {far.size}"
        count, kept = mask.size, int(mask.sum())
        deviation = math.sqrt(count * p * (1 - p))
        if abs(kept - count * (1 - p)) > 7 * deviation + 1:
            return f"{kept} of {count} kept with p = {p}"
        return None

    results = [
        Result("y", shape, dtype),
        Result("mask", shape, "bool"),
        Result("dx", shape, dtype),
        Result("again", shape, dtype),
    ]
    return Problem(
        "dropout",
        [x, dy],
        {},
        results,
        judge=judge,
        scales=False,
        takes_out=False,
        call=call,
        flavours=("normal",),
    )


@operation("random", 3, functions=("uniform", "normal", "bernoulli", "DropoutState"))
def _random(draw: Draw) -> Problem:
    shape, dtype = draw.shape(draw.whole(1, 4), empty=False), draw.dtype()
    name = draw.pick(("uniform", "normal", "bernoulli"))
    numbers = {"uniform": (-1.0, 3.0), "normal": (0.5, 2.0), "bernoulli": (draw.pick((0.5, 0.0, 1.0, 0.1)),)}[
        name
    ]
    seed = draw.below(1 << 30)
    strides = draw.strides(shape, is_output=True, itemsize=BYTES[dtype])
    out = Operand("out", shape, dtype, strides, state=True)

    def call(out_: Any) -> Any:
        state = jd.DropoutState(seed)
        filled = getattr(jd, name)(None, *numbers, state, out=out_)
        if state.offset != 1:
            raise AssertionError("the state did not go on")
        return filled

    def judge(a: Named, made: Sequence[Array]) -> str | None:
        values = made[0].astype(np.float64)
        if not np.isfinite(values).all():
            return "not all are numbers"
        count = values.size
        if name == "uniform":
            low, high = numbers
            if values.min() < low or values.max() > high:
                return f"{values.min()} to {values.max()} is outside of {numbers}"
            mean, spread = 1.0, 4 / math.sqrt(12)
        elif name == "normal":
            mean, spread = numbers[0], numbers[1]
        else:
            if not np.isin(values, (0.0, 1.0)).all():
                return "not all are 0 or 1"
            mean, spread = numbers[0], math.sqrt(numbers[0] * (1 - numbers[0]))
        rounding = {"f16": 1e-3, "bf16": 1e-2}.get(dtype, 1e-6)
        if abs(values.mean() - mean) > 7 * spread / math.sqrt(count) + rounding:
            return f"the mean of {count} is {values.mean()}, must be about {mean}"
        return None

    return Problem(
        name, [out], {}, [Result("filled", shape, dtype)], judge=judge, scales=False, takes_out=False, call=call,
        flavours=("normal",),
    )  # fmt: skip


@operation("kept_filter", 2, gpu=False, functions=("KeptFilter",))
def _kept_filter(draw: Draw) -> Problem:
    from fuzz.operations.convolution import _Convolution, _error

    c = _Convolution(draw)
    dtype = draw.dtype()
    x, w = operand(draw, "x", c.seen(c.x_shape), dtype), operand(draw, "w", c.seen(c.w_shape), dtype)

    def oracle(a: Named) -> list[Expected]:
        x_, w_ = c.inner(a["x"]), c.inner(a["w"])
        sizes = c.outer(c.forward(x_.abs(), w_.abs()))
        return [Expected(c.outer(c.forward(x_, w_)), _error(dtype, sizes))] * 2

    def call(x_: Any, w_: Any, **more: Any) -> Any:
        kept = jd.KeptFilter(w_)
        return jd.conv(x_, kept, **more), jd.conv(x_, kept, **more)

    shape = c.seen(c.y_shape)
    return Problem(
        "conv", [x, w], c.kwargs, [Result("y", shape, dtype), Result("again", shape, dtype)], oracle, scales=False,
        takes_out=False, call=call, flavours=("normal", "whole"),
    )  # fmt: skip

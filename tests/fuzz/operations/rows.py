"""Reductions, scans, softmax, PReLU and embeddings: what goes over rows."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

import jitdnn as jd
from fuzz.draw import REALS, Draw
from fuzz.operations.pointwise import operand
from fuzz.problem import Array, Expected, Named, Problem, Result, operation, roundoff

F = torch.nn.functional


def statistics_dtype(dtype: str) -> str:
    """The type of means and the like of numbers of a type."""
    return "f64" if dtype == "f64" else "f32"


def finite(error: Array) -> Array:
    return np.where(np.isfinite(error), error, 0.0)


def _factors(g: np.random.Generator, shape: tuple[int, ...], flavour: str) -> Array:
    """Numbers of which many have a product that is neither 0 nor infinity."""
    if flavour == "whole":
        return g.choice([1.0, -1.0, 0.0, -1.0], shape)
    return 1 + g.standard_normal(shape) / 64


@operation("reduce", 7)
def _reduce(draw: Draw) -> Problem:
    op = draw.pick(("add", "max", "min", "amax", "avg", "norm1", "norm2", "mul", "mul_no_zeros"))
    rank = draw.whole(1, 5)
    shape, dtype = draw.shape(rank, empty=op not in ("max", "min", "amax", "avg")), draw.dtype()
    axes: Any = None if draw.chance(0.2) else tuple(n for n in range(rank) if draw.chance(0.5)) or (rank - 1,)
    over = tuple(range(rank)) if axes is None else axes
    keepdims, quiet = draw.chance(0.3), draw.chance(0.2)
    out = tuple(1 if n in over else e for n, e in enumerate(shape) if keepdims or n not in over) or (1,)
    x = operand(draw, "x", shape, dtype)
    kwargs: dict[str, Any] = {
        "op": op,
        "axes": axes if axes is None or len(axes) > 1 else draw.pick((axes, axes[0])),
    }
    kwargs |= {"keepdims": keepdims, "propagate_nan": not quiet}
    results = [Result("y", out, dtype)]
    if op in ("min", "max") and draw.chance(0.4):
        kwargs["indices"] = kind = draw.pick((True, "u32", "i32", "i64"))
        results.append(Result("indices", out, "i64" if kind is True else kind, saved=True))
    count = int(np.prod([shape[n] for n in over]))
    if op.startswith("mul"):
        x.values = _factors

    def oracle(a: Named) -> list[Expected]:
        given = a["x"]
        rows = np.moveaxis(given, over, range(-len(over), 0)) if over else given
        rows = rows.reshape(*[e for n, e in enumerate(shape) if n not in over], count)
        if quiet and op in ("min", "max", "amax"):
            rows = np.where(np.isnan(rows), {"min": np.inf, "max": -np.inf, "amax": 0.0}[op], rows)
        sizes = np.abs(rows)
        value = {
            "add": lambda: rows.sum(-1), "max": lambda: rows.max(-1), "min": lambda: rows.min(-1),
            "amax": lambda: sizes.max(-1), "avg": lambda: rows.mean(-1), "norm1": lambda: sizes.sum(-1),
            "norm2": lambda: np.sqrt((rows * rows).sum(-1)), "mul": lambda: rows.prod(-1),
            "mul_no_zeros": lambda: np.where(rows == 0, 1.0, rows).prod(-1),
        }[op]()  # fmt: skip
        unit = roundoff(dtype)
        error = np.zeros(value.shape)
        if op in ("add", "avg", "norm1", "norm2"):
            error = (8 + min(count, 256)) * unit * sizes.sum(-1) / (max(1, count) if op == "avg" else 1)
            error = error if op != "norm2" else (8 + min(count, 256)) * unit * value
        elif op.startswith("mul"):
            error = (count + 4) * unit * np.abs(value)
        made = [Expected(value.reshape(out), finite(error).reshape(out))]
        if len(results) == 2:
            isnan = np.isnan(rows).any(-1)
            place = np.where(
                isnan, np.isnan(rows).argmax(-1), (rows.argmax if op == "max" else rows.argmin)(-1)
            )
            if quiet:
                place = np.where(np.isnan(a["x"]).all(axis=over).reshape(place.shape), 0, place)
                # an infinity that is worth as much as a NaN that does not count: the first that is a number
                own = np.moveaxis(given, over, range(-len(over), 0)).reshape(rows.shape)
                good = ~np.isnan(own) & (rows == value[..., None])
                place = np.where(good.any(-1), good.argmax(-1), place)
            made.append(Expected(place.reshape(out)))
        return made

    return Problem("reduce", [x], kwargs, results, oracle, flavours=("whole", "normal", "infinite"))


_REDUCTIONS = {"add": np.sum, "max": np.max, "min": np.min, "multiply": np.prod}


@operation("reduction", 4, functions=("reduction",))
def _reduction(draw: Draw) -> Problem:
    rank = draw.whole(1, 4)
    shape, dtypes = draw.shape(rank, empty=False), [draw.dtype((*REALS, "u8", "i8", "i32")) for _ in range(2)]
    axes = tuple(n for n in range(rank) if draw.chance(0.5)) or (rank - 1,)
    out = tuple(e for n, e in enumerate(shape) if n not in axes) or (1,)
    x, y = (operand(draw, n, shape, t, values=_small) for n, t in zip("xy", dtypes, strict=True))
    fold = draw.pick(("add", "max", "min"))
    two = draw.chance(0.5)
    kernel = jd.reduction("x, y: x * y + 0.5" if two else "x: x * x - 1.5", fold)
    used = [x, y] if two else [x]
    # a formula with a real number in it gives the widest real type, of integers a real type
    reals = [t for t in (dtypes if two else dtypes[:1]) if t in REALS]
    result = _common(dtypes if two else dtypes[:1], reals)

    def oracle(a: Named) -> list[Expected]:
        given = a["x"].astype(np.float64)
        terms = given * a["y"] + 0.5 if two else given * given - 1.5
        value = _REDUCTIONS[fold](terms, axis=axes).reshape(out)
        sizes = (np.abs(terms) + 1).sum(axes).reshape(out)
        return [Expected(value, 64 * roundoff("f64" if result == "f64" else "f32") * sizes)]

    call = lambda *arrays, **more: kernel(*arrays, axes=axes, **more)  # noqa: E731
    return Problem("reduction", list(used), {}, [Result("r", out, result)], oracle, scales=False,
                   flavours=("normal", "whole"), call=call)  # fmt: skip


def _small(g: np.random.Generator, shape: tuple[int, ...], flavour: str) -> Array:
    return g.integers(-5, 6, shape).astype(np.float64) if flavour == "whole" else g.standard_normal(shape) * 3


def _common(dtypes: list[str], reals: list[str]) -> str:
    """The type of a real formula's results over arrays of these types."""
    if "f64" in dtypes or ("i32" in dtypes and not reals):
        return "f64"
    kinds = set(reals)
    if not kinds or "f32" in kinds or len(kinds) > 1:
        return "f32"
    return kinds.pop()


@operation("scan", 4, functions=("scan",))
def _scan(draw: Draw) -> Problem:
    rank = draw.whole(1, 4)
    shape, dtype = draw.shape(rank), draw.dtype()
    axis, reverse, exclusive = draw.below(rank), draw.chance(0.3), draw.chance(0.3)
    fold = draw.pick(("add", "max", "min"))
    kernel = jd.scan("x: x * 0.5", fold, exclusive=exclusive)
    x = operand(draw, "x", shape, dtype)

    def oracle(a: Named) -> list[Expected]:
        terms = a["x"] * 0.5
        if reverse:
            terms = np.flip(terms, axis)
        made = {"add": np.add, "max": np.maximum, "min": np.minimum}[fold].accumulate(terms, axis)
        sizes = np.add.accumulate(np.abs(terms), axis)
        if exclusive:
            neutral = {"add": 0.0, "max": -np.inf, "min": np.inf}[fold]
            made, sizes = (_shifted(m, axis, n) for m, n in ((made, neutral), (sizes, 0.0)))
        if reverse:
            made, sizes = np.flip(made, axis), np.flip(sizes, axis)
        return [
            Expected(made, finite((8 + min(shape[axis], 256)) * roundoff(dtype) * sizes) * (fold == "add"))
        ]

    def call(array: Any, **more: Any) -> Any:
        return kernel(array, axis=axis, reverse=reverse, **more)

    return Problem(
        "scan",
        [x],
        {},
        [Result("y", shape, dtype)],
        oracle,
        scales=False,
        flavours=("normal", "whole"),
        call=call,
    )


def _shifted(array: Array, axis: int, neutral: float) -> Array:
    moved = np.moveaxis(array, axis, 0)
    if not moved.shape[0]:
        return array
    return np.moveaxis(np.concatenate([np.full_like(moved[:1], neutral), moved[:-1]]), 0, axis)


_SOFTMAX_AXES = ("channel", "instance")


def _softmax_of(x: torch.Tensor, over: tuple[int, ...], algorithm: str) -> torch.Tensor:
    order = [n for n in range(x.ndim) if n not in over] + list(over)
    back = [order.index(n) for n in range(x.ndim)]
    moved = x.permute(order)
    kept = moved.shape[: x.ndim - len(over)]
    flat = moved.reshape(*kept, int(np.prod(moved.shape[len(kept) :])))
    made = F.log_softmax(flat, -1) if algorithm == "log" else F.softmax(flat, -1)
    return made.reshape(moved.shape).permute(back)


@operation("softmax", 7, functions=("softmax", "softmax_backward"))
def _softmax(draw: Draw) -> Problem:
    rank = draw.whole(1, 5)
    shape, dtype, backward = draw.shape(rank), draw.dtype(), draw.chance(0.45)
    algorithm = draw.pick(("accurate", "log", "fast"))
    axis: Any = draw.below(rank) - (rank if draw.chance(0.5) else 0)
    over: tuple[int, ...] = (axis % rank,)
    if rank > 1 and draw.chance(0.3):
        axis = draw.pick(_SOFTMAX_AXES)
        over = (1,) if axis == "channel" else tuple(range(1, rank))
    x = operand(draw, "x", shape, dtype)
    kwargs = {"axis": axis, "algorithm": algorithm}
    count = int(np.prod([shape[n] for n in over]))

    def oracle(a: Named) -> list[Expected]:
        y = _softmax_of(torch.from_numpy(a["x"].copy()), over, algorithm).numpy()
        most = np.abs(np.where(np.isfinite(a["x"]), a["x"], 0.0)).max(axis=over, keepdims=True, initial=0.0)
        unit = (16 + min(count, 64)) * roundoff(dtype)
        error = unit * (np.abs(y) + most + 1) if algorithm == "log" else unit * y * (1 + most)
        return [Expected(y, finite(error))]

    if not backward:
        flavours = ("normal", "whole", "infinite") if algorithm != "fast" else ("normal", "whole")
        return Problem(
            "softmax", [x], kwargs, [Result("y", shape, dtype, in_place="x")], oracle, flavours=flavours
        )
    dy = operand(draw, "dy", shape, dtype)
    x.name = "y"
    x.values = lambda g, s, f: _softmax_of(torch.from_numpy(g.standard_normal(s)), over, algorithm).numpy()

    def gradient(a: Named) -> list[Expected]:
        dy, y = a["dy"], a["y"]
        unit = (16 + min(count, 64)) * roundoff(dtype)
        if algorithm == "log":
            total, sizes = dy.sum(over, keepdims=True), np.abs(dy).sum(over, keepdims=True)
            return [
                Expected(dy - np.exp(y) * total, unit * (np.abs(dy) + np.exp(y) * (1 + np.abs(y)) * sizes))
            ]
        total, sizes = (dy * y).sum(over, keepdims=True), np.abs(dy * y).sum(over, keepdims=True)
        return [Expected(y * (dy - total), unit * np.abs(y) * (np.abs(dy) + sizes))]

    result = Result("dx", shape, dtype, in_place="dy")
    return Problem("softmax_backward", [dy, x], kwargs, [result], gradient, flavours=("normal", "whole"))


@operation("prelu", 4, functions=("prelu", "prelu_backward"))
def _prelu(draw: Draw) -> Problem:
    rank = draw.whole(1, 5)
    shape, dtype, backward = draw.shape(rank), draw.dtype(), draw.chance(0.5)
    axis = draw.below(rank)
    single = draw.chance(0.25)
    count = 1 if single else shape[axis]
    if count == 0:
        single, count = True, 1
    x, weight = operand(draw, "x", shape, dtype), operand(draw, "weight", (count,), dtype)
    spread = tuple(count if n == axis else 1 for n in range(rank))
    over = tuple(n for n in range(rank) if single or n != axis)

    def oracle(a: Named) -> list[Expected]:
        w = np.broadcast_to(a["weight"].reshape(spread), shape)
        slope = np.where(a["x"] > 0, 1.0, w)
        if not backward:
            y = np.where(a["x"] > 0, a["x"], w * a["x"])
            return [Expected(y, finite(4 * roundoff(dtype) * np.abs(y)))]
        dx = a["dy"] * slope
        terms = np.where(a["x"] > 0, 0.0, a["dy"] * a["x"])
        error = (16 + 256) * roundoff(dtype) * np.abs(terms).sum(over).reshape(count)
        return [
            Expected(dx, 4 * roundoff(dtype) * np.abs(dx)),
            Expected(terms.sum(over).reshape(count), error),
        ]

    kwargs = {"axis": axis - (rank if draw.chance(0.3) else 0)}
    if not backward:
        results = [Result("y", shape, dtype, in_place="x")]
        return Problem(
            "prelu", [x, weight], kwargs, results, oracle, flavours=("normal", "whole", "infinite")
        )
    dy = operand(draw, "dy", shape, dtype)
    results = [Result("dx", shape, dtype, in_place="dy"), Result("dweight", (count,), dtype)]
    return Problem("prelu_backward", [dy, x, weight], kwargs, results, oracle, flavours=("normal", "whole"))


@operation("embedding", 3, functions=("embedding", "embedding_backward"))
def _embedding(draw: Draw) -> Problem:
    dtype, backward = draw.dtype(), draw.chance(0.5)
    rows, columns = draw.extent(65), draw.extent(65)
    where = draw.shape(draw.whole(1, 3), 100)
    indices = operand(
        draw, "indices", where, draw.pick(("i64", "i32")), values=lambda g, s, f: g.integers(0, rows, s)
    )
    if not backward:
        weight = operand(draw, "weight", (rows, columns), dtype)
        return Problem(
            "embedding", [indices, weight], {}, [Result("y", (*where, columns), dtype)],
            lambda a: [Expected(a["weight"][a["indices"]])], flavours=("normal", "whole", "infinite"),
        )  # fmt: skip
    dy = operand(draw, "dy", (*where, columns), dtype)
    padding = draw.pick((None, 0, -1))

    def oracle(a: Named) -> list[Expected]:
        made, sizes = (np.zeros((rows, columns)) for _ in range(2))
        flat, given = a["indices"].reshape(-1), a["dy"].reshape(-1, columns)
        np.add.at(made, flat, given)
        np.add.at(sizes, flat, np.abs(given))
        if padding is not None:
            made[padding] = 0
        return [Expected(made, 128 * roundoff(dtype) * sizes)]

    return Problem(
        "embedding_backward", [dy, indices, rows], {"padding_idx": padding},
        [Result("dweight", (rows, columns), dtype)],
        oracle, flavours=("normal", "whole"),
    )  # fmt: skip

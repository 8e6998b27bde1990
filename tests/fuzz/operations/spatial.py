"""Resizing and sampling of images."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

import numpy as np
import torch

from fuzz.draw import Draw
from fuzz.operations.pointwise import operand
from fuzz.operations.windows import Images
from fuzz.problem import Array, Expected, Named, Problem, Result, operation, roundoff

F = torch.nn.functional


def _matrix(inputs: int, outputs: int, scale: float | None, kwargs: dict[str, Any]) -> Array:
    """The weights of one axis, (outputs, inputs), by the formulas of ONNX's Resize in exact fractions."""
    mode, coordinates = kwargs["mode"], kwargs["coordinates"]
    s = Fraction(outputs, inputs) if scale is None else Fraction(scale)
    made = np.zeros((outputs, inputs))
    for o in range(outputs):
        if coordinates == "align_corners":
            place = Fraction(o * (inputs - 1), outputs - 1) if outputs > 1 else Fraction(0)
        elif coordinates == "asymmetric":
            place = Fraction(o) / s
        elif coordinates == "pytorch_half_pixel" and outputs == 1:
            place = Fraction(0)
        else:
            place = (o + Fraction(1, 2)) / s - Fraction(1, 2)
        low = math.floor(place)
        part = float(place - low)
        if mode == "nearest":
            rounding = kwargs["rounding"]
            half = place - low == Fraction(1, 2)
            number = {
                "floor": low, "ceil": math.ceil(place), "round_prefer_floor": low if half else round(place),
                "round_prefer_ceil": low + 1 if half else round(place),
            }[rounding]  # fmt: skip
            weights = {number: 1.0}
        elif mode == "linear":
            weights = {low: 1 - part, low + 1: part}
        else:
            a = kwargs["cubic"]
            weights = {}
            for t in range(-1, 3):
                d = abs(t - part)
                if d <= 1:
                    weights[low + t] = (a + 2) * d**3 - (a + 3) * d**2 + 1
                elif d < 2:
                    weights[low + t] = a * d**3 - 5 * a * d**2 + 8 * a * d - 4 * a
        for number, weight in weights.items():
            made[o, min(max(number, 0), inputs - 1)] += weight
    return made


def _applied(x: Array, matrices: list[Array], transposed: bool) -> Array:
    for axis, matrix in enumerate(matrices, start=2):
        x = np.moveaxis(np.tensordot(x, matrix.T if not transposed else matrix, axes=(axis, 0)), -1, axis)
    return x


@operation("resize", 5, functions=("resize", "resize_backward"))
def _resize(draw: Draw) -> Problem:
    backward = draw.chance(0.45)
    images, dtype = Images(draw, 17, 600), draw.dtype()
    kwargs: dict[str, Any] = {
        "mode": draw.pick(("linear", "nearest", "cubic")),
        "coordinates": draw.pick(("half_pixel", "pytorch_half_pixel", "align_corners", "asymmetric")),
        "rounding": draw.pick(("round_prefer_floor", "round_prefer_ceil", "floor", "ceil")),
        "cubic": draw.pick((-0.75, -0.5)),
        "layout": images.layout,
    }  # fmt: skip
    scales: list[float | None] = [None] * images.rank
    out = tuple(draw.extent(19) for _ in images.space)
    if draw.chance(0.35):
        chosen = tuple(draw.pick((2.0, 0.5, 1.5, 3.0, 0.7, 1.0)) for _ in images.space)
        if all(math.floor(n * s) >= 1 for n, s in zip(images.space, chosen, strict=True)):
            scales = list(chosen)
            kwargs["scale"] = chosen
            out = tuple(math.floor(n * s) for n, s in zip(images.space, chosen, strict=True))
    matrices = [_matrix(i, o, s, kwargs) for i, o, s in zip(images.space, out, scales, strict=True)]
    shape = images.seen(*out) if backward else images.seen()
    x = operand(draw, "dy" if backward else "x", shape, dtype)
    args: list[Any] = [x]
    if backward:
        args.append(images.seen())
    elif "scale" not in kwargs:
        kwargs["size"] = out

    def oracle(a: Named) -> list[Expected]:
        given = images.inner(a[x.name])
        value = _applied(given, matrices, backward)
        sizes = _applied(np.abs(given), [np.abs(m) for m in matrices], backward)
        most = np.abs(given).max(initial=0.0)  # weights that are nearly 0 have the error of those around them
        return [Expected(images.outer(value), images.outer(64 * roundoff(dtype) * (sizes + most)))]

    result = Result("dx" if backward else "y", images.seen() if backward else images.seen(*out), dtype)
    return Problem(
        "resize_backward" if backward else "resize",
        args,
        kwargs,
        [result],
        oracle,
        flavours=("normal", "whole"),
    )


@operation("affine_grid", 2, functions=("affine_grid", "affine_grid_backward"))
def _affine_grid(draw: Draw) -> Problem:
    rank, batch, dtype = draw.whole(2, 3), draw.extent(5, empty=True), draw.dtype()
    space = tuple(draw.extent(13) for _ in range(rank))
    align, backward = draw.chance(0.5), draw.chance(0.4)
    theta_shape, grid_shape = (batch, rank, rank + 1), (batch, *space, rank)

    def grid_of(theta: torch.Tensor) -> torch.Tensor:
        # torch's rejects an empty batch
        axes = []
        for extent in reversed(space):
            steps = torch.arange(extent, dtype=torch.float64)
            line = steps * 2 / (extent - 1) - 1 if align and extent > 1 else (steps * 2 + 1) / extent - 1
            axes.append(torch.zeros(1, dtype=torch.float64) if extent == 1 else line)
        places = torch.meshgrid(*reversed(axes), indexing="ij")
        base = torch.stack([*reversed(places), torch.ones(space, dtype=torch.float64)], -1)
        return torch.einsum("...k,njk->n...j", base, theta)

    def oracle(a: Named) -> list[Expected]:
        theta = torch.zeros(theta_shape, dtype=torch.float64, requires_grad=True)
        if backward:
            given = torch.from_numpy(a["dgrid"].copy())
            (value,) = torch.autograd.grad(grid_of(theta), theta, given)
            sizes = given.abs().sum(tuple(range(1, rank + 1)))[..., None].expand(value.shape)
        else:
            value = grid_of(torch.from_numpy(a["theta"].copy()))
            sizes = (
                torch.from_numpy(np.abs(a["theta"]))
                .sum(-1)
                .reshape(batch, *[1] * rank, rank)
                .expand(value.shape)
            )
        return [Expected(value.numpy(), 32 * roundoff(dtype) * sizes.numpy())]

    if backward:
        args: list[Any] = [operand(draw, "dgrid", grid_shape, dtype)]
        result = Result("dtheta", theta_shape, dtype)
    else:
        args = [operand(draw, "theta", theta_shape, dtype), space]
        result = Result("grid", grid_shape, dtype)
    name = "affine_grid_backward" if backward else "affine_grid"
    return Problem(name, args, {"align_corners": align}, [result], oracle, flavours=("normal", "whole"))


@operation("grid_sample", 4, functions=("grid_sample", "grid_sample_backward"))
def _grid_sample(draw: Draw) -> Problem:
    rank, batch, channels = draw.whole(2, 3), draw.extent(5), draw.extent(17)
    dtype, align, backward = draw.dtype(), draw.chance(0.5), draw.chance(0.45)
    space, out = (tuple(draw.extent(7) for _ in range(rank)) for _ in range(2))
    mode, padding = draw.pick(("linear", "nearest")), draw.pick(("zeros", "border", "reflection"))
    x_shape, y_shape = (batch, channels, *space), (batch, channels, *out)
    x = operand(draw, "x", x_shape, dtype)
    grid = operand(draw, "grid", (batch, *out, rank), dtype, values=lambda g, s, f: g.uniform(-1.4, 1.4, s))
    names = {"linear": "bilinear", "nearest": "nearest"}

    def places(a: Named) -> tuple[Array, Array]:
        """Which places are so near to where neighbours change that roundings decide, and how steep they are."""
        extents = np.array(space[::-1], np.float64)
        g = a["grid"]
        u = (g + 1) / 2 * (extents - 1) if align else ((g + 1) * extents - 1) / 2
        whole = np.abs(u - np.rint(u)) < 1e-3
        half = np.abs(u - np.floor(u) - 0.5) < 1e-3
        edge = np.abs(u) < 1e-3
        edge |= np.abs(u - (extents - 1)) < 1e-3
        near = half if mode == "nearest" else whole
        if backward or padding == "reflection":
            near = near | edge | half | whole
        return near.any(-1), np.broadcast_to(extents.max(), g.shape[:-1])

    def oracle(a: Named) -> list[Expected]:
        given = torch.from_numpy(a["x"].copy()).requires_grad_(True)
        at = torch.from_numpy(a["grid"].copy()).requires_grad_(True)
        y = F.grid_sample(given, at, names[mode], padding, align)
        unsure, steep = places(a)
        most = np.abs(a["x"]).max(initial=0.0)
        unit = 64 * roundoff(dtype) * max(space)
        if not backward:
            error = np.where(unsure & (mode == "nearest"), np.inf, unit * most)
            return [Expected(y.detach().numpy(), np.broadcast_to(error[:, None], y.shape))]
        dy = torch.from_numpy(a["dy"].copy())
        dx, dgrid = torch.autograd.grad(y, (given, at), dy)
        largest = np.abs(a["dy"]).max(initial=0.0)
        loose = np.inf if unsure.any() and mode == "nearest" else unit * largest * max(1, int(np.prod(out)))
        slope = np.where(unsure, np.inf, unit * largest * most * channels * steep)
        return [Expected(dx.numpy(), loose), Expected(dgrid.numpy(), slope[..., None] + np.zeros(rank))]

    kwargs = {"mode": mode, "padding": padding, "align_corners": align}
    if backward:
        dy = operand(draw, "dy", y_shape, dtype)
        results = [Result("dx", x_shape, dtype), Result("dgrid", grid.shape, dtype)]
        return Problem(
            "grid_sample_backward", [dy, x, grid], kwargs, results, oracle, flavours=("normal", "whole")
        )
    return Problem(
        "grid_sample", [x, grid], kwargs, [Result("y", y_shape, dtype)], oracle, flavours=("normal", "whole")
    )

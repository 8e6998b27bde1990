"""Layer, RMS, group, instance and batch normalization, and their gradients by PyTorch's differentiation."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch

import jitdnn as jd
from fuzz.draw import Draw
from fuzz.operations.pointwise import operand
from fuzz.operations.rows import finite, statistics_dtype
from fuzz.problem import Array, Expected, Named, Operand, Problem, Result, operation, roundoff


class _Norm:
    """Which axes are normalized together, and how parameters lie along x's axes."""

    def __init__(self, draw: Draw, name: str) -> None:
        self.name, self.layout = name, None
        self.dtype = draw.dtype()
        self.epsilon = draw.pick((1e-5, 1e-3, 0.1))
        self.kwargs: dict[str, Any] = {}
        self.groups = 1
        if name in ("layer_norm", "rms_norm"):
            self.shape = draw.shape(draw.whole(1, 5), empty=False)
            rank = len(self.shape)
            axis = draw.below(rank)
            self.kwargs["axis"] = axis - (rank if draw.chance(0.5) else 0)
            self.over = tuple(range(axis, rank))
            self.parameter = self.shape[axis:]
            self.inner = self.shape
            self.saved = (*self.shape[:axis], *[1] * (rank - axis))
        else:
            self.layout = draw.weighted((3, None), (1, "NHWC"))
            self.kwargs["layout"] = self.layout
            channels = draw.pick((1, 2, 3, 4, 6, 8, 16, 17, 33))
            space = draw.shape(draw.below(4), 200, empty=False)
            self.inner = (draw.pick((1, 2, 3, 5)), channels, *space)
            self.shape = self.seen(self.inner)
            self.over = (0, *range(2, len(self.inner)))
            self.parameter = (channels,)
            self.saved = (channels,)
            if name == "batch_norm":
                if draw.chance(0.25):
                    self.kwargs["mode"] = "per_activation"
                    self.over, self.parameter = (0,), self.inner[1:]
                    self.saved = self.parameter
            else:
                divisors = [g for g in (1, 2, 3, 4, 8) if channels % g == 0]
                self.groups = channels if name == "instance_norm" else draw.pick(divisors)
                self.saved = (self.inner[0], self.groups)

    def seen(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        return (shape[0], *shape[2:], shape[1]) if self.layout and len(shape) > 2 else shape

    def inward(self, array: Array) -> torch.Tensor:
        is_last = self.layout and len(self.inner) > 2
        return torch.from_numpy(np.ascontiguousarray(np.moveaxis(array, -1, 1) if is_last else array))

    def outward(self, tensor: torch.Tensor) -> Array:
        made = tensor.detach().numpy()
        return np.moveaxis(made, 1, -1) if self.layout and len(self.inner) > 2 else made

    def spread(self, parameter: torch.Tensor) -> torch.Tensor:
        """A parameter along x's axes (N, C, space)."""
        if self.name in ("layer_norm", "rms_norm"):
            return parameter.reshape(*[1] * (len(self.inner) - parameter.ndim), *parameter.shape)
        if parameter.ndim > 1:
            return parameter[None]
        return parameter.reshape(1, -1, *[1] * (len(self.inner) - 2))

    def statistics(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Mean and 1 / sqrt(variance + epsilon), of extents that broadcast to x (or to x by groups)."""
        x, over = self.grouped(x)
        mean = x.mean(over, keepdim=True) if self.name != "rms_norm" else torch.zeros(1, dtype=x.dtype)
        variance = ((x - mean) ** 2).mean(over, keepdim=True)
        return mean, 1 / torch.sqrt(variance + self.epsilon)

    def grouped(self, x: torch.Tensor) -> tuple[torch.Tensor, tuple[int, ...]]:
        if self.name in ("group_norm", "instance_norm"):
            made = x.reshape(x.shape[0], self.groups, -1)
            return made, (2,)
        return x, self.over

    def normal(self, x: torch.Tensor) -> torch.Tensor:
        mean, rstd = self.statistics(x)
        return ((self.grouped(x)[0] - mean) * rstd).reshape(x.shape)

    def error(self) -> float:
        count = math.prod(self.inner)
        return (64 + min(count, 256)) * roundoff(self.dtype)


def _norm_parameters(draw: Draw, norm: _Norm, bias: bool = True) -> list[Operand]:
    kind = norm.dtype if draw.chance(0.5) else statistics_dtype(norm.dtype)
    made = []
    if draw.chance(0.75):
        made.append(operand(draw, "weight", norm.parameter, kind))
        if bias and draw.chance(0.75):
            made.append(operand(draw, "bias", norm.parameter, kind))
    return made


_ACTIVATED = {
    "identity": lambda t: t, "relu": torch.relu, "sigmoid": torch.sigmoid, "tanh": torch.tanh,
    "clipped_relu": torch.nn.functional.relu6, "swish": torch.nn.functional.silu,
}  # fmt: skip


def _norm_forward(draw: Draw, name: str) -> Problem:
    norm = _Norm(draw, name)
    kwargs: dict[str, Any] = norm.kwargs | {"epsilon": norm.epsilon}
    x = operand(draw, "x", norm.shape, norm.dtype)
    parameters = _norm_parameters(draw, norm, bias=name != "rms_norm")
    kwargs |= {one.name: one for one in parameters}
    args: list[Any] = [x]
    if name == "group_norm":
        args.append(norm.groups)
    activation = "identity"
    states: list[Operand] = []
    if name == "batch_norm":
        activation = draw.weighted((3, "identity"), *((1, one) for one in _ACTIVATED if one != "identity"))
        kwargs["activation"] = activation
        if draw.chance(0.3):
            kwargs["z"] = operand(draw, "z", norm.shape, norm.dtype)
        if draw.chance(0.5):
            kwargs["factor"] = draw.pick((0.1, 0.5, 1.0))
            kind = parameters[0].dtype if parameters else statistics_dtype(norm.dtype)
            for which in ("running_mean", "running_var"):
                strides = draw.strides(norm.parameter, is_output=True)
                positive = lambda g, s, f: np.abs(g.standard_normal(s)) + 0.1  # noqa: E731
                states.append(Operand(which, norm.parameter, kind, strides, positive, state=True))
                kwargs[which] = states[-1]
    saves = draw.chance(0.4)
    results = [Result("y", norm.shape, norm.dtype, in_place="x")]
    if saves:
        kwargs["save"] = True
        kind = statistics_dtype(norm.dtype)
        names = ("rstd",) if name == "rms_norm" else ("mean", "rstd")
        results += [Result(which, norm.saved, kind, saved=True) for which in names]

    def oracle(a: Named) -> list[Expected]:
        given = norm.inward(a["x"])
        mean, rstd = norm.statistics(given)
        plain = norm.normal(given)
        weight = (
            norm.spread(torch.from_numpy(a["weight"]))
            if "weight" in a
            else torch.ones(1, dtype=torch.float64)
        )
        y = plain * weight
        if "bias" in a:
            y = y + norm.spread(torch.from_numpy(a["bias"]))
        if "z" in a:
            y = y + norm.inward(a["z"])
        y = _ACTIVATED[activation](y)
        # what cancels in x - mean has the error of x
        rows = norm.grouped(given)[0]
        steep = (
            rows.abs().amax(norm.grouped(given)[1], keepdim=True) * rstd * torch.ones_like(rows)
        ).reshape(given.shape)
        sizes = norm.outward((plain.abs() + steep) * weight.abs()) + np.abs(norm.outward(y))
        made = [Expected(norm.outward(y), norm.error() * sizes)]
        if saves:
            most = float(given.abs().max()) if given.numel() else 0.0
            pair = [
                (mean, norm.error() * most),
                (rstd, norm.error() * rstd.numpy() * (1 + (most * rstd.numpy()) ** 2)),
            ]
            for value, error in pair if name != "rms_norm" else pair[1:]:
                made.append(
                    Expected(
                        value.numpy().reshape(norm.saved),
                        np.asarray(error) + np.zeros(1).reshape([1] * len(norm.saved))
                        if np.ndim(error) == 0
                        else error.reshape(norm.saved),
                    )
                )
        if states:
            count = given.numel() // max(1, int(np.prod(norm.parameter)))
            variance = given.var(norm.over, unbiased=False).numpy() * count / max(1, count - 1)
            factor = kwargs["factor"]
            for state, new in zip(states, (given.mean(norm.over).numpy(), variance), strict=True):
                old = a[state.name]
                most = float(given.abs().max()) ** 2 + 1 if given.numel() else 1.0
                value = (1 - factor) * old + factor * new.reshape(norm.parameter)
                made.append(Expected(value, norm.error() * (np.abs(old) + most)))
        return made

    if "z" in kwargs:
        results[0].in_place = None
    return Problem(name, args, kwargs, results, oracle, flavours=("normal", "whole", "constant"))


def _norm_backward(draw: Draw, name: str) -> Problem:
    norm = _Norm(draw, name)
    kwargs = dict(norm.kwargs)
    dy, x = operand(draw, "dy", norm.shape, norm.dtype), operand(draw, "x", norm.shape, norm.dtype)
    kind = statistics_dtype(norm.dtype)
    weight = next(iter(_norm_parameters(draw, norm, bias=False)), None)
    stat = [("mean", 0), ("rstd", 1)] if name != "rms_norm" else [("rstd", 1)]
    saved = [
        Operand(which, norm.saved, kind, draw.strides(norm.saved, is_output=True), derive=lambda a, n=number:
                norm.statistics(norm.inward(a["x"]))[n].numpy().reshape(norm.saved))
        for which, number in stat
    ]  # fmt: skip
    # functions without kinks: what is computed anew may lie on the other side of one
    activation = "identity"
    if name == "batch_norm" and weight is not None and draw.chance(0.4):
        activation = draw.pick(("swish", "sigmoid", "tanh"))
        kwargs |= {"activation": activation, "bias": operand(draw, "bias", norm.parameter, weight.dtype)}
    wants_bias = name != "rms_norm" and draw.chance(0.7)
    if name != "rms_norm":
        kwargs["wants_bias"] = wants_bias
    if name == "group_norm":
        kwargs["groups"] = norm.groups
    own = weight.dtype if weight is not None else kind
    results = [Result("dx", norm.shape, norm.dtype, in_place="dy")]
    if weight is not None:
        results.append(Result("dweight", norm.parameter, own))
    if wants_bias:
        results.append(Result("dbias", norm.parameter, own))

    def oracle(a: Named) -> list[Expected]:
        given = norm.inward(a["x"]).requires_grad_(True)
        ones = (
            torch.ones(norm.parameter, dtype=torch.float64)
            if weight is None
            else torch.from_numpy(a["weight"].copy())
        )
        ones.requires_grad_(True)
        zeros = torch.zeros(norm.parameter, dtype=torch.float64)
        if activation != "identity":
            zeros = torch.from_numpy(a["bias"].copy())
        zeros.requires_grad_(True)
        plain = norm.normal(given)
        y = _ACTIVATED[activation](plain * norm.spread(ones) + norm.spread(zeros))
        grad = norm.inward(a["dy"])
        dx, dw, db = torch.autograd.grad(y, (given, ones, zeros), grad)
        _, rstd = norm.statistics(given.detach())
        top = float(plain.detach().abs().max()) + float(given.detach().abs().max() * rstd.max())
        most = float(grad.abs().max()) * float(ones.detach().abs().max()) * float(rstd.max()) * (1 + top) ** 2
        # a statistic that is kept in float32 has that error
        unit = norm.error()
        share = grad.numel() / max(1, int(np.prod(norm.parameter)))
        sums = unit * float(grad.abs().max()) * share * (1 + top)
        if activation != "identity":  # slopes change by as much as what they are of
            steep = 1 + top * float(ones.detach().abs().max()) + float(zeros.detach().abs().max())
            most, sums = most * steep, sums * steep
        made = [Expected(norm.outward(dx), np.full(norm.shape, unit * most))]
        if weight is not None:
            made.append(Expected(dw.numpy(), np.full(norm.parameter, sums)))
        if wants_bias:
            made.append(Expected(db.numpy(), np.full(norm.parameter, sums)))
        return made

    def call(*args: Any, **more: Any) -> Any:
        """Results that are not wanted are None, and so are their places in `out`."""
        names = ["dx", "dweight", "dbias"] if name != "rms_norm" else ["dx", "dweight"]
        there = [one.name for one in results]
        if "out" in more and isinstance(more["out"], tuple) and len(more["out"]) == len(there):
            given = dict(zip(there, more["out"], strict=True))
            more["out"] = tuple(given.get(n) for n in names)
        elif "out" in more and len(there) == 1:
            more["out"] = (more["out"], *[None] * (len(names) - 1))
        made = getattr(jd, f"{name}_backward")(*args, **more)
        return tuple(one for one, n in zip(made, names, strict=True) if n in there)

    return Problem(
        f"{name}_backward",
        [dy, x, weight, *saved],
        kwargs,
        results,
        oracle,
        call=call,
        flavours=("normal", "whole"),
    )


for _name, _weight in (
    ("layer_norm", 4),
    ("rms_norm", 3),
    ("group_norm", 5),
    ("instance_norm", 3),
    ("batch_norm", 5),
):
    operation(_name, _weight)(lambda draw, name=_name: _norm_forward(draw, name))
    operation(f"{_name}_backward", _weight)(lambda draw, name=_name: _norm_backward(draw, name))


@operation("batch_norm_inference", 4)
def _batch_norm_inference(draw: Draw) -> Problem:
    norm = _Norm(draw, "batch_norm")
    kwargs: dict[str, Any] = norm.kwargs | {"epsilon": norm.epsilon}
    x = operand(draw, "x", norm.shape, norm.dtype)
    parameters = _norm_parameters(draw, norm)
    kind = parameters[0].dtype if parameters else statistics_dtype(norm.dtype)
    running = [
        operand(draw, "running_mean", norm.parameter, kind),
        operand(
            draw,
            "running_var",
            norm.parameter,
            kind,
            values=lambda g, s, f: np.abs(g.standard_normal(s)) + 0.1,
        ),
    ]
    activation = draw.weighted((3, "identity"), (1, "relu"), (1, "sigmoid"), (1, "tanh"))
    kwargs |= {one.name: one for one in (*parameters, *running)} | {"activation": activation}

    def oracle(a: Named) -> list[Expected]:
        t = {name: torch.from_numpy(np.ascontiguousarray(v)) for name, v in a.items() if name != "x"}
        rstd = norm.spread(1 / torch.sqrt(t["running_var"] + norm.epsilon))
        given, mean = norm.inward(a["x"]), norm.spread(t["running_mean"])
        weight = norm.spread(t["weight"]) if "weight" in t else torch.ones(1, dtype=torch.float64)
        bias = norm.spread(t["bias"]) if "bias" in t else torch.zeros(1, dtype=torch.float64)
        y = _ACTIVATED[activation]((given - mean) * rstd * weight + bias)
        sizes = (given.abs() + mean.abs()) * (rstd * weight).abs() + bias.abs() + 1
        return [Expected(norm.outward(y), finite(32 * roundoff(norm.dtype) * norm.outward(sizes)))]

    result = Result("y", norm.shape, norm.dtype, in_place="x")
    return Problem(
        "batch_norm_inference", [x], kwargs, [result], oracle, flavours=("normal", "whole", "constant")
    )

"""Losses over rows of scores and over sequences, against PyTorch's."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch

from fuzz.draw import Draw
from fuzz.operations.pointwise import operand
from fuzz.operations.rows import statistics_dtype
from fuzz.problem import Expected, Named, Operand, Problem, Result, operation, roundoff

F = torch.nn.functional


@operation("cross_entropy", 7, functions=("cross_entropy", "cross_entropy_backward"))
def _cross_entropy(draw: Draw) -> Problem:
    dtype, backward = draw.dtype(), draw.chance(0.45)
    batch, classes = draw.extent(33, empty=True), draw.pick((1, 2, 3, 5, 7, 8, 10, 17, 33, 100))
    space = draw.shape(draw.below(3), 40)
    shape, rows = (batch, classes, *space), (batch, *space)
    reduction = draw.pick(("mean", "sum", "none"))
    smoothing, ignore = draw.pick((0.0, 0.1, 1.0)), draw.pick((-100, 0, classes - 1))
    as_classes = draw.chance(0.7)
    x = operand(draw, "x", shape, dtype)
    kind = draw.pick(("i64", "i32", "u8"))
    if as_classes:
        if kind == "u8" and ignore < 0:
            ignore = 0
        target = operand(draw, "target", rows, kind, values=lambda g, s, f: g.integers(0, classes, s))
    else:
        target = operand(draw, "target", shape, dtype, values=lambda g, s, f: g.random(s))
    kwargs: dict[str, Any] = {"label_smoothing": smoothing, "reduction": reduction}
    if as_classes:
        kwargs["ignore_index"] = ignore
    weight = None
    if draw.chance(0.5):
        weight = operand(draw, "weight", (classes,), dtype, values=lambda g, s, f: g.random(s) + 0.1)
        kwargs["weight"] = weight
    kept = statistics_dtype(dtype)
    is_mean = as_classes and reduction == "mean"

    def loss_of(x_: torch.Tensor, a: Named) -> torch.Tensor:
        w = torch.from_numpy(a["weight"].copy()) if weight is not None else None
        t = torch.from_numpy(a["target"].astype(np.int64 if as_classes else np.float64))
        more = {"ignore_index": ignore} if as_classes else {}
        # torch averages probabilities over all rows, spatial ones too only since it divides by the batch: by hand
        losses = F.cross_entropy(x_, t, w, reduction="none", label_smoothing=smoothing, **more)
        if reduction == "none":
            return losses
        if reduction == "sum":
            return losses.sum().reshape(1)
        if not as_classes:
            return (
                (losses.sum() / max(1, losses.numel())).reshape(1)
                if losses.numel()
                else losses.sum().reshape(1) * np.nan
            )
        return (losses.sum() / total_of(a)).reshape(1)

    def total_of(a: Named) -> float:
        t = a["target"].astype(np.int64)
        w = a["weight"] if weight is not None else np.ones(classes)
        return float(np.where(t == ignore, 0.0, w[t]).sum())

    def error_of(a: Named) -> float:
        most = np.abs(a["x"]).max(initial=0.0)
        heavy = a["weight"].max(initial=1.0) if weight is not None else 1.0
        return (
            64 * roundoff(dtype) * (most + math.log(classes) + 1) * heavy * (classes if not as_classes else 1)
        )

    def oracle(a: Named) -> list[Expected]:
        given = torch.from_numpy(a["x"].copy())
        value = loss_of(given, a).numpy()
        share = max(1, int(np.prod(rows))) if reduction == "sum" else 1.0
        if is_mean and weight is not None:
            share = 20.0  # weights from 0.1 to 1.1
        made = [
            Expected(value, np.full(value.shape, error_of(a) * share * (8 if reduction != "none" else 1)))
        ]
        if kwargs.get("return_saved"):
            lse = torch.logsumexp(given, 1).numpy()
            made.append(Expected(lse, np.full(lse.shape, error_of(a))))
            if is_mean:
                made.append(Expected(np.array([total_of(a)]), 64 * roundoff(dtype) * max(1.0, total_of(a))))
        return made

    loss_shape = rows if reduction == "none" else (1,)
    if not backward:
        results = [Result("loss", loss_shape, dtype)]
        if draw.chance(0.4):
            kwargs["return_saved"] = True
            results.append(Result("lse", rows, kept, saved=True))
            if is_mean:
                results.append(Result("total", (1,), kept, saved=True))
        return Problem("cross_entropy", [x, target], kwargs, results, oracle, flavours=("normal", "whole"))

    dloss = operand(draw, "dloss", loss_shape, dtype)
    strides = draw.strides(rows, is_output=True)
    lse = Operand(
        "lse",
        rows,
        kept,
        strides,
        derive=lambda a: torch.logsumexp(torch.from_numpy(a["x"].copy()), 1).numpy(),
    )
    args: list[Any] = [dloss, x, target, lse]
    if is_mean:
        # made of the weights, which come before it among the arguments
        total = Operand("total", (1,), kept, derive=lambda a: np.array([total_of(a)]))
        kwargs["total"] = total

    def gradient(a: Named) -> list[Expected]:
        given = torch.from_numpy(a["x"].copy()).requires_grad_(True)
        (dx,) = torch.autograd.grad(loss_of(given, a), given, torch.from_numpy(a["dloss"].copy()))
        heavy = a["weight"].max(initial=1.0) if weight is not None else 1.0
        most = np.abs(a["dloss"]).max(initial=0.0) * heavy * (classes if not as_classes else 1.0)
        divided = total_of(a) if is_mean else 1.0
        size = 1 + np.abs(a["x"]).max(initial=0.0)
        error = 64 * roundoff(dtype) * most * size / (divided if divided else 1.0)
        value = dx.numpy()
        if divided == 0.0:
            return [Expected(value, np.full(shape, np.inf))]  # all ignored: 0 / 0
        return [Expected(value, np.full(shape, error))]

    return Problem(
        "cross_entropy_backward", args, kwargs, [Result("dx", shape, dtype, in_place="x")], gradient,
        flavours=("normal", "whole"),
    )  # fmt: skip


@operation("ctc_loss", 3, functions=("ctc_loss", "ctc_loss_backward"))
def _ctc_loss(draw: Draw) -> Problem:
    dtype, backward = draw.dtype(), draw.chance(0.4)
    t, n, symbols, s = draw.extent(17), draw.extent(5), draw.pick((2, 3, 5, 8, 17)), draw.whole(1, 5)
    reduction, zero = draw.pick(("mean", "sum", "none")), draw.chance(0.5)
    blank = draw.pick((0, symbols - 1))
    kind = draw.pick(("i64", "i32"))
    labels = [c for c in range(symbols) if c != blank]
    x = operand(
        draw,
        "x",
        (t, n, symbols),
        dtype,
        values=lambda g, shape, f: F.log_softmax(torch.from_numpy(g.standard_normal(shape)), -1).numpy(),
    )
    targets = operand(draw, "targets", (n, s), kind, values=lambda g, shape, f: g.choice(labels, shape))
    ins = operand(draw, "input_lengths", (n,), kind, values=lambda g, shape, f: g.integers(1, t + 1, shape))
    outs = operand(draw, "target_lengths", (n,), kind, values=lambda g, shape, f: g.integers(0, s + 1, shape))
    kwargs = {"blank": blank, "reduction": reduction, "zero_infinity": zero}

    def loss_of(given: torch.Tensor, a: Named) -> torch.Tensor:
        numbers = [
            torch.from_numpy(a[name].astype(np.int64))
            for name in ("targets", "input_lengths", "target_lengths")
        ]
        return F.ctc_loss(given, *numbers, blank=blank, reduction=reduction, zero_infinity=zero).reshape(-1)

    def oracle(a: Named) -> list[Expected]:
        value = loss_of(torch.from_numpy(a["x"].copy()), a).numpy()
        most = (np.abs(a["x"]).max(initial=0.0) + 4) * t * (n if reduction == "sum" else 1)
        return [Expected(value, np.full(value.shape, 64 * roundoff(dtype) * most))]

    args = [x, targets, ins, outs]
    shape = (n,) if reduction == "none" else (1,)
    if not backward:
        return Problem("ctc_loss", args, kwargs, [Result("loss", shape, dtype)], oracle, flavours=("normal",))
    dloss = operand(draw, "dloss", shape, dtype)
    kwargs["zero_infinity"] = zero = True

    def gradient(a: Named) -> list[Expected]:
        # PyTorch's gradient is the one with respect to what a softmax was made of
        given = torch.from_numpy(a["x"].copy()).requires_grad_(True)
        scale = torch.from_numpy(a["dloss"].copy())
        (dx,) = torch.autograd.grad(loss_of(given, a), given, scale)
        most = np.abs(a["dloss"]).max(initial=0.0) * t
        return [
            Expected(
                dx.numpy(),
                np.full(dx.shape, 256 * roundoff(dtype) * most * (1 + np.abs(a["x"]).max(initial=0.0))),
            )
        ]

    return Problem(
        "ctc_loss_backward",
        [dloss, *args],
        kwargs,
        [Result("dx", x.shape, dtype)],
        gradient,
        flavours=("normal",),
    )

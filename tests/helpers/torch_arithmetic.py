"""PyTorch's products, reductions, scans and joins, said with this package."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

import jitdnn as jd
from torch_adapters import ADAPTERS, Adapter, Refused, Result, adapter, grown, sum_to

# ---- products


@adapter("matmul", "bmm", "mm", "mv")
def _matmul(a: Any, b: Any) -> Result:
    left = a[None] if a.ndim == 1 else a
    right = b[:, None] if b.ndim == 1 else b
    y = jd.matmul(left, right)
    shape = (*y.shape[: y.ndim - 2], *y.shape[-2:][a.ndim == 1 : 2 - (b.ndim == 1)])

    def gradients(dy: Any) -> Sequence[Any]:
        grad = dy.reshape(y.shape)
        found = (jd.matmul(grad, right.mT), left.shape, a), (jd.matmul(left.mT, grad), right.shape, b)
        return [sum_to(g, full).reshape(t.shape) for g, full, t in found]

    return y.reshape(shape), gradients


@adapter("nn.functional.linear")
def _linear(x: Any, w: Any, bias: Any = None) -> Result:
    matrix = w[None] if w.ndim == 1 else w
    rows = x.reshape(-1, x.shape[-1])
    y = jd.matmul(rows, matrix.t())
    y = y if bias is None else jd.add(y, bias.reshape(1, -1))

    def gradients(dy: Any) -> Sequence[Any]:
        grad = dy.reshape(y.shape)
        found = [
            jd.matmul(grad, matrix).reshape(x.shape),
            jd.matmul(grad.t(), rows).reshape(w.shape),
        ]
        return found if bias is None else [*found, sum_to(grad, (1, y.shape[1])).reshape(bias.shape)]

    return y.reshape((*x.shape[:-1], *w.shape[:-1])), gradients


@adapter("addmm", "baddbmm")
def _addmm(c: Any, a: Any, b: Any, *, beta: float = 1.0, alpha: float = 1.0) -> Result:
    shape = (*a.shape[:-1], b.shape[-1])
    start = jd.elementwise("c: c")(c.reshape(c.shape or (1,)).expand(shape)).contiguous()
    y = jd.matmul(a, b, alpha=alpha, beta=beta, out=start)

    def gradients(dy: Any) -> Sequence[Any]:
        scaled = jd.elementwise(lambda dy: beta * dy)(dy)
        return [
            sum_to(scaled, c.shape),
            jd.matmul(dy, b.mT, alpha=alpha),
            jd.matmul(a.mT, dy, alpha=alpha),
        ]

    return y, gradients


# ---- reductions and scans


def _axes(x: Any, dim: Any) -> Any:
    return None if dim is None or dim == () or dim == [] else dim


def _reduce(op: str) -> Adapter:
    def run(x: Any, dim: Any = None, keepdim: bool = False, dtype: Any = None) -> Result:
        if dtype is not None:
            raise Refused("a result of another type")
        axes = _axes(x, dim)
        kept = jd.reduce(x, op, axes, True)
        y = kept if keepdim else kept.reshape(_without(x, axes))

        def gradients(dy: Any) -> Sequence[Any]:
            grad = dy.reshape(kept.shape)
            if op in ("add", "avg"):
                part = x.numel() / max(1, kept.numel()) if op == "avg" else 1.0
                return [jd.elementwise(lambda x, dy: dy / part)(x, grad)]
            # equal extremes share
            count = jd.reduction(lambda x, y: jd.where(x == y, 1.0, 0.0))(x, kept, axes=axes, keepdims=True)
            share = jd.elementwise(lambda x, y, n, dy: jd.where(x == y, dy / n, 0.0))
            return [share(x, kept, count.reshape(kept.shape), grad)]

        return y, None if op == "mul" else gradients

    return grown(run)


def _without(x: Any, axes: Any) -> Sequence[int]:
    gone = range(x.ndim) if axes is None else axes if isinstance(axes, Sequence) else (axes,)
    dropped = {axis % x.ndim for axis in gone}
    return [extent for axis, extent in enumerate(x.shape) if axis not in dropped]


for _theirs, _op in (("sum", "add"), ("mean", "avg"), ("prod", "mul"), ("amax", "max"), ("amin", "min")):
    ADAPTERS[_theirs] = _reduce(_op)


def _position(op: str) -> Adapter:
    def run(x: Any, dim: int | None = None, keepdim: bool = False) -> Result:
        y = jd.reduction(reduce=op)(x, axes=dim, keepdims=keepdim)
        return y.reshape(()) if (dim is None or x.ndim == 1) and not keepdim else y, None

    return grown(run)


ADAPTERS["argmax"], ADAPTERS["argmin"] = _position("argmax"), _position("argmin")


@adapter("logsumexp")
@grown
def _logsumexp(x: Any, dim: Any, keepdim: bool = False) -> Result:
    peak = jd.reduce(x, "max", dim, True)
    term = jd.reduction(lambda x, m: jd.exp(x - jd.where(jd.isfinite(m), m, 0.0)))(
        x, peak, axes=dim, keepdims=True
    )
    y = jd.elementwise(lambda s, m: np.log(s) + jd.where(jd.isfinite(m), m, 0.0))(term, peak)

    def gradients(dy: Any) -> Sequence[Any]:
        return [jd.elementwise(lambda x, y, dy: dy * jd.exp(x - y))(x, y, dy.reshape(y.shape))]

    return y if keepdim else y.reshape(_without(x, dim)), gradients


def _scan(reduce: str) -> Adapter:
    def run(x: Any, dim: int, dtype: Any = None) -> Result:
        if dtype not in (None, x.dtype):
            raise Refused("a result of another type")
        y = jd.scan(reduce=reduce)(x, axis=dim)
        return y, (lambda dy: [jd.scan()(dy, axis=dim, reverse=True)]) if reduce == "add" else None

    return grown(run)


ADAPTERS["cumsum"], ADAPTERS["cumprod"] = _scan("add"), _scan("multiply")


# ---- joining and cutting


@adapter("cat")
def _cat(arrays: Sequence[Any], dim: int = 0) -> Result:
    if len({array.ndim for array in arrays}) > 1 or len({array.dtype for array in arrays}) > 1:
        raise Refused("tensors of several ranks or types")
    return jd.concat(arrays, dim), lambda dy: jd.split(dy, [array.shape[dim] for array in arrays], dim)


@adapter("split")
def _split(x: Any, sections: Any, dim: int = 0) -> Result:
    extent = x.shape[dim]
    sizes = (
        [min(sections, extent - start) for start in range(0, extent, sections)]
        if isinstance(sections, int)
        else list(sections)
    )
    return tuple(jd.split(x, sizes, dim)), None


@adapter("nn.functional.pad")
def _pad(x: Any, pad: Sequence[int], mode: str = "constant", value: float | None = None) -> Result:
    if mode != "constant":
        raise Refused(f"a border of kind {mode}")
    if min(pad, default=0) < 0:
        raise Refused("a border that cuts")
    pairs = [(pad[i], pad[i + 1]) for i in range(0, len(pad), 2)]
    every = [(0, 0)] * (x.ndim - len(pairs)) + pairs[::-1]

    def gradients(dy: Any) -> Sequence[Any]:
        starts = [before for before, _ in every]
        stops = [before + extent for before, extent in zip(starts, x.shape, strict=True)]
        return [jd.slice(dy, starts, stops)]

    return jd.transform(x, pad=every, value=value or 0.0), gradients


def _shuffle(forward: Any, backward: Any, name: str) -> Adapter:
    def run(x: Any, **given: int) -> Result:
        factor = given[name]
        images = x.reshape(math.prod(x.shape[:-3]), *x.shape[-3:])
        y = forward(images, factor)
        shape = (*x.shape[:-3], *y.shape[1:])
        return y.reshape(shape), lambda dy: [backward(dy.reshape(y.shape), factor).reshape(x.shape)]

    return run


ADAPTERS["nn.functional.pixel_shuffle"] = _shuffle(jd.unfold, jd.fold, "upscale_factor")
ADAPTERS["nn.functional.pixel_unshuffle"] = _shuffle(jd.fold, jd.unfold, "downscale_factor")

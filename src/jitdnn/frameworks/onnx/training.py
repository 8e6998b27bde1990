"""Steps of optimizers, of the domain ai.onnx.preview.training: each tensor's in one pass over memory."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from jitdnn.frameworks.onnx.operator import Array, Site, table
from jitdnn.graph import primitives as jd


def adagrad(
    rate: Array,
    time: Array,
    /,
    *tensors: Array,
    decay_factor: float = 0.0,
    epsilon: float = 0.0,
    norm_coefficient: float = 0.0,
    site: Site,
) -> tuple[Array, ...]:
    """Duchi et al. 2011: tensors x, gradients and sums of their squares."""
    r = float(rate.item()) / (1.0 + float(time.item()) * decay_factor)

    def step(x: Any, g: Any, h: Any) -> Any:
        slope = norm_coefficient * x + g
        total = h + slope * slope
        return x - r * slope / (jd.sqrt(total) + epsilon), total

    return _each(step, tensors, 3, site)


def adam(
    rate: Array,
    time: Array,
    /,
    *tensors: Array,
    alpha: float = 0.9,
    beta: float = 0.999,
    epsilon: float = 0.0,
    norm_coefficient: float = 0.0,
    norm_coefficient_post: float = 0.0,
    site: Site,
) -> tuple[Array, ...]:
    """Kingma and Ba 2014: tensors x, gradients, and the averages of these and of their squares."""
    r, t = float(rate.item()), int(time.item())
    if t > 0:
        r = r * math.sqrt(1.0 - beta**t) / (1.0 - alpha**t)

    def step(x: Any, g: Any, v: Any, h: Any) -> Any:
        slope = norm_coefficient * x + g
        first = alpha * v + (1.0 - alpha) * slope
        second = beta * h + (1.0 - beta) * (slope * slope)
        return (1.0 - norm_coefficient_post) * (x - r * (first / (jd.sqrt(second) + epsilon))), first, second

    return _each(step, tensors, 4, site)


def momentum(
    rate: Array,
    time: Array,
    /,
    *tensors: Array,
    alpha: float,
    beta: float,
    mode: str,
    norm_coefficient: float,
    site: Site,
) -> tuple[Array, ...]:
    """Momentum as it is, or Nesterov's: tensors x, gradients and momenta."""
    if mode not in {"standard", "nesterov"}:
        raise site.refuse(f"mode {mode!r} is not covered")
    r, share = float(rate.item()), beta if int(time.item()) > 0 else 1.0

    def step(x: Any, g: Any, v: Any) -> Any:
        slope = norm_coefficient * x + g
        moved = alpha * v + share * slope
        return x - r * (moved if mode == "standard" else slope + alpha * moved), moved

    return _each(step, tensors, 3, site)


def _each(step: Callable[..., Any], tensors: tuple[Array, ...], kinds: int, site: Site) -> tuple[Array, ...]:
    """The step of each tensor. All of one kind come first, then all of the next; results likewise, without
    gradients."""
    count = len(tensors) // kinds
    if count * kinds != len(tensors):
        raise site.refuse(f"{len(tensors)} tensors are not covered: {kinds} kinds of as many each are")
    found = []
    kernel = jd.elementwise(step)
    for number in range(count):
        operands = tensors[number::count]
        flat = [x.reshape(1) if x.ndim == 0 else x for x in operands]
        states = (flat[0], *flat[2:])
        found.append(
            [
                np.asarray(y).reshape(operands[0].shape)
                for y in kernel(*flat, out=tuple(np.empty_like(s) for s in states))
            ]
        )
    return tuple(y for kind in zip(*found, strict=True) for y in kind)


OPERATORS = table(Adagrad=adagrad, Adam=adam, Momentum=momentum)

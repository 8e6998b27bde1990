"""What the translations of PyTorch's operators share: their table, the name of what is refused, and changes of shape.

An adapter takes a sample's arguments as PyTorch's function would and returns (result, gradients), where
gradients(dy) gives one gradient for each argument that is a tensor of real numbers, in their order (None for one that
this package does not give), or None if only the result is compared. What it changes itself is the names of arguments
and, by views, shapes: all arithmetic is this package's.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch

import jitdnn as jd

Gradients = Callable[[Any], Sequence[Any]] | None
Result = tuple[Any, Gradients]
Adapter = Callable[..., Result]
ADAPTERS: dict[str, Adapter] = {}


class Refused(Exception):
    """The sample asks for what this package has no function for."""


# what the package's own errors refuse among the samples: a part of the message, and what it stands for
REFUSALS = {
    "batch normalization needs at least": "a tensor of one axis",
    "epsilon is -": "an epsilon below zero",
    "must be less than its stride": "an output_padding of a stride or more",
    "dropout is 0.5": "dropout of the weights",
    "mode is 'bicubic'": "cubic interpolation on a grid",
}


def adapter(*names: str) -> Callable[[Adapter], Adapter]:
    """Register an adapter for PyTorch's operators of these names."""

    def register(function: Adapter) -> Adapter:
        for name in names:
            ADAPTERS[name] = function
        return function

    return register


def grown(function: Adapter) -> Adapter:
    """Scalars are given as arrays of one element, and the result is again a scalar if all tensors were."""

    @functools.wraps(function)
    def run(*args: Any, **kwargs: Any) -> Result:
        values = [*args, *kwargs.values()]
        tensors = [value for value in values if isinstance(value, torch.Tensor)]
        if not any(t.ndim == 0 for t in tensors):
            return function(*args, **kwargs)
        full = [_one_axis(value) for value in args]
        y, gradients = function(*full, **{key: _one_axis(value) for key, value in kwargs.items()})
        if all(t.ndim == 0 for t in tensors):
            y = y.reshape(())
        if gradients is None:
            return y, None

        def shaped(dy: Any) -> Sequence[Any]:
            reals = [t for t in tensors if t.is_floating_point()]
            found = zip(gradients(_one_axis(dy)), reals, strict=True)
            return [None if g is None else g.reshape(t.shape) for g, t in found]

        return y, shaped

    return run


def _one_axis(value: Any) -> Any:
    return value.reshape(1) if isinstance(value, torch.Tensor) and value.ndim == 0 else value


def batched(rank: int | None, images: int = 1) -> Callable[[Adapter], Adapter]:
    """An image without an axis of the batch is a batch of one, where images have `rank` axes of space (None: as many
    as the second argument less two). The first `images` arguments are images."""

    def wrap(function: Adapter) -> Adapter:
        @functools.wraps(function)
        def run(x: Any, *args: Any, **kwargs: Any) -> Result:
            space = args[0].ndim - 2 if rank is None else rank
            if x.ndim != space + 1:
                return function(x, *args, **kwargs)
            rest = [*(a[None] for a in args[: images - 1]), *args[images - 1 :]]
            y, gradients = function(x[None], *rest, **kwargs)
            result = tuple(one[0] for one in y) if isinstance(y, tuple) else y[0]
            if gradients is None:
                return result, None

            def without(dy: Any) -> Sequence[Any]:
                first, *others = gradients(dy[None])
                return [first[0], *others]

            return result, without

        return run

    return wrap


def sum_to(g: Any, shape: Sequence[int]) -> Any:
    """The gradient of an operand of this shape that was broadcast: summed over what it was repeated along."""
    if tuple(g.shape) == tuple(shape):
        return g
    extra = g.ndim - len(shape)
    axes = [a for a in range(g.ndim) if a < extra or (shape[a - extra] == 1 and g.shape[a] != 1)]
    return jd.reduce(g, "add", axes, True).reshape(tuple(shape)) if axes else g.reshape(tuple(shape))

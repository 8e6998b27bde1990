"""What modules remember of their calls, told apart by PyTorch's own guards of compiled graphs, written in C++."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Self

import torch
from torch import Tensor, nn

_Guards: Any = getattr(getattr(getattr(torch._C, "_dynamo", None), "guards", None), "TensorGuards", None)
MOST = 4
"""Kinds of calls that a module remembers."""
MOST_LEARNT = 64
"""A module whose calls are ever others does not learn them for ever."""


class Remembered:
    """What a module remembers: entries whose `state` says what was in force. Copies and pickled modules remember
    nothing."""

    __slots__ = ("entries", "learnt")

    def __init__(self) -> None:
        self.entries: tuple[Any, ...] = ()
        self.learnt = 0

    def __reduce__(self) -> tuple[type[Remembered], tuple[()]]:
        return Remembered, ()

    @classmethod
    def of(cls, module: nn.Module, name: str) -> Self:
        """That of a module, by the name of the attribute."""
        found: Self | None = module.__dict__.get(name)
        if found is None:
            found = module.__dict__[name] = cls()
        return found

    @property
    def is_full(self) -> bool:
        """Whether no more are to be learnt."""
        return self.learnt >= MOST_LEARNT

    def add(self, entry: Any, epoch: int) -> None:
        """Remember a call; those of another epoch, which stands at this place of a state, are forgotten."""
        self.learnt += 1
        alive = [one for one in self.entries if one.state[epoch] == entry.state[epoch]]
        self.entries = (entry, *alive[: MOST - 1])


def are_there() -> bool:
    """Whether this PyTorch has them."""
    return _Guards is not None


def guard(*tensors: Tensor) -> Callable[..., bool]:
    """Whether tensors are like these ones, each the one in its place: classes, dispatch keys with those that modes,
    autocast and transforms add, types, devices, shapes, strides, and who wants a gradient."""
    sizes, strides = [list(one.shape) for one in tensors], [list(one.stride()) for one in tensors]
    check: Callable[..., bool] = _Guards(
        *tensors, dynamic_dims_sizes=sizes, dynamic_dims_strides=strides
    ).check
    return check

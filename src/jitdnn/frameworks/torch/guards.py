"""What modules remember of their calls, told apart by PyTorch's own guards of compiled graphs, written in C++."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Self

import torch
from torch import Tensor, nn

from jitdnn.frameworks.torch.kinds import observers, threads_apart

_Guards: Any = getattr(getattr(getattr(torch._C, "_dynamo", None), "guards", None), "TensorGuards", None)
CALLS = "_jitdnn_calls"
"""The attribute of a module that remembers calls of ours."""
GRADIENTS, EPOCH, TEXT = 0, 3, 4
"""The places of what is in force in states: whether gradients are recorded, the epoch of kinds.py, the options."""
MOST = 4
"""Kinds of calls that a module remembers."""
MOST_LEARNT = 64
"""A module whose calls are ever others does not learn them for ever."""


class Remembered:
    """What a module remembers: entries whose `state` says what was in force, and which tensors of a call there were
    none of, and whose `check` tells whether those that there were are like them. Copies and pickled modules remember
    nothing."""

    __slots__ = ("entries", "learnt", "quick")

    def __init__(self) -> None:
        self.entries: tuple[Any, ...] = ()
        self.learnt = 0
        #: `quick(module, x)` looks for one of the entries first, in generated code (operator_calls.py)
        self.quick: Callable[[Any, Tensor], Any] | None = None

    def __reduce__(self) -> tuple[type[Remembered], tuple[()]]:
        return Remembered, ()

    @classmethod
    def of(cls, module: nn.Module, name: str) -> Self:
        """That of a module, by the name of the attribute."""
        found: Self | None = module.__dict__.get(name)
        if found is None:
            found = module.__dict__[name] = cls()
        return found

    def find(self, now: tuple[Any, ...], *tensors: Tensor) -> Any:
        """The entry of a call on such tensors while this was in force; None where none is remembered."""
        if observers or threads_apart or tensors[0].is_nested:  # for which guards end the process
            return None
        for entry in self.entries:
            if entry.state == now and entry.check(*tensors):
                return entry
        return None

    @property
    def is_learning(self) -> bool:
        """Whether more are to be learnt now."""
        return not (self.learnt >= MOST_LEARNT or observers or threads_apart)

    def add(self, entry: Any) -> None:
        """Remember a call; those of another epoch are forgotten."""
        self.learnt += 1
        alive = [one for one in self.entries if one.state[EPOCH] == entry.state[EPOCH]]
        self.entries = (entry, *alive[: MOST - 1])
        if self.quick not in [getattr(one, "quick", None) for one in self.entries]:
            self.quick = None


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

"""Filters with a normalization folded into them, which are let go where kernels read what was prepared of them.

A prepared filter is a copy of its own. What it was prepared of belongs to nobody else where it is a folded filter, and
would double the weights of a model; it is made again where somebody asks for its values after all: another program of
the same weights, or a kernel that prepares it anew.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any

import torch
from torch import Tensor

from jitdnn.locks import lock
from jitdnn.ops.kept_filter import KeptFilter


class Folded:
    """A folded weight and its bias. `make(weight)` writes the weight's values.

    `filter` is the weight for kernels that prepare it.
    """

    def __init__(self, weight: Tensor, bias: Tensor, make: Callable[[Tensor], None]) -> None:
        self.weight, self.bias = weight, bias
        self._make, self._bytes = make, weight.untyped_storage().nbytes()
        self._lock = lock()
        self.filter: KeptFilter = _Filter(self)

    @property
    def is_there(self) -> bool:
        """Whether the weight has its values."""
        return bool(self.weight.untyped_storage().nbytes())

    def restore(self) -> None:
        """Have the values in memory."""
        with self._lock, torch.no_grad():
            if not self.is_there:
                self.weight.untyped_storage().resize_(self._bytes)
                self._make(self.weight)

    def release(self) -> None:
        """Give the memory of the values back. Nobody may read them before `restore`."""
        with self._lock:
            self.weight.untyped_storage().resize_(0)


class _Filter(KeptFilter):
    """A filter that has its values again while it is prepared."""

    def __init__(self, folded: Folded) -> None:
        super().__init__(folded.weight)
        self._folded = folded

    def _prepare(self, plan: Any) -> Any:
        with self._folded._lock:
            was_there = self._folded.is_there
            self._folded.restore()
            try:
                return super()._prepare(plan)
            finally:
                if not was_there:
                    self._folded.release()


def folded_of(shared: dict[Any, Any], weight: Tensor) -> Folded | None:
    """The folded weight that a tensor is, of those that programs share; None if it is none of them."""
    found: Folded | None = shared.get(("folded", id(weight)))
    return found


def settle(shared: dict[Any, Any], needed: Collection[int]) -> None:
    """Keep what is needed alone: forget what programs that were only compared have prepared, and release folded weights
    but for those whose values are read, by the `id` of their tensors."""
    for one in list(shared.values()):
        if isinstance(one, KeptFilter):
            one.forget()
        elif isinstance(one, Folded):
            one.filter.forget()
            if id(one.weight) not in needed:
                one.release()

"""How many bytes of tensors there are, on every device: the storages that operators make, until they are gone."""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


def tensors(value: Any) -> list[Tensor]:
    """The tensors in nested tuples, lists and dicts."""
    return [leaf for leaf in tree_leaves(value) if isinstance(leaf, Tensor)]


def storages(values: Any) -> dict[int, int]:
    """The bytes of the storages behind tensors, each once, by the address of the storage object."""
    return {storage._cdata: storage.nbytes() for storage in _storages(values)}


def _storages(values: Any) -> Iterator[torch.UntypedStorage]:
    return (tensor.untyped_storage() for tensor in tensors(values) if tensor.layout == torch.strided)


class MemoryMeter(TorchDispatchMode):
    """Count the storages that are made in a `with` block: `now`, and `peak`, the most at any time.

    What an operator takes and gives back inside of its kernel is not seen.
    """

    def __init__(self) -> None:
        super().__init__()
        self.now = 0
        self.peak = 0
        self._live: dict[int, weakref.finalize[Any, Any]] = {}

    def __torch_dispatch__(
        self, function: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        known = {storage._cdata for storage in _storages((args, kwargs))}
        result = function(*args, **kwargs)
        for storage in _storages(result):
            key = storage._cdata
            if key not in known and key not in self._live:
                self.now += storage.nbytes()
                self._live[key] = weakref.finalize(storage, self._gone, key, storage.nbytes())
        self.peak = max(self.peak, self.now)
        return result

    def _gone(self, key: int, size: int) -> None:
        self.now -= size
        self._live.pop(key, None)

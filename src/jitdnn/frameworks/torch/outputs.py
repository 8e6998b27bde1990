"""Results that backward passes read, and that may be changed in place before: an activation behind a pool does so.

Autograd refuses to hand out what it keeps once it was changed. Torch's pools keep the places of maxima, and so nothing
stands in the way of `ReLU(inplace=True)` behind them; ours read the maxima. They are kept as they lie in memory, with
what tells whether they were changed, and then computed again.
"""

from __future__ import annotations

from functools import cache

from torch import Tensor, device, dtype, empty

from jitdnn.frameworks.torch.registry import plain_device


@cache
def _empty(dtype: dtype, device: device) -> Tensor:
    return empty(0, dtype=dtype, device=device)


class Changes:
    """Whether a result was changed in place since this was made; its memory is not held by it."""

    __slots__ = ("_counter", "_version")

    def __init__(self, result: Tensor) -> None:
        self._counter = result.detach()  # counts with the result
        self._counter.data = _empty(result.dtype, result.device)
        self._version = self._counter._version

    @property
    def are_there(self) -> bool:
        """Whether there was any change."""
        return bool(self._counter._version != self._version)


def changes_of(result: Tensor) -> tuple[Changes | None, Tensor]:
    """What tells of changes of a result, and the result as it is to be kept for the backward pass.

    Where tracers and transforms take part, it is the result itself, and nobody tells.
    """
    if not plain_device((result,)) or result.is_inference():
        return None, result
    return Changes(result), result.data

"""A kernel whose first operand is copied into the workspace, in another order, by a kernel in front of it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from jitdnn.kernels.algorithm import Kernel
from jitdnn.rtcg.expression import trace
from jitdnn.tensor import TensorDescriptor

SAME = trace(lambda x: x)
"""The expression of a copy."""
_ALIGNMENT = 256


def room_of(tensor: TensorDescriptor) -> int:
    """Bytes of the workspace that a copy takes."""
    return -(-tensor.nbytes // _ALIGNMENT) * _ALIGNMENT


class Copied:
    """The copy, and what reads it; the workspace holds the copy, and behind it what the latter needs."""

    def __init__(self, copy: Kernel, inner: Kernel, room: int) -> None:
        self.copy, self.inner, self.room = copy, inner, room

    def __call__(
        self, stream: Any, pointers: Sequence[int], alpha: float, beta: float, workspace: int
    ) -> None:
        first, *others = pointers
        self.copy(stream, (first, workspace), 1.0, 0.0, 0)
        self.inner(stream, (workspace, *others), alpha, beta, workspace + self.room)

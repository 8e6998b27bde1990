"""A kernel whose first operand, result, or both are in the workspace in another layout, with copies around it."""

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
    """Copies before and behind a kernel of three operands, where there are any.

    The workspace holds the first operand, the result, and what the kernel needs for itself: `rooms` are the bytes of
    the first two.
    """

    def __init__(
        self, before: Kernel | None, inner: Kernel, behind: Kernel | None, rooms: Sequence[int]
    ) -> None:
        self.before, self.inner, self.behind = before, inner, behind
        self.first_room, self.result_room = rooms

    def __call__(
        self, stream: Any, pointers: Sequence[int], alpha: float, beta: float, workspace: int
    ) -> None:
        first, second, result, *others = pointers
        made = workspace + self.first_room
        if self.before is not None:
            self.before(stream, (first, workspace), 1.0, 0.0, 0)
            first = workspace
        if self.behind is None:
            self.inner(stream, (first, second, result, *others), alpha, beta, made + self.result_room)
            return
        self.inner(stream, (first, second, made, *others), 1.0, 0.0, made + self.result_room)
        self.behind(stream, (made, result), alpha, beta, 0)

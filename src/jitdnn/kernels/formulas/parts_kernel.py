"""Kernels that run one after the other, each over parts of some operands of one problem."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from jitdnn.kernels.algorithm import Kernel


class PartsKernel:
    """Kernels one after the other; each has a list of (number of the operand, bytes from its address)."""

    def __init__(self, parts: Sequence[tuple[Kernel, Sequence[tuple[int, int]]]]) -> None:
        self.parts = parts

    def __call__(
        self, stream: Any, pointers: Sequence[int], alpha: float, beta: float, workspace: int
    ) -> None:
        for kernel, addresses in self.parts:
            kernel(
                stream, [pointers[number] + offset for number, offset in addresses], alpha, beta, workspace
            )

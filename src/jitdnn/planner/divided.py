"""A convolution run as several smaller ones, one after another in the same memory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from operator import add
from typing import Any, Self

from jitdnn.kernels.algorithm import Epilogue, Kernel
from jitdnn.problems.convolution import Convolution
from jitdnn.problems.convolution_parts import Piece, byte_offset, byte_offsets, narrowed, result_start
from jitdnn.tensor import TensorDescriptor


class Divided:
    """The kernel of a convolution made of the kernels of its pieces.

    `operands` are those of the epilogue that was built into every kernel, as the whole's epilogue describes them.
    All kernels are given the same workspace, so it must be as large as the largest of them needs.
    """

    __slots__ = ("parts",)

    def __init__(
        self,
        problem: Convolution,
        operands: Sequence[TensorDescriptor],
        parts: Sequence[tuple[Piece, Kernel]],
    ) -> None:
        # a function of a sum is not the sum of its parts' functions
        assert not operands or not any(piece.is_added for piece, _ in parts), (
            "an epilogue before the sum is complete"
        )
        #: kernels, how far from the operands' addresses theirs are, and whether they add to what is there
        self.parts: tuple[tuple[Kernel, tuple[int, ...], bool], ...] = tuple(
            (
                kernel,
                byte_offsets(piece, problem)
                + tuple(byte_offset(operand, result_start(piece)) for operand in operands),
                piece.is_added,
            )
            for piece, kernel in parts
        )

    @classmethod
    def of(cls, parts: Sequence[tuple[Kernel, tuple[int, ...], bool]]) -> Self:
        """One with the same `parts` as another."""
        found = cls.__new__(cls)
        found.parts = tuple(parts)
        return found

    def __call__(
        self, stream: Any, pointers: Sequence[int], alpha: float, beta: float, workspace: int
    ) -> None:
        for kernel, offsets, is_added in self.parts:
            # pieces that add must not scale what is there: the caller's beta was applied by the first one
            kernel(stream, tuple(map(add, pointers, offsets)), alpha, 1.0 if is_added else beta, workspace)


def epilogue_piece(epilogue: Epilogue | None, piece: Piece) -> Epilogue | None:
    """The epilogue of a piece: the same function, over the parts of the operands that belong to its results."""
    if epilogue is None or not epilogue.operands:
        return epilogue
    shape = piece.problem.output.shape
    return replace(epilogue, operands=tuple(_narrowed(operand, shape) for operand in epilogue.operands))


def _narrowed(operand: TensorDescriptor, shape: tuple[int, ...]) -> TensorDescriptor:
    # strides of 0 tell a bias from a tensor, on unit axes too: they are what the operand has in a smaller problem
    if 0 in operand.strides:
        return TensorDescriptor(shape, operand.strides, operand.dtype)
    return narrowed(operand, shape)

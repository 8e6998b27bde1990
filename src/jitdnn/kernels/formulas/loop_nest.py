"""Index spaces of elementwise loops: over several strided tensors at once, as short as can be."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

from jitdnn.tensor import TensorDescriptor

UNIT, REPEATED, STRIDED, CROSSED = "unit", "repeated", "strided", "crossed"
"""How a tensor moves along the innermost axis: by 1, by 0, or by anything; by 1 along the one before it."""


@dataclass(frozen=True)
class Nest:
    """Loops over one box of elements in several tensors, outermost first.

    The first ``inputs`` tensors are read, the others written; the first of these is the principal output.
    ``strides[tensor][axis]`` and ``bases[tensor]`` count elements.
    """

    extents: tuple[int, ...]
    strides: tuple[tuple[int, ...], ...]
    bases: tuple[int, ...]
    inputs: int

    @staticmethod
    def of(tensors: Sequence[TensorDescriptor], inputs: int | None = None) -> Nest:
        """The shortest nest over tensors of one shape, whose order is that of the principal output's memory.

        All tensors but the last are inputs where ``inputs`` does not say otherwise.
        """
        inputs = len(tensors) - 1 if inputs is None else inputs
        output = tensors[inputs]
        bases = [0] * len(tensors)
        axes: list[tuple[int, list[int]]] = []
        for axis, extent in enumerate(output.shape):
            if extent == 1:
                continue
            steps = [tensor.strides[axis] for tensor in tensors]
            if steps[inputs] < 0:  # iterate the other way
                bases = [base + (extent - 1) * step for base, step in zip(bases, steps, strict=True)]
                steps = [-step for step in steps]
            axes.append((extent, steps))
        axes.sort(key=lambda axis: -axis[1][inputs])
        joined: list[tuple[int, list[int]]] = []
        for extent, steps in axes:
            if joined and all(
                outer == extent * inner for outer, inner in zip(joined[-1][1], steps, strict=True)
            ):
                joined[-1] = (joined[-1][0] * extent, steps)
            else:
                joined.append((extent, steps))
        if not joined:
            joined.append((1, [1] * len(tensors)))
        return Nest(
            tuple(extent for extent, _ in joined),
            tuple(zip(*(steps for _, steps in joined), strict=True)),
            tuple(bases),
            inputs,
        )

    @property
    def size(self) -> int:
        return prod(self.extents)

    def moves(self) -> tuple[str, ...]:
        """How each tensor moves along the innermost axis."""
        return tuple({1: UNIT, 0: REPEATED}.get(steps[-1], STRIDED) for steps in self.strides)

    def crossed(self, lanes: int) -> tuple[Nest, tuple[str, ...]]:
        """The nest in the order for vectors of ``lanes``, and the moves.

        Where an input lies in one piece along another axis than the output, that axis becomes the last but
        one, if it is long enough for squares of lanes, and the input's move is CROSSED.
        """
        moves = self.moves()
        if moves[self.inputs] != UNIT:
            return self, moves
        for axis, extent in enumerate(self.extents[:-1]):
            crossing = [
                tensor < self.inputs and m == STRIDED and s[axis] == 1
                for tensor, (m, s) in enumerate(zip(moves, self.strides, strict=True))
            ]
            if any(crossing) and 2 * extent >= lanes:
                order = [a for a in range(len(self.extents)) if a != axis]
                order.insert(-1, axis)
                turned = Nest(
                    tuple(self.extents[a] for a in order),
                    tuple(tuple(s[a] for a in order) for s in self.strides),
                    self.bases,
                    self.inputs,
                )
                return turned, tuple(
                    CROSSED if is_crossing else move
                    for is_crossing, move in zip(crossing, moves, strict=True)
                )
        return self, moves

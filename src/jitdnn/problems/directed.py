"""Problems with a direction: an operation forward, and its gradients."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from jitdnn.errors import InvalidArgument
from jitdnn.problems.problem import Operand, Problem, check_same_shape
from jitdnn.tensor import TensorDescriptor


class DirectedProblem(Problem):
    """A problem whose kind is its operation and its direction, as `softmax_bwd` is; the kind forward is given first."""

    operation: ClassVar[str]
    direction: str

    def __init_subclass__(cls, kinds: Sequence[str] = (), **rest: object) -> None:
        super().__init_subclass__(kinds, **rest)
        if kinds:
            cls.operation = kinds[0].removesuffix("_fwd")

    @property
    def kind(self) -> str:
        return f"{self.operation}_{self.direction}"


class TwoWayProblem(DirectedProblem):
    """A problem of the direction "fwd" or "bwd" on x and y, whose gradients dx and dy have the shapes of these."""

    x: TensorDescriptor
    y: TensorDescriptor
    dx: TensorDescriptor | None
    dy: TensorDescriptor | None

    @property
    def gradients(self) -> tuple[Operand, Operand]:
        """dy, an input, and dx, an output of a backward problem."""
        assert self.dx is not None
        assert self.dy is not None
        return Operand("dy", self.dy), Operand("dx", self.dx, "out")

    def _settle_gradients(self, saved: Sequence[str]) -> None:
        """Settles the fields `x`, `y`, `dx` and `dy`.

        Forward, dx and dy must be None. Backward they default to x and y and must have the shapes of these; an x
        or y that is not among the `saved` operands gets its packed descriptor, so that equal problems are equal.
        """
        for name, tensor, gradient in (("x", self.x, self.dx), ("y", self.y, self.dy)):
            if self.direction == "fwd":
                if gradient is not None:
                    raise InvalidArgument(f"d{name} is given, but a forward problem has no gradients")
                continue
            gradient = gradient or tensor
            check_same_shape("d" + name, gradient, name, tensor)
            object.__setattr__(self, "d" + name, gradient)
            if name not in saved:
                object.__setattr__(self, name, TensorDescriptor.packed(tensor.shape, tensor.dtype))

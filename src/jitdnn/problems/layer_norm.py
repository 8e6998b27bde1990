"""Layer and RMS normalization over trailing axes, and their gradients.

    y = (x - mean) / sqrt(variance + epsilon) * weight + bias        layer
    y = x / sqrt(mean(x^2) + epsilon) * weight                       RMS

with mean and variance over the axes from `axis` on, weight and bias of the shape of these axes. The gradients
are those of `jitdnn.problems.normalization`; RMS has no mean, no bias, and its dx no term mean(g).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Self

from jitdnn.arguments import check_choice, integer_numbers
from jitdnn.errors import InvalidArgument
from jitdnn.problems.normalization import EPSILON, Normalization
from jitdnn.problems.problem import as_descriptor
from jitdnn.problems.words import Words, shape_word
from jitdnn.tensor import TensorDescriptor

FORMS = ("layer", "rms")


@dataclass(frozen=True, kw_only=True)
class LayerNorm(Normalization, kinds=("layer_norm_fwd", "layer_norm_bwd", "rms_norm_fwd", "rms_norm_bwd")):
    """Layer or RMS normalization of x over the axes from `axis` on: "fwd" or "bwd".

    `form`: "layer", or "rms" which has neither mean nor bias. weight and bias have the shape `x.shape[axis:]`,
    mean and rstd that of x with an extent of 1 for these axes. `axis` may be counted from the end. y and dy may be of
    f32 where x is of f16 or bf16.
    """

    may_widen = True

    form: str = "layer"
    axis: int = -1

    @classmethod
    def make(
        cls,
        direction: str,
        shape: TensorDescriptor | Sequence[int],
        axis: int = -1,
        form: str = "layer",
        absent: Sequence[str] = (),
        epsilon: float = EPSILON,
        dtype: str = "f32",
        layout: str = "nchw",
        is_narrow: bool = False,
        is_wide: bool = False,
    ) -> Self:
        """The problem from a shape or x's descriptor, the other tensors packed.

        `absent`: names of tensors that there are not. `is_narrow`: parameters are of x's dtype. `is_wide`: y and dy are
        of f32.
        """
        x = as_descriptor(shape, dtype, layout)
        return cls.describe(
            direction, x, None, absent, is_narrow, layout, is_wide, form=form, axis=axis, epsilon=epsilon
        )

    def _check_attributes(self) -> None:
        super()._check_attributes()
        check_choice(self.form, FORMS, "form")
        rank, (axis,) = len(self.x.shape), integer_numbers((self.axis,), "axis")
        if not -rank <= axis < rank:
            raise InvalidArgument(f"axis {axis} of x with {rank} dims: it must be {-rank} to {rank - 1}")
        object.__setattr__(self, "axis", axis % rank)

    @property
    def kind(self) -> str:
        return f"{self.form}_norm_{self.direction}"

    @property
    def is_centred(self) -> bool:
        return self.form == "layer"

    @property
    def parameter_shape(self) -> tuple[int, ...]:
        return self.x.shape[self.axis :]

    @property
    def statistic_shape(self) -> tuple[int, ...]:
        return self.x.shape[: self.axis] + (1,) * (len(self.x.shape) - self.axis)

    @property
    def grid(self) -> tuple[int, ...]:
        return self.x.shape

    @property
    def rows(self) -> tuple[int, ...]:
        return tuple(range(self.axis, len(self.x.shape)))

    @property
    def sums(self) -> tuple[int, ...]:
        return tuple(range(self.axis))

    def on_grid(self, name: str) -> TensorDescriptor:
        return getattr(self, name).broadcast_to(self.grid)  # type: ignore[no-any-return]

    def _body(self) -> list[str]:
        return [shape_word(self.x.shape), f"axis{self.axis}", *self._tail()]

    @classmethod
    def _attributes(cls, words: Words, rank: int) -> dict[str, Any]:
        return {"form": words.kind.partition("_")[0], "axis": words.number("axis", rank - 1)}

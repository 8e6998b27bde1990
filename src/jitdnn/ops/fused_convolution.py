"""Convolutions with a prologue on x and sums by channel of y: what `conv` and `conv_backward_filter` do with these."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Any

from jitdnn.arguments import check_choice, flag, real_number, text
from jitdnn.errors import InvalidArgument, InvalidType
from jitdnn.ops.call import Recipe, callers_axes, logical, logical_shape, packed_like, scale_factor
from jitdnn.ops.epilogue import Fused, fuse
from jitdnn.problems.activation_functions import settled_coef
from jitdnn.problems.convolution import Convolution
from jitdnn.problems.convolution_fused import FusedConvolution
from jitdnn.problems.problem import result_like
from jitdnn.tensor import TensorDescriptor, borrow, compute_dtype

IMAGE = "image"
"""In place of True where each image has sums of its own."""


def settled_sums(sums: Any) -> bool | str:
    """Whether there are sums, IMAGE for those of each image. Raises InvalidArgument."""
    if isinstance(sums, str):
        check_choice(sums, (IMAGE,), "sums")
        return sums
    return flag(sums, "sums")


@dataclass(frozen=True, eq=False)
class Prologue:
    """What a convolution reads in place of x: activation(scale[c] * x + shift[c]), and 0 outside of the image.

    `scale`, `shift`: (C,), float32 (float64 for x of float64). `activation`: the name of one of this package, such as
    "relu", with its coefficient `coef` (None: the default). With the statistics of a batch normalization scale is
    weight * rstd, and shift is bias - mean * scale. Values are computed in float32 and rounded to x's type before they
    are multiplied.

    Raises InvalidType for what is no array, InvalidArgument for an unknown activation or a coefficient that does not
    fit.
    """

    scale: Any
    shift: Any
    activation: str = "identity"
    coef: float | None = None

    def __post_init__(self) -> None:
        borrow(self.scale, False, "scale"), borrow(self.shift, False, "shift")
        name = text(self.activation, "activation")
        coef = None if self.coef is None else real_number(self.coef, "coef", finite=True)
        object.__setattr__(self, "coef", settled_coef(name, coef))
        object.__setattr__(self, "activation", name)

    @property
    def key(self) -> tuple[str, float | None]:
        """What is not known from the arrays."""
        return self.activation, self.coef


def settled_prologue(prologue: Any) -> Prologue | None:
    """A `Prologue` or None. Raises InvalidType."""
    if prologue is None or isinstance(prologue, Prologue):
        return prologue
    raise InvalidType(f"prologue is {type(prologue).__name__}: it must be a jd.Prologue, or None")


def refuse_with_sums(is_fused: bool, alpha: Any, beta: Any) -> None:
    """Sums are those of y = conv(x, w) alone. Raises InvalidArgument for anything that would change y."""
    if is_fused:
        raise InvalidArgument(
            "sums are those of the convolution's results: leave out bias, residual and epilogue"
        )
    alpha, beta = scale_factor("alpha", alpha), scale_factor("beta", beta)
    if (alpha, beta) != (1.0, 0.0):
        raise InvalidArgument(f"alpha is {alpha} and beta {beta}: with sums they must be 1 and 0")


def make_forward(
    inputs: Sequence[TensorDescriptor],
    out: Any,
    stride: Any,
    padding: Any,
    dilation: Any,
    groups: int,
    mode: str,
    layout: str | None,
    prologue: tuple[str, float | None] | None,
    has_sums: bool | str,
    fused_key: Hashable,
    fused: Fused = None,
) -> Recipe:
    x, w = (logical(tensor, layout) for tensor in inputs[:2])
    given, *totals = out if has_sums else (out, None, None)
    y = None if given is None else logical(given, layout)
    convolution = Convolution.make(
        "fwd", x, w, stride, padding, dilation, groups, mode, layout=x.nearest_layout, y=y
    )
    if has_sums:
        shape = (convolution.n, convolution.k) if has_sums == IMAGE else (convolution.k,)
        total = TensorDescriptor.packed(shape, compute_dtype(convolution.dtype))
        totals = [one or total for one in totals]
    activation, coef = prologue or ("identity", None)
    scale, shift = inputs[2:4] if prologue else (None, None)
    problem = FusedConvolution(convolution, scale, shift, activation, coef, *totals)
    operands = inputs[2 if prologue is None else 4 :]
    epilogue = fuse(fused, operands, convolution.y, layout)
    return Recipe(problem, epilogue, callers_axes(layout, len(x.shape)))


def make_backward_filter(
    inputs: Sequence[TensorDescriptor],
    out: TensorDescriptor | None,
    w_shape: tuple[int, ...],
    stride: Any,
    padding: Any,
    dilation: Any,
    groups: int,
    mode: str,
    layout: str | None,
    prologue: tuple[str, float | None],
) -> Recipe:
    x, dy = (logical(tensor, layout) for tensor in inputs[:2])
    shape = logical_shape(w_shape, layout)
    dw = packed_like(result_like(x), shape) if out is None else logical(out, layout)
    convolution = Convolution.make("bwd_filter", x, dw, stride, padding, dilation, groups, mode, y=dy)
    problem = FusedConvolution(convolution, inputs[2], inputs[3], *prologue)
    return Recipe(problem, None, callers_axes(layout, len(x.shape)))

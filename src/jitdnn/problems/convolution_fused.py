"""Convolutions of activations that are normalized as they are read, and whose results are summed as they are written.

    z = activation(scale[c] * x + shift[c])     inside the image, 0 outside of it: padding comes behind the prologue
    y = conv(z, w)                              "fwd"
    sums[k], squares[k] = sums of y and y * y over the batch and space, of the results before they are rounded;
                          of each image, sums[n, k] and squares[n, k], over space alone
    dw = the gradient of w at z for dy          "bwd_filter"

A block of convolution, batch normalization and activation is computed with each tensor read and written once: the sums
of one block make mean and variance, these with weight and bias the scale and the shift with which the next one reads.
Instance and group normalizations have statistics of each image, so those read its activations by other kernels.
That is what cuDNN calls CUDNN_FUSED_SCALE_BIAS_ACTIVATION_CONV_BNSTATS and CUDNN_FUSED_SCALE_BIAS_ACTIVATION_WGRAD.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any, Self

import numpy as np

from jitdnn.arguments import check_choice
from jitdnn.errors import InvalidArgument, InvalidShape, InvalidType
from jitdnn.problems.activation_functions import COEFS, FUNCTIONS, defined, settled_coef
from jitdnn.problems.convolution import Convolution
from jitdnn.problems.problem import Operand, Problem, Reals
from jitdnn.problems.words import Words, order_word
from jitdnn.tensor import REAL_DTYPES, TensorDescriptor, compute_dtype

DIRECTIONS = ("fwd", "bwd_filter")


@dataclass(frozen=True)
class FusedConvolution(Problem, kinds=("fused_conv_fwd", "fused_conv_bwd_filter")):
    """A convolution with a prologue on x, with sums by channel of its results, or both.

    `scale`, `shift` (C,): of the prologue, None without one, in the type of the arithmetic (f32, or f64 for f64), as
    are `sums` and `squares`, (K,) or (N, K), None where they are not wanted. `activation`: a name of
    `activation_functions`, with its coefficient. With sums y is overwritten: alpha and beta do not touch it, and there
    is no epilogue.

    Raises InvalidArgument where there is neither, for half a prologue or half of the sums, sums of a "bwd_filter" and
    any "bwd_data"; InvalidShape for other shapes than (C,), (K,) and (N, K), InvalidType for other types and for
    integers.
    """

    convolution: Convolution
    scale: TensorDescriptor | None = None
    shift: TensorDescriptor | None = None
    activation: str = "identity"
    coef: float | None = None
    sums: TensorDescriptor | None = None
    squares: TensorDescriptor | None = None

    def __post_init__(self) -> None:
        own = self.convolution
        check_choice(own.direction, DIRECTIONS, "direction")
        if own.x.dtype not in REAL_DTYPES:
            raise InvalidType(f"x is {own.x.dtype}: prologues and sums are those of {', '.join(REAL_DTYPES)}")
        for one, other, names in (
            (self.scale, self.shift, "scale and shift"),
            (self.sums, self.squares, "sums and squares"),
        ):
            if (one is None) != (other is None):
                raise InvalidArgument(f"{names}: give both or none")
        if not self.has_prologue and not self.has_sums:
            raise InvalidArgument("there is neither a prologue nor sums: that is a plain convolution")
        if self.has_sums and own.direction != "fwd":
            raise InvalidArgument("sums by channel are those of a forward convolution's results")
        object.__setattr__(self, "coef", settled_coef(self.activation, self.coef))
        if not self.has_prologue and self.activation != "identity":
            raise InvalidArgument(
                f"activation {self.activation!r} belongs to a prologue: give scale and shift"
            )
        for name, channels, letter in (
            ("scale", own.c, "c"),
            ("shift", own.c, "c"),
            ("sums", own.k, "k"),
            ("squares", own.k, "k"),
        ):
            tensor: TensorDescriptor | None = getattr(self, name)
            is_total = name in ("sums", "squares")
            if tensor is not None and tensor.shape not in [(channels,), *[(own.n, channels)] * is_total]:
                of_images = f", or ({own.n}, {channels}), of each image" if is_total else ""
                raise InvalidShape(
                    f"{name} has shape {tensor.shape}: it must be ({channels},), one for each of {letter}={channels} "
                    f"channels{of_images}"
                )
        if self.sums is not None and self.squares is not None and self.sums.shape != self.squares.shape:
            raise InvalidShape(
                f"sums have shape {self.sums.shape} and squares {self.squares.shape}: both are of each image or neither"
            )
        self._check_operands()

    @classmethod
    def of(
        cls,
        convolution: Convolution,
        activation: str | None = None,
        sums: bool = False,
        coef: float | None = None,
        *,
        by_image: bool = False,
    ) -> Self:
        """The problem with packed tensors; `activation` None: without a prologue; `by_image`: sums of each image."""
        dtype = compute_dtype(convolution.dtype)
        one = None if activation is None else TensorDescriptor.packed((convolution.c,), dtype)
        total = TensorDescriptor.packed(_totals(convolution, by_image), dtype) if sums else None
        return cls(convolution, one, one, activation or "identity", coef, total, total)

    @property
    def direction(self) -> str:
        return self.convolution.direction

    @property
    def has_prologue(self) -> bool:
        return self.scale is not None

    @property
    def has_sums(self) -> bool:
        return self.sums is not None

    @property
    def is_by_image(self) -> bool:
        """Whether sums are those of each image."""
        return self.sums is not None and len(self.sums.shape) > 1

    @property
    def kind(self) -> str:
        return f"fused_{self.convolution.kind}"

    @property
    def dtype(self) -> str:
        return self.convolution.dtype

    @cached_property
    def operands(self) -> tuple[Operand, ...]:
        """(x, w, scale, shift, y, sums, squares), or (x, dy, scale, shift, dw), without those that there are not."""
        *inputs, result = self.convolution.operands
        types = (compute_dtype(self.dtype),)
        parameters = [("scale", self.scale), ("shift", self.shift)]
        inputs += [Operand(name, tensor, dtypes=types) for name, tensor in parameters if tensor is not None]
        if self.sums is None or self.squares is None:
            return (*inputs, Operand(result.name, result.descriptor, "out", result.dtypes))
        return (
            *inputs,
            Operand(result.name, result.descriptor, "saved", result.dtypes),
            Operand("sums", self.sums, "saved", types),
            Operand("squares", self.squares, "saved", types),
        )

    @property
    def flops(self) -> int:
        """Those of the convolution, a multiply and an add for each element of x, three operations for each of y."""
        own = self.convolution
        return own.flops + 2 * own.x.size * self.has_prologue + 3 * own.y.size * self.has_sums

    def prologue(self, x: Reals, scale: Reals, shift: Reals) -> Reals:
        """z: what the convolution reads in place of x."""
        spread = (1, -1, *(1,) * len(self.convolution.spatial))
        found: Reals = defined(self.activation, self.coef).forward(
            scale.reshape(spread) * x + shift.reshape(spread)
        )
        return found

    def _define(self, *inputs: Reals) -> Any:
        x, other = inputs[:2]
        z = self.prologue(x, *inputs[2:]) if self.has_prologue else x
        result = self.convolution.reference(z, other)
        if not self.has_sums:
            return result
        axes = (*(() if self.is_by_image else (0,)), *range(2, result.ndim))
        return result, result.sum(axes), np.square(result).sum(axes)

    def _body(self) -> list[str]:
        words = self.convolution._body()
        if self.has_prologue:
            words.append(f"prologue={self.activation}")
            if self.coef is not None and self.coef != COEFS[self.activation]:
                words.append(f"coef{self.coef!r}")
        if self.has_sums:
            words.append("image_sums" if self.is_by_image else "sums")
        for name in ("scale", "shift", "sums", "squares"):
            tensor: TensorDescriptor | None = getattr(self, name)
            if tensor is not None:
                words += order_word(
                    name, tensor, {"nc": TensorDescriptor.packed(tensor.shape, tensor.dtype)}, "nc"
                )
        return words

    @classmethod
    def _from_words(cls, words: Words) -> Self:
        function = words.value("prologue", tuple(FUNCTIONS)) if words.has("prologue=") else None
        coef = words.real("coef", COEFS[function]) if function in COEFS else None
        by_image = words.flag("image_sums")
        has_sums = words.flag("sums") or by_image
        convolution = Convolution._from_words(words)
        dtype = compute_dtype(convolution.dtype)

        def tensor(name: str, shape: tuple[int, ...]) -> TensorDescriptor:
            return words.descriptor(name, shape, dtype, {"nc": TensorDescriptor.packed(shape, dtype)}, "nc")

        scale, shift = (tensor(n, (convolution.c,)) if function else None for n in ("scale", "shift"))
        totals = _totals(convolution, by_image)
        sums, squares = (tensor(n, totals) if has_sums else None for n in ("sums", "squares"))
        return cls(convolution, scale, shift, function or "identity", coef, sums, squares)


def _totals(convolution: Convolution, by_image: bool) -> tuple[int, ...]:
    """The shape of sums."""
    return (convolution.n, convolution.k) if by_image else (convolution.k,)

"""Tensors filled with random numbers: uniform, normal or Bernoulli, from the counting generator of `philox`.

    bernoulli    1 where word < p * 2^32, else 0
    uniform      low + (high - low) u,   u = the word's leading bits as a fraction, 0 <= u < 1
    normal       mean + std sqrt(-2 ln u) (cos 2 pi v | sin 2 pi v)      (Box and Muller, 1958)

A fraction has as many bits as a number of the tensor's type has digits, so that no rounding makes it 1; for f64
an element has two words. The two normal numbers of one pair (u, v) go to elements of neighbouring parts: the
cosine to the first. Their fractions have 32 bits, or 53 for f64, and half a last bit is added to u, whose logarithm
is taken.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Self

import numpy as np

from jitdnn.arguments import check_choice
from jitdnn.errors import InvalidArgument
from jitdnn.problems.dropout import STATE_OPERAND, check_probability
from jitdnn.problems.philox import Words32, joined, part_words
from jitdnn.problems.problem import Operand, Problem, Reals, as_descriptor
from jitdnn.problems.words import Words, layout_words, shape_word
from jitdnn.tensor import TensorDescriptor

DISTRIBUTIONS: dict[str, tuple[str, ...]] = {
    "bernoulli": ("p",),
    "uniform": ("low", "high"),
    "normal": ("mean", "std"),
}
FRACTION_BITS = {"f16": 11, "bf16": 8, "f32": 24, "f64": 53}


@dataclass(frozen=True)
class Random(Problem, kinds=("random",)):
    """y filled with numbers of a distribution with the parameters `a` and `b` (see `DISTRIBUTIONS`).

    y has 1 to 8 dims and a real dtype; The operand `state` is four numbers of 32 bits. `b` is 0 for "bernoulli".

    Raises InvalidArgument for an unknown distribution or parameters that are none of it, InvalidType.
    """

    distribution: str
    a: float
    b: float
    y: TensorDescriptor

    def __post_init__(self) -> None:
        check_choice(self.distribution, tuple(DISTRIBUTIONS), "distribution")
        if not (math.isfinite(self.a) and math.isfinite(self.b)):
            raise InvalidArgument(f"{self.distribution} of {self.a} and {self.b}: both must be finite")
        if self.distribution == "bernoulli":
            check_probability(self.a)
            if self.b != 0:
                raise InvalidArgument(f"bernoulli has one parameter, p: a second one is given, {self.b}")
        if self.distribution == "uniform" and self.b < self.a:
            raise InvalidArgument(f"uniform from low {self.a} to high {self.b}: high must be at least low")
        if self.distribution == "normal" and self.b < 0:
            raise InvalidArgument(f"normal with std {self.b}: it must be at least 0")
        self._check_operands()

    @classmethod
    def make(
        cls,
        distribution: str,
        shape: TensorDescriptor | Sequence[int],
        a: float,
        b: float = 0.0,
        dtype: str = "f32",
        layout: str = "nchw",
    ) -> Self:
        """The problem from a shape or y's descriptor; y is packed in `layout` if not given."""
        return cls(distribution, float(a), float(b), as_descriptor(shape, dtype, layout))

    @property
    def kind(self) -> str:
        return "random"

    @cached_property
    def operands(self) -> tuple[Operand, ...]:
        """(state, y)."""
        return STATE_OPERAND, Operand("y", self.y, "out")

    @property
    def flops(self) -> int:
        """Two operations an element: the factor and the sum."""
        return 2 * self.y.size

    @property
    def parts(self) -> int:
        """Into how many parts the tensor is cut: 4, or 2 where an element takes two words."""
        return 2 if self.y.dtype == "f64" and self.distribution != "bernoulli" else 4

    def _define(self, *inputs: Reals) -> Reals:
        """The formulas above."""
        words = part_words(self.y.shape, inputs[0], self.parts)
        if self.distribution == "bernoulli":
            numbers = [(word < self.threshold).astype(np.float64) for word in words]
        elif self.distribution == "uniform":
            bits = FRACTION_BITS[self.dtype]
            numbers = [self.a + (self.b - self.a) * u for u in _fractions(words, self.parts, bits)]
        else:
            numbers = []
            bits = 32 if self.parts == 4 else 53
            fractions = _fractions(words, self.parts, bits)
            for u, v in zip(fractions[::2], fractions[1::2], strict=True):
                size = self.b * np.sqrt(-2.0 * np.log(u + 2.0 ** -(bits + 1)))
                numbers += [self.a + size * wave(2 * np.pi * v) for wave in (np.cos, np.sin)]
        return np.asarray(joined(numbers, self.y.shape), np.float64)

    @property
    def threshold(self) -> int:
        """Of "bernoulli": words below it give 1."""
        return round(self.a * 2**32)

    def _body(self) -> list[str]:
        words = [self.distribution]
        for name, value in zip(DISTRIBUTIONS[self.distribution], (self.a, self.b), strict=False):
            words.append(f"{name}{value!r}")
        return [*words, shape_word(self.y.shape), self.dtype, *layout_words([("y", self.y)])]

    @classmethod
    def _from_words(cls, words: Words) -> Self:
        distribution = words.choice(tuple(DISTRIBUTIONS))
        parameters = [words.real(name) for name in DISTRIBUTIONS[distribution]]
        shape, dtype = words.shape("shape"), words.dtype()
        y = words.descriptors({"y": shape}, dtype, words.layout(len(shape)))["y"]
        return cls(distribution, parameters[0], parameters[1] if len(parameters) > 1 else 0.0, y)


def _fractions(words: Sequence[Words32], parts: int, bits: int) -> list[Reals]:
    """The leading `bits` of a word, or of two neighbouring ones, as numbers from 0 to below 1."""
    if parts == len(words):
        return [(word >> np.uint32(32 - bits)).astype(np.float64) * 2.0**-bits for word in words]
    pairs = zip(words[::2], words[1::2], strict=True)
    wide = [(high.astype(np.uint64) << np.uint64(32)) | low for high, low in pairs]
    return [(word >> np.uint64(64 - bits)).astype(np.float64) * 2.0**-bits for word in wide]

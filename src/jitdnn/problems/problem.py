"""What a problem is: a frozen, hashable, device-free statement of one operation on described tensors.

A problem says WHAT is computed and nothing about how. It names its operands (inputs first, the output last),
counts its work, states its meaning as a slow float64 reference, and prints as a string that parses back.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar, Literal, NamedTuple, Self

import numpy as np
import numpy.typing as npt

from jitdnn.arguments import MOST_EXTENT, integer_numbers, shape, shown
from jitdnn.errors import InvalidArgument, InvalidShape, InvalidType
from jitdnn.problems.words import Words, layout_words
from jitdnn.tensor import COMMON_DTYPES, DTYPES, FLOAT8_DTYPES, REAL_DTYPES, TensorDescriptor

Reals = npt.NDArray[np.float64]

MAX_SPATIAL = 3
#: 8-bit integers that may be multiplied by i8
BYTE_INTEGERS = ("i8", "u8")
#: results of products of 8-bit integers, whose sums are exact, and of 8-bit reals
INTEGER_RESULTS = ("f32", "i8", "i32", "u8")
FLOAT8_RESULTS = ("f32", "f16", "bf16", *FLOAT8_DTYPES)
# products with an i8 whose sum is at most 2^24, so that f32 holds it exactly
_EXACT_PRODUCTS = {"i8": 2**24 // (128 * 128), "u8": 2**24 // (255 * 128)}


@dataclass(frozen=True, slots=True)
class Operand:
    """One tensor of a problem: its name in the formula, its descriptor, and what happens to it.

    `role`: "in" is only read; "out" becomes alpha * result + beta * what it was; "saved" is overwritten, alpha and
    beta do not touch it; "state" is read and updated (a running mean), and is not scaled either. `dtypes`: the
    types it may have, None for the problem's own one. `values`: lowest and highest value that an operand of
    integers may hold.

    Where "out" holds integers, a result that is neither scaled nor added to (alpha 1, beta 0) is stored from its own
    type, integers exactly. Else alpha * result, beta * what it was, and their sum are each rounded to f64. Either
    way reals become the nearest integer, of two the even one, and what is beyond the type's range its end (NaN
    0). Devices without f64 take f32.
    """

    name: str
    descriptor: TensorDescriptor
    role: Literal["in", "out", "saved", "state"] = "in"
    dtypes: tuple[str, ...] | None = None
    values: tuple[int, int] | None = None


class Problem(ABC):
    """Base of all problems. Subclasses are frozen dataclasses that register the kinds they answer to:
    `class Pooling(Problem, kinds=("pool_fwd", "pool_bwd"))`. A kind is the first word of the string."""

    registry: ClassVar[dict[str, type[Problem]]] = {}

    def __init_subclass__(cls, kinds: Sequence[str] = (), **rest: object) -> None:
        super().__init_subclass__(**rest)
        for kind in kinds:
            Problem.registry[kind] = cls

    @property
    @abstractmethod
    def kind(self) -> str:
        """The first word of the string, for instance `conv_fwd`."""

    @property
    @abstractmethod
    def operands(self) -> tuple[Operand, ...]:
        """The tensors a kernel gets pointers to: inputs first, then the outputs, the principal one first.

        Where none has another role than "in", the last operand is the output.
        """

    @property
    @abstractmethod
    def flops(self) -> int:
        """Arithmetic operations of the plain definition (a multiply and an add count as two)."""

    @property
    def statements(self) -> int:
        """How often the plain definition goes around its loop in Python; 1 where it has none that grows."""
        return 1

    def reference(self, *inputs: npt.NDArray[np.generic]) -> Any:
        """The result in float64, by the definition.

        `inputs` are arrays of the logical shapes of the `sources`, in their order; strides do not matter.
        Returns a new array of the output's logical shape, before alpha and beta, or a tuple of one for each of
        several `outputs`. Infinities and NaN take part without a warning. Raises InvalidArgument for another
        number of inputs, InvalidShape for other shapes.
        """
        if len(inputs) != len(self.sources):
            names = ", ".join(operand.name for operand in self.sources)
            raise InvalidArgument(
                f"{self.kind} takes {len(self.sources)} inputs ({names}), got {len(inputs)}"
            )
        for array, operand in zip(inputs, self.sources, strict=True):
            shape = operand.descriptor.shape
            if array.shape != shape:
                raise InvalidShape(f"{operand.name} has shape {array.shape}, the problem says {shape}")
        with np.errstate(all="ignore"):
            return self._define(*(np.asarray(array, dtype=np.float64) for array in inputs))

    @abstractmethod
    def _define(self, *inputs: Reals) -> Any:
        """The definition, written as it reads: a new array made from the inputs, or a tuple of such."""

    @abstractmethod
    def _body(self) -> list[str]:
        """The words of the string after the kind."""

    def _layout_words(self) -> list[str]:
        """The words of the orders in memory of all operands."""
        return layout_words([(operand.name, operand.descriptor) for operand in self.operands])

    @classmethod
    @abstractmethod
    def _from_words(cls, words: Words) -> Self:
        """The problem that the words describe; `words.kind` is one of the registered kinds."""

    @property
    def dtype(self) -> str:
        """The element type of all operands that have none of their own: one of `COMMON_DTYPES`."""
        return self.output.dtype

    @cached_property  # asked for many times by every plan
    def has_float8(self) -> bool:
        """Whether an input holds 8-bit reals."""
        return any(operand.descriptor.dtype in FLOAT8_DTYPES for operand in self.inputs)

    @cached_property
    def output(self) -> TensorDescriptor:
        """The descriptor of the result; of the principal one if there are several."""
        return self.outputs[0].descriptor

    @cached_property
    def inputs(self) -> tuple[Operand, ...]:
        """The operands that are only read."""
        return self.operands[: len(self.operands) - len(self.outputs)]

    @cached_property
    def outputs(self) -> tuple[Operand, ...]:
        """The operands that are written, the principal result first."""
        written = tuple(operand for operand in self.operands if operand.role != "in")
        return written or self.operands[-1:]

    @cached_property
    def filters(self) -> tuple[int, ...]:
        """The places of the inputs that a caller may keep prepared (`KeptFilter`): that of the filter."""
        return (1,)

    @cached_property
    def sources(self) -> tuple[Operand, ...]:
        """The operands that are read, states included: what `reference` takes."""
        return (*self.inputs, *(operand for operand in self.outputs if operand.role == "state"))

    @property
    def bytes(self) -> int:
        """Compulsory traffic: every distinct element of every operand moved once (beta = 0)."""
        return sum(distinct_bytes(operand.descriptor) for operand in self.operands)

    @cached_property
    def text(self) -> str:
        """The problem string; `parse(problem.text) == problem`."""
        return " ".join([self.kind, *self._body()])

    def __str__(self) -> str:
        return self.text

    @classmethod
    def parse(cls, text: str) -> Self:
        """The problem that `text` names. Raises ParseError for a word that does not belong, with its column,
        and InvalidShape or InvalidArgument for well-formed words that no operation has."""
        words = Words(text)
        kinds = sorted(kind for kind, owner in Problem.registry.items() if issubclass(owner, cls))
        if words.kind not in kinds:
            raise words.error(f"unknown problem kind {shown(words.kind)}", 0, candidates=kinds)
        owner = Problem.registry[words.kind]
        assert issubclass(owner, cls)
        problem = owner._from_words(words)
        words.finish()
        return problem

    def _check_operands(self) -> None:
        """The rules every problem shares: one real dtype where an operand has none of its own, no offset (the
        pointer carries it), outputs behind the inputs, and none in which two indices share an element."""
        operands, outputs = self.operands, self.outputs
        assert operands[len(self.inputs) :] == outputs, f"{self.kind}: inputs come before outputs"
        first = next((o for o in operands if o.dtypes is None), None)
        for operand in operands:
            name, descriptor = operand.name, operand.descriptor
            if operand.dtypes is not None:
                if descriptor.dtype not in operand.dtypes:
                    raise InvalidType(f"{name} is {descriptor.dtype}: it must be {_listing(operand.dtypes)}")
            elif descriptor.dtype not in COMMON_DTYPES:
                hint = "; transform(x, dtype=...) makes a copy" if descriptor.dtype in REAL_DTYPES else ""
                raise InvalidType(f"{name} is {descriptor.dtype}: it must be {_listing(COMMON_DTYPES)}{hint}")
            elif first is not None and descriptor.dtype != first.descriptor.dtype:
                raise InvalidType(
                    f"{first.name} is {first.descriptor.dtype} and {name} is {descriptor.dtype}: they must be of "
                    "one dtype"
                )
            if descriptor.offset != 0:
                raise InvalidArgument(
                    f"{name} has offset {descriptor.offset}: a problem's descriptors start at 0, "
                    "the offset belongs to the pointer"
                )
        for operand in outputs:
            if operand.descriptor.is_overlapping():
                raise InvalidArgument(
                    f"{operand.name} has shape {operand.descriptor.shape} and strides "
                    f"{operand.descriptor.strides}, in which several indices share one element: an output must "
                    "not overlap itself"
                )


def _listing(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} or {names[-1]}"


class ByteTypes(NamedTuple):
    """Which types products of 8-bit numbers may have: the first input, the second, and the result."""

    first: tuple[str, ...]
    second: tuple[str, ...]
    result: tuple[str, ...]

    def second_of(self, first: str) -> str:
        """The type of the second input where nothing else is said: that of the first, or the only one there is."""
        return first if first in self.second else self.second[0]


_BYTE_INTEGERS = ByteTypes(BYTE_INTEGERS, ("i8",), INTEGER_RESULTS)
_BYTE_REALS = ByteTypes(FLOAT8_DTYPES, FLOAT8_DTYPES, FLOAT8_RESULTS)


def byte_dtypes(dtype: str) -> ByteTypes | None:
    """The types of products of 8-bit numbers whose first input has this one; None for other numbers.

    8-bit reals may be mixed; integers with or without a sign are multiplied by such with one. Results have their own
    types: 8 bits are too few for most sums.
    """
    if dtype in BYTE_INTEGERS:
        return _BYTE_INTEGERS
    return _BYTE_REALS if dtype in FLOAT8_DTYPES else None


def result_like(tensor: TensorDescriptor) -> TensorDescriptor:
    """The input, or the same in f32 where it has 8 bits: what a result is like that nothing else says the type of."""
    return TensorDescriptor(tensor.shape, tensor.strides, "f32") if byte_dtypes(tensor.dtype) else tensor


def sum_dtype(first: str, result: str, products: int) -> str:
    """The real type that holds sums of so many products of 8-bit numbers, exactly those of integers."""
    most = _EXACT_PRODUCTS.get(first)
    is_exact = most is None or (products <= most and result != "i32")
    return "f32" if is_exact else "f64"


def byte_words(problem: Problem) -> list[str]:
    """The words of a product's types: of both inputs, `by_` the second where it differs, `to_` that of the result of
    8-bit numbers if it is not f32."""
    first, second = (operand.descriptor.dtype for operand in problem.inputs)
    words = [first] if second == first else [first, f"by_{second}"]
    if byte_dtypes(first) and problem.output.dtype != "f32" and problem.outputs[0].dtypes:
        words.append(f"to_{problem.output.dtype}")
    return words


def byte_types(words: Words) -> tuple[str, str, str]:
    """The types that `byte_words` states: of both inputs and of the result."""
    first = words.dtype()
    types = byte_dtypes(first)
    if types is None:
        return first, first, first
    second = words.choice([f"by_{name}" for name in types.second], f"by_{types.second_of(first)}")
    result = words.choice([f"to_{name}" for name in types.result], "to_f32")
    return first, second.removeprefix("by_"), result.removeprefix("to_")


def distinct_bytes(descriptor: TensorDescriptor) -> int:
    """Bytes of the elements that `descriptor` reaches, a broadcast (stride 0) dimension counted once."""
    extents = (e if s != 0 else min(e, 1) for e, s in zip(descriptor.shape, descriptor.strides, strict=True))
    return math.prod(extents) * DTYPES[descriptor.dtype]


def as_descriptor(
    tensor: TensorDescriptor | Sequence[int],
    dtype: str,
    layout: str,
    strides: Sequence[int] | None = None,
) -> TensorDescriptor:
    """A descriptor as it is; a shape made into one, packed in `layout` or with `strides` (in elements)."""
    if isinstance(tensor, TensorDescriptor):
        return tensor
    extents = shape(tensor)
    if strides is not None:
        return TensorDescriptor(extents, integer_numbers(strides, "strides", most=MOST_EXTENT), dtype)
    return TensorDescriptor.packed(extents, dtype, layout)


def check_spatial_rank(shape: Sequence[int], name: str) -> int:
    """The number of spatial axes of an (N, C, spatial...) shape, which must be 1 to 3."""
    rank = len(shape) - 2
    if not 1 <= rank <= MAX_SPATIAL:
        raise InvalidShape(
            f"{name} has shape {tuple(shape)}: N, C and 1 to {MAX_SPATIAL} spatial extents are needed, "
            f"so 3 to {MAX_SPATIAL + 2} dims"
        )
    return rank


def check_extents(
    shape: Sequence[int], name: str, letters: Sequence[str], empty: Sequence[int] = (0,)
) -> None:
    """Every extent at least 1, except that the dims in `empty` (the batch) may be 0."""
    if min(shape) > 0:
        return
    for axis, (extent, letter) in enumerate(zip(shape, letters, strict=True)):
        if extent < 1 and axis not in empty:
            raise InvalidShape(
                f"{name} has shape {tuple(shape)}: {letter} is {extent} and must be at least 1"
            )


def check_same_shape(name: str, one: TensorDescriptor, other_name: str, other: TensorDescriptor) -> None:
    """Both of one shape, or InvalidShape naming both."""
    if one.shape != other.shape:
        raise InvalidShape(
            f"{name} has shape {one.shape} and {other_name} has {other.shape}: they must be equal"
        )

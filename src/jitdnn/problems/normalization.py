"""What batch, layer, RMS, group and instance normalization have in common.

Each looks at x as a grid, takes mean and variance over some axes of it (`rows`), and has one weight and bias
for every index of the axes that are not in `sums`:

    y = (x - mean) * rstd * weight + bias        rstd = 1 / sqrt(variance + epsilon)

The variance is the mean of (x - mean)^2. The gradients, with xhat = (x - mean) * rstd and g = dy * weight:

    dx = rstd * (g - mean(g) - xhat * mean(g * xhat))
    dweight = sum(dy * xhat)        dbias = sum(dy)

Ioffe and Szegedy 2015 (batch), Ba, Kiros and Hinton 2016 (layer), Zhang and Sennrich 2019 (RMS, which has no
mean and no bias), Ulyanov, Vedaldi and Lempitsky 2016 (instance), Wu and He 2018 (group).
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, ClassVar, Literal, Self

import numpy as np

from jitdnn.arguments import check_choice
from jitdnn.errors import InvalidArgument, InvalidShape, InvalidType
from jitdnn.problems.directed import DirectedProblem
from jitdnn.problems.problem import Operand, Reals
from jitdnn.problems.words import Words, layout_forms
from jitdnn.tensor import TensorDescriptor, compute_dtype

Given = Mapping[str, TensorDescriptor | None]

EPSILON = 1e-5

LIKE_X = frozenset({"x", "y", "z", "dx", "dy", "dz"})
_STATISTICS = frozenset({"mean", "rstd"})
_WIDE = frozenset({"y", "dy"})
# words for what there is not
_ABSENT = {
    "no_weight": ("weight", "dweight"),
    "no_bias": ("bias", "dbias"),
    "no_save": ("mean", "rstd"),
}
# names of a backward problem that have the shape and dtype of another
_GRADIENT_OF = {"dx": "x", "dy": "y", "dweight": "weight"}


@dataclass(frozen=True, kw_only=True)
class Normalization(DirectedProblem):
    """The fields of every normalization.

    `x`, `y`: of one shape and dtype; of kinds that `may_widen`, y (and dy) of an x of f16 or bf16 may be of f32.
    `weight`, `bias`: of `parameter_shape`, None for 1 and 0; f32 or, for f16 and bf16, of x's dtype; f64
    for f64. `mean`, `rstd`: of `statistic_shape`, f32, or f64 for f64; forward, None if they are not to be saved.
    Backward, `dx`, `dy` and `dweight` default to x, y and weight, and `dbias` is None if it is not wanted. Fields
    that a direction has no use for get their defaults.

    Raises InvalidShape, InvalidType and InvalidArgument for what does not fit together.
    """

    direction: str
    x: TensorDescriptor
    y: TensorDescriptor
    weight: TensorDescriptor | None = None
    bias: TensorDescriptor | None = None
    mean: TensorDescriptor | None = None
    rstd: TensorDescriptor | None = None
    epsilon: float = EPSILON
    dx: TensorDescriptor | None = None
    dy: TensorDescriptor | None = None
    dweight: TensorDescriptor | None = None
    dbias: TensorDescriptor | None = None

    directions: ClassVar[tuple[str, ...]] = ("fwd", "bwd")
    activation: ClassVar[str] = "identity"
    """What is applied to y behind the bias, by its name; coefficients are the defaults."""
    saved: ClassVar[str] = "x"
    """What the activation's slope is taken from backward: "y", or "x", with weight and bias to compute it anew."""
    may_widen: ClassVar[bool] = False
    """Whether y may be of the dtype that is computed in, whatever x is of, as layers under autocast want it."""

    def __post_init__(self) -> None:
        check_choice(self.direction, self.directions, "direction")
        self._check_attributes()
        if self.count == 0 and self.direction != "inference":
            raise InvalidShape(
                f"x has shape {self.x.shape}: every extent that the mean is over must be at least 1"
            )
        self._settle()
        for name in self._names():
            tensor = getattr(self, name)
            if tensor is not None and tensor.shape != self.shape_of(name):
                raise InvalidShape(
                    f"{name} has shape {tensor.shape}: for x of shape {self.x.shape} it must be "
                    f"{self.shape_of(name)}"
                )
        self._check_operands()
        parameters = {o.name: o.descriptor.dtype for o in self.operands if self._is_parameter(o.name)}
        if len(set(parameters.values())) > 1:
            listed = ", ".join(f"{name} is {dtype}" for name, dtype in parameters.items())
            raise InvalidType(f"{listed}: the parameters must be of one dtype")

    def _check_attributes(self) -> None:
        """What is not a tensor."""
        epsilon = finite("epsilon", self.epsilon)
        if epsilon < 0.0:
            raise InvalidArgument(f"epsilon is {epsilon}: it must be 0 or more")
        object.__setattr__(self, "epsilon", epsilon)

    def _settle(self) -> None:
        """Defaults of gradients, and of the fields that the direction does not use."""
        if self.direction == "bwd":
            if self.rstd is None or (self.is_centred and self.mean is None):
                needed = "mean and rstd" if self.is_centred else "rstd"
                raise InvalidArgument(f"a backward problem needs {needed}, as the forward one saved them")
            for name, source in _GRADIENT_OF.items():
                if getattr(self, name) is None:
                    object.__setattr__(self, name, getattr(self, source))
            assert self.dy is not None
            packed = TensorDescriptor.packed(self.y.shape, self.dy.dtype)
            unused: dict[str, object] = {"bias": None, "epsilon": EPSILON}
            if not self._needs_y:
                unused["y"] = packed
            if self.weight is None:
                unused["dweight"] = None
        else:
            for name in self._names():
                if getattr(self, name) is not None and not self._is_used(name, self.direction):
                    raise InvalidArgument(f"{name} is given, but a forward problem has no gradients")
            unused = {}
        if not self.is_centred:
            unused |= dict.fromkeys(("mean", "bias", "dbias"))
        for name, value in unused.items():
            object.__setattr__(self, name, value)

    # ---- what the kinds differ in

    @property
    @abstractmethod
    def parameter_shape(self) -> tuple[int, ...]:
        """The shape of weight and bias."""

    @property
    @abstractmethod
    def statistic_shape(self) -> tuple[int, ...]:
        """The shape of mean and rstd."""

    @property
    @abstractmethod
    def grid(self) -> tuple[int, ...]:
        """The shape in which x is looked at."""

    @property
    @abstractmethod
    def rows(self) -> tuple[int, ...]:
        """The axes of the grid over which mean and variance are taken."""

    @property
    @abstractmethod
    def sums(self) -> tuple[int, ...]:
        """The axes of the grid along which weight and bias are the same."""

    @abstractmethod
    def on_grid(self, name: str) -> TensorDescriptor:
        """The tensor `name` with the shape of the grid, stride 0 where it is the same."""

    @property
    def is_centred(self) -> bool:
        """False where no mean is subtracted."""
        return True

    @property
    def _needs_y(self) -> bool:
        """Whether a backward problem reads y."""
        return False

    # ---- operands

    @property
    def statistic_dtype(self) -> str:
        """The dtype of mean and rstd: the one that is computed in."""
        return compute_dtype(self.x.dtype)

    @property
    def parameter_dtypes(self) -> tuple[str, ...]:
        """What weight and bias may be, the usual one first."""
        return tuple(dict.fromkeys((self.statistic_dtype, self.x.dtype)))

    @property
    def count(self) -> int:
        """Elements that share a mean."""
        return math.prod(self.grid[axis] for axis in self.rows)

    @cached_property
    def operands(self) -> tuple[Operand, ...]:
        """(x, weight, bias, y, mean, rstd) forward, (dy, x, weight, mean, rstd, dx, dweight, dbias) backward,
        without those that there are not."""
        return tuple(self._operands())

    def _operands(self) -> Iterator[Operand]:
        if self.direction == "bwd":
            yield from self._some("in", "dy", "x", "weight", "mean", "rstd")
            yield from self._some("out", "dx", "dweight", "dbias")
        else:
            yield from self._some("in", "x", "weight", "bias")
            yield from self._some("out", "y")
            yield from self._some("saved", "mean", "rstd")

    def _some(self, role: Literal["in", "out", "saved", "state"], *names: str) -> Iterator[Operand]:
        for name in names:
            tensor: TensorDescriptor | None = getattr(self, name)
            if tensor is not None:
                yield Operand(name, tensor, role, self._dtypes_of(name))

    def _names(self) -> tuple[str, ...]:
        """The fields that are tensors."""
        return ("x", "y", "dx", "dy", "weight", "bias", "mean", "rstd", "dweight", "dbias")

    def shape_of(self, name: str) -> tuple[int, ...]:
        """The shape that the tensor `name` must have."""
        if name in LIKE_X:
            return self.x.shape
        return self.statistic_shape if name in _STATISTICS else self.parameter_shape

    def _is_parameter(self, name: str) -> bool:
        return name not in LIKE_X and name not in _STATISTICS

    def _dtypes_of(self, name: str) -> tuple[str, ...] | None:
        if name in _WIDE and self.may_widen:
            return tuple(dict.fromkeys((self.x.dtype, self.statistic_dtype)))
        if name in LIKE_X:
            return None
        return self.parameter_dtypes if self._is_parameter(name) else (self.statistic_dtype,)

    @property
    def flops(self) -> int:
        """Seven operations an element forward (mean one, variance three, y three), ten backward (xhat, g and
        their sums, dx)."""
        return self.x.size * (10 if self.direction == "bwd" else 7)

    # ---- the definition

    def _define(self, *inputs: Reals) -> Any:
        """The formulas above, on the grid."""
        given: dict[str, Any] = {"weight": 1.0, "bias": 0.0, "mean": 0.0}
        for operand, array in zip(self.sources, inputs, strict=True):
            given[operand.name] = array.reshape(self.extents(operand.name))
        results = self._backward(given) if self.direction == "bwd" else self._forward(given)
        made = tuple(
            np.array(np.broadcast_to(results[o.name], self.extents(o.name))).reshape(o.descriptor.shape)
            for o in self.outputs
        )
        return made[0] if len(made) == 1 else made

    def extents(self, name: str) -> tuple[int, ...]:
        """The shape of the grid, with 1 where the tensor `name` is the same."""
        same: tuple[int, ...] = self.sums if self._is_parameter(name) else self.rows
        return tuple(1 if axis in same and name not in LIKE_X else n for axis, n in enumerate(self.grid))

    def _mean(self, array: Reals) -> Reals:
        return np.asarray(array.sum(axis=self.rows, keepdims=True) / self.count)

    def _forward(self, given: dict[str, Any]) -> dict[str, Any]:
        x = given["x"]
        mean = self._mean(x) if self.is_centred else 0.0
        variance = self._mean((x - mean) ** 2)
        rstd = 1.0 / np.sqrt(variance + self.epsilon)
        y = (x - mean) * rstd * given["weight"] + given["bias"]
        return {"y": y, "mean": mean, "rstd": rstd, "variance": variance}

    def _backward(self, given: dict[str, Any]) -> dict[str, Any]:
        dy, rstd = given["dy"], given["rstd"]
        xhat = (given["x"] - given["mean"]) * rstd
        g = dy * given["weight"]
        offset = self._mean(g) if self.is_centred else 0.0
        return {
            "dx": rstd * (g - offset - xhat * self._mean(g * xhat)),
            "dweight": (dy * xhat).sum(axis=self.sums, keepdims=True),
            "dbias": dy.sum(axis=self.sums, keepdims=True),
        }

    # ---- strings

    def _tail(self) -> list[str]:
        """The words that every kind ends in."""
        is_backward = self.direction == "bwd"
        words = [] if is_backward else [f"epsilon{self.epsilon!r}"]
        words += ["no_weight"] * (self.weight is None)
        words += ["no_bias"] * (self.is_centred and (self.dbias if is_backward else self.bias) is None)
        words += ["no_save"] * (self.direction == "fwd" and self.rstd is None)
        parameters = {o.descriptor.dtype for o in self.operands if self._is_parameter(o.name)}
        words += ["narrow"] * (not parameters <= {self.statistic_dtype})
        words += ["wide"] * any(o.name in _WIDE and o.descriptor.dtype != self.x.dtype for o in self.operands)
        return [*words, self.x.dtype, *self._layout_words()]

    @classmethod
    def describe(
        cls,
        direction: str,
        x: TensorDescriptor,
        given: Given | None = None,
        absent: Collection[str] = (),
        is_narrow: bool = False,
        layout: str = "nchw",
        is_wide: bool = False,
        **attributes: Any,
    ) -> Self:
        """The problem for x whose tensors are those `given`, and else packed in `layout`.

        `absent`: names of tensors that there are not. `is_narrow`: parameters that are not given are of x's
        dtype rather than f32. `is_wide`: y and dy that are not given are of f32 rather than x's dtype.
        `attributes`: the fields that are no tensors.
        """
        # a problem to ask for shapes, packed since x may overlap itself as its y must not; inference takes an empty
        # batch too, and no shape but x's depends on it
        shape = (1, *x.shape[1:]) if direction == "inference" else x.shape
        like = TensorDescriptor.packed(shape, x.dtype)
        plain, tensors = cls(direction="fwd", x=like, y=like, **attributes), dict(given or {})
        for name in plain._names():
            if tensors.get(name) is None and name not in absent and plain._is_used(name, direction):
                dtype = plain.statistic_dtype if is_wide and name in _WIDE else x.dtype
                if name not in LIKE_X:
                    dtype = plain.parameter_dtypes[-1 if is_narrow and plain._is_parameter(name) else 0]
                extents = x.shape if name in LIKE_X else plain.shape_of(name)
                tensors[name] = TensorDescriptor.packed(extents, dtype, layout)
        return cls(direction=direction, **(tensors | {"x": x}), **attributes)  # type: ignore[arg-type]

    def _is_used(self, name: str, direction: str) -> bool:
        """Whether a problem of that direction may have the tensor `name`."""
        return not name.startswith("d") if direction != "bwd" else name != "bias"

    @classmethod
    @abstractmethod
    def _attributes(cls, words: Words, rank: int) -> dict[str, Any]:
        """The fields that are no tensors, and not common to all kinds, for an x of `rank` dims."""

    @classmethod
    def _absent(cls, words: Words) -> set[str]:
        """The tensors that the words say there are not."""
        known = [word for word in _ABSENT if word != "no_save" or words.kind.endswith("_fwd")]
        return {name for word in known if words.flag(word) for name in _ABSENT[word]}

    @classmethod
    def _from_words(cls, words: Words) -> Self:
        direction, shape = words.kind.rpartition("_")[2], words.shape("shape")
        attributes = cls._attributes(words, len(shape))
        if direction != "bwd":
            attributes["epsilon"] = words.real("epsilon", EPSILON)
        absent = cls._absent(words)
        is_narrow, is_wide = words.flag("narrow"), cls.may_widen and words.flag("wide")
        dtype, layout = words.dtype(), words.layout(len(shape))
        packed = cls.describe(
            direction,
            TensorDescriptor.packed(shape, dtype, layout),
            None,
            absent,
            is_narrow,
            layout,
            is_wide,
            **attributes,
        )
        tensors: dict[str, Any] = {
            o.name: words.descriptor(
                o.name,
                o.descriptor.shape,
                o.descriptor.dtype,
                layout_forms(o.descriptor.shape, o.descriptor.dtype),
                layout,
            )
            for o in packed.operands
        }
        return replace(packed, **tensors)


def finite(name: str, value: float) -> float:
    """`value` as a float. Raises InvalidArgument for anything else than a finite number."""
    try:
        number = float(value)
    except (TypeError, ValueError):
        number = math.nan
    if not math.isfinite(number):
        raise InvalidArgument(f"{name} is {value!r}: it must be a finite number")
    return number

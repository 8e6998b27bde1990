"""What a random problem is: a public function, its arguments, the arrays among them, and what it must give."""

from __future__ import annotations

import reprlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

from fuzz.draw import Draw, packed

Array = np.ndarray[Any, Any]
Named = dict[str, Array]

#: unit roundoff of what numbers of a type are computed in
ROUNDOFF = {"f64": 2.0**-53}
_F32 = 2.0**-24


def roundoff(dtype: str) -> float:
    """The unit roundoff of the arithmetic on numbers of a type: float32, or float64 for f64 and wide integers."""
    return ROUNDOFF["f64"] if dtype in ("f64", "i32", "u32", "i64", "u64") else _F32


@dataclass
class Operand:
    """An array among the arguments, by the name that the oracle knows it by.

    `values` makes its numbers of a generator, the shape and the operand's flavour ("normal", "special", ...), in
    float64 or as integers; they are rounded to `dtype`. `derive` makes them of the operands before it instead.
    `strides` are in elements; None for packed. `state`: it is updated in place, and the oracle's results have one more
    at the end, what it becomes.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    strides: tuple[int, ...] | None = None
    values: Callable[[np.random.Generator, tuple[int, ...], str], Array] | None = None
    state: bool = False
    derive: Callable[[Named], Array] | None = None

    def __repr__(self) -> str:
        strides = "" if self.strides in (None, packed(self.shape)) else f" strides {self.strides}"
        return f"{self.name}[{self.dtype} {'x'.join(map(str, self.shape))}{strides}]"


@dataclass
class Result:
    """An array that the function returns. Of role "out" it is alpha * result + beta * out, "saved" ones are plain.

    `dtypes`: types that a given `out` may have beside `dtype`, which it has if it is allocated. `in_place`: the
    operand whose very memory it may be. `any_dtype`: not compared.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    dtypes: tuple[str, ...] = ()
    in_place: str | None = None
    saved: bool = False


@dataclass
class Expected:
    """What a result must be: float64 or longdouble numbers, and the absolute error that each may have.

    An infinite error says that anything goes.
    """

    value: Array
    error: Array | float = 0.0
    #: any of these instead of `value` where they are given, as for ties
    other: Array | None = None
    #: how often beta * out may be rounded: once for each term that is added to it, and for the scaling
    additions: int = 4
    #: the terms are added in the memory of the result, and each sum is rounded to its type
    adds_in_place: bool = False
    #: where the value is not finite any infinity or NaN will do: sums may pair infinities in other ways
    infinities_alike: bool = False
    #: more of the error, on targets whose tensor cores multiply what is rounded to 16 bits before
    on_tensor_cores: float = 0.0


Oracle = Callable[[Named], Sequence[Expected]]
#: looks at the results and says what is wrong with them, for what is random
Judge = Callable[[Named, Sequence[Array]], str | None]


@dataclass
class Problem:
    """One call: `function(*args, **kwargs)`, with `Operand`s in the place of arrays, also inside of lists.

    `results`: what it returns. `scales`: it takes alpha and beta, and `out`. `flavours`: the kinds of numbers that
    its inputs may be of beside "normal". `call`: what is called in place of the public function of that name.
    `nonsense`: the arguments make no sense, and only how they are refused is looked at.
    """

    function: str
    args: list[Any]
    kwargs: dict[str, Any]
    results: list[Result]
    oracle: Oracle | None = None
    judge: Judge | None = None
    scales: bool = True
    takes_out: bool = True
    flavours: tuple[str, ...] = ("normal", "whole", "special")
    settings: dict[str, Any] = field(default_factory=dict)
    call: Callable[..., Any] | None = None
    nonsense: bool = False

    def operands(self) -> list[Operand]:
        """All arrays among the arguments, each once."""
        found: dict[str, Operand] = {}
        for value in (*self.args, *self.kwargs.values()):
            for one in value if isinstance(value, (list, tuple)) else (value,):
                if isinstance(one, Operand):
                    found.setdefault(one.name, one)
        return list(found.values())

    def __str__(self) -> str:
        named = self.kwargs | ({"settings": self.settings} if self.settings else {})
        kwargs = [f"{name}={shown(value)}" for name, value in named.items()]
        results = ", ".join(f"{r.name} {r.dtype} {'x'.join(map(str, r.shape))}" for r in self.results)
        return f"{self.function}({', '.join([*map(shown, self.args), *kwargs])}) -> {results or 'anything'}"


class Fault(Exception):
    """A problem whose outcome is wrong. `kind`: "wrong", "outside", "raw" (an exception that is not the library's),
    "slow" (planning a small problem), "oracle" (a mistake in the fuzzer)."""

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(message)
        self.kind = kind


def shown(value: Any) -> str:
    """A value in a few words, whatever it is."""
    try:
        return reprlib.repr(value) if not isinstance(value, (Operand, list, tuple)) else repr(value)
    except Exception:
        return f"<{type(value).__name__}>"


class Unit(Protocol):
    """A problem that checks itself, beneath the public functions."""

    def check(self, target: Any) -> tuple[Sequence[str], str | None]:
        """What kinds of code it met, in words, and the library's refusal if there was one. Raises Fault."""


class Family(Protocol):
    """Such problems, which share code."""

    def one(self, draw: Draw) -> Unit:
        """A problem of it."""


Make = Callable[[Draw], Problem | Family]


@dataclass(frozen=True)
class Operation:
    """A family of problems under one name. `weight`: its share of a campaign; `gpu`: whether it runs on GPUs;
    `targets`: the only ones where it runs, if there are such."""

    name: str
    make: Make
    weight: int = 4
    gpu: bool = True
    functions: tuple[str, ...] = ()
    targets: tuple[str, ...] = ()

    def runs_on(self, target: str) -> bool:
        """Whether there are problems for a target."""
        return target in self.targets if self.targets else self.gpu or target == "cpu"


OPERATIONS: dict[str, Operation] = {}


def operation(
    name: str,
    weight: int = 4,
    gpu: bool = True,
    functions: Sequence[str] | None = None,
    targets: Sequence[str] = (),
) -> Callable[[Make], Make]:
    """Registers what makes problems of an operation. `functions`: the public functions that it calls, by default
    the one of its name. `targets`: the only ones where it runs."""

    def register(make: Make) -> Make:
        assert name not in OPERATIONS, name
        OPERATIONS[name] = Operation(
            name, make, weight, gpu, (name,) if functions is None else tuple(functions), tuple(targets)
        )
        return make

    return register

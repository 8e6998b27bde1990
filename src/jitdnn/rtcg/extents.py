"""Extents that are known when code runs: numbers while it is traced, and arguments of what was compiled.

An `Extent` has the value of the problem at hand, so that tracing decides by it as by any integer. Each decision is
noted as a *guard*: the code is right for all values for which every comparison comes out the same. Where an extent, or
what was computed of several, becomes part of the code, it is a load of one of the kernel's extras, which the host
computes for each problem. What asks for the number itself (a Python `range`, an unrolled loop) notes that it is equal
to it.

This is what PyTorch does with the sizes of a graph that is compiled with dynamic shapes (SymInt, guards).
"""

from __future__ import annotations

import json
import math
import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

#: an integer, the name of an extent, or (operation, operand, operand)
Term = int | str | tuple[Any, ...]

_OPERATIONS: dict[str, Callable[[int, int], int]] = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "//": operator.floordiv,
    "%": operator.mod,
    "|": operator.or_,
    "&": operator.and_,
    "^": operator.xor,
}
_COMPARISONS: dict[str, Callable[[int, int], bool]] = {
    "<": operator.lt,
    "<=": operator.le,
    "==": operator.eq,
}
Guard = tuple[str, Term, Term, bool]


def value_of(term: Any, values: Mapping[str, int]) -> int:
    """A term's value. Raises KeyError for a name or an operation that is not known."""
    if isinstance(term, int):
        return term
    if isinstance(term, str):
        return values[term]
    name, a, b = term
    return _OPERATIONS[name](value_of(a, values), value_of(b, values))


@dataclass(frozen=True)
class Variant:
    """Code that takes extents: its key in the cache, for which extents it is, and what it takes of them."""

    key: str
    guards: Sequence[Guard]
    terms: Sequence[Term]

    def takes(self, values: Mapping[str, int]) -> bool:
        """Whether every comparison comes out as it did when the code was traced."""
        return all(
            _COMPARISONS[name](value_of(a, values), value_of(b, values)) is outcome
            for name, a, b, outcome in self.guards
        )

    def integers(self, values: Mapping[str, int]) -> list[int]:
        return [value_of(term, values) for term in self.terms]

    def to_json(self) -> bytes:
        return json.dumps([self.key, list(self.guards), list(self.terms)]).encode()

    @staticmethod
    def from_json(content: bytes) -> Variant | None:
        """None for what is none, from another version of the format."""
        try:
            key, guards, terms = json.loads(content)
            variant = Variant(str(key), guards, terms)
            for name, a, b, _ in guards:
                _COMPARISONS[name]
                _check(a)
                _check(b)
            for term in terms:
                _check(term)
        except (ValueError, TypeError, KeyError):
            return None
        return variant


def _check(term: Any) -> None:
    """Raise TypeError, ValueError or KeyError for what is no term."""
    if not isinstance(term, (int, str)):
        name, a, b = term
        _OPERATIONS[name]
        _check(a)
        _check(b)


class Extents:
    """The extents of one module that is traced: their values, the guards noted so far, and what the code loads."""

    def __init__(self) -> None:
        self.values: dict[str, int] = {}
        self.guards: dict[Guard, None] = {}
        self.slots: dict[Term, int] = {}
        self.first_slot = 0  # in the argument block

    def extent(self, name: str, value: int) -> Any:
        """The `Extent` called ``name``, which stands for an int: another name with a number behind it where that one
        has another value."""
        found, count = name, 0
        while self.values.setdefault(found, value) != value:
            count += 1
            found = f"{name}'{count}"
        return Extent(self, found, value)

    def slot(self, term: Term) -> int:
        """Where in the argument block the value of a term is."""
        return self.first_slot + self.slots.setdefault(term, len(self.slots))

    def noted(self) -> tuple[list[Guard], list[Term]]:
        """The guards, and the terms that the code loads, in the order of their slots."""
        return list(self.guards), list(self.slots)

    def compare(self, name: str, a: Term, b: Term, outcome: bool) -> bool:
        self.guards[name, a, b, outcome] = None
        return outcome


class Extent:
    """An integer with a value, whose decisions are noted; see the module's text."""

    __slots__ = ("_value", "extents", "term")

    def __init__(self, extents: Extents, term: Term, value: int) -> None:
        self.extents, self.term, self._value = extents, term, value

    def __repr__(self) -> str:
        return str(self.term)

    # ---- arithmetic

    def _with(self, name: str, other: Any, is_swapped: bool = False) -> Any:
        if isinstance(other, Extent):
            term, value = other.term, other._value
        elif hasattr(other, "__index__"):
            term = value = operator.index(other)
        elif isinstance(other, float):
            a, b = (other, float(self)) if is_swapped else (float(self), other)
            return _OPERATIONS[name](a, b)  # type: ignore[arg-type]
        else:
            return NotImplemented
        if isinstance(term, int):
            if term == 0 and (name == "+" or (name == "-" and not is_swapped)):
                return self
            if name == "*" and term in (0, 1):
                return self if term else 0
            if term == 1 and not is_swapped and name in ("//", "%"):
                return self if name == "//" else 0
        operands = ((term, self.term), (value, self._value)) if is_swapped else (
            (self.term, term), (self._value, value)
        )  # fmt: skip
        if name in ("//", "%") and not isinstance(operands[0][1], int):
            self.extents.compare("==", operands[0][1], 0, operands[1][1] == 0)  # or it would raise
        return Extent(self.extents, (name, *operands[0]), _OPERATIONS[name](*operands[1]))

    def __add__(self, other: Any) -> Any:
        return self._with("+", other)

    def __radd__(self, other: Any) -> Any:
        return self._with("+", other, True)

    def __sub__(self, other: Any) -> Any:
        return self._with("-", other)

    def __rsub__(self, other: Any) -> Any:
        return self._with("-", other, True)

    def __mul__(self, other: Any) -> Any:
        return self._with("*", other)

    def __rmul__(self, other: Any) -> Any:
        return self._with("*", other, True)

    def __floordiv__(self, other: Any) -> Any:
        return self._with("//", other)

    def __rfloordiv__(self, other: Any) -> Any:
        return self._with("//", other, True)

    def __mod__(self, other: Any) -> Any:
        return self._with("%", other)

    def __rmod__(self, other: Any) -> Any:
        return self._with("%", other, True)

    def __divmod__(self, other: Any) -> Any:
        return self // other, self % other

    def __or__(self, other: Any) -> Any:
        return self._with("|", other)

    def __and__(self, other: Any) -> Any:
        return self._with("&", other)

    def __xor__(self, other: Any) -> Any:
        return self._with("^", other)

    __ror__, __rand__, __rxor__ = __or__, __and__, __xor__

    def __lshift__(self, other: Any) -> Any:
        return self * (1 << operator.index(other))

    def __rshift__(self, other: Any) -> Any:
        return self // (1 << operator.index(other))

    def __rlshift__(self, other: Any) -> Any:
        return operator.index(other) << self.__index__()

    def __rrshift__(self, other: Any) -> Any:
        return operator.index(other) >> self.__index__()

    def __pow__(self, other: Any) -> Any:
        return self.__index__() ** other

    def __rpow__(self, other: Any) -> Any:
        return other ** self.__index__()

    def __rdivmod__(self, other: Any) -> Any:
        return other // self, other % self

    def __neg__(self) -> Any:
        return self._with("-", 0, True)

    def __pos__(self) -> Any:
        return self

    def __invert__(self) -> Any:
        return -self - 1

    def __round__(self, digits: int | None = None) -> Any:
        return self if digits is None or digits >= 0 else round(self.__index__(), digits)

    def __trunc__(self) -> Any:
        return self

    __floor__ = __ceil__ = __trunc__

    def bit_length(self) -> int:
        return self.__index__().bit_length()

    def __abs__(self) -> Any:
        return self if self >= 0 else -self

    # ---- decisions

    def _compare(self, name: str, other: Any, is_swapped: bool = False) -> Any:
        if isinstance(other, Extent):
            term, value = other.term, other._value
        elif hasattr(other, "__index__"):
            term = value = operator.index(other)
        elif isinstance(other, float) and math.isfinite(other) and name != "==":
            # the integers on either side of a limit that is none
            term = value = (math.ceil if (name == "<") != is_swapped else math.floor)(other)
        else:
            return NotImplemented
        if term == self.term:
            return name != "<"
        a, b = ((term, value), (self.term, self._value)) if is_swapped else (
            (self.term, self._value), (term, value)
        )  # fmt: skip
        return self.extents.compare(name, a[0], b[0], _COMPARISONS[name](a[1], b[1]))

    def __lt__(self, other: Any) -> Any:
        return self._compare("<", other)

    def __le__(self, other: Any) -> Any:
        return self._compare("<=", other)

    def __gt__(self, other: Any) -> Any:
        return self._compare("<", other, True)

    def __ge__(self, other: Any) -> Any:
        return self._compare("<=", other, True)

    def __eq__(self, other: object) -> Any:
        if isinstance(other, Extent) and other.extents is not self.extents:
            return False  # of another module: memories of functions must not mix them up
        return self._compare("==", other)

    def __hash__(self) -> int:
        return hash((id(self.extents), self.term))

    def __bool__(self) -> bool:
        return not self._compare("==", 0)

    def __index__(self) -> int:
        """The number, which the code then is for."""
        self.extents.compare("==", self.term, self._value, True)
        return self._value

    __int__ = __index__

    def __float__(self) -> float:
        return float(self.__index__())

    def __truediv__(self, other: Any) -> float:
        return self.__index__() / float(other)

    def __rtruediv__(self, other: Any) -> float:
        return float(other) / self.__index__()

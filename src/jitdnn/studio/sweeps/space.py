"""What a sweep varies, and within which bounds.

    rate: 1e-4 to 1e-1 log
    batch: 32, 64, 128
    hidden: 16 to 256 step 16

A name is an option of a training, or a variable of the net, which has `{{hidden}}` where its value goes.
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from jitdnn.errors import InvalidArgument, ParseError

_MOST_DIMENSIONS = 20
_MOST_VALUES = 1_000
_VARIABLE = re.compile(r"\{\{\s*(\w+)\s*\}\}")
_NUMBER = r"[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?"
_RANGE = re.compile(rf"({_NUMBER})\s+to\s+({_NUMBER})(?:\s+(log)|\s+step\s+({_NUMBER}))?")

Value = int | float | str


@dataclass(frozen=True)
class Choice:
    """One of some values."""

    values: tuple[Value, ...]

    def grid(self) -> tuple[Value, ...]:
        """All values."""
        return self.values


@dataclass(frozen=True)
class Range:
    """Numbers from `low` to `high`, whole ones if both are; on a logarithmic scale, or in steps."""

    low: float
    high: float
    log: bool = False
    step: float | None = None

    @property
    def is_whole(self) -> bool:
        """Whether its values are whole numbers."""
        ends = (self.low, self.high, 1 if self.step is None else self.step)
        return all(isinstance(value, int) for value in ends)

    def grid(self) -> tuple[Value, ...]:
        """The values that its steps reach. Raises InvalidArgument where there are no steps, or too many."""
        step = self.step if self.step is not None else 1 if self.is_whole and not self.log else None
        if step is None:
            raise InvalidArgument("a grid needs steps, or values one by one: a range alone has no end")
        count = math.floor((self.high - self.low) / step + 1e-9) + 1
        if count > _MOST_VALUES:
            raise InvalidArgument(f"{count:,} values of one option: at most {_MOST_VALUES:,} make a grid")
        return tuple(self.low + k * step for k in range(count))


@dataclass(frozen=True)
class Space:
    """What varies, by name."""

    dimensions: Mapping[str, Choice | Range]

    def grid(self) -> Iterator[dict[str, Value]]:
        """All combinations, the last name varying the fastest."""
        for values in itertools.product(*(each.grid() for each in self.dimensions.values())):
            yield dict(zip(self.dimensions, values, strict=True))

    def grid_size(self) -> int:
        """How many combinations `grid` has."""
        return math.prod(len(each.grid()) for each in self.dimensions.values())

    def first(self) -> dict[str, Value]:
        """Some values within the space, to check a net with."""
        return {
            name: each.values[0] if isinstance(each, Choice) else each.low
            for name, each in self.dimensions.items()
        }

    def plain(self) -> dict[str, Any]:
        """The space as JSON values, which `of` reads."""
        return {name: asdict(each) for name, each in self.dimensions.items()}

    @classmethod
    def of(cls, values: Mapping[str, Mapping[str, Any]]) -> Space:
        """Read {"rate": {"low": 1e-4, "high": 0.1, "log": true}, "batch": {"values": [32, 64]}}.

        Raises InvalidArgument, naming what is wrong.
        """
        if not values or len(values) > _MOST_DIMENSIONS:
            raise InvalidArgument(f"{len(values)} options vary: give 1 to {_MOST_DIMENSIONS}")
        return cls({name: _dimension(name, given) for name, given in values.items()})


def _dimension(name: str, given: Mapping[str, Any]) -> Choice | Range:
    if not re.fullmatch(r"[A-Za-z_]\w{0,59}", name):
        raise InvalidArgument(f"{name[:60]!r} is no name of an option or a variable")
    if "values" in given:
        values = tuple(given["values"])
        if not 1 <= len(values) <= _MOST_VALUES or len(set(values)) != len(values):
            raise InvalidArgument(f"{name} has {len(values)} values: give 1 to {_MOST_VALUES:,}, each once")
        if not all(isinstance(value, int | float | str) and value == value for value in values):
            raise InvalidArgument(f"{name} has values that are neither numbers nor text")
        return Choice(values)
    try:
        found = Range(given["low"], given["high"], bool(given.get("log", False)), given.get("step"))
    except KeyError as error:
        raise InvalidArgument(f"{name} has no {error}: give values, or low and high") from None
    ends = (found.low, found.high, 1 if found.step is None else found.step)
    if not all(isinstance(end, int | float) and math.isfinite(end) for end in ends):
        raise InvalidArgument(f"{name} goes from {found.low!r} to {found.high!r}: give finite numbers")
    if not found.low < found.high:
        raise InvalidArgument(f"{name} goes from {found.low:g} to {found.high:g}: the second must be greater")
    if found.log and (found.low <= 0 or found.step is not None):
        raise InvalidArgument(f"{name} is on a logarithmic scale: it starts above 0, and has no steps")
    if found.step is not None and not 0 < found.step <= found.high - found.low:
        raise InvalidArgument(f"{name} has steps of {found.step:g}, which do not fit its range")
    return found


def parse_space(text: str) -> Space:
    """Read the lines of a form, as at the top. Raises ParseError with the line."""
    found: dict[str, dict[str, Any]] = {}
    for number, line in enumerate(text.splitlines(), 1):
        content = line.partition("#")[0].strip()
        if not content:
            continue
        name, colon, said = (part.strip() for part in content.partition(":"))
        if not colon or not said:
            raise ParseError("say NAME: VALUE, VALUE or NAME: LOW to HIGH", text, number)
        if name in found:
            raise ParseError(f"{name} is there twice", text, number)
        if match := _RANGE.fullmatch(said):
            low, high, log, step = match.groups()
            found[name] = {"low": _number(low), "high": _number(high), "log": bool(log)}
            if step:
                found[name]["step"] = _number(step)
        else:
            found[name] = {"values": [_number(part.strip()) for part in said.split(",") if part.strip()]}
        try:
            _dimension(name, found[name])
        except InvalidArgument as error:
            raise ParseError(str(error), text, number) from None
    return Space.of(found)


def _number(text: str) -> Value:
    if re.fullmatch(r"[-+]?\d+", text):
        return int(text)
    return float(text) if re.fullmatch(_NUMBER, text) else text


def variables(text: str) -> set[str]:
    """The names of the variables in a net's text."""
    return set(_VARIABLE.findall(text))


def filled(text: str, values: Mapping[str, Value]) -> str:
    """A net's text with values for its variables. Raises InvalidArgument for one that has none."""

    def put(match: re.Match[str]) -> str:
        if match[1] not in values:
            line = text.count("\n", 0, match.start()) + 1
            raise InvalidArgument(
                f"line {line} of the net has the variable {match[1]}, which the sweep gives no value"
            )
        return str(values[match[1]])

    return _VARIABLE.sub(put, text)

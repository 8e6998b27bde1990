"""Descriptors as objects: made empty, set, read, destroyed."""

from __future__ import annotations

from enum import IntEnum
from typing import Any, Generic, TypeVar

from jitdnn.arguments import integer_number, integer_numbers, real_number, shown
from jitdnn.errors import InvalidArgument
from jitdnn.frameworks.cudnn_api.status import BadParam

Value = TypeVar("Value")
Kind = TypeVar("Kind", bound="Descriptor[Any]")
Choice = TypeVar("Choice", bound=IntEnum)

#: the largest `int` of C
MOST = 2**31 - 1
_MOST_BYTES = 2**63 - 1

_MOST_ENTRIES = 1 << 24


class Descriptor(Generic[Value]):
    """What a `cudnnCreate...Descriptor` gives: `value` is None until it is set."""

    __slots__ = ("__weakref__", "is_destroyed", "value")

    def __init__(self) -> None:
        self.value: Value | None = None
        self.is_destroyed = False

    def __repr__(self) -> str:
        state = "destroyed" if self.is_destroyed else "not set" if self.value is None else repr(self.value)
        return f"<{type(self).__name__} {state}>"


def alive(given: Any, kind: type[Kind], name: str) -> Kind:
    """A descriptor of this kind that was not destroyed. Raises BadParam."""
    if not isinstance(given, kind):
        raise BadParam(f"{name} is {shown(given)}: it must be a {kind.__name__}")
    if given.is_destroyed:
        raise BadParam(f"{name} is destroyed: create another one")
    return given


def value_of(given: Any, kind: type[Descriptor[Value]], name: str) -> Value:
    """What a descriptor was set to. Raises BadParam."""
    value = alive(given, kind, name).value
    if value is None:
        raise BadParam(f"{name} is not set: call the function that sets a {kind.__name__} first")
    return value


def destroy(given: Any, kind: type[Descriptor[Any]], name: str) -> None:
    """Destroy a descriptor; None does nothing, as in cuDNN."""
    if given is None:
        return
    alive(given, kind, name).is_destroyed = True


def choice(kind: type[Choice], given: Any, name: str) -> Choice:
    """A member of an enumeration, or its number. Raises BadParam."""
    try:
        return kind(integer_number(given, name))
    except (ValueError, InvalidArgument):
        known = ", ".join(f"{member.name} ({int(member)})" for member in kind)
        raise BadParam(f"{name} is {shown(given)}: it must be one of {known}") from None


def number(given: Any, name: str, least: int = 0, most: int = MOST) -> int:
    """An integer of C. Raises InvalidArgument."""
    return integer_number(given, name, least, most)


def byte_count(given: Any, name: str) -> int:
    """How many bytes the caller says that there are. Raises InvalidArgument."""
    return integer_number(given, name, 0, _MOST_BYTES)


def real(given: Any, name: str, least: float = float("-inf"), most: float = float("inf")) -> float:
    """A real number. Raises InvalidArgument."""
    return real_number(given, name, least, most)


def blend(alpha: Any, beta: Any) -> dict[str, Any]:
    """Both factors of a call, as the library's functions take them. Raises InvalidArgument."""
    return {"alpha": real(alpha, "alpha"), "beta": real(beta, "beta")}


def several(given: Any, name: str, count: int, least: int = 0, most: int = MOST) -> tuple[int, ...]:
    """The first `count` integers of an array. Raises InvalidArgument."""
    found = integer_numbers(given, name, least, most, _MOST_ENTRIES)
    if len(found) < count:
        raise BadParam(f"{name} has {len(found)} numbers: {count} are needed")
    return found[:count]

"""Typed messages: what a protocol-buffer message is to a text file, and no more.

A message class lists its fields as class attributes (`pad = repeated(uint32())`). Reading an absent field
gives its default, `has` tells absent from set, and every assignment is checked. Two messages are equal when
their set fields are; where in a file they stood does not count.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any, ClassVar, Generic, NamedTuple, Self, TypeVar, cast, overload

from jitdnn.errors import InvalidArgument, InvalidType

# the least magnitude that rounds to infinity in single precision: half a unit beyond its largest number
_SINGLE_OVERFLOW = 2**128 - 2**103

T = TypeVar("T")
M = TypeVar("M", bound="Message")


class Position(NamedTuple):
    """A place in a text; both numbers count from 1. `file` is where the text is from, "" if nobody said it."""

    line: int
    column: int
    file: str = ""


class Field(Generic[T]):
    """One field: its kind, its default, and the check that every value goes through.

    `kind` is "integer", "real", "boolean", "string", "enum" or "message"; `values` maps the names of an enum
    to their numbers; `message` is the class of a sub-message; `number` is the field's in binary files, None for one
    that text files alone have.
    """

    def __init__(
        self,
        kind: str,
        default: T,
        check: Callable[[object], object],
        *,
        is_repeated: bool = False,
        values: Mapping[str, int] | None = None,
        message: type[Message] | None = None,
        number: int | None = None,
    ) -> None:
        self.kind = kind
        self.default = default
        self.check = check
        self.is_repeated = is_repeated
        self.values = dict(values or {})
        self.message = message
        self.number = number
        self.name = ""

    def __set_name__(self, owner: type[Message], name: str) -> None:
        self.name = name

    @overload
    def __get__(self, instance: None, owner: type[Message]) -> Field[T]: ...

    @overload
    def __get__(self, instance: Message, owner: type[Message]) -> T: ...

    def __get__(self, instance: Message | None, owner: type[Message]) -> Field[T] | T:
        if instance is None:
            return self
        values = instance._values
        if self.name in values:
            return cast(T, values[self.name])
        if self.is_repeated:
            empty: list[object] = []
            return cast(T, empty if instance._is_frozen else values.setdefault(self.name, empty))
        if self.message is not None:
            absent = self.message()
            absent._is_frozen = True  # a write into an absent sub-message would be lost
            return cast(T, absent)
        return self.default

    def __set__(self, instance: Message, value: T) -> None:
        if instance._is_frozen:
            raise InvalidArgument(
                f"{type(instance).__name__} is absent here, so {self.name} cannot be set in it: "
                "assign a new message to the field that holds it first"
            )
        if self.is_repeated:
            if not isinstance(value, list):
                raise InvalidType(f"{self.name} is repeated: give a list, not {type(value).__name__}")
            instance._values[self.name] = [self.checked(item) for item in value]
        else:
            instance._values[self.name] = self.checked(value)

    def checked(self, value: object) -> object:
        """Return one value as it is stored; InvalidArgument or InvalidType names the field and the value."""
        try:
            return self.check(value)
        except (InvalidArgument, InvalidType) as error:
            raise type(error)(f"{self.name}: {error}") from None


class Message:
    """Base of all messages. Keyword arguments set fields."""

    fields: ClassVar[dict[str, Field[Any]]] = {}
    numbers: ClassVar[dict[str, int]] = {}  # of the fields that binary files have
    _order: ClassVar[dict[str, int]] = {}  # of the declaration

    def __init__(self, **values: object) -> None:
        self._values: dict[str, Any] = {}
        self._is_frozen = False
        self.position: Position | None = None
        self.positions: dict[str, Position] = {}
        for name, value in values.items():
            if name not in self.fields:
                raise InvalidArgument(f"{type(self).__name__} has no field {name!r}")
            setattr(self, name, value)

    def __init_subclass__(cls, inherited: Mapping[str, int] | None = None) -> None:
        """`inherited`: numbers of inherited fields, in the place of those that they have in the base."""
        own = {name: value for name, value in vars(cls).items() if isinstance(value, Field)}
        others: dict[str, Field[Any]] = {}
        for base in reversed(cls.__mro__[1:]):
            if base is not Message and issubclass(base, Message):
                others.update(base.fields)
        cls.fields = own | others
        numbered = cls.fields if inherited is None else own
        cls.numbers = {name: field.number for name, field in numbered.items() if field.number is not None}
        cls.numbers |= inherited or {}
        cls._order = {name: number for number, name in enumerate(cls.fields)}

    def has(self, name: str) -> bool:
        """Tell whether the field is set (a repeated one: not empty)."""
        return _is_set(self._values.get(name))

    def clear(self, name: str) -> None:
        """Make the field absent."""
        self._values.pop(name, None)

    def present(self) -> Iterator[tuple[Field[Any], Any]]:
        """Yield each set field with its value, in the order of the declaration."""
        # a message has dozens of fields, of which a few are set: nets are built by copies of copies
        for name in sorted(self._values, key=self._order.__getitem__):
            if _is_set(value := self._values.get(name)):
                yield self.fields[name], value

    def place(self, name: str | None = None) -> Position | None:
        """Return where the message, or one of its fields, stands in its text; None when it did not come from one."""
        return self.positions.get(name, self.position) if name else self.position

    def where(self, name: str | None = None) -> str:
        """Return " (line N)" or " (line N of FILE)" for the message or one of its fields, "" when it did not come from
        a text."""
        position = self.place(name)
        if position is None:
            return ""
        return f" (line {position.line} of {position.file})" if position.file else f" (line {position.line})"

    def copy(self) -> Self:
        """Return a deep copy, positions included."""
        twin = type(self)()
        twin.position = self.position
        twin.positions = dict(self.positions)
        for name, value in self._values.items():
            if _is_set(value):
                twin._values[name] = [*map(_copied, value)] if isinstance(value, list) else _copied(value)
        return twin

    def merge(self, other: Self) -> None:
        """Set what `other` sets: scalars are replaced, lists extended, sub-messages merged."""
        for field, value in other.present():
            if field.is_repeated:
                getattr(self, field.name).extend(_copied(item) for item in value)
            elif isinstance(value, Message) and self.has(field.name):
                self._values[field.name].merge(value)
            else:
                self._values[field.name] = _copied(value)

    def __eq__(self, other: object) -> bool:
        if type(other) is not type(self):
            return NotImplemented
        ours, theirs = (
            {name: value for name, value in each._values.items() if _is_set(value)} for each in (self, other)
        )
        return ours == theirs

    __hash__ = None  # type: ignore[assignment]

    def __str__(self) -> str:
        """The text of the message, as files have it."""
        from jitdnn.caffe.prototxt import to_text  # which is built on this module

        return to_text(self)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(f'{f.name}={v!r}' for f, v in self.present())})"


def _is_set(value: object) -> bool:
    return bool(value) if isinstance(value, list) else value is not None


def _copied(value: Any) -> Any:
    return value.copy() if isinstance(value, Message) else value


def _integer(low: int, high: int) -> Callable[[object], object]:
    def check(value: object) -> object:
        if isinstance(value, bool) or not isinstance(value, int):
            raise InvalidType(f"an integer is needed, not {value!r}")
        if not low <= value <= high:
            raise InvalidArgument(f"{value} is outside of {low} .. {high}")
        return value

    return check


def _real(value: object) -> object:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise InvalidType(f"a number is needed, not {value!r}")
    # a float's range is single precision's: beyond it there is infinity, as protocol buffers read such a text
    return math.copysign(math.inf, value) if abs(value) >= _SINGLE_OVERFLOW else float(value)


def _boolean(value: object) -> object:
    if not isinstance(value, bool):
        raise InvalidType(f"true or false is needed, not {value!r}")
    return value


def _string(value: object) -> object:
    if not isinstance(value, str):
        raise InvalidType(f"a string is needed, not {value!r}")
    return value


def int32(default: int = 0, *, number: int | None = None) -> Field[int]:
    """Declare a signed 32-bit integer."""
    return Field("integer", default, _integer(-(2**31), 2**31 - 1), number=number)


def int64(default: int = 0, *, number: int | None = None) -> Field[int]:
    """Declare a signed 64-bit integer."""
    return Field("integer", default, _integer(-(2**63), 2**63 - 1), number=number)


def uint32(default: int = 0, *, number: int | None = None) -> Field[int]:
    """Declare an unsigned 32-bit integer."""
    return Field("integer", default, _integer(0, 2**32 - 1), number=number)


def real(default: float = 0.0, *, number: int | None = None) -> Field[float]:
    """Declare a float. It is kept in double precision, so that it prints as it was written; beyond single
    precision's range it is infinite."""
    return Field("real", default, _real, number=number)


def boolean(default: bool = False, *, number: int | None = None) -> Field[bool]:
    """Declare a truth value."""
    return Field("boolean", default, _boolean, number=number)


def string(default: str = "", *, number: int | None = None) -> Field[str]:
    """Declare a string."""
    return Field("string", default, _string, number=number)


def enum(values: Mapping[str, int], default: str, *, number: int | None = None) -> Field[str]:
    """Declare an enumeration: its values are names, which a text may also give as their numbers."""

    def check(value: object) -> object:
        if value not in values:
            raise InvalidArgument(f"{value!r} is not one of {', '.join(values)}")
        return value

    return Field("enum", default, check, values=values, number=number)


def sub(message: type[M], *, number: int | None = None) -> Field[M]:
    """Declare a sub-message."""

    def check(value: object) -> object:
        if not isinstance(value, message):
            raise InvalidType(f"a {message.__name__} is needed, not {type(value).__name__}")
        return value

    return Field("message", cast(M, None), check, message=message, number=number)


def repeated(field: Field[T], *, number: int | None = None) -> Field[list[T]]:
    """Declare a list of what `field` holds one of."""
    return Field(
        field.kind,
        cast("list[T]", None),
        field.check,
        is_repeated=True,
        values=field.values,
        message=field.message,
        number=number,
    )

"""The exceptions of the library. Messages name the constraint that failed, the values, and what would do."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Protocol, Self


class Place(Protocol):
    """What knows where in a text it stands: a message's position, or an error."""

    @property
    def line(self) -> int | None: ...

    @property
    def file(self) -> str: ...


class JitdnnError(Exception):
    """Base of everything that the library raises on purpose.

    `line`, which counts from 1, and `file` say where in a text that is wrong what the message says; None and "" where
    there is no such place, or nobody knows it. An error that tells of several has them in `problems`, each with its
    own place; its own is that of the first one that has any.
    """

    line: int | None = None
    file: str = ""
    problems: tuple[JitdnnError, ...] = ()

    def at(self, place: Place | None) -> Self:
        """Say where that is, the place of a message or of another error; None leaves it as it is."""
        if place is not None and place.line is not None:
            self.line, self.file = place.line, place.file
        return self

    def of(self, problems: Sequence[JitdnnError]) -> Self:
        """Tell of several errors, one of which may tell of several itself."""
        self.problems = tuple(each for problem in problems for each in problem.problems or (problem,))
        return self.at(next((each for each in self.problems if each.line is not None), None))


class InvalidArgument(JitdnnError, ValueError):
    """A value that is outside of what the function accepts."""


class InvalidShape(InvalidArgument):
    """Extents or strides that do not fit each other or the operation."""


class InvalidType(JitdnnError, TypeError):
    """A dtype that is not supported here, or an object that cannot be borrowed as an array."""


class ParseError(InvalidArgument):
    """Text that does not parse: a problem string, a prototxt, a size in bytes.

    `text` is the whole input, `line` and `column` count from 1 and point at the first character that is
    wrong.
    """

    line: int

    def __init__(self, message: str, text: str = "", line: int = 1, column: int = 1) -> None:
        super().__init__(message)
        self.message = message
        self.text = text
        self.line = line
        self.column = column

    def __str__(self) -> str:
        return f"line {self.line}, column {self.column}: {self.message}"

    def __reduce__(self) -> tuple[type[ParseError], tuple[str, str, int, int], dict[str, Any]]:
        return type(self), (self.message, self.text, self.line, self.column), self.__dict__


class NotSupported(JitdnnError):
    """No algorithm takes the request. `reasons` maps the name of each algorithm to why it refuses."""

    def __init__(self, message: str, reasons: Mapping[str, str] | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.reasons: dict[str, str] = dict(reasons or {})

    def __str__(self) -> str:
        return "\n".join([self.message, *(f"  {name}: {reason}" for name, reason in self.reasons.items())])

    def __reduce__(self) -> tuple[type[NotSupported], tuple[str, dict[str, str]], dict[str, Any]]:
        return type(self), (self.message, self.reasons), self.__dict__


class CompileError(JitdnnError):
    """Generated code that the compiler does not accept, or a traced function that cannot be traced."""


class StoreError(JitdnnError):
    """The tuning store or the code cache cannot do what was asked of it."""


class DeviceError(JitdnnError):
    """A device that is absent, that failed, or that is not the one where an array lives."""


class SnapshotError(JitdnnError):
    """A snapshot of a training run that is damaged or belongs to another net or solver."""


class ProcessGroupError(JitdnnError):
    """Processes that work together and cannot go on: one has gone, failed, or does not answer. `rank` is its number,
    None where nobody knows it.
    """

    def __init__(self, message: str, rank: int | None = None) -> None:
        super().__init__(message)
        self.rank = rank

    def __reduce__(self) -> tuple[type[ProcessGroupError], tuple[str, int | None], dict[str, Any]]:
        return type(self), (str(self), self.rank), self.__dict__


@contextmanager
def needed(message: str) -> Iterator[None]:
    """A block of imports of a package that not everybody has. Raises NotSupported, with the message, without it."""
    try:
        yield
    except ImportError:
        raise NotSupported(message) from None

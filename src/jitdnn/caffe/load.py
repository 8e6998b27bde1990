"""Text files to messages."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

from jitdnn import limits
from jitdnn.caffe.message import Message
from jitdnn.caffe.prototxt import parse
from jitdnn.errors import InvalidArgument, InvalidShape, NotSupported, ParseError

M = TypeVar("M", bound=Message)


def parse_file(path: Path, message: type[M]) -> M:
    """Parse a file. ParseError says the line, the column and the file; InvalidArgument a file that is no
    text.
    """
    text = read_text(path)
    try:
        return parse(text, message, str(path))
    except ParseError as error:
        said = ParseError(f"{error.message} (in {path})", text, error.line, error.column)
        raise said.of(error.problems) from None


def read_text(path: Path) -> str:
    """Read a file. Raises InvalidArgument for one that is no text or too long."""
    try:
        return _read_bytes(path).decode("utf-8")
    except UnicodeDecodeError as error:
        raise InvalidArgument(f"{path} cannot be read as text: {error}") from error


def read_text_leniently(path: Path) -> tuple[str, str]:
    """Read a file that may be in another encoding; return what had to be assumed, too, "" if nothing."""
    content = _read_bytes(path)
    try:
        return content.decode("utf-8"), ""
    except UnicodeDecodeError:
        return content.decode("cp1252", "replace"), "the file is no UTF-8: read as Windows-1252"


def _read_bytes(path: Path) -> bytes:
    try:
        return limits.read_bounded(path, limits.PROTOTXT_BYTES, "a net or solver as text")
    except OSError as error:
        raise InvalidArgument(f"{path} cannot be read as text: {error}") from error


@contextmanager
def naming(path: Path | None) -> Iterator[None]:
    """Have errors about what the file says name it, if they do not."""
    try:
        yield
    except (InvalidArgument, NotSupported) as error:
        if path is None or str(path) in str(error) or type(error) not in _NAMED:
            raise
        said = type(error)(f"{path}: {error}").of(error.problems).at(error)
        said.file = said.file or str(path)
        raise said from error


_NAMED = (InvalidArgument, InvalidShape, NotSupported)


def is_message(text: str, message: type[Message]) -> bool:
    """Tell whether a text parses as the message, and says something."""
    try:
        return next(parse(text, message).present(), None) is not None
    except InvalidArgument:
        return False


def is_text(source: str) -> bool:
    """Tell prototxt text from the name of a file: text has a line break, a brace or a quotation mark."""
    return any(character in source for character in '\n{"')

"""Text files to messages."""

from __future__ import annotations

from pathlib import Path
from typing import TypeVar

from jitdnn import limits
from jitdnn.caffe.message import Message
from jitdnn.caffe.prototxt import parse
from jitdnn.errors import InvalidArgument, ParseError

M = TypeVar("M", bound=Message)


def parse_file(path: Path, message: type[M]) -> M:
    """Parse a file. ParseError says the line, the column and the file; InvalidArgument a file that is no
    text.
    """
    try:
        text = limits.read_bounded(path, limits.PROTOTXT_BYTES, "a net or solver as text").decode("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidArgument(f"{path} cannot be read as text: {error}") from error
    try:
        return parse(text, message)
    except ParseError as error:
        raise ParseError(f"{error.message} (in {path})", text, error.line, error.column) from None


def is_message(text: str, message: type[Message]) -> bool:
    """Tell whether a text parses as the message, and says something."""
    try:
        return next(parse(text, message).present(), None) is not None
    except InvalidArgument:
        return False


def is_text(source: str) -> bool:
    """Tell prototxt text from the name of a file: text has a line break, a brace or a quotation mark."""
    return any(character in source for character in '\n{"')

"""What was changed in a text on its way to a net that can be trained, by line."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from jitdnn.caffe.message import Message


class Change(NamedTuple):
    """What was changed, and in which line of the text, None where it has none."""

    line: int | None
    what: str


class Changes:
    """A list of changes while they are made."""

    def __init__(self, found: Iterable[tuple[int, str]] = ()) -> None:
        self.found = [Change(line, what) for line, what in found]

    def add(self, message: Message, what: str) -> None:
        """Note a change at the line where a message of the text begins."""
        self.found.append(Change(message.position.line if message.position else None, what))

    def listed(self) -> list[dict[str, object]]:
        """The changes as JSON's types, those with a line first, in its order."""
        ordered = sorted(self.found, key=lambda change: (change.line is None, change.line or 0))
        return [change._asdict() for change in ordered]

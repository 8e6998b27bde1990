"""What is found in a source before anything is made: the entries, their labels, classes, parts and groups."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

from jitdnn.studio.data.dataset import Array


class Entry(NamedTuple):
    """One image or row to be. `key` is for its reader; `label` is a class's number (-1: not known), numbers, the
    name of a mask's file, or boxes; `part` is where its owner has put it, None where that is left to us; entries
    of one `group` stay together.
    """

    name: str
    key: Any
    label: Any
    part: str | None = None
    group: str = ""


class Reader(Protocol):
    """Makes arrays of entries; it is pickled for worker processes."""

    #: whether worker processes help: False where all is in memory already
    is_parallel: bool
    shape: tuple[int, ...]
    dtype: str
    label_shape: tuple[int, ...]
    label_dtype: str

    def read(self, entry: Entry) -> tuple[Array, Any]:
        """The array of `shape` and the label of `label_shape`. Raises InvalidArgument, naming what is wrong."""


@dataclass
class Listing:
    """What a source holds. `skipped` are files that were left out, and why; `notes` is what its owner should know."""

    task: str
    entries: list[Entry]
    classes: list[str]
    reader: Reader
    kind: str = ""
    notes: list[str] = field(default_factory=list)
    skipped: list[tuple[str, str]] = field(default_factory=list)
    columns: list[str] = field(default_factory=list)

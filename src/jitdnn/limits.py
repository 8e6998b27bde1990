"""How much one file or text may ask for: one constant each, and what reads within them.

Each is far above what real nets, models and lists come to, and low enough that what is read within it takes seconds
and memory that a small machine has. How many bytes of arrays a file may unpack to is the setting `load_limit`.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import Final, NamedTuple

from jitdnn.errors import InvalidArgument

PROTOTXT_BYTES: Final = 64 << 20
PROTOTXT_DEPTH: Final = 100
PROTOTXT_VALUES: Final = 1_000_000
PROTOTXT_STRING: Final = 65_536
NET_LAYERS: Final = 10_000
WIRE_FIELDS: Final = 2_000_000
LIST_BYTES: Final = 512 << 20
LIST_LINES: Final = 20_000_000
FORMULA_CHARACTERS: Final = 65_536
FORMULA_DEPTH: Final = 100
FORMULA_STEPS: Final = 1_000
PROBLEM_CHARACTERS: Final = 10_000
PROBLEM_DIGITS: Final = 30
SUITE_BYTES: Final = 64 << 20
EXPORT_BYTES: Final = 256 << 20
EXPORT_LINE: Final = 65_536
CODE_HEADER: Final = 256 << 20
CODE_ENTRIES: Final = 1_000_000
CODE_BYTES: Final = 256 << 20
ARCHIVE_MEMBERS: Final = 100_000
ARRAY_HEADER: Final = 10_000
ARRAY_AXES: Final = 32
SNAPSHOT_HEADER: Final = 256 << 20
IMAGE_BYTES: Final = 256 << 20
IMAGE_PIXELS: Final = 1 << 26
ONNX_BYTES: Final = (1 << 31) - 1
ONNX_NODES: Final = 200_000
ONNX_DEPTH: Final = 32


class Limit(NamedTuple):
    """A row of the documentation: the name of a constant above, what it bounds, and what a breach raises."""

    name: str
    bounds: str
    error: str


TABLE: Final = (
    Limit("PROTOTXT_BYTES", "bytes of a net's or solver's file, or characters of such text", "ParseError"),
    Limit("PROTOTXT_DEPTH", "nesting depth of messages", "ParseError"),
    Limit("PROTOTXT_VALUES", "fields and entries of lists in a file", "ParseError"),
    Limit("PROTOTXT_STRING", "characters of a string, name or number in a file", "ParseError"),
    Limit("NET_LAYERS", "layers of a net", "InvalidArgument"),
    Limit(
        "WIRE_FIELDS",
        "fields and list entries in a binary file of Caffe or a record of a database, without the numbers of blobs",
        "InvalidArgument",
    ),
    Limit("LIST_BYTES", "bytes of a list of images, windows or HDF5 files", "InvalidArgument"),
    Limit("LIST_LINES", "lines of such a list", "InvalidArgument"),
    Limit("FORMULA_CHARACTERS", "characters of a formula", "ParseError"),
    Limit("FORMULA_DEPTH", "nesting depth of parentheses, signs and exponents of a formula", "ParseError"),
    Limit("FORMULA_STEPS", "inputs, constants and operations of a formula", "ParseError"),
    Limit("PROBLEM_CHARACTERS", "characters of a problem string", "ParseError"),
    Limit("PROBLEM_DIGITS", "digits of a number in it", "ParseError"),
    Limit("SUITE_BYTES", "bytes of a suite, or of rows of the benchmark", "InvalidArgument"),
    Limit("EXPORT_BYTES", "bytes of an export of the tuning store", "StoreError"),
    Limit("EXPORT_LINE", "characters of a line of it", "StoreError"),
    Limit("CODE_HEADER", "bytes of the header of a file of compiled code", "StoreError"),
    Limit("CODE_ENTRIES", "modules in it", "StoreError"),
    Limit("CODE_BYTES", "bytes of one of them", "StoreError"),
    Limit("ARCHIVE_MEMBERS", "arrays in an .npz file or a snapshot", "InvalidArgument, SnapshotError"),
    Limit(
        "ARRAY_HEADER", "bytes of the header text with dtype and shape of a NumPy array", "InvalidArgument"
    ),
    Limit("ARRAY_AXES", "axes of such an array", "InvalidArgument"),
    Limit("SNAPSHOT_HEADER", "bytes of a snapshot's header", "SnapshotError"),
    Limit("IMAGE_BYTES", "bytes of an image file", "InvalidArgument"),
    Limit("IMAGE_PIXELS", "pixels of an image, by its header, before it is decoded", "InvalidArgument"),
    Limit("ONNX_BYTES", "bytes of a model's file, without its external data", "InvalidArgument"),
    Limit("ONNX_NODES", "nodes of a model with its functions expanded", "InvalidArgument"),
    Limit("ONNX_DEPTH", "nesting depth of graphs inside nodes, and of function calls", "InvalidArgument"),
)


def table_markdown() -> str:
    """Return the table of limits as Markdown, for the documentation."""
    rows = ["| `jitdnn.limits` | at most | of what | beyond it |", "| --- | --: | --- | --- |"]
    for row in TABLE:
        errors = ", ".join(f"`{name}`" for name in row.error.split(", "))
        rows.append(f"| `{row.name}` | {globals()[row.name]:,} | {row.bounds} | {errors} |")
    return "\n".join(rows) + "\n"


def read_bounded(path: Path, most: int, what: str) -> bytes:
    """The content of a file of at most `most` bytes; `what` names it in the message.

    Raises InvalidArgument for a larger one, of which no more than that is read, and OSError.
    """
    try:
        with open(path, "rb") as file:
            status = os.fstat(file.fileno())
            is_regular = stat.S_ISREG(status.st_mode)
            # what is no regular file (a pipe, a device) has no size, and may have no end
            step = max(status.st_size, 1 << 20) if is_regular else 1 << 20
            size, parts = 0, list[bytes]()
            is_larger = is_regular and status.st_size > most
            while not is_larger and (part := file.read(step)):
                parts.append(part)
                size += len(part)
                is_larger = size > most
    except ValueError as error:  # a null character in the name
        raise InvalidArgument(f"{str(path)!r} is no name of a file: {error}") from None
    if is_larger:
        raise InvalidArgument(f"{path} has more than {most:,} bytes, the most that {what} may have")
    return b"".join(parts)


def shortened(text: str, most: int = 60) -> str:
    """`text` as a message quotes it: its beginning, and how long it is."""
    return repr(text) if len(text) <= most else f"{text[:most]!r}... ({len(text):,} characters)"

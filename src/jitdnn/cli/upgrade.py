"""`jitdnn upgrade` and `jitdnn import-prototxt`: old and damaged files become files of today."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from jitdnn.caffe import read_leniently, to_text, upgrade
from jitdnn.cli.console import say
from jitdnn.errors import InvalidArgument
from jitdnn.files import write_whole


def run_upgrade(source: str, out: Path | None) -> None:
    """Write a net or solver of any version in today's syntax."""
    write_text(to_text(upgrade(source)), out)


def run_import(source: str, inputs: Sequence[str], out: Path | None) -> None:
    """Write a net from a web page in today's syntax, with a line on standard error for each repair."""
    net, repairs, file = read_leniently(source, dict(_shape(text) for text in inputs))
    for repair in repairs:
        say(f"{file or source}, {repair}", file=sys.stderr)
    write_text(to_text(net), out)


def _shape(text: str) -> tuple[str, tuple[int, ...]]:
    """The name and the extents of NAME=N,C,H,W."""
    name, _, extents = text.rpartition("=")
    try:
        shape = tuple(int(extent) for extent in extents.split(","))
    except ValueError:
        shape = ()
    if not name or not shape or not all(0 <= extent < 2**31 for extent in shape):
        raise InvalidArgument(f"--input is {text!r}: give a name and extents, as data=1,3,227,227")
    return name, shape


def write_text(text: str, out: Path | None) -> None:
    """Write a file whole, or print the text."""
    if out is None:
        print(text, end="")
        return
    try:
        write_whole(out, lambda file: file.write(text.encode()))
    except OSError as error:
        raise InvalidArgument(f"cannot write {out}: {error}") from error
    say(f"wrote {out}")

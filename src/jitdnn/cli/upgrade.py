"""`jitdnn upgrade` and `jitdnn import-prototxt`: old and damaged files become files of today."""

from __future__ import annotations

from pathlib import Path

from jitdnn.caffe import to_text, upgrade
from jitdnn.cli.console import say
from jitdnn.errors import InvalidArgument
from jitdnn.files import write_whole


def run_upgrade(source: str, out: Path | None) -> None:
    """Write a net or solver of any version in today's syntax."""
    write_text(to_text(upgrade(source)), out)


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

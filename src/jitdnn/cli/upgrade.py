"""`jitdnn upgrade`, `import-prototxt` and `deploy`: old, damaged and trained nets become files to use."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from jitdnn.caffe import deploy, read_leniently, to_text, upgrade
from jitdnn.caffe.upgrade_binary import is_binary, upgrade_binary, write_upgraded
from jitdnn.cli.console import say
from jitdnn.errors import InvalidArgument
from jitdnn.files import write_whole

_TEXTS = (".prototxt", ".txt")


def run_upgrade(source: str, out: Path | None) -> None:
    """Write a net or solver of any version in today's syntax; of a binary net, with its weights, a binary file, or its
    definition where `out` ends in .prototxt or is None."""
    path = Path(source)
    if path.is_file() and is_binary(path):
        if out is None or out.suffix in _TEXTS:
            write_text(to_text(upgrade_binary(path)[0]), out)
        else:
            write_upgraded(path, out)
            say(f"wrote {out}")
        return
    if out is not None and out.suffix == ".caffemodel":
        raise InvalidArgument(
            f"{source} is a text, which has no weights: {out} would be a binary file, so name a .prototxt"
        )
    write_text(to_text(upgrade(source)), out)


def run_import(source: str, inputs: Sequence[str], out: Path | None) -> None:
    """Write a net from a web page in today's syntax, with a line on standard error for each repair."""
    net, repairs, file = read_leniently(source, dict(_shape(text) for text in inputs))
    for repair in repairs:
        say(f"{file or source}, {repair}", file=sys.stderr)
    write_text(to_text(net), out)


def run_deploy(source: str, image: str | None, level: int, stages: Sequence[str], out: Path | None) -> None:
    """Write the net that answers, with a line on standard error for its input and each of its outputs."""
    extents = None if image is None else _shape(f"image={image}")[1]
    if extents is not None and len(extents) != 3:
        raise InvalidArgument(f"--image is {image!r}: give channels, height and width, as 3,256,256")
    found = deploy(source, extents, level=level, stages=stages)
    done = " ".join(to_text(found.transform).replace(":", "").split())
    say(f"input {found.input!r}: images {found.image}{', ' + done if done else ''}", file=sys.stderr)
    for output in found.outputs:
        made = "" if output.name == output.scores else f", {output.kind} of {output.scores!r}"
        say(f"output {output.name!r}{made}", file=sys.stderr)
    write_text(to_text(found.net), out)


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

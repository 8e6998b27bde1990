"""Lists of images to ask a net about: a text file, in each line the path of an image on the machine that runs the
studio and, if one likes, its class, as DIGITS' were."""

from __future__ import annotations

from pathlib import PurePath
from typing import BinaryIO, Final, NamedTuple

from jitdnn import limits
from jitdnn.errors import InvalidArgument
from jitdnn.studio.data import places
from jitdnn.studio.data.folders import is_picture
from jitdnn.studio.look.classify import MOST_FILES
from jitdnn.studio.store import Store

SUFFIX: Final = ".txt"
_MOST_BYTES: Final = 16 << 20


class Listed(NamedTuple):
    """A line: what it calls the image, and the class that it should be ("": not said)."""

    name: str
    wanted: str


def is_list(name: str) -> bool:
    """Whether an uploaded file is a list, by its name."""
    return PurePath(name).suffix.lower() == SUFFIX


def read_list(name: str, file: BinaryIO) -> list[Listed]:
    """The lines of a list; empty ones, and those that begin with #, are left out. Raises InvalidArgument for a list of
    nothing, of more images than are answered at a time, or for what is no text."""
    content = file.read(_MOST_BYTES + 1)
    if len(content) > _MOST_BYTES or b"\0" in content:
        raise InvalidArgument(f"{name[:80]} is no list: text of at most {_MOST_BYTES >> 20} MiB is")
    lines = content.decode("utf-8-sig", "surrogateescape").splitlines()
    found = [_parsed(line.strip()) for line in lines if line.strip() and not line.startswith("#")]
    if not found:
        raise InvalidArgument(f"{name[:80]} lists no images: a line for each, PATH or PATH CLASS")
    if len(found) > MOST_FILES:
        raise InvalidArgument(f"{name[:80]} lists {len(found):,} images: at most {MOST_FILES:,} at a time")
    return found


def content_of(store: Store, listed: Listed, folder: str) -> bytes | str:
    """The image of a line, or why it cannot be had; a path that is not absolute lies below `folder`."""
    is_whole = listed.name.startswith(("/", "~/"))
    try:
        if not is_whole and not folder:
            raise InvalidArgument(f"{listed.name} is no whole path: name the folder that it lies in")
        path = listed.name if is_whole else f"{folder}/{listed.name}"
        return limits.read_bounded(places.server_path(store, path), limits.IMAGE_BYTES, "an image")
    except (InvalidArgument, OSError) as error:
        return str(error)


def _parsed(line: str) -> Listed:
    """PATH, or PATH and the class behind a tab, a comma or a blank; paths may have blanks themselves."""
    for sign in ("\t", ",", " "):
        path, found, wanted = line.rpartition(sign)
        if found and is_picture(path.strip()) and not is_picture(wanted):
            return Listed(path.strip(), wanted.strip())
    return Listed(line, "")

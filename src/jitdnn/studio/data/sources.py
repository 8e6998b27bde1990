"""From a place where data lies to a listing of it: what it is is found out by looking."""

from __future__ import annotations

from pathlib import Path

from jitdnn.errors import InvalidArgument
from jitdnn.studio.data.built_in import DIGITS, list_digits
from jitdnn.studio.data.containers import open_container
from jitdnn.studio.data.entries import Listing
from jitdnn.studio.data.folders import list_folders
from jitdnn.studio.data.options import Options


def list_source(path: str, options: Options) -> Listing:
    """What lies at a path: a folder, a zip file, or `DIGITS`, the handwritten digits of this package.

    Raises InvalidArgument where there is nothing that a data set can be made of, and says what would do.
    """
    if path == DIGITS:
        return list_digits()
    place = Path(path).expanduser()
    try:
        container = open_container(place)
    except (OSError, ValueError) as error:
        raise InvalidArgument(str(error)) from None
    names = container.names()
    listing = list_folders(container, names, options)
    listing.kind = listing.kind or ("a folder" if place.is_dir() else "a zip file")
    return listing

"""From a place where data lies to a listing of it: what it is is found out by looking.

A plug-in of the group `jitdnn.studio.data` is a function (path, options) -> Listing, or None for what it does not
know; they are asked first. The reader in its listing is pickled for processes that decode.
"""

from __future__ import annotations

import posixpath
from collections.abc import Sequence
from pathlib import Path

from jitdnn import limits
from jitdnn.errors import InvalidArgument
from jitdnn.studio import plugins
from jitdnn.studio.data import buckets
from jitdnn.studio.data.archives import list_archive
from jitdnn.studio.data.boxes import has_boxes, list_boxes
from jitdnn.studio.data.built_in import DIGITS, list_digits
from jitdnn.studio.data.containers import Container, open_container
from jitdnn.studio.data.databases import databases_in, list_databases
from jitdnn.studio.data.entries import Listing
from jitdnn.studio.data.folders import is_picture, list_folders
from jitdnn.studio.data.masks import list_masks, pairs_of
from jitdnn.studio.data.options import Options
from jitdnn.studio.data.tables import list_table

TABLE_BYTES = 512 << 20


def list_source(path: str, options: Options) -> Listing:
    """What lies at a path: a folder, a zip file, a table, arrays, databases, a folder of a bucket (`s3://...`), or
    `DIGITS`, those of this package.

    Raises InvalidArgument where there is nothing that a data set can be made of, and says what would do.
    """
    if path == DIGITS:
        return list_digits()
    if buckets.is_address(path):
        container = buckets.Bucket(path)
        listing = _of_files(container, container.names(), options)
        listing.kind = listing.kind or "a bucket"
        return listing
    try:
        place = Path(path).expanduser()
        for name, plugin in plugins.load("data").items():
            found: Listing | None = plugin(place, options)
            if found is not None:
                found.kind = found.kind or name
                return found
        return _listed(place, options)
    except OSError as error:
        raise InvalidArgument(f"{path} cannot be read: {error.strerror or error}") from None


def _listed(place: Path, options: Options) -> Listing:
    suffix = place.suffix.lower()
    if place.is_file() and suffix == ".npz":
        return list_archive(place, place.name, options)
    if place.is_file() and suffix in (".csv", ".tsv"):
        text = limits.read_bounded(place, TABLE_BYTES, "a table").decode("utf-8-sig", "replace")
        return list_table(None, place.name, text, [], options)
    if place.is_dir() and (found := databases_in(place)):
        return list_databases(found, options)
    container = open_container(place)
    names = container.names()
    listing = _of_files(container, names, options)
    listing.kind = listing.kind or ("a folder" if place.is_dir() else "a zip file")
    return listing


def _of_files(container: Container, names: Sequence[str], options: Options) -> Listing:
    """A table, masks or boxes if there are some, else folders of classes; `options.task` can say which."""
    tables = [name for name in names if posixpath.splitext(name)[1].lower() in (".csv", ".tsv")]
    if len(tables) == 1 and options.task in ("", "classification", "multi-label", "regression", "detection"):
        return list_table(container, tables[0], container.text(tables[0]), names, options)
    if options.task in ("", "segmentation"):
        pairs = pairs_of(names)
        pictures = sum(map(is_picture, names))
        if pairs and (options.task or 2 * len(pairs) > pictures / 2):
            return list_masks(container, names, options)
        if options.task:
            raise InvalidArgument(
                "no picture has a mask: folders images and masks with equal names are needed"
            )
    if options.task in ("", "detection"):
        if has_boxes(names):
            return list_boxes(container, names, options)
        if options.task:
            raise InvalidArgument(
                "no picture has boxes: YOLO's or KITTI's .txt files of the same names are needed"
            )
    if options.task in ("multi-label", "regression"):
        raise InvalidArgument(
            f"{options.task} needs a table (.csv) beside the pictures, with their names and labels"
        )
    return list_folders(container, names, options)

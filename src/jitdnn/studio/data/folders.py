"""Classification: a folder of pictures for each class, in a folder or a zip file, maybe below folders of parts."""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Final

from jitdnn.errors import InvalidArgument
from jitdnn.studio.data.containers import Container
from jitdnn.studio.data.entries import Entry, Listing
from jitdnn.studio.data.options import Options
from jitdnn.studio.data.pictures import SUFFIXES
from jitdnn.studio.data.readers import Pictures

#: names of folders, of columns' values and of databases that mean a part
PART_NAMES: Final = {
    **dict.fromkeys(("train", "training", "trn"), "train"),
    **dict.fromkeys(("val", "valid", "validation", "dev"), "val"),
    **dict.fromkeys(("test", "testing", "tst"), "test"),
}


def part_of(name: str) -> str | None:
    """The part that a word means, None for none of them."""
    return PART_NAMES.get(name.strip().lower())


def part_in(words: Iterable[str]) -> str | None:
    """The part that the first of the words means which means one."""
    return next((part for word in words if (part := part_of(word))), None)


def is_picture(name: str) -> bool:
    """Whether a file's name says that it is a picture that is read."""
    return os.path.splitext(name)[1].lower() in SUFFIXES


def split_parts(names: Sequence[str]) -> tuple[int, bool]:
    """How many folders all names have in common at their beginning, and whether the next one is the part.

    That of a zip file in which everything lies in one folder, or of a data set that comes divided.
    """
    folders = [name.split("/")[:-1] for name in names]
    depth = 0
    while all(len(path) > depth for path in folders):
        found = {path[depth] for path in folders}
        if len(found) > 1 or depth > 20:
            return depth, all(part_of(name) for name in found)
        if part_of(next(iter(found))) and not all(len(path) == depth + 1 for path in folders):
            return depth, True
        if all(len(path) == depth + 1 for path in folders):
            return depth, False  # the last folder is the class, though it be the only one
        depth += 1
    return depth, False


def list_folders(container: Container, names: Sequence[str], options: Options) -> Listing:
    """One folder for each class; `options.classes` names classes for pictures without folders, which are yet to be
    labelled. Raises InvalidArgument if there are no pictures.
    """
    pictures = [name for name in names if is_picture(name)]
    if not pictures:
        raise InvalidArgument(
            f"{container.path.name} has no pictures: files that end in {', '.join(SUFFIXES)} are "
            "needed, in a folder for "
            "each class"
        )
    depth, has_parts = split_parts(pictures)
    named = [name.strip() for name in options.classes.split(",") if name.strip()]
    pattern = options.pattern()
    found: list[tuple[str, str | None, str | None]] = []
    for name in pictures:
        folders = name.split("/")[depth:-1]
        part = part_of(folders.pop(0)) if has_parts and folders else None
        found.append((name, folders[0] if folders else None, part))
    classes = sorted({label for _, label, _ in found if label is not None}, key=natural)
    classes += [name for name in named if name not in classes]
    numbers = {name: number for number, name in enumerate(classes)}
    entries = [
        Entry(name, name, -1 if label is None else numbers[label], part, group_of(name, pattern))
        for name, label, part in found
    ]
    listing = Listing("classification", entries, classes, Pictures(container, options))
    unknown = sum(entry.label < 0 for entry in entries)
    if unknown:
        listing.notes.append(
            f"{unknown:,} of the pictures lie in no folder of a class and have no label yet"
            + ("" if classes else "; name the classes, and label them in the page")
        )
    other = Counter(
        os.path.splitext(name)[1].lower() or "no suffix" for name in names if not is_picture(name)
    )
    if other:
        shown = ", ".join(f"{count:,} with {suffix}" for suffix, count in other.most_common(4))
        listing.notes.append(f"files that are no pictures are left out: {shown}")
    if has_parts:
        listing.notes.append("the folders train, val and test are kept as the parts")
    return listing


def group_of(name: str, pattern: re.Pattern[str] | None) -> str:
    """What a pattern finds in a file's name: its first group, or all of the match; empty without."""
    match = pattern.search(name) if pattern else None
    if match is None:
        return ""
    return (match[1] or "") if match.re.groups else match[0]


def natural(name: str) -> list[tuple[int, int, str]]:
    """A key of order in which 2 is before 10."""
    return [
        (0, int(piece), "") if piece.isdecimal() else (1, 0, piece.lower())
        for piece in re.split(r"([0-9]{1,18})", name)
        if piece
    ]

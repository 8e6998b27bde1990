"""A look at a source before anything is made: what it holds, some of it as a net will see it, and what is wrong."""

from __future__ import annotations

import time
from collections import Counter
from dataclasses import replace
from typing import Any

import numpy as np

from jitdnn.errors import InvalidArgument
from jitdnn.studio.data.boxes import Boxes
from jitdnn.studio.data.dataset import PARTS, Array
from jitdnn.studio.data.drawing import drawn
from jitdnn.studio.data.entries import Entry, Listing
from jitdnn.studio.data.make import check_listing
from jitdnn.studio.data.masks import Masks
from jitdnn.studio.data.options import MODES, Options
from jitdnn.studio.data.pictures import open_picture, to_array
from jitdnn.studio.data.readers import Pictures
from jitdnn.studio.data.sheets import sheet
from jitdnn.studio.data.sources import list_source
from jitdnn.studio.data.split import assign

#: pictures that are shown; seconds that pictures are looked at
_SHOWN, _SECONDS = 96, 2.0
_UNLABELLED = "(no label yet)"


def scan(path: str, options: Options, seconds: float = _SECONDS) -> dict[str, Any]:
    """What lies at a path: `task`, `kind`, `total`, `counts` by class, `parts`, `shape`, `notes`, `obstacle` (why
    nothing can be made of it, or ""), `broken` (names and reasons), `looked` at so many, `strip` and `examples`
    (PNGs: some entries; one picture in each of the four ways to fit it).

    Raises InvalidArgument where there is nothing that a data set can be made of.
    """
    listing = list_source(path, options)
    try:
        check_listing(listing)
        obstacle = ""
    except InvalidArgument as error:
        obstacle = str(error)
    shown, broken, looked, facts = _look(listing, seconds)
    parts = assign(listing.entries, options, listing.task == "classification")
    counts = _counts(listing)
    examples, sizes = _examples(listing, options)
    notes = [*listing.notes, *_warnings(listing, counts, options, facts), *_size_notes(sizes, options)]
    for part, share in (("val", options.val), ("test", options.test)):
        if share and part not in parts:
            notes.append(
                f"the classes are too small for any image to go to {part}: a larger percentage does it"
            )
    if broken:
        notes.insert(0, f"{len(broken):,} of the {looked:,} looked at cannot be read and will be left out")
        if looked == len(broken):
            obstacle = obstacle or "none of the images that were looked at can be read"
    return {
        "task": listing.task,
        "kind": listing.kind,
        "total": len(listing.entries),
        "counts": counts,
        "parts": {part: parts.count(part) for part in PARTS},
        "shape": list(listing.reader.shape),
        "columns": listing.columns,
        "notes": notes,
        "obstacle": obstacle,
        "broken": broken[:100],
        "looked": looked,
        "strip": sheet(shown, 24, largest=64) if shown else b"",
        "examples": examples,
    }


def _counts(listing: Listing) -> dict[str, int]:
    """Entries of each class in the order of classes; of each column for multi-label; boxes for detection."""
    if listing.task == "classification":
        found = Counter(entry.label for entry in listing.entries)
        counts = {name: found.get(number, 0) for number, name in enumerate(listing.classes)}
        return counts | ({_UNLABELLED: found[-1]} if found.get(-1) else {})
    if listing.task == "multi-label":
        total = np.sum([entry.label for entry in listing.entries], axis=0)
        return {name: int(value) for name, value in zip(listing.classes, total, strict=True)}
    if listing.task == "detection":
        found = Counter(int(box[0]) for entry in listing.entries for box in entry.label[1])
        return {name: found.get(number, 0) for number, name in enumerate(listing.classes)}
    return {}


def _look(listing: Listing, seconds: float) -> tuple[list[Array], list[tuple[str, str]], int, Counter[str]]:
    """Read entries from all over the source for some seconds: those to show, those that cannot be read, how many, and
    what was seen of the pictures.
    """
    shown: list[tuple[int, Array]] = []
    broken: list[tuple[str, str]] = []
    facts: Counter[str] = Counter()
    end, looked = time.monotonic() + seconds, 0
    for place in _spread(len(listing.entries), 2000):
        if looked and time.monotonic() > end:
            break
        entry = listing.entries[place]
        looked += 1
        try:
            image, label = listing.reader.read(entry)
        except InvalidArgument as error:
            broken.append((entry.name, str(error)))
            continue
        if len(image) == 3 and (image[0] == image[1]).all() and (image[1] == image[2]).all():
            facts["grey"] += 1
        if image.min() == image.max():
            facts["flat"] += 1
        facts["read"] += 1
        if len(shown) < _SHOWN:
            has_places = listing.task in ("segmentation", "detection")
            shown.append((place, drawn(image, label, listing.task, 64) if has_places else image))
    return [image for _, image in sorted(shown, key=lambda pair: pair[0])], broken, looked, facts


def _spread(count: int, most: int) -> list[int]:
    """Places all over a list, each half as far from the others as those before."""
    generator = np.random.default_rng(0)
    return [int(place) for place in generator.permutation(count)[:most]]


def _warnings(listing: Listing, counts: dict[str, int], options: Options, facts: Counter[str]) -> list[str]:
    notes = []
    total = len(listing.entries)
    if total < 100:
        notes.append(f"{total} is few: a net will learn them by heart; some hundred of each class do better")
    if listing.task in ("classification", "detection"):
        counts = {name: count for name, count in counts.items() if name != _UNLABELLED}
        few = [name for name, count in counts.items() if 0 < count < 10]
        none = [name for name, count in counts.items() if not count]
        if few:
            notes.append(f"fewer than 10 of {_shown(few)}")
        if none:
            notes.append(f"none of {_shown(none)}")
        held = [count for count in counts.values() if count]
        if len(held) > 1 and max(held) > 5 * min(held):
            notes.append(
                f"the largest class has {max(held) / min(held):.0f} times as many as the smallest: "
                "judge by balanced accuracy"
            )
    if facts["read"] and facts["grey"] == facts["read"] and not options.grey:
        notes.append(
            "all pictures that were looked at are grey: greyscale takes a third of the space and time"
        )
    if facts["flat"]:
        notes.append(f"{facts['flat']} of the pictures looked at are of one colour only")
    if options.val + options.test > 0 and options.group:
        grouped = sum(bool(entry.group) for entry in listing.entries)
        groups = len({entry.group for entry in listing.entries if entry.group})
        notes.append(f"{grouped:,} of {total:,} are in {groups:,} groups, each of which stays together")
    return notes


def _shown(names: list[str]) -> str:
    more = f" and {len(names) - 6} more classes" if len(names) > 6 else ""
    return ", ".join(f"“{name}”" for name in names[:6]) + more


def _examples(listing: Listing, options: Options) -> tuple[dict[str, bytes], list[tuple[int, int]]]:
    """One picture, the one that is farthest from the new shape among some, fitted in each way; and the sizes
    of those.
    """
    reader = listing.reader
    sizes: list[tuple[int, int]] = []
    if not isinstance(reader, Pictures | Masks | Boxes):
        return {}, sizes
    best, found = 0.0, None
    for place in _spread(len(listing.entries), 12):
        entry: Entry = listing.entries[place]
        try:
            image = open_picture(reader.container.read(entry.key))
        except InvalidArgument:
            continue
        sizes.append(image.size)
        ratio = abs(np.log((image.width / image.height) / (options.width / options.height))) + 1e-6
        if ratio > best:
            best, found = float(ratio), image
    if found is None:
        return {}, sizes
    return {mode: sheet([to_array(found, replace(options, mode=mode))[0]], 1) for mode in MODES}, sizes


def _size_notes(sizes: list[tuple[int, int]], options: Options) -> list[str]:
    """Whether what pictures become is much smaller, or larger, than most of them are."""
    if not sizes:
        return []
    width, height = sorted(sizes, key=lambda size: size[0] * size[1])[len(sizes) // 2]
    ratio = (width * height / (options.width * options.height)) ** 0.5
    if ratio > 6:
        return [
            f"the pictures are about {width} × {height}: little is left of them at {options.width} × {options.height}; "
            "64 × 64 to 224 × 224 is usual for photographs"
        ]
    if ratio < 0.7:
        return [f"the pictures are about {width} × {height}: making them larger adds nothing but work"]
    return []

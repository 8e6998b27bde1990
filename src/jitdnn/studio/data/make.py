"""Makes a data set from a listing, whole or not at all, in memory that does not grow with it.

Each image's part and place are drawn before anything is decoded; processes decode and write straight into the arrays on
disk. Those that cannot be read leave holes, which the last images of their part fill. All of it happens in a folder of
another name, which is renamed at the end.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import numpy as np

from jitdnn.errors import InvalidArgument
from jitdnn.settings import available_cores
from jitdnn.studio import texts
from jitdnn.studio.data import arrays, index
from jitdnn.studio.data.dataset import MEAN, PARTS, Dataset, mean_image
from jitdnn.studio.data.decode import Job, decoded
from jitdnn.studio.data.duplicates import find_twins
from jitdnn.studio.data.entries import Listing
from jitdnn.studio.data.options import Options
from jitdnn.studio.data.space import check_space
from jitdnn.studio.data.split import assign

#: from how many entries on there are several processes
PARALLEL_FROM: Final = 2000
Tell = Callable[[int, int, str], None]


@dataclass
class Made:
    """What was made: `about` is kept beside it, `skipped` are files that could not be read, and why."""

    about: dict[str, Any]
    counts: dict[str, int]
    histogram: dict[str, list[int]]
    notes: list[str]
    skipped: list[tuple[str, str]] = field(default_factory=list)
    digest: str = ""
    size: int = 0


def make(
    folder: Path,
    listing: Listing,
    options: Options,
    tell: Tell = lambda done, total, text: None,
    is_cancelled: Callable[[], bool] = lambda: False,
    processes: int | None = None,
) -> Made:
    """Fill `folder`, which is empty. `tell(done, total, what)` is called as it goes on.

    Raises InvalidArgument for a listing that makes no data set, Cancelled, and OSError where the disk is full.
    """
    check_listing(listing)
    jobs = _placed(listing, options)
    check_space(folder, _size(listing))
    for part in PARTS:
        count = sum(job.part == part for job in jobs)
        if count:
            reader = listing.reader
            arrays.allocate(folder / f"{part}_data.npy", reader.dtype, (count, *reader.shape))
            arrays.allocate(folder / f"{part}_label.npy", reader.label_dtype, (count, *reader.label_shape))
    if processes is None:
        is_large = listing.reader.is_parallel and len(jobs) >= PARALLEL_FROM
        processes = min(available_cores(), 8) if is_large else 0
    done = 0
    for chunk in decoded(folder, listing.reader, jobs, processes, is_cancelled):
        done += len(chunk)
        tell(done, len(jobs), texts.mark("reading pictures"))
    _close_holes(folder, jobs)
    kept = [job for job in jobs if not job.error]
    if not any(job.part == "train" for job in kept):
        shown = "; ".join(f"{job.entry.name}: {job.error}" for job in jobs[:3])
        raise InvalidArgument(f"none of the images to train with can be read: {shown}")
    tell(done, len(jobs), texts.mark("writing what was found"))
    return _finish(folder, listing, options, kept, [job for job in jobs if job.error])


def check_listing(listing: Listing) -> None:
    """Raises InvalidArgument for what no net can learn from."""
    if len(listing.entries) < 2:
        raise InvalidArgument("there is only one image: at least two are needed, one to train with")
    if listing.task == "classification" and len(listing.classes) < 2:
        found = f"only one class, {listing.classes[0]!r}" if listing.classes else "no classes"
        raise InvalidArgument(
            f"there is {found}: put the images of each class into a folder of its own, or name the "
            "classes that you will "
            "label them with"
        )


def _size(listing: Listing) -> int:
    reader = listing.reader
    image = int(np.prod(reader.shape)) * np.dtype(reader.dtype).itemsize
    label = int(np.prod(reader.label_shape, initial=1)) * np.dtype(reader.label_dtype).itemsize
    return len(listing.entries) * (image + label + 200)


def _placed(listing: Listing, options: Options) -> list[Job]:
    """Jobs in the order of the listing; places within a part are drawn, so that each batch has of all classes."""
    parts = assign(listing.entries, options, listing.task == "classification")
    generator = np.random.default_rng([options.seed, 1])
    places: dict[str, Iterator[int]] = {}
    for part in PARTS:
        places[part] = iter(generator.permutation(parts.count(part)).tolist())
    return [Job(entry, part, next(places[part])) for entry, part in zip(listing.entries, parts, strict=True)]


# ---- the end


def _close_holes(folder: Path, jobs: list[Job]) -> None:
    """Images from the end of a part take the places of those that could not be read."""
    for part in PARTS:
        mine = {job.place: job for job in jobs if job.part == part}
        kept = sum(not job.error for job in mine.values())
        if kept == len(mine):
            continue
        paths = [folder / f"{part}_{kind}.npy" for kind in ("data", "label")]
        opened = [arrays.writable(path) for path in paths]
        holes = [place for place in range(kept) if mine[place].error]
        movers = [place for place in range(kept, len(mine)) if not mine[place].error]
        for hole, mover in zip(holes, movers, strict=True):
            for array in opened:
                array[hole] = array[mover]
            mine[mover].place = hole
        del opened
        for path in paths:
            arrays.shorten(path, kept) if kept else path.unlink()


def _finish(folder: Path, listing: Listing, options: Options, kept: list[Job], failed: list[Job]) -> Made:
    """Index, mean, checksum and the account of it."""
    is_class = listing.task == "classification"
    skipped = [*listing.skipped, *((job.entry.name, job.error) for job in failed)]
    items = sorted(kept, key=lambda job: (job.part, job.place))
    index.make(
        folder,
        (
            (
                j.part,
                j.place,
                j.entry.name,
                j.entry.label if is_class else None,
                j.entry.group,
                j.exact,
                j.alike,
            )
            for j in items
        ),
        skipped,
    )
    dataset = Dataset(folder, listing.task, listing.classes)
    find_twins(dataset)
    np.save(folder / MEAN, mean_image(dataset))
    notes = list(listing.notes)
    if failed:
        shown = ", ".join(job.entry.name for job in failed[:5])
        more = f" and {len(failed) - 5:,} more" if len(failed) > 5 else ""
        what = (
            "1 file cannot be read and was"
            if len(failed) == 1
            else f"{len(failed):,} files cannot be read and were"
        )
        notes.append(f"{what} left out: {shown}{more}")
    about = {
        "format": 1,
        "task": listing.task,
        "classes": listing.classes,
        "shape": list(dataset.shape),
        "columns": listing.columns,
        "options": options.plain(),
    }
    write_about(folder, about)
    digest, size = sealed(folder)
    counts = {part: dataset.count(part) for part in PARTS}
    return Made(
        about, counts, {part: dataset.histogram(part) for part in dataset.parts}, notes, skipped, digest, size
    )


def write_about(folder: Path, about: dict[str, Any]) -> None:
    """Say what lies in a folder, for whoever opens it without the studio."""
    (folder / "about.json").write_text(json.dumps(about, indent=1, ensure_ascii=False), "utf-8")


def sealed(folder: Path) -> tuple[str, int]:
    """A checksum over all arrays, all of which are on the disk then, and the bytes of all files."""
    digest = hashlib.blake2b(digest_size=16)
    for path in sorted(folder.glob("*.npy")):
        digest.update(path.name.encode())
        with open(path, "rb") as file:
            while block := file.read(1 << 22):
                digest.update(block)
    files = [path for path in folder.iterdir() if path.is_file()]
    for path in files:
        arrays.flush(path)
    return digest.hexdigest(), sum(path.stat().st_size for path in files)

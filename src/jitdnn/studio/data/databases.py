"""LMDB and LevelDB databases of Caffe: one, or a folder with one for each part."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from jitdnn.caffe.databases import kind_of, open_database
from jitdnn.caffe.datum import datum_image, read_datum
from jitdnn.errors import InvalidArgument
from jitdnn.studio.data.dataset import Array
from jitdnn.studio.data.entries import Entry, Listing
from jitdnn.studio.data.folders import part_in
from jitdnn.studio.data.options import Options
from jitdnn.studio.data.pictures import open_picture, to_array


class Records:
    """Records by the number of their database and their place in it, read on from where the last one was."""

    is_parallel = True
    label_shape: tuple[int, ...] = ()
    label_dtype = "i8"

    def __init__(self, paths: list[Path], options: Options, shape: tuple[int, ...], dtype: str) -> None:
        self.paths, self.options, self.shape, self.dtype = paths, options, shape, dtype
        self._reading: Any = None

    def read(self, entry: Entry) -> tuple[Array, Any]:
        number, place = entry.key
        if self._reading is None or self._reading[:2] != (number, place):
            self._reading = (number, place, open_database(self.paths[number]).records(place))
        records = self._reading[2]
        _, content = next(records)
        self._reading = (number, place + 1, records)
        image = record_image(content, entry.name, self.options)
        if image.shape != self.shape:
            raise InvalidArgument(f"it has shape {image.shape}, and the first record {self.shape}")
        return image, entry.label

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_reading": None}


def record_image(content: bytes | memoryview, what: str, options: Options) -> Array:
    """The image of a record: pixels as they are, an image file fitted by the options."""
    datum = read_datum(content, what)
    if datum.is_encoded:
        return to_array(open_picture(bytes(datum.content), options), options)[0]
    return datum_image(datum, what, None)


def databases_in(path: Path) -> dict[str | None, Path]:
    """The database in a folder, or those of parts in its sub-folders (`mnist_train_lmdb`)."""
    if kind_of(path):
        return {None: path}
    found: dict[str | None, Path] = {}
    for entry in sorted(path.iterdir()):
        if entry.is_dir() and not entry.is_symlink() and kind_of(entry):
            words = entry.name.lower().replace("-", "_").split("_")
            part = part_in(words)
            if part in found:
                raise InvalidArgument(
                    f"{found[part].name} and {entry.name} both are {part or 'of no part'}: which is it?"
                )
            found[part] = entry
    return found


def list_databases(found: dict[str | None, Path], options: Options) -> Listing:
    """All records, each read once for its label."""
    entries: list[Entry] = []
    labels: set[int] = set()
    skipped: list[tuple[str, str]] = []
    shape: tuple[int, ...] | None = None
    dtype = "u1"
    for number, (part, path) in enumerate(found.items()):
        for place, (key, content) in enumerate(open_database(path).records()):
            name = f"{path.name}/{key.decode('utf-8', 'backslashreplace')[:200]}"
            try:
                label = read_datum(content, name).label
                if shape is None:
                    image = record_image(content, name, options)
                    shape, dtype = image.shape, "u1" if image.dtype.itemsize == 1 else "f4"
            except InvalidArgument as error:
                skipped.append((name, str(error)))
                continue
            if label < 0:
                skipped.append((name, f"its label is {label}"))
                continue
            labels.add(label)
            entries.append(Entry(name, (number, place), label, part))
    if shape is None:
        raise InvalidArgument("no record of the database can be read as an image")
    most = max(labels)
    if most > 100_000:
        raise InvalidArgument(f"a label is {most:,}: classes are numbered from 0 on")
    classes = [str(label) for label in range(most + 1)]
    reader = Records(list(found.values()), options, shape, dtype)
    return Listing("classification", entries, classes, reader, "a database of Caffe", skipped=skipped)

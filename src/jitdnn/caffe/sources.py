"""Where the images of data layers come from: a database, arrays, a folder of images, a list of images.

A source is a sequence of records, read in order by one thread, and decoded by any.

`source: "digits.npz"` means the arrays `data` and `label` of the file; `source: "digits.npz#train"` means
`train_data` and `train_label`. Data are (N, C, H, W), or (N, H, W) for one channel, of any integer or float
dtype; labels are integers, one an image.

A folder with `data.npy` and `label.npy`, or with `train_data.npy` and `train_label.npy` as `source: "FOLDER#train"`, is
memory-mapped: pages are read as batches need them. Labels of such a folder may be arrays: (N, K), or (N, H, W) for
masks, that are cropped and mirrored as their images.

A folder of images has a sub-folder for each class, with images anywhere below it. Class i is the i-th
sub-folder in the order of names. Images come as Caffe's do: values 0 to 255, channels in the order blue,
green, red, or one channel for grey ones. Caffe reads its databases in order and shuffles them when they are
made; here the classes are interleaved instead, image j of n of its class at the place (j + ½) / n, so that
every batch has its share of each.

A folder with an LMDB or LevelDB database has records in the order of their keys (databases.py, datum.py).
"""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from copy import copy
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from jitdnn import limits
from jitdnn.caffe import paths
from jitdnn.caffe.arrays import map_npy, read_npz
from jitdnn.caffe.blob import Array, Shape
from jitdnn.caffe.databases import Record, kind_of, open_database
from jitdnn.caffe.datum import RawRecords, datum_image, read_datum
from jitdnn.caffe.images import read_image
from jitdnn.errors import InvalidArgument, InvalidShape, InvalidType, NotSupported

IMAGE_SUFFIXES = (".png", ".jpg", ".jpeg", ".bmp", ".ppm", ".pgm")


class Placed(NamedTuple):
    """A record, and the place of the one behind it."""

    record: Any
    next_place: int


class Source(ABC):
    """A sequence of images with labels that starts again at its end."""

    has_labels = True
    label_shape: Shape = ()
    has_masks = False  # labels (H, W), a number for each pixel

    @property
    @abstractmethod
    def size(self) -> int | None:
        """The number of images, None where it is not known."""

    @abstractmethod
    def records(self, place: int) -> Iterator[Placed]:
        """Yield records from a place on, without end. The iterator is used by one thread."""

    @abstractmethod
    def decode(self, record: Any) -> tuple[Array, Any]:
        """The image of a record, (C, H, W), and its label (`label_shape`). Several threads may call it at a time."""

    def block(self, records: Sequence[Any]) -> tuple[Array | list[Array], Any] | None:
        """The images of some records, (n, C, H, W) or a list of one shape (C, H, W), and their labels, where they lie
        in memory as they are; None where each has to be decoded by itself. Several threads may call it at a time."""
        return None

    def for_process(self) -> Source | None:
        """What another process needs of it to decode records, to be pickled; None where there is little to decode."""
        return None

    def portable(self, record: Any) -> Any:
        """A record for that process: what is large in it is a memoryview."""
        return record

    @abstractmethod
    def name_of(self, record: Any) -> str:
        """How errors name a record: by its file."""

    def first_shape(self) -> Shape:
        """(C, H, W) of the first image."""
        return self.first_image().shape

    def first_image(self) -> Array:
        """The first image."""
        record = next(self.records(0)).record
        return self.decode(record)[0]


class ArraySource:
    """The arrays of an .npz file."""

    def __init__(self, path: Path, selector: str) -> None:
        """Read the file. Raises InvalidArgument for a file that is damaged or lacks the arrays that are asked
        for.
        """
        prefix = f"{selector}_" if selector else ""
        hint = ". Name a source as FILE.npz for data and label, or FILE.npz#PART for PART_data and PART_label"
        arrays = read_npz(path, (f"{prefix}data", f"{prefix}label"), hint)
        data = arrays[f"{prefix}data"]
        if data.ndim == 3:
            data = data[:, np.newaxis]
        if data.ndim != 4 or data.shape[0] == 0:
            raise InvalidShape(
                f"{prefix}data of {path} has shape {data.shape}; (N, C, H, W) or (N, H, W), N > 0, is needed"
            )
        if data.dtype.kind not in "uif":
            raise InvalidType(f"{prefix}data of {path} is {data.dtype}; integers or floats are needed")
        self.data = data
        self.labels: NDArray[np.integer[Any]] | None = arrays.get(f"{prefix}label")
        self.has_labels = self.labels is not None
        if self.labels is not None and (
            self.labels.shape != data.shape[:1] or self.labels.dtype.kind not in "ui"
        ):
            raise InvalidShape(
                f"{prefix}label of {path} is {self.labels.dtype} of shape {self.labels.shape}; "
                f"{data.shape[0]} integers are needed, one an image"
            )

    @property
    def size(self) -> int:
        """The number of images."""
        return len(self.data)

    def first_shape(self) -> Shape:
        """(C, H, W) of the images."""
        return self.data.shape[1:]

    def first_image(self) -> Array:
        """The first image."""
        image: Array = self.data[0]
        return image


class MappedSource(Source):
    """The arrays PART_data.npy and PART_label.npy of a folder, memory-mapped."""

    def __init__(self, path: Path, part: str) -> None:
        """Map the files. Raises InvalidArgument for what is damaged, InvalidShape and InvalidType for what does not
        fit.
        """
        prefix = f"{part}_" if part else ""
        self.path = path / f"{prefix}data.npy"
        if not self.path.is_file():
            parts = sorted(file.name.removesuffix("_data.npy") for file in path.glob("*_data.npy"))
            forms = [f'"FOLDER#{name}"' for name in parts]
            raise InvalidArgument(f"{path} has no {self.path.name}; name its source as {' or '.join(forms)}")
        data = np.asarray(
            map_npy(self.path)
        )  # parts of a memory map are made more slowly than those of an array
        self.data = data[:, np.newaxis] if data.ndim == 3 else data
        if self.data.ndim != 4:
            raise InvalidShape(
                f"{self.path} has shape {data.shape}; (N, C, H, W) or (N, H, W), N > 0, is needed"
            )
        file = path / f"{prefix}label.npy"
        self.has_labels = file.is_file()
        self.labels: Array | None = np.asarray(map_npy(file)) if self.has_labels else None
        for name, array in ((self.path, data), (file, self.labels)):
            if array is not None and array.dtype.kind not in "uif":
                raise InvalidType(f"{name} is {array.dtype}; integers or floats are needed")
        if self.labels is None:
            return
        if self.labels.ndim == 0 or len(self.labels) != len(data):
            raise InvalidShape(
                f"{file} has shape {self.labels.shape}; {len(data)} rows are needed, one an image"
            )
        self.label_shape = self.labels.shape[1:]
        self.has_masks = self.label_shape == self.data.shape[2:] and self.labels.dtype.kind in "ui"

    @property
    def size(self) -> int:
        return len(self.data)

    def records(self, place: int) -> Iterator[Placed]:
        while True:
            for index in range(place, self.size):
                yield Placed(index, (index + 1) % self.size)
            place = 0

    def name_of(self, record: int) -> str:
        return f"{self.path}, image {record}"

    def decode(self, record: int) -> tuple[Array, Any]:
        return self.data[record], 0 if self.labels is None else self.labels[record]

    def block(self, records: Sequence[int]) -> tuple[Array, Any] | None:
        if self.has_masks:  # each is cropped and mirrored with its image
            return None
        first, last = records[0], records[-1]
        places: Any = slice(first, last + 1) if last - first == len(records) - 1 else list(records)
        return self.data[places], 0 if self.labels is None else self.labels[places]


def is_mapped(path: Path) -> bool:
    """Whether a folder holds arrays for MappedSource."""
    return (path / "data.npy").is_file() or any(path.glob("*_data.npy"))


class ListSource(Source):
    """Image files with labels, in order, or in an order that is drawn anew for every round: place p is image
    p mod n of round p div n.
    """

    def __init__(
        self,
        files: list[tuple[Path, int]],
        mode: str | None,
        size: tuple[int, int] | None = None,
        shuffle_seed: int | None = None,
    ) -> None:
        """`mode` is "L" for grey, "RGB" for colour, None for what each is; `size` (height, width) resizes."""
        self.files = files
        self.mode, self.image_size, self.shuffle_seed = mode, size, shuffle_seed

    @property
    def size(self) -> int:
        return len(self.files)

    def records(self, place: int) -> Iterator[Placed]:
        count = len(self.files)
        if self.shuffle_seed is None:
            while True:
                for index in range(place % count, count):
                    yield Placed(self.files[index], (index + 1) % count)
                place = 0
        while True:
            sequence = np.random.SeedSequence([self.shuffle_seed, place // count])
            order = np.random.Generator(np.random.PCG64(sequence)).permutation(count)
            for index in order[place % count :].tolist():
                place += 1
                yield Placed(self.files[index], place)

    def for_process(self) -> Source | None:
        found = copy(self)
        found.files = []
        return found

    def name_of(self, record: tuple[Path, int]) -> str:
        return str(record[0])

    def decode(self, record: tuple[Path, int]) -> tuple[Array, int]:
        return read_image(record[0], self.mode, self.image_size), record[1]


class FolderSource(ListSource):
    """A folder with a sub-folder of images for each class."""

    def __init__(self, path: Path, mode: str | None) -> None:
        """List the images. Raises InvalidArgument if there are none."""
        try:
            folders = sorted(
                entry for entry in path.iterdir() if entry.is_dir() and not entry.name.startswith(".")
            )
        except OSError as error:
            raise InvalidArgument(f"{path} cannot be listed: {error}") from error
        placed: list[tuple[float, int, Path]] = []
        self.classes = [folder.name for folder in folders]
        for label, folder in enumerate(folders):
            found = sorted(file for file in folder.rglob("*") if file.suffix.lower() in IMAGE_SUFFIXES)
            placed += [((j + 0.5) / len(found), label, file) for j, file in enumerate(found)]
        if not placed:
            raise InvalidArgument(
                f"{path} has no images: a sub-folder for each class is needed, with files that end in "
                f"{', '.join(IMAGE_SUFFIXES)}"
            )
        placed.sort()
        super().__init__([(file, label) for _, label, file in placed], mode)


class DatabaseSource(Source):
    """The records of an LMDB or LevelDB database."""

    def __init__(self, path: Path, mode: str | None) -> None:
        """Open the database. `mode` is for encoded images, as that of ListSource."""
        self.database = open_database(path)
        self.path = self.database.path
        self.mode = mode
        self._raw = RawRecords()

    @property
    def size(self) -> int | None:
        return self.database.size

    def records(self, place: int) -> Iterator[Placed]:
        if self.database.process != os.getpid():  # a database must not be used behind a fork
            self.database = open_database(self.path)
        while True:
            count = 0
            for count, record in enumerate(self.database.records(place, is_lent=True), start=1):
                next_place = place + count
                yield Placed(record, 0 if next_place == self.size else next_place)
            if not count and not place:
                raise InvalidArgument(f"{self.path} has no records any more")
            place = 0

    def for_process(self) -> Source | None:
        found = copy(self)
        del found.database  # records are read here alone
        found._raw = RawRecords()
        return found

    def portable(self, record: Record) -> Any:
        return record[0], memoryview(record[1])

    def name_of(self, record: Record) -> str:
        return f"{self.path}, record {limits.shortened(record[0].decode('utf-8', 'backslashreplace'))}"

    def decode(self, record: Record) -> tuple[Array, int]:
        found = self._raw.read(record[1])
        if found is not None:
            return found
        what = self.name_of(record)
        datum = read_datum(record[1], what)
        image = datum_image(datum, what, self.mode)
        self._raw.learn(record[1], datum)
        return image, datum.label

    def block(self, records: Sequence[Record]) -> tuple[list[Array], Any] | None:
        images, labels, read = [], [], self._raw.read
        for _, record in records:
            found = read(record)
            if found is None:
                return None
            images.append(found[0])
            labels.append(found[1])
        # another thread may have learned another shape in between
        return (images, labels) if len({image.shape for image in images}) == 1 else None


def open_source(name: str, base: Path | None, mode: str | None, backend: str | None) -> Source | ArraySource:
    """Open what the `source` of a Data layer names; `base` is the folder of the net's file, `backend` what the layer
    says of it: LMDB, LEVELDB or None.

    Raises InvalidArgument for what is absent, none of the forms above, or another database than `backend`, NotSupported
    without the package that reads it.
    """
    file, _, selector = name.partition("#")
    path = paths.find(file, base)
    kind = kind_of(path) if path.is_dir() else None
    if backend is not None and kind != backend:
        found = f"is an {kind} database" if kind else "is no database"
        advice = (
            f"write backend: {kind}"
            if kind
            else f"take the backend line out if it should be read: {SUPPORTED}"
        )
        raise InvalidArgument(f"backend is {backend}, and {path} {found}; {advice}")
    if path.is_dir():
        if kind is None and is_mapped(path):
            if mode is not None:
                raise InvalidArgument(f"force_color and force_gray are for image files; {path} holds arrays")
            return MappedSource(path, selector)
        if selector:
            raise InvalidArgument(f"source {name!r}: {path} is a folder, so it has no part #{selector}")
        return DatabaseSource(path, mode) if kind else FolderSource(path, mode)
    if path.suffix != ".npz":
        raise NotSupported(f"{path} is neither an .npz file nor a folder; {SUPPORTED}")
    if mode is not None:
        raise InvalidArgument(f"force_color and force_gray are for image files; {path} holds arrays")
    return ArraySource(path, selector)


SUPPORTED = (
    "a Data layer reads an LMDB or LevelDB database, an .npz file (arrays data and label, or PART_data and PART_label "
    'with source: "FILE.npz#PART"), a folder of such arrays (PART_data.npy and PART_label.npy with source: '
    '"FOLDER#PART") or a folder with a sub-folder of images for each class'
)


def read_list(path: Path, what: str) -> list[str]:
    """The lines of a text file that names files, without those that are empty. Raises InvalidArgument."""
    try:
        text = limits.read_bounded(path, limits.LIST_BYTES, what).decode("utf-8", "surrogateescape")
    except OSError as error:
        raise InvalidArgument(f"{path} cannot be read: {error.strerror or error}") from error
    if text.count("\n") >= limits.LIST_LINES:
        raise InvalidArgument(
            f"{path} has more than {limits.LIST_LINES:,} lines, the most that {what} may have"
        )
    return [line.rstrip("\r") for line in text.split("\n") if line.strip()]


class Listed(NamedTuple):
    """A line of a list of images: the name as it stands there, and the label."""

    name: str
    label: int


def read_image_list(path: Path) -> list[Listed]:
    """The images of a list, a line each: the file's name, a blank, a label. Raises InvalidArgument, naming the line."""
    found: list[Listed] = []
    for number, line in enumerate(read_list(path, "a list of images"), start=1):
        name, _, label = line.rstrip().rpartition(" ")
        try:
            found.append(Listed(name.strip(), int(label)))
        except ValueError:
            name = ""
        if not name.strip() or not -(1 << 31) <= found[-1].label < 1 << 31:
            raise InvalidArgument(
                f"{path}, line {number}: {limits.shortened(line)} is not the name of an image, a blank and a label of "
                "32 bits"
            )
    if not found:
        raise InvalidArgument(f"{path} names no images")
    return found

"""Where a Data layer's images come from: an .npz file, or a folder of images.

`source: "digits.npz"` means the arrays `data` and `label` of the file; `source: "digits.npz#train"` means
`train_data` and `train_label`. Data are (N, C, H, W), or (N, H, W) for one channel, of any integer or float
dtype; labels are integers, one an image.

`source: "folder"` has a sub-folder for each class, with images anywhere below it. Class i is the i-th
sub-folder in the order of names. Images come as Caffe's do: values 0 to 255, channels in the order blue,
green, red, or one channel for grey ones. Caffe reads its databases in order and shuffles them when they are
made; here the classes are interleaved instead, image j of n of its class at the place (j + ½) / n, so that
every batch has its share of each.
"""

from __future__ import annotations

import io
from abc import ABC, abstractmethod
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from jitdnn import limits
from jitdnn.caffe import paths
from jitdnn.caffe.arrays import read_npz
from jitdnn.caffe.blob import Array, Shape
from jitdnn.errors import InvalidArgument, InvalidShape, InvalidType, NotSupported

IMAGE_SUFFIXES = (".png", ".jpg", ".jpeg", ".bmp", ".ppm", ".pgm")
_FORMATS = ("PNG", "JPEG", "BMP", "PPM")  # pillow's names


class Source(ABC):
    """A sequence of images, each (C, H, W), with their labels."""

    labels: NDArray[np.integer[Any]] | None
    classes: list[str] | None  # the names of the classes, where there are any

    @abstractmethod
    def __len__(self) -> int:
        """The number of images."""

    @abstractmethod
    def images(self, start: int, stop: int) -> Array | list[Array]:
        """Return images start .. stop - 1: one array (n, C, H, W) where all have one shape for sure, else a
        list.
        """

    @abstractmethod
    def name(self, index: int) -> str:
        """What an error calls an image."""


class ArraySource(Source):
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
        self.data, self.path = data, path
        self.classes = None
        self.labels = arrays.get(f"{prefix}label")
        if self.labels is not None and (
            self.labels.shape != data.shape[:1] or self.labels.dtype.kind not in "ui"
        ):
            raise InvalidShape(
                f"{prefix}label of {path} is {self.labels.dtype} of shape {self.labels.shape}; "
                f"{data.shape[0]} integers are needed, one an image"
            )

    def __len__(self) -> int:
        return len(self.data)

    def images(self, start: int, stop: int) -> Array:
        """The images as one view of the file's array."""
        return self.data[start:stop]

    def name(self, index: int) -> str:
        """Its number and the file."""
        return f"image {index} of {self.path}"


class FolderSource(Source):
    """A folder with a sub-folder of images for each class; pillow decodes them when they are asked for."""

    def __init__(self, path: Path, mode: str | None) -> None:
        """List the images. `mode` is "L" for grey, "RGB" for colour, None for what each is."""
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
        self.files = [file for _, _, file in placed]
        self.labels = np.array([label for _, label, _ in placed])
        self.mode = mode

    def __len__(self) -> int:
        return len(self.files)

    def images(self, start: int, stop: int) -> list[Array]:
        """The images, decoded now; their sizes may differ."""
        return [_decode(file, self.mode) for file in self.files[start:stop]]

    def name(self, index: int) -> str:
        """The file."""
        return str(self.files[index])


def open_source(name: str, base: Path | None, mode: str | None) -> Source:
    """Open what the `source` of a Data layer names; `base` is the folder of the net's file.

    Raises NotSupported for LMDB and LevelDB, InvalidArgument for what is absent or none of the forms above.
    """
    file, _, selector = name.partition("#")
    path = paths.find(file, base)
    if path.is_dir():
        if (path / "data.mdb").exists() or (path / "CURRENT").exists():
            raise NotSupported(f"{path} is an LMDB or LevelDB database; {SUPPORTED}")
        if selector:
            raise InvalidArgument(f"source {name!r}: {path} is a folder, so it has no part #{selector}")
        return FolderSource(path, mode)
    if path.suffix != ".npz":
        raise NotSupported(f"{path} is neither an .npz file nor a folder; {SUPPORTED}")
    if mode is not None:
        raise InvalidArgument(f"force_color and force_gray are for image files; {path} holds arrays")
    return ArraySource(path, selector)


SUPPORTED = (
    "a Data layer reads an .npz file (arrays data and label, or PART_data and PART_label with "
    'source: "FILE.npz#PART") or a folder with a sub-folder of images for each class'
)


def _decode(file: Path, mode: str | None) -> Array:
    try:
        from PIL import Image
    except ImportError:
        raise NotSupported(
            f"{file} is an image file, and pillow, which decodes images, is not installed: "
            "pip install 'jitdnn[caffe]'"
        ) from None
    try:
        content = io.BytesIO(limits.read_bounded(file, limits.IMAGE_BYTES, "an image"))
        # Only these formats: pillow goes by the content, and one of its others (EPS) is a program that it has run
        with Image.open(content, formats=_FORMATS) as image:
            width, height = image.size
            if width * height > limits.IMAGE_PIXELS:
                raise InvalidArgument(
                    f"{file} has {width} x {height} pixels by its header: at most {limits.IMAGE_PIXELS:,} are decoded"
                )
            grey = image.mode in ("1", "L", "LA", "I", "I;16", "F") if mode is None else mode == "L"
            pixels = np.asarray(image.convert("L" if grey else "RGB"))
    except InvalidArgument:
        raise
    except Exception as error:  # a decoder may raise anything over bytes that are not what they should be
        raise InvalidArgument(f"{file} cannot be read as an image: {error}") from error
    return pixels[np.newaxis] if grey else pixels[:, :, ::-1].transpose(2, 0, 1)


def image_shape(source: Source) -> Shape:
    """Return (C, H, W) of the first image."""
    return source.images(0, 1)[0].shape

"""HDF5 files, by h5py: what is read from them is numbers, of a size that is known before memory is taken."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from jitdnn import limits
from jitdnn.caffe.blob import Array
from jitdnn.errors import InvalidArgument, InvalidType, NotSupported, needed
from jitdnn.files import whole
from jitdnn.settings import check_bytes

# what h5py raises over files that are none, or damaged
_DAMAGE = (OSError, ValueError, KeyError, TypeError, RuntimeError, OverflowError, MemoryError)
_SIGNATURE = b"\x89HDF\r\n\x1a\n"


def h5py() -> Any:
    """The module. Raises NotSupported if it is not installed."""
    with needed("HDF5 files need h5py, which is not installed: pip install 'jitdnn[caffe]'"):
        import h5py
    return h5py


def is_hdf5(path: Path) -> bool:
    """Whether a file begins as those of HDF5 do."""
    try:
        with open(path, "rb") as file:
            return file.read(len(_SIGNATURE)) == _SIGNATURE
    except OSError:
        return False


@contextmanager
def opened(path: Path) -> Iterator[Any]:
    """A file that is read. What goes wrong with it meanwhile is InvalidArgument that names it."""
    module = h5py()
    try:
        with module.File(path, "r") as file:
            yield file
    except (InvalidArgument, InvalidType, NotSupported):
        raise
    except _DAMAGE as error:
        raise InvalidArgument(f"{path} cannot be read as an HDF5 file: {error}") from error


def datasets(group: Any, path: Path) -> dict[str, Any]:
    """The datasets of a group and those below, by their names from there; links out of the file are refused."""
    module, found = h5py(), dict[str, Any]()
    waiting = [(group, "")]
    seen = 0
    while waiting:
        inside, prefix = waiting.pop()
        for name in inside:
            seen += 1
            if seen > limits.ARCHIVE_MEMBERS or prefix.count("/") > limits.ARRAY_AXES:
                raise InvalidArgument(
                    f"{path} has more than {limits.ARCHIVE_MEMBERS:,} entries, or too deep ones"
                )
            if not isinstance(inside.get(name, getlink=True), module.HardLink):
                raise InvalidArgument(
                    f"{path}: {prefix}{name} is a link to another place: only data are read"
                )
            entry = inside[name]
            if isinstance(entry, module.Dataset):
                found[prefix + name] = entry
            else:
                waiting.append((entry, f"{prefix}{name}/"))
    return found


def checked(dataset: Any, path: Path, name: str) -> None:
    """Raises InvalidType if a dataset holds no real numbers, InvalidArgument if its values are in another file or too
    many for the setting load_limit.
    """
    if dataset.dtype.kind not in "uif" or dataset.dtype.itemsize > 8:
        raise InvalidType(f"{path}: {name} is {dataset.dtype}; integers or floats are needed")
    if dataset.external or dataset.is_virtual:
        raise InvalidArgument(f"{path}: the values of {name} are in another file, which is not read")
    # a chunk is unpacked whole, even if the dataset is smaller
    most = max(math.prod(dataset.shape), math.prod(dataset.chunks or ()))
    check_bytes(f"{path}: {name}", most * dataset.dtype.itemsize)


def array(dataset: Any, path: Path, name: str) -> Array:
    """All values of a dataset, after `checked`."""
    checked(dataset, path, name)
    return np.asarray(dataset[()])


def write(path: Path, fill: Callable[[Any], None]) -> None:
    """Write a file by `fill(file)`, whole or not at all. Raises InvalidArgument."""
    module = h5py()
    try:
        with whole(path) as unfinished, module.File(unfinished, "x") as file:
            fill(file)
    except (InvalidArgument, InvalidType):
        raise
    except _DAMAGE as error:
        raise InvalidArgument(f"cannot write {path}: {error}") from error

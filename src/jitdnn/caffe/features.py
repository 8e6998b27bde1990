"""Blobs of a net over many batches, in the memory of one batch: in .npz or HDF5 files of any length, or in databases as
Caffe's extract_features writes them.
"""

from __future__ import annotations

import difflib
import tempfile
import zipfile
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import IO, Any, BinaryIO

import numpy as np

from jitdnn.caffe import hdf5
from jitdnn.caffe.blob import Array, Shape
from jitdnn.caffe.database_writers import new_database
from jitdnn.caffe.datum import image_datum
from jitdnn.caffe.net import Net
from jitdnn.errors import InvalidArgument
from jitdnn.files import write_whole

FORMATS = (".npz", ".h5")
_CHUNK = 1 << 24  # bytes that are copied at once


def extract(
    net: Net,
    names: Sequence[str],
    path: Path,
    batches: int,
    advance: Callable[[int], None] = lambda done: None,
) -> dict[str, Shape]:
    """Run `batches` forward passes and write these blobs, images one behind the other: arrays called as the blobs. In
    phase TEST on the processor the net runs compiled for them (`Net.compiled`), unless a layer without tops must run.

    A blob without axes has one number a batch. The file is written whole or not at all. Returns the shapes.

    Raises InvalidArgument for a blob that the net does not have, for batches of differing shapes, and for a file that
    cannot be written.
    """
    if path.suffix not in FORMATS:
        raise InvalidArgument(
            f"features are written as {' or '.join(FORMATS)}, or into databases, and {path} ends otherwise"
        )
    if path.suffix == ".h5":
        hdf5.h5py()
    _check_names(net, names)
    try:
        with ExitStack() as stack:
            files = [stack.enter_context(tempfile.TemporaryFile()) for _ in names]
            shapes = _run(net, names, files, batches, advance)
            full = {name: (batches * shape[0], *shape[1:]) for name, shape in shapes.items()}
            (_write_npz if path.suffix == ".npz" else _write_hdf5)(path, full, net.dtype, files)
    except OSError as error:  # those of `path` are told already
        raise InvalidArgument(
            f"blobs cannot be kept in {tempfile.gettempdir()} (TMPDIR names another folder) until {path} is written: "
            f"{error}"
        ) from error
    return full


def extract_to_databases(
    net: Net,
    names: Sequence[str],
    paths: Sequence[Path],
    batches: int,
    backend: str = "lmdb",
    advance: Callable[[int], None] = lambda done: None,
) -> dict[str, int]:
    """Run `batches` forward passes and write each of these blobs into a new database of its own, as Caffe's
    extract_features: a record for each image, its features as float_data (C, H, W), its number in ten digits as key.

    `backend` is "lmdb" or "leveldb", the label of each record is 0. No database is there before the last batch is done,
    nor after an error. Returns the number of records of each.

    Raises InvalidArgument for a blob that the net does not have, one of more than four axes, another number of paths
    than of names, and for a folder that exists or cannot be written.
    """
    _check_names(net, names)
    if len(paths) != len(names) or len({path.resolve() for path in paths}) != len(paths):
        raise InvalidArgument(
            f"{len(names)} blobs ({', '.join(names)}) go to as many databases, and {len(paths)} "
            f"({', '.join(map(str, paths))}) are named: give each blob one of its own"
        )
    counts = dict.fromkeys(names, 0)
    with ExitStack() as stack:
        writers = [stack.enter_context(new_database(path, backend)) for path in paths]
        forward = _forward(net, names)
        for batch in range(batches):
            found = forward()
            for name, writer in zip(names, writers, strict=True):
                for image in _images(name, found[name]):
                    writer.put(b"%010d" % counts[name], image_datum(image, 0))
                    counts[name] += 1
            advance(batch + 1)
    return counts


def _images(name: str, values: Array) -> Array:
    """A blob as images (N, C, H, W), with extents of 1 for axes that it lacks; a blob without axes is one image."""
    if values.ndim > 4:
        raise InvalidArgument(f"blob {name!r} has shape {values.shape}: a record has at most (C, H, W)")
    shape = values.shape or (1,)
    return np.asarray(values.reshape(shape + (1,) * (4 - len(shape))), np.float32)


def _check_names(net: Net, names: Sequence[str]) -> None:
    if not names or len(set(names)) != len(names):
        raise InvalidArgument(f"the blobs to extract are {', '.join(names) or 'none'}: name each once")
    for name in names:
        if name not in net.blobs:
            near = difflib.get_close_matches(name, net.blobs, n=1)
            hint = f": did you mean {near[0]!r}?" if near else f"; there are {', '.join(net.blobs)}"
            raise InvalidArgument(f"the net has no blob {name!r}{hint}")


def _forward(net: Net, names: Sequence[str]) -> Callable[[], dict[str, Array]]:
    """What runs the next batch and gives these blobs: the net compiled for them, or itself where that cannot be."""
    if net.state.phase == "TEST" and net.device is None and all(node.top for node in net.nodes):
        return net.compiled(names).forward

    def forward() -> dict[str, Array]:
        net.forward()
        return {name: net.blobs[name].data for name in names}

    return forward


def _run(
    net: Net, names: Sequence[str], files: Sequence[IO[bytes]], batches: int, advance: Callable[[int], None]
) -> dict[str, Shape]:
    """Run the net; the blobs of all batches go to the files. Returns the shape of each in one batch."""
    shapes: dict[str, Shape] = {}
    forward = _forward(net, names)
    for batch in range(batches):
        found = forward()
        for name, file in zip(names, files, strict=True):
            values = np.atleast_1d(found[name])
            if shapes.setdefault(name, values.shape) != values.shape:
                raise InvalidArgument(
                    f"blob {name!r} has shape {values.shape} in batch {batch}, and {shapes[name]} before: one array "
                    "cannot hold both"
                )
            file.write(np.ascontiguousarray(values).reshape(-1).view(np.uint8).data)
        advance(batch + 1)
    for file in files:
        file.seek(0)
    return shapes


def _write_npz(
    path: Path, shapes: dict[str, Shape], dtype: np.dtype[Any], files: Sequence[IO[bytes]]
) -> None:
    def write(target: BinaryIO) -> None:
        with zipfile.ZipFile(target, "w", zipfile.ZIP_STORED, allowZip64=True) as archive:
            for (name, shape), file in zip(shapes.items(), files, strict=True):
                with archive.open(f"{name}.npy", "w", force_zip64=True) as entry:
                    header = {"descr": dtype.str, "fortran_order": False, "shape": shape}
                    np.lib.format.write_array_header_1_0(entry, header)
                    while part := file.read(_CHUNK):
                        entry.write(part)

    try:
        write_whole(path, write)
    except OSError as error:
        raise InvalidArgument(f"cannot write {path}: {error}") from error


def _write_hdf5(
    path: Path, shapes: dict[str, Shape], dtype: np.dtype[Any], files: Sequence[IO[bytes]]
) -> None:
    def fill(target: Any) -> None:
        for (name, shape), file in zip(shapes.items(), files, strict=True):
            dataset = target.create_dataset(name, shape, dtype)
            row = max(1, int(np.prod(shape[1:], dtype=np.int64)) * dtype.itemsize)
            rows = max(1, _CHUNK // row)
            for first in range(0, shape[0], rows):
                count = min(rows, shape[0] - first)
                part: Array = np.frombuffer(file.read(count * row), dtype)
                dataset[first : first + count] = part.reshape(count, *shape[1:])

    hdf5.write(path, fill)

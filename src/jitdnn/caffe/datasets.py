"""Databases of images for Data layers, and their mean: what Caffe's convert_imageset and compute_image_mean do."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np

from jitdnn import limits
from jitdnn.caffe.blob import Array
from jitdnn.caffe.blob_proto import write_binaryproto
from jitdnn.caffe.database_writers import new_database
from jitdnn.caffe.datum import encoded_datum, image_datum
from jitdnn.caffe.images import encode_image, read_image
from jitdnn.caffe.sources import DatabaseSource, read_image_list
from jitdnn.errors import InvalidArgument, InvalidShape

Advance = Callable[[int], None]
"""Called with the number of images that are done."""

#: the most bytes of a key of LMDB
_KEY_BYTES = 511


def convert_imageset(
    list_file: Path,
    root: str,
    out: Path,
    *,
    is_grey: bool = False,
    resize: tuple[int, int] | None = None,
    shuffle_seed: int | None = None,
    is_encoded: bool = False,
    encode_type: str = "",
    check_size: bool = False,
    backend: str = "lmdb",
    advance: Advance = lambda done: None,
) -> int:
    """Write the images of a list (sources.py: read_image_list) into the new database `out`, of the `backend` "lmdb" or
    "leveldb"; return their number. `root` is put in front of the names as it is, as Caffe does.

    Keys are the number of the image, eight digits, an underscore and its name in the list, as Caffe's. Images are
    stored as bytes, blue, green, red or grey, resized to `resize` (height, width); with `is_encoded` or `encode_type`
    ("png", "jpg") as image files, of which those that need not change are stored as they are. `shuffle_seed` draws the
    order. With `check_size` all must have one shape.

    Raises InvalidArgument or InvalidShape, naming the image; `out` does not exist then.
    """
    entries = read_image_list(list_file)
    if shuffle_seed is not None:
        order = np.random.Generator(np.random.PCG64(shuffle_seed)).permutation(len(entries))
        entries = [entries[index] for index in order.tolist()]
    first: tuple[int, ...] | None = None
    with new_database(out, backend) as writer:
        for number, (name, label) in enumerate(entries):
            file = Path(root + name)
            image = read_image(file, "L" if is_grey else "RGB", resize)
            first = image.shape if first is None else first
            if check_size and image.shape != first:
                raise InvalidShape(f"{file} has shape {image.shape}, and the first image {first}")
            key = f"{number:08d}_{name}".encode("utf-8", "surrogateescape")[:_KEY_BYTES]
            writer.put(
                key, _record(file, image, label, resize is None and not is_grey, is_encoded, encode_type)
            )
            advance(number + 1)
    return len(entries)


def _record(
    file: Path, image: Array, label: int, is_unchanged: bool, is_encoded: bool, encode_type: str
) -> bytes:
    if not (is_encoded or encode_type):
        return image_datum(np.ascontiguousarray(image), label)
    suffix = file.suffix.lower().lstrip(".")
    if is_unchanged and encode_type in ("", suffix) and suffix in ("jpg", "jpeg", "png"):
        return encoded_datum(limits.read_bounded(file, limits.IMAGE_BYTES, "an image"), label)
    return encoded_datum(encode_image(image, encode_type or suffix), label)


def compute_mean(database: Path, out: Path | None = None, advance: Advance = lambda done: None) -> Array:
    """The mean image (1, C, H, W), float32, of a database; it is written to `out`, a .binaryproto file, if that is not
    None. Raises InvalidArgument for a database that cannot be read, InvalidShape if shapes differ, naming the record.
    """
    source = DatabaseSource(database, None)
    total: Array | None = None
    count = 0
    for record in source.database.records():
        image, _ = source.decode(record)
        if total is None:
            total = np.zeros(image.shape, np.float64)
        if image.shape != total.shape:
            raise InvalidShape(
                f"{source.name_of(record)} has shape {image.shape}, and the first one {total.shape}"
            )
        total += image
        count += 1
        advance(count)
    if total is None:
        raise InvalidArgument(f"{database} has no records")
    mean: Array = (total / count).astype(np.float32)[np.newaxis]
    if out is not None:
        write_binaryproto(out, mean)
    return mean

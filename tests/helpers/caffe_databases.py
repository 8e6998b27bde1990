"""Databases in Caffe's formats, written by protobuf, lmdb, plyvel and OpenCV, not by the library."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import caffe_protobuf

Array = NDArray[Any]
IMAGES = np.random.default_rng(7).integers(0, 256, (11, 3, 9, 12), np.uint8)


def datum(image: Array, label: int = 0, form: str = "raw") -> bytes:
    """A record of an image (C, H, W): raw bytes, float, png or jpg."""
    kind = caffe_protobuf.classes()["Datum"]
    channels, height, width = image.shape
    if form in ("png", "jpg"):
        cv2 = pytest.importorskip("cv2")
        pixels = image[0] if channels == 1 else image.transpose(1, 2, 0)
        encoded = cv2.imencode(f".{form}", np.ascontiguousarray(pixels))[1].tobytes()
        return bytes(kind(data=encoded, label=label, encoded=True).SerializeToString())
    made = kind(channels=channels, height=height, width=width, label=label)
    if form == "raw":
        made.data = image.astype(np.uint8).tobytes()
    else:
        made.float_data.extend(image.reshape(-1).tolist())
    return bytes(made.SerializeToString())


def records(form: str = "raw", images: Array = IMAGES) -> list[tuple[bytes, bytes]]:
    """Keys and records of images, labelled from 100 on."""
    return [(b"%08d_x" % index, datum(image, 100 + index, form)) for index, image in enumerate(images)]


def write_lmdb(folder: Path, records: Iterable[tuple[bytes, bytes]]) -> Path:
    """A database with these records."""
    lmdb = pytest.importorskip("lmdb")
    with (
        lmdb.open(str(folder), map_size=1 << 28) as environment,
        environment.begin(write=True) as transaction,
    ):
        for key, value in records:
            transaction.put(key, value)
    return folder


def write_leveldb(folder: Path, records: Iterable[tuple[bytes, bytes]]) -> Path:
    """The same as LevelDB."""
    plyvel = pytest.importorskip("plyvel")
    database = plyvel.DB(str(folder), create_if_missing=True)
    for key, value in records:
        database.put(key, value)
    database.close()
    return folder


def read_database(folder: Path) -> list[tuple[bytes, bytes]]:
    """The records of a database, in the order of their keys."""
    if (folder / "data.mdb").exists():
        lmdb = pytest.importorskip("lmdb")
        with (
            lmdb.open(str(folder), readonly=True, lock=False) as environment,
            environment.begin() as transaction,
        ):
            return [(bytes(key), bytes(value)) for key, value in transaction.cursor()]
    plyvel = pytest.importorskip("plyvel")
    database = plyvel.DB(str(folder))
    records = list(database)
    database.close()
    return records

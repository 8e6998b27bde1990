"""Tensors that a model keeps in files beside it: within the model's folder, bounded, and mapped into memory."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import Any, BinaryIO

import numpy as np
import onnx
from onnx import helper, numpy_helper

from jitdnn.errors import InvalidArgument
from jitdnn.frameworks.onnx.bounds import in_another_file, is_packed, size_of
from jitdnn.limits import shortened

_FOLDER: ContextVar[Path | None] = ContextVar("folder of the model that is read", default=None)


@contextmanager
def tensors_of(folder: Path | None) -> Iterator[None]:
    """In the block, tensors in other files are read from this folder."""
    token = _FOLDER.set(folder)
    try:
        yield
    finally:
        _FOLDER.reset(token)


def array_of(tensor: onnx.TensorProto) -> np.ndarray[Any, Any]:
    """A tensor of ONNX as an array that is not written to. Raises NotSupported for data in another file outside of
    `tensors_of`, InvalidArgument for a file that is not in its folder or does not have the bytes."""
    folder = _FOLDER.get()
    if tensor.data_location != onnx.TensorProto.EXTERNAL:
        array: np.ndarray[Any, Any] = numpy_helper.to_array(tensor)
        array.setflags(write=False)
        return array
    if folder is None:
        raise in_another_file(tensor)
    if tensor.data_type == onnx.TensorProto.STRING:
        raise InvalidArgument(f"tensor {shortened(tensor.name)} of text is kept in another file")
    if is_packed(tensor):  # elements that share bytes are unpacked
        here = onnx.TensorProto(
            name=tensor.name, data_type=tensor.data_type, dims=tensor.dims, raw_data=content(tensor, folder)
        )
        return array_of(here)
    with _opened(tensor, folder) as (file, offset, size):
        if not size:
            return np.zeros(tuple(tensor.dims), helper.tensor_dtype_to_np_dtype(tensor.data_type))
        flat = np.memmap(file, np.uint8, "r", offset, (size,))
    dtype = np.dtype(helper.tensor_dtype_to_np_dtype(tensor.data_type))
    if offset % dtype.itemsize:
        flat = np.frombuffer(flat.tobytes(), np.uint8)  # type: ignore[assignment]
    mapped: np.ndarray[Any, Any] = np.asarray(flat).view(dtype).reshape(tuple(tensor.dims))
    return mapped


def content(tensor: onnx.TensorProto, folder: Path) -> bytes:
    """The bytes of a tensor that lies in a file of the folder. Raises InvalidArgument."""
    with _opened(tensor, folder) as (file, offset, size):
        file.seek(offset)
        return file.read(size)


@contextmanager
def _opened(tensor: onnx.TensorProto, folder: Path) -> Iterator[tuple[BinaryIO, int, int]]:
    """The file of a tensor, where its elements begin, and their bytes, which are there."""
    entries = {entry.key: entry.value for entry in tensor.external_data}
    location = entries.get("location", "")
    what = f"tensor {shortened(tensor.name)}, kept in {shortened(location)}"
    path = PurePosixPath(location)
    is_elsewhere = (
        not location or "\0" in location or path.is_absolute() or ".." in path.parts or "\\" in location
        or bool(PureWindowsPath(location).drive)
    )  # fmt: skip
    if is_elsewhere:
        raise InvalidArgument(f"{what}: a path inside of the model's folder is needed, without ..")
    size = size_of(tensor)
    offset, length = (
        _whole(entries.get(key, default), what) for key, default in (("offset", "0"), ("length", f"{size}"))
    )
    if length != size:
        raise InvalidArgument(
            f"{what}: it says {length} bytes, and its shape {list(tensor.dims)} takes {size}"
        )
    try:
        real = (folder / path).resolve(strict=True)
        if not real.is_relative_to(folder.resolve()) or not real.is_file():
            raise InvalidArgument(f"{what}: it is no file inside of {folder}")
        with open(real, "rb") as file:
            there = os.fstat(file.fileno()).st_size
            if offset + size > there:
                raise InvalidArgument(
                    f"{what}: {size} bytes from {offset} on are needed, and the file has {there}"
                )
            yield file, offset, size
    except OSError as error:
        raise InvalidArgument(f"{what}: {error.strerror or error}") from error


def _whole(text: str, what: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) <= 19):
        raise InvalidArgument(f"{what}: {shortened(text)} is no number of bytes")
    return int(text)

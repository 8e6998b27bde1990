"""Models from files, and their tensors from files beside them."""

from __future__ import annotations

import os
from os import PathLike
from pathlib import Path, PurePosixPath, PureWindowsPath

import onnx

from jitdnn import limits
from jitdnn.errors import InvalidArgument
from jitdnn.frameworks.onnx.bounds import reading, size_of, tensors
from jitdnn.limits import shortened
from jitdnn.settings import check_bytes


def load(path: str | PathLike[str]) -> onnx.ModelProto:
    """Read a model, with the tensors that it keeps in other files of its folder, ready for `prepare`.

    `path` names a file in ONNX's binary format. A tensor's file is named relative to the model's folder and lies in it,
    behind symbolic links too. Raises InvalidArgument for a file that cannot be read, is no model or is too large, and
    for tensors whose file lies elsewhere or does not have their bytes.
    """
    file = Path(path)
    try:
        content = limits.read_bounded(file, limits.ONNX_BYTES, "a model")
    except OSError as error:
        raise InvalidArgument(f"{file} cannot be read: {error.strerror or error}") from error
    model = onnx.ModelProto()
    with reading():
        model.ParseFromString(content)
        outside = [tensor for tensor in tensors(model) if tensor.data_location == onnx.TensorProto.EXTERNAL]
        check_bytes(f"what {file} keeps in other files", sum(size_of(tensor) for tensor in outside))
        for tensor in outside:
            _take_in(tensor, file.absolute().parent)
    return model


def _take_in(tensor: onnx.TensorProto, folder: Path) -> None:
    """Put the elements of a tensor into it."""
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
            file.seek(offset)
            content = file.read(size)
    except OSError as error:
        raise InvalidArgument(f"{what}: {error.strerror or error}") from error
    tensor.raw_data = content
    tensor.data_location = onnx.TensorProto.DEFAULT
    del tensor.external_data[:]


def _whole(text: str, what: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) <= 19):
        raise InvalidArgument(f"{what}: {shortened(text)} is no number of bytes")
    return int(text)

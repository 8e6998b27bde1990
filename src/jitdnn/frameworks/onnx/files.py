"""Models from files, and their tensors from files beside them."""

from __future__ import annotations

import os
import weakref
from collections.abc import Sequence
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
import onnx

from jitdnn import limits
from jitdnn.errors import InvalidArgument
from jitdnn.frameworks.onnx.bounds import reading, size_of, tensors
from jitdnn.frameworks.onnx.outside import array_of, content
from jitdnn.settings import check_bytes


def load(path: str | PathLike[str]) -> onnx.ModelProto:
    """Read a model, with the tensors that it keeps in other files of its folder, ready for `prepare`.

    `path` names a file in ONNX's binary format. A tensor's file is named relative to the model's folder and lies in it,
    behind symbolic links too. Raises InvalidArgument for a file that cannot be read, is no model or is too large, and
    for tensors whose file lies elsewhere or does not have their bytes. `prepare` takes the path itself, and then maps
    these files instead of reading them.
    """
    file = Path(path)
    model = read(file)
    with reading():
        for tensor in tensors(model):
            if tensor.data_location == onnx.TensorProto.EXTERNAL:
                tensor.raw_data = content(tensor, file.absolute().parent)
                tensor.data_location = onnx.TensorProto.DEFAULT
                del tensor.external_data[:]
    return model


def read(file: Path) -> onnx.ModelProto:
    """The model of a file, its tensors in other files left there; bounded together by the setting `load_limit`."""
    try:
        found = limits.read_bounded(file, limits.ONNX_BYTES, "a model")
    except OSError as error:
        raise InvalidArgument(f"{file} cannot be read: {error.strerror or error}") from error
    model = onnx.ModelProto()
    with reading():
        model.ParseFromString(found)
        outside = [tensor for tensor in tensors(model) if tensor.data_location == onnx.TensorProto.EXTERNAL]
        check_bytes(f"what {file} keeps in other files", sum(size_of(tensor) for tensor in outside))
    return model


class Again:
    """A file that was read, kept open: its tensors are read once more where plans for other inputs need them, as
    long as it is as it was. Raises OSError where it cannot be opened."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._descriptor = os.open(file, os.O_RDONLY | getattr(os, "O_CLOEXEC", 0))
        weakref.finalize(self, os.close, self._descriptor)
        self._state = _state(os.fstat(self._descriptor))

    @property
    def is_same(self) -> bool:
        """Whether this is still what the path names, as it was."""
        try:
            return _state(os.stat(self._file)) == self._state
        except OSError:
            return False

    def arrays(self, names: Sequence[str]) -> list[np.ndarray[Any, Any]]:
        """The initializers of these names. Raises InvalidArgument where the file was written to meanwhile."""
        with open(self._descriptor, "rb", closefd=False) as file:
            file.seek(0)
            content = file.read()
        if _state(os.fstat(self._descriptor)) != self._state:
            raise InvalidArgument(
                f"{self._file} was written to since it was loaded, and a plan for inputs of another kind needs its "
                "tensors: load it again, or write changes to a new file that takes its place"
            )
        model = onnx.ModelProto()
        model.ParseFromString(content)
        tensors = {tensor.name: tensor for tensor in model.graph.initializer}
        return [array_of(tensors[name]) for name in names]


def _state(found: os.stat_result) -> tuple[int, ...]:
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns

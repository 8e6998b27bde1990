"""Models from files, and their tensors from files beside them."""

from __future__ import annotations

from os import PathLike
from pathlib import Path

import onnx

from jitdnn import limits
from jitdnn.errors import InvalidArgument
from jitdnn.frameworks.onnx.bounds import reading, size_of, tensors
from jitdnn.frameworks.onnx.outside import content
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

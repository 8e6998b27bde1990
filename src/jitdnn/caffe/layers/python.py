"""Python: layers written in Python, from a folder that the caller of the library allows."""

from __future__ import annotations

import importlib
import importlib.util
import re
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from types import ModuleType
from typing import Any

from jitdnn.caffe.blob import Blob
from jitdnn.caffe.layers.base import Layer
from jitdnn.caffe.views import BlobVector, BlobView
from jitdnn.errors import NotSupported

_MODULE = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*", re.ASCII)
_CLASS = re.compile(r"[A-Za-z_]\w*", re.ASCII)


class PythonLayer(Layer):
    """Calls setup, reshape, forward and backward of the class `layer` in MODULE.py, `module` of python_param, with
    blobs as pycaffe has them (`jitdnn.caffe.views`). Its reshape is called before each forward pass, and layers behind
    it follow if it gives tops another shape.

    The code runs with all rights of the process. So it comes from the folder alone that was given to `load_net` as
    `python_layers`; without that a net with such a layer is refused. In that code `import caffe` is
    `jitdnn.caffe.pycaffe`, unless another `caffe` was imported before, and modules of the same folder can be imported.
    """

    undivided = "nobody knows what its code does with a batch"
    type = "Python"
    bottoms = (0, None)
    tops = (0, None)
    may_rerun = False
    may_resize = True

    def setup(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        parameter = self.parameter.python_param
        folder = self.context.python_layers
        if folder is None:
            raise NotSupported(
                f"layer {self.name!r}{self.parameter.where()} is a layer of Python: code that a net names is never run "
                "unless you allow the folder that it comes from, load_net(..., python_layers=FOLDER)"
            ).at(self.parameter.place())
        if not _MODULE.fullmatch(parameter.module) or not _CLASS.fullmatch(parameter.layer):
            raise self.invalid(
                f"module {parameter.module!r} and layer {parameter.layer!r} must be names of Python",
                "python_param",
            )
        root = folder.resolve()
        path = (root.joinpath(*parameter.module.split("."))).with_suffix(".py").resolve()
        if not path.is_relative_to(root) or not path.is_file():
            raise self.invalid(f"{folder} has no module {parameter.module!r}", "python_param")
        module = _loaded(root, path, path.stat().st_mtime_ns)
        kind = getattr(module, parameter.layer, None)
        parts = ("setup", "reshape", "forward", "backward")
        if not isinstance(kind, type) or not all(callable(getattr(kind, part, None)) for part in parts):
            raise self.invalid(
                f"{path} has no class {parameter.layer!r} with {', '.join(parts)}", "python_param"
            )
        self.code: Any = kind()
        self.code.param_str = parameter.param_str
        self.code.phase = 0 if self.context.phase == "TRAIN" else 1
        self.code.blobs = BlobVector(self)
        self.code.setup(_views(bottom), _views(top))

    def reshape(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        self.code.reshape(_views(bottom), _views(top))

    def forward(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        self.reshape(bottom, top)
        self.code.forward(_views(bottom), _views(top))

    def backward(self, top: Sequence[Blob], propagate: Sequence[bool], bottom: Sequence[Blob]) -> None:
        self.code.backward(_views(top), list(propagate), _views(bottom))


def _views(blobs: Sequence[Blob]) -> list[BlobView]:
    return [BlobView(blob) for blob in blobs]


@lru_cache(maxsize=64)
def _loaded(root: Path, path: Path, changed: int) -> ModuleType:
    """The module of a file, run once; under a name of its own, so that a net cannot name one that runs already."""
    name = f"jitdnn_python_layer_{abs(hash((path, changed))):x}"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None, path
    assert spec.loader is not None, path
    module = importlib.util.module_from_spec(spec)
    with _importing(root):
        spec.loader.exec_module(module)
    return module


@contextmanager
def _importing(folder: Path) -> Iterator[None]:
    """Let code import modules of the folder, and `caffe`."""
    is_there = "caffe" in sys.modules
    if not is_there:
        sys.modules["caffe"] = importlib.import_module("jitdnn.caffe.pycaffe")
    sys.path.insert(0, str(folder))
    try:
        yield
    finally:
        sys.path.remove(str(folder))
        if not is_there:
            sys.modules.pop("caffe", None)

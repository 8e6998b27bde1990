"""Models of ONNX, run on this library's primitives.

    from jitdnn.frameworks import onnx as backend

    y, = backend.prepare(backend.load("model.onnx")).run([x])

`load` reads a file, within bounds (docs/loading.md); a model that `onnx.load` has read does as well.
`prepare`, `run_model`, `run_node` and `supports_device` are those of ONNX's interface for backends, which
`Backend` implements. Arrays of NumPy go in and come out. Operators that are not covered are refused by name
(NotSupported), `OPERATORS` has those that are. Needs the package `onnx`.
"""

from jitdnn.frameworks.onnx.backend import Backend, Prepared
from jitdnn.frameworks.onnx.files import load
from jitdnn.frameworks.onnx.operators import OPERATORS

prepare = Backend.prepare
run_model = Backend.run_model
run_node = Backend.run_node
supports_device = Backend.supports_device

__all__ = ["OPERATORS", "Backend", "Prepared", "load", "prepare", "run_model", "run_node", "supports_device"]

"""Models of ONNX, prepared once for each kind of inputs and run without Python for each of their nodes.

    import jitdnn

    model = jitdnn.onnx.load("model.onnx")
    y, = model.run([x])
    print(model.explain([x]))

Arrays of NumPy go in and come out, on the CPU, or on a GPU with load(..., device="cuda:0"), which takes arrays in its
memory too. `jitdnn.frameworks.onnx` has ONNX's interface for backends besides.
"""

from __future__ import annotations

from importlib.util import find_spec

from jitdnn.errors import InvalidArgument

if find_spec("onnx") is None:
    raise InvalidArgument('ONNX is not installed: pip install "jitdnn[onnx]"')

from jitdnn.frameworks.onnx.model import Model, load, prepare

__all__ = ["Model", "load", "prepare"]

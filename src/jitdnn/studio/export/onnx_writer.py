"""Nodes and constants of a graph of ONNX as they are written, with names that nobody else has."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from jitdnn.caffe.blob import Shape

#: the operator set that is written, and the version of the file that goes with it: read by onnxruntime from 1.14 on
OPSET, IR_VERSION = 18, 8


class Writer:
    """A graph that grows. Values go by their names; `node` and `constant` return them."""

    def __init__(self) -> None:
        self.nodes: list[Any] = []
        self.constants: list[Any] = []
        self._names: set[str] = set()
        self._prefix = ""

    def reserve(self, name: str) -> str:
        """Keep a name for a value that is declared elsewhere: an input or an output."""
        self._names.add(name)
        return name

    def begin(self, layer: str) -> None:
        """Name what follows after a layer."""
        self._prefix = layer

    def node(self, operator: str, inputs: Sequence[str], **attributes: Any) -> str:
        """Append a node with one result, and return its name; attributes that are None are left out."""
        return self.nodes_of(operator, inputs, 1, **attributes)[0]

    def nodes_of(self, operator: str, inputs: Sequence[str], results: int, **attributes: Any) -> list[str]:
        """Append a node with some results, and return their names."""
        from onnx import helper

        outputs = [self._new(operator) for _ in range(results)]
        given = {name: value for name, value in attributes.items() if value is not None}
        name = f"{self._prefix} {operator} {len(self.nodes)}"
        self.nodes.append(helper.make_node(operator, list(inputs), outputs, name=name, **given))
        return outputs

    def constant(self, values: ArrayLike, what: str) -> str:
        """Add an array as it is, and return its name."""
        from onnx import numpy_helper

        name = self._new(what)
        self.constants.append(numpy_helper.from_array(np.ascontiguousarray(values), name))
        return name

    def number(self, value: float) -> str:
        """Add one number of the net's type."""
        return self.constant(np.float32(value), "number")

    def integers(self, values: Sequence[int], what: str = "axes") -> str:
        """Add a list of integers, as operators take axes and shapes."""
        return self.constant(np.array(values, np.int64), what)

    def weight(self, values: NDArray[Any], what: str) -> str:
        """Add a weight in the type in which ONNX computes."""
        return self.constant(values.astype(np.float32), what)

    def reshaped(self, x: str, before: Shape, after: Shape) -> str:
        """`x` in another shape, whatever its number of images: an axis 0 that both have is copied, else it is what is
        left of the others."""
        first = 0 if before and after and before[0] == after[0] else -1
        return self.node("Reshape", [x, self.integers([first, *after[1:]], "shape")])

    def _new(self, what: str) -> str:
        name = stem = f"{self._prefix}/{what}"
        number = 1
        while name in self._names:
            number += 1
            name = f"{stem} {number}"
        self._names.add(name)
        return name

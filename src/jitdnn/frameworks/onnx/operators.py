"""The table of all operators: one family of them a file, and no name twice."""

from __future__ import annotations

from jitdnn.frameworks.onnx import control, convolution, pooling, products, views
from jitdnn.frameworks.onnx.operator import Operator

_FAMILIES = (
    control.OPERATORS,
    convolution.OPERATORS,
    pooling.OPERATORS,
    products.OPERATORS,
    views.OPERATORS,
)
#: operators by domain and name
OPERATORS: dict[tuple[str, str], Operator] = {
    ("", name): operator for family in _FAMILIES for name, operator in family.items()
}

"""The table of all operators: one family of them a file, and no name twice."""

from __future__ import annotations

from jitdnn.frameworks.onnx import (
    activation,
    attention,
    control,
    convolution,
    elementwise,
    loss,
    movement,
    normalization,
    picking,
    pooling,
    products,
    random,
    recurrent,
    reduction,
    resize,
    sampling,
    sequences,
    softmax,
    views,
)
from jitdnn.frameworks.onnx.operator import Operator

_FAMILIES = (
    activation.OPERATORS,
    attention.OPERATORS,
    control.OPERATORS,
    convolution.OPERATORS,
    elementwise.OPERATORS,
    loss.OPERATORS,
    movement.OPERATORS,
    normalization.OPERATORS,
    picking.OPERATORS,
    pooling.OPERATORS,
    products.OPERATORS,
    random.OPERATORS,
    recurrent.OPERATORS,
    reduction.OPERATORS,
    resize.OPERATORS,
    sampling.OPERATORS,
    sequences.OPERATORS,
    softmax.OPERATORS,
    views.OPERATORS,
)
#: operators by domain and name
OPERATORS: dict[tuple[str, str], Operator] = {
    ("", name): operator for family in _FAMILIES for name, operator in family.items()
}

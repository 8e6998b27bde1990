"""Elementwise work on whole tensors: addition with broadcasting."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from jitdnn.handle import Handle
from jitdnn.ops.call import Op, Recipe, call, same_order
from jitdnn.problems.tensor_ops import AddTensor
from jitdnn.tensor import TensorDescriptor


def add(
    a: Any,
    b: Any = None,
    alpha: float = 1.0,
    beta: float = 0.0,
    out: Any = None,
    handle: Handle | None = None,
) -> Any:
    """Return alpha * (a + b) + beta * out, or without b alpha * a + beta * out.

    Operands are broadcast as in NumPy.

    `a`, `b`: 1 to 8 dimensions, float32 or float64. The result has the shape that they have together, or that
    of `out`, to which they are broadcast: `add(bias, out=y, beta=1.0)` adds a bias to y in place. It lies in
    memory as the first operand of its shape does. `out` may be a or b itself.

    Raises InvalidShape and InvalidType for what does not fit, InvalidArgument for an `out` that cannot be
    written.
    """
    if b is None:
        return call(_ADD, ("a",), (a,), (), out, alpha, beta, handle)
    return call(_ADD, ("a", "b"), (a, b), (), out, alpha, beta, handle)


def _make(inputs: Sequence[TensorDescriptor], out: TensorDescriptor | None) -> Recipe:
    a, b = inputs[0], inputs[1] if len(inputs) > 1 else None
    problem = AddTensor.make(a, b, out=out)
    if out is None:
        like = next((tensor for tensor in inputs if tensor.shape == problem.out.shape), problem.out)
        problem = AddTensor.make(a, b, out=same_order(like))
    return Recipe(problem)


_ADD = Op(_make, in_place=(0, 1), is_broadcast_to_out=True)

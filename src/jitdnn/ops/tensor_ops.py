"""Elementwise work on whole tensors: addition and other pairs with broadcasting, filling, scaling."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from jitdnn.arguments import real, word
from jitdnn.errors import InvalidType
from jitdnn.handle import Handle
from jitdnn.ops.call import Op, Recipe, call, same_order, scale_factor
from jitdnn.problems.tensor_ops import BINARY, UNARY, AddTensor, Fill, OpTensor
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

    `a`, `b`: 1 to 8 dimensions, float16, bfloat16, float32 or float64. The result has the shape that they have
    together, or that of `out`, to which they are broadcast: `add(bias, out=y, beta=1.0)` adds a bias to y in
    place. It lies in memory as the first operand of its shape does. `out` may be a or b itself.

    Raises InvalidShape and InvalidType for what does not fit, InvalidArgument for an `out` that cannot be
    written.
    """
    if b is None:
        return call(_ADD, ("a",), (a,), (), out, alpha, beta, handle)
    return call(_ADD, ("a", "b"), (a, b), (), out, alpha, beta, handle)


def op_tensor(
    a: Any,
    b: Any = None,
    operation: str = "add",
    a_scale: float = 1.0,
    b_scale: float = 1.0,
    alpha: float = 1.0,
    beta: float = 0.0,
    out: Any = None,
    handle: Handle | None = None,
) -> Any:
    """Return alpha * operation(a_scale * a, b_scale * b) + beta * out: cuDNN's OpTensor.

    `operation`: "add", "mul", "min", "max" of two operands, "sqrt" or "not" (1 - a) of one. Operands are broadcast
    as in NumPy, to the shape of `out` if it is given; 1 to 8 dimensions, of one real dtype. NaN propagates. `out` may
    be a or b itself. The scales are compiled in: for numbers that change at every call use `jd.elementwise`.

    Raises InvalidShape, InvalidType and InvalidArgument for what does not fit.
    """
    names, arrays = (("a",), (a,)) if b is None else (("a", "b"), (a, b))
    return call(_OP, names, arrays, (operation, a_scale, b_scale), out, alpha, beta, handle)


def multiply(
    a: Any, b: Any, alpha: float = 1.0, beta: float = 0.0, out: Any = None, handle: Handle | None = None
) -> Any:
    """Return alpha * a * b + beta * out; arguments and errors are those of `op_tensor`."""
    return op_tensor(a, b, "mul", alpha=alpha, beta=beta, out=out, handle=handle)


def fill(x: Any, value: float, handle: Handle | None = None) -> Any:
    """Set every element of x, of any dtype and strides, to `value`, and return x.

    Integers are rounded to the nearest and saturated. Raises InvalidArgument for an x that cannot be written.
    """
    return call(_FILL, (), (), (), _there(x), scale_factor("value", value), 0.0, handle)


def scale(x: Any, value: float, handle: Handle | None = None) -> Any:
    """Multiply every element of x, of any dtype and strides, by `value` in place, and return x.

    A `value` of 0 sets 0 whatever was there. Raises InvalidArgument for an x that cannot be written.
    """
    return call(_FILL, (), (), (), _there(x), 0.0, scale_factor("value", value), handle)


def _there(x: Any) -> Any:
    if x is None:
        raise InvalidType("x is None: it must be an array, whose elements are set")
    return x


def _make(inputs: Sequence[TensorDescriptor], out: TensorDescriptor | None) -> Recipe:
    a, b = inputs[0], inputs[1] if len(inputs) > 1 else None
    problem = AddTensor.make(a, b, out=out)
    if out is None:
        like = next((tensor for tensor in inputs if tensor.shape == problem.out.shape), problem.out)
        problem = AddTensor.make(a, b, out=same_order(like))
    return Recipe(problem)


_ADD = Op(_make, in_place=(0, 1), is_broadcast_to_out=True)


def _make_op(
    inputs: Sequence[TensorDescriptor],
    out: TensorDescriptor | None,
    operation: str,
    a_scale: float,
    b_scale: float,
) -> Recipe:
    a, b = inputs[0], inputs[1] if len(inputs) > 1 else None
    problem = OpTensor.make(operation, a, b, a_scale, b_scale, out)
    if out is None:
        like = next((tensor for tensor in inputs if tensor.shape == problem.out.shape), problem.out)
        problem = OpTensor.make(operation, a, b, a_scale, b_scale, same_order(like))
    return Recipe(problem)


def _make_fill(inputs: Sequence[TensorDescriptor], out: TensorDescriptor | None) -> Recipe:
    assert out is not None
    return Recipe(Fill(out))


_TAKES = (word("operation", (*BINARY, *UNARY)), real("a_scale"), real("b_scale"))

_OP = Op(_make_op, _TAKES, in_place=(0, 1), is_broadcast_to_out=True)
_FILL = Op(_make_fill, is_broadcast_to_out=True)

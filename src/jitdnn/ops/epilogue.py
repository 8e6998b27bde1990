"""Functions fused into the end of a convolution: their operands, and how one is known again untraced."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from types import CodeType, FunctionType, ModuleType
from typing import Any

import numpy as np

from jitdnn.errors import InvalidArgument, InvalidShape, InvalidType
from jitdnn.kernels.algorithm import Epilogue
from jitdnn.ops.call import callers_axes, logical_axes
from jitdnn.problems.problem import BYTE_INTEGERS
from jitdnn.rtcg.expression import Expression, trace
from jitdnn.tensor import TensorDescriptor, compute_dtype

Fused = Callable[..., Any] | Expression | None


def fuse(
    fused: Fused,
    operands: Sequence[TensorDescriptor],
    y: TensorDescriptor,
    layout: str | None,
    is_integer: bool = False,
) -> Epilogue | None:
    """Return the epilogue of a result y (N, K, space), None if there is nothing to do; without `fused`, a
    sum.

    `operands` have the caller's order of axes, `layout`. Raises InvalidArgument for a function of another
    number of values, InvalidShape for an operand that cannot be broadcast, InvalidType for one that is neither of
    the result's type nor of that of the arithmetic; behind products of 8-bit integers (`is_integer`) it may hold those.
    """
    if fused is None:
        if not operands:
            return None
        fused = _SUMS.get(len(operands))
        if fused is None:
            raise InvalidArgument(
                f"{len(operands)} operands and no epilogue: say by epilogue= what to do with them"
            )
    expression = trace(fused)
    if expression.arity != 1 + len(operands):
        raise InvalidArgument(
            f"the epilogue takes {expression.arity} values ({', '.join(expression.inputs)}) and gets "
            f"{1 + len(operands)}: the sum and {len(operands)} operands"
        )
    others = (compute_dtype(y.dtype), *(BYTE_INTEGERS if is_integer else ()))
    for operand in operands:
        if operand.dtype not in (y.dtype, *others):
            raise InvalidType(
                f"the result is {y.dtype} and an operand of the epilogue is {operand.dtype}: they must be of one "
                f"dtype, or the operand {' or '.join(others)}"
            )
    return Epilogue(expression, tuple(_broadcast(operand, y, layout) for operand in operands))


_SUMS: dict[int, Callable[..., Any]] = {1: lambda acc, b: acc + b, 2: lambda acc, b, r: acc + b + r}


def _broadcast(operand: TensorDescriptor, y: TensorDescriptor, layout: str | None) -> TensorDescriptor:
    """An operand of the epilogue with the shape of y, its axes as (N, K, space)."""
    rank = len(y.shape)
    if len(operand.shape) == 1:
        if operand.shape[0] not in (1, y.shape[1]):
            raise InvalidShape(
                f"a bias has {operand.shape[0]} elements, the result has {y.shape[1]} channels: they must be "
                "equal"
            )
        for axis in (1,) * (rank - 2):
            operand = operand.insert_axis(axis)
        return operand.broadcast_to(y.shape)
    axes = callers_axes(layout, rank)
    shape = y.shape if axes is None else tuple(y.shape[axis] for axis in axes)
    try:
        wide = operand.broadcast_to(shape)
    except InvalidShape as error:
        raise InvalidShape(f"an operand of the epilogue does not fit the result: {error}") from None
    axes = logical_axes(layout, rank)
    return wide if axes is None else wide.transpose(axes)


def epilogue_key(epilogue: Fused) -> tuple[Fused, Hashable]:
    """Return the epilogue, and a key that tells it from others; traced only where no key does.

    A lambda in a loop is a new function on every turn, with the same code; two functions of the same code
    differ if the variables do that they read.
    """
    if epilogue is None or isinstance(epilogue, Expression):
        return epilogue, epilogue
    key = _function_key(epilogue) if isinstance(epilogue, FunctionType) else None
    if key is None:
        expression = trace(epilogue)
        return expression, expression
    return epilogue, key


def _function_key(function: FunctionType, depth: int = 4) -> Hashable:
    """The code of a function and the values of the variables that it reads; None if they may change unseen.

    Functions of the caller's that it calls are looked into as well, `depth` calls deep.
    """
    if _is_constant(function.__module__):
        return function
    code = function.__code__
    if depth == 0 or any(isinstance(constant, CodeType) for constant in code.co_consts):
        return None
    values = [*(function.__defaults__ or ()), *(function.__globals__.get(name) for name in code.co_names)]
    for cell in function.__closure__ or ():
        try:
            values.append(cell.cell_contents)
        except ValueError:  # a variable that has no value yet
            return None
    parts: list[Any] = [code]
    for value in values:
        part = _value_key(value, depth - 1)
        if part is None:
            return None
        parts.append(part)
    return tuple(parts)


def _value_key(value: Any, depth: int) -> Hashable:
    """What tells a value that a function reads from others; None if its content may change."""
    if value is None or isinstance(value, (bool, int, float)):
        # by their text: 0.0 == -0.0 and 1 == True, but they compute different things
        return repr(value)
    if isinstance(value, FunctionType):
        return _function_key(value, depth)
    if isinstance(value, ModuleType):
        return value if _is_constant(value.__name__) else None
    return value if isinstance(value, (Expression, np.ufunc)) else None


def _is_constant(module: str | None) -> bool:
    return module is not None and module.partition(".")[0] in ("jitdnn", "numpy")

"""Expressions as code of the tracing DSL: one vector operation for each step."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any

from jitdnn.rtcg import (
    vector_angles,
    vector_integers,
    vector_logarithm,
    vector_math,
    vector_normal,
    vector_power,
    vector_rounding,
)
from jitdnn.rtcg.builder import Builder, Value
from jitdnn.rtcg.expression import Expression

# A constant stays a Python number until it meets a value: the builder makes it the right vector there.
Term = Value | float

_OPERATORS: dict[str, Callable[..., Any]] = {
    "add": operator.add,
    "subtract": operator.sub,
    "multiply": operator.mul,
    "divide": operator.truediv,
    "negative": operator.neg,
    "less": operator.lt,
    "less_equal": operator.le,
    "greater": operator.gt,
    "greater_equal": operator.ge,
    "equal": operator.eq,
    "not_equal": operator.ne,
    "logical_and": operator.and_,
    "logical_or": operator.or_,
    "logical_not": operator.invert,
}
_FUNCTIONS: dict[str, Callable[[Builder, Value], Value]] = {
    "absolute": vector_math.absolute,
    "sqrt": vector_math.sqrt,
    "exp": vector_math.exp,
    "exp2": vector_logarithm.exp2,
    "expm1": vector_math.expm1,
    "log": vector_math.log,
    "log2": vector_logarithm.log2,
    "log10": vector_logarithm.log10,
    "log1p": vector_math.log1p,
    "tanh": vector_math.tanh,
    "sigmoid": vector_math.sigmoid,
    "log1pexp": vector_math.log1pexp,
    "erf": vector_math.erf,
    "upper_tail": vector_normal.normal_tail,
    "normal_density": vector_normal.normal_density,
    "floor": vector_rounding.floor,
    "ceil": vector_rounding.ceil,
    "trunc": vector_rounding.trunc,
    "rint": vector_rounding.rint,
    "sign": vector_rounding.sign,
    "sin": vector_angles.sin,
    "cos": vector_angles.cos,
    "tan": vector_angles.tan,
    "arctan": vector_angles.arctan,
}
_PAIRS: dict[str, Callable[[Builder, Value, Value], Value]] = {
    "power": vector_power.power,
    "fmod": vector_rounding.fmod,
    "remainder": vector_rounding.remainder,
    "floor_divide": vector_rounding.floor_divide,
    "arctan2": vector_angles.arctan2,
}


def lower(k: Builder, expression: Expression, inputs: Sequence[Value], dtype: str | None = None) -> Value:
    """Trace the expression over vectors of one element type: f32 or f64, or i64 for what integers have.

    The result has as many lanes as the widest input; an input with one lane stands for all of them. ``dtype`` is
    needed where there are no inputs.
    """
    lanes = max((value.lanes for value in inputs), default=1)
    if dtype is None:
        dtype = vector_math.element_of(inputs[0]) if inputs[0].is_float else "i64"

    def apply(name: str, arguments: list[Term]) -> Term:
        if not any(isinstance(argument, Value) for argument in arguments):
            arguments[0] = k.constant(float(arguments[0]), dtype)  # type: ignore[arg-type]
        if dtype == "i64" and (name in _FUNCTIONS or vector_integers.takes(name)):
            return vector_integers.apply(k, name, _same_lanes(k, arguments, dtype))
        if name in _OPERATORS:
            result: Value = _OPERATORS[name](*arguments)
            return result
        if name in _FUNCTIONS:
            (x,) = arguments
            assert isinstance(x, Value)
            return _FUNCTIONS[name](k, x)
        if name in _PAIRS:
            return _PAIRS[name](k, *_same_lanes(k, arguments, dtype))
        if name == "where":
            return _where(k, arguments, dtype)
        return _extreme(k, name, arguments[0], arguments[1])

    terms: list[Term] = list(inputs)
    result = expression.interpret(terms, _number, apply)
    if not isinstance(result, Value):
        return k.constant(result, dtype, lanes)
    return k.splat(result, lanes)


def lower_together(
    k: Builder, expression: Expression, inputs: Sequence[Sequence[Value]], dtype: str | None = None
) -> list[Value]:
    """The expression over several sets of inputs, as many as a power of two, step by step.

    Each step is done for all of them before the next one, so that the processor, which sees a part of the code only,
    always finds work that waits for nothing.
    """
    joined = [
        column[0] if all(value is column[0] and value.lanes == 1 for value in column) else k.join(column)
        for column in zip(*inputs, strict=True)
    ]
    lanes = max((value.lanes for values in inputs for value in values), default=1)
    result = lower(k, expression, joined, dtype)
    if result.lanes == 1:
        return [result] * len(inputs)
    return k.split(result, lanes)


def _same_lanes(k: Builder, arguments: list[Term], dtype: str) -> list[Value]:
    lanes = max(argument.lanes for argument in arguments if isinstance(argument, Value))
    return [
        k.splat(argument, lanes) if isinstance(argument, Value) else k.constant(argument, dtype, lanes)
        for argument in arguments
    ]


def _number(value: float) -> Term:
    return value


def _where(k: Builder, arguments: list[Term], dtype: str) -> Value:
    condition, yes, no = arguments
    assert isinstance(condition, Value)
    if not isinstance(yes, Value) and not isinstance(no, Value):
        yes = k.constant(yes, dtype, condition.lanes)
    lanes = max(x.lanes for x in (condition, yes, no) if isinstance(x, Value))
    if condition.lanes < lanes:
        condition = k.splat(condition, lanes)
    return k.select(condition, yes, no)


def _extreme(k: Builder, name: str, a: Term, b: Term) -> Value:
    """Minimum or maximum, NaN if either is; a constant needs one instruction."""
    if not isinstance(a, Value):
        a, b = b, a
    assert isinstance(a, Value)
    if not isinstance(b, Value):
        if b != b:
            return k.select(a != a, a, b)
        return vector_math.at_least(k, a, b) if name == "maximum" else vector_math.at_most(k, a, b)
    return vector_math.maximum(k, a, b) if name == "maximum" else vector_math.minimum(k, a, b)

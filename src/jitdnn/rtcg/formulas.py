"""Functions of several results, and formulas as text: both become expressions.

x, y: t = exp(x); t + y, t * y         two results of two inputs; names are assigned on the way
a * x + y                              without a list of inputs they are taken as they come
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from jitdnn.arguments import shown
from jitdnn.errors import InvalidArgument
from jitdnn.rtcg.expression import Expression, Graph, finish, traced_call
from jitdnn.rtcg.formula_text import read_formula

_LONG = 1000  # characters of a formula that is read anew each time


class Formula(NamedTuple):
    """Results of the same inputs, and which of them are conditions, written as 1 and 0."""

    results: tuple[Expression, ...]
    is_truth: tuple[bool, ...]


def formula(function: Callable[..., Any] | Expression | str | Formula) -> Formula:
    """The formula of a Python function, which may return a tuple, of a traced expression, or of text.

    Raises InvalidArgument where the function does what cannot be traced, ParseError for text.
    """
    if isinstance(function, Formula):
        return function
    if isinstance(function, Expression):
        return Formula((function,), (False,))
    if isinstance(function, str):
        return parse_formula(function)
    try:
        parameters = inspect.signature(function).parameters.values()
    except Exception as error:  # of objects that look like functions too
        raise InvalidArgument(
            f"{shown(function)} cannot be traced: give a Python function or a lambda"
        ) from error
    for parameter in parameters:
        if parameter.kind not in (parameter.POSITIONAL_ONLY, parameter.POSITIONAL_OR_KEYWORD):
            raise InvalidArgument(
                f"parameter {parameter} of the traced function: only positional parameters become inputs"
            )
    return formula_of([one.name for one in parameters if one.default is one.empty], function)


def formula_of(names: Sequence[str], function: Callable[..., Any]) -> Formula:
    """The formula of a function of as many inputs as there are names."""
    graph = Graph(names)
    results = traced_call(function, graph)
    return _finish(graph, results if isinstance(results, tuple) else (results,))


def _finish(graph: Graph, results: Sequence[object]) -> Formula:
    if not results:
        raise InvalidArgument("the function returns no result: return a value, or a tuple of values")
    expressions, truths = [], []
    for result in results:
        value = graph.lift(result)
        is_truth = graph.is_truth(value)
        if is_truth:
            value = graph.apply("where", (value, 1.0, 0.0))
        expressions.append(finish(graph, value))
        truths.append(is_truth)
    return Formula(tuple(expressions), tuple(truths))


_WHOLE = frozenset(
    {
        *("add", "subtract", "multiply", "negative", "absolute", "minimum", "maximum", "where", "input"),
        *("less", "less_equal", "greater", "greater_equal", "equal", "not_equal"),
        *("logical_and", "logical_or", "logical_not"),
        *("floor", "ceil", "trunc", "rint", "fmod", "sign", "remainder", "floor_divide"),
    }
)


def is_whole(expression: Expression) -> bool:
    """True if of integers the expression makes integers, by operations that integers have."""
    return all(
        step.number.is_integer() if step.operation == "constant" else step.operation in _WHOLE
        for step in expression.instructions
    )


def parse_formula(text: str) -> Formula:
    """The formula that `text` writes, as the module's heading shows. Raises ParseError with the place."""
    return _parsed(text) if len(text) <= _LONG else _finish(*read_formula(text))


@functools.lru_cache(256)
def _parsed(text: str) -> Formula:
    """Of short texts: the layers of a net give the same few a hundred times, and each takes milliseconds to read."""
    return _finish(*read_formula(text))

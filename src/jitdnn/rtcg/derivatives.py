"""How the operations of the expression language change with their arguments."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import cast

from jitdnn.rtcg.operations import OPERATIONS
from jitdnn.rtcg.tracing import Graph, Traced, apply, where


def tangent_of(
    graph: Graph, operation: str, x: Sequence[Traced], y: Traced, t: Sequence[Traced | None]
) -> Traced | None:
    """The change of y = operation(x) when the arguments change by t (None: not at all)."""
    if OPERATIONS[operation].is_truth or operation in _FLAT:
        return None
    zero = graph.constant(0.0)
    a = t[0]
    if operation in ("add", "subtract"):
        b = t[1]
        if b is None:
            return a
        if a is None:
            return b if operation == "add" else -b
        return a + b if operation == "add" else a - b
    if operation == "multiply":
        b = t[1]
        if a is None or b is None:
            return x[0] * b if b is not None else a * x[1] if a is not None else None
        return a * x[1] + x[0] * b
    if operation == "divide":
        b = t[1]
        if b is None:
            return a / x[1] if a is not None else None
        return (a - y * b) / x[1] if a is not None else -(y * b) / x[1]
    if operation in ("maximum", "minimum"):
        first = x[0] > x[1] if operation == "maximum" else x[0] < x[1]
        return graph.apply("where", (first, zero if a is None else a, zero if t[1] is None else t[1]))
    if operation == "where":
        chosen = [zero if change is None else change for change in t[1:]]
        return graph.apply("where", (x[0], *chosen))
    if operation in ("power", "fmod", "remainder", "arctan2"):
        return _tangent_of_pair(graph, operation, x, y, t)
    assert a is not None  # one argument is left, and it changes
    return _DERIVATIVES[operation](x[0], y) * a


def _tangent_of_pair(
    graph: Graph, operation: str, x: Sequence[Traced], y: Traced, t: Sequence[Traced | None]
) -> Traced:
    a, b = x
    first = second = None
    if operation == "arctan2":
        square = a * a + b * b
        first = None if t[0] is None else t[0] * b / square
        second = None if t[1] is None else -(t[1] * a) / square
        return _sum(first, second)
    if t[0] is not None:
        first = t[0] if operation != "power" else t[0] * _slope_of_base(a, b)
    if t[1] is not None:
        if operation == "power":
            # 0 to a power changes from 1 to 0 at once, and no more
            second = t[1] * where(a == 0.0, 0.0, y * graph.apply("log", (a,)))
        else:
            second = t[1] * -graph.apply("trunc" if operation == "fmod" else "floor", (a / b,))
    return _sum(first, second)


def _slope_of_base(a: Traced, b: Traced) -> Traced:
    slope: Traced = where(b == 0.0, 0.0, b * apply("power", a, b - 1.0))
    return slope


def _sum(first: Traced | None, second: Traced | None) -> Traced:
    if first is None or second is None:
        return first if first is not None else cast(Traced, second)
    return first + second


def _bell(e: Traced) -> Traced:
    """The slope of the sigmoid from e = exp(-|x|): unlike y (1 - y), it keeps its digits far from 0."""
    return e / ((1.0 + e) * (1.0 + e))


# what is constant but for jumps
_FLAT = frozenset({"floor", "ceil", "trunc", "rint", "sign", "floor_divide"})

# d operation(x) / dx, from x and from y = operation(x)
_DERIVATIVES: Mapping[str, Callable[[Traced, Traced], Traced]] = {
    "negative": lambda x, y: x.graph.constant(-1.0),
    "absolute": lambda x, y: where(x > 0.0, 1.0, where(x < 0.0, -1.0, 0.0)),
    "sqrt": lambda x, y: 0.5 / y,
    "exp": lambda x, y: y,
    "exp2": lambda x, y: math.log(2.0) * y,
    "expm1": lambda x, y: apply("exp", x),
    "log": lambda x, y: 1.0 / x,
    "log2": lambda x, y: (1.0 / math.log(2.0)) / x,
    "log10": lambda x, y: (1.0 / math.log(10.0)) / x,
    "log1p": lambda x, y: 1.0 / (1.0 + x),
    "tanh": lambda x, y: 4.0 * _bell(apply("exp", -2.0 * abs(x))),
    "sigmoid": lambda x, y: _bell(apply("exp", -abs(x))),
    "sin": lambda x, y: apply("cos", x),
    "cos": lambda x, y: -apply("sin", x),
    "tan": lambda x, y: 1.0 + y * y,
    "arctan": lambda x, y: 1.0 / (1.0 + x * x),
    "log1pexp": lambda x, y: apply("sigmoid", x),
    "upper_tail": lambda x, y: -apply("normal_density", x),
    # bounded where the density is 0 already: infinity times zero is nothing
    "normal_density": lambda x, y: -(apply("maximum", apply("minimum", x, 40.0), -40.0) * y),
    "erf": lambda x, y: (2.0 / math.sqrt(math.pi)) * apply("exp", -(x * x)),
}

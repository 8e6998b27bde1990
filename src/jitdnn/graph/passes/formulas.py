"""Formulas put into formulas."""

from __future__ import annotations

import math
from collections.abc import Sequence

from jitdnn.graph.ir import Value
from jitdnn.ops.user_kernel import computing_dtype
from jitdnn.rtcg.expression import Expression, Graph, finish
from jitdnn.rtcg.formulas import Formula
from jitdnn.rtcg.tracing import Traced
from jitdnn.tensor import dtype_name

MOST_STEPS = 96
MOST_INPUTS = 12


def composed(
    outer: Expression, parts: Sequence[Expression | float | None]
) -> tuple[Expression, list[tuple[int, int]]]:
    """`outer` with each of its inputs computed by a formula of its own, or a number, or as it is (None).

    Also where each input of the result comes from: (input of `outer`, input of its part, 0 without one).
    """
    origins = [
        (number, inner)
        for number, part in enumerate(parts)
        if not isinstance(part, float)
        for inner in range(1 if part is None else part.arity)
    ]
    graph = Graph([f"x{number}" for number in range(len(origins))])
    places = {origin: graph.input(number) for number, origin in enumerate(origins)}
    values: list[Traced] = []
    for number, part in enumerate(parts):
        if isinstance(part, float):
            values.append(graph.constant(part))
        elif part is None:
            values.append(places[number, 0])
        else:
            given = [places[number, inner] for inner in range(part.arity)]
            values.append(part.interpret(given, graph.constant, graph.apply))
    return finish(graph, outer.interpret(values, graph.constant, graph.apply)), origins


def merged(expression: Expression, inputs: Sequence[Value]) -> tuple[Expression, tuple[Value, ...]]:
    """The same formula with each value an input once, and none that it does not read."""
    used = expression.used()
    kept = list(dict.fromkeys(value for number, value in enumerate(inputs) if number in used)) or list(
        inputs[:1]
    )
    if kept == list(inputs):
        return expression, tuple(inputs)
    graph = Graph([f"x{number}" for number in range(len(kept))])
    place = {value: graph.input(number) for number, value in enumerate(kept)}
    given = [place.get(value, place[kept[0]]) for value in inputs]
    return finish(graph, expression.interpret(given, graph.constant, graph.apply)), tuple(kept)


def computing(expression: Expression, inputs: Sequence[Value], output: Value) -> str:
    """The type in which a formula over these values is computed."""
    names = [dtype_name(value.dtype) or "" for value in (*inputs, output)]
    return computing_dtype(Formula((expression,), (False,)), names)


def number_of(value: Value) -> float | None:
    """The number that a constant of one element is, None if formulas cannot hold it."""
    if value.array is None or value.size != 1 or value.dtype.kind not in "fiu":
        return None
    number = float(value.array.reshape(()).item())
    return number if math.isfinite(number) and abs(number) < 2**53 else None

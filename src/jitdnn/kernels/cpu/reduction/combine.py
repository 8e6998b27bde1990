"""How the results of reductions are put together: lanes, accumulators, parts of rows."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence

from jitdnn.kernels.formulas.row_programs import ARGS
from jitdnn.rtcg.builder import Builder, Value
from jitdnn.rtcg.folds import Fold, Reduction
from jitdnn.rtcg.lowering import lower

State = tuple[Value, ...]
"""What a reduction has so far: a value, or a value and the position where it was found."""

_IDENTITY = {
    "add": 0.0,
    "multiply": 1.0,
    "max": -math.inf,
    "min": math.inf,
    "max_number": -math.inf,
    "min_number": math.inf,
    "argmax": -math.inf,
    "argmin": math.inf,
    "first": 0.0,
}
NOWHERE = {"i32": 2**31 - 1, "i64": 2**63 - 1}  # the position of the value of no element


def identity(k: Builder, name: Reduction, dtype: str, position_dtype: str, lanes: int) -> State:
    """The result over no element; `dtype` is that of values, `position_dtype` that of positions."""
    if isinstance(name, Fold):
        return (k.constant(name.neutral, dtype, lanes),)
    number = _IDENTITY[name]
    if dtype == "i64" and math.isinf(number):
        number = NOWHERE["i64"] if number > 0 else -NOWHERE["i64"] - 1
    value = k.constant(number, dtype, lanes)
    return (value, k.constant(NOWHERE[position_dtype], position_dtype, lanes)) if name in ARGS else (value,)


def combine(k: Builder, name: Reduction, a: State, b: State) -> State:
    """Two results as one. `a` is the one of earlier elements; positions do not depend on that."""
    if isinstance(name, Fold):
        return (lower(k, name.expression, [a[0], b[0]]),)
    if name == "add":
        return (a[0] + b[0],)
    if name == "multiply":
        return (a[0] * b[0],)
    if name == "max":
        return (k.select(b[0] != b[0], b[0], b[0].max(a[0])),)  # of an a that is NaN max makes a
    if name == "min":
        return (k.select(b[0] != b[0], b[0], b[0].min(a[0])),)
    if name == "max_number":
        return (b[0].max(a[0]),)
    if name == "min_number":
        return (b[0].min(a[0]),)
    if name == "first":
        return a
    (best, at), (value, here) = a, b
    is_nan, was_nan = value != value, best != best
    beyond = value > best if name == "argmax" else value < best
    beyond = beyond | (is_nan & ~was_nan)
    equal = (value == best) | (is_nan & was_nan)
    takes = beyond | (equal & (here < at))
    return k.select(takes, value, best), k.select(takes, here, at)


def combine_all(k: Builder, name: Reduction, states: Sequence[State]) -> State:
    """Many results as one: neighbours first, which keeps rounding errors small."""
    states = list(states)
    while len(states) > 1:
        pairs = [combine(k, name, *states[i : i + 2]) for i in range(0, len(states) - 1, 2)]
        states = pairs + states[2 * len(pairs) :]
    return states[0]


def combine_lanes(k: Builder, name: Reduction, state: State) -> State:
    """The lanes of one result as one scalar."""
    while state[0].lanes > 1:
        half = state[0].lanes // 2
        cut: Callable[[Value, int], Value] = functools.partial(_half, k, half)
        low, high = tuple(cut(v, 0) for v in state), tuple(cut(v, half) for v in state)
        state = combine(k, name, low, high)
    return state


def _half(k: Builder, half: int, value: Value, start: int) -> Value:
    return k.shuffle(value, value, range(start, start + half)) if half > 1 else k.extract(value, start)


def only(k: Builder, name: Reduction, state: State, nothing: State, mask: Value | None) -> State:
    """The state where the mask is on, else that of no element."""
    if mask is None:
        return state
    return tuple(k.select(mask, value, none) for value, none in zip(state, nothing, strict=True))

"""How partial results of a reduction are combined in the text of kernels: elements, threads, parts of rows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from jitdnn.kernels.formulas.row_programs import ARGS
from jitdnn.rtcg.c_source import c_constant
from jitdnn.rtcg.folds import Fold, Reduction

_INFINITY = float("inf")
_NOTHING = {
    "add": 0.0, "multiply": 1.0, "max": -_INFINITY, "min": _INFINITY, "max_number": -_INFINITY,
    "min_number": _INFINITY, "argmax": -_INFINITY, "argmin": _INFINITY, "first": 0.0,
}  # fmt: skip
_NOWHERE = {"i32": "2147483647", "i64": "9223372036854775807"}  # the position of the value of no element
_ORDERED = ("moments", "powers")  # which are rounded otherwise in the other order
_SYMMETRIC = ("add", "multiply", "max_number", "min_number")  # the same of two numbers in either order


class State(NamedTuple):
    """A number of what a reduction has so far: an array's name, its type, and what it is for no element.

    `is_single`: one for all columns of a thread.
    """

    name: str
    type: str
    nothing: str
    is_single: bool = False


def states_of(name: Reduction, stem: str, real: str, index: str) -> list[State]:
    """The numbers of a reduction; the row values are the first ones."""
    if isinstance(name, Fold):
        return [State(stem, real, c_constant(name.neutral, real))]
    if name == "moments":
        return [State(stem, real, "0"), State(stem + "b", real, "0"), State(stem + "c", real, "0", True)]
    if name == "powers":
        return [State(stem, real, c_constant(-_INFINITY, real)), State(stem + "b", real, "0")]
    value = State(stem, real, c_constant(_NOTHING[name], real))
    return [value, State(stem + "b", index, _NOWHERE[index])] if name in ARGS else [value]


def combined(
    name: Reduction, a: Sequence[str], b: Sequence[str], real: str, own: Callable[[Fold], str]
) -> list[str]:
    """Statements that put b behind a. `own` gives the name of the function of a reduction of the user's.

    Of moments the counts stay as they are: `counts_added` adds them up.
    """
    if isinstance(name, Fold):
        return [f"{a[0]} = {own(name)}({a[0]}, {b[0]});"]
    if name == "add":
        return [f"{a[0]} += {b[0]};"]
    if name == "multiply":
        return [f"{a[0]} *= {b[0]};"]
    if name in ARGS:
        beyond = f"is_beyond_{name[3:]}_{real}({a[0]}, {a[1]}, {b[0]}, {b[1]})"
        return [f"if ({beyond}) {{ {a[0]} = {b[0]}; {a[1]} = {b[1]}; }}"]
    if name in _ORDERED:
        return [f"MERGE_{name}({real}, {', '.join(a)}, {', '.join(b)})"]
    if name == "first":
        return []
    return [f"{a[0]} = fold_{name}_{real}({a[0]}, {b[0]});"]


def counts_added(name: Reduction, a: Sequence[str], b: Sequence[str]) -> list[str]:
    """What comes after `combined` for all columns of a thread."""
    return [f"{a[2]} += {b[2]};"] if name == "moments" else []


def combine_threads(
    name: Reduction,
    states: Sequence[State],
    real: str,
    own: Callable[[Fold], str],
    width: int,
    columns: int,
    row_threads: int,
) -> list[str]:
    """Statements after which every thread has the result of its row, in the states' arrays of `width` numbers.

    The threads of a row are `columns` apart. More than a warp of them are the whole thread block.
    """
    lines = []
    if columns < 32 and row_threads > 1:
        lines += _exchanged(name, states, real, own, width, columns, min(32, columns * row_threads))
    if columns * row_threads > 32 and row_threads > 1:
        lines += _over_warps(name, states, real, own, width, min(columns, 32), columns * row_threads // 32)
    return lines


def _exchanged(
    name: Reduction,
    states: Sequence[State],
    real: str,
    own: Callable[[Fold], str],
    width: int,
    first: int,
    end: int,
) -> list[str]:
    """Threads of a warp, whose numbers differ in one bit after the other."""
    many, single = [s for s in states if not s.is_single], [s for s in states if s.is_single]
    loop = f"UNROLL for (int d = {first}; d < {end}; d <<= 1) {{"
    if name in _SYMMETRIC:
        (s,) = states
        together = combined(name, [f"{s.name}[v]"], [f"{s.name}_o"], real, own)
        return [
            loop, f"UNROLL for (int v = 0; v < {width}; v++) {{", f"{s.type} {s.name}_o;",
            f"EXCHANGE({s.type}, {s.name}[v], d, {s.name}_o)", *together, "}", "}",
        ]  # fmt: skip
    lines = [loop, "const int is_later = (THREAD_ID & d) != 0;"]
    for s in single:
        lines += [
            f"{s.type} {s.name}_o;",
            f"EXCHANGE({s.type}, {s.name}[0], d, {s.name}_o)",
            *_in_order(s, "0"),
        ]
    lines.append(f"UNROLL for (int v = 0; v < {width}; v++) {{")
    for s in many:
        lines += [
            f"{s.type} {s.name}_o;",
            f"EXCHANGE({s.type}, {s.name}[v], d, {s.name}_o)",
            *_in_order(s, "v"),
        ]
    a, b = [f"{s.name}_a" for s in states], [f"{s.name}_z" for s in states]
    lines += combined(name, a, b, real, own)
    lines += [f"{s.name}[v] = {s.name}_a;" for s in many]
    lines += ["}", *counts_added(name, a, b), *(f"{s.name}[0] = {s.name}_a;" for s in single), "}"]
    return lines


def _in_order(s: State, index: str) -> list[str]:
    """Both numbers in their order, so that both threads get the same result."""
    return [
        f"{s.type} {s.name}_a = is_later ? {s.name}_o : {s.name}[{index}];",
        f"const {s.type} {s.name}_z = is_later ? {s.name}[{index}] : {s.name}_o;",
    ]


def _over_warps(
    name: Reduction,
    states: Sequence[State],
    real: str,
    own: Callable[[Fold], str],
    width: int,
    columns: int,
    count: int,
) -> list[str]:
    """Warps through shared memory: by exchanges again, or one after the other where columns differ."""
    many, single = [s for s in states if not s.is_single], [s for s in states if s.is_single]
    lines = ["{"]
    for s in states:
        lines.append(f"SHARED {s.type} {s.name}_space[{count * columns * (1 if s.is_single else width)}];")
    at = f"(THREAD_ID / 32 * {columns} + THREAD_ID % {columns})"
    lines.append(f"if (THREAD_ID % 32 < {columns}) {{")
    lines += [f"{s.name}_space[{at}] = {s.name}[0];" for s in single]
    lines.append(f"UNROLL for (int v = 0; v < {width}; v++) {{")
    lines += [f"{s.name}_space[{at} * {width} + v] = {s.name}[v];" for s in many]
    lines += ["}", "}", "BARRIER();"]
    if columns == 1:
        # every warp takes up the results of all
        at = f"(THREAD_ID % {count})"
        lines += [f"{s.name}[0] = {s.name}_space[{at}];" for s in single]
        lines.append(f"UNROLL for (int v = 0; v < {width}; v++) {{")
        lines += [*(f"{s.name}[v] = {s.name}_space[{at} * {width} + v];" for s in many), "}"]
        return [*lines, *_exchanged(name, states, real, own, width, 1, count), "}"]
    at = f"(THREAD_ID % {columns})"
    lines += [f"{s.name}[0] = {s.name}_space[{at}];" for s in single]
    lines.append(f"UNROLL for (int v = 0; v < {width}; v++) {{")
    lines += [f"{s.name}[v] = {s.name}_space[{at} * {width} + v];" for s in many]
    lines += ["}", f"UNROLL for (int g = 1; g < {count}; g++) {{"]
    at = f"(g * {columns} + THREAD_ID % {columns})"
    lines += [f"const {s.type} {s.name}_z = {s.name}_space[{at}];" for s in single]
    lines.append(f"UNROLL for (int v = 0; v < {width}; v++) {{")
    lines += [f"const {s.type} {s.name}_z = {s.name}_space[{at} * {width} + v];" for s in many]
    a = [f"{s.name}[0]" if s.is_single else f"{s.name}[v]" for s in states]
    b = [f"{s.name}_z" for s in states]
    lines += [*combined(name, a, b, real, own), "}", *counts_added(name, a, b), "}"]
    return [*lines, "}"]

"""Rows in parts as text: what a part leaves in the workspace, how all parts come together, and how that is taken up.

Each number of a reduction has a region of the workspace: that of every part, then that of every row.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from jitdnn.kernels.formulas.row_programs import Phase, Program
from jitdnn.kernels.gpu.reduction.combine import State, combine_threads, combined, counts_added, states_of
from jitdnn.kernels.gpu.reduction.layout import Layout

if TYPE_CHECKING:
    from jitdnn.kernels.gpu.reduction.code import Text


def partial_states(program: Program, compute: str, index: str) -> list[State]:
    """Every number that a part leaves, of all passes."""
    found = []
    for number, row_pass in enumerate(program.passes):
        for r, (name, _) in enumerate(row_pass.reductions):
            found += states_of(name, f"s{number}_{r}", compute, index)
    return found


def region_bytes(layout: Layout) -> int:
    """Bytes of the workspace for one number of every part and of every row."""
    return layout.rows * (layout.parts + 1) * 8


def _regions(text: Text, number: int) -> list[tuple[State, str]]:
    """The numbers of a pass, and where theirs are in the workspace."""
    every = partial_states(text.program, text.real, text.index)
    found = []
    for region, state in enumerate(every):
        if state.name.startswith(f"s{number}_"):
            stored = "i64" if state.type != text.real else text.real
            found.append((state, f"((GLOBAL {stored} *)(workspace + {region} * region))"))
    return found


def leave(text: Text, number: int) -> None:
    """Store what the part has of a pass's reductions."""
    text.put("if (t == 0 && is_on) {")
    for state, region in _regions(text, number):
        if text.layout.over_rows:
            index = "v" if text.width > 1 and not state.is_single else "0"
            stored = f"{region}[part * rows + number + column] = {state.name}[{index}];"
            text.put(*text.over_columns(f"if (is_column) {stored}"))
        else:
            text.put(f"{region}[number * parts + part] = {state.name}[0];")
    text.put("}")


def restore(text: Text, number: int) -> None:
    """The row values of a pass, from what its join left."""
    text.known[number] = len(text.bound)
    for state, region in _regions(text, number):
        text.put(f"{state.type} {state.name}[{text.width}];")
        if text.layout.over_rows and not text.combines_parts:
            place = f"is_column ? ({state.type}){region}[parts * rows + number + column] : 0"
            text.put(*text.over_columns(f"{state.name}[v] = {place};"))
        else:
            text.put(f"{state.name}[0] = is_on ? ({state.type}){region}[parts * rows + number] : 0;")
    text.add_values(number)


def write_combination(text: Text, name: str, phase: Phase, is_last: bool) -> None:
    """The results of all parts as one, by a team for every row; after the last reductions, the row outputs."""
    layout, passes, row_threads = text.layout, text.program.passes, text.layout.combine_threads_a_row
    text.begin(name, layout.combine_block_threads)
    text.width, text.combines_parts = 1, True
    kind = "u32" if layout.rows < 2**31 else "i64"
    text.put(
        f"const int t = THREAD_ID % {row_threads};",
        f"{kind} unit = ({kind})BLOCK_ID(0) * {layout.combine_block_threads // row_threads} + THREAD_ID / {row_threads};",
        f"const int is_on = unit < ({kind})rows;",
        "const i64 number = unit;",
    )
    axes = [(f"kept{a}", f"kept{a}") for a in range(len(layout.kept))]
    text.put_bases(kind, [*axes, ("lanes", "lane0")] if layout.over_rows else axes)
    # neighbouring parts to a thread, so that they stay in order
    text.put(f"const i64 share = (parts + {row_threads - 1}) / {row_threads}, from = t * share;")
    text.put("const i64 to = !is_on ? from : from + share < parts ? from + share : parts;")
    for number in range(phase.first):
        restore(text, number)
    for number in range(phase.first, phase.end):
        _combine_parts(text, number, row_threads)
    if is_last and text.program.row_outputs:
        for number in range(phase.end, len(passes)):
            assert not passes[number].reductions, "the last reductions are those of the phase"
            text.add_values(number)
        text.put_row_outputs("t == 0 && is_on")
    text.put("}", "")
    text.combines_parts = False


def _combine_parts(text: Text, number: int, row_threads: int) -> None:
    regions = dict(_regions(text, number))
    place = "part * rows + number" if text.layout.over_rows else "number * parts + part"
    for r, (reduction, _) in enumerate(text.program.passes[number].reductions):
        states = states_of(reduction, f"s{number}_{r}", text.real, text.index)
        text.put(*(f"{s.type} {s.name}[1] = {{{s.nothing}}};" for s in states))
        loads = [f"const {s.type} {s.name}_n = ({s.type}){regions[s]}[{place}];" for s in states]
        if reduction == "first":
            (state,) = states
            text.put(f"if (is_on) {{ const i64 part = 0; {loads[0]} {state.name}[0] = {state.name}_n; }}")
            continue
        a, b = [f"{s.name}[0]" for s in states], [f"{s.name}_n" for s in states]
        merged = [
            *combined(reduction, a, b, text.real, text.fold_function),
            *counts_added(reduction, a, b),
        ]
        text.put("UNROLL for (i64 part = from; part < to; part++) {", *loads, *merged, "}")
        text.put(*combine_threads(reduction, states, text.real, text.fold_function, 1, 1, row_threads))
    if regions:
        text.put("if (t == 0 && is_on) {")
        text.put(*(f"{region}[parts * rows + number] = {s.name}[0];" for s, region in regions.items()))
        text.put("}")
    text.add_values(number)

"""Rows in parts as text: what a part leaves in the workspace, how all parts are combined, and how the result is read.

Each number of a reduction has a region of the workspace: that of every part, then that of every row.
"""

from __future__ import annotations

from jitdnn.kernels.formulas.row_programs import Phase, Program
from jitdnn.kernels.gpu.reduction.combine import State, combine_threads, combined, counts_added, states_of
from jitdnn.kernels.gpu.reduction.writer import Writer


def partial_states(program: Program, compute: str, index: str) -> list[State]:
    """Every number that a part leaves, of all passes."""
    found = []
    for number, row_pass in enumerate(program.passes):
        for r, (name, _) in enumerate(row_pass.reductions):
            found += states_of(name, f"s{number}_{r}", compute, index)
    return found


def _regions(writer: Writer, number: int) -> list[tuple[State, str]]:
    """The numbers of a pass, and where theirs are in the workspace."""
    every = partial_states(writer.program, writer.real, writer.index)
    found = []
    for region, state in enumerate(every):
        if state.name.startswith(f"s{number}_"):
            stored = "i64" if state.type != writer.real else writer.real
            found.append((state, f"((GLOBAL {stored} *)(workspace + {region} * region))"))
    return found


def leave(writer: Writer, number: int) -> None:
    """Store what the part has of a pass's reductions."""
    writer.put("if (t == 0 && is_on) {")
    for state, region in _regions(writer, number):
        if writer.layout.over_rows:
            index = "v" if writer.width > 1 and not state.is_single else "0"
            stored = f"{region}[part * rows + number + column] = {state.name}[{index}];"
            writer.put(*writer.over_columns(f"if (is_column) {stored}"))
        else:
            writer.put(f"{region}[number * parts + part] = {state.name}[0];")
    writer.put("}")


def restore(writer: Writer, number: int) -> None:
    """The row values of a pass, from what the combining kernel left."""
    writer.known[number] = len(writer.bound)
    for state, region in _regions(writer, number):
        writer.put(f"{state.type} {state.name}[{writer.width}];")
        if writer.layout.over_rows and not writer.combines_parts:
            place = f"is_column ? ({state.type}){region}[parts * rows + number + column] : 0"
            writer.put(*writer.over_columns(f"{state.name}[v] = {place};"))
        else:
            writer.put(f"{state.name}[0] = is_on ? ({state.type}){region}[parts * rows + number] : 0;")
    writer.add_values(number)


def write_combination(writer: Writer, name: str, phase: Phase, is_last: bool) -> None:
    """The results of all parts as one, by some threads for every row; after the last reductions, the row outputs."""
    layout, passes, row_threads = writer.layout, writer.program.passes, writer.layout.combine_threads_a_row
    writer.begin(name, layout.combine_block_threads)
    writer.width, writer.combines_parts = 1, True
    rows = layout.combine_block_threads // row_threads  # of a thread block
    kind = "u32" if layout.rows < 2**31 else "i64"
    writer.put(
        f"const int t = THREAD_ID % {row_threads};",
        f"{kind} unit = ({kind})BLOCK_ID(0) * {rows} + THREAD_ID / {row_threads};",
        f"const int is_on = unit < ({kind})rows;",
        "const i64 number = unit;",
    )
    axes = [(f"kept{a}", f"kept{a}") for a in range(len(layout.kept))]
    writer.put_bases(kind, [*axes, ("lanes", "lane0")] if layout.over_rows else axes)
    # neighbouring parts to a thread, so that they stay in order
    writer.put(f"const i64 share = (parts + {row_threads - 1}) / {row_threads}, from = t * share;")
    writer.put("const i64 to = !is_on ? from : from + share < parts ? from + share : parts;")
    for number in range(phase.first):
        restore(writer, number)
    for number in range(phase.first, phase.end):
        _combine_parts(writer, number, row_threads)
    if is_last and writer.program.row_outputs:
        for number in range(phase.end, len(passes)):
            assert not passes[number].reductions, "the last reductions are those of the phase"
            writer.add_values(number)
        writer.put_row_outputs("t == 0 && is_on")
    writer.put("}", "")
    writer.combines_parts = False


def _combine_parts(writer: Writer, number: int, row_threads: int) -> None:
    regions = dict(_regions(writer, number))
    place = "part * rows + number" if writer.layout.over_rows else "number * parts + part"
    for r, (reduction, _) in enumerate(writer.program.passes[number].reductions):
        states = states_of(reduction, f"s{number}_{r}", writer.real, writer.index)
        writer.put(*(f"{s.type} {s.name}[1] = {{{s.nothing}}};" for s in states))
        loads = [f"const {s.type} {s.name}_n = ({s.type}){regions[s]}[{place}];" for s in states]
        if reduction == "first":
            (state,) = states
            writer.put(f"if (is_on) {{ const i64 part = 0; {loads[0]} {state.name}[0] = {state.name}_n; }}")
            continue
        a, b = [f"{s.name}[0]" for s in states], [f"{s.name}_n" for s in states]
        merged = [
            *combined(reduction, a, b, writer.real, writer.fold_function),
            *counts_added(reduction, a, b),
        ]
        writer.put("UNROLL for (i64 part = from; part < to; part++) {", *loads, *merged, "}")
        writer.put(*combine_threads(reduction, states, writer.real, writer.fold_function, 1, 1, row_threads))
    if regions:
        writer.put("if (t == 0 && is_on) {")
        writer.put(*(f"{region}[parts * rows + number] = {s.name}[0];" for s, region in regions.items()))
        writer.put("}")
    writer.add_values(number)

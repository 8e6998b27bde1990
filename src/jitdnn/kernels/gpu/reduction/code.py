"""Programs over rows as text: one kernel for whole rows, or for rows in parts two kernels for each phase."""

from __future__ import annotations

from jitdnn.kernels.formulas.row_programs import Phase, phases_of
from jitdnn.kernels.gpu.reduction.loop import write_pass
from jitdnn.kernels.gpu.reduction.plan import RowCode
from jitdnn.kernels.gpu.reduction.split_rows import leave, restore, write_combination
from jitdnn.kernels.gpu.reduction.writer import Writer


def write_rows(code: RowCode) -> tuple[str, list[tuple[str, bool]]]:
    """The text, and its functions: the name of each and whether it combines the parts of rows."""
    writer = Writer(code)
    functions: list[tuple[str, bool]] = []
    if not code.is_split:
        _write_function(writer, "rows", None)
        functions.append(("rows", False))
    else:
        passes = code.program.passes
        phases = [phase for phase in phases_of(code.program) if not phase.writes_rows]
        reducing = [n for n, p in enumerate(phases) if any(s.reductions for s in passes[p.first : p.end])]
        # what was written last before the call is still in the cache: a reduction begins there, and the phases by turns
        backwards = 0 if 0 in reducing else 1
        for number, phase in enumerate(phases):
            _write_function(writer, f"phase{number}", phase, goes_back=number % 2 == backwards)
            functions.append((f"phase{number}", False))
            if number in reducing:
                write_combination(writer, f"combine{number}", phase, is_last=number == reducing[-1])
                functions.append((f"combine{number}", True))
    return "\n".join([*writer.functions.values(), *writer.lines]), functions


def _write_function(writer: Writer, name: str, phase: Phase | None, goes_back: bool = False) -> None:
    """All passes over whole rows, or those of a phase over a part; `goes_back`: the last part first."""
    layout, passes = writer.layout, writer.program.passes
    writer.begin(name, layout.threads)
    writer.width = layout.vector if layout.over_rows else 1
    writer.put_position(goes_back)
    first, end = (0, len(passes)) if phase is None else (phase.first, phase.end)
    writer.put_vectors(passes[first:end])
    writer.put_row_inputs(passes[first:end])
    for number in range(first):
        restore(writer, number)
    writer.loaded, writer.late = set(), set()
    writer.kept = [(number, e) for number, row_pass in enumerate(passes[:first]) for e in row_pass.keeps]
    if layout.in_registers or not (layout.over_rows or writer.code.is_split or writer.in_order):
        writer.put_registers(passes[first:end])
    for number in range(first, end):
        writer.known[number] = len(writer.bound)
        write_pass(writer, number)
        if phase is not None and passes[number].reductions:
            leave(writer, number)
        writer.add_values(number)
    if phase is None:
        writer.put_row_outputs("t == 0" + ("" if layout.over_rows else " && is_on"))
    writer.put("}", "")

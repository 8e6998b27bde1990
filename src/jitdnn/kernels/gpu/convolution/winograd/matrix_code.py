"""Products of constant matrices and tiles of numbers as unrolled functions in C."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from fractions import Fraction

from jitdnn.kernels.formulas.minimal_filtering import Matrix, Row, times


def tile_function(name: str, rows: Matrix, columns: Matrix) -> str:
    """`void name(const REAL *tile, REAL *made)`: rows @ tile @ columns^T, both row by row."""
    height, width = len(rows[0]), len(columns[0])
    lines, between = [], [[""] * width for _ in rows]
    counter = iter(range(10**6))

    def kept(expression: str) -> str:
        variable = f"v{next(counter)}"
        lines.append(f"  const REAL {variable} = {expression};")
        return variable

    for j in range(width):
        for i, made in enumerate(_times(rows, [f"tile[{i * width + j}]" for i in range(height)], kept)):
            between[i][j] = made
    for i, line in enumerate(between):
        for j, made in enumerate(_times(columns, line, kept)):
            lines.append(f"  made[{i * len(columns) + j}] = {made};")
    return "\n".join([f"FUNCTION void {name}(const REAL *tile, REAL *made) {{", *lines, "}"])


def _times(matrix: Matrix, values: Sequence[str], kept: Callable[[str], str]) -> list[str]:
    """The variables that hold matrix @ values."""
    return times(
        matrix,
        values,
        lambda row, terms: kept(_dot(row, terms)),
        lambda one, other: kept(f"{one} + {other}"),
        lambda one, other: kept(f"{one} - {other}"),
    )


def _dot(row: Row, values: Sequence[str]) -> str:
    terms = [(c, v) for c, v in zip(row, values, strict=True) if c]
    terms.sort(key=lambda term: (abs(term[0]) != 1, term[0] < 0))
    if not terms:
        return "(REAL)0"
    text = ""
    for coefficient, value in terms:
        factor = value if abs(coefficient) == 1 else f"{_literal(abs(coefficient))} * {value}"
        text += (
            f"{' - ' if coefficient < 0 else ' + '}{factor}"
            if text
            else ("-" if coefficient < 0 else "") + factor
        )
    return text


def _literal(number: Fraction) -> str:
    return f"NUMBER({float(number)!r})"

"""Constant matrices times tiles of numbers as functions in C, written out; rows or columns of opposite points share."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from fractions import Fraction

from jitdnn.kernels.formulas.minimal_filtering import Matrix, Row, opposite_columns, opposite_row


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
    pairs = opposite_columns(matrix)
    if pairs:
        sums = {a: (kept(f"{values[a]} + {values[b]}"), kept(f"{values[a]} - {values[b]}")) for a, b in pairs}
        left = [j for j in range(len(matrix[0])) if j not in {b for _, b in pairs}]
        return [
            kept(_dot([row[j] for j in left], [sums[j][i % 2] if j in sums else values[j] for j in left]))
            for i, row in enumerate(matrix)
        ]
    results: dict[int, str] = {}
    for a, row in enumerate(matrix):
        if a in results:
            continue
        opposite = opposite_row(matrix, a)
        if opposite is None:
            results[a] = kept(_dot(row, values))
            continue
        b, is_even = opposite
        even, odd = kept(_dot(row[0::2], values[0::2])), kept(_dot(row[1::2], values[1::2]))
        results[a] = kept(f"{even} + {odd}")
        results[b] = kept(f"{even} - {odd}" if is_even else f"{odd} - {even}")
    return [results[a] for a in range(len(matrix))]


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

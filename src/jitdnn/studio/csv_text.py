"""Tables of comma-separated values, as files that people open in a spreadsheet."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable


def csv_text(rows: Iterable[Iterable[object]]) -> str:
    """The rows as lines. Text that a spreadsheet would take for a formula begins with a quote; numbers stay as they
    are."""
    file = io.StringIO()
    csv.writer(file, lineterminator="\n").writerows([_harmless(cell) for cell in row] for row in rows)
    return file.getvalue()


def _harmless(cell: object) -> object:
    if not isinstance(cell, str) or cell[:1] not in ("=", "+", "-", "@", "\t", "\r"):
        return cell
    try:
        float(cell)
    except ValueError:
        return f"'{cell}"
    return cell

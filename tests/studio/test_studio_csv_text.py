"""Tables as CSV: what a spreadsheet reads is what was written, and nothing of it is run."""

from __future__ import annotations

import csv
import io

from jitdnn.studio.csv_text import csv_text


def test_text_is_no_formula_and_numbers_stay() -> None:
    rows = [
        ["name", "value"],
        ["=1+1", -1.5],
        ["-2+3", "-0.25"],
        ["+a", "1e-3"],
        ["@b", None],
        ['a, "b"\n', "\tx"],
    ]
    assert list(csv.reader(io.StringIO(csv_text(rows)))) == [
        *(["name", "value"], ["'=1+1", "-1.5"], ["'-2+3", "-0.25"]),
        *(["'+a", "1e-3"], ["'@b", ""], ['a, "b"\n', "'\tx"]),
    ]

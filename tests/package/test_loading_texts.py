"""Texts that are loaded: problem strings, suites, rows, exports and formulas, at their limits and beyond."""

from __future__ import annotations

import json
import math
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jitdnn import limits
from jitdnn.bench import report, suites
from jitdnn.errors import (
    InvalidArgument,
    InvalidShape,
    ParseError,
    StoreError,
)
from jitdnn.planner.store import Measurement, Store
from jitdnn.problems import parse as parse_problem
from jitdnn.rtcg.formulas import parse_formula

# ---- problem strings, suites, rows, exports


@pytest.mark.parametrize(
    "text",
    [
        "x" * 20_000,
        "conv_fwd " + "n1 " * 10_000,
        "conv_fwd n" + "9" * 5_000,
        "conv_fwd n8 c4 h5 w5 k4 r3 s3 pad" + "9" * 31,
        "conv_fwd n١ c4 h5 w5 k4 r3 s3",
        "random normal0mean0.0 std1.0 shape4 f32",
        "resize_fwd linear shape4 out112x112 f32",
        "activation_fwd relu3 shape4 f32",
    ],
)
def test_problem_strings_have_limits(text: str) -> None:
    with pytest.raises((ParseError, InvalidShape)) as caught:
        parse_problem(text)
    assert len(str(caught.value)) < 30_000


@pytest.mark.parametrize(
    ("suffix", "content"),
    [
        ("txt", b"\xff\xfe"),
        ("txt", b"a:b*" + b"9" * 5000 + b" conv_fwd n8 c4 h5 w5 k4 r3 s3"),
        ("csv", b"\xff\xfe"),
        ("csv", b""),
        ("csv", ",".join(suites.COLUMNS).encode() + b"\n" + b"x" * 200_000),
        ("csv", ",".join(suites.COLUMNS).encode() + b"\n1,2"),
        ("csv", ",".join(suites.COLUMNS).encode() + b"\n" + b"9" * 5000 + b",9" * 21),
        ("csv", ",".join(suites.COLUMNS).encode() + b'\n"\n\n"' + b",\x00" * 21),
    ],
)
def test_suites_that_are_none(tmp_path: Path, suffix: str, content: bytes) -> None:
    path = tmp_path / f"suite.{suffix}"
    path.write_bytes(content)
    with pytest.raises(InvalidArgument):
        suites.load(str(path))


def test_suites_and_rows_have_a_greatest_size(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "suite.txt"
    path.write_text("matmul m3 n4 k5 f32\n")
    assert len(suites.load(str(path))) == 1
    monkeypatch.setattr(limits, "SUITE_BYTES", 10)
    with pytest.raises(InvalidArgument, match="more than 10 bytes, the most that a suite"):
        suites.load(str(path))
    with pytest.raises(InvalidArgument, match="more than 10 bytes"):
        report.read_rows(path)


@pytest.mark.parametrize(
    "line",
    [
        "[" * 100_000,
        "[]",
        "{}",
        '{"peers": []}',
        '{"peers": {"a": 1}}',
        "nul",
        '{"peers": {}, "x": 1}',
        "\ud800",
    ],
)
def test_rows_of_the_benchmark_that_are_none(tmp_path: Path, line: str) -> None:
    (tmp_path / "rows.jsonl").write_bytes(line.encode("utf-8", "surrogatepass"))
    with pytest.raises(InvalidArgument, match=r"rows\.jsonl: not the rows"):
        report.read_rows(tmp_path / "rows.jsonl")


ROW = Measurement("p", "", "d", "1", "a", 1, 0.5, 0, 1.0)


@pytest.mark.parametrize(
    "line",
    [
        "[" * 60_000,
        "[" * 70_000,
        "[]",
        '"text"',
        "1",
        "{}",
        json.dumps(dict(zip(Measurement.__slots__, ROW.values(), strict=True)) | {"workspace": 2**63}),
        json.dumps(dict(zip(Measurement.__slots__, ROW.values(), strict=True)) | {"workspace": True}),
        json.dumps(
            dict(zip(Measurement.__slots__, ROW.values(), strict=True)) | {"algorithm_version": 10**40}
        ),
        json.dumps(dict(zip(Measurement.__slots__, ROW.values(), strict=True)) | {"problem": "\ud800"}),
        json.dumps(dict(zip(Measurement.__slots__, ROW.values(), strict=True)) | {"seconds": float("nan")}),
        json.dumps(dict(zip(Measurement.__slots__, ROW.values(), strict=True)) | {"more": 1}),
        '{"workspace": ' + "9" * 5000 + "}",
    ],
    ids=lambda line: line[-20:],
)
@pytest.mark.parametrize("is_on_disk", [True, False])
def test_a_store_is_as_before_after_an_export_that_it_refuses(
    tmp_path: Path, line: str, is_on_disk: bool
) -> None:
    store = Store(tmp_path / "store.sqlite" if is_on_disk else None)
    store.add([ROW])
    good = json.dumps(dict(zip(Measurement.__slots__, ROW.values(), strict=True)) | {"algorithm": "b"})
    (tmp_path / "export").write_text(f"{good}\n{line}\n")
    with pytest.raises(StoreError, match="line 2"):
        store.merge(tmp_path / "export")
    assert store.rows() == [ROW]


def test_exports_have_a_greatest_size(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = Store(None)
    store.add([ROW])
    store.export(tmp_path / "export")
    assert Store(None).merge(tmp_path / "export") == 1
    monkeypatch.setattr(limits, "EXPORT_BYTES", 10)
    with pytest.raises(StoreError, match="more than 10 bytes, the most that an export"):
        store.merge(tmp_path / "export")


def test_text_in_the_store_that_is_no_text(tmp_path: Path) -> None:
    """A flipped bit in a name must not hide the other rows, nor raise."""
    import sqlite3

    path = tmp_path / "store.sqlite"
    store = Store(path)
    store.add([ROW])
    connection = sqlite3.connect(path)
    connection.execute("UPDATE measurement SET algorithm = CAST(x'ff61' AS TEXT)")
    connection.commit()
    connection.close()
    store.add([ROW])
    assert ROW in store.rows()
    assert store.look_up("p", "", "d") == {} or ("a", 1) in store.look_up("p", "", "d")


# ---- formulas


@pytest.mark.parametrize(
    ("text", "message", "column"),
    [
        ("x" * 70_000, "a formula of 70,000 characters", 1),
        ("(" * 101 + "x" + ")" * 101, "more than 100 parentheses, signs and exponents", 101 + 1),
        ("-" * 60_000 + "x", "more than 100 parentheses, signs", 102),
        ("x" + "**x" * 200, "more than 100 parentheses, signs", None),
        ("exp(" * 200 + "x" + ")" * 200, "more than 100", None),
        ("not " * 200 + "x", "more than 100", None),
        ("+".join(f"x{i}" for i in range(2000)), "more than 1,000 steps", None),
        ("; ".join(["t = x"] + ["t = exp(t) + 1"] * 600), "more than 1,000 steps", None),
        ("; ".join(["t = x"] + ["t = t * t + sin(t)"] * 400), "more than 1,000 steps", None),
        ("x + 1" + "0" * 400, "larger than every number of f64", 5),
        ("x + 1e999", "larger than every number of f64: write inf", 5),
        ("x ** 9 ** 9 ** 9 + 1__0", "is no number", 20),
        ("__import__('os').system('true')", '"\'" cannot be part of a formula', 12),
        ("__import__(os)", "'__import__' is none of the operations", 1),
        ("x.__class__", "runs|cannot be part", 2),
        ("(lambda: 0)()", "'lambda' cannot be part|'\\)' is needed|is no name", None),
        ("[x for x in y]", r"'\[' cannot be part of a formula", 1),
        ("x if y else z", "'if' cannot be part of a formula", 3),
        ("x @ y", "'@' cannot be part", 3),
        ("exec(x)", "'exec' is none of the operations", 1),
        ("x := 1", "is needed here, not '='", None),
        ("x\0", "cannot be part of a formula", 2),
        ("x + \ud800", "cannot be part of a formula", 5),
        ("t = x = x; t", "x is not known here", 5),
        ("x, x: x", "'x' is listed twice", 4),
        ("a < b < c", "a chain of comparisons", 7),
        ("x)", "an operator is needed here, not '\\)'", 2),
        ("exp(x", "the parenthesis of column 4 is not closed|is not closed", None),
        ("(x + y", "'\\)' is needed, not the end", 7),
        ("exp(x, y)", "takes 1 arguments, got 2", 1),
        ("exp(x=1)", "x is not known here", 5),
        ("x; y", "a formula is assignments and at last the results", 1),
    ],
    ids=lambda value: value[:24] if isinstance(value, str) else "",
)
def test_formulas_that_are_none(text: str, message: str, column: int | None) -> None:
    with pytest.raises(ParseError, match=message) as caught:
        parse_formula(text)
    assert column is None or caught.value.column == column
    assert len(str(caught.value)) < 1200


def test_chains_do_not_nest() -> None:
    """900 terms are a long line, not a deep tree."""
    formula = parse_formula(" + ".join(["x"] + ["1"] * 900)).results[0]
    assert float(formula.evaluate(np.float64(2.0))) == 902.0
    assert float(formula.derivative().evaluate(np.float64(2.0))) == 1.0
    deep = parse_formula("(" * 100 + "x" + ")" * 100).results[0]
    assert float(deep.evaluate(np.float64(2.0))) == 2.0


_LEAVES = st.sampled_from(["x", "y", "2", "0.5", "3.", ".25", "1e1", "1_0"])
_NUMBERS = st.recursive(
    _LEAVES,
    lambda inner: st.one_of(
        st.tuples(inner, st.sampled_from(["+", "-", "*", "/", "//", "%", "**"]), inner).map(" ".join),
        st.tuples(st.sampled_from(["-", "- "]), inner).map("".join),
        inner.map(lambda text: f"({text})"),
        inner.map(lambda text: f"abs({text})"),
        st.tuples(inner, inner).map(lambda pair: f"max({pair[0]}, {pair[1]})"),
    ),
    max_leaves=12,
)


@given(_NUMBERS, st.sampled_from(["", " < ", " >= ", " != "]), _NUMBERS)
@settings(max_examples=150, deadline=None)
def test_formulas_mean_what_python_means_by_them(left: str, sign: str, right: str) -> None:
    """Precedence and direction, against Python's own reading of the same text with NumPy's numbers."""
    text = f"{left}{sign}{right}" if sign else left
    names: dict[str, Any] = {"x": np.float64(1.75), "y": np.float64(-3.0), "abs": np.abs, "max": np.maximum}
    numbered = _as_numbers(text)
    with np.errstate(all="ignore"):
        expected = np.float64(eval(numbered, {"__builtins__": {}, "n": np.float64, **names}))
        (result,) = parse_formula(f"x, y: {text}").results
        got = np.float64(result.evaluate(names["x"], names["y"]))
    # a power by a whole number is a product of squares here
    assert (
        math.isclose(got, expected, rel_tol=1e-9)
        or (np.isnan(expected) and "**" in text)
        or (np.isnan(got) == np.isnan(expected) and not np.isfinite(expected))
    ), (text, got, expected)


def _as_numbers(text: str) -> str:
    import re

    return re.sub(r"(?<![\w.])(\d[\w.]*|\.\d+)", r"n(\1)", text)


def test_lines_and_several_results() -> None:
    for text in (
        "x, y: t = x * y\nt + x, t - x",
        "x, y: t = x * y; (t + x,\n t - x)",
        "x, y: t = x * y\n\nt + x, t - x;",
    ):
        results = parse_formula(text).results
        assert [float(r.evaluate(np.float64(2), np.float64(3))) for r in results] == [8.0, 4.0]
    with pytest.raises(ParseError) as caught:
        parse_formula("x, y: t = x\n t + z")
    assert (caught.value.line, caught.value.column) == (2, 6)


def test_names_in_a_text_never_reach_python() -> None:
    """A formula that names what the interpreter knows gets inputs of those names, and nothing else."""
    loaded = set(sys.modules)
    assert parse_formula("os + sys").results[0].inputs == ("os", "sys")
    assert set(sys.modules) == loaded

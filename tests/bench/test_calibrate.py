"""Efficiencies of the cost models: what they are fitted to, what a device file does with them, and the command."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

import pytest

import jitdnn as jd
from command_line import call
from jitdnn.bench import calibrate
from jitdnn.bench.choices import ChoiceRow
from jitdnn.bench.suites import Layer
from jitdnn.devices.cpu import host
from jitdnn.planner.plan import Request
from jitdnn.planner.store import Store
from jitdnn.planner.survey import survey
from jitdnn.problems import parse

PROBLEM = "conv_fwd n2 c16 h9 w9 k16 r3 s3 pad1 f32 nchw"


def row(problem: str, **of: tuple[float, float]) -> ChoiceRow:
    return ChoiceRow(
        problem, "", "", 1, estimates={name: pair[0] for name, pair in of.items()},
        measured={name: pair[1] for name, pair in of.items()},
    )  # fmt: skip


def test_the_median_of_what_was_measured_often_enough() -> None:
    rows = [row(PROBLEM, direct=(1.0, measured), winograd_4=(3.0, 3.0)) for measured in (1.0, 2.0, 40.0)]
    rows[0].measured.pop("winograd_4")
    rows.append(row(PROBLEM.replace("fwd", "bwd_data"), direct=(1.0, 1.0)))
    assert calibrate.efficiencies(rows, {}) == {"direct conv_fwd": 0.5}
    # the estimates were divided by what was known before
    assert calibrate.efficiencies(rows, {"direct conv_fwd": 0.5}) == {"direct conv_fwd": 0.25}
    assert calibrate.efficiencies([row(PROBLEM, direct=(1.0, 1e3))] * 3, {}) == {"direct conv_fwd": 0.2}


def test_estimates_are_divided_by_the_efficiency(tmp_path: Path) -> None:
    def estimates() -> dict[str, float]:
        surveyed = survey(parse(PROBLEM), host(1), Request(), None, Store(None))
        return {each.algorithm.name: each.seconds for each in surveyed if each.is_open}

    before = estimates()
    assert len(before) > 2
    path = tmp_path / "device.json"
    facts = asdict(host(1).isa.processor)
    path.write_text(
        json.dumps({"cpu": {**facts, "efficiency": {"direct conv_fwd": 0.5, "direct conv_bwd_data": 3}}})
    )
    with jd.settings(device_file=path):
        after = estimates()
    assert after == {name: seconds * (2 if name == "direct" else 1) for name, seconds in before.items()}


def test_layers_are_of_all_kinds() -> None:
    problems = [layer.problem for layer in calibrate.layers()]
    assert {problem.direction for problem in problems} == {"fwd", "bwd_data", "bwd_filter"}
    assert any(problem.groups == problem.c > 1 for problem in problems)
    assert any(1 < problem.groups < problem.c for problem in problems)
    assert len({str(problem) for problem in problems}) == len(problems)


def test_the_command_writes_a_file_that_is_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    words = [PROBLEM, PROBLEM.replace("n2", "n1"), PROBLEM.replace("h9", "h8")]
    monkeypatch.setattr(calibrate, "layers", lambda: [Layer(parse(text)) for text in words])
    out = tmp_path / "here.json"
    code, printed, _ = call(capsys, "calibrate", "--out", out, "--threads", "1", "--seconds", "0.01")
    assert code == 0
    assert f"JITDNN_DEVICE_FILE={out}" in printed.replace("\n", "")
    found = json.loads(out.read_text())["cpu"]
    assert set(found["efficiency"]) >= {"direct conv_fwd", "implicit_gemm conv_fwd"}
    with jd.settings(device_file=out):
        assert dict(host(1).efficiency) == found["efficiency"]
    assert list(tmp_path.iterdir()) == [out]


def test_nothing_is_written_where_a_result_is_wrong(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(calibrate, "layers", lambda: [Layer(parse(PROBLEM))])
    wrong = ChoiceRow(PROBLEM, "", "", 1, wrong={"direct": "relative error 1"})
    monkeypatch.setattr(calibrate, "measure", lambda *args: [wrong])
    code, printed, _ = call(capsys, "calibrate", "--out", tmp_path / "x.json")
    assert code == 1
    assert "relative error 1" in printed
    assert not list(tmp_path.iterdir())
    code, _, complaint = call(capsys, "calibrate", "--out", tmp_path / "none" / "x.json")
    assert code == 1
    assert "there is no folder" in complaint.replace("\n", " ")

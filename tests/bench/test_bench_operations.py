"""The benchmarks of operations beside PyTorch's: every case computes the same, and a wrong result has no time."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import jitdnn
from jitdnn.bench import memory_bound, sequences, timing
from jitdnn.bench.timing import Method
from jitdnn.cli import main

pytest.importorskip("torch", reason="PyTorch is not installed")


def test_operations_that_move_memory_agree_with_pytorch(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every case in both orders, on small tensors: results are compared, and rows are complete."""
    monkeypatch.setattr(memory_bound, "SHAPE", (2, 32, 8, 8))
    monkeypatch.setattr(memory_bound, "BYTES", 2 * 32 * 8 * 8 * 4)
    method = Method(rounds=1, seconds=0.0)
    only = ("relu", "norm", "pool", "layout", "softmax", "resize", "dropout", "layer")
    rows = list(memory_bound.run((1,), only=only, method=method))
    assert {row.layout for row in rows} == {"nchw", "nhwc"}
    assert len(rows) > 30
    for row in rows:
        assert row.failure is None, f"{row.name} {row.layout}: {row.failure}"
        assert row.seconds is not None
        assert row.seconds > 0
        assert json.loads(json.dumps(row.as_json()))["name"] == row.name


def test_a_wrong_result_is_not_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory_bound, "SHAPE", (1, 16, 8, 8))
    monkeypatch.setattr(jitdnn, "mish", lambda x: x * 1.01)
    (row,) = memory_bound.run((1,), ("nchw",), ("mish",), Method(rounds=1, seconds=0.0))
    assert row.seconds is None
    assert row.failure is not None
    assert "another result" in row.failure


def test_attention_and_recurrent_layers_are_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sequences, "POSITIONS", 33)
    monkeypatch.setattr(sequences, "LAYERS", ((3, 2, 8),))
    rows = list(sequences.run((1,), Method(rounds=1, seconds=0.0)))
    assert [row.name for row in rows if row.flops is None] == [
        "LSTM, 3 steps, batch 2, 8 units", "GRU, 3 steps, batch 2, 8 units",
    ]  # fmt: skip
    assert len(rows) == 6
    assert all(row.seconds > 0 for row in rows)


def test_the_command_line_prints_them(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setattr(memory_bound, "SHAPE", (2, 32, 8, 8))
    monkeypatch.setattr(memory_bound, "BYTES", 2 * 32 * 8 * 8 * 4)
    monkeypatch.setattr(sequences, "POSITIONS", 17)
    monkeypatch.setattr(sequences, "LAYERS", ((3, 2, 8),))
    monkeypatch.setattr(timing, "TURN", 1e-4)
    monkeypatch.setattr(timing, "settle", lambda: None)
    rows = tmp_path / "rows.jsonl"

    def bench(*arguments: str) -> tuple[int, str]:
        with pytest.raises(SystemExit) as exited:
            main(["bench", "--threads", "1", "--seconds", "0", *arguments])
        assert isinstance(exited.value.code, int)
        return exited.value.code, "".join(capsys.readouterr())

    code, text = bench("--memory-bound", "relu", "--json", str(rows))
    assert (code, "geometric mean" in text) == (0, True)
    assert len(rows.read_text("utf-8").splitlines()) == 6  # relu, prelu, relu backward; two orders
    code, text = bench("--memory-bound", "nothing of the kind")
    assert code != 0
    assert "no operation has any of nothing of the kind" in text
    code, text = bench("--formulas")
    assert (code, "x NumPy" in text) == (0, True)
    code, text = bench("--sequences")
    assert (code, "causal attention" in text) == (0, True)

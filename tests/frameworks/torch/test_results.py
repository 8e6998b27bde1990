"""Rows of the benchmarks of models: kept, resumed, ended in time; and what docs/torch_results.py makes of them."""

from __future__ import annotations

import importlib
import json
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch", reason="PyTorch is not installed")

from other_processes import is_running, wait_until
from paths import ROOT

SCRIPT = """
import json, os, subprocess, sys, time
words, file = sys.argv[1:-2], sys.argv[-1]
with open(os.environ["CALLS"], "a") as calls:
    calls.write(" ".join(words) + "\\n")
if words[0] == "hang":
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    open(os.environ["CALLS"] + ".pid", "w").write(str(child.pid))
    time.sleep(600)
if words[0] == "fail":
    raise SystemExit(3)
row = {"model": words[0], "batch": 1, "threads": 1, "eager": 2.0, "fused": 1.0, "failed": {}}
if words[0] == "half":
    row["failed"]["compile"] = "RuntimeError: no"
open(file, "w").write(json.dumps(row) + "\\n")
"""


def module(name: str, folder: str) -> Any:
    sys.path.insert(0, str(ROOT / folder))
    try:
        return importlib.import_module(name)
    finally:
        sys.path.remove(str(ROOT / folder))


def test_cells_that_are_kept_are_not_measured_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    peers = module("torch_peers", "benchmarks")
    script, into, calls = tmp_path / "script.py", tmp_path / "rows.jsonl", tmp_path / "calls"
    script.write_text(SCRIPT)
    monkeypatch.setenv("CALLS", str(calls))

    def run(*models: str, peer: tuple[str, ...] = ("eager", "fused")) -> Any:
        cells = [({"model": one, "batch": 1, "threads": 1, "peers": peer}, [one]) for one in models]
        return peers.children(str(script), cells, 3.0, into)

    rows, failures = run("a", "fail", "hang", "b")
    assert [row["model"] for row in rows] == ["a", "b"]
    assert [failure.split(":")[0] for failure in failures] == ["fail", "hang"]
    assert "status 3" in failures[0]
    assert "longer than --limit" in failures[1]
    child = int(Path(f"{calls}.pid").read_text())
    wait_until(lambda: not is_running(child), 60)  # the process of a cell that was ended
    assert [json.loads(line)["model"] for line in into.read_text().splitlines()] == ["a", "b"]
    rows, failures = run("b", "c", "a")
    assert ([row["model"] for row in rows], failures) == (["b", "c", "a"], [])
    assert calls.read_text().split() == ["a", "fail", "hang", "b", "c"]
    run("half", "a", peer=("eager", "compile"))  # of "a" there is no such peer: it is measured anew
    assert calls.read_text().split()[5:] == ["half", "a"]
    run("half", peer=("eager", "compile"))  # of this one it is known to fail
    assert calls.read_text().split()[7:] == []
    assert sorted(row["model"] for row in peers.read(into)) == ["a", "b", "c", "half"]
    assert peers.failed(peers.read(into)) == ["half n1: compile: RuntimeError: no"]


def measured(what: str, model: str, batch: int, **times: float | None) -> dict[str, Any]:
    return {
        "model": model, "what": what, "batch": batch, "threads": 2, "side": 224, "measure": "first", "clock": "wall",
        "torch": "2.13.0", "machine": "a machine", "cores": 2, "load": 0.5, "first": {}, "failed": {}, **times,
    }  # fmt: skip


def kept(tmp_path: Path) -> Path:
    rows = [
        measured("training", "b", 8, eager=300.0, eager_last=200.0, converted=150.0, converted_last=100.0),
        measured("inference", "b", 1, eager=8.0, eager_last=6.0, freezing=4.0, fused=2.0),
        measured("inference", "a", 1, eager=9.0, eager_last=12.0, freezing=None, fused=3.0, backend=4.5),
        measured("inference", "a", 8, eager=90.0),
    ]
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def test_the_table_has_every_row_and_means(tmp_path: Path) -> None:
    lines = module("torch_results", "docs").table(kept(tmp_path)).splitlines()
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines if line.startswith("|")]
    assert [line for line in lines if line.startswith("!")] == [
        "![inference: speed by model](plots/torch_inference.png)",
        "![training: speed by model](plots/torch_training.png)",
    ]
    one_image, several, training = (index for index, row in enumerate(cells) if row[1].startswith("eager"))
    assert cells[one_image + 2] == ["a", "9.0", "12.0", "-", "3.0", "4.5", "3.00"]
    assert cells[one_image + 3] == ["b", "8.0", "6.0", "4.0", "2.0", "-", "2.00"]
    # of the best of ours: (9/3 * 8/2) ** 0.5, ..., and of torch's best (9/3 * 4/2) ** 0.5
    assert cells[one_image + 4][1:] == ["3.46", "3.46", "2.00", "1.00", "1.50", "2.45"]
    assert cells[several + 2] == ["a", "90.0", "-"]
    assert cells[training + 2] == ["b", "300", "200", "150", "100", "2.00"]
    assert any("a machine, PyTorch 2.13.0, 224 x 224, load 0.5 to 0.5" in line for line in lines)


def test_pictures_are_drawn(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    from PIL import Image

    results = module("torch_results", "docs")
    files = results.draw(kept(tmp_path), lambda what: tmp_path / "plots" / f"{what}.png")
    assert [file.name for file in files] == ["inference.png", "training.png"]
    for file, heights in zip(files, (2, 1), strict=True):
        with Image.open(file) as picture:
            assert picture.size == (900, 320 * heights)
            assert len(picture.convert("L").getcolors() or ()) > 2
    assert results.draw(tmp_path / "none.jsonl") == []
    assert "Nothing is kept" in results.table(tmp_path / "none.jsonl")


def test_lines_that_are_no_rows_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    for row, missing in (
        ({"what": "inference"}, "model"),
        (measured("speed", "a", 1), "inference"),
    ):
        path.write_text(json.dumps(measured("inference", "a", 1)) + "\n" + json.dumps(row) + "\n")
        with pytest.raises(ValueError, match=rf"rows.jsonl:2: .*{missing}"):
            module("torch_results", "docs").table(path)


def test_as_many_time_at_once_as_there_are_files(tmp_path: Path) -> None:
    peers, there, most = module("torch_peers", "benchmarks"), [], []

    def work(number: int) -> None:
        with peers.turn(tmp_path):
            there.append(number)
            most.append(len(there))
            time.sleep(0.3)
            there.remove(number)

    for name in "ab":
        (tmp_path / name).touch()
    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert len(most) == 4
    assert max(most) <= 2
    with peers.turn(None):
        assert there == []

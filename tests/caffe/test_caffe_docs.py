"""The page on Caffe says what there is, and its example runs."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from jitdnn.caffe import pycaffe
from jitdnn.caffe.fillers import FILLERS
from jitdnn.caffe.layers import LAYERS
from jitdnn.caffe.policies import POLICIES
from paths import ROOT

PAGE = (ROOT / "docs" / "caffe.md").read_text(encoding="utf-8")


def test_every_layer_is_in_the_table() -> None:
    section = PAGE.partition("\n## Layers\n")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| ([\w, ]+) \| ", section, re.MULTILINE)
    assert {name for row in rows for name in row.split(", ")} - {"type"} == set(LAYERS)


@pytest.mark.parametrize("name", [*FILLERS, *POLICIES])
def test_every_filler_and_policy_is_named(name: str) -> None:
    assert re.search(rf"\b{name}\b", PAGE)


def test_every_name_of_pycaffe_is_in_its_table() -> None:
    section = PAGE.partition("\n## pycaffe's names\n")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| ([\w, ]+) \| ", section, re.MULTILINE)
    named = {name for row in rows for name in row.split(", ")}
    assert set(pycaffe.__all__) <= named | {"allow_python_layers"}
    assert "allow_python_layers(FOLDER)" in section
    code = re.search(r"```python\n(.*?)```", section, re.DOTALL)
    assert code is not None
    names: dict[str, object] = {}
    exec(code[1], names)
    assert names["maps"].shape == (4, 20, 12, 12)


def test_the_example_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code = re.search(r"```python\n(.*?)```", PAGE, re.DOTALL)
    assert code is not None
    names: dict[str, object] = {}
    exec(code[1].replace("/tmp/lenet", str(tmp_path / "lenet")), names)
    assert names["probabilities"].shape == (3, 10)
    assert "accuracy" in capsys.readouterr().out

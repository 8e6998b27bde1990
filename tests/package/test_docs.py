"""The documentation says what the code says: generated tables are current, examples run, links lead
somewhere."""

from __future__ import annotations

import importlib
import re
import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

import jitdnn
from jitdnn.problems import parse
from jitdnn.settings import TABLE
from paths import ROOT

# of the environment, which are no settings
OTHER_VARIABLES = ("JITDNN_DISABLE", "JITDNN_TESTS", "JITDNN_TESTS_RACES", "JITDNN_STUDIO_TEXTS")
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])


@pytest.fixture(scope="module")
def generate() -> ModuleType:
    sys.path.insert(0, str(ROOT / "docs"))
    try:
        return importlib.import_module("generate")
    finally:
        sys.path.remove(str(ROOT / "docs"))


def test_generated_tables_are_current(generate: ModuleType) -> None:
    pages = list(generate.pages())
    assert len(pages) >= 7
    for page in pages:
        text = page.read_text(encoding="utf-8")
        assert generate.fill(text) == text, f"{page}: run scripts/docs"


def test_every_table_stands_on_a_page(generate: ModuleType) -> None:
    used = set(
        re.findall(r"<!-- generated: (\S+) -->", "".join(p.read_text("utf-8") for p in generate.pages()))
    )
    assert used == set(generate.TABLES)


def test_a_table_that_is_not_current_is_found(generate: ModuleType) -> None:
    text = (ROOT / "docs" / "settings.md").read_text(encoding="utf-8")
    stale = text.replace("JITDNN_THREADS", "JITDNN_THREAD")
    assert stale != text
    assert generate.fill(stale) == text


def test_every_setting_is_documented() -> None:
    text = (ROOT / "docs" / "settings.md").read_text(encoding="utf-8")
    for setting in TABLE:
        assert f"| `{setting.name}` | `{setting.variable}` |" in text


def test_settings_in_the_documentation_take_their_values() -> None:
    found = 0
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        for variable, value in re.findall(r"\b(JITDNN_[A-Z_]+)=([\w.:-]+)", text):
            rows = [setting for setting in TABLE if setting.variable == variable]
            for setting in rows:
                setting.parse(value)
            assert rows or variable in OTHER_VARIABLES, f"{page}: {variable}"
            found += len(rows)
    assert found >= 10


def test_the_first_example_of_the_readme_runs() -> None:
    code = re.search(r"```python\n(.*?)```", (ROOT / "README.md").read_text(encoding="utf-8"), re.DOTALL)
    assert code is not None
    assert len(code[1].strip().splitlines()) <= 6
    names: dict[str, np.ndarray] = {}
    exec(code[1], names)
    assert names["y"].shape == (8, 128, 28, 28)
    exact = parse("conv_fwd n1 c64 h56 w56 k128 r3 s3 stride2 pad1").reference(names["x"][:1], names["w"])
    np.testing.assert_allclose(names["y"][:1], exact, rtol=1e-4)


def test_every_example_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each page's blocks of Python, in order, on top of what the first example of the README defines."""
    rng = np.random.default_rng(0)
    x, w = (rng.standard_normal(shape, np.float32) for shape in ((2, 3, 9, 9), (4, 3, 3, 3)))
    ran = 0
    for page in PAGES:
        names = {"np": np, "jd": jitdnn, "x": x, "w": w, "bias": w[:, 0, 0, 0].copy()}
        for code in re.findall(r"```python\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL):
            monkeypatch.chdir(tmp_path)
            exec(compile(code.replace('"/tmp/', f'"{tmp_path}/'), str(page), "exec"), names)
            ran += 1
    assert ran >= 4


def test_problem_strings_in_the_documentation_parse() -> None:
    found = 0
    for page in PAGES:
        for text in re.findall(r'"((?:conv|pool|softmax|activation)_\w+ [^"]+)"', page.read_text("utf-8")):
            parse(text)
            found += 1
    assert found >= 2


def test_functions_named_in_the_documentation_exist() -> None:
    for page in PAGES:
        for name in re.findall(r"\bjd\.(\w+)", page.read_text(encoding="utf-8")):
            assert hasattr(jitdnn, name), f"{page}: jd.{name}"


def test_links_lead_to_files() -> None:
    found = 0
    for page in PAGES:
        for link in re.findall(r"\]\(([^)#]+)\)", page.read_text(encoding="utf-8")):
            if "://" not in link:
                assert (page.parent / link).exists(), f"{page}: {link}"
                found += 1
    assert found >= 10


def test_the_changelog_begins_with_this_version() -> None:
    text = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    newest = re.search(r"^## (\S+)", text, re.MULTILINE)
    assert newest is not None
    assert newest[1] == jitdnn.__version__


def test_entries_of_the_changelog_are_whole_and_stand_once() -> None:
    text = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    entries = [entry.strip() for entry in re.findall(r"^- .*?(?=^- |^#|\Z)", text, re.MULTILINE | re.DOTALL)]
    assert len(entries) >= 10
    figures: dict[frozenset[str], str] = {}
    for entry in entries:
        assert entry.endswith((".", ".)")), entry
        numbers = frozenset(re.findall(r"\d+(?:\.\d+)?", entry))
        if len(numbers) >= 4:
            assert numbers not in figures, f"{entry}\n\n{figures[numbers]}"
            figures[numbers] = entry

"""The floors of the house: which module may import which (the contracts stand in pyproject.toml)."""

from __future__ import annotations

import logging
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture(autouse=True)
def _keep_loggers_working() -> Iterator[None]:
    """The linter's set-up of logging disables every logger that exists; the tests after this need theirs."""
    enabled = [
        found
        for found in logging.root.manager.loggerDict.values()
        if isinstance(found, logging.Logger) and not found.disabled
    ]
    yield
    for logger in enabled:
        logger.disabled = False


def test_every_module_imports_only_downwards(monkeypatch: pytest.MonkeyPatch) -> None:
    cli = pytest.importorskip("importlinter.cli", reason="import-linter is part of the extra `lint`")
    monkeypatch.chdir(ROOT)
    assert cli.lint_imports(config_filename=str(ROOT / "pyproject.toml"), no_cache=True) == 0


def test_an_import_upwards_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The order of the floors itself: a package of the same module names with one import upwards is
    refused."""
    cli = pytest.importorskip("importlinter.cli", reason="import-linter is part of the extra `lint`")
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    layers = project["tool"]["importlinter"]["contracts"][0]["layers"]
    package = tmp_path / "upsidedown"
    package.mkdir()
    for name in ("__init__", *re.findall(r"\w+", " ".join(layers))):
        (package / f"{name}.py").write_text("from upsidedown import ops\n" if name == "tensor" else "")
    contract = f"containers = ['upsidedown']\ntype = 'layers'\nname = 'Floors'\nlayers = {layers}\n"
    config = tmp_path / "pyproject.toml"
    head = "[tool.importlinter]\nroot_package = 'upsidedown'\n[[tool.importlinter.contracts]]\n"
    config.write_text(head + contract)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    assert cli.lint_imports(config_filename=str(config), no_cache=True) == 1
    (package / "tensor.py").write_text("")
    assert cli.lint_imports(config_filename=str(config), no_cache=True) == 0

"""The floors of the house: which module may import which (the contracts stand in pyproject.toml)."""

from __future__ import annotations

import logging
import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

from paths import ROOT


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


def _lint(folder: Path) -> int:
    """The exit code of import-linter on the pyproject.toml of `folder`; a process of its own, as it sets up
    logging for all."""
    pytest.importorskip("importlinter", reason="import-linter is part of the extra `lint`")
    script = "import sys; from importlinter.cli import lint_imports; sys.exit(lint_imports(no_cache=True))"
    environment = {**os.environ, "PYTHONPATH": str(folder)}
    return subprocess.run(
        [sys.executable, "-c", script], cwd=folder, env=environment, capture_output=True, check=False
    ).returncode


def test_every_module_imports_only_downwards() -> None:
    assert _lint(ROOT) == 0


def test_an_import_upwards_is_found(tmp_path: Path) -> None:
    """The order of the floors itself: a package of the same module names with one import upwards is
    refused."""
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
    assert _lint(tmp_path) == 1
    (package / "tensor.py").write_text("")
    assert _lint(tmp_path) == 0

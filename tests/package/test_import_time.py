"""What `import jitdnn` must not bring along, so that it stays quick. Names are checked, not seconds."""

from __future__ import annotations

import re
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

import jitdnn

HEAVY = ("llvmlite", "sqlite3", "torch", "jax", "typer", "rich", "matplotlib", "PIL", "numpy.testing")


def _imported_by(statement: str) -> set[str]:
    script = f"{statement}\nimport sys\nprint(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    return set(done.stdout.split())


def test_the_package_alone_is_light() -> None:
    modules = _imported_by("import jitdnn")
    assert "jitdnn" in modules
    assert not modules & {*HEAVY, "numpy"}


def test_the_public_names_need_no_framework() -> None:
    modules = _imported_by("import jitdnn\nfor name in jitdnn.__all__: getattr(jitdnn, name)")
    assert "jitdnn.ops.convolution" in modules
    assert not modules & {"torch", "jax", "typer", "rich", "matplotlib", "PIL"}


@pytest.mark.parametrize("command", [["--version"], ["--help"], ["bench", "--help"]])
def test_help_and_version_compile_nothing(command: list[str]) -> None:
    modules = _imported_by(f"from jitdnn.cli import main\ntry: main({command})\nexcept SystemExit: pass")
    assert "typer" in modules
    assert not modules & {"llvmlite", "torch", "matplotlib"}


def test_type_checkers_are_told_of_every_public_name() -> None:
    stub = Path(jitdnn.__file__).with_name("__init__.pyi").read_text(encoding="utf-8")
    lines = re.findall(r"^from jitdnn\.([\w.]+) import (\w+) as \2$", stub, re.MULTILINE)
    assert sorted(name for _, name in lines) == sorted(jitdnn.__all__)
    for home, name in lines:
        if name != "settings":  # the module of that name, which is callable
            assert getattr(import_module(f"jitdnn.{home}"), name) is getattr(jitdnn, name), name

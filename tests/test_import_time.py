"""What `import jitdnn` must not bring along, so that it stays quick. Names are checked, not seconds."""

from __future__ import annotations

import subprocess
import sys

import pytest

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

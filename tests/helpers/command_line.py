"""Calling the command line as a program does."""

from __future__ import annotations

import pytest

from jitdnn.cli import main


def call(capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[int, str, str]:
    """Exit code, standard output and standard error of a command."""
    with pytest.raises(SystemExit) as exited:
        main([str(argument) for argument in arguments])
    out, err = capsys.readouterr()
    code = exited.value.code
    assert isinstance(code, int)
    return code, out, err

"""Running code as another process sees the disk: other processes, folders that cannot be written."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import jitdnn

_BECOME_NOBODY = """
import logging, secrets, sqlite3, os
if os.getuid() == 0:  # root may write anywhere
    os.setgid(65534)
    os.setuid(65534)
"""


def environment(**variables: str) -> dict[str, str]:
    """The environment of a process that uses this very package."""
    source = str(Path(jitdnn.__file__).parent.parent)
    return {**os.environ, "PYTHONPATH": source, "PYTHONDONTWRITEBYTECODE": "1", **variables}


def run_without_write_permission(folder: Path, imports: str, script: str) -> str:
    """Run a script in a process that may read but not write `folder`; return what it wrote to stderr.

    The files belong to the user of that process, which is nobody where this one is root's.
    """
    modes = {path: path.stat().st_mode for path in (folder, *folder.iterdir())}
    if os.getuid() == 0:
        for path in modes:
            os.chown(path, 65534, 65534)
    parents = [path for path in folder.parents if not path.stat().st_mode & 0o001]
    modes |= {path: path.stat().st_mode for path in parents}
    try:
        for path in modes:
            path.chmod(0o755 if path in parents else 0o555 if path.is_dir() else 0o444)
        done = subprocess.run(
            [sys.executable, "-c", imports + _BECOME_NOBODY + script],
            capture_output=True,
            text=True,
            check=False,
            env=environment(JITDNN_LOG="warning"),
        )
        assert done.returncode == 0, done.stderr
        return done.stderr
    finally:
        for path, mode in modes.items():
            path.chmod(mode)

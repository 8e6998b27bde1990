"""Where and when a row was measured: nobody can judge a time without it."""

from __future__ import annotations

import platform
import subprocess
import sys
from collections.abc import Iterable
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from jitdnn import __version__


def versions(packages: Iterable[str] = ("numpy", "llvmlite", "torch")) -> dict[str, str]:
    """Versions of jitdnn, Python and those of `packages` that are installed."""
    found = {"jitdnn": __version__, "python": platform.python_version()}
    for package in packages:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found


def commit() -> str | None:
    """The commit of the checkout that this package runs from, `+` if it has changes; None for an installed
    one."""
    root = Path(__file__).resolve().parents[3]
    if not (root / ".git").exists():
        return None
    try:
        head = _git(root, "rev-parse", "--short=12", "HEAD")
        return head + ("+" if _git(root, "status", "--porcelain", "--untracked-files=no") else "")
    except (OSError, subprocess.SubprocessError):
        return None


def _git(root: Path, *arguments: str) -> str:
    done = subprocess.run(
        ["git", *arguments], cwd=root, capture_output=True, text=True, check=True, timeout=10
    )
    return done.stdout.strip()


def now() -> str:
    """The time as ISO 8601 in UTC, to the second."""
    return datetime.now(UTC).isoformat(timespec="seconds")


def system() -> str:
    """Operating system and machine, such as `Linux x86_64`."""
    return f"{platform.system()} {platform.machine()}" if sys.platform != "win32" else platform.platform()

"""Where things lie in a home, and the names of files that several packages of the studio read."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

#: in the folder of a run: its best weights, the net as its user gave it, and what is written last before it can train
BEST: Final = "best.npz"
ORIGINAL: Final = "original.prototxt"
SOLVER: Final = "solver.prototxt"


def default_home() -> Path:
    """Where a studio keeps everything unless it is told otherwise: the folder that JITDNN_STUDIO_HOME names, else
    `~/.local/share/jitdnn-studio` on Linux."""
    if home := os.environ.get("JITDNN_STUDIO_HOME"):
        return Path(home)
    base = os.environ.get("XDG_DATA_HOME")
    return (Path(base) if base else Path.home() / ".local" / "share") / "jitdnn-studio"


def run_folder(home: Path, run: int) -> Path:
    """The folder of a run: its prototxts, weights, snapshots and log."""
    return home / "runs" / str(int(run))


def data_folder(home: Path, dataset: int) -> Path:
    """The folder of a data set's arrays."""
    return home / "data" / str(int(dataset))


def plain_files(folder: Path) -> list[Path]:
    """The files of a folder by their names; none behind links, and none that are being written, whose names begin with
    a dot."""
    if not folder.is_dir():
        return []
    return sorted(f for f in folder.iterdir() if f.is_file() and not f.is_symlink() and f.name[0] != ".")


def original_text(folder: Path) -> str:
    """The net in the folder of a run as its user gave it, "" where there is none."""
    file = folder / ORIGINAL
    return file.read_text("utf-8", "replace") if file.is_file() else ""

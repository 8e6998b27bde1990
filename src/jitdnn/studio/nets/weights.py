"""Weights that trainings begin from, as options name them: `run:3`, the best of a run, or `file:NAME`, an upload."""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from typing import BinaryIO, Final

from jitdnn.errors import InvalidArgument
from jitdnn.files import write_whole
from jitdnn.studio.store import BEST, plain_files, run_folder

#: the folder of uploaded weights in a home, and the endings of their names
FOLDER: Final = "weights"
SUFFIXES: Final = (".caffemodel", ".npz", ".h5")
_LONGEST = 120  # bytes of a file's name


def weights_file(home: Path, weights: str) -> str:
    """The file that `run:3` or `file:NAME` (in the home's folder weights) means; "" for none. Raises InvalidArgument
    for others: no text chooses a file of the server."""
    if not weights:
        return ""
    kind, _, name = weights.partition(":")
    if kind == "file" and name in kept_weights(home):
        return str(home / FOLDER / name)
    if kind != "run" or not name.isdecimal() or len(name) > 18:
        raise InvalidArgument(
            f"weights are {weights[:60]!r}: give run:3 for the best of run 3, file:NAME of an upload, or nothing"
        )
    path = run_folder(home, int(name)) / BEST
    if not path.is_file():
        raise InvalidArgument(f"run {name} has no weights yet: wait for its first test, or choose another")
    return str(path)


def kept_weights(home: Path) -> list[str]:
    """Names of the files of weights in a home."""
    return [file.name for file in plain_files(home / FOLDER) if file.suffix in SUFFIXES]


def keep_weights(home: Path, name: str, content: BinaryIO) -> str:
    """Keep an uploaded file of weights under its own name, without what leads elsewhere; return the name. Raises
    InvalidArgument for one that does not end as weights do."""
    plain = re.sub(r"[^\w.-]+", "_", name.replace("\\", "/").rpartition("/")[2])
    # 255 bytes is the longest name of many systems, and it is written under a longer one first
    plain = plain.encode()[-_LONGEST:].decode("utf-8", "ignore").lstrip(".")
    if not plain.endswith(SUFFIXES):
        raise InvalidArgument(f"{name[:100]!r} is no file of weights: {', '.join(SUFFIXES)} are")
    folder = home / FOLDER
    folder.mkdir(exist_ok=True)
    write_whole(folder / plain, lambda file: shutil.copyfileobj(content, file))
    return plain

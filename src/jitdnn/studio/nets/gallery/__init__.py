"""Nets to begin from, as prototxt files beside this one.

The comment at the beginning of each says its title, what it is for, the size of images that it is meant for, and its
tasks:

    # LeNet: two convolutions, two inner products. Small and fast.
    # size: 28 to 64    tasks: classification, multi-label, regression
"""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path
from typing import Any

_ORDER = ("lenet",)


@cache
def _all() -> tuple[dict[str, Any], ...]:
    folder = Path(__file__).parent
    return tuple(_read(folder / f"{key}.prototxt") for key in _ORDER)


def gallery(task: str | None = None) -> list[dict[str, Any]]:
    """The nets that are shipped, for one task or (None) for all: key, title, about, text, tasks, and `size`, the least
    and the largest width of images that each is meant for."""
    return [dict(net) for net in _all() if task is None or task in net["tasks"]]


def _read(file: Path) -> dict[str, Any]:
    text = file.read_text("utf-8")
    comment = " ".join(line.lstrip("# ") for line in text.split("\nname:")[0].splitlines())
    found = re.fullmatch(
        r"(?P<title>.+?): (?P<about>.+?) size: (?P<low>\d+) to (?P<high>\d+)\s+tasks: (?P<tasks>.+)", comment
    )
    assert found is not None, file
    return {
        "key": file.stem,
        "title": found["title"],
        "about": found["about"],
        "size": [int(found["low"]), int(found["high"])],
        "tasks": [task.strip() for task in found["tasks"].split(",")],
        "text": text,
    }

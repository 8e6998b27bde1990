"""Nets to begin from, as prototxt files beside this one.

The comment at the beginning of each says its title, what it is for, the size of images that it is meant for, and its
tasks:

    # LeNet: two convolutions, two inner products. Small and fast.
    # size: 28 to 64    tasks: classification, multi-label, regression

`signals: 16 to 65536` in the place of a size is that of a net for series of numbers, and their length.
"""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path
from typing import Any

from jitdnn import limits, log
from jitdnn.studio import plugins

_ORDER = (
    "lenet", "cifar_quick", "vgg_small", "perceptron", "resnet18", "mobilenet_v2", "convnext_tiny", "squeezenet",
    "googlenet", "alexnet", "vgg16", "autoencoder", "unet_small", "signal_small",
)  # fmt: skip


@cache
def _all() -> tuple[dict[str, Any], ...]:
    folder = Path(__file__).parent
    shipped = [_read(folder / f"{key}.prototxt") for key in _ORDER]
    return (*shipped, *_added())


def _added() -> list[dict[str, Any]]:
    """Those of other packages, which name their folder by the entry point jitdnn.studio.nets."""
    found = []
    for name, given in plugins.load("nets").items():
        try:
            folder = Path(given() if callable(given) else given)
            found += [_read(file) for file in sorted(folder.glob("*.prototxt"))]
        except (OSError, ValueError, TypeError) as error:
            log.tell(f"the nets of the plug-in {name} are left out: {error}")
    return found


def gallery(task: str | None = None) -> list[dict[str, Any]]:
    """The nets that are shipped, for one task or (None) for all: key, title, about, text, tasks, `size`, the least and
    the largest width of images (or, if it `is_for_signals`, length of signals) that each is meant for."""
    return [dict(net) for net in _all() if task is None or task in net["tasks"]]


def _read(file: Path) -> dict[str, Any]:
    text = limits.read_bounded(file, limits.PROTOTXT_BYTES, "a net").decode()
    comment = " ".join(line.lstrip("# ") for line in text.split("\nname:")[0].splitlines())
    found = re.fullmatch(
        r"(?P<title>.+?): (?P<about>.+?) (?P<what>size|signals): (?P<low>\d+) to (?P<high>\d+)\s+tasks: (?P<tasks>.+)",
        comment,
    )
    if found is None:
        raise ValueError(f"{file} does not begin with lines of its title, its size and its tasks")
    return {
        "key": file.stem,
        "title": found["title"],
        "about": found["about"],
        "size": [int(found["low"]), int(found["high"])],
        "is_for_signals": found["what"] == "signals",
        "tasks": [task.strip() for task in found["tasks"].split(",")],
        "text": text,
    }

"""How each convolution of a net would run on this machine, as the page of a new training shows it.

Runs in the inspector's process, as everything that builds a net for a page.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from jitdnn.errors import InvalidArgument
from jitdnn.studio import nets


def plan(
    text: str, options: Mapping[str, Any], dataset: Mapping[str, Any], home: str | Path
) -> dict[str, Any]:
    """What `nets.plan` says, and `ways`, its rows by the name of their layer.

    Raises InvalidArgument for a net that does not fit.
    """
    found = nets.plan(text, options, dataset, home)
    if not found["ok"]:
        raise InvalidArgument(found["error"])
    ways: dict[str, list[dict[str, Any]]] = {}
    for row in found["layers"]:
        ways.setdefault(row["layer"], []).append(row)
    return {**found, "ways": ways}

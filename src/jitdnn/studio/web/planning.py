"""How each convolution of a net would run at a place, as the page of a new training shows it.

Runs in the inspector's process, as everything that builds a net for a page.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from jitdnn import targets
from jitdnn.devices.gpu_facts import GpuFacts
from jitdnn.errors import InvalidArgument, JitdnnError
from jitdnn.kernels.algorithm import Device
from jitdnn.studio import nets, texts

#: seconds for ways in less workspace, of which the page shows some
QUICK: Final = 0.5
LONGER: Final = 8.0
_SHOWN: Final = 6


def plan(
    text: str,
    options: Mapping[str, Any],
    dataset: Mapping[str, Any],
    home: str | Path,
    place: Mapping[str, Any] | None = None,
    seconds: float = QUICK,
) -> dict[str, Any]:
    """What `nets.plan` says for a row of the table place (None: this processor), with `ways`, its rows by the name of
    their layer, each with `smaller`, ways in less workspace; `place` is its name, and `missing` says where it cannot be
    planned for.

    Raises InvalidArgument for a net that does not fit.
    """
    try:
        device, missing = device_of(place), ""
    except (JitdnnError, KeyError, TypeError, ValueError) as error:
        name = place["name"] if place else ""
        device, missing = (
            None,
            texts.text("How it runs on %(place)s is not known here: %(why)s.", place=name, why=error),
        )
    found = nets.plan(text, options, dataset, home, alternatives=True, seconds=seconds, device=device)
    if not found["ok"]:
        raise InvalidArgument(found["error"])
    ways: dict[str, list[dict[str, Any]]] = {}
    for row in found["layers"]:
        row["smaller"] = _spread(row["front"][:-1])
        ways.setdefault(row["layer"], []).append(row)
    name = "" if place is None or missing else place["name"]
    return {**found, "ways": ways, "place": name, "missing": missing}


def device_of(place: Mapping[str, Any] | None) -> Device | None:
    """A place's GPU on paper, with the facts that the place told; None for a processor. Raises JitdnnError where code
    for such a GPU cannot be planned here, KeyError where the place told none."""
    if place is None or place["device"] == "cpu":
        return None
    told = place["settings"]
    device: Any = targets.on_paper(str(told["architecture"]))
    if device is None:
        raise InvalidArgument(f"there is no GPU {told['architecture']}")
    found: Device = replace(device, facts=GpuFacts(**told["facts"]))
    return found


def _spread(points: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Some of them, the one with the most workspace first, evenly chosen."""
    if len(points) <= _SHOWN:
        return points[::-1]
    return [points[round(at * (len(points) - 1) / (_SHOWN - 1))] for at in reversed(range(_SHOWN))]

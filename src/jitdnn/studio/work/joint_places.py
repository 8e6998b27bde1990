"""Places of several devices of one host, for runs whose processes divide every batch: "cuda:0+cuda:1", "cpu*2".

The setting `together` lists them. Such a place is there on each host that has all of its devices, and free while none
of them is taken. A run gets it only where it asks for it by name.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from jitdnn.cluster.places import Place, resources_of
from jitdnn.errors import InvalidArgument
from jitdnn.studio.store import Row, Store

SETTING = "together"
_DEVICE = r"(cpu|[a-z]{1,20}:\d{1,3})"
_JOINT = re.compile(rf"{_DEVICE}(\*\d{{1,2}})?(\+{_DEVICE})*")
_MOST = 64


def is_joint(device: str) -> bool:
    """Whether a place is of several devices."""
    return "+" in device or "*" in device


def checked(device: str) -> str:
    """The name of a joint place. Raises InvalidArgument for what is none."""
    found = resources_of(device) if _JOINT.fullmatch(device) else {}
    is_sound = all(count == 1 or name == "cpu" for name, count in found.items())
    if not is_sound or not 2 <= sum(found.values()) <= _MOST or ("cpu" in found and len(found) > 1):
        raise InvalidArgument(
            f"{device[:60]!r} names no devices that train together: GPUs of one kind joined by +, as in cuda:0+cuda:1, "
            "or cpu*2"
        )
    return device


def with_joint_places(store: Store, places: Sequence[Place]) -> list[Place]:
    """The places, and behind them the joint ones of each host."""
    found = list(places)
    for host in dict.fromkeys(place.host for place in places):
        slots = {place.device: place.slots for place in places if place.host == host}
        for device in store.setting(SETTING, []):
            wanted = resources_of(device)
            number = min(slots.get(name, 0) // count for name, count in wanted.items())
            if number:
                found.append(Place(host, device, _name(host, device, places), number))
    return found


def left_of(place: Row, places: Sequence[Mapping[str, Any]]) -> int:
    """How many runs more a place takes; `places` are all, with `busy`, the runs that each has.

    What runs at other places of the same devices of that host counts.
    """
    beside = [
        each for each in places if (each["executor"], each["host"]) == (place["executor"], place["host"])
    ]
    left = [place["slots"] - place["busy"]]
    for name, count in resources_of(place["device"]).items():
        slots = next((each["slots"] for each in beside if each["device"] == name), None)
        if slots is not None:
            taken = sum(each["busy"] * resources_of(each["device"]).get(name, 0) for each in beside)
            left.append((slots - taken) // count)
    return int(min(left))


def _name(host: str, device: str, places: Sequence[Place]) -> str:
    names = [
        each.name
        for name in resources_of(device)
        for each in places
        if (each.host, each.device) == (host, name)
    ]
    return " + ".join(names) if "*" not in device else f"{names[0]}, {resources_of(device)['cpu']} processes"

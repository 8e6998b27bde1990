"""One list of problems measured by several processes, each on devices of its own: who takes which, and how each gets
the times of all.
"""

from __future__ import annotations

import json
import platform
from collections.abc import Sequence
from typing import Any

from jitdnn.errors import InvalidArgument
from jitdnn.groups import Group
from jitdnn.kernels.algorithm import Device
from jitdnn.problems import Problem


def divided(problems: Sequence[Problem], size: int) -> list[list[Problem]]:
    """The problems of each process: the largest first, each to the one that has least to do."""
    parts: list[list[Problem]] = [[] for _ in range(size)]
    loads = [0] * size
    for problem in sorted(problems, key=lambda each: (-each.flops, str(each))):
        least = loads.index(min(loads))
        parts[least].append(problem)
        loads[least] += max(1, problem.flops)
    return parts


def check_together(group: Group, problems: Sequence[Problem], devices: Sequence[Device]) -> None:
    """Raise InvalidArgument, in every process, unless all have the same list, and devices of one model, none of them
    twice.
    """
    host = platform.node()
    own = {
        "problems": [str(problem) for problem in problems],
        "devices": [
            [device.name, host, *(getattr(device, "device_id", None) or ("cpu", 0))] for device in devices
        ],
    }
    found: list[dict[str, Any]] = [json.loads(text) for text in group.gather(json.dumps(own).encode())]
    seen: dict[tuple[Any, ...], int] = {}
    for rank, other in enumerate(found):
        if other["problems"] != found[0]["problems"]:
            raise InvalidArgument(
                f"process {rank} has another list of {len(other['problems'])} problems than process 0: all must be "
                "given the same one, which they divide"
            )
        for name, *where in other["devices"]:
            if name != found[0]["devices"][0][0]:
                raise InvalidArgument(
                    f"devices of one model are tuned together, and process 0 has {found[0]['devices'][0][0]!r}, "
                    f"process {rank} {name!r}"
                )
            if tuple(where) in seen:
                raise InvalidArgument(
                    f"processes {seen[tuple(where)]} and {rank} both measure on {where[1]}:{where[2]} of {where[0]}: "
                    "two measurements at once would disturb each other, give each process a device of its own"
                )
            seen[tuple(where)] = rank


def exchange(group: Group, own: Sequence[dict[str, Any]]) -> list[list[dict[str, Any]]]:
    """What each process tells of its problems, by rank: plain JSON values."""
    return [json.loads(text) for text in group.gather(json.dumps(list(own)).encode())]

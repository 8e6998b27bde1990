"""Where runs start, which start is which, and when to give up: what every engine of a queue shares."""

from __future__ import annotations

from typing import NamedTuple


class Place(NamedTuple):
    """Where one run, or several, can train: a device of a host. `told`: of a GPU, as JSON, its `architecture` (sm_90a)
    and the `facts` by which it can be planned for elsewhere; "" if it told none."""

    host: str
    device: str
    name: str
    slots: int = 1
    told: str = ""


class Start(NamedTuple):
    """One start of a run: its lease grows with each, and the older ones are over."""

    run: str
    lease: int


def resources_of(device: str) -> dict[str, int]:
    """What a device takes of a worker: "cuda:0" one such, "cuda:0+cuda:1" one of each, "cpu*2" two of "cpu"."""
    found: dict[str, int] = {}
    for part in device.split("+"):
        name, _, count = part.partition("*")
        found[name] = found.get(name, 0) + (int(count) if count else 1)
    return found


def devices_of(device: str) -> list[str]:
    """The devices of a run's processes, one for each: "cpu*2" is ["cpu", "cpu"]."""
    return [name for name, count in resources_of(device).items() for _ in range(count)]


def deaths_in_a_row(deaths: int, died_at: int | None, iteration: int) -> int:
    """How often a run has died by now without getting on: at `iteration` once more, before at `died_at`, `deaths` times
    in a row (None: never)."""
    return 1 if died_at is None or iteration > died_at else deaths + 1

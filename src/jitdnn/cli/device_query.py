"""`jitdnn device-query`: what GPUs there are, as Caffe prints it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from jitdnn import targets
from jitdnn.cli.console import say
from jitdnn.errors import DeviceError, InvalidArgument

_WIDTH = 31


def run_device_query(names: Sequence[str]) -> None:
    """Print the facts of the GPUs that are named, by number or as cuda:1, of all of them without a name."""
    usable = {
        f"{target.name}:{gpu.device_id[1]}": gpu
        for target in targets.registered()
        if target.is_gpu
        for gpu in target.usable()
    }
    wanted = [f"cuda:{name}" if name.isdecimal() else name for name in names if name != "all"]
    for name in wanted:
        if not targets.is_gpu(name.partition(":")[0]):
            raise InvalidArgument(f"--gpu is {name!r}: give numbers, names as cuda:0, or all")
        if name not in usable:
            there = ", ".join(usable) or "none: " + "; ".join(
                f"{target.name}: {why}"
                for target in targets.registered()
                if target.is_gpu and (why := target.missing())
            )
            raise DeviceError(f"there is no {name}; there are {there}")
    if not usable:
        say("no GPU that can be used here; `jitdnn info` says why")
    for name in wanted or usable:
        for line in _lines(name, usable[name]):
            say(line)


def _lines(name: str, gpu: Any) -> list[str]:
    facts = gpu.facts
    major, minor = divmod(facts.capability, 10)
    rows: list[tuple[str, object]] = [("Device id", name.partition(":")[2]), ("Device", name)]
    if facts.capability:
        rows += [("Major revision number", major), ("Minor revision number", minor)]
    rows += [
        ("Name", gpu.name),
        ("Total global memory", facts.memory_bytes),
        ("Total shared memory per block", facts.shared_bytes),
        ("Total registers per multiprocessor", facts.registers),
        ("L2 cache", facts.l2_bytes),
        ("Maximum threads per multiprocessor", facts.resident_threads),
        ("Clock rate", round(facts.clock / 1e3)),
        ("Number of multiprocessors", facts.multiprocessors),
    ]
    return [f"{title + ':':<{_WIDTH}} {value}" for title, value in rows]

"""The settings and the facts of the processor that a run computes with, kept in its folder from its first start on.

Which algorithms run follows from these alone: they are chosen by cost models, whatever was measured meanwhile, and only
those are taken that give the same bits each time. So a run that goes on after a pause, a crash, or while others take
their share of the cores ends with the weights of one that was left alone; and so do two runs of one net and seed on one
machine.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any, Final

from jitdnn.devices.cpu import host
from jitdnn.errors import InvalidArgument
from jitdnn.files import write_whole
from jitdnn.rtcg.isa import processor_name
from jitdnn.settings import Settings, current, override, settings

#: files in the folder of a run
SETTINGS: Final = "settings.json"
DEVICE: Final = "device.json"
#: settings that plans depend on
KEPT: Final = (
    "workspace_limit", "total_workspace", "division", "division_axes", "vendor", "math", "accuracy", "threads", "cpu",
)  # fmt: skip
_FIXED: Final = {"choice": "model", "deterministic": True, "compile": "wait"}


def keep(folder: Path, device: str) -> tuple[list[Path], str]:
    """Write the settings in force to the folder of a run that is to train on `device`, unless it has those of this
    kind of processor. Returns the files that were written, and where the run had others what to say about that."""
    machine = f"{processor_name()}, {device.partition(':')[0]}"
    before = _read(folder)
    if before is not None and before["machine"] == machine and (folder / DEVICE).is_file():
        return [], ""
    values = current()
    processor = host(values.threads, values.cpu)
    facts: dict[str, Any] = {}
    if values.device_file is not None:
        facts = json.loads(values.device_file.read_text("utf-8"))
    facts["cpu"] = {**asdict(processor.isa.processor), "efficiency": dict(processor.efficiency)}
    kept = {name: getattr(values, name) for name in KEPT} | {"cpu": processor.isa.name}
    files = [folder / DEVICE, folder / SETTINGS]
    for file, content in zip(files, (facts, {"machine": machine, "settings": kept}), strict=True):
        write_whole(file, partial(_write, content))
    if before is None:
        return files, ""
    return files, f"on another kind of device from here on: {machine}; before it was {before['machine']}"


@contextmanager
def in_force(folder: Path) -> Iterator[Settings]:
    """A block in which the settings of a run's folder hold, those of the process for all that has none."""
    kept = _read(folder)
    if kept is None:
        raise InvalidArgument(f"{folder / SETTINGS} is damaged: remove it, and it is made anew")
    with settings(**kept["settings"], **_FIXED, device_file=folder / DEVICE) as values:
        yield values


def _read(folder: Path) -> dict[str, Any] | None:
    """What the folder has, None where that is nothing that could be in force."""
    try:
        found = json.loads((folder / SETTINGS).read_text("utf-8"))
        values = {name: found["settings"][name] for name in KEPT}
        override(current(), **values)
        return {"machine": str(found["machine"]), "settings": values}
    except (OSError, ValueError, KeyError, TypeError, InvalidArgument):
        return None


def _write(content: dict[str, Any], file: Any) -> None:
    file.write(f"{json.dumps(content, indent=2)}\n".encode())

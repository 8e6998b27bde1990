"""`jitdnn train` in several processes: it starts them, or is one of them."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from jitdnn import log, targets
from jitdnn.caffe.snapshot import newest
from jitdnn.errors import DeviceError, InvalidArgument
from jitdnn.handle import find_device
from jitdnn.parents import end_with_parent, end_with_parent_if_told, process_name
from jitdnn.settings import available_cores, settings


@dataclass(frozen=True)
class Together:
    """What the command line says of several processes."""

    processes: int | None = None
    max_restarts: int = 0
    batch_norm: str = "synchronized"
    wire: str = "f32"
    shards_state: bool = False


@dataclass(frozen=True)
class Joining:
    """How this process takes part: arguments of load_solver, and whether it is the one that reports."""

    options: dict[str, Any] = field(default_factory=dict)
    is_first: bool = True
    is_joined: bool = False

    def newest(self, prefix: str) -> Path | None:
        """The newest snapshot that an earlier start of this very run left, None if there is none.

        Snapshots that lie under the same prefix and are of another run do not count. Process 0 looks, for all.
        """
        group = self.options.get("group")
        if group is None:
            return None
        names = self.options["run"]
        found = newest(prefix, names) if names and prefix and self.is_first else None
        told = group.share(b"" if found is None else os.fsencode(found))
        return Path(os.fsdecode(told)) if told else None


def run_together(together: Together, gpus: Sequence[str], arguments: Sequence[str]) -> int | None:
    """Start the processes that are asked for, each with these arguments of the command line, and return their exit
    code; None if this process is to do the work. `gpus`: their names (`names_of`).
    """
    wanted = together.processes or len(gpus)
    if "RANK" in os.environ or wanted <= 1:
        return None
    from jitdnn.distributed.launch import launch

    end_with_parent_if_told()
    return launch(arguments, wanted, together.max_restarts)


@contextmanager
def joined(together: Together, gpus: Sequence[str], threads: int | None) -> Iterator[Joining]:
    """Join the other processes, if torchrun or `run_together` started this one, and leave them in the end. `gpus`:
    their names.
    """
    if "RANK" not in os.environ:
        end_with_parent_if_told()
        device = _device(gpus, 0)
        yield Joining({} if device is None else {"device": device})
        return
    end_with_parent()  # torchrun's agent: what it cannot end any more must not train on
    from jitdnn.distributed import place, start

    found = place()
    assert found is not None
    device = _device(gpus, found.local_rank)
    group = start(device=device)
    told = group.gather(json.dumps(_run_names()).encode())
    options = {
        "group": group,
        "run": sorted({name for names in told for name in json.loads(names)}),
        "batch_norm": together.batch_norm,
        "wire": together.wire,
        "shards_state": together.shards_state,
        **({} if device is None else {"device": device}),
    }
    own: dict[str, Any] = {}
    if threads is None and "JITDNN_THREADS" not in os.environ:  # processes of one host divide its cores
        own["threads"] = max(1, available_cores() // found.local_size)
    if found.rank:
        log.logger.setLevel("ERROR")
    try:
        with settings(**own):
            yield Joining(options, not found.rank, True)
    finally:
        group.close()


def _run_names() -> list[str]:
    """By what another start of this run knows itself again: its id, and the agent of torchrun, a process that stays
    when those that it started are started again.

    Among several agents one that goes is not missed as long as another one stays. None where torchrun did not start
    this process, or its agent cannot be told from others.
    """
    agent = process_name(os.getppid()) if "TORCHELASTIC_RUN_ID" in os.environ else None
    return [] if agent is None else [f"{os.environ['TORCHELASTIC_RUN_ID']}/{agent}"]


def names_of(gpu: Sequence[str]) -> list[str]:
    """Names of the GPUs of --gpus: numbers, names, or all. They are looked for here, so that one that is not there is
    told rather than by a process that ends; a process that was started with others looks for its own later.

    Raises DeviceError for one that is not there, or where there is none at all.
    """
    if list(gpu) != ["all"]:
        names = [f"cuda:{each}" if each.isdecimal() else each for each in gpu]
        for name in names if "RANK" not in os.environ else ():
            find_device(name)
        return names
    found = [
        f"{target.name}:{device.device_id[1]}"
        for target in targets.registered()
        if target.is_gpu
        for device in target.usable()
    ]
    if not found:
        raise DeviceError("--gpus all: there is no GPU that can be used here; `jitdnn info` says why")
    return found


def _device(gpus: Sequence[str], number: int) -> str | None:
    """The GPU of process `number` on this host."""
    if not gpus:
        return None
    if number >= len(gpus):
        raise InvalidArgument(
            f"--gpus names {len(gpus)} GPUs, and this host has {number + 1} processes or more: give each its own"
        )
    return gpus[number]

"""`jitdnn train` in several processes: it starts them, or is one of them."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from jitdnn import log, targets
from jitdnn.errors import DeviceError, InvalidArgument
from jitdnn.handle import find_device
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
    """How this process takes part: arguments of load_solver, whether it is the one that reports, and how often the
    processes were started again.
    """

    options: dict[str, Any] = field(default_factory=dict)
    is_first: bool = True
    is_joined: bool = False
    restarts: int = 0


def run_together(together: Together, gpu: Sequence[str], arguments: Sequence[str]) -> int | None:
    """Start the processes that are asked for, each with these arguments of the command line, and return their exit
    code; None if this process is to do the work.
    """
    gpus = _gpus(gpu)
    wanted = together.processes or len(gpus)
    if "RANK" in os.environ or wanted <= 1:
        return None
    for name in gpus:  # one that is not there is told here, rather than by a process that ends
        find_device(name)
    from jitdnn.distributed.launch import launch

    return launch(arguments, wanted, together.max_restarts)


@contextmanager
def joined(together: Together, gpu: Sequence[str], threads: int | None) -> Iterator[Joining]:
    """Join the other processes, if torchrun or `run_together` started this one, and leave them in the end."""
    if "RANK" not in os.environ:
        device = _device(_gpus(gpu), 0)
        yield Joining({} if device is None else {"device": device})
        return
    from jitdnn.distributed import place, start

    found = place()
    assert found is not None
    device = _device(_gpus(gpu), found.local_rank)
    group = start(device=device)
    options = {
        "group": group,
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
            yield Joining(options, not found.rank, True, found.restarts)
    finally:
        group.close()


def _gpus(gpu: Sequence[str]) -> list[str]:
    """Names of the GPUs of --gpus: numbers, names, or all."""
    if list(gpu) != ["all"]:
        return [f"cuda:{each}" if each.isdecimal() else each for each in gpu]
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

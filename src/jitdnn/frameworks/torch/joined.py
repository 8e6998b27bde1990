"""Steps of a program that follow each other in known memory, joined: one call of generated code runs their launches.

A step by itself is some Python, which takes the host 5 to 10 us, and on several threads a region of its own, whose
threads are woken for it and wait for the last of them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from jitdnn.devices.launch_list import LaunchList, Recorder
from jitdnn.recorders import NotRecordable, recorders

NOTHING = torch.zeros(16)
"""Has the address of what a step is given and does not read: a filter that it has prepared."""

Replay = Callable[[Sequence[int]], None]


class Step(NamedTuple):
    """A step: `call` launches it, in the arena and on tensors that are the same in each call."""

    number: int
    call: Callable[[], Any]
    constants: Sequence[Tensor]


class Stretch(NamedTuple):
    """Steps from `first` to `last`, which `run([address of the arena])` runs."""

    first: int
    last: int
    run: Replay


def stretches(
    runs: Sequence[Sequence[Step]], arena: Tensor, replayer: Callable[[LaunchList], Replay]
) -> list[Stretch]:
    """What is joined of steps that follow each other, in each of several `runs`: what a launch list cannot have stays
    apart. Nothing is computed. The steps' memory lies in `arena`."""
    found = []
    for run in runs:
        part: list[Step] = []
        for step in [*run, None]:
            if step is not None and _recorded([step], arena) is not None:
                part.append(step)
                continue
            launches = _recorded(part, arena) if len(part) > 1 else None
            if launches is not None:
                found.append(Stretch(part[0].number, part[-1].number, replayer(launches)))
            part = []
    return found


def replayed(
    call: Callable[[], Any], reads: Sequence[Tensor], out: Tensor, replayer: Callable[[LaunchList], Replay]
) -> Callable[[], Any]:
    """What does the same as a call of ours that reads some tensors and writes `out`, without the Python in it where it
    can be recorded: as the step costs that is joined with others."""
    if recorders:
        return call
    launches = _recorded([Step(0, call, reads)], out)
    if launches is None:
        return call
    run, where = replayer(launches), [out.data_ptr()]
    return lambda: run(where)


def _recorded(steps: Sequence[Step], arena: Tensor) -> LaunchList | None:
    """The launches of steps; None where Python does something between them, or there is none."""
    recorder = Recorder()
    recorder.memory(*_place(arena))
    for tensor in (NOTHING, *(one for step in steps for one in step.constants)):
        recorder.constant(*_place(tensor), tensor)
    with recorder:
        for step in steps:
            before = len(recorder)
            try:
                step.call()
            except NotRecordable:
                return None
            if len(recorder) == before:
                return None
    return recorder.finish()


def _place(tensor: Tensor) -> tuple[int, int]:
    """The address of a tensor, and bytes from there to its last element."""
    if not tensor.numel():
        return tensor.data_ptr(), 0
    span = 1 + sum((n - 1) * step for n, step in zip(tensor.shape, tensor.stride(), strict=True))
    return tensor.data_ptr(), span * tensor.element_size()

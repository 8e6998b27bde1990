"""What pycaffe keeps for the whole process: processor or GPU, the seed, and where layers in Python may come from."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Final

from jitdnn.errors import InvalidArgument

TRAIN: Final = 0
TEST: Final = 1
PHASES: Final = ("TRAIN", "TEST")


@dataclass
class _State:
    is_gpu: bool | None = None
    device: int = 0
    name: str | None = None
    seed: int | None = None
    folder: Path | None = None


_STATE = _State()


def set_mode_cpu() -> None:
    """Build the next nets and solvers on the processor."""
    _STATE.is_gpu = False


def set_mode_gpu() -> None:
    """Build the next nets and solvers on the NVIDIA GPU that `set_device` names, 0 without it. Those that exist stay
    where they are.
    """
    _STATE.is_gpu = True


def set_device(device: int) -> None:
    """Take the number of a GPU, which `set_mode_gpu` uses."""
    if device < 0:
        raise InvalidArgument(f"device {device}: numbers of GPUs are 0 or more")
    _STATE.device = int(device)


def device() -> str | None:
    """Where the next nets are built; None if nobody said so: the processor, or what a solver's file says."""
    if _STATE.name is not None:
        return _STATE.name
    if _STATE.is_gpu is None:
        return None
    return f"cuda:{_STATE.device}" if _STATE.is_gpu else "cpu"


@contextmanager
def built_on(device: str | None) -> Iterator[None]:
    """Build nets on this device inside of the block, whatever `set_mode_gpu` and its kin say; None: as those say."""
    before, _STATE.name = _STATE.name, device
    try:
        yield
    finally:
        _STATE.name = before


def set_random_seed(seed: int) -> None:
    """Start the random numbers of the next net or solver here; those after it go on from there."""
    _STATE.seed = int(seed)


def next_seed() -> int | None:
    """The seed of the next net, None for another one each time."""
    if _STATE.seed is None:
        return None
    _STATE.seed += 1
    return _STATE.seed - 1


def allow_python_layers(folder: str | PathLike[str] | None) -> None:
    """Let nets run layers written in Python from this folder from now on, with all rights of the process; None: from
    none, as at the start."""
    if folder is not None and not Path(folder).is_dir():
        raise InvalidArgument(f"{folder} is no folder")
    _STATE.folder = None if folder is None else Path(folder)


def python_layers() -> Path | None:
    """The folder that layers written in Python may come from."""
    return _STATE.folder

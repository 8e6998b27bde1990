"""The registry of targets: everything that lists targets or tells them apart reads it.

A new target is its own files (its devices, its table of algorithms, and a module of this package with its `TARGET`) and
its name in `BUILT_IN`. A target of another package, or of a test, is added by `register`. `to_device` takes the first
GPU target where nothing says which one.
"""

from __future__ import annotations

from importlib import import_module

from jitdnn.errors import InvalidArgument
from jitdnn.targets.target import Devices, MemorySpace, Table, Target, module

__all__ = [
    "BUILT_IN",
    "Devices",
    "MemorySpace",
    "Table",
    "Target",
    "find",
    "get",
    "gpu_names",
    "is_gpu",
    "module",
    "names",
    "on_paper",
    "register",
    "registered",
    "unregister",
]

#: modules of this package
BUILT_IN = ("cpu", "cuda", "opencl")
_registered: dict[str, Target] = {
    target.name: target for target in (import_module(f"jitdnn.targets.{name}").TARGET for name in BUILT_IN)
}


def register(target: Target, replace: bool = False) -> None:
    """Add a target. Raises InvalidArgument if there is one of its name, which `replace` allows."""
    if target.name in _registered and not replace:
        raise InvalidArgument(f"there is a target {target.name} already: names of targets are unique")
    _registered[target.name] = target


def unregister(name: str) -> None:
    """Take a target out again that was registered."""
    _registered.pop(name, None)


def find(name: str) -> Target | None:
    """The target of this name; None if there is none."""
    return _registered.get(name)


def get(name: str) -> Target:
    """The target of this name. Raises InvalidArgument."""
    found = _registered.get(name)
    if found is None:
        raise InvalidArgument(f"there is no target {name}: there are {', '.join(_registered)}")
    return found


def registered() -> tuple[Target, ...]:
    """All targets, in the order in which they were registered."""
    return tuple(_registered.values())


def names() -> tuple[str, ...]:
    """The names of all targets."""
    return tuple(_registered)


def gpu_names() -> tuple[str, ...]:
    """The names of the targets whose kernels work in memory of the device's own."""
    return tuple(target.name for target in _registered.values() if target.is_gpu)


def is_gpu(name: str) -> bool:
    """Whether the kernels of a target work in memory of the device's own; those of one that nobody knows do not."""
    found = _registered.get(name)
    return found is not None and found.is_gpu


def on_paper(name: str) -> object | None:
    """A device that compiles for the architecture of this name, and launches nothing; None if no target has it."""
    return next((device for target in registered() if (device := target.on_paper(name)) is not None), None)

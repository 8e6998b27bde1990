"""What a target is: one value that says all that the library must know of a kind of device."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any, Protocol

from jitdnn.errors import DeviceError


class Devices(Protocol):
    """The devices of a target: a module such as `jitdnn.devices.cuda`, or any object with these functions.

    One that can compile for devices that are not there has `offline(arch)` too (`Target.architectures`), and one whose
    code is kept in the disk cache has `origins()`.
    """

    def device(self, index: int = 0, values: Any = None) -> Any:
        """The device of this number; a processor as `values`, the settings, describe it. Raises DeviceError."""

    def device_count(self) -> int:
        """Devices that there are."""

    def missing(self) -> str | None:
        """Why there is no device to use, in one line; None where there is one."""


class Table(Protocol):
    """The algorithms of a target, best first, by problem class and direction: a module `jitdnn.kernels.<target>.table`.

    A target that makes kernels of one's own formulas has their generators here too: ELEMENTWISE, MULTI_TENSOR,
    REDUCTION, SCAN; GPUs have ROWS, of programs over rows; and one that transforms batches of images IMAGE_TRANSFORM.
    """

    @property
    def ALGORITHMS(self) -> Mapping[Any, Any]: ...  # noqa: N802 - a constant of a module


@dataclass(frozen=True)
class MemorySpace:
    """How other libraries name memory of a target's devices; what one lacks stays empty.

    `dlpack`: device types of DLPack that are taken; arrays of our own are handed out as the first one. `torch`: the
    type of PyTorch's devices, and the attribute of `torch.version` that builds with such devices have. `cupy`: whether
    `cupy.cuda.runtime.is_hip` is set where CuPy's arrays lie there. `locate`: the number of the device that has an
    address of `__cuda_array_interface__`.
    """

    dlpack: tuple[int, ...] = ()
    torch: tuple[str, str] | None = None
    cupy: bool | None = None
    locate: Callable[[int], int] | None = None


@dataclass(frozen=True)
class Target:
    """A kind of device that kernels are generated for.

    `devices` and `table` are called when a device, or an algorithm, of this target is first needed, and import what
    that takes; `needs` says how to install it. `is_gpu`: kernels are given as text (`devices.gpu.Source`) and work in
    memory of the device's own, which `memory` describes. `vendor` is the table of the vendor's own library.
    `code_forms`: the forms of generated code that `Plan.code` prints, the usual one first. `has_graphs`: calls can be
    captured and replayed. `reads_addresses`: kernels may reach memory by addresses that they read from memory.
    `architectures`: a pattern of the names that stand for a device on paper.
    `generators`: the module of those of one's own formulas, where that of the table takes longer to import. `texts`:
    the module that compiles users' text in the device's language.
    """

    name: str
    devices: Callable[[], Devices]
    table: Callable[[], Table]
    needs: str = ""
    is_gpu: bool = True
    memory: MemorySpace = MemorySpace()
    vendor: Callable[[], Table] | None = None
    code_forms: tuple[str, ...] = ()
    has_graphs: bool = False
    reads_addresses: bool = False
    architectures: str = ""
    generators: Callable[[], Any] | None = None
    texts: Callable[[], Any] | None = None

    def device(self, index: int = 0, values: Any = None) -> Any:
        """The device of this number. Raises DeviceError, in one line, if it is not there or cannot be used."""
        return self._devices().device(index, values)

    def missing(self) -> str | None:
        """Why there is no device of this target to use, in one line; None where there is one."""
        try:
            return self._devices().missing()
        except DeviceError as error:
            return str(error)

    def states(self) -> list[str]:
        """Each device by name, or why it cannot be used, in the order of their numbers."""
        found = []
        for index in range(self._devices().device_count()):
            try:
                found.append(f"{index}: {self.device(index).name}")
            except DeviceError as error:
                found.append(f"{index}: not usable: {error}")
        return found

    def usable(self) -> list[Any]:
        """The devices that can be used, in the order of their numbers."""
        found = []
        for index in range(self._devices().device_count()) if self.missing() is None else ():
            try:
                found.append(self.device(index))
            except DeviceError:
                continue  # `states` says why
        return found

    def on_paper(self, name: str) -> Any:
        """A device that compiles for the architecture of this name and launches nothing; None for other names."""
        if not self.architectures or not re.fullmatch(self.architectures, name):
            return None
        devices: Any = self._devices()
        return devices.offline(name)

    def origins(self) -> Sequence[tuple[str, str, str]]:
        """Target, architecture and compiler, as in the code cache, of code that this machine runs and would make alike.

        There are none if no code of this target is kept. Raises DeviceError where the target cannot be used.
        """
        devices: Any = self._devices()
        found: Sequence[tuple[str, str, str]] = devices.origins() if hasattr(devices, "origins") else ()
        return found

    def generator(self, name: str) -> Callable[..., Any] | None:
        """The generator of kernels of a kind (`Table`), `elementwise` for one; None if the target has none."""
        return getattr((self.generators or self.table)(), name.upper(), None)

    def _devices(self) -> Devices:
        try:
            return self.devices()
        except ImportError as error:
            raise DeviceError(f"the {self.name} target needs {self.needs} ({error})") from None


def module(name: str) -> Callable[[], Any]:
    """A function that imports this module when it is called."""
    return lambda: import_module(name)

"""Text of users in OpenCL C: built by the driver, its kernels launched with arguments of any kind."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from jitdnn import retention
from jitdnn.devices.c_text import CText
from jitdnn.devices.gpu import Argument, LocalMemory, key_of
from jitdnn.devices.opencl import OpenClDevice, address_argument, built, nothing_at, origin_of
from jitdnn.errors import CompileError, DeviceError, InvalidArgument
from jitdnn.settings import current as current_settings

_SCHEMA = "text 1"
_STANDARD = "-cl-std=CL1.2"


SUFFIX = ".cl"


class OpenClModule:
    """A built text."""

    language = "opencl"

    def __init__(self, device: OpenClDevice, text: CText) -> None:
        import pyopencl as cl

        self._device, self._text = device, text
        has_standard = any(option.startswith("-cl-std") for option in text.options)
        options = [*(() if has_standard else (_STANDARD,)), *text.options]
        key = key_of(*text.parts, *origin_of(device), _SCHEMA)

        def failure(error: Exception) -> CompileError:
            return text.failure(device.name, _log(error))

        with tempfile.TemporaryDirectory() as folder:
            # every driver finds headers in a folder; not all take them as programs
            for name, content in text.headers:
                path = Path(folder) / name
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(content, "utf-8")
            if text.headers:
                options += ["-I", folder]
            self._program, size = built(device, text.name, key, text.complete, options, failure)
        self._charge = retention.code.charge(size, current_settings().code_limit)
        names = self._program.get_info(cl.program_info.KERNEL_NAMES)
        self.functions = tuple(sorted(name for name in names.split(";") if name))

    def resolved(self, name: str) -> str:
        """The name itself. Raises CompileError if the text has no such kernel."""
        if name not in self.functions:
            which = ", ".join(self.functions) or "none"
            raise CompileError(f"{self._text.name} has no function {name!r}: there are {which}")
        return name

    def function(self, symbol: str, name: str) -> OpenClFunction:
        """The kernel of this name, which the code calls as its text does."""
        return OpenClFunction(self._device, self._program, name)

    def keep(self, stream: Any) -> None:
        """Nothing refers to the code but its kernels."""


class OpenClFunction:
    """A kernel of a text."""

    def __init__(self, device: OpenClDevice, program: Any, name: str) -> None:
        import pyopencl as cl

        self._device, self._program, self._name = device, program, name
        # arguments belong to the kernel object, not to the launch: each caller has its own
        self._free = [cl.Kernel(program, name)]
        self.count = int(self._free[0].num_args)

    def __call__(
        self,
        stream: Any,
        arguments: Sequence[Argument | LocalMemory],
        names: Sequence[str],
        whole: tuple[int, ...],
        group: tuple[int, ...] | None,
        shared: int = 0,
    ) -> None:
        """Launch it over `whole` work items in groups of `group`.

        `arguments`: addresses as int, values as bytes, shared memory; `names` are those of the parameters.
        """
        import numpy as np
        import pyopencl as cl

        if len(arguments) != self.count:
            raise InvalidArgument(
                f"{self._name} takes {self.count} arguments as compiled, and {len(arguments)} are declared"
            )
        try:
            kernel = self._free.pop()  # atomic
        except IndexError:
            kernel = cl.Kernel(self._program, self._name)
        nothing = nothing_at(self._device)
        for number, argument in enumerate(arguments):
            if isinstance(argument, int):
                given = address_argument(argument or nothing)
            elif isinstance(argument, LocalMemory):
                given = cl.LocalMemory(argument.bytes)
            else:
                given = np.frombuffer(argument, np.uint8)
            try:
                kernel.set_arg(number, given)
            except cl.Error as error:
                raise InvalidArgument(
                    f"{self._name}: {names[number]} does not fit what the kernel takes: {error}"
                ) from None
        try:
            cl.enqueue_nd_range_kernel(stream or self._device.queue, kernel, whole, group)
        except cl.Error as error:
            raise DeviceError(f"launch of {self._name}: {error}") from None
        self._free.append(kernel)


def _log(error: Exception) -> str:
    """The compiler's words in an error of pyopencl, which says thrice that there was one."""
    text = str(error)
    _, found, log = text.partition("\n\nBuild on ")
    log = log.partition("\n\n")[2] if found else text
    return log.rpartition("\n(options:")[0] or log


def build(device: OpenClDevice, text: CText) -> OpenClModule:
    """Build a text for a device. Raises CompileError."""
    return OpenClModule(device, text)

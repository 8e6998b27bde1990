"""Text of users in CUDA C++: compiled by NVRTC through the cache on disk, loaded apart from other code, launched."""

from __future__ import annotations

import ctypes
import re
from collections.abc import Sequence
from typing import Any

from jitdnn.devices.c_text import CText
from jitdnn.devices.cuda import CudaDevice
from jitdnn.devices.cuda_compile import compiled_text
from jitdnn.devices.cuda_driver import LaunchConfig, check, current, driver, failure, launcher, relaxed
from jitdnn.devices.cuda_kernel import NEVER_CAPTURED, LoadedLibrary
from jitdnn.devices.gpu import Argument
from jitdnn.errors import CompileError, DeviceError, InvalidArgument

_STATIC_SHARED = 48 << 10
_SLOT = 16  # the alignment of the largest numbers that are handed over
_CODE = re.compile(rb"\.text\.([\w$]+)\0")  # sections of a cubin are named for the functions in them


SUFFIX = ".cu"


class CudaModule:
    """A compiled text. It is loaded when it is first launched; its constants are its own."""

    language = "cuda"

    def __init__(self, device: CudaDevice, text: CText) -> None:
        self._index, self._text = device.index, text
        self._code = compiled_text(text, device.arch)
        self.functions: tuple[str, ...] = tuple(sorted({name.decode() for name in _CODE.findall(self._code)}))
        self._library: LoadedLibrary | None = None

    def resolved(self, name: str) -> str:
        """What the code calls the kernel of this name. Raises CompileError."""
        if name in self.functions:
            return name
        parts = name.split("::")
        encoded = "".join(f"{len(part)}{part}" for part in parts)
        start = f"_ZN{encoded}E" if len(parts) > 1 else f"_Z{encoded}"
        is_one = re.compile(re.escape(start) + r"(?!I)")
        found = [each for each in self.functions if is_one.match(each)]
        if not found:  # one with arguments of a template
            found = [
                each for each in self.functions if each.startswith(start[:-1] if len(parts) > 1 else start)
            ]
        if len(found) != 1:
            what = f"{len(found)} functions {name!r}" if found else f"no function {name!r}"
            which = ", ".join(found or self.functions) or "none that is launched"
            raise CompileError(f"{self._text.name} has {what}: there are {which}")
        return found[0]

    def function(self, symbol: str, name: str) -> CudaFunction:
        """The kernel that the code calls `symbol` and its text `name`. Raises DeviceError on a device on paper."""
        return CudaFunction(self._loaded(), self._index, symbol, name)

    def symbol(self, name: str) -> tuple[int, int] | None:
        """Address and bytes of a variable of the text; None if the code has none of that name."""
        library = self._loaded()
        with current(self._index), relaxed():
            result = driver().cuLibraryGetGlobal(library.library, name.encode())
        if int(result[0]):
            return None
        return int(result[1]), int(result[2])

    def keep(self, stream: Any) -> None:
        """Leave the code loaded as long as the process if a graph may refer to it."""
        if stream not in NEVER_CAPTURED and self._library is not None:
            self._library.keep()

    def _loaded(self) -> LoadedLibrary:
        if self._index < 0:
            raise DeviceError(f"{self._text.name} was compiled for a device on paper: it cannot be launched")
        if self._library is None:
            self._library = LoadedLibrary(self._index, self._code, self._text.name)
        return self._library


class CudaFunction:
    """A kernel of a text, loaded."""

    def __init__(self, library: LoadedLibrary, index: int, symbol: str, name: str) -> None:
        self._index, self._name, self._library = index, name, library
        self._function = library.symbol(symbol)
        self._shared = 0
        self._sizes = _sizes(self._index, self._function)

    def __call__(
        self,
        stream: Any,
        arguments: Sequence[Argument],
        names: Sequence[str],
        grid: tuple[int, int, int],
        block: tuple[int, int, int],
        shared: int,
    ) -> None:
        """Launch it. `arguments`: addresses as int, values as bytes; `names` are those of the parameters."""
        self._check(arguments, names)
        if shared > _STATIC_SHARED and shared > self._shared:
            functions = driver()
            attribute = functions.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
            with current(self._index), relaxed():
                check(
                    functions.cuFuncSetAttribute(self._function, attribute, shared),
                    f"{self._name} with {shared} bytes of shared memory",
                )
            self._shared = shared
        places, size = [], 0
        for argument in arguments:
            places.append(size)
            size += 8 if isinstance(argument, int) else len(argument)
            size += -size % _SLOT
        memory = ctypes.create_string_buffer(size + _SLOT)
        start = ctypes.addressof(memory)
        start += -start % _SLOT
        for place, argument in zip(places, arguments, strict=True):
            value = argument.to_bytes(8, "little") if isinstance(argument, int) else argument
            ctypes.memmove(start + place, value, len(value))
        addresses = (ctypes.c_void_p * max(1, len(places)))(*(start + place for place in places))
        config = LaunchConfig(*grid, *block, shared, stream or None)
        with current(self._index):
            status = launcher()(
                ctypes.byref(config), ctypes.c_void_p(int(self._function)), ctypes.byref(addresses), None
            )
        if status:
            raise failure(status, f"launch of {self._name}")

    def _check(self, arguments: Sequence[Argument], names: Sequence[str]) -> None:
        """Raise InvalidArgument where what is handed over has not the bytes that the code takes."""
        if self._sizes is None:
            return
        if len(self._sizes) != len(arguments):
            raise InvalidArgument(
                f"{self._name} takes {len(self._sizes)} arguments as compiled, and {len(arguments)} are declared"
            )
        for size, name, argument in zip(self._sizes, names, arguments, strict=True):
            held = 8 if isinstance(argument, int) else len(argument)
            if held != size:
                raise InvalidArgument(f"{self._name}: {name} has {held} bytes, and the kernel takes {size}")


def _sizes(index: int, function: Any) -> tuple[int, ...] | None:
    """Bytes of each parameter of a function; None from a driver that does not tell (before CUDA 12.4)."""
    ask = getattr(driver(), "cuFuncGetParamInfo", None)
    if ask is None:
        return None
    found: list[int] = []
    with current(index):
        while True:
            try:
                status, _, size = ask(function, len(found))
            except (RuntimeError, ValueError):  # the bindings know it and the driver does not
                return None
            if int(status):
                # the end of the list is an invalid value
                return tuple(found) if int(status) == 1 else None
            found.append(int(size))


def build(device: CudaDevice, text: CText) -> CudaModule:
    """Compile a text for a GPU. Raises CompileError."""
    return CudaModule(device, text)

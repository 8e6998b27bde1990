"""Raw code of one's own: LLVM IR, or Python that traces it, compiled and launched on the library's threads."""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Callable
from typing import Any, cast

from jitdnn.arguments import MOST_INDEX, integer_number, shown, text
from jitdnn.devices.cpu import CpuDevice
from jitdnn.devices.cpu_kernel import launch
from jitdnn.errors import CompileError, InvalidArgument, InvalidType, JitdnnError, NotSupported
from jitdnn.handle import Handle, settled_handle
from jitdnn.rtcg.builder import Module
from jitdnn.rtcg.compile import Library, load
from jitdnn.tensor import borrow

_MOST_CHARACTERS = 1 << 28
Source = str | Callable[[Module], None]


def module(source: Source, name: str = "user", handle: Handle | None = None) -> RawModule:
    """Compile raw source for the target of the handle in force: on the cpu LLVM IR, or Python that traces it.

    As text `source` is LLVM IR that defines `void f(ptr args, i64 task, i64 thread)` for each function to launch. As a
    function it gets a `jitdnn.rtcg.builder.Module` and traces its tasks:

        def axpy(module):
            with module.task("axpy") as (k, args, task, thread):
                x, y = k.pointer(args, 0, "f32"), k.pointer(args, 1, "f32")
                ...

    Compiled code is kept in the code cache. Raises CompileError for code that is not valid, NotSupported on targets
    that take no raw source.

    The code is trusted: nothing checks where it reads and writes.
    """
    handle = settled_handle(handle)
    device = handle.device
    if device.target != "cpu":
        raise NotSupported(
            f"raw modules of the target {device.target} are not there yet: use target='cpu'", {}
        )
    isa = cast(CpuDevice, device).isa
    made = Module(text(name, "name"), isa)
    if isinstance(source, str):
        made.write(text(source, "source", _MOST_CHARACTERS))
    elif callable(source):
        _traced(source, made)
    else:
        raise InvalidArgument(
            f"source is {shown(source)}: it must be LLVM IR as text, or a function that traces it"
        )
    code = made.text
    digest = hashlib.sha256(code.encode()).hexdigest()
    return RawModule(name, load(f"module {name}", digest, isa, lambda module: module.write_all(code)))


def _traced(source: Callable[[Module], None], made: Module) -> None:
    try:
        source(made)
    except JitdnnError:
        raise
    except Exception as error:
        raise CompileError(
            f"{shown(source)} does not trace a module: it raised {type(error).__name__}: {shown(str(error))}"
        ) from error


class RawModule:
    """Compiled code; `module["name"]` is one of its functions."""

    def __init__(self, name: str, library: Library) -> None:
        self.name, self._library = name, library

    def __repr__(self) -> str:
        return f"<raw module {self.name}>"

    def __getitem__(self, name: str) -> RawFunction:
        """The function called `name`. Raises CompileError if there is none."""
        return RawFunction(name, self._library)


class RawFunction:
    """`function(*arguments, tasks=n)` calls f(args, task, thread) for every task from 0 to n - 1, on many threads.

    `args` is a block of 8-byte slots, one for each argument: the address of an array's first element (of any dtype
    and strides), an integer as i64, a real number as a double.
    """

    def __init__(self, name: str, library: Library) -> None:
        self.name, self._library = name, library
        self._address = library.address(name)

    def __repr__(self) -> str:
        return f"<raw function {self.name}>"

    def __call__(self, *arguments: Any, tasks: int = 1, handle: Handle | None = None) -> None:
        """Run all tasks and wait for them. Raises InvalidType for what is no array or number."""
        tasks = integer_number(tasks, "tasks", 0, MOST_INDEX)
        handle = settled_handle(handle)
        block, kept, anchors = b"", [], []
        for number, argument in enumerate(arguments):
            if isinstance(argument, bool):
                raise InvalidType(
                    f"argument {number} is {argument}: pass an array, an integer or a real number"
                )
            if isinstance(argument, int):
                block += struct.pack("q", integer_number(argument, f"argument {number}", most=MOST_INDEX))
            elif isinstance(argument, float):
                block += struct.pack("d", argument)
            else:
                kept.append(borrow(argument, False, f"argument {number}"))
                anchors.append((number, kept[-1].pointer))
                block += struct.pack("q", kept[-1].pointer)
        launch(self._library, [(self._address, tasks)], block, handle.device.threads, anchors)
